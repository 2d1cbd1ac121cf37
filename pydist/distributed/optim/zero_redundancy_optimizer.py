"""ZeRO-1 (Rajbhandari et al., 2020): the ranks share an optimizer's state. Each parameter has one owner, the only rank that
has its state and that steps it; then its new values go to all ranks."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b

from pydist import _C
from pydist._grad_mode import enable_grad
from pydist.distributed import member
from pydist.distributed._group.process_group import current, get_global_rank
from pydist.distributed._ops.agreement import check_agreement
from pydist.distributed._ops.objects import all_gather_object, gather_object
from pydist.distributed.algorithms.join import Join, JoinHook, Joinable
from pydist.distributed.optim._exchange import Flats, Lying, is_dense
from pydist.optim.lbfgs import LBFGS
from pydist.optim.optimizer import Optimizer, options_of

__all__ = ["ZeroRedundancyOptimizer"]

_OP = "ZeroRedundancyOptimizer"
_TAG = 0x5EE0  # of the messages with states
_LEFT = bytes(8)  # in the place of a hash: this rank has run out of data (Join)
_HAS_GRADIENT, _TRAINED = 1, 2  # bits of a parameter


def _text(value):
    """An option's value, for comparison between ranks."""
    if isinstance(value, _C.Tensor):
        return str(value.tolist())
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_text, value))})"
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _listed(group):
    """A group whose parameters can be read more than once."""
    if not isinstance(group, dict):
        return group
    if "params" not in group:
        raise ValueError(f"{_OP}: got a group without parameters: {list(group)} (expected the key 'params')")
    params = group["params"]
    return {**group, "params": params if isinstance(params, (_C.Tensor, set)) else list(params)}


def _is_empty(group):
    return isinstance(group, dict) and not isinstance(group["params"], _C.Tensor) and not group["params"]


