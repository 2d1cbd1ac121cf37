"""Graphs that are changed while they are used: random programs of views, in-place writes, hooks and backward.

    python tests/fuzz/graphs.py [--seconds 20] [--seed 0]       (runner.py says how)

A case draws steps. A step makes a tensor of others, writes one, hangs something on it (hooks, retain_grad, a weak
reference, an attribute), takes something away (del, detach_, .data =, resize_, .grad =), or runs a backward; hooks,
Functions and saved-tensor hooks run steps themselves, while a backward is on its way through the graph that they
change. Now and then threads do. What a step may raise is caught; a case fails where it dies or hangs, where a gradient
does not fit its tensor, or where something of the graph is left once everything is gone.

With --case every step is printed.
"""

import contextlib
import gc
import sys
import threading
import warnings
import weakref

import runner

import pydist
from pydist import _C
from pydist.autograd import Function
from pydist.autograd.graph import saved_tensors_hooks
from pydist.utils.checkpoint import checkpoint

F = pydist.nn.functional
TRACED = "--case" in sys.argv
SHAPES = ((), (1,), (3,), (2, 3), (3, 2), (4, 1), (6, 5), (2, 3, 4), (33, 65))
DTYPES = (pydist.float32,) * 6 + (pydist.float64, pydist.float16, pydist.bfloat16)
DEPTH = 3  # of steps in hooks in steps
THREADED = 60_000  # elements in a thread's tensors: enough work for Python's lock to be given up


class Boom(Exception):
    """Raised by a hook."""


EXPECTED = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, MemoryError, Boom)


