"""The model and image processor of a recipe."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    BaseImageProcessor,
    PreTrainedModel,
)

from modeling_vit_custom import ViTCustomConfig, ViTCustomForImageClassification, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import pair
from modeling_vit_custom.pictures_vit_custom import MODES
from scripts.common.augment import picture_channels
from scripts.common.errors import UserError, as_user_error
from scripts.common.recipe import ModelRecipe


FROM_DATA = ("id2label", "label2id", "num_labels", "problem_type")


def build_model(recipe: ModelRecipe, names: list[str]) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """
    A classifier of the classes `names` and its image processor: from `recipe.pretrained`, with a new head where its classes
    are others, or from random weights. In float32, whatever the file holds.

    Raises:
        `UserError`: if there is no such model, or its weights don't fit the configuration.
    """
    for field in FROM_DATA:
        if field in recipe.config:
            raise UserError(f"model.config.{field} cannot be set: the classes come from the training pictures")
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    labels["problem_type"] = "single_label_classification"
    if recipe.from_rgb:
        return from_rgb(recipe, names, labels)
    if recipe.pretrained is not None:
        return load_model(recipe.pretrained, names, {**recipe.config, **labels})
    with as_user_error("model"):
        fields = {**recipe.config, **labels}
        config = (
            ViTCustomConfig(**fields)
            if recipe.variant is None
            else ViTCustomConfig.from_variant(recipe.variant, **fields)
        )
        return ViTCustomForImageClassification(config), ViTCustomImageProcessor.for_model(config)


def from_rgb(
    recipe: ModelRecipe, names: list[str], labels: dict[str, Any]
) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """The model and processor of `recipe.pretrained`, which is for RGB, brought to `recipe.config["num_channels"]`."""
    config = dict(recipe.config)
    channels = config.pop("num_channels", None)
    if recipe.pretrained is None or channels is None:
        raise UserError("model.from_rgb needs model.pretrained, and model.config.num_channels, the channels to have")
    model, processor = load_model(recipe.pretrained, names, {**config, **labels})
    if not hasattr(model, "resize_channels"):
        raise UserError(f"model.from_rgb: {type(model).__name__} cannot change its channels")
    with as_user_error("model.from_rgb"):
        model.resize_channels(channels)
        more = {1: lambda rgb: [sum(rgb) / 3]}.get(channels, lambda rgb: [*rgb, *[0.5] * (channels - 3)])
        statistics = {name: more(list(getattr(processor, name))) for name in ("image_mean", "image_std")}
        return model, type(processor).from_dict({**processor.to_dict(), **statistics})


def load_model(
    source: str, names: list[str] | None = None, fields: dict[str, Any] | None = None
) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """
    An image classifier and its image processor from a folder or the Hub, in float32, with `fields` of its configuration set.

    With `names`, its head may be new, one for so many classes; without, every weight must be in the file.
    """
    source = check_source(source)
    with as_user_error(source):
        config = AutoConfig.from_pretrained(source)
        unknown = sorted(key for key in fields or {} if not hasattr(config, key))
        if unknown:
            raise UserError(f"model.config.{unknown[0]}: {type(config).__name__} of {source} has no such field")
        model, info = AutoModelForImageClassification.from_pretrained(
            source, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True, **(fields or {})
        )
        processor = AutoImageProcessor.from_pretrained(source)
    weights = model.state_dict()
    fresh = info["missing_keys"] | {name for name, *_ in info["mismatched_keys"]}
    wrong = sorted(name for name in fresh if names is None or weights[name].shape[0] != len(names))
    if wrong:
        rest = "only a head may be new" if names else "it is no whole classifier"
        rest += "; model.from_rgb=true starts from RGB weights" if "num_channels" in (fields or {}) else ""
        raise UserError(f"{source} does not fit: {', '.join(wrong[:3])} missing or of another shape; {rest}")
    return model, processor


@torch.no_grad()  # not inference_mode: models such as BEiT keep tensors for later calls
def check_fit(model: PreTrainedModel, processor: BaseImageProcessor, source: str) -> None:
    """
    Looks once at a blank picture of the size that the model is made for.

    Raises:
        `UserError`: if what the processor gives doesn't fit the model, or the model's outputs its classes.
    """
    was_training, kind = model.training, type(processor).__name__
    with as_user_error(f"{source}: {kind} does not fit {type(model).__name__}"):
        height, width = pair(getattr(model.config, "image_size", None) or 64)
        inputs = processor(Image.new(MODES[picture_channels(processor)], (width, height)), return_tensors="pt")
        if set(inputs) != {"pixel_values"}:
            raise UserError(f"{source}: {kind} gives {', '.join(inputs)}; models of pixel_values alone are known here")
        outputs = model.eval()(pixel_values=inputs["pixel_values"].to(model.device)).logits.shape[-1]
        model.train(was_training)
    if outputs != len(model.config.id2label):
        raise UserError(f"{source}: the model has {outputs} outputs for {len(model.config.id2label)} classes")


def check_source(source: str) -> str:
    """
    The folder of a model, or the id of one on the Hub.

    Raises:
        `UserError`: for what can be neither.
    """
    folder = Path(source).expanduser()
    if folder.is_dir() and not (folder / "config.json").exists():
        hint = f"; did you mean {folder / 'final'}?" if (folder / "final").is_dir() else ""
        raise UserError(f"{source} holds no model (no config.json){hint}")
    if not folder.is_dir() and source.count("/") != 1:
        raise UserError(f"{source}: no such folder, and no id of a model on the Hub (owner/name)")
    return str(folder) if folder.is_dir() else source
