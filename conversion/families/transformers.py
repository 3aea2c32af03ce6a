"""
Folders of transformers: ViT, DeiT, ViT-MSN, ViT-MAE, I-JEPA, DINOv2, DINOv3, the image towers of CLIP and SigLIP.

Names come in two spellings: `disk`, which `save_pretrained` writes, and `memory`, which `state_dict()` of transformers 5 gives.
"""

from collections.abc import Callable
from functools import partial

import transformers

from conversion.families.base import Facts, Family, Found
from conversion.families.transformers_facts import (
    ATTENTION_DROPOUT,
    CLASSIFIERS,
    MLP,
    SIZES,
    TRAINING,
    Kind,
    facts,
    labels,
    nothing,
    read_biases,
    read_clip,
    read_deit,
    read_dinov2,
    read_dinov3,
    read_vit,
    recognise,
    same,
    write_clip,
    write_dinov2,
    write_vit,
)
from conversion.families.transformers_json import files, pixels
from conversion.families.transformers_names import (
    DINOV2_BLOCKS,
    DINOV3_BLOCKS,
    DISK,
    MEMORY,
    MIXED,
    TOWER_BLOCKS,
    VIT_BLOCKS,
    deit_table,
    dinov2_table,
    dinov3_table,
    tower_table,
    vit_table,
)
from conversion.mapping import Table
from modeling_vit_custom import ViTCustomConfig


# ---------------------------------------------------------------------------------------------------------------------
# Families


def family(name: str, title: str, kind: Kind, table: Callable[[ViTCustomConfig, str], Table], **options) -> Family:
    """The family of one model type; it tells the layout by a name of the first block."""

    def layout(found: Found) -> str:
        if "vit.layernorm.weight" in found:
            return MIXED
        return MEMORY if MEMORY in kind.blocks and f"{kind.blocks[MEMORY]}0.{in_memory}" in found else DISK

    in_memory = "attention.q_proj.weight"
    common = {"layouts": tuple(kind.blocks), "suffix": "", "asked": ("position_resampling",)}
    return Family(
        name=f"transformers_{name}",
        title=f"{title} (folder of transformers)",
        reference="transformers",
        recognise=partial(recognise, kind),
        facts=partial(facts, kind),
        table=table,
        pixels=partial(pixels, kind),
        layout=layout,
        config=partial(files, kind),
        labels=labels,
        **{**common, **options},
    )


def unused_pooler(found: Found) -> tuple[str, ...]:
    """The classifiers of transformers have no pooler; some files hold one all the same."""
    return ("pooler.dense.*",) if any(name in found for name in CLASSIFIERS) else ()


def vit_family(
    name: str,
    title: str,
    base: str,
    config: type,
    prefix: str = "vit.",
    read: Callable = read_biases,
    table: Callable = vit_table,
    **options,
) -> Family:
    """ViT and what copies it; `base` is what the names of its classes begin with."""
    resampled: Facts = {"position_resampling": "bicubic", **options.pop("fixed", {})}
    blocks = {DISK: VIT_BLOCKS[DISK], MEMORY: VIT_BLOCKS[MEMORY], **options.pop("blocks", {})}
    classes, fields = (f"{base}Model", f"{base}ForImageClassification"), {**SIZES, **MLP, **TRAINING}
    processor = options.pop("processor", "ViTImageProcessor")
    kind = Kind(config.model_type, config, processor, classes, fields, resampled, blocks, (), read, write_vit)
    common = {
        "heads": ("classifier.*", "decoder.*"), "kept": ("embeddings.mask_token", "decoder.*"), "unused": unused_pooler,
    }  # fmt: skip
    anchors = tuple(f"{before}0.layernorm_before.weight" for before in (blocks[DISK], blocks[MEMORY]))
    return family(name, title, kind, table, anchors=anchors, bases=(prefix,), **{**common, **options})


VIT = vit_family("vit", "ViT", "ViT", transformers.ViTConfig, read=read_vit)
VIT_MSN = vit_family("vit_msn", "ViT-MSN", "ViTMSN", transformers.ViTMSNConfig, blocks={MIXED: VIT_BLOCKS[MIXED]})
VIT_MAE = vit_family("vit_mae", "ViT-MAE, the encoder", "ViTMAE", transformers.ViTMAEConfig)
IJEPA = vit_family(
    "ijepa", "I-JEPA", "IJepa", transformers.IJepaConfig, "ijepa.", fixed={"class_token": False, "pooling": "mean"}
)
DEIT = vit_family(
    "deit", "DeiT", "DeiT", transformers.DeiTConfig, "deit.", read_deit, deit_table, processor="DeiTImageProcessor",
    heads=("classifier.*", "cls_classifier.*", "distillation_classifier.*", "decoder.*"),
)  # fmt: skip


