"""
Pictures on their way to a model: training pictures varied, the others as the image processor has them.

They come as uint8, which is four times less to carry from a worker process than floats, and `Normalise` makes of batches what the
processor would; only what other libraries' processors give for evaluation is floats already. Every number is the processor's.
"""

from collections.abc import Callable
from functools import partial

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, RandomResizedCrop, v2
from torchvision.transforms.v2 import functional as tvF
from transformers import BaseImageProcessor
from transformers.image_utils import SizeDict

from modeling_vit_custom import ViTCustomImageProcessor, load_picture
from modeling_vit_custom.pictures_vit_custom import MODES
from modeling_vit_custom.pixels_vit_custom import multiply_add, pixels_of_picture
from modeling_vit_custom.preprocessing_vit_custom import channel_count, resized_shape, scale_and_bias
from scripts.common.errors import UserError
from scripts.common.recipe import AugmentRecipe


POLICIES = {"none": None, "rand_augment": v2.RandAugment, "trivial_augment": v2.TrivialAugmentWide}

# Of the random crop. Where torch has no kernel for a filter on uint8 it is bicubic.
INTERPOLATIONS = {Image.NEAREST: InterpolationMode.NEAREST_EXACT, Image.BILINEAR: InterpolationMode.BILINEAR}

COLOURS = (40, 90, 160)

# What makes our image processor give uint8.
AS_LEVELS = {"do_rescale": True, "rescale_factor": 1.0, "do_normalize": False}


def picture_channels(processor: BaseImageProcessor) -> int:
    """The channels of the pictures that a processor gives; a `UserError` if picture files can't have so many."""
    mean = getattr(processor, "image_mean", None)
    count = 3 if mean is None else channel_count(mean)
    if count not in MODES:
        raise UserError(f"the image processor gives {count} channels; picture files have 1, 3 or 4")
    return count


def picture_loader(processor: BaseImageProcessor) -> Callable[..., Image.Image]:
    """[`load_picture`] for the channels, the background and the limit of a processor."""
    fields = ("background", "max_pixels")
    given = {field: getattr(processor, field) for field in fields if getattr(processor, field, None) is not None}
    return partial(load_picture, channels=picture_channels(processor), **given)


def turns_channels(processor: BaseImageProcessor) -> bool:
    """Whether a processor gives blue, green and red, as MobileViT's."""
    return bool(getattr(processor, "do_flip_channel_order", False))


def output_size(processor: BaseImageProcessor) -> tuple[int, int]:
    """
    (height, width) of the pictures that a processor gives.

    Raises:
        `UserError`: if they have no one shape, or if it does more to the values than rescale and normalise.
    """
    missing = [name for name in ("image_mean", "image_std", "resample", "do_rescale") if not hasattr(processor, name)]
    if missing:
        raise UserError(f"{type(processor).__name__} has no {', '.join(missing)}, which training pictures are made by")
    if getattr(processor, "do_pad", None):
        raise UserError(
            f"{type(processor).__name__} pads pictures (do_pad), which training pictures are not: set a size"
        )
    mode, transform, normalise = MODES[picture_channels(processor)], eval_transform(processor), Normalise(processor)
    plain = (Image.new("RGB", size, COLOURS).convert(mode) for size in ((80, 60), (60, 80)))
    wide, high = (normalise(transform(picture)[None])[0] for picture in plain)
    if wide.shape != high.shape:
        raise UserError(
            f"{type(processor).__name__} gives pictures of several shapes, which make no batch: set a size of height and width"
        )
    colour = torch.tensor(Image.new("RGB", (1, 1), COLOURS).convert(mode).getpixel((0, 0)), dtype=torch.uint8)
    colour = colour.flip(0) if turns_channels(processor) else colour
    expected, level = normalise(colour.view(1, -1, 1, 1))[0], 1 if normalise.scale is None else normalise.scale.max()
    if (wide.float().amax(dim=(1, 2), keepdim=True) - expected).abs().max() > 1.01 * level:
        raise UserError(
            f"{type(processor).__name__} changes colours or values in ways that training pictures would lack"
        )
    return tuple(wide.shape[1:])


class Normalise(nn.Module):
    """
    Batches of uint8 pixels, (B, C, height, width), rescaled and normalised in float32 as the processor does; floats, which
    are normalised already, as they are, and uint8 too if the processor does neither.
    """

    def __init__(self, processor: BaseImageProcessor):
        super().__init__()
        fields = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
        scale, bias = scale_and_bias({field: getattr(processor, field) for field in fields})
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.scale is None or pixels.is_floating_point():
            return pixels
        return multiply_add(pixels, self.scale, self.bias)


def train_transform(recipe: AugmentRecipe, processor: BaseImageProcessor) -> Callable[[Image.Image], Tensor]:
    """A function of a picture, random by torch's generator: uint8 (C, height, width)."""
    channels = picture_channels(processor)
    if channels not in (1, 3) and recipe.policy != "none":
        raise UserError(
            f"augment.policy={recipe.policy} knows pictures of 1 or 3 channels, the model takes {channels}: set it to none"
        )
    interpolation = INTERPOLATIONS.get(processor.resample, InterpolationMode.BICUBIC)
    rotation = v2.RandomRotation(recipe.rotation, interpolation=InterpolationMode.BILINEAR)
    policy = [v2.ToPILImage(), POLICIES[recipe.policy](), v2.PILToTensor()] if recipe.policy != "none" else []
    return v2.Compose([
        *([rotation] if recipe.rotation else []),
        pixels_of_picture,
        partial(random_crop, recipe, output_size(processor), interpolation),
        partial(first_channels, channels),
        v2.RandomHorizontalFlip(recipe.horizontal_flip),
        *policy,
        *([partial(torch.flip, dims=(0,))] if turns_channels(processor) else []),
    ])  # fmt: skip


def random_crop(
    recipe: AugmentRecipe, size: tuple[int, int], interpolation: InterpolationMode, pixels: Tensor
) -> Tensor:
    """A part of (1, C, H, W) in another size, of random area and aspect ratio (Szegedy et al. 2015, drawn by torchvision)."""
    top, left, height, width = RandomResizedCrop.get_params(pixels, recipe.crop_scale, recipe.crop_ratio)
    part = pixels[..., top : top + height, left : left + width]
    return tvF.resize_image(part, list(size), interpolation, antialias=True)


def eval_transform(processor: BaseImageProcessor) -> Callable[[Image.Image], Tensor]:
    """
    The processor, for one picture: (C, height, width). Ours leaves the normalising to [`Normalise`], as uint8; what others do
    beside it nobody knows.
    """
    is_ours = isinstance(processor, ViTCustomImageProcessor) and not processor.do_pad  # with zeros, after normalising
    return partial(process, processor, AS_LEVELS if is_ours else {})


def process(processor: BaseImageProcessor, options: dict, picture: Image.Image) -> Tensor:
    size = getattr(processor, "size", None)
    if isinstance(size, SizeDict) and size.shortest_edge:
        resized_shape(
            size, None, picture.height, picture.width
        )  # refuses pictures so thin that they would fill the memory
    return processor(picture, return_tensors="pt", **options).pixel_values[0]


def first_channels(count: int, pixels: Tensor) -> Tensor:
    """(count, H, W) of (1, channels, H, W)."""
    return pixels[0, :count]
