"""Folders of ours that were damaged or edited, and what only looks like one: named, and nothing is written."""

import json
import os
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conversion import ConversionError, export_checkpoint, import_checkpoint, import_to_folder
from conversion.__main__ import main
from conversion.verify import verify
from modeling_vit_custom import ViTCustomImageProcessor, ViTCustomModel
from tests.conversion.originals import TOLD, pth, timm_folder, timm_model, vit
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of
from tests.conversion.test_transformers import CASES
from tests.conversion.test_transformers import write as write_transformers
from tests.tiny import tiny_model


DINOV3 = next(case for case in FIXTURES if case.name == "facebook_dinov3")
DINOV3_TOLD = REQUESTS.get("facebook_dinov3", {})


@pytest.fixture
def ours(tmp_path):
    import_to_folder(pth()(vit(), tmp_path), tmp_path / "ours", set=TOLD)
    return tmp_path / "ours"


def assert_refused(folder, family: str, named: str) -> None:
    out = folder.parent / f"out-{family}"
    with pytest.raises(ConversionError, match=named):
        export_checkpoint(folder, out, family)
    assert not out.exists()


def edit_weights(path, change) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


def edit_json(path, **fields) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("family", ["torchvision", "timm", "dino", "transformers_vit"])
@pytest.mark.parametrize(
    "name",
    [
        "vit.layers.1.ffn.fc2.weight", "vit.layers.1.norm1.bias", "vit.layers.1.attention.q_proj.bias", "classifier.bias", "vit.norm.weight",
        "vit.embeddings.cls_token",
    ],
)  # fmt: skip
def test_weights_that_are_not_those_of_the_configuration(name, family, ours):
    path = ours / "model.safetensors"
    whole = load_file(path)
    edit_weights(path, lambda weights: weights.pop(name))
    assert_refused(ours, family, f"missing: {name.removeprefix('vit.')}")
    save_file(
        {**whole, name: whole[name][:3].clone() if whole[name].ndim == 1 else whole[name][..., :3].clone()},
        path,
        {"format": "pt"},
    )
    assert_refused(ours, family, f"of another shape: {name.removeprefix('vit.')}")
    save_file({**whole, "vit.more": torch.ones(1)}, path, {"format": "pt"})
    assert_refused(ours, family, "not of this model: vit.more")


def test_tensors_kept_aside_are_those_of_the_record(tmp_path):
    folder = tmp_path / "ours"
    import_to_folder(DINOV3 / meta_of(DINOV3)["file"], folder, **DINOV3_TOLD)
    path, record = folder / "kept.safetensors", json.loads((folder / "conversion.json").read_text())
    whole = load_file(path)
    for change in (
        lambda w: w.update({"norm.weight": torch.full((48,), 7.0)}), lambda w: w.update({"../../evil": torch.ones(1)}),
        lambda w: w.pop("mask_token"), lambda w: w.update({"mask_token": torch.ones(1)}),
    ):  # fmt: skip
        edit_weights(path, change)
        assert_refused(folder, "dinov3", "does not hold the tensors that conversion.json names")
        save_file(whole, path)
    for name in ("norm.weight", "../../evil", "head.weight"):
        save_file({**whole, name: torch.ones(3)}, path)
        edit_json(folder / "conversion.json", kept={**record["kept"], name: [3]})
        assert_refused(folder, "dinov3", f"kept names {name}, which dinov3 does not keep")
    edit_json(folder / "conversion.json", kept=record["kept"])
    path.unlink()
    assert_refused(folder, "dinov3", "kept.safetensors is no file")


CONFIG = [
    {"zero_init_head": -0.0}, {"dtype": "a"}, {"dtype": []}, {"id2label": float("inf")}, {"auto_map": "x"}, {"patch_size": [8, 4]},
    {"num_hidden_layers": 2**63}, {"num_hidden_layers": 2000}, {"hidden_size": -1}, {"hidden_size": 10**30}, {"image_size": "x"},
    {"image_size": []}, {"position_embedding": "x"}, {"num_attention_heads": 0}, {"model_type": "bert"}, {"id2label": {"0": 5}},
]  # fmt: skip
PROCESSOR = [
    {"background": [[1], 2, 3]}, {"size": []}, {"size": 10**30}, {"image_mean": "x"}, {"resample": "x"}, {"crop_size": [[1]]}, {"crop_pct": []},
]  # fmt: skip


