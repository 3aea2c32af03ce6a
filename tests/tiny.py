"""Tiny models with every parameter random and large enough to show, and the axes that the tests run over."""

import torch

from modeling_vit_custom import ViTCustomConfig, ViTCustomForImageClassification


POSITIONS = ["none", "learned", "learned_2d", "sincos_1d", "sincos_2d", "relative", "rope_2d"]
POOLINGS = ["cls", "mean", "cls_mean", "map"]
FFNS = [{"ffn_type": "mlp"}, {"ffn_type": "swiglu", "hidden_act": "silu"}]

# Each axis once, every class of the model's tables at least once.
VARIED = (
    [{"position_embedding": position} for position in POSITIONS]
    + [{"pooling": pooling} for pooling in POOLINGS]
    + FFNS
    + [
        {"class_token": False, "pooling": "mean", "final_norm": "pooled", "position_embedding": "sincos_2d"},
        {"num_register_tokens": 3, "prefix_positions": "all", "position_embedding": "learned_2d"},
        {"num_register_tokens": 3, "position_embedding": "relative", "pooling": "map", "layerscale_value": 0.1},
        {"num_register_tokens": 3, "position_embedding": "rope_2d", "qk_norm": True, "key_bias": False},
        {"distillation_token": True, "prefix_positions": "none"},
        {"embedding_norm": True, "patch_bias": False, "projection_dim": 7, "final_norm": "pooled"},
        {"representation_size": 9, "norm_type": "rms_norm"},
        {"query_bias": False, "value_bias": False, "proj_bias": False, "position_resampling": "bilinear"},
    ]
)


def label(options: dict) -> str:
    """A test id that says what is varied."""
    return "-".join(f"{key}={value}" for key, value in options.items()) or "default"


def tiny_config(**options) -> ViTCustomConfig:
    """A rectangular grid of 4 x 3 rectangular patches, 3 blocks, 5 classes."""
    sizes = {"image_size": [16, 24], "patch_size": [4, 8], "hidden_size": 48, "intermediate_size": 80}
    depth = {"num_hidden_layers": 3, "num_attention_heads": 4}
    labels = {} if options.keys() & {"id2label", "num_labels"} else {"num_labels": 5}
    return ViTCustomConfig(**{**sizes, **depth, **labels, **options})


def randomise(model: torch.nn.Module, seed: int = 0, scale: float = 0.25) -> torch.nn.Module:
    """Every parameter random, none at 0 or 1: a dropped or swapped one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            is_norm = "norm" in name.lower() and name.endswith("weight") and parameter.ndim == 1
            parameter.copy_(scale * noise + (1.0 if is_norm else 0.0))
    return model


def tiny_model(model_class: type = ViTCustomForImageClassification, seed: int = 0, **options):
    """A random model in evaluation mode."""
    return randomise(model_class(tiny_config(**options)), seed).eval()


def pictures(count: int = 2, size: tuple[int, int] = (16, 24), channels: int = 3) -> torch.Tensor:
    """Random `pixel_values`."""
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(1))
