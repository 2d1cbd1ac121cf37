"""Boxes that are a whole tensor, each element once: compared with counting the elements."""

import random
import time

import numpy as np
import pytest

from pydist.distributed.checkpoint.layout import flat_boxes, uncovered


def count(shape, boxes):
    """How often each element is in a box."""
    times = np.zeros(shape, dtype=int)
    for offsets, sizes in boxes:
        times[tuple(slice(o, o + n) for o, n in zip(offsets, sizes))] += 1
    return times


def cut(draw, offsets, sizes, depth):
    """Boxes that are this one, cut at random places."""
    dims = [dim for dim, size in enumerate(sizes) if size > 1]
    if not dims or depth == 0:
        return [(offsets, sizes)]
    dim = draw.choice(dims)
    at = draw.randrange(1, sizes[dim])
    first = sizes[:dim] + (at,) + sizes[dim + 1 :]
    second = sizes[:dim] + (sizes[dim] - at,) + sizes[dim + 1 :]
    begin = offsets[:dim] + (offsets[dim] + at,) + offsets[dim + 1 :]
    return cut(draw, offsets, first, depth - 1) + cut(draw, begin, second, depth - 1)


@pytest.mark.parametrize("seed", range(300))
def test_like_counting(seed):
    draw = random.Random(seed)
    shape = tuple(draw.randrange(1, 6) for _ in range(draw.randrange(4)))
    boxes = cut(draw, (0,) * len(shape), shape, draw.randrange(5))
    for _ in range(draw.choice([0, 0, 1, 2])):
        at = draw.randrange(len(boxes))
        what = draw.randrange(3)
        if what == 0:
            boxes.append(boxes[at])
        elif what == 1 and len(boxes) > 1:
            del boxes[at]
        else:
            sizes = tuple(draw.randrange(0, size + 1) for size in shape)
            boxes[at] = tuple(draw.randrange(size - n + 1) for size, n in zip(shape, sizes)), sizes
    draw.shuffle(boxes)
    times, why = count(shape, boxes), uncovered(shape, boxes)
    assert ("overlap" in why) == bool((times > 1).any()) and bool(why) == bool((times != 1).any())


def test_what_ranks_make_is_fast():
    """Rows, columns, a grid and shares of the elements, of thousands of ranks."""
    begin = time.process_time()
    assert not uncovered((20_000, 3), [((i, 0), (1, 3)) for i in range(20_000)])
    assert not uncovered((3, 20_000), [((0, i), (3, 1)) for i in range(20_000)])
    assert not uncovered((128, 128), [((i, j), (1, 1)) for i in range(128) for j in range(128)])
    flat = [box for i in range(3000) for box in flat_boxes((7000, 3), 7 * i, 7 * i + 7)]
    assert not uncovered((7000, 3), flat)
    assert time.process_time() - begin < 10
