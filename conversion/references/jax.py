"""Google's own implementations of their `.npz` files, on JAX."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conversion.locate import Place, Source
from conversion.references.base import Layers, Reference, state_of
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


def of_vit_jax(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from vit_jax.models_vit import VisionTransformer

    sizes = {"num_layers": config.num_hidden_layers, "mlp_dim": config.intermediate_size}
    model = VisionTransformer(
        config.num_labels, SimpleNamespace(size=pair(config.patch_size)), {**sizes, "num_heads": config.num_attention_heads},
        config.hidden_size, representation_size=config.representation_size, classifier="token" if config.class_token else "gap",
    )  # fmt: skip
    return jax_reference("google-research/vision_transformer", model, place, config)


def of_big_vision(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from big_vision.models.vit import Model

    model = Model(
        config.num_labels, patch_size=pair(config.patch_size), width=config.hidden_size, depth=config.num_hidden_layers,
        mlp_dim=config.intermediate_size, num_heads=config.num_attention_heads, rep_size=config.representation_size or False,
        posemb="learn" if config.position_embedding == "learned" else "sincos2d", scan=place.found.layout == "scan",
        pool_type={"cls": "tok" if config.class_token else "0", "mean": "gap", "map": "map"}[config.pooling],
    )  # fmt: skip
    return jax_reference("google-research/big_vision", model, place, config)


PRE_LINEN = {"Attention_1/": "Attention_0/", "LayerNorm_2/": "LayerNorm_1/", "MlpBlock_3/": "MlpBlock_0/"}


def jax_reference(name: str, model: Any, place: Place, config: ViTCustomConfig) -> Reference:
    """A model of flax in full precision; scanned blocks are seen in what big_vision returns, others where flax captures them."""
    import jax
    from flax.traverse_util import unflatten_dict

    state = {key: tensor.numpy() for key, tensor in state_of(place).items()}
    if place.found.layout == "pre_linen":
        for old, new in PRE_LINEN.items():
            state = {key.replace(old, new): array for key, array in state.items()}
    params = unflatten_dict(state, sep="/")

    def run(pixels: Tensor) -> Layers:
        pictures = pixels.permute(0, 2, 3, 1).numpy()
        with jax.default_matmul_precision("highest"):
            output, kept = model.apply({"params": params}, pictures, train=False, capture_intermediates=True)
        inner = kept["intermediates"]["Transformer"]
        output, more = output if isinstance(output, tuple) else (output, {})
        blocks = [
            more["encoder"][f"block{i:02d}"]["+mlp"] if more else inner[f"encoderblock_{i}"]["__call__"][0]
            for i in range(config.num_hidden_layers)
        ]
        first = more["with_posemb"] if more else inner["posembed_input"]["__call__"][0]
        found = {} if more and config.class_token else {"embeddings": first}  # big_vision's token comes later
        found |= {f"block {i}": block for i, block in enumerate(blocks, start=1)}
        found |= {
            "last norm": inner["encoder_norm"]["__call__"][0],
            "logits" if config.num_labels else "output": output,
        }
        return {layer: torch.tensor(np.asarray(array)) for layer, array in found.items()}

    return Reference(f"{name} on JAX {jax.__version__}", run, None)
