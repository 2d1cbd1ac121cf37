"""Transforms, grids and image files against torchvision where it is installed, else against Pillow, NumPy and counts by
hand."""

import pickle
import subprocess
import sys

import pytest

import pydist

np = pytest.importorskip("numpy")

from pydist import vision
from pydist.vision import transforms as T
from pydist.vision import utils
from pydist.vision.transforms import functional as F
from pydist.vision.transforms import v2


def array(*shape, dtype=np.uint8, seed=0):
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return rng.random(shape).astype(dtype)
    return rng.integers(0, min(np.iinfo(dtype).max, 255) + 1, shape).astype(dtype)


def gradient(*shape, dtype=np.uint8):
    """A smooth image: neighbours differ little, so that an error of place shows as a small one of value."""
    c, h, w = shape
    values = (np.arange(w) * 3 + np.arange(h)[:, None] * 5 + np.arange(c)[:, None, None] * 20) % 256
    return values.astype(dtype) if dtype == np.uint8 else (values / 255).astype(dtype)


# Each row: a name of functional and arguments; run on tensors of some types and on Pillow images, against torchvision.
GEOMETRY = [
    ("hflip",),
    ("vflip",),
    ("crop", 2, 3, 5, 6),
    ("crop", -2, 15, 9, 9),
    ("center_crop", 7),
    ("center_crop", (30, 5)),
    ("center_crop", [25, 33]),
    ("pad", 2),
    ("pad", (1, 2), 7),
    ("pad", [1, 2, 3, 4], 0, "edge"),
    ("pad", [1, 2, 3, 4], 0, "reflect"),
    ("pad", (4, 3), 0, "symmetric"),
    ("resize", 8),
    ("resize", [8]),
    ("resize", (31, 9)),
    ("resize", 40),
    ("resize", 16, "nearest"),
    ("resize", (7, 29), "nearest"),
    ("resize", (9, 25), "bicubic"),
    ("resize", 14, "bilinear", 15),
    ("resized_crop", 2, 3, 9, 8, (12, 5)),
    ("five_crop", 6),
    ("ten_crop", (5, 6)),
    ("ten_crop", 5, True),
    ("rotate", 30),
    ("rotate", -45, "bilinear"),
    ("rotate", 62, "nearest", True),
    ("rotate", 17, "bilinear", True),
    ("rotate", 25, "nearest", False, (3, 4)),
    ("affine", 0, [2, -3], 1.0, [0.0, 0.0]),
    ("affine", 20, [1, 2], 1.3, [5.0, -4.0], "bilinear"),
    ("affine", -10, [0, 0], 0.7, 8),
    ("perspective", [[0, 0], [19, 0], [19, 16], [0, 16]], [[2, 1], [17, 3], [18, 14], [1, 15]], "bilinear"),
]
COLOURS = [
    ("adjust_brightness", 0.4),
    ("adjust_brightness", 1.7),
    ("adjust_contrast", 0.3),
    ("adjust_contrast", 2.1),
    ("adjust_saturation", 0.0),
    ("adjust_saturation", 1.6),
    ("adjust_hue", 0.2),
    ("adjust_hue", -0.45),
    ("adjust_gamma", 0.6, 1.1),
    ("adjust_sharpness", 0.2),
    ("adjust_sharpness", 1.8),
    ("rgb_to_grayscale", 1),
    ("rgb_to_grayscale", 3),
    ("invert",),
    ("autocontrast",),
    ("gaussian_blur", 3),
    ("gaussian_blur", [5, 3], [0.7, 1.9]),
]
UINT8 = [("posterize", 3), ("posterize", 8), ("solarize", 100), ("equalize",)]


def modes(args, kind):
    return [kind(a) if isinstance(a, str) and a in ("nearest", "bilinear", "bicubic") else a for a in args]


def results(out):
    return out if isinstance(out, tuple) else (out,)


def close(mine, ref, tolerance, outliers=0.0):
    """Equal shapes; values within `tolerance` but for the part `outliers` of them."""
    for a, b in zip(results(mine), results(ref), strict=True):
        a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        assert a.shape == b.shape
        far = np.abs(a - b) > tolerance
        assert far.mean() <= outliers, (np.abs(a - b).max(), far.mean())


def identity(row):
    return "-".join(str(x).replace(" ", "") for x in row)


def typed():
    for row in GEOMETRY + COLOURS + UINT8:
        for dtype in (np.uint8,) if row in UINT8 else (np.uint8, np.float32, np.float64):
            yield pytest.param(row, dtype, id=f"{identity(row)}-{dtype.__name__}")


