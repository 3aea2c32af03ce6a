"""The model and image processor of a recipe."""

from pathlib import Path

import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification, BaseImageProcessor, PreTrainedModel

from modeling_vit_custom import ViTCustomConfig, ViTCustomForImageClassification, ViTCustomImageProcessor
from scripts.common.errors import UserError, last_line
from scripts.common.recipe import ModelRecipe


def build_model(
    recipe: ModelRecipe, names: list[str], checkpoint: Path | None = None
) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """
    A classifier of the classes `names` and its image processor: from `checkpoint` as it is, from `recipe.pretrained` with
    a new head where its classes are others, or from random weights. In float32, whatever the file holds.

    Raises:
        `UserError`: if there is no such model, or its weights don't fit the configuration.
    """
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    if recipe.config.get("num_channels", 3) != 3:
        raise UserError(f"model.config.num_channels={recipe.config['num_channels']}: training reads pictures as RGB; use 3")
    try:
        if checkpoint is not None:
            return load(str(checkpoint), names)
        if recipe.pretrained is not None:
            return load(recipe.pretrained, names, **labels, **recipe.config)
        fields = {**recipe.config, **labels}
        config = (
            ViTCustomConfig(**fields)
            if recipe.variant is None
            else ViTCustomConfig.from_variant(recipe.variant, **fields)
        )
        return ViTCustomForImageClassification(config), ViTCustomImageProcessor.for_model(config)
    except UserError:
        raise
    except Exception as error:  # the strict configuration's and the loaders' own
        raise UserError(f"model: {last_line(error)}") from error


def load(source: str, names: list[str], **options) -> tuple[PreTrainedModel, BaseImageProcessor]:
    if not Path(source).is_dir() and source.count("/") != 1:
        raise UserError(f"model.pretrained={source}: no such folder, and no model on the Hub (owner/name)")
    model, info = AutoModelForImageClassification.from_pretrained(
        source, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True, **options
    )
    weights = model.state_dict()
    fresh = info["missing_keys"] | {name for name, *_ in info["mismatched_keys"]}
    wrong = sorted(name for name in fresh if weights[name].shape[0] != len(names))
    if wrong:
        raise UserError(
            f"{source} does not fit: {', '.join(wrong[:3])} missing or of another shape; only a head may be new"
        )
    return model, AutoImageProcessor.from_pretrained(source)
