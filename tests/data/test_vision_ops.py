"""torchvision.ops: boxes by hand and by counting pixels, blocks next to the layers that they stand for."""

import pytest

import pydist
from pydist import nn, vision
from pydist.vision import ops

pytest.importorskip("numpy")


def boxes(count, seed=0):
    pydist.manual_seed(seed)
    low = pydist.randint(0, 12, (count, 2))
    return pydist.cat([low, low + pydist.randint(1, 8, (count, 2))], 1).float()


def pixels(box):
    x1, y1, x2, y2 = (int(v) for v in box.tolist())
    return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}


def test_overlaps_count_pixels():
    assert vision.ops is ops
    a, b = boxes(6), boxes(5, 1)
    sets = [pixels(box) for box in a], [pixels(box) for box in b]
    assert ops.box_area(a).tolist() == [len(s) for s in sets[0]]
    iou, general = ops.box_iou(a, b), ops.generalized_box_iou(a, b)
    for i, s in enumerate(sets[0]):
        for j, t in enumerate(sets[1]):
            assert iou[i, j].item() == pytest.approx(len(s & t) / len(s | t))
            xs, ys = zip(*(s | t))
            around = (max(xs) - min(xs) + 1) * (max(ys) - min(ys) + 1)
            assert general[i, j].item() == pytest.approx(
                len(s & t) / len(s | t) - (around - len(s | t)) / around, abs=1e-6
            )
    with pytest.raises(ValueError, match="box_iou: boxes have shape \\(4,\\)"):
        ops.box_iou(a[0], b)


def test_forms_and_edges():
    a = boxes(4)
    for form in ("xywh", "cxcywh", "xyxy"):
        assert pydist.allclose(ops.box_convert(ops.box_convert(a, "xyxy", form), form, "xyxy"), a)
    assert ops.box_convert(pydist.tensor([[1.0, 2.0, 5.0, 4.0]]), "xyxy", "cxcywh").tolist() == [[3, 3, 4, 2]]
    with pytest.raises(ValueError, match="box_convert: got 'xyxy' to 'polar'"):
        ops.box_convert(a, "xyxy", "polar")
    assert ops.clip_boxes_to_image(pydist.tensor([[-1.0, 2.0, 30.0, 40.0]]), (10, 20)).tolist() == [[0, 2, 20, 10]]


def test_nms_keeps_the_best():
    a = boxes(40)
    scores, iou = pydist.rand(40), ops.box_iou(a, a)
    kept = ops.nms(a, scores, 0.3).tolist()
    expected = []
    for i in scores.argsort(descending=True).tolist():
        if all(iou[i, j] <= 0.3 for j in expected):
            expected.append(i)
    assert kept == expected and 1 < len(kept) < 40
    classes = pydist.arange(40) % 2
    both = ops.batched_nms(a, scores, classes, 0.3).tolist()
    each = [
        [p[i] for i in ops.nms(a[p], scores[p], 0.3).tolist()] for p in (list(range(0, 40, 2)), list(range(1, 40, 2)))
    ]
    assert sorted(both) == sorted(each[0] + each[1]) and both == sorted(both, key=lambda i: -scores[i].item())
    assert ops.nms(a[:0], scores[:0], 0.5).tolist() == []
    with pytest.raises(ValueError, match="nms: scores have shape"):
        ops.nms(a, scores[:3], 0.5)


def test_blocks():
    norm = nn.BatchNorm2d(3)
    norm(pydist.randn(4, 3, 5, 5))
    frozen = ops.FrozenBatchNorm2d(3)
    frozen.load_state_dict(norm.state_dict())
    x = pydist.randn(2, 3, 4, 4)
    assert pydist.allclose(frozen(x), norm.eval()(x), atol=1e-6) and not list(frozen.parameters())
    kinds = [type(m).__name__ for m in ops.MLP(4, [8, 2], norm_layer=nn.LayerNorm, dropout=0.5)]
    assert kinds == ["Linear", "LayerNorm", "ReLU", "Dropout", "Linear", "Dropout"]
    assert ops.Permute((0, 2, 1))(pydist.ones(1, 2, 3)).shape == (1, 3, 2)


def test_stochastic_depth():
    pydist.manual_seed(0)
    x = pydist.ones(4000, 2)
    row = ops.StochasticDepth(0.25, "row")
    out = row(x)
    assert sorted(set(out.flatten().tolist())) == pytest.approx([0.0, 4 / 3]) and (out[:, 0] == out[:, 1]).all()
    assert abs((out == 0).float().mean().item() - 0.25) < 0.03
    assert len(set(ops.stochastic_depth(x, 0.5, "batch").flatten().tolist())) == 1
    assert row.eval()(x) is x and ops.stochastic_depth(x, 1.0, "row").sum().item() == 0
    with pytest.raises(ValueError, match="stochastic_depth: p is 2"):
        ops.stochastic_depth(x, 2, "row")


def test_focal_loss():
    x, y = pydist.randn(50), (pydist.rand(50) > 0.5).float()
    plain = nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    assert pydist.allclose(ops.sigmoid_focal_loss(x, y, alpha=-1, gamma=0), plain)
    p = x.sigmoid() * y + (1 - x.sigmoid()) * (1 - y)
    expected = (plain * (1 - p) ** 2 * (0.25 * y + 0.75 * (1 - y))).mean()
    assert ops.sigmoid_focal_loss(x, y, reduction="mean").item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="reduction"):
        ops.sigmoid_focal_loss(x, y, reduction="all")
