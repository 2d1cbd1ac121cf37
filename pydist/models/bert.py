"""BERT (Devlin et al., arXiv 1810.04805): an encoder of post-norm blocks that read in both directions."""

from dataclasses import dataclass

import pydist
from pydist import nn
from pydist.models._parts import check_sizes, check_tokens, from_heads, to_heads
from pydist.nn import functional as F
from pydist.nn.modules.normalization import add_norm


@dataclass
class BERTConfig:
    """Sizes of a BERT. The defaults are those of BERT-base. BERT-mini: 4 layers, 4 heads, 256 features."""

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_size: int = 768
    intermediate_size: int | None = None
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12

    def __post_init__(self):
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        check_sizes(self, ("hidden_size", "num_attention_heads"))


class SelfAttention(nn.Module):
    """Attention of every token to all tokens that `mask` allows."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.dropout
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3))
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, mask):
        q, k, v = (to_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        return self.output(from_heads(y))


class Layer(nn.Module):
    """Attention and a feed-forward block, each followed by a norm."""

    def __init__(self, config):
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, mask):
        x = add_norm(self.attention_norm, x, self.dropout(self.attention(x, mask)))[1]
        return add_norm(self.output_norm, x, self.dropout(self.output(F.gelu(self.intermediate(x)))))[1]


class BERT(nn.Module):
    """model(tokens [N, T], mask=None, types=None) returns (hidden states [N, T, hidden_size], tanh of a linear layer of
    the first one [N, hidden_size]). mask [N, T]: True, or 1, for tokens, 0 for padding. types: which sentence a token
    belongs to, 0 or 1. Raises ShapeError if T is larger than max_position_embeddings.

    >>> import pydist
    >>> from pydist.models import BERT, BERTConfig
    >>> model = BERT(BERTConfig(vocab_size=10, num_hidden_layers=1, num_attention_heads=2, hidden_size=8)).eval()
    >>> hidden, pooled = model(pydist.tensor([[1, 2, 0]]), mask=pydist.tensor([[1, 1, 0]]))
    >>> hidden.shape, pooled.shape
    (pydist.Size([1, 3, 8]), pydist.Size([1, 8]))
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.embeddings_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.pooler = nn.Linear(width, width)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, mask=None, types=None):
        check_tokens("BERT", tokens, self.config.max_position_embeddings)
        x = self.word_embeddings(tokens) + self.position_embeddings(
            pydist.arange(tokens.shape[1], device=tokens.device)
        )
        x = x + self.token_type_embeddings(pydist.zeros_like(tokens) if types is None else types)
        x = self.dropout(self.embeddings_norm(x))
        seen = None if mask is None else mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, seen)
        return x, self.pooler(x[:, 0]).tanh()


class BERTClassifier(nn.Module):
    """BERT with a linear layer on its pooled state: model(tokens, mask) returns logits [N, classes].

    >>> import pydist
    >>> from pydist.models import BERTClassifier, BERTConfig
    >>> sizes = BERTConfig(vocab_size=10, num_hidden_layers=1, num_attention_heads=2, hidden_size=8)
    >>> BERTClassifier(sizes, 2)(pydist.tensor([[1, 2, 3]])).shape
    pydist.Size([1, 2])
    """

    def __init__(self, config, classes):
        super().__init__()
        self.bert = BERT(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, classes)
        nn.init.normal_(self.classifier.weight, 0.0, 0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, tokens, mask=None, types=None):
        return self.classifier(self.dropout(self.bert(tokens, mask, types)[1]))
