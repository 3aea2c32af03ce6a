"""The image processor: sizes and crops as torchvision's and timm's evaluation transforms, and the loader of pictures."""

import io
import json

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
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


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode):
    picture = photo(mode=mode)
    processor = ViTCustomImageProcessor(size={"height": 50, "width": 75})
    expected = processor(picture.convert("RGB"), return_tensors="pt").pixel_values
    assert torch.equal(processor([picture, photo()], return_tensors="pt").pixel_values[:1], expected)


def test_the_steps_can_be_left_out():
    picture = photo()
    plain = ViTCustomImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)
    assert torch.equal(plain(picture, return_tensors="pt").pixel_values[0], transforms.PILToTensor()(picture))
    scaled = ViTCustomImageProcessor(do_resize=False, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    expected = transforms.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])(transforms.ToTensor()(picture))
    torch.testing.assert_close(scaled(picture, return_tensors="pt").pixel_values[0], expected, atol=1e-5, rtol=1e-5)


def test_paths_bytes_arrays_and_pictures_are_the_same(tmp_path):
    path = tmp_path / "photo.png"
    photo().save(path)
    processor = ViTCustomImageProcessor(size={"height": 32, "width": 32})
    expected = processor(photo(), return_tensors="pt").pixel_values
    for source in (path, str(path), path.read_bytes(), np.asarray(photo()), [photo()]):
        assert torch.equal(processor(source, return_tensors="pt").pixel_values, expected)


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


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path):
    grey = np.asarray(photo(mode="L"))
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "grey.png")
    assert Image.open(tmp_path / "grey.png").mode == "I;16"
    assert np.array_equal(load_picture(tmp_path / "grey.png"), Image.fromarray(grey).convert("RGB"))
    processor = ViTCustomImageProcessor(do_resize=False)
    expected = processor(Image.fromarray(grey), return_tensors="pt").pixel_values
    for source in (tmp_path / "grey.png", Image.open(tmp_path / "grey.png")):
        assert torch.equal(processor(source, return_tensors="pt").pixel_values, expected)


@pytest.mark.parametrize("dtype, mode", [(np.float32, "F"), (np.int32, "I")])
def test_values_without_a_range_are_refused(dtype, mode, tmp_path):
    Image.fromarray(np.asarray(photo(mode="L")).astype(dtype)).save(tmp_path / "grey.tiff")
    with pytest.raises(ValueError, match=rf"grey\.tiff: mode '{mode}' says nothing"):
        load_picture(tmp_path / "grey.tiff")


@pytest.mark.parametrize("options, named", [
    ({"crop_pct": 0.0}, "crop_pct=0.0"), ({"crop_pct": 1.5}, "crop_pct=1.5"), ({"crop_pct": "0.9"}, "crop_pct"),
    ({"crop_pct": 0.9, "size": {"shortest_edge": 32}}, "crop_pct=0.9"),
    ({"image_std": [0.0, 1.0, 1.0]}, "image_std"), ({"image_mean": [float("nan")] * 3}, "image_mean"),
    ({"image_mean": [0.5, 0.5]}, "image_mean has 2 values"), ({"resample": 99}, "resample=99"),
    ({"do_center_crop": True}, "crop_size"), ({"crop_pc": 0.9}, "crop_pc.*crop_pct"), ({"image_sdt": 1}, "image_std"),
    ({"size": {"height": -1, "width": 8}}, "height=-1"), ({"size": {"shortest_edge": 0}}, "shortest_edge=0"),
    ({"crop_pct": 0.9, "do_resize": False}, "do_resize"),
    ({"crop_pct": 0.9, "do_center_crop": True}, "do_center_crop"), ({"do_resize": "yes"}, "do_resize"),
])  # fmt: skip
def test_values_that_cannot_be_are_refused_by_name(options, named):
    with pytest.raises(Exception, match=named):
        ViTCustomImageProcessor(**options)


def test_a_picture_is_loaded_upright():
    stored = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    photo().save(stored, "PNG", exif=exif)
    assert np.array_equal(load_picture(stored.getvalue()), photo().transpose(Image.ROTATE_270))


BROKEN = {
    "empty": b"",
    "text": b"<html>404</html>",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("kind", [*BROKEN, "truncated JPEG", "truncated PNG", "wrong checksum", "bomb"])
def test_a_picture_that_cannot_be_decoded_is_an_error_that_names_it(kind, tmp_path):
    content = BROKEN.get(kind)
    if content is None:
        stored = io.BytesIO()
        picture = Image.new("1", (30_000, 30_000)) if kind == "bomb" else photo()
        picture.save(stored, "JPEG" if "JPEG" in kind else "PNG")
        content = stored.getvalue()
        if "truncated" in kind:
            content = content[: len(content) // 2]
        if kind == "wrong checksum":
            place = content.index(b"IDAT") + 20
            content = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"picture\.jpg: cannot be decoded: .{10,}"):
        load_picture(path)
    with pytest.raises(ValueError, match="the third: cannot be decoded"):
        load_picture(content, name="the third")
    with pytest.raises(ValueError, match=r"picture\.jpg"):
        ViTCustomImageProcessor()(str(path))


def test_a_missing_picture_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_picture(tmp_path / "nowhere.png")