class Program:
    def __init__(self, random):
        self.random, self.depth, self.threads, self.replaced = random, 0, False, False
        self.recorded = (
            False  # there may be a cycle that the collector does not see: of a .grad with a graph, of `former`
        )
        # leaves until detached, bases of leaves: a result may become part of its own history
        self.former = weakref.WeakSet()
        self.pool, self.kept, self.handles = [], [], []
        self.left = random.randrange(10, 70)

    # What steps draw.

    def pick(self):
        return self.random.choice(self.pool)

    def maybe(self, chance):
        return self.random.random() < chance

    def leaf(self):
        r = self.random
        shape = (r.choice((1, 3)), THREADED) if self.threads else r.choice(SHAPES)
        t = pydist.rand(shape, dtype=pydist.float32 if self.threads else r.choice(DTYPES))
        return t.requires_grad_(r.random() < 0.7)

    def add(self, *made):
        for t in made:
            if isinstance(t, (tuple, list)):
                self.add(*t)
            elif isinstance(t, pydist.Tensor) and t.numel() <= 4 * THREADED:
                self.pool.append(t)
        while len(self.pool) > 24:
            del self.pool[self.random.randrange(len(self.pool))]

    def run(self, steps):
        for _ in range(steps):
            if self.left <= 0 or not self.pool:
                return
            self.left -= 1
            names = CALM if self.threads else STEPS
            name = self.random.choices(list(names), list(names.values()))[0]
            if TRACED:
                print("  " * self.depth + name, flush=True)
            try:
                getattr(self, name)()
            except EXPECTED as e:
                if TRACED:
                    print("  " * self.depth + f"  {type(e).__name__}: {str(e)[:150]}", flush=True)
                if self.depth and self.maybe(0.2):
                    raise
            finally:
                self.recorded |= any(not t.is_leaf for t in list(self.former))

    def inside(self):
        """Steps of a hook."""
        if self.depth < DEPTH:
            self.depth += 1
            try:
                with pydist.enable_grad() if self.maybe(0.5) else contextlib.nullcontext():
                    self.run(self.random.randrange(3))
            finally:
                self.depth -= 1

    # Making tensors.

    def new(self):
        self.add(self.leaf())

    def unary(self):
        t = self.pick()
        self.add(self.random.choice(UNARY)(t))

    def binary(self):
        a, b = self.pick(), self.pick()
        if a.shape == b.shape or (not self.threads and a.numel() * b.numel() < 1 << 24):  # else broadcast to too many
            self.add(self.random.choice(BINARY)(a, b))

    def several(self):
        t, dim = self.pick(), self.random.randrange(-1, 2)
        ways = (lambda: t.split(1, dim), lambda: t.unbind(dim), lambda: t.max(dim), lambda: t.sort(dim),
                lambda: pydist.cat([t, self.pick()], dim), lambda: pydist.stack([t, t, self.pick()]), lambda: pydist.std_mean(t),
                lambda: t.topk(1, dim), lambda: pydist.where(t > 0, t, self.pick()))  # fmt: skip
        self.add(self.random.choice(ways)())

    def layer(self):
        t, r = self.pick(), self.random
        n = t.shape[-1] if t.dim() else 1
        w, b = (pydist.rand(n, dtype=t.dtype, requires_grad=True) for _ in range(2))
        i = pydist.randint(0, n, (2,))
        ways = (
            lambda: F.layer_norm(t, (n,), w, b), lambda: F.rms_norm(t, (n,), w), lambda: F.linear(t, w, None),
            lambda: F.batch_norm(t, None, None, training=True), lambda: F.prelu(t, w[:1]), lambda: F.embedding(i, t), lambda: t[..., i],
            lambda: F.cross_entropy(t, pydist.randint(0, n, t.shape[:-1])), lambda: F.scaled_dot_product_attention(t, t, t),
            lambda: F.dropout(t, 0.5, True), lambda: t.index_put((i,), w[0]), lambda: F.group_norm(t, 1), lambda: t.gather(-1, i),
        )  # fmt: skip
        out = r.choice(ways)()
        self.add(out, w, i)

    def view(self):
        t, r = self.pick(), self.random
        ways = (lambda: t[0], lambda: t[1:], lambda: t[..., :1], lambda: t.view(-1), lambda: t.t(), lambda: t.expand(2, *t.shape), lambda: t.diagonal(),
                lambda: t.unsqueeze(0), lambda: t.as_strided((2,), (1,)), lambda: t.detach(), lambda: t.data, lambda: t[None, :, None],
                lambda: t.reshape(1, -1), lambda: t.transpose(0, -1), lambda: t._base, lambda: t.flatten().narrow(0, 0, 1))  # fmt: skip
        out = r.choice(ways)()
        self.add(out)

    # Writing them.

    def write(self):
        t, other = self.pick(), self.pick()
        ways = (lambda: t.mul_(1.01), lambda: t.add_(other), lambda: t.copy_(other), lambda: t.zero_(), lambda: t.clamp_(-1, 1), lambda: t.sigmoid_(),
                lambda: t.__setitem__(0, other), lambda: t.__setitem__(..., 0.5), lambda: t[1:].mul_(other), lambda: t.view(-1)[:1].fill_(2),
                lambda: pydist.add(other, other, out=t))  # fmt: skip
        with pydist.no_grad() if self.maybe(0.2) else contextlib.nullcontext():
            self.random.choice(ways)()

    def replace(self):
        t, other = self.pick(), self.pick()
        self.replaced = True
        ways = (lambda: setattr(t, "data", other), lambda: setattr(t, "data", t.detach().clone()), lambda: setattr(t, "data", t.detach()[..., :1]),
                lambda: setattr(t, "data", t.detach().half()), lambda: t.resize_(self.random.choice((0, 1, 7))), lambda: t.set_(other),
                lambda: t.squeeze_(), lambda: t.t_())  # fmt: skip
        self.random.choice(ways)()

    def grad(self):
        t, other = self.pick(), self.pick()
        self.recorded |= t.requires_grad or other.requires_grad
        self.replaced = True
        ways = (lambda: setattr(t, "grad", None), lambda: setattr(t, "grad", pydist.ones_like(t)), lambda: setattr(t, "grad", other), lambda: self.add(t.grad),
                lambda: setattr(t.grad, "data", other), lambda: t.grad.resize_(1), lambda: t.grad.mul_(2), lambda: setattr(t, "grad", t.detach()))  # fmt: skip
        self.random.choice(ways)()

    # Hanging something on them, and taking it away.

    def hook(self):
        t, way = self.pick(), self.random.choice((self.calm, self.calm, self.hostile, self.hostile, self.keeping))
        if self.maybe(0.15):
            self.handles.append(t.register_post_accumulate_grad_hook(lambda leaf: self.inside()))
        else:
            self.handles.append(t.register_hook(way))

    def calm(self, g):
        return g * 2 if self.maybe(0.3) else None

    def keeping(self, g):
        self.add(g)
        return self.pick() if self.maybe(0.1) else g

    def hostile(self, g):
        self.inside()
        self.replaced = True
        if self.maybe(0.1):
            raise Boom("of a gradient hook")
        ways = (lambda: None, lambda: g, lambda: g.half(), lambda: g[..., :1], lambda: g.clone(), lambda: g.mul_(2), lambda: g.resize_(1), lambda: g.detach_(),
                lambda: setattr(g, "data", self.pick()), lambda: 7, lambda: g.expand(2, *g.shape), lambda: pydist.zeros_like(g))  # fmt: skip
        with pydist.no_grad():
            return self.random.choice(ways)()

    def unhook(self):
        if self.handles:
            self.random.choice(self.handles).remove()

    def retain(self):
        self.pick().retain_grad()

    def detach(self):
        t = self.pick()
        if t.is_leaf and t.requires_grad:
            self.former.add(t)
        t.detach_()

    def wanted(self):
        t, wanted = self.pick(), self.maybe(0.7)
        if t.is_leaf and t.requires_grad and not wanted:
            self.former.add(t)
        if t.is_leaf and wanted and t._base is not None:  # its base may become a result of it
            self.former.add(t._base)
        t.requires_grad_(wanted)

    def hang(self):
        t, other = self.pick(), self.pick()
        ways = (lambda: self.kept.append(weakref.ref(t)), lambda: self.kept.append(weakref.ref(t, lambda r: self.kept[:3].clear())),
                lambda: setattr(t, "friend", other), lambda: setattr(t, "me", t), lambda: self.kept.append(t.grad_fn),
                lambda: self.kept.append(t.grad_fn.next_functions), lambda: self.add([getattr(n, "variable", None) for n, _ in t.grad_fn.next_functions]))  # fmt: skip
        self.random.choice(ways)()

    def alive(self):
        """What a weak reference, the collector or a list still has."""
        found = [o() for o in self.kept if isinstance(o, weakref.ref)]
        if self.maybe(0.1):
            self.recorded = self.replaced = True  # some of another case, too
            found += [
                o for o in gc.get_objects() if isinstance(o, pydist.Tensor) and not isinstance(o, pydist.nn.Parameter)
            ][-5:]
        self.add(*found[-5:])

    def collect(self):
        gc.collect()

    def drop(self):
        for _ in range(self.random.randrange(1, 4)):
            if self.pool:
                del self.pool[self.random.randrange(len(self.pool))]
        if self.kept and self.maybe(0.5):
            del self.kept[0]
        if self.handles and self.maybe(0.3):
            del self.handles[0]

    # Functions, checkpoints, saved-tensor hooks.

    def function(self):
        program, kind = self, self.random.randrange(9)

        class Odd(Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y, None if kind == 1 else x * 1)
                ctx.set_materialize_grads(kind != 2)
                if kind == 3:
                    ctx.mark_dirty(x)
                    return x.mul_(2)
                if kind == 4:
                    return x, x.view(-1)
                if kind == 5:
                    program.kept.append(ctx)
                if kind == 6:
                    ctx.friend = x
                return x * 1, y + 1

            @staticmethod
            def backward(ctx, *g):
                program.inside()
                saved = ctx.saved_tensors if program.maybe(0.7) else [None]
                if kind == 5:
                    program.add(*[t for t in (*saved, *g) if t is not None])
                if kind == 7:
                    return g[0].half(), g[0][:0]
                if kind == 8:
                    raise Boom("of a Function")
                first = g[0] if g[0] is not None else g[-1]
                if program.maybe(0.1):
                    program.replaced, first.data = True, program.pick()
                return first, program.pick() if program.maybe(0.2) else None

        self.add(Odd.apply(self.pick(), self.pick()))

    def checkpointed(self):
        def body(x):
            if self.maybe(0.2):
                self.inside()
            return (x * x).sin() + x

        self.add(checkpoint(body, self.pick(), use_reentrant=self.maybe(0.4)))

    def saved(self):
        def pack(t):
            if self.maybe(0.2):
                self.inside()
            if self.maybe(0.03):
                raise Boom("of pack")
            return self.random.choice((t, t.clone(), (t,), [t.detach()]))

        def unpack(p):
            if self.maybe(0.3):
                self.inside()
            t = p if isinstance(p, pydist.Tensor) else p[0]
            ways = (lambda: t,) * 6 + (t.clone, t.half, lambda: t[:0], lambda: 3, self.pick)
            return self.random.choice(ways)()

        with saved_tensors_hooks(pack, unpack):
            self.run(self.random.randrange(1, 5))

    # Backward.

    def backward(self):
        t, r = self.pick(), self.random
        create = not self.threads and self.maybe(0.15)
        self.recorded |= create
        retain = r.choice((None, True, False))
        if self.maybe(0.3):
            t.backward(
                self.pick() if self.maybe(0.3) else pydist.ones_like(t), retain_graph=retain, create_graph=create
            )
        elif self.maybe(0.4):
            roots = [t, self.pick()]
            inputs = [self.pick() for _ in range(2)] if self.maybe(0.3) else None
            self.kept.append(roots)
            pydist.autograd.backward([x.sum() for x in roots], None, retain, create, inputs)
        else:
            t.sum().backward(retain_graph=retain, create_graph=create)

    def gradients(self):
        outs, ins = [self.pick() for _ in range(2)], [self.pick() for _ in range(3)]
        self.recorded |= (create := not self.threads and self.maybe(0.2))
        sums = [x.sum() for x in outs]
        self.add(
            pydist.autograd.grad(
                sums, ins, retain_graph=self.maybe(0.5), create_graph=create, allow_unused=self.maybe(0.8)
            )
        )

    def twice(self):
        t = self.pick().sum()
        t.backward(retain_graph=True)
        t.backward()

    def in_threads(self):
        if self.depth:
            return
        programs = []
        for _ in range(2):
            p = Program(type(self.random)(self.random.random()))
            p.threads, p.left = True, 12
            p.handles, p.kept, p.former = self.handles, self.kept, self.former
            programs.append(p)
        programs[0].add(*(p.leaf() for p in programs * 2))
        shared = programs[0].pool
        for p in programs:
            p.pool = shared
        threads = [threading.Thread(target=p.run, args=(12,), daemon=True) for p in programs]
        for t in threads:
            t.start()
        for t in threads:
            t.join(2 * runner.HANG)
        assert not any(t.is_alive() for t in threads)
        self.recorded |= any(p.recorded for p in programs)
        self.replaced |= any(p.replaced for p in programs)