@pytest.mark.parametrize("row, dtype", list(typed()))
def test_tensors_against_torchvision(tv, torch, row, dtype):
    name, *args = row
    for image in (gradient(3, 17, 20, dtype=dtype), array(3, 17, 20, dtype=dtype)):
        ref = getattr(tv.transforms.functional, name)(
            torch.from_numpy(image), *modes(args, tv.transforms.InterpolationMode)
        )
        mine = getattr(F, name)(pydist.from_numpy(image), *modes(args, T.InterpolationMode))
        assert all(
            str(a.dtype).split(".")[1] == str(b.dtype).split(".")[1] for a, b in zip(results(mine), results(ref))
        )
        # sums in another order: a rounding of whole numbers may fall to the other side
        whole = name in ("resize", "resized_crop", "rotate", "affine", "perspective", "gaussian_blur") or row in COLOURS
        nearest_ties = 0.02 if name in ("rotate", "affine") else 0.0
        close(mine, ref, (1 if whole else 0) if dtype == np.uint8 else 2e-5, nearest_ties)
        if dtype == np.uint8 and whole:
            close(mine, ref, 0, 0.02)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("row", GEOMETRY + COLOURS + UINT8, ids=identity)
def test_pillow_images_against_torchvision(tv, pil, row, mode):
    name, *args = row
    image = pil.fromarray(np.moveaxis(gradient(3, 17, 20), 0, -1)).convert(mode)
    try:
        ref = getattr(tv.transforms.functional, name)(image, *modes(args, tv.transforms.InterpolationMode))
    except OSError:
        pytest.skip(f"Pillow has no {name} of {mode}")
    mine = getattr(F, name)(image, *modes(args, T.InterpolationMode))
    blurred = name == "gaussian_blur"
    for a, b in zip(results(mine), results(ref), strict=True):
        assert a.mode == b.mode and a.size == b.size
        close(np.asarray(a), np.asarray(b), 1 if blurred else 0)


