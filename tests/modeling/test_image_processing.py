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
from transformers import AutoImageProcessor

from modeling_vit_custom import ViTCustomImageProcessor, load_picture, preprocessing_vit_custom
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


WRONG = [
    ({"crop_pct": 0.0}, "crop_pct=0.0"), ({"crop_pct": 1.5}, "crop_pct=1.5"), ({"crop_pct": "0.9"}, "crop_pct"),
    ({"crop_pct": 0.9, "size": {"shortest_edge": 32}}, "crop_pct=0.9"), ({"crop_pct": 0.001}, "crop_pct=0.001"),
    ({"crop_pct": 0.9, "do_resize": False}, "do_resize"), ({"crop_pct": float("nan")}, "crop_pct"),
    ({"crop_pct": 0.9, "do_center_crop": True}, "do_center_crop"), ({"do_resize": "yes"}, "do_resize"),
    ({"image_std": [0.0, 1.0, 1.0]}, "image_std"), ({"image_std": [0, 0, 0]}, "image_std"),
    ({"image_std": [-1.0, 1.0, 1.0]}, "image_std"), ({"image_std": float("inf")}, "image_std"),
    ({"image_mean": [float("nan")] * 3}, "image_mean"), ({"image_mean": "0.5"}, "image_mean"),
    ({"image_mean": [0.5, 0.5]}, "image_std=.*image_mean"), ({"image_mean": []}, "image_mean"),
    ({"image_mean": ["a", "b", "c"]}, "image_mean"), ({"rescale_factor": 0}, "rescale_factor"),
    ({"rescale_factor": float("nan")}, "rescale_factor"), ({"rescale_factor": "1/255"}, "rescale_factor"),
    ({"resample": 99}, "resample=99"), ({"resample": -1}, "resample"), ({"resample": "cubic"}, "resample"),
    ({"do_center_crop": True}, "crop_size"), ({"crop_pc": 0.9}, "crop_pc.*crop_pct"), ({"image_sdt": 1}, "image_std"),
    ({"do_center_crop": True, "crop_size": {"height": 5, "width": 0}}, "crop_size"),
    ({"size": {"height": -1, "width": 8}}, "size=.*-1"), ({"size": {"shortest_edge": 0}}, "size=.*shortest_edge"),
    ({"size": 60000}, "size=.*60000"), ({"size": {"height": 224, "width": 60000}}, "size=.*60000"), ({"size": 0}, "size"),
    ({"size": "224"}, "size"), ({"size": {"height": "224", "width": "224"}}, "size"), ({"size": {"height": 32}}, "width"),
    ({"size": {"high": 32, "width": 32}}, "size"), ({"size": []}, "size"), ({"size": [1, 2, 3]}, "size"),
    ({"size": 22.4}, "size"), ({"background": [0, 0]}, "background"), ({"background": [0, 0, 256]}, "background"),
    ({"background": "white"}, "background"), ({"max_pixels": 0}, "max_pixels"), ({"max_pixels": "many"}, "max_pixels"),
    ({"image_mean": [1e300] * 3}, "image_mean"), ({"image_std": [1e-40] * 3}, "image_std"), ({"rescale_factor": 1e300}, "rescale"),
    ({"data_format": "channels_last"}, "data_format"), ({"input_data_format": "HWC"}, "input_data_format"),
]  # fmt: skip


@pytest.mark.parametrize("options, named", WRONG, ids=[str(options) for options, _ in WRONG])
def test_values_that_cannot_be_are_refused_by_name(options, named, tmp_path):
    with pytest.raises(Exception, match=named):
        ViTCustomImageProcessor(**options)
    ViTCustomImageProcessor().save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    for load in (ViTCustomImageProcessor, AutoImageProcessor):
        with pytest.raises(Exception, match=named):
            load.from_pretrained(tmp_path)
    with pytest.raises(Exception, match=named):
        ViTCustomImageProcessor()(photo(), **options)


@pytest.mark.parametrize(
    "name", ["size", "image_mean", "image_std", "rescale_factor", "resample", "background", "max_pixels"]
)
def test_nulls_are_refused_by_name(name, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({name: None}))
    with pytest.raises(ValueError, match=f"{name}=None"):
        ViTCustomImageProcessor.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{name}=None"):
        ViTCustomImageProcessor()(photo(), **{name: None})


