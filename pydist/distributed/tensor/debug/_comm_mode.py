"""CommDebugMode: how often a block of a program communicates, by collective."""

from collections import defaultdict

from pydist import _C, ops

# The engine's collectives, and PyTorch's functional ones.
_NAMES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single", "broadcast": "broadcast",
}  # fmt: skip
_ROOT = "Global"


def _now():
    calls = _C.comm_calls()
    return [calls[name] for name in _NAMES]


def _count_since(before, counts):
    """Adds what was called since `before` to the counts."""
    for key, was, now in zip(_NAMES.values(), before, _now(), strict=True):
        if now != was:
            counts[getattr(ops.c10d_functional, key)] += now - was


class CommDebugMode:
    """Counts the collectives that this thread calls inside the block, forward and backward, of every group: those of
    DTensors, functional ones, and those of `pydist.distributed`. A block counts from 0 each time.

    The keys of get_comm_counts are `pydist.ops.c10d_functional.all_reduce`, all_gather_into_tensor, reduce_scatter_tensor,
    all_to_all_single and broadcast. What ranks of one host read in each other's memory without a collective, as
    fully_shard's parameters, is not counted, nor are barriers and messages between two ranks.

    `module` (PyTorch has no such argument): counts also stand for each module below it, and the table says which module
    communicated in forward. What is not in a forward is counted for all ("Global") only.
    """

    def __init__(self, module=None):
        self.module, self._counts, self.comm_module_counts = module, defaultdict(int), {}
        self._hooks, self._open, self._seen, self._before = [], [], {}, None

    def __enter__(self):
        self._counts.clear()
        self.comm_module_counts.clear()
        self._open.clear()
        self._seen = {}
        for name, below in (
            self.module.named_modules(prefix=type(self.module).__name__) if self.module is not None else ()
        ):
            self._seen[name] = below
            self._hooks.append(below.register_forward_pre_hook(lambda *_: self._open.append(_now())))
            self._hooks.append(
                below.register_forward_hook(lambda *_, name=name: self._add(name, self._open.pop()), always_call=True)
            )
        self._before = _now()
        return self

    def __exit__(self, *error):
        self._counts, self._before = self.comm_counts, None
        while self._hooks:
            self._hooks.pop().remove()

    def _add(self, name, before):
        counts = self.comm_module_counts.setdefault(name, {"forward": defaultdict(int), "backward": defaultdict(int)})
        _count_since(before, counts["forward"])

    @property
    def comm_counts(self):
        """{collective: how often it was called}, of collectives that were called so far; 0 for others."""
        counts = defaultdict(int, self._counts)
        if self._before is not None:
            _count_since(self._before, counts)
        return counts

    def get_comm_counts(self):
        """comm_counts."""
        return self.comm_counts

    def get_total_counts(self):
        """How often collectives were called."""
        return sum(self.comm_counts.values())

    def get_parameter_info(self):
        """{module: {name of a parameter: its data}}, of modules that have parameters; {} without `module`."""
        return {name: own for name, below in self._seen.items()
                if (own := {key: p.data for key, p in below.named_parameters(recurse=False)})}  # fmt: skip

    def get_sharding_info(self):
        """{"module.parameter": placements} of parameters that are DTensors; {} without `module`."""
        return {f"{name}.{key}": p.placements for name, own in self.get_parameter_info().items() for key, p in own.items()
                if hasattr(p, "placements")}  # fmt: skip

    def generate_comm_debug_tracing_table(self, noise_level=3):
        """The counts as text: those of the whole block, then of each module's forward, with the placements of its
        parameters if noise_level is at least 1."""
        lines = [_ROOT, *_counts(self.comm_counts, 1)]
        for name, below in self._seen.items():
            depth = 1 + name.count(".")
            lines.append(f"{'  ' * depth}{name}")
            if noise_level:
                lines.append(f"{'  ' * depth}*module type: {type(below).__name__}")
                lines += [f"{'  ' * depth}*{key}: {getattr(p, 'placements', 'plain')}"
                          for key, p in self.get_parameter_info().get(name, {}).items()]  # fmt: skip
            lines += _counts(self.comm_module_counts.get(name, {}).get("forward", {}), depth + 1)
        return "\n".join(lines) + "\n"

    def log_comm_debug_tracing_table_to_file(self, file_name="comm_mode_log.txt", noise_level=3):
        """Writes that text to a file."""
        with open(file_name, "w", encoding="utf-8") as file:
            file.write(self.generate_comm_debug_tracing_table(noise_level))

    def __repr__(self):
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"


def _counts(counts, depth):
    return [f"{'  ' * depth}*{key.default.name()}: {n}" for key, n in counts.items()]