@pytest.mark.parametrize("fill", [9, [30], [10, 20, 30]], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_fill_against_torchvision(tv, torch, pil, mode, fill):
    image = array(3, 15, 18, dtype=np.float32)
    photo = pil.fromarray(array(15, 18, 3))
    for name, args in (("rotate", (20,)), ("affine", (5, [3, 4], 0.8, [3.0, 0.0]))):
        ref, mine = getattr(tv.transforms.functional, name), getattr(F, name)
        close(
            mine(pydist.from_numpy(image), *args, T.InterpolationMode(mode), fill=fill),
            ref(torch.from_numpy(image), *args, tv.transforms.InterpolationMode(mode), fill=fill),
            1e-3,
            0.02,
        )
        a = mine(photo, *args, T.InterpolationMode(mode), fill=fill)
        b = ref(photo, *args, tv.transforms.InterpolationMode(mode), fill=fill)
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("size", [(5, 6), (40, 33), (17, 50)], ids=str)
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resize_against_torch(torch, mode, antialias, size):
    """torch's interpolate is what torchvision calls."""
    image = array(2, 3, 17, 20, dtype=np.float32)
    smooth = antialias and not mode.startswith("nearest")
    ref = torch.nn.functional.interpolate(torch.from_numpy(image), size, mode=mode, antialias=smooth)
    mine = F.resize(pydist.from_numpy(image), size, T.InterpolationMode(mode), antialias=antialias)
    close(mine, ref, 2e-5)


def test_resize_by_hand():
    x = pydist.tensor([[[0.0, 4.0]]])
    assert F.resize(x, (1, 4), antialias=False).tolist() == [[[0.0, 1.0, 3.0, 4.0]]]
    assert F.resize(x, (2, 1)).tolist() == [[[2.0], [2.0]]]
    assert F.resize(pydist.zeros(1, 10, 20), 5).shape == (1, 5, 10)
    assert F.resize(pydist.zeros(1, 20, 10), 5, max_size=8).shape == (1, 8, 4)
    assert F.resize(pydist.zeros(1, 20, 10), None, max_size=8).shape == (1, 8, 4)
    assert F.resize(x, (1, 2)) is x


def test_geometry_by_hand():
    x = pydist.arange(6).reshape(1, 2, 3)
    assert F.hflip(x).tolist() == [[[2, 1, 0], [5, 4, 3]]]
    assert F.vflip(x).tolist() == [[[3, 4, 5], [0, 1, 2]]]
    assert F.crop(x, 1, 1, 2, 2).tolist() == [[[4, 5], [0, 0]]]
    assert F.crop(x, 5, 5, 1, 2).tolist() == [[[0, 0]]]
    assert F.pad(x, (1, 0), 9).tolist() == [[[9, 0, 1, 2, 9], [9, 3, 4, 5, 9]]]
    assert F.pad(x, (2, 0), padding_mode="reflect").tolist()[0][0] == [2, 1, 0, 1, 2, 1, 0]
    assert F.pad(x, (2, 0), padding_mode="symmetric").tolist()[0][0] == [1, 0, 0, 1, 2, 2, 1]
    assert F.pad(x, (-1, 0, 0, 0)).tolist() == [[[1, 2], [4, 5]]]
    assert F.rotate(x, 180).tolist() == [[[5, 4, 3], [2, 1, 0]]]
    wide = pydist.arange(8).reshape(1, 2, 4)
    assert F.rotate(wide, 90, expand=True).tolist() == [[[3, 7], [2, 6], [1, 5], [0, 4]]]
    assert F.affine(x, 0, [1, 0], 1.0, 0.0, fill=7).tolist() == [[[7, 0, 1], [7, 3, 4]]]
    assert [c.tolist() for c in F.five_crop(x, 1)] == [[[[v]]] for v in (0, 2, 3, 5, 1)]
    moved = F.erase(x, 0, 1, 2, 1, pydist.tensor(-1))
    assert moved.tolist() == [[[0, -1, 2], [3, -1, 5]]] and x.sum().item() == 15
    F.erase(x, 0, 0, 2, 3, 0, inplace=True)
    assert x.sum().item() == 0


def test_results_own_their_memory():
    x = pydist.zeros(1, 4, 4)
    for y in (F.hflip(x), F.crop(x, 0, 0, 2, 2), F.pad(x, 0), F.center_crop(x, 2)):
        assert y.is_contiguous()
        y.fill_(1)
    assert x.sum().item() == 0


def test_to_tensor(pil):
    pixels = array(4, 5, 3)
    x = T.ToTensor()(pil.fromarray(pixels))
    assert x.shape == (3, 4, 5) and x.dtype == pydist.float32 and x.is_contiguous()
    assert np.array_equal(x.numpy(), pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    assert np.array_equal(x.numpy(), F.to_tensor(pixels).numpy())
    assert F.to_tensor(pixels[:, :, 0].astype(np.float64)).dtype == pydist.float64
    assert F.to_tensor(pil.fromarray(pixels).convert("1")).tolist()[0][0][0] in (0.0, 1.0)
    assert F.to_tensor(pil.fromarray(np.array([[70000, -3]], np.int32))).tolist() == [[[70000, -3]]]
    assert F.to_tensor(pil.fromarray(np.array([[0.5, -3.25]], np.float32))).tolist() == [[[0.5, -3.25]]]
    raw = T.PILToTensor()(pil.fromarray(pixels))
    assert raw.dtype == pydist.uint8 and np.array_equal(raw.numpy(), pixels.transpose(2, 0, 1))
    raw.fill_(0)
    assert pixels.any()
    with pytest.raises(TypeError, match="pic should be PIL Image or ndarray. Got <class 'list'>"):
        F.to_tensor([1])
    with pytest.raises(ValueError, match="pic should be 2/3 dimensional. Got 1 dimensions."):
        F.to_tensor(np.zeros(3))
    with pytest.raises(TypeError, match="pic should be PIL Image. Got"):
        F.pil_to_tensor(pixels)


def test_to_pil_image(pil):
    for shape, mode in (((4, 5), "L"), ((1, 4, 5), "L"), ((2, 4, 5), "LA"), ((3, 4, 5), "RGB"), ((4, 4, 5), "RGBA")):
        pixels = array(*shape)
        image = F.to_pil_image(pydist.from_numpy(pixels))
        assert image.mode == mode and image.size == (5, 4)
        assert np.array_equal(np.asarray(image), np.moveaxis(pixels, 0, -1).squeeze() if pixels.ndim == 3 else pixels)
    assert F.to_pil_image(pydist.from_numpy(array(4, 3, 3)), "CMYK").mode == "CMYK"
    assert np.asarray(T.ToPILImage()(pydist.tensor([[[0.0, 0.5, 1.0]]]))).tolist() == [[0, 127, 255]]
    assert np.asarray(F.to_pil_image(pydist.tensor([[0.25]]), "F")).tolist() == [[0.25]]
    assert np.asarray(F.to_pil_image(np.array([[7]], np.int32))).tolist() == [[7]]
    x = pydist.from_numpy(array(3, 4, 5)).float() / 255
    assert np.abs(F.to_tensor(F.to_pil_image(x)).numpy() - x.numpy()).max() <= 1 / 255
    for bad, error, text in (
        ([1], TypeError, "Tensor or ndarray"),
        (pydist.zeros(2, 3, 4, 5), ValueError, "2/3 dimensional. Got 4"),
        (pydist.zeros(5, 3, 4), ValueError, "> 4 channels. Got 5"),
        (np.zeros((2, 2, 3), np.int64), TypeError, "int64 is not supported"),
    ):
        with pytest.raises(error, match=text):
            F.to_pil_image(bad)
    with pytest.raises(ValueError, match="Incorrect mode"):
        F.to_pil_image(pydist.zeros(3, 2, 2), "L")


DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float32", "float64"]


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_convert_image_dtype_against_torchvision(tv, torch, source, target):
    image = array(3, 5, 6, dtype=np.dtype(source).type)
    try:
        ref = tv.transforms.functional.convert_image_dtype(torch.from_numpy(image), getattr(torch, target))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match="cannot be performed safely"):
            F.convert_image_dtype(pydist.from_numpy(image), getattr(pydist, target))
        assert "safely" in str(error)
        return
    mine = T.ConvertImageDtype(getattr(pydist, target))(pydist.from_numpy(image))
    assert str(mine.dtype) == f"pydist.{target}" and np.array_equal(mine.numpy(), ref.numpy())


def test_normalize():
    x = pydist.from_numpy(array(2, 3, 4, 5, dtype=np.float32))
    mean, std = [0.1, 0.2, 0.3], (0.5, 0.25, 2.0)
    ref = (x.numpy() - np.float32(mean).reshape(3, 1, 1)) / np.float32(std).reshape(3, 1, 1)
    out = T.Normalize(mean, std)(x)
    assert np.array_equal(out.numpy(), ref) and out is not x
    assert F.normalize(x, mean, std, inplace=True) is x and np.array_equal(x.numpy(), ref)
    assert F.normalize(pydist.ones(2, 1, 1), 0.5, 2).flatten().tolist() == [0.25, 0.25]
    y = pydist.ones(1, 2, 2, requires_grad=True)
    F.normalize(y, [0.0], [4.0]).sum().backward()
    assert y.grad.flatten().tolist() == [0.25] * 4
    for bad, error, text in (
        (pydist.zeros(1, 2, 2, dtype=pydist.uint8), TypeError, "should be a float tensor"),
        (pydist.zeros(2, 2), ValueError, r"\(\.\.\., C, H, W\)"),
        (np.zeros((1, 2, 2)), TypeError, "should be Tensor Image"),
    ):
        with pytest.raises(error, match=text):
            F.normalize(bad, [0.0], [1.0])
    with pytest.raises(ValueError, match="std evaluated to zero"):
        F.normalize(x, mean, [1, 0, 1])


# What is random.


def drawn(transform, image, count, seed=0):
    pydist.manual_seed(seed)
    return [transform(image) for _ in range(count)]


RANDOM = [
    T.RandomCrop(5, padding=2),
    T.RandomResizedCrop(6),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
    T.RandomRotation(40),
    T.RandomAffine(20, (0.2, 0.2), (0.7, 1.2), (3, 4, 5, 6)),
    T.RandomPerspective(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.2),
    T.RandomGrayscale(0.5),
    T.RandomErasing(value="random"),
    T.RandomApply([T.GaussianBlur(3)]),
    T.RandomChoice([T.RandomInvert(1.0), T.Pad(1)]),
    T.RandomOrder([T.RandomRotation(90), T.CenterCrop(6)]),
    T.RandomSolarize(0.3),
    T.RandomAutocontrast(),
    T.RandomAdjustSharpness(2.0),
]


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: type(t).__name__)
def test_the_seed_governs(transform):
    image = pydist.from_numpy(array(3, 9, 9, dtype=np.float32))
    first, again, other = (drawn(transform, image, 12, seed) for seed in (1, 1, 2))
    same = [a.shape == b.shape and bool((a == b).all()) for a, b in zip(first, again)]
    assert all(same)
    assert any(a.shape != b.shape or not bool((a == b).all()) for a, b in zip(first, other))
    assert pickle.loads(pickle.dumps(transform)) is not transform and type(transform).__name__ in repr(transform)


