"""The `.pth` files of facebookresearch: DeiT, DINO, DINOv2, DINOv3, MAE and I-JEPA."""

import torch
from torch import Tensor

from conversion.errors import ConversionError, FactNeeded
from conversion.families.base import BICUBIC, IMAGENET, NAMED_SIZES, Facts, Family, Found, centre_cropped
from conversion.families.torch_names import geometry, names, table_positions
from conversion.mapping import Table
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


ANCHORS = ("patch_embed.proj.weight",)
ASKED = ("num_attention_heads", "image_size", "position_resampling")
NO_EXTRAS = (
    "ls1",
    "gamma_1",
    "norm_pre",
    "attn_pool",
    "reg_token",
    "register_tokens",
    "storage_tokens",
    "q_norm",
    "w12",
)


DINOV2_GIANT = (1536, 4096, 40, 24)  # hub/backbones.py of facebookresearch/dinov2
DINOV3_SIZES = (  # hub/backbones.py of facebookresearch/dinov3: S, S+, B, L, H+, 7B
    (384, 1536, 12, 6), (768, 3072, 12, 12), (1024, 4096, 24, 16), (1280, 5120, 32, 20), (4096, 8192, 40, 32),
)  # fmt: skip


def plain(found: Found) -> bool:
    """A block without LayerScale, registers, gates and the like: DeiT, DINO, MAE, I-JEPA and many models of timm."""
    return found.is_bare and "blocks.0.attn.qkv.weight" in found and not any(found.has(part) for part in NO_EXTRAS)


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """Shorter side to 256 for 224 pixels, in proportion for others, bicubic, centre crop: the evaluation code of all of them."""
    return {**IMAGENET, "resample": BICUBIC, **centre_cropped(config, min(pair(config.image_size)) * 256 // 224)}


def facts_of(found: Found, resampling: str, **further: str) -> Facts:
    """Shapes, positions and what the family adds; all of these have a bias in the patches, so a file without it lacks it."""
    facts = geometry(found, resampling, (*NAMED_SIZES, DINOV2_GIANT)) | {"patch_bias": True}
    return {**facts, **table_positions(found, facts), **further}


def plain_table(config: ViTCustomConfig, layout: str) -> Table:
    return names(config)


def family(name: str, title: str, repository: str, **options) -> Family:
    """A family with what they have in common."""
    common = {"anchors": ANCHORS, "table": plain_table, "pixels": pixels, "asked": ASKED}
    return Family(name=name, title=title, reference=f"facebookresearch/{repository}", **{**common, **options})


# ---------------------------------------------------------------------------------------------------------------------
# DeiT


def deit_facts(found: Found) -> Facts:
    """models.py, models_v2.py: class token pooled, two heads with a distillation token; DeiT III has LayerScale."""
    return facts_of(found, "bicubic")


DEIT = family(
    "deit",
    "DeiT and DeiT III (.pth)",
    "deit",
    recognise=lambda found: (
        (plain(found) and "head.weight" in found and "norm.weight" in found and "cls_token" in found)
        or (found.is_bare and "blocks.0.gamma_1" in found and "pos_embed" in found and "head.weight" in found)
    ),
    facts=deit_facts,
    layout=lambda found: "deit3" if "blocks.0.gamma_1" in found else "deit",
    layouts=("deit", "deit3"),
    spelling=lambda config: "deit" if config.layerscale_value is None else "deit3",
    table=lambda config, layout: names(config, scales=("gamma_1", "gamma_2")),
    wrap="model",
)


# ---------------------------------------------------------------------------------------------------------------------
# DINO, DINOv2, DINOv3


def dino_facts(found: Found) -> Facts:
    """vision_transformer.py: bicubic with 0.1 added to the target grid, no head."""
    return facts_of(found, "bicubic_offset")


DINO = family(
    "dino",
    "DINO (.pth)",
    "dino",
    recognise=lambda found: (
        plain(found) and "cls_token" in found and "head.weight" not in found and "norm.weight" in found
    ),
    facts=dino_facts,
    beside=("head.*",),
)


def dinov2_facts(found: Found) -> Facts:
    """hub/backbones.py: the offset of DINO, but antialias and no offset with registers, which have no positions."""
    return facts_of(found, "bicubic_antialias" if "register_tokens" in found else "bicubic_offset")


def mask_token(config: ViTCustomConfig) -> dict[str, Tensor]:
    """A token that inference doesn't use."""
    return {"mask_token": torch.zeros(1, config.hidden_size)}


DINOV2 = family(
    "dinov2",
    "DINOv2, with and without registers (.pth)",
    "dinov2",
    recognise=lambda found: (
        found.is_bare and "mask_token" in found and "pos_embed" in found and found.has(".ls1.gamma")
    ),
    facts=dinov2_facts,
    table=lambda config, layout: names(config, "register_tokens", gated="mlp.w12"),
    kept=("mask_token",),
    made=mask_token,
)


def dinov3_facts(found: Found) -> Facts:
    """models/vision_transformer.py: rotation, registers after the class token, eps 1e-5, a key bias that is masked away."""
    facts = geometry(found, "bicubic", DINOV3_SIZES) | {"patch_bias": True}
    patch = max(pair(facts["patch_size"]))
    return {
        **facts,
        "key_bias": False,
        "layer_norm_eps": 1e-5,
        "position_embedding": "rope_2d",
        "rope_theta": rope_theta(found),
        "image_size": found.ask("image_size", "", 224 // patch * patch),
    }


ROUNDING = 2**-7  # relative; bfloat16 has 8 bits


def rope_theta(found: Found) -> float:
    """
    The base of the rotation, 100 unless told, whose periods are in the file, rounded to bfloat16 in public ones; we compute them in
    float32. So are masks, of ones but for the key's zeros.

    Raises:
        `FactNeeded`, `ConversionError`: if those in the file are others.
    """
    for name in found.shapes:
        if name.endswith("bias_mask"):
            mask = found.stored(name).float()
            if not torch.equal(mask, bias_mask(found.size(name) // 3)):
                raise ConversionError(f"{name} masks other biases than that of the key")
    stored, theta = found.stored("rope_embed.periods"), found.told.get("rope_theta", 100.0)
    if not torch.allclose(stored.double(), periods(theta, found.size("rope_embed.periods")), rtol=ROUNDING, atol=0):
        raise FactNeeded(
            f"the periods of the rotation in the file, {stored.tolist()[:4]} ..., are not those of rope_theta={theta}; say which "
            "base they have with --set rope_theta=...",
            "rope_theta",
        )
    return theta


def periods(theta: float, count: int) -> Tensor:
    return theta ** (torch.arange(count, dtype=torch.float64) / count)


def bias_mask(width: int) -> Tensor:
    return torch.cat([torch.ones(width), torch.zeros(width), torch.ones(width)])


def buffers(config: ViTCustomConfig) -> dict[str, Tensor]:
    """The buffers that the original fills at its start: periods of the rotation, and which biases act."""
    made = {"rope_embed.periods": periods(config.rope_theta, config.head_dim // 4).float()} | mask_token(config)
    if config.query_bias:
        names = [f"blocks.{index}.attn.qkv.bias_mask" for index in range(config.num_hidden_layers)]
        made |= {name: bias_mask(config.hidden_size) for name in names}
    return made


DINOV3 = family(
    "dinov3",
    "DINOv3 ViT (.pth)",
    "dinov3",
    recognise=lambda found: found.is_bare and "storage_tokens" in found and "rope_embed.periods" in found,
    facts=dinov3_facts,
    table=lambda config, layout: names(config, "storage_tokens", gated="mlp.w1"),
    asked=("num_attention_heads", "image_size", "rope_theta"),
    kept=("mask_token", "rope_embed.periods", "local_cls_norm.*", "blocks.*.attn.qkv.bias_mask"),
    made=buffers,
)


# ---------------------------------------------------------------------------------------------------------------------
# MAE, I-JEPA


def mae_facts(found: Found) -> Facts:
    """models_mae.py, models_vit.py: stored sin-cos table; fine-tuned, the mean of the patches and then `fc_norm`."""
    pooled = {"pooling": "mean", "final_norm": "pooled"} if "fc_norm.weight" in found else {}
    return facts_of(found, "bicubic", **pooled)


def mae_pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """util/datasets.py: above 224 pixels nothing is cropped off the shorter side."""
    size = min(pair(config.image_size))
    return pixels(found, config) if size <= 224 else {**IMAGENET, "resample": BICUBIC, **centre_cropped(config, size)}


MAE = family(
    "mae",
    "MAE: encoder and fine-tuned (.pth)",
    "mae",
    recognise=lambda found: (
        plain(found) and "cls_token" in found and ("fc_norm.weight" in found) == ("head.weight" in found)
    ),
    facts=mae_facts,
    pixels=mae_pixels,
    kept=(
        "mask_token",
        "decoder_embed.*",
        "decoder_pos_embed",
        "decoder_blocks.*",
        "decoder_norm.*",
        "decoder_pred.*",
    ),
    wrap="model",
)


def ijepa_facts(found: Found) -> Facts:
    """src/models/vision_transformer.py: no class token; the mean of the normed patches."""
    return facts_of(found, "bicubic", pooling="mean")


IJEPA = family(
    "ijepa",
    "I-JEPA (.pth)",
    "ijepa",
    recognise=lambda found: (
        plain(found) and "cls_token" not in found and "pos_embed" in found and "head.weight" not in found
    ),
    facts=ijepa_facts,
    wrap="target_encoder",
    prefix="module.",
)
