"""
Small checkpoints that the original implementations made and ran (JAX, DINO, MAE, CLIP): same outputs, same file back.

`fixtures/*/meta.json` says what ran: repository, commit, function and versions. Every tensor in them is random.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conversion import FAMILIES, export_checkpoint, import_checkpoint, import_to_folder
from conversion.locate import open_source


FIXTURES = sorted(path.parent for path in (Path(__file__).parent / "fixtures").glob("*/meta.json"))
HEADS = {"set": {"num_attention_heads": 3}}
REQUESTS = {
    "big_vision_gap_sincos_rep": {"set": {"image_size": 32}},
    "facebook_dino_v1": {"family": "dino", **HEADS},
    "facebook_dinov2": HEADS,
    "facebook_dinov2_reg4": HEADS,
    "facebook_dinov3": {"set": {"num_attention_heads": 3, "image_size": 32}},
    "facebook_mae_encoder": {"family": "mae", **HEADS},
    "facebook_mae_finetuned_gap": {"family": "mae", **HEADS},
    "openai_clip_state_dict": {"family": "openai_clip", **HEADS},
    "openclip_quickgelu_pt": {"family": "open_clip", "set": {"num_attention_heads": 3, "hidden_act": "quick_gelu"}},
}


def name_of(path: Path) -> str:
    return path.name


def meta_of(case: Path) -> dict:
    return json.loads((case / "meta.json").read_text())


def outputs(model: torch.nn.Module, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        base = model.base_model(pixels)
        found = {"tokens": base.last_hidden_state, "pooled": base.pooler_output, "embeds": base.pooler_output}
        return found if model is model.base_model else {**found, "logits": model(pixels).logits}


@pytest.mark.parametrize("case", FIXTURES, ids=name_of)
def test_outputs_are_the_original_s_at_every_size(case):
    meta, inputs, expected = meta_of(case), np.load(case / "inputs.npz"), np.load(case / "expected.npz")
    model, _, _ = import_checkpoint(case / meta["file"], dtype="float64", **REQUESTS.get(case.name, {}))
    compared = 0
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        for key in expected.files:
            size, name, *precise = key.split(".")
            if bool(precise) == (dtype == torch.float64):
                got = outputs(model, torch.from_numpy(inputs[size]).to(dtype))[name].numpy()
                largest = max(1.0, np.abs(expected[key]).max())
                assert got.shape == expected[key].shape
                limit = meta["tolerance_f64"] * largest if precise else meta["tolerance"][name]
                assert np.abs(got - expected[key]).max() <= limit, key
                compared += 1
    assert compared == len(expected.files) >= 1


@pytest.mark.parametrize("case", FIXTURES, ids=name_of)
def test_the_file_comes_back_bit_for_bit(case, tmp_path):
    source = case / meta_of(case)["file"]
    report = import_to_folder(source, tmp_path / "ours", **REQUESTS.get(case.name, {}))
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs", report.family)
    theirs, back = (open_source(path).containers for path in (source, tmp_path / "theirs"))
    assert set(back) == {report.container}
    before, after = theirs[report.container], back[report.container]
    assert set(after.shapes) == set(before.shapes) - set(report.left_behind)
    for name in after.shapes:
        a, b = before.read(name), after.read(name)
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), name


def test_every_family_whose_original_cannot_be_installed_has_a_file_of_it():
    """The others are compared with the original itself, in `test_families.py` and `test_transformers.py`."""
    covered = {
        import_checkpoint(case / meta_of(case)["file"], **REQUESTS.get(case.name, {})).report.family
        for case in FIXTURES
    }
    elsewhere = {"timm", "torchvision", "deit", "ijepa"} | {
        name for name in FAMILIES if name.startswith("transformers")
    }
    assert covered | elsewhere == set(FAMILIES) and not covered & elsewhere


def test_the_buffers_of_dinov3_are_made_as_the_original_makes_them():
    case = next(path for path in FIXTURES if path.name == "facebook_dinov3")
    config = import_checkpoint(case / "weights.pth", **REQUESTS[case.name]).model.config
    made, file = FAMILIES["dinov3"].made(config), torch.load(case / "weights.pth", weights_only=True)
    for name in made.keys() - {"mask_token"}:
        assert torch.equal(made[name], file[name]) and made[name].dtype == file[name].dtype, name
    assert made["mask_token"].shape == file["mask_token"].shape