def test_a_file_without_a_table_is_refused(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ValueError, match="table of its arguments"):
        ViTCustomImageProcessor.from_pretrained(tmp_path)


def test_another_default_device_changes_nothing():
    expected = ViTCustomImageProcessor()(photo(), return_tensors="pt").pixel_values
    with torch.device("meta"):
        assert torch.equal(ViTCustomImageProcessor()(photo(), return_tensors="pt").pixel_values, expected)


def test_a_misspelt_argument_beside_a_file_is_refused(tmp_path):
    ViTCustomImageProcessor().save_pretrained(tmp_path)
    for load in (ViTCustomImageProcessor, AutoImageProcessor):
        with pytest.raises(ValueError, match="sise.*size"):
            load.from_pretrained(tmp_path, sise=32)
        loaded = load.from_pretrained(tmp_path)
        assert dict(load.from_pretrained(tmp_path, size=32).size) == {"height": 32, "width": 32}
    assert AutoImageProcessor.from_pretrained(tmp_path, backend="torchvision").to_dict() == loaded.to_dict()
    _, unused = ViTCustomImageProcessor.from_pretrained(tmp_path, sise=32, return_unused_kwargs=True)
    assert unused["sise"] == 32


def test_a_call_changes_nothing_of_the_processor():
    processor = ViTCustomImageProcessor()
    before = processor.to_dict()
    options = {
        "size": (20, 30),
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
        "resample": 3,
        "background": (1, 2, 3),
    }
    assert processor(photo(), return_tensors="pt", **options).pixel_values.shape == (1, 3, 20, 30)
    assert processor.to_dict() == before


@pytest.mark.parametrize("form, shape", [
    (32, (32, 32)), ((32, 64), (32, 64)), ([32, 64], (32, 64)), ({"height": 32, "width": 64}, (32, 64)),
    ({"shortest_edge": 32}, (32, 48)), ({"shortest_edge": 32, "longest_edge": 40}, (27, 40)),
    ({"max_height": 30, "max_width": 30}, (20, 30)), ({"longest_edge": 30}, (20, 30)),
])  # fmt: skip
def test_every_form_of_a_size(form, shape):
    assert ViTCustomImageProcessor(size=form)(photo(), return_tensors="pt").pixel_values.shape[2:] == shape


def test_pictures_of_several_shapes_make_a_list_but_no_batch():
    processor, pictures = ViTCustomImageProcessor(size={"shortest_edge": 32}), [photo(75, 50), photo(50, 75)]
    assert [p.shape for p in processor(pictures).pixel_values] == [(3, 32, 48), (3, 48, 32)]
    with pytest.raises(ValueError, match="make no batch: set a `size` of height and width"):
        processor(pictures, return_tensors="pt")
    padded = processor(pictures, return_tensors="pt", do_pad=True, pad_size={"height": 48, "width": 48})
    assert padded.pixel_values.shape == (2, 3, 48, 48) and not padded.pixel_values[0, :, 32:].any()


def test_a_picture_that_would_become_too_large_is_refused():
    with pytest.raises(ValueError, match="too large"):
        ViTCustomImageProcessor(size={"shortest_edge": 224})(Image.new("RGB", (100_000, 2)))


def test_numpy_and_lists_come_back_too():
    processor = ViTCustomImageProcessor(size=16)
    tensor = processor(photo(), return_tensors="pt").pixel_values
    assert np.array_equal(processor(photo(), return_tensors="np").pixel_values, tensor.numpy())
    assert torch.equal(processor([photo(), photo()]).pixel_values[1], tensor[0])


def test_integers_that_are_not_rescaled():
    """Taken as they are, in float32: the caller's mean and deviation say of what scale."""
    found = ViTCustomImageProcessor(do_resize=False, do_rescale=False, image_mean=[127.5] * 3, image_std=[127.5] * 3)
    expected = ViTCustomImageProcessor(do_resize=False)(photo(), return_tensors="pt").pixel_values
    torch.testing.assert_close(found(photo(), return_tensors="pt").pixel_values, expected, atol=1e-5, rtol=0)
    deep = np.full((8, 8, 1), -700.5)
    grey = ViTCustomImageProcessor(do_resize=False, do_rescale=False, image_mean=[-700.0], image_std=[2.0])
    assert torch.equal(grey(deep, return_tensors="pt").pixel_values, torch.full((1, 1, 8, 8), -0.25))


