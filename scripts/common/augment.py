"""Training pictures varied, from torchvision; every number of the pixels comes from the image processor."""

from collections.abc import Callable

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from transformers import BaseImageProcessor
from transformers.image_utils import pil_torch_interpolation_mapping

from scripts.common.recipe import AugmentRecipe


POLICIES = {"none": v2.Identity, "rand_augment": v2.RandAugment, "trivial_augment": v2.TrivialAugmentWide}


def output_size(processor: BaseImageProcessor) -> tuple[int, int]:
    """(height, width) of the pictures that a processor gives."""
    size = dict(processor.crop_size if processor.do_center_crop else processor.size)
    side = size.get("shortest_edge")
    return (side, side) if side else (size["height"], size["width"])


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
        v2.Normalize(*(
            [value / processor.rescale_factor for value in values]
            for values in (processor.image_mean, processor.image_std)
        )),
    ])  # fmt: skip


def eval_transform(processor: BaseImageProcessor) -> Callable[[Image.Image], torch.Tensor]:
    """The processor, for one picture: (C, height, width)."""
    return lambda picture: processor(picture, return_tensors="pt").pixel_values[0]