class _Sent:
    """Stands for a tensor that follows."""

    def __init__(self, tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _mapped(fn, value):
    """A copy of a state with fn(tensor) for each tensor in it."""
    if isinstance(value, (_C.Tensor, _Sent)):
        return fn(value)
    if isinstance(value, dict):
        return {key: _mapped(fn, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(fn, item) for item in value)
    return value


def _place(key):
    """The place of a state's key among the others: numbers of parameters come first."""
    return (0, key) if isinstance(key, int) else (1, str(key))


def _message(tensor):
    """A tensor on the host as what send and recv take."""
    return _C.view_as_real(tensor) if tensor.is_complex() else tensor


class _Hook(JoinHook):
    """Steps the parameters of a rank without data."""

    def __init__(self, zero):
        self.zero = zero

    def main_hook(self):
        self.zero._has_left = True
        try:
            self.zero.step()
        finally:
            self.zero._has_left = False


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer whose state is shared out over the ranks: W ranks need 1/W of its memory each, and make 1/W of its
    step each. The parameters get the bits that `optimizer_class` would give them on every rank, as long as all ranks have
    the same gradients (DistributedDataParallel).

    `params`: parameters, (name, parameter) pairs or groups, as for any optimizer, the same on all ranks. Each parameter
    belongs to one rank, with all its elements: the largest ones are dealt out first, each to the rank with the fewest
    bytes so far. A rank may be left without any. `optimizer_class`: an optimizer that steps each parameter by itself, made
    with **defaults for the parameters of this rank; it is `optim`. `state` has the states of this rank's parameters.
    `process_group`: None for the default group.

    step() lets each rank step its own parameters; then all ranks get the new values of those that have a gradient. With
    `parameters_as_bucket_view` the parameters become views of flat tensors in symmetric memory, and other ranks copy from
    them: the fastest way on one host. Without it parameters stay where they are.

    With `overlap_with_ddp` the step is a part of backward: each bucket of gradients is stepped once it is reduced. For
    that, make a hook by hook_with_zero_step (algorithms.ddp_comm_hooks.ddp_zero_hook) and register it. The first backward
    steps already. step() then only evaluates its closure. Gradients cannot be clipped between backward and step; if they
    are changed there, the next step() or zero_grad() raises RuntimeError.

    A checkpoint has the state of a plain `optimizer_class`, and any number of ranks can load it: consolidate_state_dict()
    on all ranks, then state_dict() on one. In `Join([ddp, zero])` each iteration makes one step; ranks without data go on
    stepping their parameters. PyTorch: torch.distributed.optim.ZeroRedundancyOptimizer. Parameters may have several
    dtypes and devices here.

    The ranks compare class, options and parameters. If they differ, all raise RuntimeError, which names the first
    difference. Raises TypeError if `optimizer_class` is no Optimizer, ValueError for no parameters, for tensors that are
    sparse, not leaves or have gaps in memory, for LBFGS (its step is not one by parameter), and on ranks outside the group.
    If a rank dies, its states are lost: step() raises PeerFailed, and in a group that was made anew RuntimeError.

    Cost of a step: a message of 8 bytes, and n(W-1)/W of the n bytes of parameters read by each rank.

    >>> import pydist
    >>> from pydist.distributed.optim import ZeroRedundancyOptimizer
    >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
    >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), pydist.optim.AdamW, lr=0.1)
    >>> model(pydist.ones(3, 2)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.consolidate_state_dict()  # all ranks
    >>> sorted(optimizer.state_dict()["state"][0])  # rank 0
    ['exp_avg', 'exp_avg_sq', 'step']
    """

    _has_left = False  # this rank has run out of data, and follows a step of the others
    _ended = None  # why no step is possible any more
    _optimizer_class = None  # None: the parameters are still being read
    _stepped = None  # gradients and their versions after the step that backward has made with them

    def __init__(
        self,
        params,
        optimizer_class,
        process_group=None,
        parameters_as_bucket_view=False,
        overlap_with_ddp=False,
        **defaults,
    ):
        group = self.process_group = current(process_group)
        if group.size < 0:
            raise ValueError(f"{_OP}: this rank is not in the group (expected a group with this rank)")
        self.world_size, self.rank = group.size, group.rank
        self.global_rank = get_global_rank(group, group.rank)
        self.parameters_as_bucket_view = bool(parameters_as_bucket_view)
        self._overlaps, self._hooked = bool(overlap_with_ddp), False
        self._all_params, self._names = [], []
        self._group_of, self._owners, self._dealt = [], [], []  # by number of a parameter; numbers in order of size
        self._loads = [0] * group.size  # bytes by rank
        self._consolidated = None
        self._agree("argument", lambda: self._read(params, optimizer_class, defaults))
        self._optimizer_class, self._given = optimizer_class, defaults
        self._agree("argument", lambda: self._split([range(len(self._all_params))]))
        self.defaults = self.optim.defaults
        self._lying, self._flats = Lying(self._all_params, self._owners, group), None
        if not self._overlaps:  # else _follow makes them
            self._make_flats()
        member.register(self, group)

    # ---- construction

    def _agree(self, what, make):
        """Calls make(), and checks that it succeeds on all ranks and leaves them with the same groups."""
        failure = None
        try:
            make()
        except Exception as error:
            failure = error
        text = "arguments that fit" if failure is None else f"{type(failure).__name__}: {failure}"
        try:
            check_agreement(f"{_OP}: {what}", [text], self.process_group)
        except RuntimeError as error:
            raise error if failure is None else failure from None
        if failure is not None:
            raise failure
        groups = [", ".join(f"{n}={_text(v)}" for n, v in sorted(options_of(g).items())) for g in self.param_groups]
        check_agreement(f"{_OP}: group", groups, self.process_group)
        check_agreement(f"{_OP}: parameter", self._lines(), self.process_group)

    def _lines(self):
        return [
            f"{name} of group {g}: {p.dtype} {list(p.shape)} on {p.device.type}{'' if p.requires_grad else ', frozen'}"
            f"{'' if p.is_contiguous() else f', strides {list(p.stride())}'}"
            for name, g, p in zip(self._names, self._group_of, self._all_params)
        ]

    def _read(self, params, optimizer_class, defaults):
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            got = getattr(optimizer_class, "__name__", type(optimizer_class).__name__)
            raise TypeError(f"{_OP}: optimizer_class is {got} (expected a subclass of pydist.optim.Optimizer)")
        if issubclass(optimizer_class, (LBFGS, ZeroRedundancyOptimizer)):
            raise ValueError(
                f"{_OP}: optimizer_class is {optimizer_class.__name__} (expected an optimizer that steps each parameter by "
                "itself)"
            )
        if not isinstance(params, _C.Tensor):
            if not isinstance(params, Iterable):
                raise TypeError(f"{_OP}: params is {type(params).__name__} (expected parameters or groups)")
            params = [_listed(item) for item in params]
            if all(map(_is_empty, params)):
                raise ValueError(f"{_OP}: got an empty parameter list (expected at least one parameter)")
        super().__init__(params, {})

    def _check_params(self, param_group):
        for i, param in enumerate(param_group["params"], len(self._all_params)):
            if isinstance(param, _C.Tensor) and param.is_sparse:
                raise ValueError(f"{_OP}: parameter {i} is sparse (expected a dense tensor)")
        super()._check_params(param_group)

    def _own(self, numbers):
        """The groups with those of the parameters that are this rank's, the largest first."""
        groups, numbers = [], set(numbers)
        for g, group in enumerate(self.param_groups):
            own = [i for i in self._dealt if self._group_of[i] == g and self._owners[i] == self.rank and i in numbers]
            groups.append({**group, "params": [self._all_params[i] for i in own]})
            if "param_names" in group:
                groups[-1]["param_names"] = [self._names[i] for i in own]
        return groups

    def _split(self, sections):
        """Makes an optimizer of this rank's parameters for each section, which is a set of numbers. All share one
        state."""
        self._sections = [list(section) for section in sections]
        self._locals = [self._optimizer_class(self._own(section), **self._given) for section in self._sections]
        self.optim = self._locals[0]
        state = defaultdict(dict)
        for local in self._locals:
            state.update(local.state)
        state.update(self.state)
        self._use_state(state)
        self._take_options(self.optim)

    def _use_state(self, state):
        self.state = state
        for local in self._locals:
            local.state = state

    def _make_flats(self):
        if self.parameters_as_bucket_view and self.world_size > 1:
            trained = [[i for i in section if self._all_params[i].requires_grad] for section in self._sections]
            self._flats = Flats(self._all_params, self._owners, self.process_group, self._names, trained)

    def _take_over(self, group):
        """Numbers the parameters of a new group, and deals them out."""
        first, params = len(self._all_params), group["params"]
        if len({id(p) for p in params}) < len(params):
            raise ValueError(f"{_OP}: a group has a parameter twice (expected each parameter once)")
        for i, param in enumerate(params):
            if not is_dense(param):
                raise ValueError(
                    f"{_OP}: parameter {first + i} has shape {list(param.shape)} and strides {list(param.stride())} (expected "
                    "memory without gaps, such as contiguous())"
                )
        self._all_params += params
        self._names += group.get("param_names") or [f"parameter {first + i}" for i in range(len(params))]
        self._group_of += [len(self.param_groups) - 1] * len(params)
        sizes = [p.numel() * p.dtype.itemsize for p in params]
        self._owners += [None] * len(params)
        for i in sorted(range(len(params)), key=lambda i: -sizes[i]):  # as the layout's rule `whole`, for each group
            owner = self._owners[first + i] = self._loads.index(min(self._loads))
            self._loads[owner] += sizes[i]
            self._dealt.append(first + i)

    def add_param_group(self, param_group):
        """Adds a group, whose parameters are dealt out to the ranks with the fewest bytes. All ranks call it. Raises
        RuntimeError with overlap_with_ddp."""
        if self._optimizer_class is None:
            super().add_param_group(param_group)
            self._take_over(self.param_groups[-1])
            return
        if self._overlaps:
            raise RuntimeError(
                f"{_OP}: add_param_group with overlap_with_ddp=True (expected all groups when the optimizer is made)"
            )
        lists = [self._all_params, self._names, self._group_of, self._owners, self._dealt, self._loads]
        lists += [self.param_groups, self.optim.param_groups]
        before = [list(values) for values in lists]
        try:
            self._agree("group", lambda: self._add(_listed(param_group)))
        except Exception:
            for values, old in zip(lists, before):
                values[:] = old
            known = {id(param) for param in self._all_params}
            for param in [param for param in self.state if id(param) not in known]:
                del self.state[param]  # which some classes make at once
            raise
        self._sections[0][:] = range(len(self._all_params))
        if self._flats is not None:
            self._make_flats()

    def _add(self, param_group):
        super().add_param_group(param_group)
        self._take_over(self.param_groups[-1])
        self.optim.add_param_group(self._own(range(len(self._all_params)))[-1])
        self._take_options(self.optim)

    def __getstate__(self):
        raise TypeError(f"{_OP}: it cannot be copied or pickled (expected state_dict())")

    # ---- a step

    def _give_options(self, local):
        local._counted = self.param_groups
        for group, own in zip(self.param_groups, local.param_groups):
            own.update(options_of(group))

    def _take_options(self, local):
        for group, own in zip(self.param_groups, local.param_groups):
            group.update(options_of(own))

    def step(self, closure=None, **kwargs):
        """Steps the parameters that have a gradient; then all ranks have their new values. Other arguments go to the step
        of `optimizer_class`. All ranks call it.

        `closure` (optional) computes the loss again and returns it. Raises RuntimeError on all ranks if a parameter has a
        gradient on some rank and none on its owner, or is frozen on some ranks only.
        """
        if self._ended:
            raise RuntimeError(f"{_OP}.step: {self._ended}")
        if self._overlaps:
            return self._step_by_ddp(closure)
        Join.notify_join_context(self)
        if self._flats is not None:
            self._flats.take_home()
        used = None
        if callable(closure):
            evaluate = closure

            def closure():
                nonlocal used
                loss = evaluate()
                used = self._used()
                return loss
        else:
            used = self._used()
        lent = self._lend_gradients(used) if self._has_left else []
        self._give_options(self.optim)
        try:
            loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure, **kwargs)
        finally:
            for param in lent:
                param.grad = None
        self._take_options(self.optim)
        self._send(0, self._used() if used is None else used)
        return loss

    def _send(self, section, used):
        """Sends the parameters with these numbers, which are all in the section, from their owners."""
        if self.world_size == 1 or not used:
            return
        if self._flats is not None:
            self._flats.send(section)
            used = [i for i in used if i not in self._flats.homes]
        if used:
            self._lying.send(section, used)

    def _used(self):
        """The numbers of the parameters that their owners step. All ranks get the same."""
        marks = bytes((p.grad is not None) + 2 * p.requires_grad for p in self._all_params)
        if self.world_size > 1:
            own = _LEFT if self._has_left else blake2b(marks, digest_size=8).digest()
            hashes = bytearray(8 * self.world_size)
            self.process_group.all_gather(hashes, own)
            if hashes != own * self.world_size or self._has_left:
                return self._used_by_owners(marks)
        return [i for i, mark in enumerate(marks) if mark & _HAS_GRADIENT]

    def _used_by_owners(self, marks):
        rows = [None] * self.world_size
        all_gather_object(rows, None if self._has_left else marks, self.process_group)
        active = {rank: row for rank, row in enumerate(rows) if row is not None}
        used = []
        for i, name in enumerate(self._names):
            trained = {rank: row[i] & _TRAINED for rank, row in active.items()}
            if len(set(trained.values())) > 1:
                frozen = min(trained, key=trained.get)
                raise RuntimeError(
                    f"{_OP}.step: {name} is frozen on rank {frozen} and not on rank {max(trained, key=trained.get)} (expected "
                    "the same on all ranks)"
                )
            having = [rank for rank, row in active.items() if row[i] & _HAS_GRADIENT]
            owner = self._owners[i]
            if not having:
                continue
            if owner in active and owner not in having:
                raise RuntimeError(
                    f"{_OP}.step: {name} has a gradient on rank {having[0]} and none on rank {owner}, which steps it "
                    "(expected reduced gradients, as DistributedDataParallel gives them)"
                )
            used.append(i)
        return used

    # ---- Join

    def join_hook(self, **_):
        """The JoinHook of this optimizer: a rank without data steps its parameters with the gradients that it has got
        from DistributedDataParallel, or from a joinable before this one."""
        return JoinHook() if self._overlaps else _Hook(self)

    @property
    def join_device(self):
        """The device of the first parameter."""
        return self._all_params[0].device

    @property
    def join_process_group(self):
        """The process group of the optimizer."""
        return self.process_group

    def _lend_gradients(self, used):
        """Gives this rank's parameters the gradients of the step in which DistributedDataParallel has followed the others.
        Returns the parameters that got one."""
        lent, reduced = [], None
        for i in used:
            param = self._all_params[i]
            if self._owners[i] != self.rank or param.grad is not None:
                continue
            reduced = self._reduced_gradients() if reduced is None else reduced
            if id(param) not in reduced:
                raise RuntimeError(
                    f"{_OP}: {self._names[i]} has no gradient on rank {self.rank}, which has no data left (expected "
                    "Join([ddp, zero]), or a joinable before zero that sets .grad)"
                )
            param.grad = reduced[id(param)]
            lent.append(param)
        return lent

    def _reduced_gradients(self):
        found = {}
        for ddp in member.members(self.process_group):
            reducer = getattr(ddp, "reducer", None)
            for b, rows in enumerate(reducer.bucket_layout() if reducer is not None else ()):
                for row, gradient in zip(rows, reducer.bucket(b)[1]):
                    found[id(ddp._reduced_at_wrap[row[0]][1])] = gradient
        return found

    # ---- steps in backward (ddp_zero_hook.py)

    def _step_by_ddp(self, closure):
        if not self._hooked:
            raise RuntimeError(
                f"{_OP}.step: overlap_with_ddp is True and no hook steps the parameters (expected "
                "ddp.register_comm_hook(None, hook_with_zero_step(allreduce_hook, ddp, zero)))"
            )
        self._check_gradients("step")
        if closure is None:
            return None
        with enable_grad():
            return closure()

    def _follow(self, sections):
        """From now on sections are stepped one by one, by _step_section. A section is a list of parameters."""
        numbers = {id(p): i for i, p in enumerate(self._all_params)}
        self._split([[numbers[id(p)] for p in section if id(p) in numbers] for section in sections])
        self._make_flats()
        self._hooked = True

    def _step_section(self, section, gradients):
        """Steps a section's parameters with {id(parameter): gradient}, the same ones on all ranks."""
        if self._ended:
            raise RuntimeError(f"{_OP}: {self._ended}")
        numbers = [i for i in self._sections[section] if id(self._all_params[i]) in gradients]
        if self._flats is not None:
            self._flats.take_home()
        for i in numbers:
            param = self._all_params[i]
            if param.grad is None:
                param.grad = gradients[id(param)]
        local = self._locals[section]
        self._give_options(local)
        local.step()
        self._take_options(local)
        self._send(section, numbers)

    def _note_gradients(self, gradients):
        """Notes what backward has stepped with. gradients: tensors, or None while a backward is under way."""
        self._stepped = gradients and [(gradient, gradient._version) for gradient in gradients]

    def _check_gradients(self, op):
        if self._stepped and any(gradient._version != version for gradient, version in self._stepped):
            self._stepped = None
            raise RuntimeError(
                f"{_OP}.{op}: gradients were changed after backward had made the step with them (expected no clipping, or "
                "overlap_with_ddp=False)"
            )

    def zero_grad(self, set_to_none=True):
        """Sets all gradients to None, or to zeros with set_to_none=False."""
        self._check_gradients("zero_grad")
        self._stepped = None
        super().zero_grad(set_to_none)

    # ---- checkpoints

    def consolidate_state_dict(self, to=0):
        """Sends the states of all parameters to rank `to` of the group, which keeps a copy on the CPU for state_dict().
        All ranks call it. Raises ValueError if there is no such rank.

        Cost: rank `to` gets the bytes of all states.
        """
        if not 0 <= to < self.world_size:
            raise ValueError(f"consolidate_state_dict: to is {to} (expected 0 to {self.world_size - 1})")
        if self._ended:
            raise RuntimeError(f"{_OP}.consolidate_state_dict: {self._ended}")
        group, tensors = self.process_group, []

        def note(tensor):
            tensors.append(tensor.detach())
            return _Sent(tensor)

        self._consolidated = None
        own = _mapped(note, super().state_dict()["state"])
        rows = [None] * self.world_size if self.rank == to else None
        gather_object(own, rows, group=group, group_dst=to)
        if self.rank != to:
            for tensor in tensors:
                group.send(_message(tensor.to("cpu").contiguous()), to, _TAG)
            return
        kept = iter(tensors)

        def take(source):
            def tensor_for(sent):
                if source == to:
                    return next(kept).to("cpu", copy=True)
                tensor = _C.empty(sent.shape, dtype=sent.dtype, device="cpu")
                group.recv(_message(tensor), source, _TAG)
                return tensor

            return tensor_for

        states = [_mapped(take(source), row) for source, row in enumerate(rows)]
        pairs = itertools.chain.from_iterable(state.items() for state in states)
        self._consolidated = dict(sorted(pairs, key=lambda pair: _place(pair[0])))

    def state_dict(self):
        """The states of all parameters, as they were at the last consolidate_state_dict, and the groups with their
        options, in the form of a plain optimizer's state_dict(). Raises RuntimeError on a rank that has not got them."""
        if self._consolidated is None:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call "
                f"`consolidate_state_dict(to={self.rank})` on all ranks beforehand if you meant to save the global state."
            )
        groups = super().state_dict()["param_groups"]
        return {
            "state": {i: _mapped(lambda x: x, state) for i, state in self._consolidated.items()},
            "param_groups": groups,
        }

    def load_state_dict(self, state_dict):
        """Takes the options, and this rank's part of the state. `state_dict`: of a plain optimizer of this class, or of a
        ZeroRedundancyOptimizer on any number of ranks. All ranks load the same.

        Raises ValueError if the number of groups, or of parameters in a group, differs.
        """
        saved = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in saved] != sizes:
            raise ValueError(
                f"{_OP}: loaded state dict has groups of {[len(group['params']) for group in saved]} parameters (expected "
                f"{sizes})"
            )
        numbers = [i for group in saved for i in group["params"]]
        number_of = {id(p): number for p, number in zip(self._all_params, numbers)}
        for local in self._locals:
            groups, state = [], {}
            for group, own in zip(saved, local.param_groups):
                mine = [number_of[id(p)] for p in own["params"]]
                groups.append({**options_of(group), "params": mine})
                state.update((n, state_dict["state"][n]) for n in mine if n in state_dict["state"])
            local.load_state_dict({"state": state, "param_groups": groups})
            self._take_options(local)
        state = defaultdict(dict)
        for local in self._locals:
            state.update(local.state)
        self._use_state(state)
        self._consolidated = None

    # ---- as a member of its group (distributed.member)

    def settle(self, on):
        """Raises NotImplementedError with overlap_with_ddp: errors of a backward then come after the first steps."""
        if on and self._overlaps:
            raise NotImplementedError(
                f"{_OP}: a backward that has to be complete before the step, with overlap_with_ddp=True (expected False, for "
                "a Transaction)"
            )

    def rejoin(self, group):
        """Ends the optimizer: the states of the ranks that are gone are lost."""
        self._ended = "a rank that had a part of the state is gone (expected a new ZeroRedundancyOptimizer, which loads a checkpoint)"
        self._stepped = None
