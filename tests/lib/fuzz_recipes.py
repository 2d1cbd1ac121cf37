"""Which random calls test_fuzz_ops.py makes.

A recipe is an op's name and one word per argument, such as `roll: x ints dims?`; the words are methods of Arguments, which
remembers the shape and dtype of the first tensor, so that most calls fit together and some do not. A word that ends in ?
may be left out with all that follow, `name=word` is a keyword that may be left out, and where arguments depend on each
other one word gives several.
"""

import math
from functools import partial, partialmethod

from hypothesis import strategies as st

from lib.fuzz_calls import Arguments, Array, Call, DTYPES, FLOATS
from pydist import _C


class Several(Arguments):
    """Words that give several arguments, as a list, or (list, keywords)."""

    def matmul(self):
        m, k, n = self.size(), self.size(), self.size()
        dtypes = (self.pick(*FLOATS, "float32", "float32", "int64"),)
        batch = [self.size() for _ in range(self.pick(0, 0, 1, 2))]
        self.shape = tuple(batch)
        left = [k] if not batch and self.pick(False, True) else [*batch, m, k]
        right = (
            [k] if self.pick(False, False, True) else [*(self.near() if batch else []), k if self.mostly() else n, n]
        )
        return [self.array(left, dtypes, "plain"), self.array(right, dtypes if self.mostly() else DTYPES, "plain")]

    def matmul_complex(self):
        return [a._replace(dtype="complex128") for a in self.matmul()]

    def masked_complex(self):
        """(complex, a mask of its shape or so, number)."""
        return [self.z(), self.mask(), self.znum()]

    def products(self):
        """(input, x[m, k], y[k, n]) for addmm."""
        m, k, n = self.size(), self.size(), self.size()
        dtypes = (self.pick("float32", "float64", "bfloat16", "int64"),)
        self.shape = (m, n)
        return [
            self.array(self.near(), dtypes, "plain"),
            self.array([m, k], dtypes, "plain"),
            self.array([k if self.mostly() else n, n], dtypes, "plain"),
        ]

    def batches(self):
        b, m, k, n = self.size(), self.size(), self.size(), self.size()
        dtypes = (self.pick("float32", "float64", "bfloat16", "int64"),)
        return [
            self.array([b, m, k], dtypes, "plain"),
            self.array([b if self.mostly() else m, k if self.mostly() else n, n], dtypes, "plain"),
        ]

    def square(self):
        """A matrix and a power."""
        n, dtype = self.size(), self.pick("float64", "float32", "int64")
        return [Array((n, n if self.mostly() else n + 1), dtype, "C", self.seed()), self.pick(2, 1, 3, 4)]

    def addr(self):
        m, n, dtypes = self.size(), self.size(), (self.pick("float32", "float64", "int64"),)
        self.shape = (m, n)
        return [
            self.array(self.near(), dtypes, "plain"),
            self.array([m], dtypes, "plain"),
            self.array([n], dtypes, "plain"),
        ]

    def einsum(self):
        spec = self.pick(
            "ij,jk->ik", "ij,jk", "bij,bjk->bik", "ii->i", "ij->ji", "i,j->ij", "...ij,...jk->...ik", "ij,ij->",
            "ij,k->j", "ijk,ik->j", "i,i,i->i",
        )  # fmt: skip
        sizes = {letter: self.size() for letter in "bijk"}
        dtypes = (self.pick("float64", "float32"),)
        terms = spec.split("->")[0].split(",")
        return [
            spec,
            *[
                self.array([sizes[c] if self.mostly() else self.size() for c in term.lstrip(".")], dtypes, "plain")
                for term in terms
            ],
        ]

    def addbmm(self):
        x, y = self.batches()
        self.shape = (x.shape[1], y.shape[2])
        return [self.array(self.near(), (x.dtype,), "plain"), x, y]

    def addmv(self):
        x, y = self.mv()
        return [self.array(self.pick(x.shape[:1], (1,)), (x.dtype,), "plain"), x, y]

    def rows(self):
        p, r, m = self.size(), self.size(), self.size()
        return [Array((n, m), "float64", "C", self.seed()) for n in (p, r)] + [self.pick(2.0, 1.0, math.inf, 3.0)]

    def put(self):
        x, n = self.x(), self.pick(1, 2, 3)
        count = math.prod(x.shape)
        low, high = (-count, max(count, 1)) if self.mostly() else (0, count + 1)
        return [x, Array((n,), "int64", "C", self.seed(), (low, high)), Array((n,), x.dtype, "C", self.seed()), True]

    def bucketized(self):
        edges, values = self.sorted_in()
        return [values, edges]

    def invertible(self):
        n = self.size()
        return Array((n, n), self.pick("float64", "float32"), "C", self.seed(), "any")

    def prelu(self):
        x = self.filled(2, 1, 3, dtypes=("float32", "float64"))
        c = x.shape[1] if len(x.shape) > 1 else 1
        return [x, Array((self.pick(1, c),), x.dtype, "C", self.seed())]

    def baddbmm(self):
        x, y = self.batches()
        self.shape = (x.shape[0], x.shape[1], y.shape[2])
        return [self.array(self.near(), (x.dtype,), "plain"), x, y]

    def vectors(self):
        n, dtypes = self.size(), (self.pick("float32", "float64", "int64", "bfloat16"),)
        return [
            self.array([n], dtypes, "plain"),
            self.array([n if self.mostly() else self.size()], dtypes if self.mostly() else DTYPES, "plain"),
        ]

    def mv(self):
        m, n, dtypes = self.pick(2, 3, 1), self.pick(2, 3, 1), (self.pick("float32", "float64", "int64", "bfloat16"),)
        return [self.array([m, n], dtypes, "plain"), self.array([n if self.mostly() else m], dtypes, "plain")]

    def linear(self):
        x = self.of_rank(2, 1, 3, dtypes=FLOATS)
        n, out = x.shape[-1] if x.shape and self.mostly() else self.size(), self.size()
        w = self.array([out, n] if self.mostly() else [n], (x.dtype,) * 9 + DTYPES)
        return (
            [x, w] if self.pick(True, False) else [x, w, self.array([out if self.mostly() else n], (x.dtype,), "plain")]
        )

    def attention(self):
        b, h, t, s, d, e = self.size(), self.size(), self.size(), self.size(), self.size(), self.size()
        dtypes = (self.pick("float32", "float64", "bfloat16"),)
        lead = self.pick([b, h], [b], [])
        q, k, v = ([*lead, n, m] for n, m in ((t, d), (s, d if self.mostly() else e), (s, e)))
        mask = self.pick(
            None,
            None,
            Array((t, s), "bool", "C", self.seed()),
            Array((t, s), *dtypes, "C", self.seed()),
            Array((*lead, 1, s), *dtypes),
        )
        return [self.array(shape, dtypes, (-2, 3)) for shape in (q, k, v)] + [mask, 0.0, mask is None and self.bool()]

    def classes(self):
        """(scores [N, C, ...], target [N, ...], weight, ignore_index, reduction)."""
        x = self.filled(2, 1, 3, 4, dtypes=FLOATS * 4 + ("int64",))
        c = x.shape[min(1, len(x.shape) - 1)] if x.shape else 1
        shape = [x.shape[0], *x.shape[2:]] if len(x.shape) > 1 else []
        low, high = (0, max(c, 1)) if self.mostly() else (-1, c + 1)
        target = self.array(shape if self.mostly() else x.shape, ("int64",) * 8 + ("int32", "float32"), (low, high))
        weight = self.pick(None, None, Array((c if self.mostly() else c + 1,), x.dtype, "C", self.seed(), "positive"))
        return [x, target, weight], {"ignore_index": self.pick(-100, 0, 1), "reduction": self.reduction()}

    def smoothed(self):
        args, kwargs = self.classes()
        return args, {**kwargs, "label_smoothing": self.pick(0.0, 0.25)}

    def convolution(self, dims, transposed=False):
        groups = self.pick(1, 1, 2, 3)
        cin, cout = self.pick(1, 2, 3) * groups, self.pick(1, 2, 3) * groups
        # torch's conv3d reads garbage there
        dtypes = (self.pick("float32", "float64", *(["bfloat16"] if dims < 3 else [])),)
        kernel = [self.pick(1, 2, 3) for _ in range(dims)]
        lead = [self.pick(1, 2, 0), cin] if self.mostly() else [cin]
        x = self.array([*lead, *[self.pick(4, 3, 5, 7, 1) for _ in range(dims)]], dtypes, "plain")
        channels = [cin, cout // groups] if transposed else [cout, cin // groups]
        w = self.array([*(channels if self.mostly() else channels[::-1]), *kernel], dtypes, "plain")
        bias = self.array([cout], dtypes, "plain") if self.pick(False, True) else None
        each = lambda *o: self.pick(*o) if self.pick(True, False) else tuple(self.pick(*o) for _ in range(dims))
        stride, padding, dilation = each(1, 2, 3), each(0, 1, 2), each(1, 1, 2)
        if not self.mostly():
            stride, padding = self.pick((0, 1), (1, -1), ((1,) * (dims + 1), 0))
        if transposed:
            return [x, w, bias, stride, padding, self.pick(0, 0, 1), groups, dilation]
        return [x, w, bias, stride, padding, dilation, groups]

    conv1, conv2, conv3 = map(partial(partialmethod, convolution), (1, 2, 3))
    conv_transpose1, conv_transpose2 = partialmethod(convolution, 1, True), partialmethod(convolution, 2, True)

    def plane(self, dims, dtypes=FLOATS):
        lead = (
            [self.pick(1, 2, 0) if dims < 3 else 1, self.pick(1, 2, 3)]
            if self.pick(True, True, False)
            else [self.pick(1, 2)]
        )
        return self.array(
            [*lead, *[self.pick(4, 3, 5, 7, *([2, 1] if dims < 3 else [])) for _ in range(dims)]],
            dtypes,
            "any",
            first=True,
        )

    def window(self, dims):
        each = lambda *o: self.pick(*o) if self.pick(True, False) else tuple(self.pick(*o) for _ in range(dims))
        kernel = each(2, 1, 3) if self.mostly() else self.pick(0, -1, 9)
        return [
            kernel,
            self.pick(None, each(1, 2, 3)) if self.mostly() else self.pick(0, -1),
            each(0, 0, 1) if self.mostly() else self.pick(-1, 5),
        ]

    def max_pool(self, dims):
        return [
            self.plane(dims, FLOATS + ("int64",)),
            *self.window(dims),
            self.pick(1, 1, 2),
            self.bool(),
            *([True] if self.pick(False, True) else []),
        ]

    def avg_pool(self, dims):
        return [self.plane(dims), *self.window(dims), self.bool(), self.bool()]

    def adaptive(self, dims):
        size = self.pick(1, 2, 3) if self.pick(True, False) else tuple(self.pick(1, 2, 3) for _ in range(dims))
        return [self.plane(dims), size if self.mostly() else -1]

    max_pool1, max_pool2, max_pool3 = map(partial(partialmethod, max_pool), (1, 2, 3))
    avg_pool1, avg_pool2, avg_pool3 = map(partial(partialmethod, avg_pool), (1, 2, 3))
    adaptive1, adaptive2, adaptive3 = map(partial(partialmethod, adaptive), (1, 2, 3))

    def padding(self):
        x = self.x()
        n = self.pick(*range(len(x.shape) + 1)) if self.mostly() else len(x.shape) + 1
        pad = [self.pick(1, 0, 2, 3, -1, -2) for _ in range(2 * n)]
        return [x, pad if self.mostly() else pad[1:], "constant", self.num()]

    def continued(self):
        dims = self.pick(1, 2, 3)
        x = self.plane(dims)
        pad = [self.pick(1, 0, 2, 3, -1) for _ in range(2 * dims)]
        return [x, pad if self.mostly() else pad[2:], self.pick("reflect", "replicate", "circular")]

    def resized(self):
        mode = self.pick("nearest", "linear", "bilinear", "bicubic", "area", "trilinear", "nearest-exact")
        dims = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}.get(mode, self.pick(1, 2, 3))
        kwargs = {"mode": mode} | ({"align_corners": self.bool()} if "linear" in mode or "cubic" in mode else {})
        lead = [self.pick(1, 2), self.pick(1, 2)]
        x = self.array(
            [*lead, *[self.pick(4, 3, 5, 2, 1) for _ in range(dims if self.mostly() else 2)]],
            ("float32", "float64"),
            "positive",
        )
        if self.pick(True, False):
            return [x], {
                "size": self.pick(3, 5, 1, 8)
                if self.pick(True, False)
                else tuple(self.pick(3, 5, 1) for _ in range(dims)),
                **kwargs,
            }
        return [x], {"scale_factor": self.pick(2, 1.5, 0.5, 0.7, 3.0), **kwargs}

    def normed(self):
        x = self.of_rank(2, 3, 1, dtypes=("float32", "float64", "bfloat16"))
        n = self.pick(1, 1, 2)
        shape = list(x.shape[-n:]) if self.mostly() else [self.size()]
        scale = [self.pick(None, Array(tuple(shape), x.dtype, "C", self.seed(), "positive")) for _ in range(2)]
        return [x, shape], scale

    def layer_norm(self):
        args, scale = self.normed()
        return args + scale

    def rms_norm(self):
        args, scale = self.normed()
        return [*args, scale[0], self.pick(None, 1e-3)]

    def group_norm(self):
        x = self.filled(3, 2, 4, dtypes=("float32", "float64", "bfloat16"))
        c = x.shape[1] if len(x.shape) > 1 else 1
        groups = self.pick(1, max(c, 1), 2) if self.mostly() else self.pick(0, -1, 7)
        return [x, groups, *[self.pick(None, Array((c,), x.dtype, "C", self.seed(), "positive")) for _ in range(2)]]

    def batch_norm(self):
        x = self.filled(2, 3, 4, dtypes=("float32", "float64"))
        c = x.shape[1] if len(x.shape) > 1 else 1
        running = (
            [Array((c,), x.dtype, "C", self.seed(), "positive") for _ in range(2)]
            if self.pick(True, False)
            else [None, None]
        )
        scale = [
            self.pick(None, Array((c if self.mostly() else c + 1,), x.dtype, "C", self.seed(), "positive"))
            for _ in range(2)
        ]
        return [x, *running, *scale, running[0] is None or self.bool(), self.pick(0.1, 0.5)]

    def embedding(self):
        n, d = self.size(), self.size()
        low, high = (0, max(n, 1)) if self.mostly() else (-1, n + 1)
        index = self.array(
            [self.size() for _ in range(self.pick(1, 2, 0))], ("int64",) * 6 + ("int32", "float32"), (low, high)
        )
        return [index, self.array([n, d] if self.mostly() else [n], FLOATS)], {"padding_idx": self.pick(None, 0, -1, n)}

    def moved(self):
        """movedim's dimensions."""
        x = self.x()
        if self.pick(True, False):
            return [x, self.dim(), self.dim()]
        a, b = self.order(), self.order()
        k = self.pick(*range(len(a) + 1))
        return [x, a[:k], b[:k]]

    def slices_added(self):
        """(x, dim, index [k], source with k slices) for index_add and index_copy."""
        x = self.x()
        dim, index = self.dim(), self.places()
        shape = list(x.shape)
        if shape and -len(shape) <= dim < len(shape):
            shape[dim] = index.shape[0] if index.shape else 1
        return [x, dim, index, self.array(shape if self.mostly() else shape[1:], (x.dtype,) * 8 + DTYPES)]

    def placed(self):
        """(x, key, values) for x[key] = values."""
        x, key = self.x(), self.key()
        shape = self.pick((), (1,), (2,), x.shape[-1:], (2, 1))
        return [x, key, self.num() if self.pick(True, False) else self.array(shape, (x.dtype,) * 4 + DTYPES)]

    def unfolded(self):
        x = self.x()
        return [x, self.dim(), self.pick(2, 1, 3, 0, 9, -1), self.pick(1, 2, 3, 0)]

    def scattered(self):
        x = self.x()
        return [x, self.dim(), self.index(), self.source() if self.mostly() else self.num()]

    def scatter_added(self):
        x = self.x()
        return [x, self.dim(), self.index(), self.source()]

    def scatter_reduced(self):
        return [*self.scatter_added(), self.pick("sum", "prod", "mean", "amax", "amin", "none")], {
            "include_self": self.bool()
        }

    def crossed(self):
        shape = [self.size() for _ in range(self.pick(1, 2, 0))]
        axis = self.pick(*range(len(shape) + 1))
        shape.insert(axis, 3 if self.mostly() else 2)
        self.shape = tuple(shape)
        dtypes = (self.pick(*FLOATS, "int64"),)
        return [self.array(shape, dtypes), self.array(shape, dtypes), axis if self.mostly() else self.dim()]

    def windows_of(self):
        return [self.plane(2), self.pick(2, 1, 3, (1, 2)), self.pick(1, 2), self.pick(0, 1, -1), self.pick(1, 2, 0)]

    def sorted_in(self):
        n = self.size()
        edges = Array((n,), self.pick("float32", "int64"), "C", self.seed(), "sorted")
        return [edges, self.array([self.size()], ("float32", "int64"))]

    def chosen(self):
        """(condition, x, y)."""
        self.shape = tuple(self.size() for _ in range(self.pick(2, 1, 0)))
        return [self.mask(), self.y(), self.y()]


