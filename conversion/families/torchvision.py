"""torchvision's `vit_*`."""

from conversion.errors import ConversionError
from conversion.families.base import (
    BICUBIC,
    BILINEAR,
    IMAGENET,
    NAMED_SIZES,
    Facts,
    Family,
    Found,
    centre_cropped,
)
from conversion.families.torch_names import POSITION_ROWS, QKV, flat_positions
from conversion.mapping import IN_PROJ, PARAMETER, Table, Their, parameter
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


BLOCK = "encoder.layers.encoder_layer_"
OLD, NEW = ("mlp.linear_1", "mlp.linear_2"), ("mlp.0", "mlp.3")


def facts_of(found: Found) -> Facts:
    """vision_transformer.py; the table is resized by `interpolate_embeddings`, bicubic with corners aligned."""
    width, channels, patch_height, patch_width = (found.size("conv_proj.weight", axis) for axis in range(4))
    if patch_height != patch_width:
        raise ConversionError(f"torchvision has no patches of {patch_height} x {patch_width}")
    depth, fc1 = found.depth(BLOCK), (OLD if found.layout == "old" else NEW)[0]
    inner = found.size(f"{BLOCK}0.{fc1}.weight")
    _, size = found.grid(found.size("encoder.pos_embedding", 1), (patch_height, patch_width), (1,))
    if not isinstance(size, int):
        raise ConversionError(f"torchvision has no model for pictures of {size}")
    return {
        "image_size": size,
        "patch_size": patch_height,
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": found.heads(width, inner, depth, NAMED_SIZES),
        "intermediate_size": inner,
        "position_resampling": "bicubic_align_corners",
        "representation_size": found.size("heads.pre_logits.weight") if "heads.pre_logits.weight" in found else None,
        "num_labels": found.size("heads.head.weight") if "heads.head.weight" in found else 0,
    }


def table(config: ViTCustomConfig, layout: str) -> Table:
    fc1, fc2 = OLD if layout == "old" else NEW
    return {
        "embeddings.cls_token": Their("class_token", PARAMETER),
        POSITION_ROWS: Their("encoder.pos_embedding", parameter(flat_positions(config))),
        "embeddings.patch_embeddings.projection": "conv_proj",
        "layers.{i}.norm1": f"{BLOCK}{{i}}.ln_1",
        QKV: Their(f"{BLOCK}{{i}}.self_attention.in_proj", IN_PROJ),
        "layers.{i}.attention.o_proj": f"{BLOCK}{{i}}.self_attention.out_proj",
        "layers.{i}.norm2": f"{BLOCK}{{i}}.ln_2",
        "layers.{i}.ffn.fc1": f"{BLOCK}{{i}}.{fc1}",
        "layers.{i}.ffn.fc2": f"{BLOCK}{{i}}.{fc2}",
        "norm": "encoder.ln",
        "pooler.pre_logits.0": "heads.pre_logits",
        "classifier": "heads.head",
    }


# By width, patch and size: what the shorter side is resized to, for each resampling that the `transforms()` of public weights has.
# Bilinear is IMAGENET1K_V1, bicubic SWAG.
EDGES = {
    (768, 16, 224): {BILINEAR: 256, BICUBIC: 224},
    (768, 32, 224): {BILINEAR: 256},
    (1024, 16, 224): {BILINEAR: 242, BICUBIC: 224},
    (1024, 32, 224): {BILINEAR: 256},
    (1280, 14, 224): {BICUBIC: 224},
    (768, 16, 384): {BICUBIC: 384},
    (1024, 16, 512): {BICUBIC: 512},
    (1280, 14, 518): {BICUBIC: 518},
}


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """The `transforms()` of the weights; of a model that isn't public, the bilinear 256 for 224 of torchvision's references."""
    facts = facts_of(found)
    size = min(pair(facts["image_size"]))
    key = (facts["hidden_size"], facts["patch_size"], facts["image_size"])
    edges = EDGES.get(key if all(isinstance(part, int) for part in key) else None, {BILINEAR: size * 256 // 224})
    why = (
        "the evaluation pixels are not in the file, and public weights of this size have two kinds: bilinear for IMAGENET1K_V1, bicubic "
        "for IMAGENET1K_SWAG_LINEAR_V1"
    )
    resample = found.ask("resample", why, next(iter(edges)) if len(edges) == 1 else None)
    edge = edges.get(resample, size * 256 // 224) * min(pair(config.image_size)) // size
    return {**IMAGENET, "resample": resample, **centre_cropped(config, edge)}


TORCHVISION = Family(
    name="torchvision",
    title="torchvision vit_* (.pth)",
    reference="torchvision",
    anchors=("conv_proj.weight",),
    recognise=lambda found: "class_token" in found and found.has(f"{BLOCK}0."),
    facts=facts_of,
    table=table,
    pixels=pixels,
    layout=lambda found: "old" if found.has(OLD[0]) else "new",
    layouts=("new", "old"),
    asked=("num_attention_heads", "image_size", "position_resampling"),
)
