"""The image processor: sizes, crops and values as torchvision's, timm's and Pillow's; its arguments and files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision import transforms

from modeling_vit_custom import ViTCustomImageProcessor, load_picture
from tests.tiny import tiny_config


ONE_LEVEL = 1 / 255 / 0.5 + 1e-6  # of the normalised pixels, at a standard deviation of 0.5
RESAMPLE = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
NORMALISE = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]


def photo(width: int = 75, height: int = 50, mode: str = "RGB") -> Image.Image:
    """A smooth picture with edges: what resizing gets wrong shows in it."""
    y, x = np.mgrid[:height, :width]
    channels = [128 + 127 * np.sin(x / 7), 128 + 127 * np.cos(y / 5), 255 * ((x // 9 + y // 9) % 2)]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8)).convert(mode)


def assert_close(processor: ViTCustomImageProcessor, picture: Image.Image, transform) -> None:
    ours, theirs = processor(picture, return_tensors="pt").pixel_values[0], transform(picture)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= ONE_LEVEL
    assert (ours - theirs).abs().mean() < 0.1 * ONE_LEVEL


@pytest.mark.parametrize("interpolation", RESAMPLE)
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (100, 90)])
def test_squash_is_torchvision_s_resize(size, interpolation):
    processor = ViTCustomImageProcessor(size={"height": size[0], "width": size[1]}, resample=RESAMPLE[interpolation])
    mode = transforms.InterpolationMode(interpolation)
    assert_close(processor, photo(), transforms.Compose([transforms.Resize(size, mode), *NORMALISE]))


def photographs() -> list:
    """Scikit-learn's two, and those of a folder named by VIT_CUSTOM_PHOTOS."""
    folder = os.environ.get("VIT_CUSTOM_PHOTOS")
    return [*map(Image.fromarray, load_sample_images().images), *(sorted(Path(folder).iterdir()) if folder else [])]


@pytest.mark.parametrize(
    "filter", [Image.BILINEAR, Image.BICUBIC, Image.NEAREST, Image.LANCZOS, Image.BOX, Image.HAMMING]
)
@pytest.mark.parametrize("size", [(224, 224), (384, 384), (700, 500)])
def test_photographs_are_pillow_s_to_one_level(size, filter):
    processor = ViTCustomImageProcessor(size={"height": size[0], "width": size[1]}, resample=filter)
    for source in photographs():
        picture = source if isinstance(source, Image.Image) else Image.open(source)
        expected = np.asarray(picture.convert("RGB").resize(size[::-1], filter)).astype(np.float32)
        for kind in (source, np.asarray(picture), np.asarray(picture.convert("RGB")).astype(np.float64) / 255):
            pixels = processor(kind, return_tensors="pt").pixel_values[0].permute(1, 2, 0).numpy()
            away = np.abs((pixels + 1) * 127.5 - expected).round()
            assert away.max() <= 2 and (away > 1).mean() < 1e-6
            assert away.max() == 0 or filter == Image.BILINEAR


@pytest.mark.parametrize("shape", [(75, 50), (50, 75), (51, 77), (33, 32), (20, 60)])
def test_shortest_edge_and_centre_crop_are_torchvision_s(shape):
    crop = {"height": 32, "width": 32}
    processor = ViTCustomImageProcessor(size={"shortest_edge": 37}, do_center_crop=True, crop_size=crop)
    transform = transforms.Compose([transforms.Resize(37), transforms.CenterCrop(32), *NORMALISE])
    assert_close(processor, photo(*shape), transform)


@pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.875, 0.5])
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (40, 24)])
@pytest.mark.parametrize("shape", [(75, 50), (51, 77)])
def test_a_crop_fraction_is_timm_s(crop_pct, size, shape):
    processor = ViTCustomImageProcessor(
        size={"height": size[0], "width": size[1]}, crop_pct=crop_pct, resample=Image.BICUBIC
    )
    transform = timm.data.create_transform(
        (3, *size), crop_pct=crop_pct, interpolation="bicubic", mean=[0.5] * 3, std=[0.5] * 3
    )
    assert_close(processor, photo(*shape), transform)


def test_the_steps_can_be_left_out():
    picture = photo()
    plain = ViTCustomImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)
    assert torch.equal(plain(picture, return_tensors="pt").pixel_values[0], transforms.PILToTensor()(picture))
    scaled = ViTCustomImageProcessor(do_resize=False, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    expected = transforms.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])(transforms.ToTensor()(picture))
    torch.testing.assert_close(scaled(picture, return_tensors="pt").pixel_values[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [
    {}, {"crop_pct": 0.9}, {"size": {"shortest_edge": 37}, "do_center_crop": True, "crop_size": 32, "resample": 3},
])  # fmt: skip
def test_a_saved_processor_comes_back(options, tmp_path):
    processor = ViTCustomImageProcessor(**options)
    processor.save_pretrained(tmp_path)
    loaded = ViTCustomImageProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == processor.to_dict()
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["do_convert_rgb"] is True
    assert torch.equal(*(p(photo(), return_tensors="pt").pixel_values for p in (loaded, processor)))


def test_for_model_takes_the_model_s_size_and_channels(tmp_path):
    assert dict(ViTCustomImageProcessor.for_model(tiny_config()).size) == {"height": 16, "width": 24}
    grey = ViTCustomImageProcessor.for_model(tiny_config(num_channels=1))
    photo(mode="L").save(tmp_path / "grey.png")
    for source in (photo(mode="L"), tmp_path / "grey.png"):
        assert grey(source, return_tensors="pt").pixel_values.shape == (1, 1, 16, 24)


def test_whole_numbers_are_numbers():
    processor = ViTCustomImageProcessor(image_mean=[0, 0, 0], image_std=[1, 1, 1], rescale_factor=1, do_resize=False)
    assert torch.equal(
        processor(photo(), return_tensors="pt").pixel_values[0], transforms.PILToTensor()(photo()).float()
    )


def test_a_whole_crop_fraction_may_be_an_integer():
    assert ViTCustomImageProcessor(crop_pct=1)(photo(), return_tensors="pt").pixel_values.shape == (1, 3, 224, 224)


@pytest.mark.parametrize("options, named", [
    ({"crop_pct": 0.0}, "crop_pct=0.0"), ({"crop_pct": 1.5}, "crop_pct=1.5"), ({"crop_pct": "0.9"}, "crop_pct"),
    ({"crop_pct": 0.9, "size": {"shortest_edge": 32}}, "crop_pct=0.9"),
    ({"image_std": [0.0, 1.0, 1.0]}, "image_std"), ({"image_mean": [float("nan")] * 3}, "image_mean"),
    ({"image_mean": [0.5, 0.5]}, "image_std=.*image_mean"), ({"resample": 99}, "resample=99"),
    ({"do_center_crop": True}, "crop_size"), ({"crop_pc": 0.9}, "crop_pc.*crop_pct"), ({"image_sdt": 1}, "image_std"),
    ({"size": {"height": -1, "width": 8}}, "size=.*-1"), ({"size": {"shortest_edge": 0}}, "size=.*shortest_edge"),
    ({"crop_pct": 0.9, "do_resize": False}, "do_resize"),
    ({"crop_pct": 0.9, "do_center_crop": True}, "do_center_crop"), ({"do_resize": "yes"}, "do_resize"),
])  # fmt: skip
def test_values_that_cannot_be_are_refused_by_name(options, named):
    with pytest.raises(Exception, match=named):
        ViTCustomImageProcessor(**options)


def test_a_missing_picture_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_picture(tmp_path / "nowhere.png")