def test_levels_with_statistics_of_the_unit_range_are_warned_of(monkeypatch):
    said = []
    monkeypatch.setattr(preprocessing_vit_custom.logger, "warning_once", said.append)
    options = {"do_rescale": False, "return_tensors": "pt"}
    ViTCustomImageProcessor()(np.asarray(photo()) / 255, **options)
    ViTCustomImageProcessor(image_mean=[127.5] * 3, image_std=[127.5] * 3)(photo(), **options)
    assert not said
    assert torch.isfinite(ViTCustomImageProcessor()(photo(), **options).pixel_values).all()
    assert len(said) == 1 and "do_rescale=False" in said[0]


def test_files_of_old_versions_are_read(tmp_path):
    old = {
        "feature_extractor_type": "ViTFeatureExtractor",
        "size": 224,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**old, "resample": 2, "do_rescale": True}))
    assert dict(ViTCustomImageProcessor.from_pretrained(tmp_path).size) == {"height": 224, "width": 224}


def test_threads_change_nothing():
    pictures = [photo(40 + i, 50) for i in range(9)]
    processor, threads = ViTCustomImageProcessor(), torch.get_num_threads()
    alone = torch.cat([processor(picture, return_tensors="pt").pixel_values for picture in pictures])
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(processor(pictures, return_tensors="pt").pixel_values, alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["picture", "handle", "frames"])
def test_what_pillow_reads_from_one_handle_is_read_in_one_thread(kind, tmp_path, monkeypatch):
    """A picture that is opened but not yet read, twice; the same open file; two frames of one file."""
    path, threads, used = tmp_path / "a.gif", torch.get_num_threads(), []
    frames = [photo(40, 50), photo(50, 40)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    mapped = preprocessing_vit_custom.map_in_threads
    monkeypatch.setattr(preprocessing_vit_custom, "map_in_threads", lambda *a: used.append(a) or mapped(*a))
    try:
        torch.set_num_threads(3)
        with Image.open(path) as picture, open(path, "rb") as handle:
            shared = {"picture": [picture] * 9, "handle": [handle] * 9, "frames": [picture, path, picture]}[kind]
            found = ViTCustomImageProcessor()(shared, return_tensors="pt").pixel_values
        assert not used
        alone = ViTCustomImageProcessor()(path, return_tensors="pt").pixel_values
        assert torch.equal(found, alone.expand_as(found))
        ViTCustomImageProcessor()([path] * 9, return_tensors="pt")
        assert used
    finally:
        torch.set_num_threads(threads)


def test_large_pictures_that_pillow_keeps_in_pieces():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (2100, 2100, 3), dtype=np.uint8))
    found = ViTCustomImageProcessor()(picture, return_tensors="pt").pixel_values
    assert torch.equal(found, ViTCustomImageProcessor()(np.array(picture), return_tensors="pt").pixel_values)


def test_a_missing_picture_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_picture(tmp_path / "nowhere.png")


def test_without_antialias_four_pixels_are_taken():
    """As `tf.image.resize`: the sample at the centre of each new pixel, which Pillow's affine transform takes too."""
    photo = Image.fromarray(load_sample_images().images[0])
    processor = ViTCustomImageProcessor(
        antialias=False, size={"height": 97, "width": 64}, rescale_factor=1, do_normalize=False
    )
    pixels = processor(photo, return_tensors="pt").pixel_values[0].int()
    across, down = photo.width / 64, photo.height / 97
    expected = photo.transform((64, 97), Image.Transform.AFFINE, (across, 0, 0, 0, down, 0), Image.Resampling.BILINEAR)
    assert (pixels - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()).abs().max() <= 1
    smooth = ViTCustomImageProcessor(size={"height": 97, "width": 64}, rescale_factor=1, do_normalize=False)(
        photo, return_tensors="pt"
    )
    assert (pixels - smooth.pixel_values[0].int()).abs().max() > 30
    with pytest.raises(ValueError, match="antialias"):
        ViTCustomImageProcessor(antialias=False, resample=3)
