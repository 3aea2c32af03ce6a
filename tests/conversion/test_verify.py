"""`verify`: every family that has a reference here is within the tolerance, and what was changed is not."""

import dataclasses
import importlib.util
import json
import math
from importlib.metadata import version

import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from conversion import FAMILIES, ConversionError, import_to_folder
from conversion.verify import Layer, Verification, compare, draw, verify
from tests.conversion.originals import ORIGINALS, TOLD, pth, timm_model, vit
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of, name_of
from tests.conversion.test_transformers import CASES
from tests.conversion.test_transformers import write as write_transformers


BLOCKS = ["embeddings", "block 1", "block 2"]
# Files that only their original on JAX can run, and why.
ON_JAX = {
    "big_vision_gap_sincos_rep": "computed position table.*its original on JAX",
    "vit_jax_i21k_pre_logits": "representation layer.*its original on JAX",
    "big_vision_scan_map_bf16": "no implementation.*its original on JAX",
}
NOT_HERE = {} if importlib.util.find_spec("big_vision") else ON_JAX


def names(result: Verification) -> list[str]:
    """The layers on the pictures of the native size; on others they are the same."""
    first, *others = ([layer.name for layer in layers] for layers in result.sizes.values())
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("case", FIXTURES, ids=name_of)
def test_files_of_the_originals(case):
    path, request = case / meta_of(case)["file"], REQUESTS.get(case.name, {})
    if case.name in NOT_HERE:
        with pytest.raises(ConversionError, match=NOT_HERE[case.name]):
            verify(path, **request)
        return
    result = verify(path, **request)
    assert result.within, result
    assert names(result)[:3] == BLOCKS and names(result)[-1] in ("logits", "output")
    assert result.reference.split()[0] in (
        "timm",
        "open_clip",
        "google-research/vision_transformer",
        "google-research/big_vision",
    )
    assert len(result.sizes) == (2 if "dinov3" in case.name else 1)


@pytest.mark.parametrize("name", ORIGINALS)
def test_timm_torchvision_and_what_shares_their_code(name, tmp_path):
    original = ORIGINALS[name]
    model = original.build()
    result = verify(original.write(model, tmp_path), **original.request)
    module = torchvision if "torchvision" in name else timm
    has_norm = not isinstance(getattr(model, "norm", None), torch.nn.Identity)
    last = "logits" if getattr(model, "num_classes", 5) else "output"
    assert result.within, result
    assert result.reference == f"{module.__name__} {version(module.__name__)}"
    assert names(result) == [*BLOCKS, *(["last norm"] if has_norm else []), "pooled", last]
    assert len(result.sizes) == (2 if original.family == "timm" else 1)


@pytest.mark.parametrize("name", CASES)
def test_folders_of_transformers(name, tmp_path):
    """Also those whose library makes up a pooler that is not in the file, or masks and shuffles the patches."""
    result = verify(write_transformers(CASES[name].build(), tmp_path / "theirs"))
    assert result.within, result
    assert result.reference == f"transformers {transformers.__version__}"
    assert names(result)[:3] == BLOCKS
    assert ("logits" in names(result)) == ("Classification" in CASES[name].model)
    assert set(names(result)[3:]) & {"last norm", "output", "logits"}
    assert len(result.sizes) == (1 if name == "vit-rectangle" else 2)


def test_what_transformers_would_make_up_is_refused(tmp_path):
    """A reference with a random block proves nothing."""
    folder = write_transformers(CASES["vit"].build(), tmp_path / "theirs")
    edit_weights(folder, lambda weights: weights.pop("layernorm.bias"))
    with pytest.raises(ConversionError, match=r"layernorm\.bias"):
        verify(folder)


@pytest.mark.parametrize("case", [case for case in FIXTURES if "clip_" in case.name], ids=name_of)
def test_open_clip_itself_runs(case):
    result = verify(case / meta_of(case)["file"], **REQUESTS[case.name])
    assert result.within and result.reference.startswith("open_clip ")


# ---------------------------------------------------------------------------------------------------------------------
# What is wrong