def test_flips_happen_half_the_time():
    image = pydist.tensor([[[0.0, 1.0]]])
    hits = sum(out.tolist() == [[[1.0, 0.0]]] for out in drawn(T.RandomHorizontalFlip(), image, 400))
    assert 150 <= hits <= 250
    assert all(out is image for out in drawn(T.RandomHorizontalFlip(0.0), image, 20))
    assert all(out.tolist() == [[[1.0, 0.0]]] for out in drawn(T.RandomHorizontalFlip(1.0), image, 20))


def test_random_crop():
    image = pydist.arange(12).reshape(1, 3, 4)
    seen = {out.flatten().tolist()[0] for out in drawn(T.RandomCrop((2, 3)), image, 100)}
    assert seen == {0, 1, 4, 5}
    padded = drawn(T.RandomCrop(3, padding=1, fill=-1), image, 60)
    assert all(out.shape == (1, 3, 3) for out in padded) and any((out == -1).any() for out in padded)
    assert T.RandomCrop((5, 6), pad_if_needed=True, padding_mode="edge")(image).shape == (1, 5, 6)
    with pytest.raises(ValueError, match=r"Required crop size \(5, 6\) is larger than input image size \(3, 4\)"):
        T.RandomCrop((5, 6))(image)


def test_random_resized_crop_takes_parts_within_the_bounds():
    pydist.manual_seed(0)
    image = pydist.zeros(1, 60, 80)
    for _ in range(200):
        i, j, h, w = T.RandomResizedCrop.get_params(image, (0.2, 0.5), (0.5, 2.0))
        assert 0 <= i <= 60 - h and 0 <= j <= 80 - w
        assert 0.17 <= h * w / 4800 <= 0.53 and 0.45 <= w / h <= 2.1
    assert T.RandomResizedCrop.get_params(pydist.zeros(1, 2, 100), (1.0, 1.0), (0.9, 1.1)) == (0, 49, 2, 2)


