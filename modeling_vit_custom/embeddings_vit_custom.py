"""
What goes into the encoder: patches, their positions and the prefix tokens in front of them.

Letters in names are axes, as in `modeling_vit_custom.py`: B batch, h w grid of patches, N = h * w patches, P prefix tokens,
T = P + N tokens, D width, H heads, K head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_vit_custom import ViTCustomConfig, pair
from .positions_vit_custom import Rotary, relative_bias, resample_grid, rope_2d, sincos_1d, sincos_2d


Embedded = tuple[Tensor, Rotary | None, Tensor | None]
"""Tokens (B, T, D), and what attention needs of their positions: rotation and bias (1 or B, H, T, T), each or neither."""


class Position(nn.Module):
    """No position at all, and the base of the others: each overrides what it changes."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.config = config

    def forward(self, x_BhwD: Tensor, prefix_1PD: Tensor) -> Embedded:
        """Patches and prefix tokens as one sequence, prefix first, with their positions."""
        prefix_BPD = self.add_to_prefix(prefix_1PD).expand(x_BhwD.shape[0], -1, -1)
        x_BTD = torch.cat([prefix_BPD, self.add(x_BhwD).flatten(1, 2)], dim=1)
        return x_BTD, self.rotary(x_BhwD), self.bias(x_BhwD)

    def add(self, x_BhwD: Tensor) -> Tensor:
        """The patches with their positions added."""
        return x_BhwD

    def add_to_prefix(self, x_1PD: Tensor) -> Tensor:
        """The prefix tokens with their positions added."""
        return x_1PD

    def rotary(self, x_BhwD: Tensor) -> Rotary | None:
        """Cosines and sines (T, K) that rotate queries and keys."""
        return None

    def bias(self, x_BhwD: Tensor) -> Tensor | None:
        """Bias (1, H, T, T) of the attention scores."""
        return None


