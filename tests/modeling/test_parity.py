"""
The same weights in implementations that no one here wrote give the same numbers.

Every parameter is random and large. `peers.py` holds the names of each peer's weights.
"""

import pytest
import torch

from tests.modeling import peers


CASES = {
    **{f"timm-{name}": (peers.timm_vit, options) for name, options in peers.TIMM_CASES.items()},
    "timm-swiglu": (peers.timm_swiglu, {}),
    "transformers-vit": (peers.transformers_vit, {}),
    "transformers-deit-two-heads": (peers.transformers_deit, {}),
    "transformers-dinov2-registers-cls-mean": (peers.transformers_dinov2, {}),
    "transformers-dinov3-rope": (peers.transformers_dinov3, {}),
    "transformers-clip-projection": (peers.transformers_clip, {}),
    "transformers-siglip-map": (peers.transformers_siglip, {}),
    "transformers-beit-relative": (peers.transformers_beit, {}),
    "transformers-ijepa-mean": (peers.transformers_ijepa, {}),
    "transformers-simmim": (peers.transformers_simmim, {}),
    "torchvision-representation": (peers.torchvision_vit, {}),
}


def worst_difference(peer: peers.Pair, dtype: torch.dtype, sizes: list[tuple[int, int]]) -> float:
    """The largest difference at any of `sizes`, as a share of the peer's largest value."""
    worst = 0.0
    for size in sizes:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2)).to(dtype)
        theirs, ours = peer.theirs.to(dtype)(images), peer.ours.to(dtype)(images)
        worst = max(worst, ((ours - theirs).abs().max() / theirs.abs().max()).item())
    return worst


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_same_weights_give_the_same_numbers(case):
    build, options = CASES[case]
    assert worst_difference(build(**options), torch.float32, build(**options).sizes) < 1e-5


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_same_weights_give_the_same_numbers_in_float64(case):
    """At the native size: the peers resample their tables in float32."""
    build, options = CASES[case]
    peer = build(**options)
    assert worst_difference(peer, torch.float64, peer.sizes[:1]) < (1e-9 if peer.float64 else 1e-6)


@pytest.mark.parametrize("wrong", [
    {"layer_norm_eps": 1e-12}, {"layer_norm_eps": 1e-5}, {"hidden_act": "gelu_pytorch_tanh"},
    {"position_resampling": "bicubic"}, {"position_embedding": "sincos_2d"},
])  # fmt: skip
@torch.no_grad()
def test_the_tolerance_sees_a_wrong_constant(wrong):
    """The tests above would fail for each of these."""
    peer = peers.timm_vit(small_residual=True)
    assert worst_difference(peer, torch.float32, peer.sizes) < 1e-5
    model = type(peer.model)(peers.changed(peer.model.config, **wrong)).eval()
    model.load_state_dict(peer.model.state_dict(), strict="position_embedding" not in wrong)
    peer.ours = peers.Output(model, peers.logits)
    assert worst_difference(peer, torch.float32, peer.sizes) > 2e-5