def test_random_erasing():
    pydist.manual_seed(0)
    image = pydist.ones(3, 20, 30)
    for _ in range(50):
        out = T.RandomErasing(1.0, (0.1, 0.2), (0.5, 2.0), value=(2, 3, 4))(image)
        mask = out.numpy() != 1
        assert 0.07 <= mask.mean() <= 0.23 and set(np.unique(out.numpy()[2])) == {1.0, 4.0}
        rows, columns = mask[0].any(1).sum(), mask[0].any(0).sum()
        assert rows * columns == mask[0].sum()
    assert image.sum().item() == 1800
    inplace = T.RandomErasing(1.0, inplace=True)
    assert inplace(image) is image and image.sum().item() < 1800
    with pytest.raises(ValueError, match="3 \\(number of input channels"):
        T.RandomErasing(1.0, value=(1, 2))(image)


def test_affine_and_rotation_draw_within_their_ranges():
    pydist.manual_seed(0)
    for _ in range(100):
        angle, move, scale, shear = T.RandomAffine.get_params(
            [-10, 30], (0.1, 0.2), (0.5, 1.5), [-1, 1, 2, 3], [100, 50]
        )
        assert -10 <= angle <= 30 and abs(move[0]) <= 10 and abs(move[1]) <= 10 and all(type(m) is int for m in move)
        assert 0.5 <= scale <= 1.5 and -1 <= shear[0] <= 1 and 2 <= shear[1] <= 3
        assert -5 <= T.RandomRotation.get_params([-5, 5]) <= 5
    assert T.RandomAffine.get_params([0, 0], None, None, None, [9, 9]) == (0.0, (0, 0), 1.0, (0.0, 0.0))


def test_color_jitter_ranges():
    jitter = T.ColorJitter(brightness=0.2, contrast=(0.5, 0.6), saturation=0, hue=0.1)
    assert jitter.brightness == (0.8, 1.2) and jitter.contrast == (0.5, 0.6)
    assert jitter.saturation is None and jitter.hue == (-0.1, 0.1)
    assert T.ColorJitter(brightness=3).brightness == (0.0, 4.0)
    image = pydist.from_numpy(array(3, 4, 4))
    assert T.ColorJitter()(image) is image
    order, *factors = jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    assert sorted(order.tolist()) == [0, 1, 2, 3] and 0.8 <= factors[0] <= 1.2 and factors[2] is None
    for bad in ({"hue": 0.6}, {"brightness": -1}, {"contrast": (3, 1)}):
        with pytest.raises(ValueError):
            T.ColorJitter(**bad)


def test_composition():
    add, double = T.Lambda(lambda x: x + 1), T.Lambda(lambda x: x * 2)
    assert T.Compose([add, double])(3) == 8
    pydist.manual_seed(0)
    assert {T.RandomChoice([add, double], p=[0.0, 1.0])(5) for _ in range(20)} == {10}
    assert {T.RandomChoice([add, double])(5) for _ in range(50)} == {6, 10}
    assert {T.RandomOrder([add, double])(5) for _ in range(50)} == {12, 11}
    assert {T.RandomApply([add, double], p=0.3)(5) for _ in range(50)} == {5, 12}
    assert repr(T.Compose([T.ToTensor(), T.Normalize([0.5], [0.5])])) == (
        "Compose(\n    ToTensor()\n    Normalize(mean=[0.5], std=[0.5])\n)"
    )
    with pytest.raises(TypeError, match="Argument lambd should be callable"):
        T.Lambda(3)
    white = T.LinearTransformation(pydist.tensor([[0.0, 2.0], [1.0, 0.0]]), pydist.tensor([1.0, 1.0]))
    assert white(pydist.tensor([[[3.0, 5.0]]])).tolist() == [[[4.0, 4.0]]]


