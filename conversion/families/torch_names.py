"""The names that timm gave to a ViT and that DINO, MAE, DeiT and others took over, and facts read off them."""

from collections.abc import Sequence

from conversion.errors import ConversionError
from conversion.families.base import NAMED_SIZES, Facts, Found, one_or_two
from conversion.mapping import PARAMETER, Leaves, Op, Table, Their, parameter, positions, reshape
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


REGISTERS = ("reg_token", "register_tokens", "storage_tokens")
SCALES = (("ls1.gamma", "ls2.gamma"), ("gamma_1", "gamma_2"))
POSITION_ROWS = "embeddings.position.{prefix,grid}"
QKV = "layers.{i}.attention.{q,k,v}_proj"
# Our modules of a SwiGLU and their names, by the name of the last one in the file.
GATED = {
    "mlp.w12": {"layers.{i}.ffn.{gate,up}_proj": "mlp.w12", "layers.{i}.ffn.down_proj": "mlp.w3"},
    "mlp.w1": {
        "layers.{i}.ffn.gate_proj": "mlp.w1", "layers.{i}.ffn.up_proj": "mlp.w2", "layers.{i}.ffn.down_proj": "mlp.w3",
    },
    "mlp.fc1_g": {
        "layers.{i}.ffn.gate_proj": "mlp.fc1_g", "layers.{i}.ffn.up_proj": "mlp.fc1_x", "layers.{i}.ffn.down_proj": "mlp.fc2",
    },
    "mlp.fc1": {"layers.{i}.ffn.{gate,up}_proj": "mlp.fc1", "layers.{i}.ffn.down_proj": "mlp.fc2"},
}  # fmt: skip


def names(
    config: ViTCustomConfig, registers: str = "reg_token", scales: tuple[str, str] = SCALES[0], gated: str = "mlp.fc1"
) -> Table:
    """The table, with the spellings that differ."""
    pooled = config.final_norm == "pooled"
    ffn = (
        GATED[gated] if config.ffn_type == "swiglu" else {f"layers.{{i}}.ffn.{x}": f"mlp.{x}" for x in ("fc1", "fc2")}
    )
    return {
        "embeddings.cls_token": Their("cls_token", PARAMETER),
        "embeddings.distillation_token": Their("dist_token", PARAMETER),
        "embeddings.register_tokens": Their(registers, PARAMETER),
        POSITION_ROWS: Their("pos_embed", parameter(flat_positions(config))),
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "embedding_norm": "norm_pre",
        "layers.{i}.norm1": "blocks.{i}.norm1",
        QKV: "blocks.{i}.attn.qkv",
        "layers.{i}.attention.q_norm": "blocks.{i}.attn.q_norm",
        "layers.{i}.attention.k_norm": "blocks.{i}.attn.k_norm",
        "layers.{i}.attention.o_proj": "blocks.{i}.attn.proj",
        "layers.{i}.branch1.scale.gamma": Their(f"blocks.{{i}}.{scales[0]}", PARAMETER),
        "layers.{i}.norm2": "blocks.{i}.norm2",
        **{ours: f"blocks.{{i}}.{theirs}" for ours, theirs in ffn.items()},
        "layers.{i}.branch2.scale.gamma": Their(f"blocks.{{i}}.{scales[1]}", PARAMETER),
        "norm": "norm",
        "pooler.norm": "fc_norm" if pooled and config.pooling == "mean" else "norm",
        "classifier": "head",
        "distillation_classifier": "head_dist",
    }


def prefix_rows(config: ViTCustomConfig) -> int:
    """Prefix tokens that have a position of their own."""
    tokens = config.class_token + config.distillation_token
    return {"none": 0, "class": tokens, "all": config.num_prefix_tokens}[config.prefix_positions]


def flat_positions(config: ViTCustomConfig, axes: int = 3) -> Op:
    """Prefix rows and grid as one table."""
    return positions(prefix_rows(config), config.grid_size, config.hidden_size, axes)


def vector(config: ViTCustomConfig) -> Leaves:
    """A token (D) that we keep as (1, 1, D)."""
    return parameter(reshape((config.hidden_size,), (1, 1, config.hidden_size)))


def geometry(found: Found, resampling: str, sizes: Sequence[tuple[int, ...]] = NAMED_SIZES) -> Facts:
    """What the shapes say, of a file with fused q, k and v; `sizes` are those that its number of heads may be known by."""
    width, channels, patch_height, patch_width = (found.size("patch_embed.proj.weight", axis) for axis in range(4))
    depth, registers = found.depth("blocks."), next((name for name in REGISTERS if name in found), None)
    biased = "blocks.0.attn.qkv.bias" in found
    facts = {
        "patch_size": one_or_two(patch_height, patch_width),
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "patch_bias": "patch_embed.proj.bias" in found,
        "query_bias": biased,
        "key_bias": biased,
        "value_bias": biased,
        "proj_bias": "blocks.0.attn.proj.bias" in found,
        "qk_norm": "blocks.0.attn.q_norm.weight" in found,
        "layerscale_value": 1.0 if any(f"blocks.0.{scale}" in found for scale, _ in SCALES) else None,
        "class_token": "cls_token" in found,
        "distillation_token": "dist_token" in found,
        "num_register_tokens": found.size(registers, 1) if registers else 0,
        "embedding_norm": "norm_pre.weight" in found,
        "position_resampling": resampling,
        "num_labels": found.size("head.weight") if "head.weight" in found else 0,
    }
    facts |= feed_forward(found)
    facts["num_attention_heads"] = found.heads(width, facts["intermediate_size"], depth, sizes)
    return facts


def feed_forward(found: Found) -> Facts:
    """The kind of the feed-forward network and its inner width."""
    for name, divisor in (("mlp.w12", 2), ("mlp.w1", 1), ("mlp.fc1_g", 1)):
        if f"blocks.0.{name}.weight" in found:
            rows = found.size(f"blocks.0.{name}.weight")
            return {"ffn_type": "swiglu", "hidden_act": "silu", "intermediate_size": rows // divisor}
    rows, columns = found.size("blocks.0.mlp.fc1.weight"), found.size("blocks.0.mlp.fc2.weight", 1)
    if rows == 2 * columns:
        return {"ffn_type": "swiglu", "hidden_act": "silu", "intermediate_size": columns}
    return {"intermediate_size": rows}


def gated_name(found: Found) -> str:
    """Which spelling of a SwiGLU the file has."""
    return next((name for name in GATED if f"blocks.0.{name}.weight" in found), "mlp.fc1")


def table_positions(found: Found, facts: Facts) -> Facts:
    """Picture size and which prefix tokens have a position, out of the length of the table."""
    length = found.size("pos_embed", 1)
    if len(found.shapes["pos_embed"]) != 3:
        raise ConversionError(f"pos_embed has the shape {found.shapes['pos_embed']}, not (1, rows, width)")
    tokens = facts["class_token"] + facts["distillation_token"]
    rows = {0: "none", int(tokens): "class", int(tokens) + facts["num_register_tokens"]: "all"}
    rows |= {int(tokens): "class"} if tokens else {}
    prefix, size = found.grid(length, pair(facts["patch_size"]), tuple(sorted(rows)))
    return {"image_size": size, "prefix_positions": rows[prefix] if tokens or prefix else "class"}
