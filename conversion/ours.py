"""A folder of ours: its model without numbers, its weights and its image processor, each checked against the others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conversion.errors import ConversionError
from conversion.families.base import check_modest
from conversion.folders import inside, json_in, only, open_folder, read_json
from conversion.mapping import listed
from conversion.weights import Weights
from modeling_vit_custom import (
    ViTCustomConfig,
    ViTCustomForImageClassification,
    ViTCustomImageProcessor,
    ViTCustomModel,
    ViTCustomPreTrainedModel,
)


ENCODERS = (["ViTCustomModel"], ["ViTCustomBackbone"])


@dataclass
class Ours:
    """What a folder holds; `names` gives the name in the file of each parameter, by its name in the encoder or of the head."""

    folder: Path
    config: ViTCustomConfig
    processor: ViTCustomImageProcessor | None
    weights: Weights
    names: dict[str, str]


def open_ours(folder: Path, **fields: Any) -> Ours:
    """
    A folder as `save_pretrained` or `import_to_folder` wrote it, with `fields` of the configuration replaced.

    Raises:
        `ConversionError`: if it is none, is damaged, or its weights are not those of its configuration.
    """
    if not folder.is_dir():
        raise ConversionError(f"{folder} is no folder; give one that was imported or saved")
    weights = only(open_folder(folder)[0], folder)
    table = read_json(inside(folder, "config.json"))
    if table.get("model_type") != ViTCustomConfig.model_type:
        raise ConversionError(
            f"{folder} holds no model of ours but of the type {table.get('model_type')!r}; import it first"
        )
    if table.get("architectures") in ENCODERS:  # whose configuration may count classes all the same
        fields["num_labels"] = 0
    pixels = json_in(folder, "preprocessor_config.json")
    try:
        config = ViTCustomConfig.from_pretrained(folder, **fields)
        check_modest(config.to_dict(), str(folder))
        processor = None if pixels is None else ViTCustomImageProcessor.from_pretrained(folder)
        shapes = {bare(name): tuple(value.shape) for name, value in empty_model(config).state_dict().items()}
    except ConversionError:
        raise
    except Exception as error:  # whatever transformers makes of a file that was edited
        raise ConversionError(f"{folder}: {' '.join(str(error).split()) or type(error).__name__}") from error
    names, theirs = {bare(name): name for name in weights.shapes}, weights.shapes
    faults = listed("missing", [name for name in shapes if name not in names])
    faults += listed("not of this model", [full for name, full in names.items() if name not in shapes])
    faults += listed("twice", [name for name in theirs if names[bare(name)] != name])
    both = [name for name in shapes if name in names and theirs[names[name]] != shapes[name]]
    faults += listed("of another shape", [f"{name} {theirs[names[name]]} for {shapes[name]}" for name in both])
    if faults:
        raise ConversionError(f"{folder}: its weights are not those of its config.json: {'; '.join(faults)}")
    return Ours(folder, config, processor, weights, names)


def bare(name: str) -> str:
    """The name of a parameter in the encoder, or of the head."""
    return name.removeprefix("vit.")


def model_class(config: ViTCustomConfig) -> type[ViTCustomPreTrainedModel]:
    """A classifier if there are classes, else the encoder alone."""
    return ViTCustomForImageClassification if config.num_labels else ViTCustomModel


def empty_model(config: ViTCustomConfig) -> ViTCustomPreTrainedModel:
    """The model on the meta device."""
    with torch.device("meta"):
        return model_class(config)(config).eval()
