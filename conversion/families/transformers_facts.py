"""What `config.json` of a transformers model says, in our fields, and back; a field left out has its class's default."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from conversion.errors import ConversionError
from conversion.families.base import MOST, Facts, Found, distinct
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


Say = Callable[[str], Any]
"""A field of their configuration, or its default."""


@dataclass(frozen=True)
class Kind:
    """
    One model type.

    Args:
        model_type: As in `config.json`.
        config: Its class, for the defaults.
        processor: The image processor that goes with it.
        classes: The model without and with a classifier.
        fields: Their fields and ours, where the two mean the same.
        fixed: Fields of ours that hold for all of its files.
        blocks: What stands before the number of a block, by layout.
        needs: Names that a file of it has.
        lacks: Names that it hasn't, in contrast to others of its model type.
        read: Further fields of ours.
        write: Further fields of theirs.
        towers: The type of a configuration that holds this one as `vision_config`.
        is_whole: Whether the model is of the type `towers` itself.
        is_square: Whether its code takes one number for a size, and a table of positions for a square.
    """

    model_type: str
    config: type
    processor: str
    classes: tuple[str, str]
    fields: Mapping[str, str]
    fixed: Facts
    blocks: Mapping[str, str]
    needs: tuple[str, ...]
    read: Callable[[Found, Say], Facts]
    write: Callable[[ViTCustomConfig], Facts]
    towers: str = ""
    is_whole: bool = False
    is_square: bool = False
    lacks: tuple[str, ...] = ()


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


SIZES = same(
    "hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps", "image_size", "patch_size", "num_channels"
)  # fmt: skip
MLP = same("intermediate_size", "hidden_act")
ATTENTION_DROPOUT = {"attention_dropout": "attention_probs_dropout_prob"}
TRAINING = same("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
QKV_BIAS = ("query_bias", "key_bias", "value_bias")
CLASSIFIERS = ("classifier.weight", "cls_classifier.weight")
LENGTHS = {
    "hidden_size", "image_size", "patch_size", "num_channels", "intermediate_size", "num_register_tokens", "projection_dim",
}  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Facts


def settings(kind: Kind, config: Facts) -> Facts:
    """The table that holds the fields of the image tower."""
    if "vision_config" not in config:
        return config
    vision = config["vision_config"]
    if not isinstance(vision, dict):
        raise ConversionError(f"config.json: vision_config must be a table, not {vision!r}")
    shared = config.get("projection_dim", getattr(kind.config, "projection_dim", None))
    return vision if shared is None else {**vision, "projection_dim": shared}


def said(kind: Kind, their: Facts, name: str) -> Any:
    """A field of their configuration, or the default of its class."""
    value = their.get(name)
    return getattr(kind.config, name) if value is None else value


def recognise(kind: Kind, found: Found) -> bool:
    wanted = (kind.towers,) if kind.is_whole else (kind.model_type, kind.towers)
    return (
        found.config is not None
        and found.config.get("model_type") in wanted
        and all(name in found for name in kind.needs)
        and not any(name in found for name in kind.lacks)
    )


def facts(kind: Kind, found: Found) -> Facts:
    """What `config.json` says, where it can be compared with the file: the number of blocks and of classes."""
    say = partial(said, kind, settings(kind, found.config))
    layers, depth = say("num_hidden_layers"), found.depth(kind.blocks[found.layout])
    if layers != depth:
        raise ConversionError(f"config.json says num_hidden_layers={layers}, but the file has {depth} blocks")
    try:
        read = {ours: say(theirs) for theirs, ours in kind.fields.items()} | kind.fixed | kind.read(found, say)
        for name in LENGTHS & read.keys():
            if any(number > MOST["hidden_size"] for number in numbers(read[name])):
                raise ConversionError(f"{name}={read[name]} is more than any ViT has")
        config = ViTCustomConfig(**read)
        if kind.is_square and not len({*pair(config.image_size)}) == len({*pair(config.patch_size)}) == 1:
            raise ValueError(f"image_size={config.image_size} and patch_size={config.patch_size} must be squares here")
    except (TypeError, ValueError, OverflowError, StrictDataclassError) as error:
        raise ConversionError(f"config.json: {error}") from error
    return {**read, "num_labels": class_count(found)}


def numbers(value: Any) -> list[int | float]:
    return [n for n in (value if isinstance(value, list | tuple) else [value]) if isinstance(n, int | float)]


def class_count(found: Found) -> int:
    """
    The rows of the classifier.

    Raises:
        `ConversionError`: if `config.json` says another number.
    """
    head = next((name for name in CLASSIFIERS if name in found), None)
    if head is None:
        return 0
    rows, names = found.size(head), found.config.get("id2label")
    stated = len(names) if isinstance(names, dict) else found.config.get("num_labels", 2)
    if stated != rows:
        raise ConversionError(f"config.json says {stated} classes, but {head} has {rows} rows")
    return rows


def labels(found: Found) -> list[str] | None:
    """The names in `config.json`."""
    table = found.config.get("id2label")
    return label_list(table) if isinstance(table, dict) and any(name in found for name in CLASSIFIERS) else None


def label_list(table: Mapping[str, str]) -> list[str]:
    by_number = {str(key): name for key, name in table.items()}
    if set(by_number) != {str(i) for i in range(len(table))} or not all(isinstance(n, str) for n in table.values()):
        raise ConversionError(f"config.json: id2label must name the classes 0 to {len(table) - 1}")
    return distinct([by_number[str(index)] for index in range(len(table))])


def read_biases(found: Found, say: Say) -> Facts:
    """One flag for three biases."""
    return dict.fromkeys(QKV_BIAS, say("qkv_bias"))


def read_vit(found: Found, say: Say) -> Facts:
    """A pooler of a dense layer and tanh on the class token, in a model without classifier."""
    if "pooler.dense.weight" not in found or any(name in found for name in CLASSIFIERS):
        return read_biases(found, say)
    if say("pooler_act") != "tanh":
        raise ConversionError(f"pooler_act={say('pooler_act')!r}; our pooler has 'tanh'")
    return {**read_biases(found, say), "representation_size": found.size("pooler.dense.weight")}


def read_deit(found: Found, say: Say) -> Facts:
    """Where no head is on the distillation token, it is a token like a register with a position."""
    if "cls_classifier.weight" not in found and ("classifier.weight" in found or "pooler.dense.weight" in found):
        return {**read_vit(found, say), "num_register_tokens": 1, "prefix_positions": "all"}
    return {**read_vit(found, say), "distillation_token": True}


def write_vit(config: ViTCustomConfig) -> Facts:
    pooler = {"pooler_output_size": config.representation_size} if config.representation_size else {}
    return {"qkv_bias": config.query_bias, **pooler}


def read_dinov2(found: Found, say: Say) -> Facts:
    """The inner width is a multiple of the width; a classifier is on the class token and the mean of the patches."""
    gated, pooling = say("use_swiglu_ffn"), "cls_mean" if "classifier.weight" in found else "cls"
    inner = inner_width(say("hidden_size"), say("mlp_ratio"), gated)
    ffn = {"ffn_type": "swiglu", "hidden_act": "silu"} if gated else {"hidden_act": say("hidden_act")}
    return {**read_biases(found, say), **ffn, "intermediate_size": inner, "pooling": pooling}


def inner_width(width: int, ratio: float, is_gated: bool) -> int:
    """modeling_dinov2.py: of a gated network two thirds, rounded up to a multiple of 8."""
    inner = int(width * ratio)
    return (int(inner * 2 / 3) + 7) // 8 * 8 if is_gated else inner


def write_dinov2(config: ViTCustomConfig) -> Facts:
    gated, width, inner = config.ffn_type == "swiglu", config.hidden_size, config.intermediate_size
    ratio = next((r for r in range(1, 65) if inner_width(width, r, gated) == inner), None)
    if ratio is None:
        raise ConversionError(
            f"DINOv2 of transformers cannot express intermediate_size={inner} with hidden_size={width}"
        )
    act = {} if gated else {"hidden_act": config.hidden_act}
    return {"qkv_bias": config.query_bias, "use_swiglu_ffn": gated, "mlp_ratio": ratio, **act}


def read_dinov3(found: Found, say: Say) -> Facts:
    """Rotation; registers after the class token."""
    if not say("mlp_bias"):
        raise ConversionError("mlp_bias=False; our feed-forward networks have biases")
    return {"ffn_type": "swiglu" if say("use_gated_mlp") else "mlp"}


def read_clip(found: Found, say: Say) -> Facts:
    """modeling_clip.py: a norm of the class token alone; the classifier takes tokens before any norm."""
    if "classifier.weight" in found:
        raise ConversionError(
            "CLIPForImageClassification averages tokens without a norm; leave its head out of the file"
        )
    return {"projection_dim": say("projection_dim") if "visual_projection.weight" in found else None}


def write_clip(config: ViTCustomConfig) -> Facts:
    return {} if config.projection_dim is None else {"projection_dim": config.projection_dim}


def nothing(*_: Any) -> Facts:
    return {}
