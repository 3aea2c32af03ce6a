"""Models of one, four and more channels, models made of RGB ones, and models that take uint8."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import pipeline

from modeling_vit_custom import (
    ViTCustomForImageClassification,
    ViTCustomForMaskedImageModeling,
    ViTCustomImageProcessor,
    ViTCustomModel,
)
from tests.tiny import pictures, tiny_config, tiny_model


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# ---------------------------------------------------------------------------------------------------------------------
# Channels


@pytest.mark.parametrize("channels, modes", [
    (1, ["1", "L", "LA", "P", "RGB", "CMYK", "I;16"]), (3, ["L", "RGB", "RGBA"]), (4, ["RGBA", "RGB", "L", "LA", "P"]),
])  # fmt: skip
def test_pictures_become_the_channels_of_the_model(channels, modes, tmp_path):
    model = tiny_model(num_channels=channels)
    processor = ViTCustomImageProcessor.for_model(model.config)
    for mode in modes:
        deep = Image.fromarray(noise(16, 24).astype(np.uint16) * 257)
        picture = deep if mode == "I;16" else Image.fromarray(noise(16, 24, 3)).convert(mode)
        inputs = processor(picture, return_tensors="pt")
        assert inputs.pixel_values.shape == (1, channels, 16, 24)
        assert model(**inputs).logits.shape == (1, 5)


def test_grey_and_opacity_are_pillow_s():
    rgb, rgba = Image.fromarray(noise(16, 24, 3)), Image.fromarray(noise(16, 24, 4), "RGBA")
    levels = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt"}
    grey = ViTCustomImageProcessor.for_model(tiny_config(num_channels=1))(rgb, **levels).pixel_values[0, 0]
    assert np.array_equal(grey, rgb.convert("L"))
    array = ViTCustomImageProcessor.for_model(tiny_config(num_channels=1))(np.array(rgb), **levels).pixel_values[0, 0]
    assert (array.int() - grey.int()).abs().max() <= 1
    four = ViTCustomImageProcessor.for_model(tiny_config(num_channels=4))
    assert np.array_equal(four(rgba, **levels).pixel_values[0].permute(1, 2, 0), rgba)
    assert torch.equal(four(np.array(rgba), **levels).pixel_values, four(rgba, **levels).pixel_values)
    opaque = four(rgb, **levels).pixel_values[0]
    assert np.array_equal(opaque[:3].permute(1, 2, 0), rgb) and (opaque[3] == 255).all()


@pytest.mark.parametrize("channels, layout", [(2, "HWC"), (7, "HWC"), (7, "CHW")])
def test_other_numbers_of_channels_take_arrays(channels, layout):
    model = tiny_model(num_channels=channels)
    processor = ViTCustomImageProcessor.for_model(model.config)
    array = noise(16, 24, channels)
    inputs = processor(array if layout == "HWC" else array.transpose(2, 0, 1), return_tensors="pt")
    expected = torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1
    torch.testing.assert_close(inputs.pixel_values[0], expected, atol=1e-5, rtol=0)
    assert model(**inputs).logits.shape == (1, 5)
    with pytest.raises(ValueError, match=f"1, 3 or 4 channels, the model takes {channels}"):
        processor(Image.fromarray(noise(16, 24, 3)))
    with pytest.raises(ValueError, match=f"no axis of {channels} channels"):
        processor(noise(16, 24, 3))


@pytest.mark.parametrize("cls", [ViTCustomForImageClassification, ViTCustomModel])
@pytest.mark.parametrize("patch_bias", [True, False])
def test_a_model_for_grey_is_that_for_rgb(cls, patch_bias, tmp_path):
    model, grey = tiny_model(cls, patch_bias=patch_bias), pictures(channels=1)
    expected = model(grey.expand(-1, 3, -1, -1))[0]
    model.resize_channels(1)
    torch.testing.assert_close(model(grey)[0], expected, atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    assert loaded.config.num_channels == 1 and torch.equal(loaded(grey)[0], model(grey)[0])


@pytest.mark.parametrize("channels", [4, 7])
def test_further_channels_start_without_effect_and_learn(channels):
    model, pixels = tiny_model(), pictures(channels=channels)
    expected = model(pixels[:, :3]).logits
    model.resize_channels(channels)
    torch.testing.assert_close(model(pixels).logits, expected, atol=1e-5, rtol=1e-5)
    model(pixels).logits.square().sum().backward()
    assert (model.vit.embeddings.patch_embeddings.projection.weight.grad[:, 3:] != 0).all()


@pytest.mark.parametrize("model, channels", [
    (tiny_model(), 2), (tiny_model(), 0), (tiny_model(), 1.5), (tiny_model(num_channels=1), 3), (tiny_model(ViTCustomForMaskedImageModeling), 1),
    (tiny_model(pixel_mean=[1, 2, 3], pixel_std=[4, 5, 6]), 1),
])  # fmt: skip
def test_channels_that_cannot_be_made_are_refused(model, channels):
    with pytest.raises(ValueError, match="channels"):
        model.resize_channels(channels)


# ---------------------------------------------------------------------------------------------------------------------
# uint8

STATISTICS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
IN_MODEL = {
    "pixel_mean": [255 * value for value in STATISTICS["image_mean"]],
    "pixel_std": [255 * value for value in STATISTICS["image_std"]],
}


@pytest.mark.parametrize("cls", [ViTCustomForImageClassification, ViTCustomModel, ViTCustomForMaskedImageModeling])
def test_a_model_that_takes_uint8_gives_the_same(cls, tmp_path):
    plain, model = tiny_model(cls), tiny_model(cls, **IN_MODEL)
    picture = Image.fromarray(noise(50, 70, 3))
    mask = {} if cls is not ViTCustomForMaskedImageModeling else {"bool_masked_pos": torch.arange(12)[None] % 2 == 0}
    expected = plain(
        **ViTCustomImageProcessor.for_model(plain.config, **STATISTICS)(picture, return_tensors="pt"), **mask
    )
    model.save_pretrained(tmp_path)
    model = cls.from_pretrained(tmp_path)
    raw = ViTCustomImageProcessor.for_model(model.config)(picture, return_tensors="pt")
    assert raw.pixel_values.dtype == torch.uint8
    found = model(**raw, **mask)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-5)
    normalised = ViTCustomImageProcessor.for_model(plain.config, **STATISTICS)(picture, return_tensors="pt")
    torch.testing.assert_close(model(**normalised)[0], plain(**normalised)[0])


@pytest.mark.parametrize("statistics", [([127, 127, 127], [128, 128, 128]), ([200, 100.5, 0], [1, 2.5, 3])])
def test_whole_numbers_do_not_wrap(statistics):
    mean, std = statistics
    model, plain = tiny_model(pixel_mean=mean, pixel_std=std), tiny_model()
    raw = torch.randint(256, (2, 3, 16, 24), dtype=torch.uint8)
    mean, std = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in statistics)
    torch.testing.assert_close(model(raw).logits, plain((raw.float() - mean) / std).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["f01", "f255", "u16", "i64", "bool"])
def test_every_source_becomes_uint8_for_such_a_model(kind):
    processor, levels = ViTCustomImageProcessor.for_model(tiny_config(**IN_MODEL)), noise(16, 24, 3)
    levels = levels // 128 * 255 if kind == "bool" else levels
    sources = {"f01": levels / 255, "f255": levels.astype(float), "u16": levels.astype(np.uint16) * 257,
               "i64": levels.astype(np.int64), "bool": levels > 0}  # fmt: skip
    found = processor([Image.fromarray(levels), sources[kind]], return_tensors="pt").pixel_values
    assert found.dtype == torch.uint8 and torch.equal(found[0], found[1])


def test_a_frozen_projection_stays_frozen():
    model = tiny_model().requires_grad_(False)
    model.resize_channels(1)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_opacity_is_a_channel_like_the_others():
    rgba = noise(20, 30, 4)
    for resample in (0, 1, 2, 3):
        processor = ViTCustomImageProcessor.for_model(tiny_config(num_channels=4), resample=resample)
        found = processor([rgba, Image.fromarray(rgba, "RGBA")], return_tensors="pt").pixel_values
        assert torch.equal(found[0], found[1])


def test_uint8_works_in_a_pipeline_compiled_and_in_half_precision(tmp_path):
    model, plain = tiny_model(**IN_MODEL), tiny_model()
    processor, usual = (
        ViTCustomImageProcessor.for_model(model.config), ViTCustomImageProcessor.for_model(plain.config, **STATISTICS),
    )  # fmt: skip
    picture = Image.fromarray(noise(50, 70, 3))
    found, expected = (
        {row["label"]: row["score"] for row in pipeline("image-classification", model=m, image_processor=p)(picture)}
        for m, p in ((model, processor), (plain, usual))
    )
    assert found == pytest.approx(expected, abs=1e-5)
    raw = processor(picture, return_tensors="pt").pixel_values
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(raw).logits, model(raw).logits)
    half, full = model.to(torch.bfloat16)(raw).logits, plain(usual(picture, return_tensors="pt").pixel_values).logits
    assert (half.float() - full).abs().max() < 0.05 * full.abs().max()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_whole_numbers_are_refused_without_statistics(dtype):
    with pytest.raises(ValueError, match="pixel_mean"):
        tiny_model()(pictures().to(dtype))
    if dtype != torch.uint8:
        with pytest.raises(ValueError, match="give uint8"):
            tiny_model(**IN_MODEL)(pictures().to(dtype))


@pytest.mark.parametrize("options", [
    {"pixel_mean": [1.0, 2.0, 3.0]}, {"pixel_mean": [1.0], "pixel_std": [1.0]}, {"pixel_std": [1.0, 1.0, 1.0]},
    {"pixel_mean": [1.0, 2.0, float("nan")], "pixel_std": [1.0] * 3}, {"pixel_mean": [1.0] * 3, "pixel_std": [0.0] * 3},
])  # fmt: skip
def test_statistics_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="pixel_mean"):
        tiny_config(**options)
