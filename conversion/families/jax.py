"""Google's `.npz` files: vit_jax (google-research/vision_transformer) and big_vision (google-research/big_vision)."""

from collections.abc import Mapping
from typing import Any

from conversion.families.base import BILINEAR, HALF, Facts, Family, Found, one_or_two
from conversion.mapping import (
    PARAMETER,
    SAME,
    TRANSPOSE,
    Leaves,
    Op,
    Table,
    Their,
    parameter,
    permute,
    positions,
    reshape,
)
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


LINEAR: Leaves = {"weight": ("/kernel", TRANSPOSE), "bias": ("/bias", SAME)}
NORM: Leaves = {"weight": ("/scale", SAME), "bias": ("/bias", SAME)}
CONV: Leaves = {"weight": ("/kernel", permute(3, 2, 0, 1)), "bias": ("/bias", SAME)}  # (h, w, in, out)
LINEN = {"attention": "MultiHeadDotProductAttention_0", "norm2": "LayerNorm_1", "mlp": "MlpBlock_0"}
PRE_LINEN = {"attention": "MultiHeadDotProductAttention_1", "norm2": "LayerNorm_2", "mlp": "MlpBlock_3"}


def into_heads(config: ViTCustomConfig) -> Leaves:
    """q, k, v: (D, H, K) and (H, K)."""
    D, H, K = config.hidden_size, config.num_attention_heads, config.head_dim
    weight = reshape((D, H, K), (D, D)).then(TRANSPOSE)
    return {"weight": ("/kernel", weight), "bias": ("/bias", reshape((H, K), (D,)))}


def out_of_heads(config: ViTCustomConfig) -> Leaves:
    """o: (H, K, D) and (D)."""
    D, H, K = config.hidden_size, config.num_attention_heads, config.head_dim
    return {"weight": ("/kernel", reshape((H, K, D), (D, D)).then(TRANSPOSE)), "bias": ("/bias", SAME)}


def common(config: ViTCustomConfig, names: Mapping[str, str], block: str) -> Table:
    attention, heads, out = f"{block}/{names['attention']}", into_heads(config), out_of_heads(config)
    projections = {"q": "query", "k": "key", "v": "value"}
    return {
        "embeddings.cls_token": Their("cls", PARAMETER),
        "embeddings.patch_embeddings.projection": Their("embedding", CONV),
        "layers.{i}.norm1": Their(f"{block}/LayerNorm_0", NORM),
        **{f"layers.{{i}}.attention.{x}_proj": Their(f"{attention}/{y}", heads) for x, y in projections.items()},
        "layers.{i}.attention.o_proj": Their(f"{attention}/out", out),
        "layers.{i}.norm2": Their(f"{block}/{names['norm2']}", NORM),
        "layers.{i}.ffn.fc1": Their(f"{block}/{names['mlp']}/Dense_0", LINEAR),
        "layers.{i}.ffn.fc2": Their(f"{block}/{names['mlp']}/Dense_1", LINEAR),
        "norm": Their("Transformer/encoder_norm", NORM),
        "pooler.pre_logits.0": Their("pre_logits", LINEAR),
        "classifier": Their("head", LINEAR),
    }


def table_of_positions(config: ViTCustomConfig) -> Op:
    rows = config.class_token if config.prefix_positions == "class" else 0
    return positions(int(rows), config.grid_size, config.hidden_size)


POSITION_ROWS = "embeddings.position.{prefix,grid}"


def geometry(found: Found, block: str) -> Facts:
    """What both read off their kernels; `block` is the name of a block up to its number."""
    patch_height, patch_width, channels, width = (found.size("embedding/kernel", axis) for axis in range(4))
    stacked = f"{block}/LayerNorm_0/scale" in found
    depth = found.size(f"{block}/LayerNorm_0/scale") if stacked else found.depth(f"{block}_")
    first = block if stacked else f"{block}_0"
    names = LINEN if f"{first}/{LINEN['attention']}/query/bias" in found else PRE_LINEN
    return {
        "patch_size": one_or_two(patch_height, patch_width),
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": found.size(f"{first}/{names['attention']}/query/bias", int(stacked)),
        "intermediate_size": found.size(f"{first}/{names['mlp']}/Dense_0/bias", int(stacked)),
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "class_token": "cls" in found,
        "position_resampling": "bilinear_align_corners",
        "representation_size": found.size("pre_logits/bias") if "pre_logits/bias" in found else None,
        "num_labels": found.size("head/bias") if "head/bias" in found else 0,
        "weight_init": "jax",
    }


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """
    Squashed to the size, bilinear without antialias, to -1..1: `tf.image.resize` in vit_jax/input_pipeline.py and in
    `resize` and `value_range(-1, 1)` of big_vision/pp/ops_image.py.
    """
    return {**HALF, "resample": BILINEAR, "antialias": False}


