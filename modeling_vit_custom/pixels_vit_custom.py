"""
Pixels: pictures, arrays and tensors as tensors of one kind, and what is done to them on the way to a model.

One kind means (n, C, H, W) of n pictures, uint8 or float32, black at 0 and white at 255. Pictures of Pillow are read where they
lie and, with channels last, resized by torch's vectorised kernel: bilinear is four times as fast as Pillow's own and one
grey level away at most (two in one value of millions). The other filters overshoot, so that the order of their two passes shows; they are Pillow's own.
"""

import ctypes
from contextlib import suppress

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor
from torchvision.transforms.v2 import functional as tvF

from .pictures_vit_custom import WHITE


# ITU-R 601, as Pillow makes grey of colours.
LUMA = (0.299, 0.587, 0.114)


# ---------------------------------------------------------------------------------------------------------------------
# Pictures


class ArrowArray(ctypes.Structure):
    """The array of the Arrow C data interface."""


ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def pixels_of_picture(picture: Image.Image) -> Tensor:
    """
    A picture of mode L, RGB or RGBA as uint8 (1, channels, H, W), channels last in memory. To be read only: it may be the
    picture's own memory, and RGB has a fourth channel then, a filler.
    """
    pixels = None
    if picture.mode == "RGB":
        with suppress(AttributeError, ValueError):  # a Pillow without the export; a picture that is not in one piece
            pixels = torch.frombuffer(memory_of(picture), dtype=torch.uint8)
    pixels = torch.from_numpy(np.array(picture)) if pixels is None else pixels
    return pixels.view(1, picture.height, picture.width, -1).movedim(-1, 1)


def memory_of(picture: Image.Image) -> ctypes.Array:
    """The bytes of an RGB picture, four for each pixel, without a copy; they keep what they lie in alive."""
    _, capsule = picture.__arrow_c_array__()
    array = ctypes.cast(capsule_pointer(capsule, b"arrow_array"), ctypes.POINTER(ArrowArray)).contents
    address = array.children[0].contents.buffers[1]
    memory = (ctypes.c_uint8 * (picture.height * picture.width * 4)).from_address(address)
    memory.owner = capsule
    return memory


# ---------------------------------------------------------------------------------------------------------------------
# Arrays and tensors


def pixels_of_array(
    array: np.ndarray | Tensor,
    channels: int,
    layout: str | None = None,
    is_scaled: bool = False,
    convert: bool = True,
    background: tuple[int, int, int] = WHITE,
) -> Tensor:
    """
    An array or tensor of one picture, (H, W), (H, W, c) or (c, H, W), or of n, (n, H, W, c) or (n, c, H, W), as
    (n, `channels`, H, W).

    c is `channels` or, if `convert` and that is 1 or 3, also 1 (grey), 3 (RGB) or 4 (RGBA, laid on `background`). Values are
    uint8, bool, other whole numbers 0..255, uint16 of its full range, or floats 0..1 or 0..255; with `is_scaled` any finite
    ones, taken as they are, without opacity. `layout` is "channels_first" or "channels_last", needed where the shape allows both.

    Raises:
        `ValueError`: for another shape or dtype, and for values outside these ranges.
    """
    pixels = to_tensor(array)
    if pixels.ndim not in (2, 3, 4) or not pixels.numel():
        raise ValueError(
            f"shape {tuple(array.shape)} is no picture's: expected 2, 3 or 4 dimensions, none of them 0 (empty)"
        )
    laid = {4} if not is_scaled or pixels.dtype == torch.uint8 else set()  # opacity of an unknown scale can't be
    allowed = {1, 3, *laid} if convert and channels in (1, 3) else {channels}
    pixels = to_channels_first(pixels, allowed, layout)
    pixels = as_they_are(pixels) if is_scaled else to_levels(pixels, is_uint16(array))
    return to_channel_count(pixels, channels, background)


# What torch can compute with in place of dtypes that it only stores.
WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