FUNC, METHOD, NN = (_C._OP_FLAGS[name] for name in ("FUNC", "METHOD", "NN"))
TABLE = {name: (signature, flags) for name, signature, _, flags, *_ in _C.op_table()}
ONE = [
    name for name, (signature, flags) in TABLE.items() if signature == f"{name}(Tensor input)" and flags & (FUNC | NN)
]
ONE = [name if TABLE[name][1] & FUNC else f"F.{name}" for name in ONE]
TWO = [
    name
    for name, (signature, flags) in TABLE.items()
    if signature.startswith(f"{name}(Operand input, Operand other)") and flags & FUNC
]

# A name is a function of the library, of nn.functional (F), or a method.
RECIPES = f"""
{" ".join(name for name in ONE if name != "square")}: x
square: broken
{" ".join(TWO)}: x y
add sub: x y alpha=num
where: chosen
clamp clip: x num num?
clamp clip: x t t?
lerp: f like y
addcmul addcdiv: x t t value=num
F.leaky_relu F.elu F.celu: f real?
F.softplus F.hardtanh F.threshold: f real real
F.softshrink F.hardshrink: f real?
F.gelu: f
F.mse_loss F.l1_loss F.smooth_l1_loss F.huber_loss: f same reduction=reduction
F.soft_margin_loss: f twin reduction=reduction
F.kl_div: plain positive_twin reduction=reduction log_target=bool
F.binary_cross_entropy: probability probability reduction=reduction
F.binary_cross_entropy_with_logits: plain twin_plain reduction=reduction
F.nll_loss: classes
F.cross_entropy: smoothed
F.multi_margin_loss: classes
to: x dtype_
copy_: x t
fill_: x num
view reshape: x shape_of
permute: x order
transpose swapaxes: x dim dim
expand broadcast_to: x wider
select: x dim at
narrow: x dim at small
squeeze: x dims?
unsqueeze: x dim
flatten: x dim? dim?
as_strided: strided
cat concat hstack vstack dstack column_stack: xs
cat stack: xs dim
clone: x
getitem: x key
setitem: placed
sum mean prod: x dim? keepdim=bool dtype=dtype_
sum mean amax amin: x dims? keepdim=bool
any all argmax argmin max min: x dim? keepdim=bool
topk: x small dim? largest=bool
kthvalue: x small dim? keepdim=bool
mode median nanmedian: plain dim? keepdim=bool
matmul: matmul
bmm: batches
mm: mv
mv: mv
dot vdot inner: vectors
addmm: products alpha=real beta=real
baddbmm: baddbmm
F.linear: linear
F.scaled_dot_product_attention: attention
F.softmax F.log_softmax: broken dim dtype=float_
F.softmin: broken dim
F.dropout F.alpha_dropout: broken half no
F.conv1d: conv1
F.conv2d: conv2
F.conv3d: conv3
F.conv_transpose1d: conv_transpose1
F.conv_transpose2d: conv_transpose2
F.batch_norm: batch_norm
F.layer_norm: layer_norm
F.rms_norm: rms_norm
F.group_norm: group_norm
F.max_pool1d: max_pool1
F.max_pool2d: max_pool2
F.max_pool3d: max_pool3
F.avg_pool1d: avg_pool1
F.avg_pool2d: avg_pool2
F.avg_pool3d: avg_pool3
F.adaptive_avg_pool1d F.adaptive_max_pool1d: adaptive1
F.adaptive_avg_pool2d F.adaptive_max_pool2d: adaptive2
F.adaptive_avg_pool3d F.adaptive_max_pool3d: adaptive3
F.pad: padding
F.pad: continued
F.interpolate: resized
F.embedding: embedding
argsort sort: x dim? descending=bool stable=yes
gather: x dim index
take_along_dim: x index dim
cumsum cumprod logcumsumexp: x dim dtype=dtype_
cummax cummin: x dim
flip: x dims
bitwise_not logical_not isfinite isinf isnan isneginf isposinf isreal signbit sgn sinc deg2rad rad2deg erfc exp2 frac fix positive negative absolute i0 angle: x
arccos arccosh arcsin arcsinh arctan arctanh F.relu6 F.selu F.softsign F.tanhshrink nan_to_num aminmax trace ravel real: x
digamma lgamma: positive_x
unique: plain sorted=yes return_inverse=bool return_counts=bool dim=dim
nonzero argwhere unique unique_consecutive count_nonzero msort t fliplr flipud is_floating_point numel: x
rsub true_divide multiply subtract divide copysign fmax fmin gcd lcm hypot heaviside xlogy float_power logaddexp2 greater less_equal not_equal arctan2: x y
nextafter: wide twin
equal isclose allclose: x same
bernoulli normal_ uniform_: broken
split chunk tensor_split: x small dim?
split: x ints dim?
unbind: x dim?
unflatten: x dim ints
movedim: moved
roll: x ints dims?
repeat tile: x ints
repeat_interleave: x small dim?
tril triu diagonal diag diagflat: x small?
diagonal: x small dim dim
diag_embed: x small? dim? dim?
index_select: x dim places
index_fill: x dim places num
index_add index_copy: slices_added
masked_fill: x mask num
masked_select: x mask
masked_scatter: x mask same
scatter: scattered
scatter_add: scatter_added
scatter_reduce: scatter_reduced
bincount: counts
histc: f small
var std: x axes? correction=small keepdim=bool
var_mean std_mean: plain axes? keepdim=bool
norm: f normp dims? keepdim=bool
logsumexp nansum nanmean: x axes keepdim=bool
quantile nanquantile: f fraction dim? keepdim=bool
renorm: f normp dim real
diff: x small dim
trapezoid: x same
dist: f same normp
outer: vectors
kron: x t
cross: crossed
addr: addr
tensordot: x same small
einsum: einsum
unfold: unfolded
sum_to_size: x ints
rot90: x small dims
select_scatter: x t dim at
take: x places
searchsorted: sorted_in
isin: x t
F.one_hot: counts
F.glu: f dim
F.normalize: f normp dim
F.cosine_similarity: f same dim
F.pairwise_distance: f same
F.pixel_shuffle F.pixel_unshuffle F.channel_shuffle: x4 small
addbmm: addbmm
addmv: addmv
cdist: rows
cov corrcoef: broken
meshgrid: xs
hsplit vsplit dsplit: x small
index_reduce: slices_added product
moveaxis: moved
put: put
slice_scatter: x t dim
diagonal_scatter: x t small
tril_indices triu_indices: small small small
unravel_index: counts size
bucketize: bucketized
polygamma: order_of positive_x
erfinv logit: fraction_x
frexp: broken
combinations: x1 small
cumulative_trapezoid: x
logdet det: invertible
F.prelu: prelu
F.unfold: windows_of
F.local_response_norm: plane_x small
F.lp_pool2d: plane_x normp2 small
F.hinge_embedding_loss: plain signs reduction=reduction
F.margin_ranking_loss: plain twin_plain signs reduction=reduction
F.poisson_nll_loss: plain twin_plain log_input=bool reduction=reduction
F.triplet_margin_loss: plain twin_plain twin_plain reduction=reduction
F.gaussian_nll_loss: plain twin_plain positive_twin full=bool reduction=reduction
F.instance_norm: plane_x
F.threshold: f real real
F.rrelu: f
F.logsigmoid F.hardsigmoid F.hardswish F.mish F.silu F.tanhshrink: f
matrix_power: square
add sub mul eq ne: z zy
add sub: z z2 alpha=real
div pow: z z2
neg square exp log sqrt rsqrt reciprocal sin cos sinh cosh tanh sigmoid abs angle conj conj_physical sgn: z
isfinite isinf isnan isreal real imag view_as_real positive clone t ravel lt relu erf: z
complex: wide twin
polar: wide_positive twin
sum mean: z dim? keepdim=bool
cumsum: z dim
var std: z axes? keepdim=bool
matmul: matmul_complex
masked_fill: masked_complex
to: z dtype_
permute: z order
view reshape: z shape_of
expand: z wider
squeeze: z dims?
unbind: z dim?
select: z dim at
flip: z dims
getitem: z key
index_select: z dim places
gather: z dim index
roll: z ints dims?
copy_: z zt
fill_: z znum
equal isclose allclose: z same
"""


def recipes():
    """[(name, words)]"""
    for line in RECIPES.strip().splitlines():
        names, _, words = line.partition(":")
        for name in names.split():
            yield name, words.split()


def one_call(draw, known):
    name, words = draw(st.sampled_from(known))
    a, args, kwargs = Several(draw), [], {}
    for word in words:
        key, _, word = word.rpartition("=")
        if (key or word[-1] == "?") and a.pick(False, True):
            if key:
                continue
            break
        v = getattr(a, word.rstrip("?"))()
        if key:
            kwargs[key] = v
        elif isinstance(v, tuple) and v and isinstance(v[-1], dict):
            args += v[0]
            kwargs |= v[1]
        else:
            args += v if isinstance(v, list) else [v]
    return Call(name, args, kwargs, a.pick(False, False, False, True), a.pick(False, True))


calls = st.composite(one_call)
