"""The image processor: the one owner of the pixels that a model is evaluated on."""

from difflib import get_close_matches
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import validate_typed_dict
from PIL.Image import Resampling
from torch import Tensor
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, SizeDict
from transformers.processing_utils import ImagesKwargs

from .configuration_vit_custom import ViTCustomConfig, did_you_mean, pair
from .pictures_vit_custom import MAX_PIXELS, WHITE
from .preprocessing_vit_custom import Steps, named_pictures, numbers, run


# Keys of preprocessor_config.json that transformers itself writes or wrote.
FRAMEWORK_KEYS = {
    "_valid_processor_keys",
    "auto_map",
    "feature_extractor_type",
    "image_processor_type",
    "processor_class",
}

# Arguments of `AutoImageProcessor.from_pretrained` that choose the class.
AUTO_KEYS = {"backend", "use_fast"}

# The longest side that a picture may be resized or cropped to, in pixels.
MAX_SIDE = 8192


class ViTCustomImageProcessorKwargs(ImagesKwargs, total=False):
    """
    crop_pct (`float`, *optional*):
        Share of the resized picture's sides that the centre crop of `size` keeps, as timm's `crop_pct`: the picture is
        resized to cover `size / crop_pct` with its aspect ratio kept, then cropped to `size`.
    antialias (`bool`, *optional*, defaults to `True`):
        Whether a picture that becomes smaller is smoothed. `False`, for bilinear only, is how the JAX code of vit_jax and
        big_vision resizes (`tf.image.resize`).
    crop_rounding (`str`, *optional*, defaults to `"even"`):
        Where a centre crop lies that half a pixel is left over for: `"even"` as in torchvision, `"down"` as in transformers.
    background (`list[int]`, *optional*, defaults to white):
        Red, green and blue, 0..255, of what shows where a picture is transparent.
    max_pixels (`int`, *optional*, defaults to 89,478,485):
        The most pixels that a picture may have; a larger one is refused before it is decoded. Pillow refuses twice that.
    """

    crop_pct: float | int | None
    antialias: bool | None
    crop_rounding: Literal["even", "down"] | None
    background: list[int] | tuple[int, ...] | None
    max_pixels: int | None


