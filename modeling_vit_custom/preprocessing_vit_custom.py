"""What one call of the image processor does: its pictures, one by one and in threads, through the steps that its options say."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor
from torchvision.transforms.v2 import functional as tvF
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import SizeDict, get_image_size_for_max_height_width
from transformers.utils import logging

from .fetching_vit_custom import name_of
from .pictures_vit_custom import MAX_PIXELS, MODES, load_picture, open_picture
from .pixels_vit_custom import UNIT, multiply_add, pixels_of_array, pixels_of_picture, resize, to_tensor


logger = logging.get_logger(__name__)


SINGLE = (str, bytes, bytearray, memoryview, os.PathLike, dict, Tensor, Image.Image)
MAX_DEPTH = 32


def named_pictures(images: Any, name: str | None = None, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each picture of a nesting of lists, or of other things to iterate over, with what an error calls it."""
    is_array = isinstance(images, np.ndarray) and not (images.dtype == object and images.ndim == 1)
    if not isinstance(images, Iterable) or isinstance(images, SINGLE) or is_array or hasattr(images, "read"):
        own = name_of(images)
        yield own if name is None else name if own == "picture" else f"{name} ({own})", images
        return
    if depth > MAX_DEPTH:
        raise ValueError(f"images: lists are nested more than {MAX_DEPTH} deep")
    for index, image in enumerate(images):
        yield from named_pictures(image, f"{name or 'images'}[{index}]", depth + 1)


class Steps:
    """What a call does to each picture, decided once from its `options`: the processor's fields and what the call overrides."""

    def __init__(self, options: dict[str, Any]):
        self.channels, self.convert = channel_count(options["image_mean"]), options["do_convert_rgb"]
        self.background, self.max_pixels = options["background"], options["max_pixels"]
        self.layout, self.is_scaled = options["input_data_format"], not options["do_rescale"]
        self.resample, self.antialias = Resampling(options["resample"]), options["antialias"]
        size, crop_pct = options["size"], options["crop_pct"]
        self.new_shape = partial(resized_shape, size, crop_pct) if options["do_resize"] else lambda *shape: shape
        crop = size if crop_pct is not None else options["crop_size"] if options["do_center_crop"] else None
        self.crop = None if crop is None else (crop.height, crop.width)
        is_fixed = options["do_resize"] and size.height and size.width
        self.floors_crop = options["crop_rounding"] == "down"
        self.shape = self.crop or ((size.height, size.width) if is_fixed else None)
        self.scale, self.bias = scale_and_bias(options)
        is_of_unit = max(map(abs, numbers(options["image_mean"]))) <= 1
        self.expects_unit = self.is_scaled and options["do_normalize"] and is_of_unit

    def __call__(self, name: str, source: Any, out: Tensor | None = None) -> Tensor:
        """The pixels (n, C, height, width) of one source, into `out` if given."""
        try:
            pixels = self.of_array(source) if isinstance(source, (np.ndarray, Tensor)) else self.of_file(name, source)
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(name) else f"{name}: {text}") from error
        pixels = pixels if self.crop is None else centre_crop(pixels, *self.crop, self.floors_crop)
        if self.scale is None:
            pixels = pixels if self.is_scaled or pixels.dtype == torch.uint8 else pixels.round().to(torch.uint8)
            return pixels.clone(memory_format=torch.contiguous_format) if out is None else out.copy_(pixels)
        if self.expects_unit and pixels.dtype == torch.uint8:
            logger.warning_once(
                "pixels 0..255 are normalised with a mean and deviation for 0..1: do_rescale=False is set"
            )
        return multiply_add(pixels, self.scale, self.bias, out)

    def of_array(self, array: np.ndarray | Tensor) -> Tensor:
        pixels = pixels_of_array(
            array, self.channels, self.layout, self.is_scaled, bool(self.convert), self.background
        )
        pixels = resize(pixels, self.new_shape(*pixels.shape[-2:]), self.resample, self.antialias)
        return pixels if self.is_scaled or pixels.dtype == torch.uint8 else pixels.clamp(0, 255)

    def of_file(self, name: str, source: Any) -> Tensor:
        if self.convert:
            picture = load_picture(source, name, self.channels, self.background, self.max_pixels)
        else:
            picture = open_picture(source, name, self.max_pixels)
            if picture.mode != MODES.get(self.channels):
                raise ValueError(f"mode {picture.mode!r} is not of {self.channels} channels, and do_convert_rgb=False")
        shape = self.new_shape(picture.height, picture.width)
        if self.resample != Resampling.BILINEAR and picture.mode != "RGBA":  # which Pillow would weigh by opacity
            picture = picture.resize(shape[::-1], self.resample)
        return resize(pixels_of_picture(picture), shape, self.resample, self.antialias)[:, : self.channels]


