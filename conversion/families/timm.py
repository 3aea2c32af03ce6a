"""timm's `vit_*`, `deit*`, `deit3*`, `flexivit*`: a folder of the Hub, a bare state dict or a live model."""

from conversion.errors import ConversionError, FactNeeded
from conversion.families.base import NAMED_SIZES, Facts, Family, Found
from conversion.families.clip import TEXT, open_clip_pixels
from conversion.families.timm_config import files, label_names, pixels_of, pretrained
from conversion.families.timm_model import facts_of_model, is_described, model_of
from conversion.families.torch_names import QKV, SCALES, gated_name, geometry, names, table_positions
from conversion.mapping import PARAMETER, SAME, Table, Their
from modeling_vit_custom import ViTCustomConfig


def facts(found: Found) -> Facts:
    """Shapes, and what the architecture says; of bare weights, timm's defaults and what is told."""
    model = model_of(found)
    if model is None:
        return facts_of_bare(found)
    told = facts_of_model(model)
    found.told = {**found.told, "num_attention_heads": told["num_attention_heads"]}
    shape_facts = geometry(found, "bicubic_antialias")
    if told.get("position_embedding") == "rope_2d":
        shape_facts |= biases_of_eva(found)
    return {**shape_facts, **told}


# (width, MLP, blocks, heads) of further models of timm, and of those that share a size with others.
MORE_SIZES = (
    (1536, 4096, 40, 24),  # vit_giant_patch14_dinov2
    (1536, 6144, 40, 16),  # vit_giantopt_patch16_siglip_*
)
RADIO = (1536, 6144, 40, 24)  # vit_giant_patch16_radio_v3, without attention pooling
GAP = (768, 3072, 12, 16)  # vit_base_patch16_gap_224, without class token and attention pooling


def facts_of_bare(found: Found) -> Facts:
    """
    What holds for timm's models with the names of these weights.

    Raises:
        `ConversionError`: without a position table, since several rotations and none at all look alike.
        `FactNeeded`: for the activation of CLIP's and SigLIP's models, which have several.
    """
    if "pos_embed" not in found:
        raise ConversionError(
            "bare weights of timm without pos_embed don't tell a rotation (DINOv3's or another) from no positions, nor the epsilon "
            "and the pooling; give the folder with their config.json, or the model itself"
        )
    has_pool, has_class = found.has("attn_pool."), "cls_token" in found
    shared = [*([] if has_pool else [RADIO]), *([] if has_pool or has_class else [GAP])]
    facts = geometry(found, "bicubic_antialias", (*NAMED_SIZES, *MORE_SIZES, *shared))
    clip, pooled = facts["embedding_norm"], "fc_norm.weight" in found
    facts["patch_bias"] = not clip
    several = clip or has_pool or not has_class
    why = (
        "the activation is not in bare weights of timm: 'quick_gelu' for CLIP's *_quickgelu_*, 'gelu_pytorch_tanh' for SigLIP's so400m "
        "and SigLIP 2's *_patch32_* and giant, 'gelu' for others"
    )
    pooling = "map" if has_pool else "mean" if pooled or not has_class else "cls"
    return {
        **facts,
        "hidden_act": facts.get("hidden_act") or found.ask("hidden_act", why, None if several else "gelu"),
        "layer_norm_eps": found.ask("layer_norm_eps", "", 1e-5 if clip else 1e-6),
        "pooling": found.ask("pooling", "", pooling),
        "final_norm": "pooled" if pooled else "tokens",
        **table_positions(found, facts),
    }


def biases_of_eva(found: Found) -> Facts:
    fused = "blocks.0.attn.qkv.bias" in found
    some = fused or "blocks.0.attn.q_bias" in found
    return {"query_bias": some, "key_bias": fused, "value_bias": some}


def table(config: ViTCustomConfig, layout: str) -> Table:
    spelling, _, gated = layout.partition("+")
    table = dict(names(config, scales=SCALES[1] if spelling == "eva" else SCALES[0], gated=gated or "mlp.fc1"))
    if spelling == "eva" and not config.key_bias:
        table[QKV] = Their("blocks.{i}.attn.qkv", {"weight": (".weight", SAME)})
        table["layers.{i}.attention.q_proj.bias"] = Their("blocks.{i}.attn.q_bias", PARAMETER)
        table["layers.{i}.attention.v_proj.bias"] = Their("blocks.{i}.attn.v_bias", PARAMETER)
    return {
        **table,
        "pooler.pool.probe": Their("attn_pool.latent", PARAMETER),
        "pooler.pool.attention.q_proj": "attn_pool.q",
        "pooler.pool.attention.{k,v}_proj": "attn_pool.kv",
        "pooler.pool.attention.o_proj": "attn_pool.proj",
        "pooler.pool.norm": "attn_pool.norm",
        "pooler.pool.ffn.fc1": "attn_pool.mlp.fc1",
        "pooler.pool.ffn.fc2": "attn_pool.mlp.fc2",
    }


def layout(found: Found) -> str:
    """`vit` or `eva`, and the spelling of a gate."""
    return f"{'eva' if 'blocks.0.gamma_1' in found else 'vit'}+{gated_name(found)}"


def spelling(config: ViTCustomConfig) -> str:
    """The layout that timm has for a configuration."""
    if config.position_embedding != "rope_2d":
        return "vit+mlp.fc1"
    return "eva+mlp.fc1_g" if config.ffn_type == "swiglu" else "eva+mlp.fc1"


# ---------------------------------------------------------------------------------------------------------------------
# Pixels


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """Those of the pretrained configuration; of a tower of OpenCLIP, its own."""
    if "model_cfg" in (found.config or {}):
        return open_clip_pixels(found, config)
    if found.live is not None:
        return pixels_of(getattr(found.live, "pretrained_cfg", None) or {}, config)
    if not found.is_bare:
        return pixels_of(pretrained(found.config), config)
    needed = next((name for name in ("image_mean", "image_std", "crop_pct") if name not in found.told), None)
    if needed:
        raise FactNeeded(
            "mean and standard deviation of the pixels, and the share that the crop keeps, are not in bare weights of timm; say them with "
            "--set image_mean=0.485,0.456,0.406 --set image_std=0.229,0.224,0.225 (ImageNet), or 0.5,0.5,0.5 for both, and "
            "--set crop_pct=0.9, as the model's pretrained_cfg has them",
            needed,
        )
    names = {"mean": "image_mean", "std": "image_std", "crop_pct": "crop_pct"}
    told = {theirs: found.told[ours] for theirs, ours in names.items()}
    return pixels_of(told, config)


TIMM = Family(
    name="timm",
    title="timm vit_*, deit*, deit3*, flexivit* (Hub folder, state dict, live model)",
    reference="timm",
    anchors=("patch_embed.proj.weight",),
    recognise=lambda found: (
        "blocks.0.attn.qkv.weight" in found
        and "rope_embed.periods" not in found
        and "mask_token" not in found
        and not ("blocks.0.gamma_1" in found and "pos_embed" in found)
        and is_described(found)
    ),
    facts=facts,
    table=table,
    pixels=pixels,
    layout=layout,
    layouts=("vit+mlp.fc1", "eva+mlp.fc1", "eva+mlp.fc1_g"),
    spelling=spelling,
    asked=("num_attention_heads", "image_size", "hidden_act", "layer_norm_eps", "pooling", "position_resampling"),
    beside=TEXT,
    suffix="",
    config=files,
    labels=lambda found: label_names(found.config or {}),
)
