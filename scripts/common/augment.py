"""Training pictures varied, from torchvision; every number of the pixels comes from the image processor."""

from collections.abc import Callable

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from transformers import BaseImageProcessor
from transformers.image_utils import pil_torch_interpolation_mapping

from scripts.common.errors import UserError
from scripts.common.recipe import AugmentRecipe


POLICIES = {"none": v2.Identity, "rand_augment": v2.RandAugment, "trivial_augment": v2.TrivialAugmentWide}


def output_size(processor: BaseImageProcessor) -> tuple[int, int]:
    """(height, width) of the pictures that a processor gives; a `UserError` if they keep the shape of their source."""
    wide, high = (eval_transform(processor)(Image.new("RGB", size)).shape[1:] for size in ((80, 60), (60, 80)))
    if wide != high:
        raise UserError(
            f"{type(processor).__name__} gives pictures of several shapes, which make no batch: set a size of height and width"
        )
    return tuple(wide)


def pixel_statistics(processor: BaseImageProcessor) -> tuple[list[float], list[float]]:
    """Mean and deviation of pixels 0..255 that do what the processor's rescaling and normalising do."""
    scale = processor.rescale_factor if processor.do_rescale else 1.0
    mean, deviation = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0] * 3, [1.0] * 3)
    return [value / scale for value in mean], [value / scale for value in deviation]


def train_transform(recipe: AugmentRecipe, processor: BaseImageProcessor) -> Callable[[Image.Image], torch.Tensor]:
    """A function of a picture, random by torch's generator: (C, height, width), normalised as the processor does."""
    interpolation = pil_torch_interpolation_mapping[processor.resample]
    return v2.Compose([
        v2.RandomRotation(recipe.rotation, interpolation=InterpolationMode.BILINEAR),
        v2.RandomResizedCrop(output_size(processor), recipe.crop_scale, recipe.crop_ratio, interpolation),
        v2.RandomHorizontalFlip(recipe.horizontal_flip),
        POLICIES[recipe.policy](),
        v2.ToImage(),
        v2.ToDtype(torch.float32),
        v2.Normalize(*pixel_statistics(processor)),
        v2.ToPureTensor(),
    ])  # fmt: skip


def eval_transform(processor: BaseImageProcessor) -> Callable[[Image.Image], torch.Tensor]:
    """The processor, for one picture: (C, height, width)."""
    return lambda picture: processor(picture, return_tensors="pt").pixel_values[0]