class ViTCustomImageProcessor(TorchvisionBackend):
    r"""
    Makes `pixel_values` (B, C, height, width), float32, out of pictures: decode, bring to the model's channels, resize, crop,
    rescale and normalise.

    `images` is one picture or any nesting of lists of them. A picture is a path, an `http(s)://` or `data:` address, the bytes
    of a file, an open binary file, a Pillow picture, what `datasets.Image` yields, or a numpy array or torch tensor as
    [`pixels_of_array`] describes, on any device, where it stays. Files and Pillow pictures come upright (EXIF); of
    several frames a file gives the first, a Pillow picture the current one. They are decoded by as many threads as `torch.get_num_threads()` says.

    The model has as many channels as `image_mean` has numbers: 1 makes pictures grey, 3 RGB, 4 RGBA; other numbers need
    arrays. `do_convert_rgb=False` refuses pictures of other channels instead of converting them. Floats are told by their
    values, 0..1 or 0..255; with `do_rescale=False` all values are taken as they are. `rescale_factor=1, do_normalize=False`
    gives the levels 0..255 in uint8.

    Three ways to a size, said by the arguments themselves:

    - `size={"height": h, "width": w}`: squashed to it, the aspect ratio given up (the default, 224 x 224);
    - `size={"shortest_edge": s}, do_center_crop=True, crop_size={"height": h, "width": w}`: torchvision's way;
    - `size={"height": h, "width": w}, crop_pct=0.9`: timm's way; see [`ViTCustomImageProcessorKwargs`].

    The defaults are those of the paper's checkpoints: bilinear, pixels to -1..1.

    Raises:
        `ValueError`, `OSError`, `TypeError`: if a value can't be right, naming it, or a picture can't be read, naming it.
    """

    model_input_names = ["pixel_values"]
    valid_kwargs = ViTCustomImageProcessorKwargs
    resample = Resampling.BILINEAR
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size = {"height": 224, "width": 224}
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    crop_pct = None
    antialias = True
    crop_rounding = "even"
    background = list(WHITE)
    max_pixels = MAX_PIXELS

    def __init__(self, **kwargs: Any):
        kwargs = self._named_and_typed(kwargs, FRAMEWORK_KEYS)
        super().__init__(**kwargs)
        check({name: getattr(self, name) for name in self.valid_kwargs.__annotations__})

    @classmethod
    def for_model(cls, config: ViTCustomConfig, **kwargs: Any) -> "ViTCustomImageProcessor":
        """
        The processor for the size and the number of channels that `config` says; `kwargs` are further arguments. For a model
        that normalises (`config.pixel_mean`), one that gives uint8.
        """
        height, width = pair(config.image_size)
        mean, deviation = [0.5] * config.num_channels, [0.5] * config.num_channels
        if config.pixel_mean is not None:
            mean, deviation = ([value / 255 for value in values] for values in (config.pixel_mean, config.pixel_std))
            kwargs = {"rescale_factor": 1.0, "do_normalize": False, **kwargs}
        statistics = {"image_mean": mean, "image_std": deviation}
        return cls(**{"size": {"height": height, "width": width}, **statistics, **kwargs})

    @classmethod
    def from_dict(cls, image_processor_dict: dict[str, Any], **kwargs: Any) -> "ViTCustomImageProcessor":
        """The processor of a `preprocessor_config.json`; a misspelt argument beside it is an error, not left out."""
        if not isinstance(image_processor_dict, dict):
            raise ValueError(
                f"the file of an image processor must hold a table of its arguments, not {image_processor_dict!r}"
            )
        known = list(cls.valid_kwargs.__annotations__)
        for name in kwargs.keys() - set(known) - AUTO_KEYS:
            if not kwargs.get("return_unused_kwargs") and get_close_matches(name, known, cutoff=0.7):
                raise ValueError(f"unknown image processor argument {name!r}: {did_you_mean(name, known)}")
        return super().from_dict(image_processor_dict, **kwargs)

    @classmethod
    def _named_and_typed(cls, kwargs: dict[str, Any], others: set[str] = frozenset()) -> dict[str, Any]:
        """`kwargs`, whole numbers as floats where floats belong; an error for a name or type that isn't known."""
        known = cls.valid_kwargs.__annotations__
        unknown = sorted(kwargs.keys() - known.keys() - others)
        if unknown:
            raise ValueError(
                f"unknown image processor argument {unknown[0]!r}: {did_you_mean(unknown[0], list(known))}"
            )
        kwargs = {name: list(value) if isinstance(value, tuple) else value for name, value in kwargs.items()}
        for name in SIZES & kwargs.keys():
            if isinstance(kwargs[name], list) and len(kwargs[name]) != 2:
                raise ValueError(f"{name}={kwargs[name]} must be a height and a width")
        kwargs = {name: as_floats(value) if name in FLOATS else value for name, value in kwargs.items()}
        validate_typed_dict(cls.valid_kwargs, {name: value for name, value in kwargs.items() if name in known})
        return kwargs

    def preprocess(self, images: Any, **kwargs: Any) -> BatchFeature:
        """`pixel_values` of `images`; `kwargs` override the processor's own fields for this call."""
        return super().preprocess(images, **self._named_and_typed(kwargs))

    def _validate_preprocess_kwargs(self, **kwargs: Any) -> None:
        check(kwargs)

    def _preprocess_image_like_inputs(
        self,
        images: Any,
        device: str | torch.device | None = None,
        return_tensors: str | None = None,
        do_pad: bool | None = None,
        pad_size: SizeDict | None = None,
        **options: Any,
    ) -> BatchFeature:
        pictures = run(Steps(options), list(named_pictures(images)))
        if do_pad:
            pictures = self.pad(list(pictures), pad_size=pad_size)
        if device is not None:
            pictures = pictures.to(device) if isinstance(pictures, Tensor) else [p.to(device) for p in pictures]
        if return_tensors is None:
            return BatchFeature(data={"pixel_values": list(pictures)})
        return BatchFeature(data={"pixel_values": as_batch(pictures)}, tensor_type=return_tensors)


