"""What one call of the image processor does: its pictures, one by one and in threads, through the steps that its options say."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor
from torchvision.transforms.v2 import functional as tvF
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import SizeDict, get_image_size_for_max_height_width

from .pictures_vit_custom import MAX_PIXELS, MODES, load_picture, name_of, open_picture
from .pixels_vit_custom import multiply_add, pixels_of_array, pixels_of_picture, resize


def named_pictures(images: Any, name: str | None = None) -> Iterator[tuple[str, Any]]:
    """Each picture of a nesting of lists, with what an error calls it."""
    is_scalar = isinstance(images, (str, bytes, bytearray, memoryview)) or hasattr(images, "read")
    if isinstance(images, (Sequence, Iterator)) and not is_scalar:
        for index, image in enumerate(images):
            yield from named_pictures(image, f"{name or 'images'}[{index}]")
    else:
        own = name_of(images)
        yield own if name is None else name if own == "picture" else f"{name} ({own})", images


class Steps:
    """What a call does to each picture, decided once from its `options`: the processor's fields and what the call overrides."""

    def __init__(self, options: dict[str, Any]):
        self.options = options
        self.channels = channel_count(options["image_mean"])
        size, crop, crop_pct = options["size"], options["crop_size"], options["crop_pct"]
        self.new_shape = shape_rule(size, crop_pct) if options["do_resize"] else lambda height, width: (height, width)
        self.crop = None
        if crop_pct is not None or options["do_center_crop"]:
            self.crop = (size.height, size.width) if crop_pct is not None else (crop.height, crop.width)
        is_fixed = options["do_resize"] and size.height and size.width
        self.shape = self.crop or ((size.height, size.width) if is_fixed else None)
        self.scale, self.bias = scale_and_bias(options)

    def __call__(self, name: str, source: Any, out: Tensor | None = None) -> Tensor:
        """The pixels (n, C, height, width) of one source, into `out` if given."""
        try:
            pixels = self.resized(name, source)
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(name) else f"{name}: {text}") from error
        pixels = pixels if self.crop is None else tvF.center_crop(pixels, list(self.crop))
        if self.scale is None:
            return pixels.clone(memory_format=torch.contiguous_format)
        return multiply_add(pixels, self.scale, self.bias, out)

    def resized(self, name: str, source: Any) -> Tensor:
        options, resample = self.options, Resampling(self.options["resample"])
        if isinstance(source, (np.ndarray, Tensor)):
            is_scaled, convert = not options["do_rescale"], bool(options["do_convert_rgb"])
            pixels = pixels_of_array(
                source, self.channels, options["input_data_format"], is_scaled, convert, options["background"]
            )
            pixels = resize(pixels, self.new_shape(*pixels.shape[-2:]), resample)
            return pixels if is_scaled else pixels.clamp(0, 255)
        picture = self.picture(name, source)
        shape = self.new_shape(picture.height, picture.width)
        if resample != Resampling.BILINEAR or picture.mode == "RGBA":
            picture = picture.resize(shape[::-1], resample)
        return resize(pixels_of_picture(picture), shape, resample)[:, : self.channels]

    def picture(self, name: str, source: Any) -> Image.Image:
        options = self.options
        if options["do_convert_rgb"]:
            return load_picture(source, name, self.channels, options["background"], options["max_pixels"])
        picture = open_picture(source, name, options["max_pixels"])
        if picture.mode != MODES.get(self.channels):
            raise ValueError(f"mode {picture.mode!r} is not of {self.channels} channels, and do_convert_rgb=False")
        return picture


def shape_rule(size: SizeDict, crop_pct: float | None) -> Callable[[int, int], tuple[int, int]]:
    """The function of a picture's height and width that gives those it is resized to."""
    if crop_pct is not None:
        height, width = (math.floor(side / crop_pct) for side in (size.height, size.width))
        if height != width:
            rule = lambda h, w: tuple(round(side / min(h / height, w / width)) for side in (h, w))  # noqa: E731
        else:
            rule = lambda h, w: get_size_with_aspect_ratio((h, w), height)  # noqa: E731
    elif size.height and size.width:
        return lambda h, w: (size.height, size.width)
    elif size.shortest_edge:
        rule = lambda h, w: get_size_with_aspect_ratio((h, w), size.shortest_edge, size.longest_edge)  # noqa: E731
    else:
        rule = lambda h, w: get_image_size_for_max_height_width((h, w), size.max_height, size.max_width)  # noqa: E731

    def bounded(h: int, w: int) -> tuple[int, int]:
        height, width = (max(1, side) for side in rule(h, w))
        if height * width > MAX_PIXELS:
            raise ValueError(f"{w} x {h} pixels would become {width} x {height}, too large: its sides are too unlike")
        return height, width

    return bounded


def scale_and_bias(options: dict[str, Any]) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The numbers (C, 1, 1) that rescaling and normalising multiply pixels 0..255 with and add; `None` if neither is done."""
    if not options["do_rescale"] and not options["do_normalize"]:
        return None, None
    factor = options["rescale_factor"] if options["do_rescale"] else 1.0
    mean, deviation = (options["image_mean"], options["image_std"]) if options["do_normalize"] else (0.0, 1.0)
    mean, deviation = (torch.tensor(numbers(value), dtype=torch.float64)[:, None, None] for value in (mean, deviation))
    return (factor / deviation).float(), (-mean / deviation).float()


def run(steps: Steps, pictures: list[tuple[str, Any]]) -> Tensor | list[Tensor]:
    """All pictures through `steps`, in torch's number of threads: (B, C, height, width), or a list where shapes may differ."""
    if not pictures:
        raise ValueError("images is empty: give at least one picture")
    names, sources = zip(*pictures, strict=True)
    arrays = [source for source in sources if isinstance(source, (np.ndarray, Tensor))]
    on_cpu = all(getattr(array.device, "type", array.device) == "cpu" for array in arrays)
    counts = [source.shape[0] if getattr(source, "ndim", 0) == 4 else 1 for source in sources]
    has_room = steps.shape and steps.scale is not None and on_cpu
    batch = torch.empty(sum(counts), steps.channels, *steps.shape) if has_room else None
    slots = [None] * len(sources) if batch is None else batch.split(counts)
    threads = min(torch.get_num_threads(), len(sources)) if are_independent(sources) else 1
    if threads == 1:
        found = list(map(steps, names, sources, slots))
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(steps, names, sources, slots))
    return [picture for part in found for picture in part] if batch is None else batch


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
