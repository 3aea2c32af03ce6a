"""The engine by itself: what it must refuse even if no family's file happens to show it."""

import numpy as np
import pytest
import torch

from conversion import ConversionError, FactNeeded, import_checkpoint
from conversion.families.base import Found
from conversion.mapping import Row, account, rows_of, split, to_ours
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of


DINOV3 = next(path for path in FIXTURES if path.name == "facebook_dinov3")


def test_a_bias_that_the_model_has_no_place_for_must_be_zero(tmp_path):
    """DINOv3's key bias: zeros are dropped and come back, anything else is an error that names the tensor."""
    weights = torch.load(DINOV3 / meta_of(DINOV3)["file"], weights_only=True)
    name, width = "blocks.1.attn.qkv.bias", weights["cls_token"].shape[-1]
    weights[name][width + 3] = 1e-3
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(ConversionError, match=rf"{name}.*part 2 of 3 must be zero"):
        import_checkpoint(tmp_path / "weights.pth", **REQUESTS[DINOV3.name])


def test_what_the_table_does_not_fill_or_fills_twice_is_named():
    shapes = {"a": (2,), "b": (2,)}
    with pytest.raises(ConversionError, match="parameters that nothing fills: q"):
        account([Row("a", ("p",)), Row("b", ("r",))], shapes, {"p": (2,), "r": (2,), "q": (2,)}, "file")
    with pytest.raises(ConversionError, match="used twice: p"):
        account([Row("a", ("p",)), Row("b", ("p",))], shapes, {"p": (2,)}, "file")


def test_rows_of_parts_stacks_and_blocks():
    rows = rows_of({"l.{i}.{q,k,v}": "b.{i}.qkv"}, ["l.0.q.weight", "l.0.v.weight", "l.1.q.weight", "l.1.v.weight"], 2)
    assert [(row.theirs, row.ours) for row in rows] == [
        ("b.0.qkv.weight", ("l.0.q.weight", "l.0.v.weight")),
        ("b.1.qkv.weight", ("l.1.q.weight", "l.1.v.weight")),
    ]
    fused = torch.cat([torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)])
    made = dict(to_ours(rows[:1], lambda name: fused))
    assert made["l.0.q.weight"].tolist() == [1, 1] and made["l.0.v.weight"].tolist() == [3, 3]
    assert torch.equal(split(3, (1,)).to_theirs(list(made.values()))[0], fused)
    (stacked,) = rows_of({"l.{i}.n": "all.n"}, ["l.0.n.bias", "l.1.n.bias"], 2)
    assert stacked.theirs == "all.n.bias" and stacked.ours == ("l.0.n.bias", "l.1.n.bias")


def test_a_table_that_can_be_read_in_two_ways_is_asked_about():
    """25 rows: a 5 x 5 grid, or nine prefix tokens and a 4 x 4 grid."""
    with pytest.raises(FactNeeded, match="image_size"):
        Found({}).grid(25, (8, 8), (0, 9))
    assert Found({}, told={"image_size": 32}).grid(25, (8, 8), (0, 9)) == (9, 32)
    assert Found({}).grid(25, (8, 8), (0, 1)) == (0, 40)


@pytest.mark.parametrize(("count", "named"), [(100_001, "num_labels=100,001"), (None, "num_hidden_layers=1,001")])
def test_numbers_beyond_any_vit_are_refused_before_a_model_is_made(count, named, tmp_path):
    """Zeros pack well, so that a small file can claim much."""
    case = next(path for path in FIXTURES if path.name == ("vit_jax_token" if count else "big_vision_scan_map_bf16"))
    arrays = dict(np.load(case / meta_of(case)["file"]))
    if count:
        arrays["head/bias"] = np.zeros(count, np.float32)
    else:
        arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.zeros((1001, 24), np.float32)
    np.savez_compressed(tmp_path / "weights.npz", **arrays)
    with pytest.raises(ConversionError, match=named):
        import_checkpoint(tmp_path / "weights.npz")
