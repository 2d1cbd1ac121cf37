"""The cost of a collective in words, for `python -m pydist.doctor` and `pydist.tune`. docs/algorithms.md has the
formulas."""

from pydist import _C

KIB, MIB = 1 << 10, 1 << 20


def _text(size):
    if size >= MIB:
        return f"{size / MIB:.4g} MiB"
    return f"{size / KIB:.4g} KiB" if size >= KIB else f"{size} B"


def cost_text(op, world, size, transport, local=1, algo=None):
    """A text such as "all_reduce of 1 MiB: slot_sum, 5 steps; a rank writes 1.5 MiB and reads 1.5 MiB in shared
    memory".

    size: bytes of float32; transport: the group's; local: the group's ranks_per_host.
    """
    messages = transport not in ("shm", "inproc")
    cost = _C.comm_cost(op, world, size // 4, messages=messages, local=local, algo=algo)
    parts = [f"{op} of {_text(size)}: {cost['algorithm']}, {cost['steps']} step{'s' * (cost['steps'] != 1)}"]
    if any(cost["memory"]):
        wrote, read = map(_text, cost["memory"])
        parts.append(f"a rank writes {wrote} and reads {read} in shared memory")
    if any(cost["messages"]):
        sent, received = map(_text, cost["messages"])
        parts.append(f"a rank sends {sent} and receives {received}")
    return "; ".join(parts)