@pytest.mark.parametrize(
    "make",
    [
        lambda T: T.Resize((3, 4)),
        lambda T: T.Resize(7, T.InterpolationMode.BICUBIC, 9),
        lambda T: T.CenterCrop(3),
        lambda T: T.Pad((1, 2), 3, "constant"),
        lambda T: T.RandomCrop(4, 2),
        lambda T: T.RandomHorizontalFlip(0.3),
        lambda T: T.RandomResizedCrop(224, (0.1, 0.9)),
        lambda T: T.RandomRotation(15, T.InterpolationMode.BILINEAR),
        lambda T: T.RandomAffine(15, (0.1, 0.2), (0.5, 2), 5),
        lambda T: T.ColorJitter(0.2, hue=0.1),
        lambda T: T.Grayscale(3),
        lambda T: T.RandomGrayscale(),
        lambda T: T.GaussianBlur(3, 0.5),
        lambda T: T.RandomErasing(),
        lambda T: T.FiveCrop(3),
        lambda T: T.TenCrop(3),
        lambda T: T.ToTensor(),
        lambda T: T.ToPILImage(),
        lambda T: T.RandomApply([T.ToTensor()]),
        lambda T: T.RandomChoice([T.ToTensor()]),
    ],
)
def test_text_is_torchvisions(tv, make):
    assert repr(make(T)) == repr(make(tv.transforms))


def test_all_of_torchvisions_names_that_are_promised(tv):
    lacking = set(tv.transforms.transforms.__all__) - set(T.__all__)
    assert lacking == {"ElasticTransform"}
    assert set(T.__all__) - {"functional"} <= {*dir(tv.transforms)}


BAD = [
    (lambda x: F.resize(x, (1, 2, 3)), ValueError, "1 or 2 element"),
    (lambda x: F.resize(x, 0), ValueError, r"resize: from \(4, 5\) to \(0, 0\)"),
    (lambda x: F.resize(x, 4, max_size=4), ValueError, "must be strictly greater"),
    (lambda x: F.resize(x, 3, "bilinear"), TypeError, "should be a InterpolationMode"),
    (lambda x: F.resize(x, 3, 9), ValueError, "interpolation is 9"),
    (lambda x: F.resize(x, 3, T.InterpolationMode.LANCZOS), ValueError, "'lanczos' is unsupported with Tensor input"),
    (lambda x: F.rotate(x, 3, T.InterpolationMode.BICUBIC), ValueError, "'bicubic' is unsupported with Tensor input"),
    (
        lambda x: F.resize(np.zeros((3, 4)), 2),
        TypeError,
        "img should be PIL Image or Tensor. Got <class 'numpy.ndarray'>",
    ),
    (lambda x: F.hflip(None), TypeError, "img should be PIL Image or Tensor"),
    (lambda x: F.hflip(x[0, 0]), TypeError, "Tensor is not a torch image: 1 dims"),
    (lambda x: F.pad(x, (1, 2, 3)), ValueError, "not a 3 element tuple"),
    (lambda x: F.pad(x, "a"), TypeError, "inappropriate padding"),
    (lambda x: F.pad(x, 1, padding_mode="wrap"), ValueError, "Padding mode should be"),
    (lambda x: F.five_crop(x, 9), ValueError, r"crop size \(9, 9\) is bigger than input size \(4, 5\)"),
    (lambda x: F.adjust_hue(x, 0.6), ValueError, "is not in"),
    (lambda x: F.adjust_brightness(x, -1), ValueError, "not non-negative"),
    (lambda x: F.adjust_contrast(x[:2], 1), TypeError, r"channel values are \[1, 3\], but found 2"),
    (lambda x: F.equalize(x.float()), TypeError, "Only torch.uint8"),
    (lambda x: F.posterize(x, 9), ValueError, "between 0 and 8"),
    (lambda x: F.gaussian_blur(x, 4), ValueError, "odd and positive"),
    (lambda x: F.gaussian_blur(x, 9), ValueError, "less than twice"),
    (lambda x: F.gaussian_blur(x, 3, 0.0), ValueError, "sigma should have positive"),
    (lambda x: F.affine(x, 0, [0], 1.0, 0.0), ValueError, "length 2"),
    (lambda x: F.affine(x, 0, [0, 0], 0, 0.0), ValueError, "scale should be positive"),
    (lambda x: F.rotate(x, 5, fill=[1, 2]), ValueError, r"\(2 != 3\)"),
    (lambda x: F.perspective(x, [[0, 0]], [[0, 0]]), ValueError, "exactly four corners"),
    (lambda x: F.erase(None, 0, 0, 1, 1, 0), TypeError, "should be Tensor Image"),
    (lambda x: F.to_grayscale(x), TypeError, "Input should be PIL Image"),
    (lambda x: T.RandomRotation(-1), ValueError, "must be positive"),
    (lambda x: T.RandomRotation((1, 2, 3)), ValueError, "sequence of length 2"),
    (lambda x: T.RandomAffine(1, (2, 0)), ValueError, "between 0 and 1"),
    (lambda x: T.RandomAffine(1, shear=(1, 2, 3)), ValueError, "length 2 or 4"),
    (lambda x: T.GaussianBlur(2), ValueError, "odd and positive"),
    (lambda x: T.GaussianBlur(3, (2, 1)), ValueError, "form"),
    (lambda x: T.RandomErasing(2), ValueError, "between 0 and 1"),
    (lambda x: T.RandomErasing(value="a"), ValueError, "'random'"),
    (lambda x: T.CenterCrop((1, 2, 3)), ValueError, "only two dimensions"),
    (lambda x: T.RandomChoice([T.ToTensor()], [1, 2]), ValueError, "2 weights"),
]