@pytest.mark.parametrize("fields", CONFIG, ids=str)
def test_a_configuration_that_was_edited(fields, ours):
    edit_json(ours / "config.json", **fields)
    for family in ("torchvision", "timm"):
        assert_refused(ours, family, ".")
    with pytest.raises(ConversionError):
        verify(ours.parent / "weights.pth", ours, set=TOLD)


@pytest.mark.parametrize("fields", PROCESSOR, ids=str)
def test_an_image_processor_that_was_edited(fields, ours):
    edit_json(ours / "preprocessor_config.json", **fields)
    assert_refused(ours, "timm", ".")


@pytest.mark.parametrize(
    "record",
    [
        {"their_processor": {"size": []}}, {"their_processor": {"crop_size": [[1]]}}, {"their_config": {"hidden_size": -1}},
        {"their_config": {"model_args": {"img_size": ["a"]}}}, {"their_config": {"image_size": "x"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_was_edited(record, tmp_path):
    for name, make, family in (
        ("timm", lambda: timm_folder(timm_model("vit_base_patch16_224"), tmp_path), "timm"),
        ("hf", lambda: write_transformers(CASES["vit-classifier"].build(), tmp_path / "hf"), "transformers_vit"),
    ):
        folder = tmp_path / f"ours-{name}"
        import_to_folder(make(), folder)
        edit_json(folder / "conversion.json", **record)
        try:
            export_checkpoint(folder, tmp_path / f"back-{name}", family)
        except ConversionError as error:
            assert str(error) and not (tmp_path / f"back-{name}").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "endless", "folder"])
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "conversion.json", "model.safetensors"])
def test_a_file_that_is_none_of_the_folder(name, kind, ours):
    elsewhere = ours.parent / "elsewhere"
    (ours / name).rename(elsewhere)
    make = {
        "link": lambda path: path.symlink_to(elsewhere), "dangling": lambda path: path.symlink_to("nowhere"), "pipe": os.mkfifo,
        "endless": lambda path: path.symlink_to("/dev/zero"), "folder": lambda path: path.mkdir(),
    }  # fmt: skip
    make[kind](ours / name)
    assert_refused(ours, "torchvision", f"{name} is (no file|a link)")


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "endless"])
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_a_description_that_is_none_of_the_source(name, kind, tmp_path):
    source = write_transformers(CASES["vit-classifier"].build(), tmp_path / "hf")
    (source / "preprocessor_config.json").write_text("{}") if not (
        source / "preprocessor_config.json"
    ).exists() else None
    elsewhere = tmp_path / "elsewhere"
    (source / name).rename(elsewhere)
    make = {
        "link": lambda path: path.symlink_to(elsewhere), "dangling": lambda path: path.symlink_to("nowhere"), "pipe": os.mkfifo,
        "endless": lambda path: path.symlink_to("/dev/zero"),
    }  # fmt: skip
    make[kind](source / name)
    with pytest.raises(ConversionError, match=f"{name} is (no file|a link)"):
        import_to_folder(source, tmp_path / "out")


@pytest.mark.parametrize("out", ["x/..", "..", ".", "x/.", "ours/../ours"])
def test_a_place_that_is_there_or_would_be(out, tmp_path, monkeypatch):
    source = pth()(vit(), tmp_path)
    import_to_folder(source, tmp_path / "ours", set=TOLD)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    if out == "x/.":
        import_to_folder(source, out, set=TOLD)
        assert (tmp_path / "x/config.json").exists()
        return
    with pytest.raises(ConversionError, match="exists already"):
        import_to_folder(source, out, set=TOLD)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "~nobody-here/x"],
        ["import", "~nobody-here/x", "out"],
        ["export", "~nobody-here/x", "out", "--to", "timm"],
    ],
)
def test_a_home_that_nobody_has(command, capsys):
    assert main(command) == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_folder_of_ours_in_a_wrapper(ours):
    torch.save({"state_dict": load_file(ours / "model.safetensors")}, ours / "pytorch_model.bin")
    (ours / "model.safetensors").unlink()
    export_checkpoint(ours, ours.parent / "back.pth", "torchvision")
    torch.save(
        {
            "a": load_file(ours.parent / "ours/kept.safetensors") if False else {"x": torch.ones(1)},
            "b": {"y": torch.ones(1)},
        },
        ours / "pytorch_model.bin",
    )
    assert_refused(ours, "torchvision", "2 state dicts")


