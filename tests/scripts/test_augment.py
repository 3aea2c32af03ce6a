"""Training pixels: the image processor's where nothing is random, and every option seen."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessor

from modeling_vit_custom import ViTCustomImageProcessor
from scripts.common.augment import eval_transform, output_size, train_transform
from scripts.common.errors import UserError
from scripts.common.recipe import AugmentRecipe


STILL = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.25, 1.25), "horizontal_flip": 0.0}
SIZE = {"height": 16, "width": 24}


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def differs(**options) -> float:
    """Share of eight draws that are not the still picture."""
    processor = ViTCustomImageProcessor(size=SIZE)
    still = eval_transform(processor)(picture())
    transform = train_transform(AugmentRecipe(**{**STILL, **options}), processor)
    return np.mean([not torch.allclose(transform(picture()), still, atol=0.05) for _ in range(8)])


@pytest.mark.parametrize("options", [
    {}, {"image_std": [0.4, 0.5, 0.6], "image_mean": [0.1, 0.2, 0.3]}, {"do_normalize": False}, {"do_rescale": False},
    {"do_normalize": False, "do_rescale": False}, {"resample": 3},
])  # fmt: skip
@pytest.mark.parametrize("kind", [ViTCustomImageProcessor, ViTImageProcessor])
def test_without_chance_training_pixels_are_the_processor_s(kind, options):
    processor = kind(size=SIZE, **options)
    found = train_transform(AugmentRecipe(**STILL), processor)(picture())
    expected = eval_transform(processor)(picture())
    assert found.shape == expected.shape == (3, 16, 24)
    levels = {"do_normalize": 1 / 255, "do_rescale": 1 / 0.5, "image_std": 1 / 255 / 0.4}
    level = (
        1.0 if len(options) == 2 and "do_rescale" in options else levels.get(next(iter(options), ""), 1 / 255 / 0.5)
    )
    assert type(found) is torch.Tensor
    assert (found - expected).abs().max() <= 1.01 * level


def test_every_option_of_augmentation_is_seen():
    assert differs() == 0
    assert differs(horizontal_flip=1.0) == 1
    assert 0 < differs(horizontal_flip=0.5) < 1
    assert differs(rotation=40.0) > 0.5
    assert differs(crop_scale=(0.3, 0.5)) == 1
    assert differs(crop_ratio=(0.5, 0.6)) == 1
    assert differs(policy="rand_augment") > 0.5
    assert differs(policy="trivial_augment") > 0.5


def test_the_size_is_what_the_processor_gives():
    crop = {"height": 12, "width": 20}
    assert output_size(ViTCustomImageProcessor(size=SIZE)) == (16, 24)
    assert output_size(ViTCustomImageProcessor(size=SIZE, crop_pct=0.5)) == (16, 24)
    assert output_size(ViTCustomImageProcessor(size={"shortest_edge": 30}, do_center_crop=True, crop_size=crop)) == (
        12,
        20,
    )
    with pytest.raises(UserError, match="several shapes"):
        output_size(ViTCustomImageProcessor(size={"shortest_edge": 30}))
