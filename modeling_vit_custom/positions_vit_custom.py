"""
Numerics of positions and patches, as pure tensor functions.

Grids are (h, w): patches down and across, in row-major order. Tables are computed in float32 or better, whatever the
model's type; the caller casts.

Letters: B batch, N = h * w patches, T tokens (prefix + patches), D width, H heads, K head width, C channels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


# How each family of checkpoints brings its table to another grid: arguments of `torch.nn.functional.interpolate`.
RESAMPLING = {
    "bicubic": {"mode": "bicubic"},  # transformers
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},  # timm, OpenCLIP, DINOv2 with registers
    "bicubic_align_corners": {"mode": "bicubic", "align_corners": True},  # torchvision
    "bicubic_offset": {"mode": "bicubic"},  # DINO, DINOv2: scale (n + 0.1) / N, see `resample_grid`
    "bilinear": {"mode": "bilinear"},
    "bilinear_antialias": {"mode": "bilinear", "antialias": True},  # FlexiViT, SigLIP 2 NaFlex
    "bilinear_align_corners": {
        "mode": "bilinear",
        "align_corners": True,
    },  # vit_jax, big_vision (scipy zoom of order 1)
}
DINO_OFFSET = 0.1

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines that `rotate` takes: (T, K) each, or any shape that broadcasts against (B, H, T, K)."""


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type for tables and long sums in a model of `dtype`: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def resample_grid(table_1hwD: Tensor, grid: tuple[int, int], method: str) -> Tensor:
    """
    A table of positions on another grid: (1, h, w, D) -> (1, *grid, D), in the type of the table.

    `method` is a key of `RESAMPLING`. The same grid gives the table itself. DINO passes `interpolate` the scale
    (n + 0.1) / N in place of the size n, which shifts every sample a little (facebookresearch/dino, vision_transformer.py).
    """
    old = table_1hwD.shape[1:3]
    if tuple(old) == tuple(grid):
        return table_1hwD
    target = {"size": grid}
    if method == "bicubic_offset":
        target = {"scale_factor": tuple((new + DINO_OFFSET) / size for new, size in zip(grid, old, strict=True))}
    table_1Dhw = table_1hwD.permute(0, 3, 1, 2).to(at_least_float32(table_1hwD.dtype))
    return F.interpolate(table_1Dhw, **target, **RESAMPLING[method]).permute(0, 2, 3, 1).to(table_1hwD.dtype)


def sincos_1d(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """
    Table of Vaswani et al. 2017, section 3.5: (length, width), sines in even and cosines in odd columns, position 0 first.
    """
    dtype = at_least_float32(dtype)
    index = torch.arange(width // 2, dtype=dtype, device=device)
    angles = torch.arange(length, dtype=dtype, device=device)[:, None] * 10000 ** (-2 * index / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def sincos_2d(grid: tuple[int, int], width: int, frequencies: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """
    Fixed 2-D table: (1, h, w, width), each row [sin x | cos x | sin y | cos y] with width / 4 frequencies 10000^-e.

    `frequencies` says how the exponents e run: `"mae"` 0, 1/n, ..., (n - 1)/n (MAE, util/pos_embed.py; MoCo v3),
    `"big_vision"` from 0 to 1 inclusive (big_vision, models/vit.py).
    """
    dtype = at_least_float32(dtype)
    count = width // 4
    steps = {"mae": count, "big_vision": count - 1}[frequencies]
    omega = 10000 ** (-torch.arange(count, dtype=dtype, device=device) / steps)
    x_wK, y_hK = (torch.arange(side, dtype=dtype, device=device)[:, None] * omega for side in (grid[1], grid[0]))
    x_wD = torch.cat([x_wK.sin(), x_wK.cos()], dim=-1)
    y_hD = torch.cat([y_hK.sin(), y_hK.cos()], dim=-1)
    h, w = grid
    return torch.cat([x_wD[None].expand(h, w, -1), y_hD[:, None].expand(h, w, -1)], dim=-1)[None]


def rope_2d(grid: tuple[int, int], head_dim: int, theta: float, dtype: torch.dtype, device: torch.device) -> Rotary:
    """
    Cosines and sines of axial rotation, two (N, head_dim) tables, as in DINOv3 (layers/rope_position_encoding.py).

    The centre of patch i of n stands at (2i + 1)/n - 1, in -1..1; the angle is 2 pi times that over the period
    theta^(4k/head_dim). A row is [y | x | y | x] with head_dim / 4 periods each.
    """
    dtype = at_least_float32(dtype)
    periods = theta ** (torch.arange(head_dim // 4, dtype=dtype, device=device) * 4 / head_dim)
    y_hK, x_wK = (
        2 * math.pi * ((2 * torch.arange(side, dtype=dtype, device=device) + 1) / side - 1)[:, None] / periods
        for side in grid
    )
    h, w = grid
    angles_hwK = torch.cat([y_hK[:, None].expand(h, w, -1), x_wK[None].expand(h, w, -1)], dim=-1)
    angles_NK = angles_hwK.flatten(0, 1).tile(1, 2)
    return angles_NK.cos(), angles_NK.sin()


def rotate(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """
    Rotates the pairs (x[k], x[k + K/2]) by the angles of `rope_2d`, in the tables' precision; returns the type of `x`.

        x:       [ a | b ]
        rotated: [ a cos - b sin | b cos + a sin ]
    """
    a, b = x_BHTK.chunk(2, dim=-1)
    return (x_BHTK * cos + torch.cat([-b, a], dim=-1) * sin).to(x_BHTK.dtype)


def relative_bias(table_1hwH: Tensor, grid: tuple[int, int]) -> Tensor:
    """
    Bias (H, N, N) between query and key patches out of a table (1, 2h - 1, 2w - 1, H) over (dy, dx), dy = query - key.
    """
    h, w = grid
    y_N, x_N = torch.meshgrid(
        torch.arange(h, device=table_1hwH.device), torch.arange(w, device=table_1hwH.device), indexing="ij"
    )
    dy_NN = y_N.flatten()[:, None] - y_N.flatten()[None] + h - 1
    dx_NN = x_N.flatten()[:, None] - x_N.flatten()[None] + w - 1
    return table_1hwH[0, dy_NN, dx_NN].permute(2, 0, 1)


def unpatchify(patches_BND: Tensor, grid: tuple[int, int], patch_size: tuple[int, int]) -> Tensor:
    """
    Pictures (B, C, h * ph, w * pw) out of patches (B, N, C * ph * pw), pixels of a patch in the order (C, ph, pw).

    For square patches this is `torch.nn.PixelShuffle`, SimMIM's decoder.
    """
    (h, w), (ph, pw) = grid, patch_size
    pixels = patches_BND.unflatten(2, (-1, ph, pw)).unflatten(1, (h, w))  # (B, h, w, C, ph, pw)
    return pixels.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
