"""States whose tensors are all filled with one number, and folders of checkpoints of them after a crash."""

import os

import pydist
from pydist import distributed as dist
from pydist.distributed import checkpoint
from pydist.distributed.checkpoint import _format, manager

SHAPES = {"w": ((64, 70), pydist.float32), "h": ((33,), pydist.float64), "in.k": ((5, 3), pydist.int32)}
LARGE = {**SHAPES, "shared": ((190, 97), pydist.float32)}  # of 64 KiB and more: ranks share its rows


def state_of(value, shapes=SHAPES):
    """A state that tells the moment of each of its values."""
    state = {name: pydist.full(shape, value, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    return {"tensors": state, "values": {"step": value, "text": str(value) * 3}}


def value_of(path, shapes=SHAPES):
    """The number of a checkpoint. Raises CheckpointException if it is damaged, AssertionError if its values are of
    several moments."""
    state = state_of(-1, shapes)
    checkpoint.load(state, checkpoint_id=path, no_dist=True)
    value = state["values"]["step"]
    assert state["values"]["text"] == str(value) * 3 and value >= 0, state["values"]
    for name, tensor in state["tensors"].items():
        assert (tensor == value).all(), f"{path}: step {value}, but {name!r} has {tensor.flatten().unique().tolist()}"
    return value


def newest(folder, shapes=SHAPES, marker=False):
    """The number of the newest step in this folder; 0 if there is none. All steps that are there must be whole. marker: a
    folder without a manifest is none."""
    found = [0]
    for step in manager.steps_of(folder):
        path = manager.folder_of(folder, step)
        if marker and not os.path.exists(os.path.join(path, _format.MANIFEST)):
            continue
        found.append(value_of(path, shapes))
    return found[-1]


def look(folder, done, shapes=SHAPES, marker=False):
    """What is wrong in this folder after a crash, before and after `clean`; "" if nothing is. done: the number of the
    last save that said that it was done (0: none)."""
    when = "as it is"
    try:
        for when in ("as it is", "after clean"):
            if when == "after clean":
                manager.clean(folder)
                left = (
                    [name for name in os.listdir(folder) if not name.startswith("step-")]
                    if os.path.isdir(folder)
                    else []
                )
                assert not left, f"left over: {left}"
            value = newest(folder, shapes, marker)
            assert value >= done, f"the newest is {value}, but {done} was done"
    except (AssertionError, checkpoint.CheckpointException, OSError) as error:
        return f"{when}: {type(error).__name__}: {error}"
    return ""


def saves(kind, folder, done, shapes=SHAPES):
    """Saves of a kind, which call done(number) after each. Before "overwrite" and "manager", prepare(kind) made 1 and 2."""
    step = manager.folder_of(folder, 1)
    if kind in ("first", "overwrite"):
        checkpoint.save(state_of(3, shapes), checkpoint_id=step)
        done(3)
    elif kind in ("marker", "marker overwrite"):
        writer = checkpoint.FileSystemWriter(step, commit="marker")
        checkpoint.save(state_of(3, shapes), storage_writer=writer)
        done(3)
    elif kind == "async overwrite":
        checkpoint.async_save(state_of(3, shapes), checkpoint_id=step).result()
        done(3)
    else:
        with checkpoint.CheckpointManager(folder, keep_last=2, asynchronous=kind == "async manager") as saver:
            for number in (3, 4):
                saver.save(number, state_of(number, shapes))
                saver.wait_until_finished()
                done(number)


def prepare(kind, folder, shapes=SHAPES):
    """What is there before saves of this kind. Returns the number of the last save."""
    if kind in ("first", "marker", "new manager"):
        return 0
    os.makedirs(folder, exist_ok=True)
    if kind.endswith("manager"):
        for number in (1, 2):
            checkpoint.save(state_of(number, shapes), checkpoint_id=manager.folder_of(folder, number), no_dist=True)
        return 2
    writer = checkpoint.FileSystemWriter(
        manager.folder_of(folder, 1), commit="marker" if "marker" in kind else "rename"
    )
    checkpoint.save(state_of(2, shapes), storage_writer=writer, no_dist=True)
    return 2


KINDS = (
    "first",
    "overwrite",
    "async overwrite",
    "marker",
    "marker overwrite",
    "manager",
    "async manager",
    "new manager",
)


def in_fork(job):
    """Runs job() in a forked process, which ends without its parent's clean-up. Returns its number. The parent must have
    one thread."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        job()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def join(meeting, rank, world):
    """Makes this process a rank of a group without a launcher."""
    if world > 1:
        dist.init_process_group(init_method=f"file://{meeting}", rank=rank, world_size=world)
