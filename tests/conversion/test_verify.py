"""`verify`: every family that has a reference here is within the tolerance, and a changed folder is not."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from conversion import ConversionError, import_to_folder
from conversion.verify import verify
from tests.conversion.originals import ORIGINALS, TOLD, pth, vit
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of, name_of
from tests.conversion.test_transformers import CASES
from tests.conversion.test_transformers import write as write_transformers


# Files that no implementation installed here can run, and why.
NOT_HERE = {
    "big_vision_gap_sincos_rep": "representation",
    "vit_jax_i21k_pre_logits": "representation",
    "big_vision_scan_map_bf16": "no implementation",
}


@pytest.mark.parametrize("case", FIXTURES, ids=name_of)
def test_files_of_the_originals(case):
    path, request = case / meta_of(case)["file"], REQUESTS.get(case.name, {})
    if case.name in NOT_HERE:
        with pytest.raises(ConversionError, match=NOT_HERE[case.name]):
            verify(path, **request)
    else:
        result = verify(path, **request)
        assert result.within and [layer.name for layer in result.layers] == [
            "embeddings",
            "block 1",
            "block 2",
            "output",
        ]


@pytest.mark.parametrize("name", ORIGINALS)
def test_timm_torchvision_and_what_shares_their_code(name, tmp_path):
    original = ORIGINALS[name]
    result = verify(original.write(original.build(), tmp_path), **original.request)
    assert result.within and ("torchvision" if "torchvision" in name else "timm") in str(result)


@pytest.mark.parametrize("name", ["vit-classifier", "deit-teacher", "dinov2", "dinov3", "clip-projection", "siglip"])
def test_folders_of_transformers(name, tmp_path):
    result = verify(write_transformers(CASES[name].build(), tmp_path / "theirs"))
    assert result.within and "transformers" in result.reference


def edit_config(folder, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def swap_q_and_k(weights) -> None:
    q, k = (f"vit.layers.1.attention.{x}_proj.weight" for x in "qk")
    weights[q], weights[k] = weights[k].clone(), weights[q].clone()


DAMAGES = {
    "eps": (lambda folder: edit_config(folder, layer_norm_eps=1e-3), "block 1"),
    "gelu": (lambda folder: edit_config(folder, hidden_act="gelu_pytorch_tanh"), "block 1"),
    "one tensor": (lambda folder: edit_weights(folder, lambda w: w["classifier.bias"].add_(1e-3)), "output"),
    "q and k": (lambda folder: edit_weights(folder, swap_q_and_k), "block 2"),
    "patches": (lambda folder: edit_weights(folder, lambda w: w["vit.embeddings.cls_token"].add_(1e-3)), "embeddings"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_was_changed_is_not_within(damage, tmp_path):
    source = pth()(vit(), tmp_path)
    import_to_folder(source, tmp_path / "ours", set=TOLD)
    assert verify(source, tmp_path / "ours", set=TOLD).within
    change, first = DAMAGES[damage]
    change(tmp_path / "ours")
    result = verify(source, tmp_path / "ours", set=TOLD, plot=tmp_path / "plot.png")
    assert not result.within and "NOT within" in str(result)
    assert next(layer.name for layer in result.layers if layer.relative > result.tolerance) == first
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG" and image.width > 400


def test_a_folder_that_is_none_of_ours_is_named(tmp_path):
    source = pth()(vit(), tmp_path)
    with pytest.raises(ConversionError, match="nowhere"):
        verify(source, tmp_path / "nowhere", set=TOLD)
    assert torch.isfinite(torch.tensor(verify(source, set=TOLD).layers[0].difference))
