"""visualize_sharding: which rank has what, as text."""

from pydist.distributed.tensor._spec import cut


def _ranges(spec, place):
    """For each dimension the indices (from, to) that the rank at this place of the mesh has."""
    found = [(0, n) for n in spec.shape]
    for placement, ranks, at in zip(spec.placements, spec.mesh.shape, place, strict=True):
        if placement.is_shard():
            first, last = found[placement.dim]
            a, b = cut(last - first, ranks, at, placement.block)
            found[placement.dim] = first + a, first + b
    return found


def _places(shape):
    places = [()]
    for n in shape:
        places = [(*place, i) for place in places for i in range(n)]
    return places


def visualize_sharding(dtensor, header="", use_rich=False):
    """Prints which ranks have which rows and columns of a DTensor of one or two dimensions, on the first rank of its mesh.
    Prints nothing of an empty one. `use_rich` is accepted: the table is plain text. Raises RuntimeError for more
    dimensions.

    >>> import pydist
    >>> from pydist.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> from pydist.distributed.tensor.debug import visualize_sharding
    >>> visualize_sharding(distribute_tensor(pydist.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)]))
             Col 0-1
    -------  ---------
    Row 0-3  cpu:0
    """
    if dtensor.dim() > 2 or not dtensor.dim():
        raise RuntimeError(f"visualize_sharding: the DTensor has {dtensor.dim()} dimensions (expected 1 or 2)")
    spec = dtensor._spec
    mesh, place = spec.mesh, spec.mesh.get_coordinate()
    if not dtensor.numel() or place is None or any(place):
        return
    cells, ranks = {}, mesh.mesh.flatten().tolist()
    for rank, at in zip(ranks, _places(mesh.shape), strict=True):
        rows, *columns = _ranges(spec, at)
        columns = columns[0] if columns else (0, 1)
        if rows[0] < rows[1] and columns[0] < columns[1]:
            cells.setdefault((rows, columns), []).append(f"{mesh.device_type}:{rank}")
    print(_table(cells, header))


def _table(cells, header):
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    text = [["", *(f"Col {a}-{b - 1}" for a, b in columns)]]
    text += [[f"Row {r[0]}-{r[1] - 1}", *(", ".join(cells.get((r, c), ())) for c in columns)] for r in rows]
    widths = [max(len(line[k]) for line in text) for k in range(len(text[0]))]
    widths = [max(w, 2 + len(t)) if k else w for k, (w, t) in enumerate(zip(widths, text[0], strict=True))]
    text.insert(1, ["-" * w for w in widths])
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in text]
    return "\n".join([header, *lines] if header else lines)
