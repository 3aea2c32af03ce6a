"""The numerics of positions and patches, against closed forms and implementations that no one here wrote."""

import numpy as np
import pytest
import timm.layers
import torch
import torch.nn.functional as F
from transformers.models.dinov3_vit.modeling_dinov3_vit import (
    DINOv3ViTConfig,
    DINOv3ViTRopePositionEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.videomae.modeling_videomae import get_sinusoid_encoding_table
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from modeling_vit_custom.positions_vit_custom import (
    RESAMPLING,
    relative_bias,
    resample_grid,
    rope_2d,
    rotate,
    sincos_1d,
    sincos_2d,
    unpatchify,
)


CPU = torch.device("cpu")


def test_sincos_1d_is_vaswani_s_formula_as_in_videomae():
    theirs = get_sinusoid_encoding_table(50, 24)[0]
    torch.testing.assert_close(sincos_1d(50, 24, torch.float32, CPU), theirs.float(), atol=1e-5, rtol=0)


def test_sincos_2d_is_mae_s_table():
    y, x = build_2d_sinusoidal_position_embedding(7, 7, 48).chunk(2, dim=1)  # MAE has x first; see their ViTMAE
    theirs = torch.cat([x, y], dim=1).unflatten(0, (7, 7))[None]
    torch.testing.assert_close(sincos_2d((7, 7), 48, "mae", torch.float32, CPU), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("grid", [(7, 7), (3, 5)])
def test_sincos_2d_is_big_vision_s_table(grid):
    """The closed form of big_vision's models/vit.py, `posemb_sincos_2d`, in numpy."""
    y, x = np.mgrid[: grid[0], : grid[1]]
    omega = 1.0 / 10000.0 ** (np.arange(12) / 11)
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    theirs = torch.tensor(np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)).unflatten(0, grid)
    torch.testing.assert_close(sincos_2d(grid, 48, "big_vision", torch.float64, CPU)[0], theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_rope_2d_is_dinov3_s(grid):
    config = DINOv3ViTConfig(
        hidden_size=48, num_attention_heads=4, image_size=[8 * grid[0], 8 * grid[1]], patch_size=8
    )
    theirs = DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 8 * grid[0], 8 * grid[1]))
    ours = rope_2d(grid, 12, 100.0, torch.float32, CPU)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    q, k = torch.randn(2, 2, 4, grid[0] * grid[1], 12)
    rotated = apply_rotary_pos_emb(q, k, *theirs)
    torch.testing.assert_close((rotate(q, *ours), rotate(k, *ours)), rotated, atol=1e-5, rtol=0)


def test_relative_bias_is_swin_s_index():
    """A table with a different number in each cell, looked up as timm's Swin and BEiT do."""
    h, w = 3, 4
    table = torch.arange((2 * h - 1) * (2 * w - 1), dtype=torch.float32)
    index = timm.layers.gen_relative_position_index((h, w))
    ours = relative_bias(table.reshape(1, 2 * h - 1, 2 * w - 1, 1), (h, w))
    assert torch.equal(ours[0], table[index])


@pytest.mark.parametrize("method", RESAMPLING)
def test_resampling_keeps_the_table_where_the_grid_is_the_same(method):
    table = torch.randn(1, 3, 4, 8)
    assert resample_grid(table, (3, 4), method) is table


@pytest.mark.parametrize("grid", [(6, 8), (5, 3), (2, 9)])
def test_resampling_is_timm_s_and_torchvision_s_operator(grid):
    table = torch.randn(1, 4, 4, 8)
    flat = table.flatten(1, 2)
    theirs = timm.layers.resample_abs_pos_embed(flat, list(grid), [4, 4], num_prefix_tokens=0)
    torch.testing.assert_close(resample_grid(table, grid, "bicubic_antialias").flatten(1, 2), theirs)
    theirs = F.interpolate(table.permute(0, 3, 1, 2), size=grid, mode="bicubic", align_corners=True)
    torch.testing.assert_close(resample_grid(table, grid, "bicubic_align_corners"), theirs.permute(0, 2, 3, 1))


def test_bilinear_align_corners_is_scipy_s_zoom():
    """The resampling of vit_jax and big_vision: `scipy.ndimage.zoom(order=1)` by the ratio of the grids."""
    ndimage = pytest.importorskip("scipy.ndimage")
    table = torch.randn(4, 4, 8)
    theirs = ndimage.zoom(table.numpy(), (6 / 4, 9 / 4, 1), order=1)
    ours = resample_grid(table[None], (6, 9), "bilinear_align_corners")[0]
    torch.testing.assert_close(ours, torch.tensor(theirs), atol=1e-5, rtol=0)


def test_the_offset_of_dino():
    """`interpolate` is given the scale (n + 0.1) / N, not the size: dino, vision_transformer.py."""
    table = torch.randn(1, 4, 4, 8)
    scale = ((6 + 0.1) / 4, (5 + 0.1) / 4)
    theirs = F.interpolate(table.permute(0, 3, 1, 2), scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1)
    assert theirs.shape == (1, 6, 5, 8)
    ours = resample_grid(table, (6, 5), "bicubic_offset")
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, resample_grid(table, (6, 5), "bicubic"), atol=1e-3)


@pytest.mark.parametrize("method", RESAMPLING)
def test_rows_and_columns_stay_apart(method):
    """A table of row and column numbers, 14 x 14 to 16 x 12: monotonous along its own axis, constant along the other."""
    y, x = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    resampled = resample_grid(torch.stack([y, x], dim=-1)[None], (16, 12), method)[0]
    assert resampled.shape == (16, 12, 2)
    assert (resampled[1:, :, 0] > resampled[:-1, :, 0]).all() and (resampled[:, 1:, 1] > resampled[:, :-1, 1]).all()
    assert resampled[..., 0].std(dim=1).max() < 1e-3 and resampled[..., 1].std(dim=0).max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tables_are_resampled_in_float32(dtype):
    table = torch.randn(1, 4, 4, 8).to(dtype)
    ours = resample_grid(table, (6, 5), "bicubic")
    assert ours.dtype == dtype
    assert torch.equal(ours, resample_grid(table.float(), (6, 5), "bicubic").to(dtype))
    assert sincos_2d((3, 4), 16, "mae", dtype, CPU).dtype == torch.float32


def test_unpatchify_is_pixel_shuffle_for_square_patches():
    decoded = torch.randn(2, 3 * 4 * 4, 5, 6)
    theirs = torch.nn.PixelShuffle(4)(decoded)
    assert torch.equal(unpatchify(decoded.flatten(2).transpose(1, 2), (5, 6), (4, 4)), theirs)


def test_unpatchify_undoes_unfold_for_rectangular_patches():
    images = torch.randn(2, 3, 8, 24)
    patches = F.unfold(images, kernel_size=(4, 8), stride=(4, 8)).transpose(1, 2)
    assert torch.equal(unpatchify(patches, (2, 3), (4, 8)), images)