@pytest.mark.parametrize("call, error, text", BAD)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call(pydist.from_numpy(array(3, 4, 5)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "int64"])
def test_other_types_keep_their_type(dtype):
    x = (pydist.from_numpy(array(3, 6, 7, dtype=np.float32)) * 2).to(getattr(pydist, dtype))
    assert (F.hflip(F.hflip(x)) == x).all() and F.hflip(x).dtype == x.dtype
    for call in (F.invert, lambda x: F.resize(x, 4), lambda x: F.rotate(x, 20), lambda x: F.gaussian_blur(x, 3)):
        assert call(x).dtype == x.dtype
    if x.is_floating_point():
        wide = F.gaussian_blur(x.float(), 3)
        assert (F.gaussian_blur(x, 3).float() - wide).abs().max().item() < 0.02


def test_empty_images_raise_and_do_not_crash():
    for shape in ((3, 0, 5), (0, 4, 4), (3, 4, 0)):
        x = pydist.zeros(*shape)
        for call in (
            F.hflip,
            lambda x: F.crop(x, 0, 0, 2, 2),
            lambda x: F.resize(x, (2, 3)),
            lambda x: F.rotate(x, 10),
            lambda x: F.adjust_contrast(x, 0.5),
            lambda x: F.gaussian_blur(x, 3),
            F.autocontrast,
            lambda x: F.equalize(x.to(pydist.uint8)),
            utils.make_grid,
        ):
            try:
                assert isinstance(call(x), pydist.Tensor)
            except (ValueError, TypeError, IndexError):
                pass


# v2, grids, files.


def test_v2(pil):
    photo = pil.fromarray(array(6, 7, 3))
    pipeline = v2.Compose(
        [v2.ToImage(), v2.RandomHorizontalFlip(0.0), v2.ToDtype(pydist.float32, scale=True), v2.ToPureTensor()]
    )
    assert np.array_equal(pipeline(photo).numpy(), F.to_tensor(photo).numpy())
    assert v2.ToDtype(pydist.float32)(v2.ToImage()(array(2, 2, 3))).numpy().max() > 1
    assert v2.Identity()(photo) is photo and v2.functional is F
    assert vision.transforms.v2 is v2


@pytest.mark.parametrize(
    "shape, options",
    [
        ((5, 3, 4, 6), {}),
        ((5, 3, 4, 6), {"nrow": 2, "padding": 1, "pad_value": 0.5}),
        ((7, 1, 3, 3), {"nrow": 3, "normalize": True}),
        ((4, 3, 3, 3), {"normalize": True, "scale_each": True}),
        ((4, 3, 3, 3), {"normalize": True, "value_range": (-1, 1)}),
        ((1, 3, 4, 4), {}),
        ((3, 4, 4), {}),
        ((1, 4, 4), {"normalize": True}),
        ((4, 5), {}),
        ((9, 3, 2, 2), {"padding": 0}),
    ],
)
def test_make_grid_against_torchvision(tv, torch, shape, options):
    image = array(*shape, dtype=np.float32) * 3 - 1
    ref = tv.utils.make_grid(torch.from_numpy(image), **options)
    close(utils.make_grid(pydist.from_numpy(image), **options), ref, 1e-6)


