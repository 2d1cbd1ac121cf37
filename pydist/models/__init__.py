"""Language models of known architectures: GPT-2, LLaMA, BERT, and the encoder-decoder Transformer.

Each model is one class, made from a small dataclass of sizes, with the parameter names of its usual checkpoints.
"""

from pydist.models.bert import BERT, BERTClassifier, BERTConfig
from pydist.models.gpt import GPT, GPTConfig
from pydist.models.llama import LLaMA, LLaMAConfig
from pydist.models.transformer import Transformer, TransformerConfig

__all__ = [
    "BERT", "BERTClassifier", "BERTConfig", "GPT", "GPTConfig", "LLaMA", "LLaMAConfig", "Transformer",
    "TransformerConfig",
]  # fmt: skip
