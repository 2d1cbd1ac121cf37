"""Boxes [N, 4] as (x1, y1, x2, y2): areas, overlaps, and which ones to keep."""

from pydist import _C

__all__ = ["batched_nms", "box_area", "box_convert", "box_iou", "clip_boxes_to_image", "generalized_box_iou", "nms"]


def _check(name, *boxes):
    for b in boxes:
        if b.dim() != 2 or b.shape[1] != 4:
            raise ValueError(f"{name}: boxes have shape {tuple(b.shape)} (expected [N, 4])")


def box_area(boxes):
    """The areas [N] of the boxes."""
    _check("box_area", boxes)
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _overlap(name, a, b):
    """(intersections, unions) of all pairs, each [N, M]."""
    _check(name, a, b)
    low, high = _C.maximum(a[:, None, :2], b[:, :2]), _C.minimum(a[:, None, 2:], b[:, 2:])
    inner = (high - low).clamp(min=0).prod(2)
    return inner, box_area(a)[:, None] + box_area(b) - inner


def box_iou(boxes1, boxes2):
    """Intersection over union of all pairs: [N, M].

    >>> import pydist
    >>> box = pydist.tensor([[0.0, 0.0, 2.0, 2.0]])
    >>> pydist.vision.ops.box_iou(box, box + 1)
    tensor([[0.1429]])
    """
    inner, union = _overlap("box_iou", boxes1, boxes2)
    return inner / union


def generalized_box_iou(boxes1, boxes2):
    """box_iou minus the share of the smallest enclosing box that neither box covers (Rezatofighi et al., 2019)."""
    inner, union = _overlap("generalized_box_iou", boxes1, boxes2)
    low, high = _C.minimum(boxes1[:, None, :2], boxes2[:, :2]), _C.maximum(boxes1[:, None, 2:], boxes2[:, 2:])
    around = (high - low).clamp(min=0).prod(2)
    return inner / union - (around - union) / around


def box_convert(boxes, in_fmt, out_fmt):
    """Boxes in another form: "xyxy", "xywh" (corner and size) or "cxcywh" (centre and size)."""
    forms = ("xyxy", "xywh", "cxcywh")
    if in_fmt not in forms or out_fmt not in forms:
        raise ValueError(f"box_convert: got {in_fmt!r} to {out_fmt!r} (expected two of {forms})")
    a, b = boxes[..., :2], boxes[..., 2:]
    if in_fmt == "xywh":
        b = a + b
    elif in_fmt == "cxcywh":
        a, b = a - b / 2, a + b / 2
    if out_fmt == "xywh":
        b = b - a
    elif out_fmt == "cxcywh":
        a, b = (a + b) / 2, b - a
    return _C.cat([a, b], -1)


def clip_boxes_to_image(boxes, size):
    """Boxes cut at the edges of an image with `size` (height, width)."""
    height, width = size
    limit = _C.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    return _C.minimum(boxes.clamp(min=0), limit)


def nms(boxes, scores, iou_threshold):
    """The indices, best score first, of boxes that do not overlap a box with a better score by more than
    iou_threshold."""
    _check("nms", boxes)
    if tuple(scores.shape) != (boxes.shape[0],):
        raise ValueError(f"nms: scores have shape {tuple(scores.shape)} (expected {(boxes.shape[0],)}, one per box)")
    import numpy as np

    order = scores.detach().argsort(descending=True, stable=True)
    b = boxes.detach()[order].cpu().numpy()
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    left, kept = np.arange(len(b)), []
    while left.size:
        first, rest = left[0], left[1:]
        kept.append(int(first))
        size = np.minimum(b[first, 2:], b[rest, 2:]) - np.maximum(b[first, :2], b[rest, :2])
        inner = size.clip(0).prod(1)
        left = rest[inner <= iou_threshold * (area[first] + area[rest] - inner)]
    return order[_C.tensor(kept, dtype=_C.int64, device=boxes.device)]


def batched_nms(boxes, scores, idxs, iou_threshold):
    """nms within each class idxs[i] separately."""
    if not boxes.numel():
        return _C.zeros(0, dtype=_C.int64, device=boxes.device)
    apart = idxs.to(boxes.dtype) * (boxes.max() - boxes.min() + 1)
    return nms(boxes + apart[:, None], scores, iou_threshold)
