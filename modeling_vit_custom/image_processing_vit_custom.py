"""Pictures in: the one owner of how a picture file becomes RGB, and RGB becomes the pixels that the model evaluates."""

import math
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.dataclasses import validate_typed_dict
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as tvF
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    PILImageResampling,
    SizeDict,
    load_image,
    pil_torch_interpolation_mapping,
)
from transformers.processing_utils import ImagesKwargs

from .configuration_vit_custom import ViTCustomConfig, did_you_mean, pair


# Raster formats whose decoders run in this process; PostScript and the like would start others.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

# Keys of preprocessor_config.json that transformers itself writes.
FRAMEWORK_KEYS = {"auto_map", "image_processor_type", "processor_class"}


def open_picture(source: str | os.PathLike | bytes, name: str | None = None) -> Image.Image:
    """
    The picture in a file, or in the bytes of one, upright (EXIF) and decoded, in its own mode; of several frames the first.

    `name` is what an error calls the picture; the default is the path.

    Raises:
        `ValueError`: if the picture can't be decoded, naming it and the trouble.
        `FileNotFoundError`: if there is no such file.
    """
    is_bytes = isinstance(source, bytes)
    name = name or ("picture" if is_bytes else os.fspath(source))
    try:
        with Image.open(BytesIO(source) if is_bytes else source, formats=FORMATS) as picture:
            upright = ImageOps.exif_transpose(picture)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        trouble = "not a picture in one of the formats " + ", ".join(FORMATS)
        trouble = trouble if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise ValueError(f"{name}: cannot be decoded: {trouble}") from error
    upright.filename = name
    return upright


def to_rgb(picture: Image.Image) -> Image.Image:
    """
    A picture in RGB; 16-bit grey is scaled to 8 bits, where Pillow's own conversion would clip it to white.

    Raises:
        `ValueError`: for a mode of numbers without a known range.
    """
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture) / 257).round().astype(np.uint8))
    if picture.mode in ("I", "F"):
        name = getattr(picture, "filename", "picture")
        raise ValueError(
            f"{name}: mode {picture.mode!r} says nothing of its range of values; save it with 8 or 16 bits"
        )
    return picture.convert("RGB")


def load_picture(source: str | os.PathLike | bytes, name: str | None = None) -> Image.Image:
    """The picture in a file, or in the bytes of one, in RGB; arguments and errors as for `open_picture` and `to_rgb`."""
    return to_rgb(open_picture(source, name))


class ViTCustomImageProcessorKwargs(ImagesKwargs, total=False):
    """
    crop_pct (`float`, *optional*):
        Share of the resized picture's sides that the centre crop of `size` keeps, as timm's `crop_pct`: the picture is
        resized to cover `size / crop_pct` with its aspect ratio kept, then cropped to `size`.
    """

    crop_pct: float | int | None


