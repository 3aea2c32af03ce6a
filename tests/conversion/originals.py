"""Files in their true format, made by timm and torchvision with every parameter random, and the models that made them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from tests.tiny import randomise


SIZES = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 1.5,
    "num_classes": 5,
}
BARE = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25], "crop_pct": 0.9}
TOLD = {"num_attention_heads": 4}


@dataclass
class Original:
    """A model, how its file is written, and what has to be told to read it."""

    family: str
    build: Callable[[], nn.Module]
    write: Callable[[nn.Module, Path], Path]
    request: dict = field(default_factory=dict)
    sizes: tuple = ((32, 32),)


def timm_model(architecture: str, **options) -> nn.Module:
    """A tiny model of the architecture."""
    options = {**SIZES, **options, "dynamic_img_size": True}
    model = timm.create_model(architecture, pretrained=False, **options)
    model.arguments = {name: value for name, value in options.items() if name != "dynamic_img_size"}
    return randomise(model.eval(), scale=0.3)


def timm_folder(model: nn.Module, path: Path) -> Path:
    """As `timm.models.push_to_hf_hub` writes it."""
    folder = path / "timm"
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    cfg = {**model.pretrained_cfg, "input_size": [3, *model.patch_embed.img_size]}
    config = {
        "architecture": cfg.pop("architecture"), "num_classes": model.num_classes, "num_features": model.num_features,
        "global_pool": model.global_pool, "model_args": model.arguments, "pretrained_cfg": cfg,
        "label_names": [f"class {index}" for index in range(model.num_classes)],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pth(*containers: str, rename: Callable[[str], str] = lambda name: name) -> Callable[[nn.Module, Path], Path]:
    """`torch.save` of the state dict, in containers, with names changed."""

    def write(model: nn.Module, path: Path) -> Path:
        content = {rename(name): tensor for name, tensor in model.state_dict().items()}
        for key in reversed(containers):
            content = {key: content}
        torch.save(content, path / "weights.pth")
        return path / "weights.pth"

    return write


def vit(size: tuple[int, int] = (32, 32), **options) -> nn.Module:
    return randomise(
        torchvision.models.VisionTransformer(size[0], 8, 2, 4, 48, 72, num_classes=5, **options).eval(), scale=0.3
    )


def old_names(name: str) -> str:
    """torchvision's before 0.13."""
    return name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2")


def deit3_names(name: str) -> str:
    return name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")


MANY = ((32, 32), (48, 48), (24, 40))
TIMM = {
    "vit": ("vit_base_patch16_224", {}),
    "vit-rectangle": ("vit_base_patch16_224", {"img_size": (24, 40)}),
    "registers-gap": ("vit_medium_patch16_reg4_gap_256", {}),
    "gap-no-fc-norm": ("vit_base_patch16_224", {"global_pool": "avg", "fc_norm": False, "class_token": False}),
    "registers-positions": ("vit_base_patch16_224", {"reg_tokens": 3}),
    "no-embed-class": ("vit_base_patch16_224", {"reg_tokens": 3, "no_embed_class": True}),
    "qk-norm": ("vit_base_patch16_224", {"qk_norm": True, "qkv_bias": False}),
    "clip": ("vit_base_patch16_clip_224", {}),
    "clip-quickgelu": ("vit_base_patch16_clip_quickgelu_224", {}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "registers-map": ("vit_so150m_patch16_reg4_map_256", {}),
    "siglip2-tanh": ("vit_base_patch32_siglip_256", {}),
    "siglip-gap": ("vit_base_patch16_siglip_gap_224", {}),
    "dinov2": ("vit_small_patch14_dinov2", {}),
    "dinov2-registers": ("vit_small_patch14_reg4_dinov2", {}),
    "dinov2-swiglu": ("vit_giant_patch14_dinov2", {}),
    "dinov3": ("vit_small_patch16_dinov3", {}),
    "dinov3-bias": ("vit_small_patch16_dinov3_qkvb", {}),
    "dinov3-swiglu": ("vit_small_plus_patch16_dinov3", {}),
    "deit": ("deit_tiny_patch16_224", {}),
    "deit-distilled": ("deit_tiny_distilled_patch16_224", {}),
    "deit3": ("deit3_small_patch16_224", {}),
    "flexivit": ("flexivit_small", {}),
}
ORIGINALS = {
    **{
        f"timm-{name}": Original("timm", lambda a=a, o=o: timm_model(a, **o), timm_folder, {}, MANY)
        for name, (a, o) in TIMM.items()
    },
    "timm-bare": Original(
        "timm", lambda: timm_model("vit_base_patch16_224"), pth(), {"family": "timm", "set": {**TOLD, **BARE}}, MANY
    ),
    "timm-bare-module": Original(
        "timm", lambda: timm_model("vit_base_patch16_224"), pth("state_dict", rename=lambda n: f"module.{n}"),
        {"family": "timm", "set": {**TOLD, **BARE}}, MANY,
    ),
    "torchvision": Original("torchvision", vit, pth(), {"set": TOLD}),
    "torchvision-old": Original("torchvision", vit, pth(rename=old_names), {"set": TOLD}),
    "torchvision-representation": Original("torchvision", lambda: vit(representation_size=9), pth(), {"set": TOLD}),
    "deit-pth": Original(
        "deit", lambda: timm_model("deit_tiny_patch16_224"), pth("model"), {"family": "deit", "set": TOLD}
    ),
    "deit-pth-distilled": Original(
        "deit", lambda: timm_model("deit_tiny_distilled_patch16_224"), pth("model"), {"family": "deit", "set": TOLD}
    ),
    "deit3-pth": Original(
        "deit", lambda: timm_model("deit3_small_patch16_224"), pth("model", rename=deit3_names), {"set": TOLD}
    ),
    "ijepa-pth": Original(
        "ijepa",
        lambda: timm_model("vit_base_patch16_224", class_token=False, global_pool="avg", fc_norm=False, num_classes=0),
        pth("target_encoder", rename=lambda name: f"module.{name}"), {"family": "ijepa", "set": TOLD},
    ),
    "dino-pth": Original(
        "dino", lambda: timm_model("vit_base_patch16_224", num_classes=0), pth(), {"family": "dino", "set": TOLD}
    ),
    "dinov2-pth": Original(
        "timm", lambda: timm_model("vit_small_patch14_dinov2"), pth(), {"family": "timm", "set": {**TOLD, **BARE}}, MANY
    ),
}  # fmt: skip