# ---------------------------------------------------------------------------------------------------------------------
# npz


def packed(path, header: bytes, compression: int, version: int = 2) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", b"\x93NUMPY" + bytes([version, 0]) + header)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_header_of_a_hundred_megabytes_is_not_read(compression, tmp_path):
    length = 100_000_000
    packed(tmp_path / "a.npz", length.to_bytes(4, "little") + b" " * length, compression)
    reads = []
    original = zipfile.ZipExtFile.read

    def read(self, count=-1):
        reads.append(count)
        return original(self, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile.ZipExtFile, "read", read)
        with pytest.raises(ConversionError, match="header of more than 64 kB|packed in a way"):
            import_checkpoint(tmp_path / "a.npz")
    assert all(0 <= count <= 70_000 for count in reads)


def test_an_array_of_the_second_version_is_read(tmp_path):
    case = next(case for case in FIXTURES if case.name == "vit_jax_token")
    arrays = dict(np.load(case / meta_of(case)["file"]))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, version=(2, 0))
    first, second = (import_checkpoint(path).model for path in (case / meta_of(case)["file"], tmp_path / "a.npz"))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


# ---------------------------------------------------------------------------------------------------------------------
# DINOv3's buffers


def changed_dinov3(tmp_path, change):
    weights = torch.load(DINOV3 / meta_of(DINOV3)["file"], weights_only=True)
    change(weights)
    torch.save(weights, tmp_path / "dinov3.pth")
    return tmp_path / "dinov3.pth"


def test_the_periods_of_the_rotation_are_those_of_the_file(tmp_path):
    count = len(torch.load(DINOV3 / meta_of(DINOV3)["file"], weights_only=True)["rope_embed.periods"])
    periods = 30.0 ** (torch.arange(count) / count)
    source = changed_dinov3(tmp_path, lambda w: w.update({"rope_embed.periods": periods}))
    with pytest.raises(ConversionError, match="not those of rope_theta=100.* --set rope_theta="):
        import_checkpoint(source, **DINOV3_TOLD)
    request = {**DINOV3_TOLD, "set": {**DINOV3_TOLD.get("set", {}), "rope_theta": 30.0}}
    assert import_checkpoint(source, **request).model.config.rope_theta == 30.0
    import_to_folder(source, tmp_path / "ours", **request)
    export_checkpoint(tmp_path / "ours", tmp_path / "back.pth", "dinov3")
    assert torch.equal(torch.load(tmp_path / "back.pth", weights_only=True)["rope_embed.periods"], periods)
    for rounded in (
        lambda p: p.bfloat16(),
        lambda p: p.bfloat16().float(),
        lambda p: p.half().double(),
        lambda p: p * (1 + 1e-6),
    ):
        half = changed_dinov3(tmp_path, lambda w: w.update({"rope_embed.periods": rounded(w["rope_embed.periods"])}))  # noqa: B023
        assert import_checkpoint(half, **DINOV3_TOLD).model.config.rope_theta == 100.0
    odd = changed_dinov3(tmp_path, lambda w: w["rope_embed.periods"].add_(0.1))
    for theta in (100.0, 30.0, 103.0):
        told = {**DINOV3_TOLD, "set": {**DINOV3_TOLD.get("set", {}), "rope_theta": theta}}
        with pytest.raises(ConversionError, match="periods"):
            import_checkpoint(odd, **told)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_a_mask_of_other_biases_is_refused(value, tmp_path):
    source = changed_dinov3(tmp_path, lambda w: w["blocks.1.attn.qkv.bias_mask"].fill_(value))
    with pytest.raises(ConversionError, match="blocks.1.attn.qkv.bias_mask masks other biases"):
        import_checkpoint(source, **DINOV3_TOLD)