class LearnedPosition(Position):
    """A learned table, kept as a grid, and a learned row for the prefix tokens that have one (the paper's default)."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__(config)
        class_tokens = config.class_token + config.distillation_token
        rows = {"none": 0, "class": class_tokens, "all": config.num_prefix_tokens}[config.prefix_positions]
        self.prefix = nn.Parameter(torch.empty(1, rows, config.hidden_size)) if rows else None
        self.build_tables()

    def build_tables(self) -> None:
        self.grid = nn.Parameter(torch.empty(1, *self.config.grid_size, self.config.hidden_size))

    def add(self, x_BhwD: Tensor) -> Tensor:
        return x_BhwD + resample_grid(self.grid, x_BhwD.shape[1:3], self.config.position_resampling)

    def add_to_prefix(self, x_1PD: Tensor) -> Tensor:
        if self.prefix is None:
            return x_1PD
        return x_1PD + F.pad(self.prefix, (0, 0, 0, x_1PD.shape[1] - self.prefix.shape[1]))


class Learned2DPosition(LearnedPosition):
    """A learned table for columns and one for rows, half the width each: [x | y] (the paper's appendix D.4)."""

    def build_tables(self) -> None:
        h, w = self.config.grid_size
        self.columns = nn.Parameter(torch.empty(1, 1, w, self.config.hidden_size // 2))
        self.rows = nn.Parameter(torch.empty(1, h, 1, self.config.hidden_size // 2))

    def add(self, x_BhwD: Tensor) -> Tensor:
        h, w = x_BhwD.shape[1:3]
        columns = resample_grid(self.columns, (1, w), self.config.position_resampling).expand(-1, h, -1, -1)
        rows = resample_grid(self.rows, (h, 1), self.config.position_resampling).expand(-1, -1, w, -1)
        return x_BhwD + torch.cat([columns, rows], dim=-1)


class SinCos1DPosition(Position):
    """The fixed table of Vaswani et al. 2017 over the patches in row-major order."""

    def add(self, x_BhwD: Tensor) -> Tensor:
        _, h, w, D = x_BhwD.shape
        return x_BhwD + sincos_1d(h * w, D, x_BhwD.dtype, x_BhwD.device).unflatten(0, (h, w)).to(x_BhwD.dtype)


class SinCos2DPosition(Position):
    """The fixed table of MAE or of big_vision; computed for the grid at hand, so never resampled."""

    def add(self, x_BhwD: Tensor) -> Tensor:
        _, h, w, D = x_BhwD.shape
        table = sincos_2d((h, w), D, self.config.sincos_frequencies, x_BhwD.dtype, x_BhwD.device)
        return x_BhwD + table.to(x_BhwD.dtype)


class RelativePosition(Position):
    """
    A learned bias per head over (dy, dx), the same in all blocks, as in BEiT's pre-training (Bao et al. 2021).

    `prefix` holds three more values per head, in BEiT's order: prefix to patch, patch to prefix, prefix to prefix.
    """

    def __init__(self, config: ViTCustomConfig):
        super().__init__(config)
        h, w = config.grid_size
        self.grid = nn.Parameter(torch.empty(1, 2 * h - 1, 2 * w - 1, config.num_attention_heads))
        self.prefix = nn.Parameter(torch.empty(3, config.num_attention_heads)) if config.num_prefix_tokens else None

    def bias(self, x_BhwD: Tensor) -> Tensor:
        _, h, w, _ = x_BhwD.shape
        table = resample_grid(self.grid, (2 * h - 1, 2 * w - 1), self.config.position_resampling)
        bias_HNN = relative_bias(table, (h, w))
        if self.prefix is None:
            return bias_HNN[None]
        P, N, H = self.config.num_prefix_tokens, h * w, self.config.num_attention_heads
        from_prefix, to_prefix, within = self.prefix[:, :, None, None]
        patch_rows = torch.cat([to_prefix.expand(H, N, P), bias_HNN], dim=2)
        prefix_rows = torch.cat([within.expand(H, P, P), from_prefix.expand(H, P, N)], dim=2)
        return torch.cat([prefix_rows, patch_rows], dim=1)[None]


class Rope2DPosition(Position):
    """Queries and keys rotated by their place on the grid (DINOv3, Siméoni et al. 2025); prefix tokens are not."""

    def rotary(self, x_BhwD: Tensor) -> Rotary:
        _, h, w, _ = x_BhwD.shape
        cos, sin = rope_2d((h, w), self.config.head_dim, self.config.rope_theta, x_BhwD.dtype, x_BhwD.device)
        in_front = (0, 0, self.config.num_prefix_tokens, 0)
        return F.pad(cos, in_front, value=1.0), F.pad(sin, in_front)


POSITIONS = {
    "none": Position,
    "learned": LearnedPosition,
    "learned_2d": Learned2DPosition,
    "sincos_1d": SinCos1DPosition,
    "sincos_2d": SinCos2DPosition,
    "relative": RelativePosition,
    "rope_2d": Rope2DPosition,
}


class Normalised(nn.Module):
    """Pixels that the image processor has normalised, as they are."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        if not pixel_values.is_floating_point():
            raise ValueError(
                f"pixel_values are {pixel_values.dtype}: normalise them with the image processor, or set pixel_mean and "
                "pixel_std of the configuration for a model that takes uint8"
            )
        return pixel_values


class NormalisedHere(nn.Module):
    """Pixels 0..255 of uint8, normalised with `config.pixel_mean` and `pixel_std` in float32; floats as they are."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.statistics = list(zip(config.pixel_mean, config.pixel_std, strict=True))

    def forward(self, pixel_values: Tensor) -> Tensor:
        if pixel_values.is_floating_point():
            return pixel_values
        if pixel_values.dtype != torch.uint8:
            raise ValueError(f"pixel_values are {pixel_values.dtype}: give uint8, or floats that are normalised")
        planes = pixel_values.to(torch.float32).unbind(dim=1)
        return torch.stack([(x - mean) / std for x, (mean, std) in zip(planes, self.statistics, strict=True)], dim=1)


class ViTCustomPatchEmbeddings(nn.Module):
    """Non-overlapping patches, each projected to the width: (B, C, H, W) pixels -> (B, h, w, D)."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.patch_size = pair(config.patch_size)
        self.normalise = Normalised() if config.pixel_mean is None else NormalisedHere(config)
        self.projection = nn.Conv2d(
            config.num_channels, config.hidden_size, self.patch_size, self.patch_size, bias=config.patch_bias
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        self.check(pixel_values)
        pixel_values = self.normalise(pixel_values)
        return self.projection(pixel_values.to(self.projection.weight.dtype)).permute(0, 2, 3, 1)

    @torch.no_grad()
    def resize_channels(self, num_channels: int) -> None:
        """See [`ViTCustomPreTrainedModel.resize_channels`]."""
        weight, channels = self.projection.weight, self.projection.in_channels
        if channels != 3 or type(num_channels) is not int or num_channels not in (1, *range(3, 10_000)):
            raise ValueError(f"{channels} channels cannot become {num_channels}: 3 (RGB) become 1, or more than 3")
        rgb = weight[:, :3]
        weight = rgb.sum(dim=1, keepdim=True) if num_channels == 1 else F.pad(rgb, (0, 0, 0, 0, 0, num_channels - 3))
        self.projection.weight = nn.Parameter(weight, requires_grad=self.projection.weight.requires_grad)
        self.projection.in_channels = num_channels

    def check(self, pixel_values: Tensor) -> None:
        """Raises `ValueError` for pictures that are not (B, C, H, W) with whole patches and the model's channels."""
        channels, (ph, pw) = self.projection.in_channels, self.patch_size
        if pixel_values.ndim != 4 or pixel_values.shape[1] != channels:
            raise ValueError(
                f"pixel_values must be (batch, {channels}, height, width), with the channels second as num_channels="
                f"{channels} says; got {tuple(pixel_values.shape)}"
            )
        if pixel_values.shape[0] == 0:
            raise ValueError(f"pixel_values {tuple(pixel_values.shape)} is an empty batch; give one picture at least")
        height, width = pixel_values.shape[2:]
        if height % ph or width % pw or not height or not width:
            raise ValueError(
                f"pictures of {height} x {width} (height x width) are no whole number of {ph} x {pw} patches; resize or "
                f"pad them to multiples of {ph} and {pw}"
            )


class ViTCustomEmbeddings(nn.Module):
    """Patches with their positions, prefix tokens (class, distillation, registers) in front of them."""

    def __init__(self, config: ViTCustomConfig, use_mask_token: bool = False):
        super().__init__()
        D, registers = config.hidden_size, config.num_register_tokens
        self.cls_token = nn.Parameter(torch.empty(1, 1, D)) if config.class_token else None
        self.distillation_token = nn.Parameter(torch.empty(1, 1, D)) if config.distillation_token else None
        self.register_tokens = nn.Parameter(torch.empty(1, registers, D)) if registers else None
        self.mask_token = nn.Parameter(torch.empty(D)) if use_mask_token else None
        self.patch_embeddings = ViTCustomPatchEmbeddings(config)
        self.position = POSITIONS[config.position_embedding](config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Embedded:
        """Tokens of (B, C, height, width) pixels, with those that `bool_masked_pos` marks replaced by the mask token."""
        x_BhwD = self.patch_embeddings(pixel_values)
        if bool_masked_pos is not None:
            x_BhwD = self.mask(x_BhwD, bool_masked_pos)
        x_BTD, rotary, bias = self.position(x_BhwD, self.prefix_tokens(x_BhwD))
        return self.dropout(x_BTD), rotary, bias

    def prefix_tokens(self, x_BhwD: Tensor) -> Tensor:
        """(1, P, D), without positions; none at all where the model has none."""
        tokens = (self.cls_token, self.distillation_token, self.register_tokens)
        none = x_BhwD.new_empty(1, 0, x_BhwD.shape[-1])
        return torch.cat([none, *(token for token in tokens if token is not None)], dim=1)

    def mask(self, x_BhwD: Tensor, bool_masked_pos: Tensor) -> Tensor:
        """The mask token in place of the patches where `bool_masked_pos`, (B, N) or (B, h, w), is true."""
        B, h, w, _ = x_BhwD.shape
        if self.mask_token is None:
            raise ValueError(
                "bool_masked_pos needs a mask token: use ViTCustomForMaskedImageModeling or use_mask_token=True"
            )
        if tuple(bool_masked_pos.shape) not in ((B, h * w), (B, h, w)):
            raise ValueError(
                f"bool_masked_pos is {tuple(bool_masked_pos.shape)}; expected ({B}, {h * w}) or ({B}, {h}, {w})"
            )
        return torch.where(bool_masked_pos.reshape(B, h, w, 1).bool(), self.mask_token, x_BhwD)


class PatchDropout(nn.Module):
    """Leaves out a random share of the patches of each picture, in training only (FLIP, Li et al. 2023)."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.rate, self.num_prefix_tokens = config.patch_drop_rate, config.num_prefix_tokens

    def forward(self, x_BTD: Tensor, rotary: Rotary | None, bias: Tensor | None) -> Embedded:
        """The tokens kept, and the rotation and bias that belong to them."""
        if not self.training or not self.rate:
            return x_BTD, rotary, bias
        keep_BT = self.sample(x_BTD)
        x_BTD = x_BTD.gather(1, keep_BT[..., None].expand(-1, -1, x_BTD.shape[2]))
        if rotary is not None:
            rotary = tuple(table_TK[keep_BT][:, None] for table_TK in rotary)  # (B, 1, T, K)
        if bias is not None:
            bias = bias[0][:, keep_BT[:, :, None], keep_BT[:, None, :]].transpose(0, 1)  # (B, H, T, T)
        return x_BTD, rotary, bias

    def sample(self, x_BTD: Tensor) -> Tensor:
        """Indices (B, T') of the tokens kept, in order; prefix tokens always are."""
        B, T, P = *x_BTD.shape[:2], self.num_prefix_tokens
        kept = max(1, round((T - P) * (1 - self.rate)))
        patches = torch.rand(B, T - P, device=x_BTD.device).topk(kept).indices.sort().values + P
        return torch.cat([torch.arange(P, device=x_BTD.device).expand(B, P), patches], dim=1)
