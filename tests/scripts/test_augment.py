"""Training pixels: the image processor's where nothing is random, and every option seen."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import MobileViTImageProcessor, ViTImageProcessor

from modeling_vit_custom import ViTCustomImageProcessor
from scripts.common.augment import Normalise, eval_transform, output_size, picture_loader, train_transform
from scripts.common.errors import UserError
from scripts.common.recipe import AugmentRecipe


STILL = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.25, 1.25), "horizontal_flip": 0.0}
SIZE = {"height": 16, "width": 24}


def picture() -> Image.Image:
    y, x = np.mgrid[:40, :50]
    channels = [128 + 110 * np.sin(x / 5), 128 + 110 * np.cos(y / 4), 4 * (x + y) % 200]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def differs(**options) -> float:
    """Share of eight draws that are not the still picture."""
    processor = ViTCustomImageProcessor(size=SIZE)
    still = eval_transform(processor)(picture())
    transform = train_transform(AugmentRecipe(**{**STILL, **options}), processor)
    return np.mean([(transform(picture()).float() - still.float()).abs().max() > 8 for _ in range(8)])


@pytest.mark.parametrize("options", [
    {}, {"image_std": [0.4, 0.5, 0.6], "image_mean": [0.1, 0.2, 0.3]}, {"do_normalize": False}, {"do_rescale": False},
    {"do_normalize": False, "do_rescale": False}, {"resample": 3},
])  # fmt: skip
@pytest.mark.parametrize("kind", [ViTCustomImageProcessor, ViTImageProcessor])
def test_without_chance_pixels_are_the_processor_s(kind, options):
    processor = kind(size=SIZE, **options)
    expected = processor(picture(), return_tensors="pt").pixel_values
    scale = Normalise(processor).scale
    level = 1 if scale is None else scale.max().item()
    varied = train_transform(AugmentRecipe(**STILL), processor)
    for transform, is_float in ((varied, False), (eval_transform(processor), kind is ViTImageProcessor)):
        frame = transform(picture())
        found = Normalise(processor)(frame[None])
        assert type(frame) is torch.Tensor and found.dtype == expected.dtype
        assert frame.dtype == (expected.dtype if is_float else torch.uint8)
        assert found.shape == expected.shape == (1, 3, 16, 24)
        assert (found.float() - expected.float()).abs().max() <= 1.01 * level


@pytest.mark.parametrize("channels, mode", [(1, "L"), (4, "RGBA")])
def test_other_channels_are_augmented_too(channels, mode):
    processor = ViTCustomImageProcessor(size=SIZE, image_mean=[0.3] * channels, image_std=[0.2] * channels)
    expected = processor(picture(), return_tensors="pt").pixel_values
    for transform in (train_transform(AugmentRecipe(**STILL), processor), eval_transform(processor)):
        found = Normalise(processor)(transform(picture_loader(processor)(picture()))[None])
        assert (found - expected).abs().max() <= 1.01 / 255 / 0.2
    assert picture_loader(processor)(picture()).mode == mode
    if channels == 4:
        with pytest.raises(UserError, match="augment.policy=rand_augment"):
            train_transform(AugmentRecipe(policy="rand_augment"), processor)
    else:
        varied = train_transform(AugmentRecipe(policy="rand_augment"), processor)(picture_loader(processor)(picture()))
        assert varied.shape == (1, 16, 24)


class BGR(ViTImageProcessor):
    """Turns the channels round, as MobileViT's processor does."""

    def process_image(self, *arguments, **options):
        return super().process_image(*arguments, **options).flip(0)


def test_processors_that_training_cannot_follow_are_refused():
    with pytest.raises(UserError, match="changes colours"):
        output_size(BGR(size=SIZE))
    with pytest.raises(UserError, match="5 channels"):
        output_size(ViTCustomImageProcessor(image_mean=[0.5] * 5, image_std=[0.5] * 5))


def test_blue_may_come_first():
    processor = MobileViTImageProcessor(size={"shortest_edge": 16}, crop_size=SIZE)
    still, square = {**STILL, "crop_ratio": (1.5, 1.5)}, picture().resize((24, 16))
    expected = processor(square, return_tensors="pt").pixel_values
    found = Normalise(processor)(train_transform(AugmentRecipe(**still), processor)(square)[None])
    assert (found - expected).abs().max() <= 1.01 / 255


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