@pytest.mark.parametrize("name", ["mask_token", "rope_embed.periods"])
@pytest.mark.parametrize("shape", [(), (0,), (1, 24, 1)])
def test_a_buffer_of_another_shape_is_refused(name, shape, tmp_path):
    source = changed_dinov3(tmp_path, lambda w: w.update({name: torch.ones(shape)}))
    with pytest.raises(ConversionError, match=name if name == "mask_token" else "periods"):
        import_checkpoint(source, **DINOV3_TOLD)


# ---------------------------------------------------------------------------------------------------------------------
# What a file can't say


EXPRESSED = [
    ("dino", {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 12, "num_attention_heads": 6}, "num_attention_heads=6.*means 3"),
    ("dino", {"layer_norm_eps": 1e-5}, "layer_norm_eps"), ("dino", {"position_resampling": "bilinear"}, "position_resampling='bilinear'"),
    ("openai_clip", {"num_attention_heads": 4, "hidden_size": 128}, "num_attention_heads=4.*means 2"),
    ("openai_clip", {"hidden_act": "gelu"}, "hidden_act"), ("open_clip", {"layer_norm_eps": 1e-3}, "layer_norm_eps"),
    ("open_clip", {"final_norm": "tokens", "pooling": "mean"}, "final_norm|pooling"), ("timm", {"position_resampling": "bilinear"}, "position_resampling"),
    ("transformers_dinov2", {"image_size": [32, 128], "layerscale_value": 0.1, "intermediate_size": 96}, "must be squares"),
    ("transformers_clip_vision", {"image_size": [32, 24]}, "must be squares"), ("ijepa", {"position_embedding": "relative"}, "."),
    ("mae", {"position_embedding": "relative"}, "."), ("dinov2", {"position_embedding": "relative"}, "."),
    ("transformers_deit", {"position_embedding": "relative"}, "."),
]  # fmt: skip
CLIP = {
    "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "embedding_norm": True, "final_norm": "pooled", "patch_bias": False,
    "position_resampling": "bicubic_antialias",
}  # fmt: skip
BASES = {
    "openai_clip": CLIP, "open_clip": CLIP, "transformers_clip_vision": {**CLIP, "position_resampling": "bicubic"},
    "dino": {"position_resampling": "bicubic_offset"}, "transformers_dinov2": {"position_resampling": "bicubic_antialias"},
}  # fmt: skip


@pytest.mark.parametrize(("family", "fields", "named"), EXPRESSED, ids=str)
def test_what_a_reader_would_take_for_something_else_is_refused(family, fields, named, tmp_path):
    size = {"image_size": 32, "patch_size": 8, "num_labels": 0}
    model = tiny_model(**{**size, **BASES.get(family, {}), **fields})
    model.save_pretrained(tmp_path / "ours")
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path / "ours")
    assert_refused(tmp_path / "ours", family, named)


def test_what_a_file_leaves_out_is_said(ours, capsys):
    ViTCustomImageProcessor(size={"height": 32, "width": 32}, resample=0).save_pretrained(ours)
    edit_json(
        ours / "config.json",
        id2label={str(i): n for i, n in enumerate("abcde")},
        label2id={n: i for i, n in enumerate("abcde")},
    )
    assert main(["export", str(ours), str(ours.parent / "back.pth"), "--to", "torchvision"]) == 0
    said = capsys.readouterr().out
    assert "resample=0 (2)" in said and "image_mean=" in said and "the names of the classes" in said


@pytest.mark.parametrize("size", [[16, 64], [24, 40]])
@pytest.mark.parametrize("family", ["dino", "mae", "deit"])
def test_a_rectangle_is_written_for_a_reader_who_is_told(family, size, tmp_path):
    """Also where its positions are as many as those of a square."""
    fields = BASES.get(family, {"position_resampling": "bicubic"})
    model = tiny_model(image_size=size, patch_size=8, num_labels=5 if family == "deit" else 0, **fields)
    model.save_pretrained(tmp_path / "ours")
    done = export_checkpoint(tmp_path / "ours", tmp_path / "a.pth", family)
    assert f"--set image_size={size[0]},{size[1]}" in " ".join(done.notes)
    told = {"image_size": size, "num_attention_heads": model.config.num_attention_heads}
    back = import_checkpoint(tmp_path / "a.pth", family=family, set=told).model
    assert back.config.image_size == size
    with torch.no_grad():
        pixels = torch.randn(1, 3, *size)
        mine, theirs = (m.base_model(pixels).last_hidden_state for m in (model.eval(), back))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("family", ["mae", "transformers_vit_mae", "dino"])