# ---------------------------------------------------------------------------------------------------------------------
# vit_jax

BLOCK = "Transformer/encoderblock"
VIT_JAX_POSITIONS = "Transformer/posembed_input/pos_embedding"


def vit_jax_facts(found: Found) -> Facts:
    """models_vit.py: the class token is there before the positions are added; `gap` has none and takes the mean."""
    facts = geometry(found, BLOCK)
    token = int(facts["class_token"])
    _, size = found.grid(found.size(VIT_JAX_POSITIONS, 1), pair(facts["patch_size"]), (token,))
    return {**facts, "image_size": size, "prefix_positions": "class", "pooling": "cls" if token else "mean"}


def vit_jax_table(config: ViTCustomConfig, layout: str) -> Table:
    names = PRE_LINEN if layout == "pre_linen" else LINEN
    where = Their(VIT_JAX_POSITIONS, parameter(table_of_positions(config)))
    return {**common(config, names, f"{BLOCK}_{{i}}"), POSITION_ROWS: where}


def vit_jax_layout(found: Found) -> str:
    return "pre_linen" if found.has(f"/{PRE_LINEN['attention']}/") else "linen"


VIT_JAX = Family(
    name="vit_jax",
    title="Google ViT: original, AugReg, SAM and GSAM (.npz)",
    reference="google-research/vision_transformer",
    anchors=("embedding/kernel",),
    recognise=lambda found: VIT_JAX_POSITIONS in found,
    facts=vit_jax_facts,
    table=vit_jax_table,
    pixels=pixels,
    layout=vit_jax_layout,
    layouts=("pre_linen", "linen"),
    asked=("image_size", "position_resampling"),
    beside=("opt/state/*",),
    suffix=".npz",
)


# ---------------------------------------------------------------------------------------------------------------------
# big_vision


def big_vision_facts(found: Found) -> Facts:
    """models/vit.py: positions are added before the class token comes; no table in the file is a sin-cos one."""
    facts = geometry(found, BLOCK)
    pooling = "map" if found.has("MAPHead_0/") else "cls" if facts["class_token"] else "mean"
    facts |= {"prefix_positions": "none", "pooling": found.ask("pooling", "", pooling)}
    if "pos_embedding" in found:
        _, size = found.grid(found.size("pos_embedding", 1), pair(facts["patch_size"]), (0,))
        return {**facts, "image_size": size}
    why = "the file holds no position table (sin-cos), so the size of the pictures is not in it"
    size = found.ask("image_size", why)
    return {**facts, "image_size": size, "position_embedding": "sincos_2d", "sincos_frequencies": "big_vision"}


def big_vision_table(config: ViTCustomConfig, layout: str) -> Table:
    block, attention = (BLOCK if layout == "scan" else f"{BLOCK}_{{i}}"), "MAPHead_0/MultiHeadDotProductAttention_0"
    projections: dict[str, Any] = {"q": "query", "k": "key", "v": "value"}
    heads = into_heads(config)
    return {
        **common(config, LINEN, block),
        POSITION_ROWS: Their("pos_embedding", parameter(table_of_positions(config))),
        "pooler.pool.probe": Their("MAPHead_0/probe", PARAMETER),
        **{f"pooler.pool.attention.{x}_proj": Their(f"{attention}/{y}", heads) for x, y in projections.items()},
        "pooler.pool.attention.o_proj": Their(f"{attention}/out", out_of_heads(config)),
        "pooler.pool.norm": Their("MAPHead_0/LayerNorm_0", NORM),
        "pooler.pool.ffn.fc1": Their("MAPHead_0/MlpBlock_0/Dense_0", LINEAR),
        "pooler.pool.ffn.fc2": Their("MAPHead_0/MlpBlock_0/Dense_1", LINEAR),
    }


BIG_VISION = Family(
    name="big_vision",
    title="big_vision: plain ViT, SigLIP, SigLIP 2, FlexiViT at its native patch (.npz)",
    reference="google-research/big_vision",
    anchors=("embedding/kernel",),
    recognise=lambda found: VIT_JAX_POSITIONS not in found and found.has(BLOCK),
    facts=big_vision_facts,
    table=big_vision_table,
    pixels=pixels,
    layout=lambda found: "scan" if f"{BLOCK}/LayerNorm_0/scale" in found else "blocks",
    layouts=("blocks", "scan"),
    asked=("image_size", "position_resampling", "pooling"),
    beside=("opt/state/*", "params/txt/*", "params/t", "params/b", "txt/*", "t", "b"),
    suffix=".npz",
)