def test_make_grid_by_hand():
    images = pydist.stack([pydist.full((1, 1, 1), float(i)) for i in range(3)])
    grid = utils.make_grid(images, nrow=2, padding=1, pad_value=9.0)
    assert grid.shape == (3, 5, 5)
    assert grid[1].tolist() == [[9, 9, 9, 9, 9], [9, 0, 9, 1, 9], [9, 9, 9, 9, 9], [9, 2, 9, 9, 9], [9, 9, 9, 9, 9]]
    assert (utils.make_grid([images[0], images[1], images[2]], nrow=2, padding=1, pad_value=9.0) == grid).all()
    assert utils.make_grid(images, normalize=True)[0].max().item() == 1.0 and images.max().item() == 2.0
    for bad, error in ((3, TypeError), ([3], TypeError), (pydist.zeros(3), ValueError), ([], Exception)):
        with pytest.raises(error):
            utils.make_grid(bad)
    with pytest.raises(TypeError, match="value_range has to be a tuple"):
        utils.make_grid(images, normalize=True, value_range=3)
    with pytest.raises(TypeError, match="unexpected arguments rows"):
        utils.make_grid(images, rows=2)


def test_save_image(pil, tmp_path):
    x = pydist.from_numpy(array(3, 4, 5, dtype=np.float32))
    utils.save_image(x, tmp_path / "one.png")
    saved = np.asarray(pil.open(tmp_path / "one.png"))
    assert np.array_equal(
        saved, np.floor(np.moveaxis(x.numpy(), 0, -1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)
    )
    utils.save_image(pydist.stack([x] * 5).requires_grad_(), str(tmp_path / "grid.png"), nrow=3, normalize=True)
    assert pil.open(tmp_path / "grid.png").size == (3 * 7 + 2, 2 * 6 + 2)
    utils.save_image(pydist.tensor([[[-1.0, 2.0]]]), tmp_path / "clamped.png")
    assert np.asarray(pil.open(tmp_path / "clamped.png")).tolist() == [[[0] * 3, [255] * 3]]
    with open(tmp_path / "file", "wb") as file:
        utils.save_image(x, file, format="png")
    assert np.array_equal(np.asarray(pil.open(tmp_path / "file")), saved)


def test_image_files(pil, tmp_path):
    from pydist.vision import io

    x = pydist.from_numpy(array(3, 6, 7))
    io.write_png(x, tmp_path / "a.png")
    assert (io.read_image(tmp_path / "a.png") == x).all()
    assert io.read_image(str(tmp_path / "a.png"), io.ImageReadMode.GRAY).shape == (1, 6, 7)
    assert io.read_image(tmp_path / "a.png", "RGB_ALPHA").shape == (4, 6, 7)
    assert (io.decode_image(io.read_file(tmp_path / "a.png")) == x).all()
    io.write_jpeg(x[:1], tmp_path / "a.jpg", quality=90)
    assert io.read_image(tmp_path / "a.jpg").shape == (1, 6, 7)
    (tmp_path / "bad.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(RuntimeError, match="bad.png: not an image, or a damaged one"):
        io.read_image(tmp_path / "bad.png")
    with pytest.raises(RuntimeError, match="decode_image: not an image"):
        io.decode_image(pydist.zeros(9, dtype=pydist.uint8))
    with pytest.raises(FileNotFoundError):
        io.read_image(tmp_path / "none.png")
    with pytest.raises(RuntimeError, match=r"PNG: .*float32 \(3, 2, 2\)"):
        io.encode_png(pydist.zeros(3, 2, 2))
    with pytest.raises(ValueError, match="between 1 and 100"):
        io.encode_jpeg(x, 0)


# Importing.


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vision_is_imported_on_use_and_pillow_later():
    run(
        """
import sys, pydist
assert not any(name.startswith(("pydist.vision", "PIL", "numpy")) for name in sys.modules)
pydist.vision.__version__
assert "PIL" not in sys.modules and "numpy" not in sys.modules
pydist.vision.datasets.MNIST, pydist.vision.transforms.functional.resize, pydist.vision.models.resnet18
pydist.vision.utils.make_grid, pydist.vision.io.read_image
assert "PIL" not in sys.modules
assert {"datasets", "models", "transforms", "utils", "io"} <= set(dir(pydist.vision))
assert pydist.vision.get_image_backend() == "PIL"
"""
    )


def test_without_pillow_the_error_says_what_to_install():
    text = run(
        """
import sys
sys.modules["PIL"] = None
import pydist
from pydist.vision import transforms as T, utils
x = T.Compose([T.RandomCrop(2), T.Normalize([0.5], [0.5])])(pydist.zeros(1, 4, 4))
assert x.shape == (1, 2, 2)
for call in (lambda: T.ToPILImage()(x), lambda: utils.save_image(x, "x.png")):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    )
    assert text.count("pip install pillow") == 2


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="module 'pydist.vision' has no attribute 'nothing'"):
        vision.nothing
    with pytest.raises(ValueError, match="Invalid backend 'accimage'"):
        vision.set_image_backend("accimage")