def test_an_encoder_whose_configuration_counts_classes(family, tmp_path):
    """As every `ViTCustomModel` that is saved with the default of two labels."""
    fields = {"position_resampling": "bicubic_offset" if family == "dino" else "bicubic"}
    config = tiny_model(image_size=32, patch_size=8, num_labels=2, **fields).config
    ViTCustomModel(config).save_pretrained(tmp_path / "ours")
    ViTCustomImageProcessor.for_model(config).save_pretrained(tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", family)


@pytest.mark.parametrize(
    ("name", "family"), [("timm", "deit"), ("timm", "dino"), ("deit", "deit"), ("torchvision", "mae")]
)
def test_what_came_with_timm_s_crop_goes_to_a_file(name, family, tmp_path):
    make = {
        "timm": (lambda: timm_folder(timm_model("vit_base_patch16_224", num_classes=0 if family == "dino" else 5), tmp_path), {}),
        "deit": (lambda: pth("model")(timm_model("deit_tiny_patch16_224"), tmp_path), {"family": "deit", "set": TOLD}),
        "torchvision": (lambda: pth()(vit(), tmp_path), {"set": TOLD}),
    }  # fmt: skip
    source, request = make[name]
    import_to_folder(source(), tmp_path / "ours", **request)
    resampling = "bicubic_offset" if family == "dino" else "bicubic"
    if name == "torchvision":
        assert_refused(tmp_path / "ours", family, "cannot express")
        return
    done = export_checkpoint(tmp_path / "ours", tmp_path / "x.pth", family, position_resampling=resampling)
    assert ("crop_pct=" in " ".join(done.notes)) == (name == "timm")


def test_a_change_of_size_goes_out_again(tmp_path):
    source = pth("model")(timm_model("deit_tiny_patch16_224"), tmp_path)
    import_to_folder(source, tmp_path / "ours", family="deit", set=TOLD, image_size=[48, 24])
    done = export_checkpoint(tmp_path / "ours", tmp_path / "back.pth", "deit")
    assert "image_size=48,24" in done.notes[0]
    again = import_checkpoint(tmp_path / "back.pth", family="deit", set={**TOLD, "image_size": [48, 24]}).model
    assert again.config.image_size == [48, 24]


@pytest.mark.parametrize("family", ["deit", "timm", "torchvision"])
def test_a_square_of_two_numbers_is_one(family, tmp_path):
    resampling = {"deit": "bicubic", "timm": "bicubic_antialias", "torchvision": "bicubic_align_corners"}[family]
    model = tiny_model(image_size=[32, 32], patch_size=[8, 8], num_labels=5, position_resampling=resampling)
    model.save_pretrained(tmp_path / "ours")
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", family)


def test_nothing_is_written_where_what_is_left_out_cannot_be_told(tmp_path):
    source = pth("model")(timm_model("deit_tiny_patch16_224"), tmp_path)
    import_to_folder(source, tmp_path / "ours", family="deit", set=TOLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conversion.exporting.notes_of", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_checkpoint(tmp_path / "ours", tmp_path / "back.pth", "deit")
    assert not (tmp_path / "back.pth").exists()


class Vast:
    """Pickles as the call of `bytearray` for a hundred gigabytes."""

    def __reduce__(self):
        return bytearray, (100 * 2**30,)


@pytest.mark.parametrize(("is_zip", "appended"), [(True, b""), (False, b""), (False, b"PK\x05\x06" + bytes(18))])
def test_a_call_for_any_amount_of_memory_is_refused(is_zip, appended, tmp_path):
    """Also of an old file with an empty archive at its end."""
    torch.save({**vit().state_dict(), "more": Vast()}, tmp_path / "a.pth", _use_new_zipfile_serialization=is_zip)
    with open(tmp_path / "a.pth", "ab") as file:
        file.write(appended)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", lambda *a, **k: pytest.fail("it was loaded"))
        with pytest.raises(ConversionError, match="bytearray"):
            import_checkpoint(tmp_path / "a.pth", set=TOLD)