UNARY = (
    lambda t: t.exp(), lambda t: t.sin(), lambda t: t.softmax(-1), lambda t: t.log_softmax(0), lambda t: t.sum(), lambda t: t.mean(-1), lambda t: t.clone(),
    lambda t: t * 2, lambda t: t.cumsum(0), lambda t: t.relu(), lambda t: F.gelu(t), lambda t: t.norm(), lambda t: t.float(), lambda t: t.double(),
    lambda t: t.half(), lambda t: t.abs().sqrt(), lambda t: t.flip(0), lambda t: t.tanh(), lambda t: t.prod(), lambda t: t.sum(0, keepdim=True),
)  # fmt: skip
BINARY = (
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a / (b + 2), lambda a, b: a @ b, lambda a, b: pydist.maximum(a, b),
    lambda a, b: a.view(-1) @ b.reshape(-1), lambda a, b: F.mse_loss(a, b), lambda a, b: a.pow(b), lambda a, b: pydist.addcmul(a, a, b),
)  # fmt: skip
STEPS = {
    "new": 6, "unary": 14, "binary": 14, "several": 5, "layer": 6, "view": 14, "write": 10, "replace": 4, "grad": 5, "hook": 10, "unhook": 2, "retain": 5,
    "detach": 3, "wanted": 3, "hang": 4, "alive": 2, "collect": 0.5, "drop": 6, "function": 5, "checkpointed": 2, "saved": 3, "backward": 12, "gradients": 4,
    "twice": 2, "in_threads": 0.15,
}  # fmt: skip
# What threads do with tensors that they share: PyTorch too leaves a tensor alone that another thread computes with.
CALM = {
    "new": 4, "unary": 8, "binary": 8, "view": 3, "hook": 4, "unhook": 2, "retain": 4, "drop": 2, "backward": 8,
    "gradients": 4, "twice": 2, "alive": 1,
}  # fmt: skip


def fits(t):
    g = t.grad
    assert g is None or (g.shape == t.shape and g.dtype == t.dtype), (
        f"{t.dtype} {t.shape} has a gradient {g.dtype} {g.shape}"
    )
    return t.detach().clone() is not None  # all of it can be read


def case(random):
    warnings.simplefilter("ignore")
    gc.collect()
    before = _C.live()["nodes"]
    pydist.manual_seed(random.randrange(1 << 30))
    program = Program(random)
    for _ in range(4):
        program.new()
    program.run(1000)
    assert program.replaced or all(map(fits, program.pool))
    known = not program.recorded
    del program
    gc.collect()
    gc.collect()
    after = _C.live()["nodes"]
    assert not known or after <= before, f"{before} nodes became {after}"


if __name__ == "__main__":
    runner.main(case)
