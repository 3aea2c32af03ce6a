"""The names of transformers' models, by the layouts `disk`, `memory` and `mixed` of `transformers.py`."""

from conversion.families.torch_names import POSITION_ROWS, flat_positions, vector
from conversion.mapping import IN_PROJ, PARAMETER, Table, Their, parameter
from modeling_vit_custom import ViTCustomConfig


DISK, MEMORY, MIXED = "disk", "memory", "mixed"
# Our modules of attention and theirs, by layout.
ATTENTION = {
    DISK: {
        "q_proj": "attention.query",
        "k_proj": "attention.key",
        "v_proj": "attention.value",
        "o_proj": "output.dense",
    },
    MEMORY: {name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
}
VIT_FFN = {DISK: ("intermediate.dense", "output.dense"), MEMORY: ("mlp.fc1", "mlp.fc2")}
VIT_BLOCKS = {DISK: "encoder.layer.", MEMORY: "layers.", MIXED: "encoder.layer."}
DINOV2_BLOCKS = dict.fromkeys((DISK, MEMORY), "encoder.layer.")
DINOV3_BLOCKS = {DISK: "layer.", MEMORY: "model.layer."}
TOWER_BLOCKS = {DISK: "encoder.layers."}


def attention(block: str, spelling: str) -> Table:
    return {f"layers.{{i}}.attention.{ours}": f"{block}attention.{name}" for ours, name in ATTENTION[spelling].items()}


def scales(block: str) -> Table:
    return {f"layers.{{i}}.branch{n}.scale.gamma": Their(f"{block}layer_scale{n}.lambda1", PARAMETER) for n in (1, 2)}


def vit_table(config: ViTCustomConfig, layout: str) -> Table:
    """`mixed`: what transformers 5 writes of a classifier of ViT-MSN, the blocks without the prefix of the others."""
    spelling, outer = MEMORY if layout == MEMORY else DISK, "vit." if layout == MIXED else ""
    block = f"{VIT_BLOCKS[layout]}{{i}}."
    fc1, fc2 = VIT_FFN[spelling]
    return {
        "embeddings.cls_token": Their(f"{outer}embeddings.cls_token", PARAMETER),
        "embeddings.distillation_token": Their("embeddings.distillation_token", PARAMETER),
        POSITION_ROWS: Their(f"{outer}embeddings.position_embeddings", parameter(flat_positions(config))),
        "embeddings.patch_embeddings.projection": f"{outer}embeddings.patch_embeddings.projection",
        "layers.{i}.norm1": f"{block}layernorm_before",
        **attention(block, spelling),
        "layers.{i}.norm2": f"{block}layernorm_after",
        "layers.{i}.ffn.fc1": f"{block}{fc1}",
        "layers.{i}.ffn.fc2": f"{block}{fc2}",
        "norm": f"{outer}layernorm",
        "pooler.pre_logits.0": "pooler.dense",
        "classifier": "classifier",
    }


def deit_table(config: ViTCustomConfig, layout: str) -> Table:
    """The distillation token, with a head of its own or as a register."""
    table = {**vit_table(config, layout), "distillation_classifier": "distillation_classifier"}
    if config.num_register_tokens == 1 and not config.distillation_token:
        table["embeddings.register_tokens"] = Their("embeddings.distillation_token", PARAMETER)
    return table | ({"classifier": "cls_classifier"} if config.distillation_token else {})


def dinov2_table(config: ViTCustomConfig, layout: str) -> Table:
    block = f"{DINOV2_BLOCKS[layout]}{{i}}."
    fused = {
        "layers.{i}.ffn.{gate,up}_proj": f"{block}mlp.weights_in",
        "layers.{i}.ffn.down_proj": f"{block}mlp.weights_out",
    }
    return {
        **vit_table(config, layout),
        **attention(block, layout),
        **scales(block),
        "embeddings.register_tokens": Their("embeddings.register_tokens", PARAMETER),
        "layers.{i}.norm1": f"{block}norm1",
        "layers.{i}.norm2": f"{block}norm2",
        "layers.{i}.ffn.fc1": f"{block}mlp.fc1",
        "layers.{i}.ffn.fc2": f"{block}mlp.fc2",
        **(fused if layout == DISK else gated(block)),
    }


def gated(block: str) -> Table:
    return {f"layers.{{i}}.ffn.{name}": f"{block}mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}


def dinov3_table(config: ViTCustomConfig, layout: str) -> Table:
    block = f"{DINOV3_BLOCKS[layout]}{{i}}."
    return {
        "embeddings.cls_token": Their("embeddings.cls_token", PARAMETER),
        "embeddings.register_tokens": Their("embeddings.register_tokens", PARAMETER),
        "embeddings.patch_embeddings.projection": "embeddings.patch_embeddings",
        "layers.{i}.norm1": f"{block}norm1",
        **attention(block, MEMORY),
        **scales(block),
        "layers.{i}.norm2": f"{block}norm2",
        **gated(block),
        "layers.{i}.ffn.fc1": f"{block}mlp.up_proj",
        "layers.{i}.ffn.fc2": f"{block}mlp.down_proj",
        "norm": "norm",
    }


def tower_table(config: ViTCustomConfig, layout: str) -> Table:
    """CLIP and SigLIP."""
    block, pool = f"{TOWER_BLOCKS[DISK]}{{i}}.", "pooler.pool"
    last = "pooler.norm" if config.final_norm == "pooled" else "norm"
    return {
        "embeddings.cls_token": Their("embeddings.class_embedding", vector(config)),
        POSITION_ROWS: Their("embeddings.position_embedding.weight", parameter(flat_positions(config, axes=2))),
        "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
        "embedding_norm": "pre_layrnorm",
        "layers.{i}.norm1": f"{block}layer_norm1",
        **{f"layers.{{i}}.attention.{name}_proj": f"{block}self_attn.{name}_proj" for name in "qkv"},
        "layers.{i}.attention.o_proj": f"{block}self_attn.out_proj",
        "layers.{i}.norm2": f"{block}layer_norm2",
        "layers.{i}.ffn.fc1": f"{block}mlp.fc1",
        "layers.{i}.ffn.fc2": f"{block}mlp.fc2",
        last: "post_layernorm",
        f"{pool}.probe": Their("head.probe", PARAMETER),
        f"{pool}.attention.{{q,k,v}}_proj": Their("head.attention.in_proj", IN_PROJ),
        f"{pool}.attention.o_proj": "head.attention.out_proj",
        f"{pool}.norm": "head.layernorm",
        f"{pool}.ffn.fc1": "head.mlp.fc1",
        f"{pool}.ffn.fc2": "head.mlp.fc2",
        "pooler.projection": "visual_projection",
        "classifier": "classifier",
    }
