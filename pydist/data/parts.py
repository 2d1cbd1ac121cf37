"""What a rank makes of a data set that the ranks of a job share: its rows of each batch, or its files."""

import logging
import os

from pydist.data.batch import Batch
from pydist.data.cache import Cache
from pydist.data.compressed import Compressed
from pydist.data.function import Map
from pydist.data.nested import Interleave
from pydist.data.order import Concatenate, Prefetch, Repeat, Shard, Shuffle, Skip, Take
from pydist.data.sources import Slices
from pydist.data.step import Run
from pydist.data.strings import StringTensor

_log = logging.getLogger("pydist.data")
_UNEVEN = 1.2  # the most that a rank's bytes may be of the mean, without a warning


def own_rows(step, rank, ranks):
    """The plan of the rank's rows of each batch, or None where the plan does not allow it. It has to read by number and to
    end in `batch`, but for steps that order batches and functions that treat each row alone."""
    if not step.indexed:
        return None
    if type(step) is Batch:
        return Batch(step.input, step.size, step.drop, (rank, ranks)) if step.part is None else None
    alone = isinstance(step, Map) and not step.whole and treats_rows_alone(step)
    kept = isinstance(step, Cache) and step.path is None
    if not alone and not kept and not isinstance(step, (Concatenate, Prefetch, Repeat, Shard, Shuffle, Skip, Take)):
        return None
    inputs = [own_rows(before, rank, ranks) for before in step.inputs]
    return None if None in inputs else step.onto(*inputs)


def treats_rows_alone(step):
    """Whether the function of a map makes the same of the halves of the first batch as of the whole. One that draws random
    numbers does not."""
    run = Run(0, 0, {})
    try:
        batch = step.input.first(run)
        rows = batch[0].shape[0]
        whole = step.apply(batch, 0, run)
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            made = step.apply([leaf[part] for leaf in batch], 0, run)
            if not all(_equal(a[part], b) for a, b in zip(whole, made)):
                return False
        return rows > 1 and all(leaf.shape[0] == rows for leaf in whole)
    except Exception:  # it will be raised again where the element is asked for
        return False


def _equal(a, b):
    if isinstance(a, StringTensor):
        return isinstance(b, StringTensor) and a.tolist() == b.tolist()
    return a.dtype is b.dtype and a.shape == b.shape and bool((a == b).all())


def own_files(step, rank, ranks, replicas):
    """The plan that reads the rank's files and makes batches for one of `replicas` replicas, or None where the plan has no
    list of at least `ranks` files, or no batches that can be divided."""
    if isinstance(step, Batch):
        if step.size % replicas:
            return None
        before = _over_files(step.input, rank, ranks)
        made = None if before is None else step.onto(before)
        if made is not None:
            made.size //= replicas
        return made
    if len(step.inputs) != 1:
        return None
    before = own_files(step.input, rank, ranks, replicas)
    return None if before is None else step.onto(before)


def _over_files(step, rank, ranks):
    if isinstance(step, Compressed):
        paths = step.files.paths
        return None if len(paths) < ranks else Compressed(_shared(step.files, paths, rank, ranks), step.kind)
    if isinstance(step, Interleave):
        paths = _paths(step.input)
        if paths is not None and len(paths) >= ranks:
            _warn_of_sizes(paths, ranks)
            return step.onto(Shard(step.input, ranks, rank))
    if len(step.inputs) != 1:
        return None
    before = _over_files(step.input, rank, ranks)
    return None if before is None else step.onto(before)


def _shared(files, paths, rank, ranks):
    _warn_of_sizes(paths, ranks)
    return files.over(paths[rank::ranks])


def _paths(step):
    """The files that a plan names, or None: strings that are paths of files, in any order."""
    while isinstance(step, (Prefetch, Shuffle, Take, Skip)):
        step = step.input
    if not isinstance(step, Slices) or len(step.leaves) != 1:
        return None
    (names,) = step.leaves
    if not isinstance(names, StringTensor) or names.ndim != 1:
        return None
    paths = names.tolist()
    return paths if all(map(os.path.isfile, paths)) else None


def _warn_of_sizes(paths, ranks):
    sizes = list(map(os.path.getsize, paths))
    shares = [sum(sizes[rank::ranks]) for rank in range(ranks)]
    if max(shares) > _UNEVEN * sum(shares) / ranks:
        _log.warning(
            "the files of the ranks have %s bytes: ranks with less will wait for the others (expected files of equal size)",
            shares,
        )