def dinov2_family(name: str, title: str, base: str, config: type, fields: dict[str, str], resampling: str) -> Family:
    kind = Kind(
        name, config, "BitImageProcessor", (f"{base}Model", f"{base}ForImageClassification"),
        {**SIZES, **TRAINING, "layerscale_value": "layerscale_value", **fields}, {"position_resampling": resampling},
        DINOV2_BLOCKS, ("encoder.layer.0.layer_scale1.lambda1",), read_dinov2, write_dinov2, is_square=True,
    )  # fmt: skip
    anchors = (f"{DINOV2_BLOCKS[DISK]}0.norm1.weight",)
    common = {"bases": (f"{name}.",), "heads": ("classifier.*",), "kept": ("embeddings.mask_token",)}
    return family(name, title, kind, dinov2_table, anchors=anchors, **common)


DINOV2 = dinov2_family("dinov2", "DINOv2", "Dinov2", transformers.Dinov2Config, {}, "bicubic")
DINOV2_WITH_REGISTERS = dinov2_family(
    "dinov2_with_registers", "DINOv2 with registers", "Dinov2WithRegisters", transformers.Dinov2WithRegistersConfig,
    same("num_register_tokens"), "bicubic_antialias",
)  # fmt: skip

BIASES = same("query_bias", "key_bias", "value_bias", "proj_bias")
DINOV3_FIELDS = {
    **SIZES, **MLP, **ATTENTION_DROPOUT, **BIASES,
    **same("initializer_range", "rope_theta", "num_register_tokens", "layerscale_value"),
}  # fmt: skip
DINOV3 = family(
    "dinov3_vit",
    "DINOv3 ViT",
    Kind(
        "dinov3_vit", transformers.DINOv3ViTConfig, "DINOv3ViTImageProcessor", ("DINOv3ViTModel",) * 2, DINOV3_FIELDS,
        {"position_embedding": "rope_2d"}, DINOV3_BLOCKS, ("embeddings.register_tokens",), read_dinov3,
        lambda config: {"use_gated_mlp": config.ffn_type == "swiglu"},
    ),
    dinov3_table,
    anchors=("embeddings.patch_embeddings.weight",),
    kept=("embeddings.mask_token",),
    asked=(),
)  # fmt: skip

TOWER_FIELDS = {**SIZES, **MLP, **ATTENTION_DROPOUT}
TEXT = ("text_model.*", "text_projection.*", "logit_scale", "logit_bias")
TOWER = {"anchors": ("embeddings.patch_embedding.weight",), "bases": ("vision_model.",), "beside": TEXT}
CLIP_VISION = family(
    "clip_vision",
    "CLIP, the image tower",
    Kind(
        "clip_vision_model", transformers.CLIPVisionConfig, "CLIPImageProcessor",
        ("CLIPVisionModel", "CLIPVisionModelWithProjection"), {**TOWER_FIELDS, **same("initializer_range")},
        {"embedding_norm": True, "patch_bias": False, "final_norm": "pooled", "position_resampling": "bicubic"}, TOWER_BLOCKS,
        ("pre_layrnorm.weight",), read_clip, write_clip, towers="clip", is_square=True,
    ),
    tower_table,
    heads=("visual_projection.*", "classifier.*"),
    kept=("embeddings.position_ids",),
    **TOWER,
)  # fmt: skip
SIGLIP_FACTS = {"class_token": False, "position_resampling": "bicubic"}


def siglip_kind(fixed: Facts, read: Callable, write: Callable, is_whole: bool) -> Kind:
    needs, lacks = ("post_layernorm.weight",), ("classifier.weight",)
    return Kind(
        "siglip_vision_model", transformers.SiglipVisionConfig, "SiglipImageProcessor",
        ("SiglipVisionModel", "SiglipForImageClassification"), TOWER_FIELDS, {**SIGLIP_FACTS, **fixed}, TOWER_BLOCKS,
        needs + lacks if is_whole else needs, read, write, "siglip", is_whole, is_square=True, lacks=() if is_whole else lacks,
    )  # fmt: skip


SIGLIP_VISION = family(
    "siglip_vision",
    "SigLIP and SigLIP 2 of fixed size, the image tower",
    siglip_kind(
        {},
        lambda found, say: {"pooling": "map" if say("vision_use_head") else "none"},
        lambda config: {"vision_use_head": config.pooling == "map"},
        is_whole=False,
    ),
    tower_table,
    heads=("classifier.*",),
    **TOWER,
)
SIGLIP_CLASSIFIER = family(
    "siglip_classifier",
    "SigLIP with a classifier",
    siglip_kind({"pooling": "mean"}, nothing, nothing, is_whole=True),
    tower_table,
    heads=("classifier.*",),
    kept=("head.*",),
    **TOWER,
)
TRANSFORMERS = (
    VIT, DEIT, VIT_MSN, VIT_MAE, IJEPA, DINOV2, DINOV2_WITH_REGISTERS, DINOV3, CLIP_VISION, SIGLIP_VISION, SIGLIP_CLASSIFIER,
)  # fmt: skip