def to_tensor(array: np.ndarray | Tensor) -> Tensor:
    """Without gradient, of a dtype that torch computes with."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.is_quantized or array.is_meta:
            raise ValueError("a tensor that is sparse, quantised or on the meta device holds no pixels")
        if array.is_complex():
            raise ValueError(f"dtype {array.dtype} (complex) holds no pixels")
        array = array.detach().as_subclass(Tensor)
        is_float8 = array.is_floating_point() and array.itemsize == 1
        return array.to(torch.float32 if is_float8 else WIDER.get(array.dtype, array.dtype))
    if array.dtype.kind not in "buif" or isinstance(array, np.ma.MaskedArray):
        masked = "masked array" if isinstance(array, np.ma.MaskedArray) else f"dtype {array.dtype}"
        raise ValueError(f"{masked} holds no pixels: expected uint8, uint16, another number or bool")
    known = {"u": {1: "uint8", 2: "int32"}, "i": {}, "f": {2: "float16", 4: "float32"}, "b": {1: "bool"}}
    wide = {"u": "int64", "i": "int64", "f": "float64"}
    dtype = known[array.dtype.kind].get(array.dtype.itemsize) or wide[array.dtype.kind]
    return torch.from_numpy(np.array(array, dtype=dtype, order="C"))


def is_uint16(array: np.ndarray | Tensor) -> bool:
    if isinstance(array, Tensor):
        return array.dtype == torch.uint16
    return (array.dtype.kind, array.dtype.itemsize) == ("u", 2)


def to_channels_first(pixels: Tensor, allowed: set[int], layout: str | None) -> Tensor:
    """(n, c, H, W), with c one of `allowed`."""
    shape, counts = tuple(pixels.shape), " or ".join(map(str, sorted(allowed)))
    if pixels.ndim == 2:
        pixels, layout = pixels[None], "channels_first"
    first, last = (pixels.shape[axis] in allowed for axis in (-3, -1))
    if layout is None and first and last:
        raise ValueError(
            f"the channel axis of shape {shape} is ambiguous: pass input_data_format='channels_first' or 'channels_last'"
        )
    is_last = not first if layout is None else layout == "channels_last"
    if not (last if is_last else first):
        raise ValueError(
            f"shape {shape} has no axis of {counts} channels{f' where {layout} says' if layout else ''}; a batch of grey pictures "
            "is (n, height, width, 1)"
        )
    pixels = pixels.movedim(-1, -3) if is_last else pixels
    return pixels if pixels.ndim == 4 else pixels[None]


def as_they_are(pixels: Tensor) -> Tensor:
    """Values that need no scaling: uint8 or finite float32."""
    if pixels.dtype == torch.uint8:
        return pixels
    pixels = pixels.to(torch.float32)
    bounds_of(pixels)
    return pixels


def to_levels(pixels: Tensor, is_16_bit: bool) -> Tensor:
    """
    Values of 0..255: uint8, or float32 where they lie between levels. Those of an 8-bit picture in another dtype, float16
    at the coarsest, become its levels again, so that all dtypes of a picture give the same. Floats may be beyond their range
    by half a level, as computing leaves them.
    """
    if pixels.dtype in (torch.uint8, torch.bool):
        return pixels if pixels.dtype == torch.uint8 else pixels.to(torch.uint8) * 255
    low, high = bounds_of(pixels)
    is_float, top = pixels.is_floating_point(), 65535 if is_16_bit else 255
    is_unit = is_float and high <= UNIT
    slack = 0.5 * is_float / (255 if is_unit else 1)
    if low < -slack or high > top + slack:
        raise ValueError(
            f"values {low:g}..{high:g} are out of range: expected finite ones, none negative, of 0..{top}, or floats of 0..1"
        )
    if is_16_bit and 0 < high <= 255:
        raise ValueError(
            f"values 0..{high:g} of uint16 are ambiguous: give uint8, or floats of 0..1 (divided by 65535)"
        )
    if is_float and UNIT < high < 2:
        raise ValueError(f"floats 0..{high:g} are ambiguous: of 0..1 too large, of 0..255 all but black")
    values = (pixels.to(torch.float32) * (1 / 257 if is_16_bit else 255 if is_unit else 1)).clamp(0, 255)
    levels = values.round()
    return levels.to(torch.uint8) if (values - levels).abs().max() < 0.1 else values


# The greatest float of a picture whose white is 1, with half a level beyond it.
UNIT = 1 + 0.5 / 255


def bounds_of(pixels: Tensor) -> tuple[float, float]:
    """The least and the greatest value; an error unless all are finite, and no sum of them overflows."""
    low, high = (value.item() for value in pixels.aminmax())
    if not -1e30 < low <= high < 1e30:
        raise ValueError("NaN or infinite values: not finite")
    return low, high


def to_channel_count(pixels: Tensor, channels: int, background: tuple[int, int, int]) -> Tensor:
    """(n, `channels`, H, W) of (n, c, H, W) in grey, RGB or RGBA."""
    if pixels.shape[1] == channels:
        return pixels
    dtype = pixels.dtype
    if pixels.shape[1] == 4:
        ground = torch.tensor(background, device=pixels.device).view(3, 1, 1)
        opacity = pixels[:, 3:].to(torch.float32) / 255
        pixels = pixels[:, :3] * opacity + ground * (1 - opacity)
    if channels == 1 and pixels.shape[1] == 3:
        pixels = (pixels * torch.tensor(LUMA, device=pixels.device).view(3, 1, 1)).sum(dim=1, keepdim=True)
    return (pixels.round().to(dtype) if dtype == torch.uint8 else pixels).expand(-1, channels, -1, -1)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes and values


def resize(pixels: Tensor, size: tuple[int, int], resample: Resampling, antialias: bool = True) -> Tensor:
    """
    (n, C, H, W) in another size, as Pillow does with each channel by itself; on another device than the CPU, bicubic is
    torch's. Filters that overshoot are clamped between the two passes of levels, not of floats. Without `antialias`,
    bilinear takes the four nearest pixels however much smaller the picture becomes, as `tf.image.resize` does.
    """
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    if resample == Resampling.NEAREST:
        rows, columns = (nearest(*sides).to(pixels.device) for sides in zip(pixels.shape[-2:], size, strict=True))
        return pixels[..., rows, :][..., columns]
    on_cpu = pixels.device.type == "cpu"
    if resample == Resampling.BILINEAR and on_cpu and pixels.dtype == torch.uint8:
        return F.interpolate(pixels, size, mode="bilinear", antialias=antialias)
    if resample == Resampling.BILINEAR or (resample == Resampling.BICUBIC and not on_cpu):
        return tvF.resize(pixels, list(size), tvF.InterpolationMode(resample.name.lower()), antialias=antialias)
    if not on_cpu:
        raise ValueError(
            f"resample={resample.name} needs pictures on the CPU; on {pixels.device} there are 0, 2 and 3"
        )
    planes = [Image.fromarray(plane).resize(size[::-1], resample) for plane in pixels.flatten(0, 1).numpy()]
    return torch.from_numpy(np.stack([np.asarray(plane) for plane in planes])).unflatten(0, pixels.shape[:2])


def nearest(length: int, new_length: int) -> Tensor:
    """The indices that Pillow takes: it adds up steps in double precision."""
    step = length / new_length
    return torch.from_numpy(np.cumsum([step / 2] + [step] * (new_length - 1)).astype(np.int64).clip(max=length - 1))


def multiply_add(pixels: Tensor, scale: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """
    pixels * scale + bias of (n, C, H, W) in float32, into `out` if given. On the CPU picture by picture, each of which fits the
    cache, and by numpy, which works in the thread that calls: torch's own threads would fight with those that decode.
    """
    out = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device) if out is None else out
    if out.device.type != "cpu":
        return torch.mul(pixels, scale.to(out.device), out=out).add_(bias.to(out.device))
    scale, bias = scale.numpy(), bias.numpy()
    for values, levels in zip(out.numpy(), pixels.numpy(), strict=True):
        values[...] = levels
        values *= scale
        values += bias
    return out
