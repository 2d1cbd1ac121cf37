"""Modules with the shapes of their inputs, losses and distributions with arguments: for tests next to torch, and of CUDA."""

import numpy as np

LAYERS = [
    *((f"{kind}Pad{d}d({2 * d}{', 1.5' if kind == 'Constant' else ''})", (1, 2, *[9, 8, 7][:d])) for kind in ("Constant", "Zero", "Reflection", "Replication", "Circular") for d in (1, 2, 3)),
    ("ReflectionPad2d((1, 2, 0, 1))", (2, 4, 5)), ("ConstantPad2d((1, -1, 0, 2), 3.5)", (1, 2, 4, 5)), ("Upsample(scale_factor=2)", (1, 2, 3, 4)), ("Upsample((5, 6), mode='bilinear', align_corners=True)", (1, 2, 3, 4)),
    ("Upsample(scale_factor=(2, 1.5), mode='bicubic')", (1, 2, 3, 4)), ("UpsamplingNearest2d(scale_factor=2)", (1, 2, 3, 4)), ("UpsamplingBilinear2d(size=(5, 5))", (1, 2, 3, 4)), ("PixelShuffle(2)", (1, 8, 2, 3)), ("PixelUnshuffle(2)", (1, 2, 4, 6)),
    ("ChannelShuffle(2)", (1, 4, 2, 2)), ("Unfold(2, padding=1)", (1, 2, 4, 5)), ("Fold((4, 5), (2, 2))", (2, 8, 12)), ("Conv3d(2, 4, 3, padding=1)", (1, 2, 4, 5, 4)), ("Conv3d(4, 2, (1, 2, 2), 2, groups=2, bias=False)", (1, 4, 4, 5, 4)),
    ("Conv2d(2, 3, 3, padding=2, padding_mode='reflect')", (1, 2, 5, 6)), ("Conv1d(2, 3, 4, padding='same', padding_mode='circular')", (1, 2, 9)), ("ConvTranspose1d(3, 2, 4, 2, 1)", (2, 3, 5)),
    ("ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2)", (2, 4, 3, 4)), ("ConvTranspose2d(3, 2, 4, bias=False)", (3, 3, 4)), ("ConvTranspose3d(2, 3, 2, 2)", (1, 2, 2, 3, 2)), ("BatchNorm3d(3)", (2, 3, 2, 2, 3)),
    ("InstanceNorm1d(3)", (2, 3, 5)), ("InstanceNorm2d(3, affine=True)", (2, 3, 4, 5)), ("InstanceNorm2d(3, track_running_stats=True)", (2, 3, 4, 5)), ("InstanceNorm3d(2)", (2, 2, 2, 3, 2)), ("InstanceNorm1d(3)", (3, 5)), ("LocalResponseNorm(3)", (2, 5, 4)),
    ("MaxPool3d(2)", (1, 2, 4, 5, 6)), ("AvgPool3d(2, 1, 1)", (1, 2, 4, 5, 6)), ("AdaptiveAvgPool3d((2, None, 3))", (1, 2, 4, 5, 6)), ("AdaptiveMaxPool3d(2)", (1, 2, 4, 5, 6)), ("LPPool2d(3, 2)", (1, 2, 4, 4)), ("LPPool3d(2, 2)", (1, 2, 4, 4, 5)), ("LPPool1d(2, 3, stride=2)", (1, 2, 7)),
    ("GLU()", (3, 4)), ("Hardshrink(0.3)", (3, 4)), ("Softshrink()", (3, 4)), ("Threshold(0.1, 2.0)", (3, 4)), ("Softmax2d()", (1, 3, 2, 2)), ("CosineSimilarity(1)", (3, 4)), ("PairwiseDistance(1.0)", (3, 4)),
    ("TransformerEncoderLayer(8, 2, 16, 0.0)", (5, 2, 8)), ("TransformerEncoderLayer(8, 2, 16, 0.0, 'gelu', batch_first=True, norm_first=True, bias=False)", (2, 5, 8)), ("TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, nn.LayerNorm(8))", (5, 2, 8)),
    ("Bilinear(4, 4, 3)", (5, 4)),
]  # fmt: skip
TWO = ("CosineSimilarity", "PairwiseDistance", "Bilinear")

