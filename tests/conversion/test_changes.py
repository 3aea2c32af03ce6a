"""What is asked for on the way in is done or refused, and what was changed in between is written on the way out."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torchvision.models import VisionTransformer

from conversion import ConversionError, export_checkpoint, import_checkpoint, import_to_folder
from conversion.__main__ import main
from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomImageProcessor
from tests.conversion.originals import BARE, TOLD, pth, timm_folder, timm_model, vit


NAMES = ["a", "b", "c", "d", "e"]
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]


# ---------------------------------------------------------------------------------------------------------------------
# Types


@pytest.mark.parametrize("value", [1e5, -1e5, 65520.0])
def test_a_type_that_cannot_hold_the_values_is_refused(value, tmp_path):
    their = vit()
    with torch.no_grad():
        their.encoder.ln.weight[3] = value
    source = pth()(their, tmp_path)
    with pytest.raises(ConversionError, match=rf"--dtype float16 cannot hold norm.weight, .* {abs(value):g}"):
        import_to_folder(source, tmp_path / "out", set=TOLD, dtype="float16")
    assert not (tmp_path / "out").exists()
    assert import_checkpoint(source, set=TOLD, dtype="bfloat16").model.vit.norm.weight[3].isfinite()


# ---------------------------------------------------------------------------------------------------------------------
# Labels


def labels_of(tmp_path, content: str, *options: str) -> int:
    (tmp_path / "labels.txt").write_bytes(content.encode())
    source = pth()(vit(), tmp_path)
    told = ["--set", "num_attention_heads=4", "--labels", str(tmp_path / "labels.txt")]
    return main(["import", str(source), str(tmp_path / "out"), *told, *options])


@pytest.mark.parametrize("options", [[], ["--num-labels", "5"]])
@pytest.mark.parametrize(
    "content", ["a\nb\nc\nd\ne", "a\r\nb\r\nc\r\nd\r\ne\r\n\r\n", "\ufeffa\nb\nc\nd\ne\n\n\n", " a \nb\nc\nd\ne\t\n"]
)
def test_labels_name_the_classes(content, options, tmp_path):
    assert labels_of(tmp_path, content, *options) == 0
    model = ViTCustomForImageClassification.from_pretrained(tmp_path / "out")
    assert list(model.config.id2label.values()) == NAMES
    assert torch.equal(model.classifier.weight, torch.load(tmp_path / "weights.pth")["heads.head.weight"])


@pytest.mark.parametrize("inner", ["b\fB", "b\x0bB", "b\u2028B", "b\x85B"])
def test_a_line_ends_at_its_newline_alone(inner, tmp_path):
    assert labels_of(tmp_path, f"a\n{inner}\nc\nd\ne\n") == 0
    model = ViTCustomForImageClassification.from_pretrained(tmp_path / "out")
    assert list(model.config.id2label.values()) == ["a", inner, *NAMES[2:]]


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        ("a\nb\n\nd\ne\n", [], "line 3 is empty"), ("\na\nb\nc\nd\ne", [], "line 1 is empty"), ("", [], "line 1 is empty"),
        ("a\nb\nc\nd", [], "5 outputs but there are 4 labels"), ("a\na\nb\nc\nd", [], "'a'"), ("a\na\nb", ["--num-labels", "3"], "'a'"),
        ("a\nb\nc", ["--num-labels", "5"], "5 outputs but there are 3 labels"), ("a\nb\nc\nd\ne", ["--drop-head"], "no classes to name"),
        ("a\nb\nc", ["--num-labels", "4"], "4 but there are 3 labels"),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_are_an_error(content, options, named, tmp_path, capsys):
    assert labels_of(tmp_path, content, *options) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_labels_of_a_source_without_a_head_are_an_error(tmp_path):
    their = vit()
    their.heads = torch.nn.Identity()
    with pytest.raises(ConversionError, match="no classes to name"):
        import_checkpoint(pth()(their, tmp_path), set=TOLD, labels=NAMES)


# ---------------------------------------------------------------------------------------------------------------------
# Facts


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--set", "image_size=abc"], "image_size='abc'"), (["--set", "image_size=none"], "image_size=None"),
        (["--set", "image_size=1,2,3"], "image_size=[1, 2, 3]"), (["--set", "image_size=0"], "image_size=0"),
        (["--set", "image_size=32,x"], "image_size=[32, 'x']"), (["--set", "image_size=1.5"], "image_size=1.5"),
        (["--image-size", "none"], "image_size=None"), (["--image-size", "true"], "image_size=True"),
        (["--image-size", "1,2,3"], "image_size=[1, 2, 3]"), (["--set", "device=cuda"], "device"),
        (["--set", "return_tensors=pt"], "return_tensors"), (["--set", "data_format=channels_last"], "data_format"),
        (["--set", "resample=smooth"], "resample"), (["--set", "resample=9"], "resample"), (["--set", "hidden_act=none"], "hidden_act"),
        (["--set", "num_attention_heads=none"], "num_attention_heads"), (["--set", "num_attention_heads=5"], "num_attention_heads"),
        (["--set", "image_mean=1"], "image_mean"), (["--set", "size=none"], "size"),
    ],
)  # fmt: skip
def test_a_value_that_says_nothing_is_an_error(options, named, tmp_path, capsys):
    source = pth()(vit(), tmp_path)
    assert main(["import", str(source), str(tmp_path / "out"), "--set", "num_attention_heads=4", *options]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Out again


def changed_folder(tmp_path, labels: list[str] | None = None, **pixels):
    """A folder of timm, imported, changed as a person would, and exported."""
    import_to_folder(timm_folder(timm_model("vit_base_patch16_224"), tmp_path), tmp_path / "ours")
    if labels:
        model = ViTCustomForImageClassification.from_pretrained(tmp_path / "ours")
        model.config.id2label = dict(enumerate(labels))
        model.config.save_pretrained(tmp_path / "ours")
    if pixels:
        processor = ViTCustomImageProcessor.from_pretrained(tmp_path / "ours")
        ViTCustomImageProcessor(**{**processor.to_dict(), **pixels}).save_pretrained(tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", "timm")
    return tuple(json.loads((tmp_path / name / "config.json").read_text()) for name in ("timm", "back"))


def test_an_unchanged_description_is_the_old_one(tmp_path):
    theirs, back = changed_folder(tmp_path)
    assert back == theirs


def test_changed_labels_are_written(tmp_path):
    theirs, back = changed_folder(tmp_path, NAMES)
    assert back.pop("label_names") == NAMES and theirs.pop("label_names") != NAMES and back == theirs


PIXELS = {
    "statistics": {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.2, 0.1]},
    "bilinear": {"resample": 2},
    "crop": {"crop_pct": 0.7},
    "squash": {"crop_pct": None},
    "edge": {"crop_pct": None, "size": {"shortest_edge": 37}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
}  # fmt: skip


@pytest.mark.parametrize("name", PIXELS)
def test_changed_pixels_are_written(name, tmp_path):
    theirs, back = changed_folder(tmp_path, **PIXELS[name])
    assert {**back, "pretrained_cfg": 0} == {**theirs, "pretrained_cfg": 0}
    data = timm.data.resolve_data_config(pretrained_cfg=back["pretrained_cfg"])
    transform = timm.data.create_transform(**data)
    processor = ViTCustomImageProcessor.from_pretrained(tmp_path / "ours")
    std = torch.tensor(processor.image_std)[:, None, None]
    for photo in PHOTOS:
        expected = torch.as_tensor(np.asarray(transform(photo)))
        got = processor(photo, return_tensors="pt").pixel_values[0]
        assert got.shape == expected.shape and ((got - expected).abs() * std * 255).max() <= 1.01
    import_to_folder(tmp_path / "back", tmp_path / "again")
    again = ViTCustomImageProcessor.from_pretrained(tmp_path / "again")(PHOTOS[0], return_tensors="pt").pixel_values
    assert torch.equal(again, processor(PHOTOS[0], return_tensors="pt").pixel_values)


@pytest.mark.parametrize(
    "pixels",
    [
        {"antialias": False, "resample": 2}, {"crop_rounding": "down"}, {"do_normalize": False}, {"do_rescale": False},
        {"rescale_factor": 1 / 127.5}, {"do_resize": False, "crop_pct": None},
        {"crop_pct": None, "size": {"height": 40, "width": 40}},
        {"crop_pct": None, "size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 24, "width": 24}},
    ],
    ids=str,
)  # fmt: skip
def test_pixels_that_timm_has_no_word_for_are_refused(pixels, tmp_path):
    with pytest.raises(ConversionError, match="timm cannot express"):
        changed_folder(tmp_path, **pixels)


@pytest.mark.parametrize("edge", range(224, 300))
def test_every_edge_of_torchvision_is_a_crop_of_timm(edge, tmp_path):
    """int(size / crop_pct) is the edge, whatever the rounding."""
    if edge == 224:
        source = pth()(VisionTransformer(224, 112, 1, 2, 8, 8, num_classes=2), tmp_path)
        import_to_folder(source, tmp_path / "ours", set={"num_attention_heads": 2})
    from conversion.families.timm_config import pretrained_cfg
    from modeling_vit_custom import ViTCustomConfig

    crop = {"height": 224, "width": 224}
    processor = ViTCustomImageProcessor(size={"shortest_edge": edge}, do_center_crop=True, crop_size=crop)
    assert int(224 / pretrained_cfg(ViTCustomConfig(image_size=224), processor)["crop_pct"]) == edge


def test_bare_weights_of_timm_have_what_was_told(tmp_path):
    source = pth()(timm_model("vit_base_patch16_224"), tmp_path)
    _, processor, _ = import_checkpoint(
        source, family="timm", set={**TOLD, **BARE, "resample": "bilinear", "crop_pct": 0.9}
    )
    assert list(processor.image_mean) == BARE["image_mean"] and processor.resample == 2 and processor.crop_pct == 0.9


# ---------------------------------------------------------------------------------------------------------------------
# The record


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefix", 5), ("prefix", "../"), ("prefix", "/tmp/"), ("prefix", "model."), ("prefix", "a/../"), ("prefix", "text."), ("prefix", None),
        ("prefix", "model"), ("prefix", ".."), ("prefix", "model//"), ("base", 5), ("base", "text."), ("base", None), ("container", 5), ("container", None),
        ("container", ["model"]), ("layout", 5), ("layout", "other"), ("layout", None), ("family", 5), ("their_config", 5),
        ("their_config", []), ("their_processor", "x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["torchvision", "timm"])
def test_a_record_that_no_import_wrote_is_refused(field, value, family, tmp_path):
    if family == "torchvision":
        import_to_folder(pth()(vit(), tmp_path), tmp_path / "ours", set=TOLD)
    else:
        import_to_folder(timm_folder(timm_model("vit_base_patch16_224"), tmp_path), tmp_path / "ours")
    path = tmp_path / "ours/conversion.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    if (field, value) == ("prefix", "model."):
        export_checkpoint(tmp_path / "ours", tmp_path / "back", family)
        return
    with pytest.raises(ConversionError, match=f"conversion.json: {field}="):
        export_checkpoint(tmp_path / "ours", tmp_path / "back", family)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "theirs",
    [
        {"id2label": []}, {"id2label": {"a": 5}}, {"label_names": 5}, {"model_args": 5}, {"pretrained_cfg": 5}, {"vision_config": 5},
        {"pretrained_cfg": {"mean": 5}}, {"pretrained_cfg": {"input_size": 5}}, {"model_args": {"img_size": "x"}}, {"architectures": 5},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("family", ["timm", "transformers_vit"])
def test_a_description_in_the_record_that_no_library_wrote_is_no_traceback(theirs, family, tmp_path):
    """Read where it matters and refused, or not of this library and left as it was."""
    import_to_folder(timm_folder(timm_model("vit_base_patch16_224"), tmp_path), tmp_path / "ours")
    path = tmp_path / "ours/conversion.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "family": family, "layout": "memory" if family != "timm" else record["layout"],
                                "their_config": {**record["their_config"], **theirs} if family == "timm" else theirs}))  # fmt: skip
    try:
        export_checkpoint(tmp_path / "ours", tmp_path / "back", family)
    except ConversionError as error:
        assert str(error)
        assert not (tmp_path / "back").exists()
    else:
        import_to_folder(tmp_path / "back", tmp_path / "again")
        first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "again"))
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("prefix", ["../", "/", "..", "model..", "model//", "./"])
def test_a_prefix_that_is_no_wrapper_s_is_unknown(prefix, tmp_path):
    save_file({f"{prefix}{name}": tensor for name, tensor in vit().state_dict().items()}, tmp_path / "a.safetensors")
    with pytest.raises(ConversionError, match="no plain ViT"):
        import_checkpoint(tmp_path / "a.safetensors", set=TOLD)