def edit_config(folder, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def swap_q_and_k(weights) -> None:
    q, k = (next(n for n in weights if n.endswith(f"layers.1.attention.{x}_proj.weight")) for x in "qk")
    weights[q], weights[k] = weights[k].clone(), weights[q].clone()


def add_to(ending: str):
    def change(weights) -> None:
        weights[next(name for name in weights if name.endswith(ending))].add_(1e-3)

    return change


DAMAGES = {
    "eps": (lambda folder: edit_config(folder, layer_norm_eps=1e-3), "block 1"),
    "gelu": (lambda folder: edit_config(folder, hidden_act="gelu_pytorch_tanh"), "block 1"),
    "q and k": (lambda folder: edit_weights(folder, swap_q_and_k), "block 2"),
    "embeddings": (lambda folder: edit_weights(folder, add_to("embeddings.cls_token")), "embeddings"),
    "block": (lambda folder: edit_weights(folder, add_to("layers.1.ffn.fc2.bias")), "block 2"),
    "norm": (lambda folder: edit_weights(folder, add_to("vit.norm.bias")), "last norm"),
    "head": (lambda folder: edit_weights(folder, add_to("classifier.bias")), "logits"),
}
SOURCES = {
    "torchvision": (lambda path: pth()(vit(), path), {"set": TOLD}),
    "deit": (
        lambda path: pth("model")(timm_model("deit_tiny_patch16_224"), path),
        {"family": "deit", "set": TOLD},
    ),
    "transformers": (lambda path: write_transformers(CASES["msn-classifier"].build(), path / "theirs"), {}),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_was_changed_is_not_within(damage, source, tmp_path):
    make, request = SOURCES[source]
    path = make(tmp_path)
    import_to_folder(path, tmp_path / "ours", **request)
    assert verify(path, tmp_path / "ours", **request).within
    change, first = DAMAGES[damage]
    change(tmp_path / "ours")
    result = verify(path, tmp_path / "ours", **request)
    assert not result.within and "NOT within" in str(result)
    assert next(layer.name for layer in result.layers if not layer.relative <= result.tolerance) == first


@pytest.mark.parametrize("case", [case for case in FIXTURES if case.name not in NOT_HERE], ids=name_of)
def test_swapped_q_and_k_and_another_eps_show_in_every_family_of_files(case, tmp_path):
    path, request = case / meta_of(case)["file"], REQUESTS.get(case.name, {})
    import_to_folder(path, tmp_path / "ours", **request)
    assert verify(path, tmp_path / "ours", **request).within
    old = json.loads((tmp_path / "ours/config.json").read_text()).get("layer_norm_eps", 1e-6)
    edit_config(tmp_path / "ours", layer_norm_eps=1e-3)
    assert not verify(path, tmp_path / "ours", **request).within
    edit_config(tmp_path / "ours", layer_norm_eps=old)
    assert verify(path, tmp_path / "ours", **request).within
    edit_weights(tmp_path / "ours", swap_q_and_k)
    assert not verify(path, tmp_path / "ours", **request).within


WRONG = [
    (name, wrong)
    for name in ("deit-pth", "deit3-pth", "dino-pth", "ijepa-pth", "torchvision")
    for wrong in ({"layer_norm_eps": 1e-3}, {"hidden_act": "relu"})
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=str)
def test_a_wrong_fact_of_the_converter_is_not_in_the_reference_too(name, wrong, tmp_path, monkeypatch):
    original = ORIGINALS[name]
    path, family = original.write(original.build(), tmp_path), FAMILIES[original.family]
    lying = dataclasses.replace(family, facts=lambda found: {**family.facts(found), **wrong})
    monkeypatch.setitem(FAMILIES, original.family, lying)
    assert not verify(path, **original.request).within


def test_resampled_positions_are_compared_at_another_size(tmp_path):
    original = ORIGINALS["timm-vit"]
    path = original.write(original.build(), tmp_path)
    import_to_folder(path, tmp_path / "ours")
    edit_config(tmp_path / "ours", position_resampling="bilinear")
    result = verify(path, tmp_path / "ours")
    native, other = ([layer.relative <= result.tolerance for layer in layers] for layers in result.sizes.values())
    assert all(native) and not any(other) and not result.within


def test_a_folder_that_is_none_of_ours_or_another_model_is_named(tmp_path):
    source = pth()(vit(), tmp_path)
    with pytest.raises(ConversionError, match="nowhere"):
        verify(source, tmp_path / "nowhere", set=TOLD)
    import_to_folder(source, tmp_path / "ours", set=TOLD)
    edit_config(tmp_path / "ours", num_hidden_layers=1)
    with pytest.raises(ConversionError, match=r"not of this model: vit\.layers\.1"):
        verify(source, tmp_path / "ours", set=TOLD)


# ---------------------------------------------------------------------------------------------------------------------
# Table and figure


def test_nan_and_small_numbers_are_not_within():
    assert not Verification("x", [Layer("block 1", (8, 8), float("nan"), float("nan"))], 1.0).within
    assert Verification("x", [Layer("block 1", (8, 8), 0.0, 0.0)], 0.0).within
    small = torch.tensor([1e-4, 2e-4])
    assert compare("block 1", (8, 8), small, small * 1.01).relative == pytest.approx(0.01, rel=1e-3)
    assert math.isnan(compare("block 1", (8, 8), small, small[:1]).relative)


def test_the_table_names_each_layer_and_the_plot_is_a_picture(tmp_path):
    original = ORIGINALS["timm-vit"]
    path = original.write(original.build(), tmp_path)
    result = verify(path, plot=tmp_path / "plot.png")
    lines = str(result).splitlines()
    assert "timm" in lines[0] and "32 x 32" in lines[1] and "within" in lines[-1]
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in names(result))
    with Image.open(tmp_path / "plot.png") as image:
        image.load()
        assert image.format == "PNG" and image.width > 400 and len(image.convert("L").getcolors()) > 10


@pytest.mark.parametrize("tolerance", [0.0, 1e-5])
def test_a_plot_of_anything_is_drawn(tolerance, tmp_path):
    values = (0.0, 1e-7, 3.0, float("inf"), float("nan"))
    layers = [Layer(f"block {index}", (8, 8), value, value) for index, value in enumerate(values)]
    draw(Verification("an original", layers, tolerance), tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        image.load()
        assert image.format == "PNG"