class ViTCustomImageProcessor(TorchvisionBackend):
    r"""
    Makes `pixel_values` (B, C, height, width) out of pictures: RGB conversion, resize, crop, rescale, normalise.

    Three ways to a size, said by the arguments themselves:

    - `size={"height": h, "width": w}`: squashed to it, the aspect ratio given up (the default, 224 x 224);
    - `size={"shortest_edge": s}, do_center_crop=True, crop_size={"height": h, "width": w}`: torchvision's way;
    - `size={"height": h, "width": w}, crop_pct=0.9`: timm's way; see [`ViTCustomImageProcessorKwargs`].

    The defaults are those of the paper's checkpoints: bilinear, pixels to -1..1.

    Raises:
        `ValueError`: if a value can't be right, naming it.
    """

    model_input_names = ["pixel_values"]
    valid_kwargs = ViTCustomImageProcessorKwargs
    resample = PILImageResampling.BILINEAR
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size = {"height": 224, "width": 224}
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    crop_pct = None

    def __init__(self, **kwargs: Any):
        known = set(self.valid_kwargs.__annotations__)
        unknown = sorted(kwargs.keys() - known - FRAMEWORK_KEYS)
        if unknown:
            raise ValueError(
                f"unknown image processor argument {unknown[0]!r}: {did_you_mean(unknown[0], list(known))}"
            )
        for name in ("image_mean", "image_std"):
            if isinstance(kwargs.get(name), (list, tuple)):
                kwargs[name] = [float(value) for value in kwargs[name]]
        if isinstance(kwargs.get("rescale_factor"), int):
            kwargs["rescale_factor"] = float(kwargs["rescale_factor"])
        validate_typed_dict(self.valid_kwargs, {key: value for key, value in kwargs.items() if key in known})
        super().__init__(**kwargs)
        self._check_geometry(self.crop_pct, self.size, self.do_resize, self.do_center_crop)
        self._check_values()

    def _check_values(self) -> None:
        mean, deviation = (
            [value] if isinstance(value, float) else value for value in (self.image_mean, self.image_std)
        )
        if len(mean) != len(deviation):
            raise ValueError(f"image_mean has {len(mean)} values and image_std {len(deviation)}; one for each channel")
        if not all(map(math.isfinite, mean)):
            raise ValueError(f"image_mean={list(mean)} must be finite numbers")
        if not all(math.isfinite(value) and value for value in deviation):
            raise ValueError(f"image_std={list(deviation)} must be finite numbers other than 0")
        if self.resample not in pil_torch_interpolation_mapping:
            raise ValueError(
                f"resample={self.resample} is none of Pillow's: {sorted(map(int, pil_torch_interpolation_mapping))}"
            )
        if self.do_center_crop and self.crop_size is None:
            raise ValueError("do_center_crop=True needs a crop_size of height and width")

    @classmethod
    def for_model(cls, config: ViTCustomConfig, **kwargs: Any) -> "ViTCustomImageProcessor":
        """
        The processor for the size and the number of channels that `config` says; `kwargs` are further arguments.

        Pictures are made RGB where the model has three channels, and else left in theirs.
        """
        (height, width), channels = pair(config.image_size), config.num_channels
        statistics = {"image_mean": [0.5] * channels, "image_std": [0.5] * channels, "do_convert_rgb": channels == 3}
        return cls(**{"size": {"height": height, "width": width}, **statistics, **kwargs})

    def fetch_images(self, images: Any) -> Any:
        """Opens what is a path or address; the rest is left as it is."""
        if isinstance(images, (list, tuple)):
            return [self.fetch_images(image) for image in images]
        if isinstance(images, str) and images.startswith(("http://", "https://", "data:")):
            return load_image(images)
        return open_picture(images) if isinstance(images, (str, Path, bytes)) else images

    def process_image(self, image: Any, do_convert_rgb: bool | None = None, **kwargs: Any) -> torch.Tensor:
        """One picture, array or tensor as a tensor (C, height, width)."""
        if do_convert_rgb and isinstance(image, Image.Image):
            image = to_rgb(image)
        return super().process_image(image, do_convert_rgb=do_convert_rgb, **kwargs)

    def _validate_preprocess_kwargs(self, **kwargs: Any) -> None:
        self._check_geometry(**{key: kwargs[key] for key in ("crop_pct", "size", "do_resize", "do_center_crop")})
        kwargs.pop("crop_pct")
        super()._validate_preprocess_kwargs(**kwargs)

    @staticmethod
    def _check_geometry(
        crop_pct: float | None, size: SizeDict, do_resize: bool | None, do_center_crop: bool | None
    ) -> None:
        for side, length in dict(size).items():
            if length is not None and length < 1:
                raise ValueError(f"size: {side}={length} must be 1 or more")
        if crop_pct is None:
            return
        if not 0 < crop_pct <= 1:
            raise ValueError(f"crop_pct={crop_pct} must be above 0 and at most 1")
        if not do_resize or do_center_crop or not (size.height and size.width):
            raise ValueError(
                f"crop_pct={crop_pct} resizes and crops to `size`: it needs do_resize, the height and width of `size`, and no "
                "do_center_crop"
            )

    def center_crop(self, image: torch.Tensor, size: SizeDict, **kwargs: Any) -> torch.Tensor:
        """Crops (..., height, width) about its centre, to the pixel as torchvision does; smaller pictures get a border."""
        return tvF.center_crop(image, [size.height, size.width])

    def cover_and_crop(self, image: torch.Tensor, size: SizeDict, crop_pct: float, resample: Any) -> torch.Tensor:
        """Resizes (C, height, width) to cover `size / crop_pct` with its aspect ratio kept, and crops it to `size`."""
        height, width = (math.floor(side / crop_pct) for side in (size.height, size.width))
        cover = SizeDict(shortest_edge=height)
        if height != width:
            ratio = min(image.shape[-2] / height, image.shape[-1] / width)
            cover = SizeDict(height=round(image.shape[-2] / ratio), width=round(image.shape[-1] / ratio))
        return self.center_crop(self.resize(image, cover, resample), size)

    def _preprocess(
        self,
        images: list[torch.Tensor],
        do_resize: bool,
        size: SizeDict,
        resample: Any,
        crop_pct: float | None,
        **kwargs: Any,
    ) -> BatchFeature:
        if do_resize and crop_pct is not None:
            images = [self.cover_and_crop(image, size, crop_pct, resample) for image in images]
            do_resize = False
        return super()._preprocess(images, do_resize=do_resize, size=size, resample=resample, **kwargs)


__all__ = ["ViTCustomImageProcessor", "load_picture", "open_picture"]