def as_batch(pictures: Tensor | list[Tensor]) -> Tensor:
    """(B, C, height, width); an error if they are of several shapes or on several devices."""
    if isinstance(pictures, Tensor):
        return pictures
    shapes = sorted({tuple(picture.shape) for picture in pictures})
    if len(shapes) > 1:
        way_out = "set a `size` of height and width, a `crop_size` or `do_pad`"
        raise ValueError(f"pictures of the shapes {shapes} make no batch: {way_out}")
    devices = sorted({str(picture.device) for picture in pictures})
    if len(devices) > 1:
        raise ValueError(f"pictures on {' and '.join(devices)} make no batch: set `device`")
    return torch.stack(pictures)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments

NEEDED = (
    "size",
    "resample",
    "antialias",
    "crop_rounding",
    "image_mean",
    "image_std",
    "rescale_factor",
    "background",
    "max_pixels",
)
FLOATS = {"image_mean", "image_std", "rescale_factor"}
SIZES = {"size", "crop_size", "pad_size"}


def as_floats(value: Any) -> Any:
    """Whole numbers as floats, alone or in a list."""
    if isinstance(value, list):
        return [as_floats(number) for number in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check(options: dict[str, Any]) -> None:
    """Raises `ValueError` for values of the arguments that can't be right, naming the argument."""

    def need(is_right: Any, name: str, what: str) -> None:
        if not is_right:
            value = options[name]
            raise ValueError(f"{name}={dict(value) if isinstance(value, SizeDict) else value} must be {what}")

    for name in NEEDED:
        need(options[name] is not None, name, "given")
    for name in sorted(SIZES):
        sides = [side for side in dict(options[name] or {}).values() if side is not None]
        need(all(1 <= side <= MAX_SIDE for side in sides), name, f"of sides from 1 to {MAX_SIDE} pixels")
    mean, deviation = options["image_mean"], options["image_std"]
    need(numbers(mean) and all(abs(value) < 1e6 for value in numbers(mean)), "image_mean", "finite numbers")
    need(all(1e-6 < value < 1e6 for value in numbers(deviation)), "image_std", "finite numbers above 0")
    need(len(numbers(mean)) == len(numbers(deviation)), "image_std", f"one number for each of image_mean={mean}")
    need(1e-9 < options["rescale_factor"] < 1e6, "rescale_factor", "a finite number above 0")
    need(options["resample"] in list(Resampling), "resample", f"one of Pillow's {sorted(map(int, Resampling))}")
    need(
        options["antialias"] or options["resample"] == Resampling.BILINEAR,
        "antialias",
        "True, or resample=2 (bilinear)",
    )
    background = options["background"]
    need(len(background) == 3 and all(0 <= c <= 255 for c in background), "background", "three numbers 0..255")
    need(options["max_pixels"] > 0, "max_pixels", "1 or more")
    need(options["data_format"] in (None, "channels_first"), "data_format", "'channels_first', which models take")
    layouts = (None, "channels_first", "channels_last")
    need(options["input_data_format"] in layouts, "input_data_format", f"one of {layouts}")
    if options["crop_pct"] is not None:
        size = options["size"]
        need(0 < options["crop_pct"] <= 1, "crop_pct", "above 0 and at most 1")
        whole = size.height and size.width and options["do_resize"] and not options["do_center_crop"]
        need(
            whole,
            "crop_pct",
            "with do_resize, a height and width of `size`, and no do_center_crop: it crops to `size`",
        )
        need(
            max(size.height, size.width) / options["crop_pct"] <= MAX_SIDE,
            "crop_pct",
            f"such that `size / crop_pct` is at most {MAX_SIDE}",
        )
    crop = options["crop_size"]
    need(not options["do_center_crop"] or (crop and crop.height and crop.width), "crop_size", "a height and width")


__all__ = ["ViTCustomImageProcessor"]