def centre_crop(pixels: Tensor, height: int, width: int, floors: bool) -> Tensor:
    """The middle of pictures, padded with zeros where they are smaller; half a pixel rounds to even or, `floors`, down."""
    if not floors:
        return tvF.center_crop(pixels, [height, width])
    rows, columns = (max(0, new - side) for side, new in zip(pixels.shape[-2:], (height, width), strict=True))
    pixels = tvF.pad(pixels, [columns // 2, rows // 2, (columns + 1) // 2, (rows + 1) // 2])
    top, left = ((side - new) // 2 for side, new in zip(pixels.shape[-2:], (height, width), strict=True))
    return pixels[..., top : top + height, left : left + width]


def resized_shape(size: SizeDict, crop_pct: float | None, height: int, width: int) -> tuple[int, int]:
    """
    (height, width) that a picture of `height` and `width` is resized to.

    Raises:
        `ValueError`: if that has more than `MAX_PIXELS` pixels.
    """
    if crop_pct is None and size.height and size.width:
        return size.height, size.width
    if crop_pct is not None:
        covered = tuple(math.floor(side / crop_pct) for side in (size.height, size.width))
        ratio = min(height / covered[0], width / covered[1])
        is_square = covered[0] == covered[1]
        shape = (
            get_size_with_aspect_ratio((height, width), covered[0]) if is_square else (height / ratio, width / ratio)
        )
    elif size.shortest_edge:
        shape = get_size_with_aspect_ratio((height, width), size.shortest_edge, size.longest_edge)
    else:
        longest = size.longest_edge
        shape = get_image_size_for_max_height_width(
            (height, width), size.max_height or longest, size.max_width or longest
        )
    new_height, new_width = (max(1, round(side)) for side in shape)
    if new_height * new_width > MAX_PIXELS:
        raise ValueError(
            f"{width} x {height} pixels would become {new_width} x {new_height}, too large: its sides are too unlike"
        )
    return new_height, new_width


def scale_and_bias(options: dict[str, Any]) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """
    The numbers (C, 1, 1) that rescaling and normalising multiply pixels 0..255 with and add; `None` if that changes nothing:
    neither is done, or rescaling alone, by 1.
    """
    factor = options["rescale_factor"] if options["do_rescale"] else 1.0
    if factor == 1 and not options["do_normalize"]:
        return None, None
    mean, deviation = (options["image_mean"], options["image_std"]) if options["do_normalize"] else (0.0, 1.0)
    mean, deviation = (
        torch.tensor(numbers(value), dtype=torch.float64, device="cpu")[:, None, None] for value in (mean, deviation)
    )
    return (factor / deviation).float(), (-mean / deviation).float()


def run(steps: Steps, pictures: list[tuple[str, Any]]) -> Tensor | list[Tensor]:
    """All pictures through `steps`, in torch's number of threads: (B, C, height, width), or a list where shapes may differ."""
    if not pictures:
        raise ValueError("images is empty: give at least one picture")
    names, sources = zip(*pictures, strict=True)
    arrays = [source for source in sources if isinstance(source, (np.ndarray, Tensor))]
    on_cpu = all(getattr(array.device, "type", array.device) == "cpu" for array in arrays)
    counts = [source.shape[0] if getattr(source, "ndim", 0) == 4 else 1 for source in sources]
    has_room = steps.shape and on_cpu and not (steps.scale is None and steps.is_scaled)
    dtype, batch = torch.float32 if steps.scale is not None else torch.uint8, None
    if has_room:
        batch = torch.empty(sum(counts), steps.channels, *steps.shape, dtype=dtype, device="cpu")
    slots = [None] * len(sources) if batch is None else batch.split(counts)
    found = (
        map_in_threads(steps, names, sources, slots)
        if are_independent(sources)
        else list(map(steps, names, sources, slots))
    )
    check_one_scale(steps, pictures)
    return [picture for part in found for picture in part] if batch is None else batch


def map_in_threads(function: Callable, *arguments: Iterable, threads: int | None = None) -> list:
    """`map`, in `threads` threads or as many as `torch.get_num_threads()` says."""
    threads = threads or torch.get_num_threads()
    if threads == 1:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, *arguments))


def check_one_scale(steps: Steps, pictures: list[tuple[str, Any]]) -> None:
    """Raises `ValueError` for floats of 0..1 beside floats of 0..255, among which a dark picture would pass for the former."""
    tops = {}
    for name, source in pictures:
        if not steps.is_scaled and "float" in str(getattr(source, "dtype", "")):
            top = to_tensor(source).max().item()
            if top > 0:
                tops[top <= UNIT] = name
    if len(tops) > 1:
        raise ValueError(
            f"{tops[True]} holds floats of 0..1, {tops[False]} of 0..255: scale them alike, or pass them apart"
        )


def are_independent(sources: tuple[Any, ...]) -> bool:
    """Whether no two sources read the same file handle or picture, which Pillow can't do in two threads."""
    plain = (str, bytes, bytearray, memoryview, os.PathLike, dict, np.ndarray, Tensor)
    handles = [id(getattr(source, "fp", None) or source) for source in sources if not isinstance(source, plain)]
    return len(set(handles)) == len(handles)


def numbers(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return (value,) if isinstance(value, float) else tuple(value)


def channel_count(image_mean: float | tuple[float, ...]) -> int:
    """The channels of a model whose pixels have this mean: one number alone stands for RGB."""
    return 3 if isinstance(image_mean, float) else len(image_mean)
