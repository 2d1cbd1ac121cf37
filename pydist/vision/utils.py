"""Grids of images, and images in files."""

import math

import pydist
from pydist._grad_mode import no_grad


def _clamped(tensor, low, high):
    bounds = (pydist.tensor(float(value), dtype=tensor.dtype, device=tensor.device) for value in (low, high))
    return tensor.maximum(next(bounds)).minimum(next(bounds))


def _normalized(tensor, value_range):
    """`tensor`, scaled from value_range, or from its own smallest and largest value, to [0, 1]."""
    low, high = value_range or (float(tensor.min()), float(tensor.max()))
    return (_clamped(tensor, low, high) - low) / max(high - low, 1e-5)


@no_grad()
def make_grid(tensor, nrow=8, padding=2, normalize=False, value_range=None, scale_each=False, pad_value=0.0, **kwargs):
    """One image [3, H', W'] from images [B, C, H, W] (or a list of [C, H, W], or one image), with `nrow` images in a
    row and `padding` pixels of `pad_value` around each.

    normalize: scales values from value_range (low, high), or from the smallest and the largest, to [0, 1], for all
    images together or (scale_each) for each one. One channel becomes three. Raises TypeError for objects that are not
    tensors.

    >>> make_grid(pydist.zeros(5, 3, 4, 4), nrow=4).shape
    pydist.Size([3, 14, 26])
    """
    if kwargs:
        value_range = kwargs.pop("range", value_range)  # value_range's name before torchvision 0.12
        if kwargs:
            raise TypeError(f"make_grid: unexpected arguments {', '.join(kwargs)}")
    if not isinstance(tensor, pydist.Tensor):
        if not isinstance(tensor, list) or not all(isinstance(image, pydist.Tensor) for image in tensor):
            raise TypeError(f"tensor or list of tensors expected, got {type(tensor)}")
        tensor = pydist.stack(tensor)
    if not 2 <= tensor.dim() <= 4:
        raise ValueError(f"make_grid: got {tensor.dim()} dims (expected [B, C, H, W], [C, H, W] or [H, W])")
    if value_range is not None and not isinstance(value_range, tuple):
        raise TypeError("value_range has to be a tuple (min, max) if specified. min and max are numbers")
    is_one = tensor.dim() < 4
    images = tensor.detach().reshape(*(1,) * (4 - tensor.dim()), *tensor.shape)
    if images.shape[1] == 1:
        images = pydist.cat((images,) * 3, 1)
    if images.numel() == 0:
        raise ValueError(f"make_grid: the tensor has shape {tuple(tensor.shape)} (expected at least one pixel)")
    if normalize:
        each = range(len(images)) if scale_each else ()
        images = (
            pydist.stack([_normalized(images[i], value_range) for i in each])
            if each
            else _normalized(images, value_range)
        )
    if is_one or len(images) == 1:
        return images[0]
    count, channels, height, width = images.shape
    columns = min(nrow, count)
    rows = math.ceil(count / columns)
    height, width = height + padding, width + padding
    grid = pydist.full(
        (channels, rows * height + padding, columns * width + padding),
        pad_value,
        dtype=images.dtype,
        device=images.device,
    )
    for i in range(count):
        top, left = i // columns * height + padding, i % columns * width + padding
        grid[:, top : top + height - padding, left : left + width - padding] = images[i]
    return grid


@no_grad()
def save_image(tensor, fp, format=None, **kwargs):
    """Writes make_grid(tensor, **kwargs), with values in [0, 1], to the file or path `fp` as `format` (default: from
    the name)."""
    from pydist.vision._pillow import pillow

    grid = make_grid(tensor, **kwargs)
    pixels = _clamped(grid * 255.0 + 0.5, 0, 255).permute(1, 2, 0).to(pydist.uint8).contiguous().cpu().numpy()
    pillow().fromarray(pixels).save(fp, format=format)