LAZY = [
    ("LazyLinear(3, bias=False)", (2, 5)), ("LazyConv1d(4, 3)", (2, 3, 7)), ("LazyConv2d(4, 3, 2, 1, groups=2)", (2, 6, 5, 5)), ("LazyConv3d(2, 2)", (3, 4, 4, 4)), ("LazyConvTranspose1d(4, 3)", (2, 3, 7)),
    ("LazyConvTranspose2d(4, 3, groups=2)", (1, 2, 4, 4)), ("LazyConvTranspose3d(2, 2)", (1, 3, 2, 2, 2)), ("LazyBatchNorm1d()", (4, 3)), ("LazyBatchNorm2d(affine=False)", (4, 3, 2, 2)), ("LazyBatchNorm3d(1e-3)", (2, 3, 2, 2, 2)),
    ("LazyInstanceNorm1d(affine=False)", (2, 3, 5)), ("LazyInstanceNorm2d(track_running_stats=True)", (2, 3, 4, 4)), ("LazyInstanceNorm3d(1e-3, None)", (2, 3, 2, 2, 3)),
]  # fmt: skip

# of each argument: its kind
LOSSES = [("CosineEmbeddingLoss(0.1)", "nds"), ("MarginRankingLoss(0.3)", "vvs"), ("HingeEmbeddingLoss()", "vs"), ("SoftMarginLoss()", "vs"), ("MultiLabelSoftMarginLoss()", "dp"), ("MultiMarginLoss(2, 0.5)", "dc"), ("MultiLabelMarginLoss()", "dm"),
          ("TripletMarginLoss(swap=True)", "ndd"), ("TripletMarginWithDistanceLoss()", "ndd"), ("PoissonNLLLoss(full=True)", "dp"), ("GaussianNLLLoss()", "dnp")]  # fmt: skip


def loss_arguments(kinds):
    """An array for each kind."""
    rng = np.random.default_rng(1)
    make = {"n": lambda: rng.normal(size=(4, 5)), "d": lambda: rng.normal(size=(4, 5)), "v": lambda: rng.normal(size=4), "s": lambda: rng.choice([-1, 1], 4), "p": lambda: rng.uniform(0.1, 0.9, (4, 5)), "c": lambda: rng.integers(0, 5, 4),
            "m": lambda: rng.integers(-1, 5, (4, 5))}  # fmt: skip
    return [make[k]() for k in kinds]


POS, REAL, PROB = [0.5, 1.5, 3.0], [-1.0, 0.2, 2.0], [0.2, 0.5, 0.7]
TABLE = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]
DISTRIBUTIONS = {  # positional and named arguments, a value
    "Normal": ((REAL, POS), {}, [-2.0, 0.3, 4.0]), "LogNormal": ((REAL, POS), {}, [0.1, 1.0, 3.0]), "Laplace": ((REAL, POS), {}, [-2.0, 0.3, 4.0]), "Cauchy": ((REAL, POS), {}, [-2.0, 0.3, 4.0]),
    "Gumbel": ((REAL, POS), {}, [-2.0, 0.3, 4.0]), "HalfNormal": ((POS,), {}, [0.1, 1.0, 3.0]), "HalfCauchy": ((POS,), {}, [0.1, 1.0, 3.0]), "Uniform": ((REAL, [0.0, 3.0, 4.0]), {}, [-0.5, 1.0, 3.0]),
    "Exponential": ((POS,), {}, [0.1, 1.0, 3.0]), "Weibull": ((POS, POS), {}, [0.1, 1.0, 3.0]), "Pareto": ((POS, POS), {}, [1.0, 2.0, 4.0]), "Gamma": ((POS, POS), {}, [0.1, 1.0, 3.0]),
    "InverseGamma": ((POS, POS), {}, [0.1, 1.0, 3.0]), "Chi2": ((POS,), {}, [0.1, 1.0, 3.0]), "StudentT": (([1.5, 3.0, 5.0], REAL, POS), {}, [-2.0, 0.3, 4.0]), "Beta": ((POS, POS), {}, [0.1, 0.4, 0.9]),
    "Dirichlet": (([POS, [2.0, 2.0, 2.0]],), {}, TABLE), "Bernoulli": ((PROB,), {}, [0.0, 1.0, 1.0]), "Bernoulli:logits": ((), {"logits": REAL}, [0.0, 1.0, 1.0]), "Geometric": ((PROB,), {}, [0.0, 1.0, 5.0]),
    "Binomial": ((7, PROB), {}, [0.0, 3.0, 7.0]), "Poisson": ((POS,), {}, [0.0, 1.0, 5.0]), "Categorical": ((TABLE,), {}, [2, 0]), "Categorical:logits": ((), {"logits": [[0.1, 0.2, -0.4], [1.0, 0.3, 0.0]]}, [1, 1]),
    "OneHotCategorical": ((TABLE,), {}, [[0.0, 0, 1], [1, 0, 0]]), "Multinomial": ((4, TABLE), {}, [[1.0, 1, 2], [0, 0, 4]]), "MultivariateNormal": (([0.5, -1.0], [[2.0, 0.3], [0.3, 1.0]]), {}, [[0.1, 0.2], [1.0, -2.0]]),
    "RelaxedBernoulli": ((0.7, PROB), {}, [0.1, 0.4, 0.9]),
}  # fmt: skip
