"""The way in: a checkpoint of any family as our model, and the Hub folder that holds it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from conversion.card import write_card
from conversion.errors import ConversionError
from conversion.families import FAMILIES, Family
from conversion.families.base import Facts, Found
from conversion.folders import whole_or_nothing
from conversion.locate import Place, Source, belongs, locate, open_source, without_wrappers
from conversion.mapping import Row, account, rows_of, to_ours
from conversion.records import KEPT, RECORD, Report, Request
from modeling_vit_custom import (
    ViTCustomConfig,
    ViTCustomForImageClassification,
    ViTCustomImageProcessor,
    ViTCustomModel,
    ViTCustomPreTrainedModel,
)
from modeling_vit_custom.positions_vit_custom import resample_grid


DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass
class Plan:
    """An import that is worked out and accounted for, before any number is read."""

    source: Source
    place: Place
    config: ViTCustomConfig
    rows: list[Row]
    model: ViTCustomPreTrainedModel
    kept: list[str]
    dropped: list[str]
    notes: list[str]
    processor: ViTCustomImageProcessor


def plan_import(source: Source, request: Request) -> Plan:
    """
    Everything about an import but the numbers.

    Raises:
        `ConversionError`: for what is missing, left over, of a wrong shape or ambiguous; `FactNeeded` for a fact to supply.
    """
    fields, of_processor = request.split()
    place = locate(source, request.family, request.weights, request.set)
    family, found = place.family, place.found
    strangers = [n for n in place.beside if not belongs(without_wrappers(n), family.beside)]
    if strangers:
        raise ConversionError(
            f"{source.path}: beside the image encoder ({place.where}) there are {len(strangers)} tensors that no part of the "
            f"family has, such as {', '.join(strangers[:6])}"
        )
    facts = family.facts(found)
    dropped = []
    if request.drop_head and facts.get("num_labels"):
        dropped = [name for name in found.shapes if name in head_names(family, found, facts)]
        facts |= {"num_labels": 0}
    config, notes = configuration(source, family, found, facts, fields, request)
    model = empty_model(config)
    parameters = {name.removeprefix("vit."): tuple(value.shape) for name, value in model.state_dict().items()}
    kept = [name for name in found.shapes if belongs(name, family.kept)]
    rest = {name: shape for name, shape in found.shapes.items() if name not in {*kept, *dropped}}
    rows = rows_of(family.table(config, found.layout), parameters, config.num_hidden_layers)
    account(rows, rest, parameters, str(source.path))
    processor = build_processor(family, found, config, of_processor)
    if dropped:
        notes.append(f"head dropped, as asked: {', '.join(dropped)}")
    return Plan(source, place, config, rows, model, kept, dropped, notes, processor)


def head_names(family: Family, found: Found, facts: Facts) -> set[str]:
    """Their names of the classifiers."""
    config = ViTCustomConfig(**facts)
    rows = rows_of(family.table(config, found.layout), ["classifier.weight", "classifier.bias", *DISTILLATION], 1)
    return {row.theirs for row in rows}


DISTILLATION = ("distillation_classifier.weight", "distillation_classifier.bias")


def configuration(
    source: Source, family: Family, found: Found, facts: Facts, told: Facts, request: Request
) -> tuple[ViTCustomConfig, list[str]]:
    """Our configuration: what the file says, then what was told where the file says nothing."""
    for name, value in told.items():
        if facts.get(name, ViTCustomConfig.__dict__.get(name)) != value and name not in family.asked:
            raise ConversionError(
                f"--set {name}={value}: the file says {facts.get(name, 'otherwise')}; what it says cannot be set"
                f" (can be told: {', '.join(family.asked)})"
            )
    labels = request.labels or family.labels(found)
    classes = facts.pop("num_labels", 0)
    if labels is not None and classes and len(labels) != classes:
        raise ConversionError(f"the head has {classes} outputs but there are {len(labels)} labels")
    names = {"id2label": dict(enumerate(labels))} if labels and classes else {"num_labels": classes}
    try:
        config = ViTCustomConfig(**{**facts, **{n: v for n, v in told.items() if n in family.asked}, **names})
    except (ValueError, TypeError) as error:
        raise ConversionError(f"{source.path}: {error}") from error
    return config, []


def empty_model(config: ViTCustomConfig) -> ViTCustomPreTrainedModel:
    """The model on the meta device: a classifier if there are classes, else the encoder alone."""
    model_class = ViTCustomForImageClassification if config.num_labels else ViTCustomModel
    with torch.device("meta"):
        return model_class(config).eval()


def build_processor(family: Family, found: Found, config: ViTCustomConfig, told: Facts) -> ViTCustomImageProcessor:
    try:
        return ViTCustomImageProcessor.for_model(config, **{**family.pixels(found, config), **told})
    except ConversionError:
        raise
    except (ValueError, TypeError) as error:
        raise ConversionError(f"the image processor of {family.name}: {error}") from error


# ---------------------------------------------------------------------------------------------------------------------
# In


@dataclass
class Imported:
    """A model with its image processor and the report of where they came from; unpacks as the three."""

    model: ViTCustomPreTrainedModel
    processor: ViTCustomImageProcessor
    report: Report

    def __iter__(self):
        return iter((self.model, self.processor, self.report))


def import_checkpoint(source: str | Path | nn.Module, **request: Any) -> Imported:
    """
    Reads a checkpoint of any known family.

    Args:
        source: A file, a folder, the name of a Hub repository, or a live model of timm.
        family: Which of the families to take the source for, where the file alone doesn't tell.
        weights: Which of several state dicts: `"model_ema"`, `"teacher"`, ...
        set: Facts that the file doesn't hold: fields of the configuration and of the image processor.
        labels: Names of the classes.
        num_labels: Another number of classes; the head then starts anew.
        image_size: Another size; the position table is resampled with the family's own operator.
        drop_head: Leave out the classifier.
        dtype: Another type than the one stored: `"float32"`, `"bfloat16"`, ...

    Returns:
        `(model, processor, report)`; the model in the types of the file and in evaluation mode.

    Raises:
        `ConversionError`: if anything is missing, left over, unsafe or not known, naming it.
    """
    request = Request(**request)
    opened = open_source(source)
    plan = plan_import(opened, request)
    place, prefix = plan.place, "vit." if plan.config.num_labels else ""
    for name, tensor in to_ours(plan.rows, lambda name: place.weights.read(place.names[name])):
        tensor = tensor.to(DTYPES[request.dtype]) if request.dtype else tensor
        fill(plan.model, name if name.partition(".")[0] in HEADS else prefix + name, tensor)
    report = report_of(plan, request)
    report.kept = {name: place.weights.read(place.names[name]) for name in plan.kept}
    plan.model.config.dtype = common_dtype(plan.model)
    change(plan.model, request, report)
    processor = build_processor(place.family, place.found, plan.model.config, request.split()[1])
    return Imported(plan.model, processor, report)


HEADS = ("classifier", "distillation_classifier")


def fill(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Puts a tensor in the place of the parameter `name`."""
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(tensor))


def common_dtype(model: nn.Module) -> torch.dtype:
    """The type of most numbers."""
    counts: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=counts.get)


def report_of(plan: Plan, request: Request) -> Report:
    place, source = plan.place, plan.source
    return Report(
        family=place.family.name,
        source=source.name,
        sha256=source.sha256(),
        container=place.container,
        prefix=place.prefix,
        base=place.base,
        layout=place.found.layout,
        told=request.set,
        their_config=source.config,
        their_processor=source.processor,
        left_behind=[*place.beside, *plan.dropped],
        notes=plan.notes,
    )


def change(model: ViTCustomPreTrainedModel, request: Request, report: Report) -> None:
    """What was asked for beyond what the source is: another number of classes, another size."""
    config = model.config
    if request.num_labels is not None and request.num_labels != config.num_labels:
        if not isinstance(model, ViTCustomForImageClassification) or config.distillation_token:
            raise ConversionError(
                f"--num-labels {request.num_labels}: {report.source} has no single classifier to replace"
            )
        report.notes.append(
            f"a new head: {config.num_labels} classes become {request.num_labels}, from random weights"
        )
        config.id2label = {i: f"LABEL_{i}" for i in range(request.num_labels)}
        model.num_labels, old = request.num_labels, model.classifier
        model.classifier = nn.Linear(old.in_features, request.num_labels, dtype=old.weight.dtype)
        model._init_weights(model.classifier)
    if request.image_size is not None and request.image_size != config.image_size:
        resize(model, request.image_size, report)


def resize(model: ViTCustomPreTrainedModel, image_size: int | list[int], report: Report) -> None:
    """Brings a model to `image_size`, its position table with the family's own operator."""
    config, position = model.config, model.base_model.embeddings.position
    old_size, old_grid = config.image_size, config.grid_size
    if config.position_embedding not in ("learned", "sincos_1d", "sincos_2d", "rope_2d", "none"):
        raise ConversionError(f"--image-size: a {config.position_embedding} table is not resized")
    config.image_size = image_size
    try:
        config.validate_architecture()
    except ValueError as error:
        raise ConversionError(f"--image-size {image_size}: {error}") from error
    if config.position_embedding == "learned":
        table = resample_grid(position.grid.detach(), config.grid_size, config.position_resampling)
        position.grid = nn.Parameter(table.contiguous())
    report.notes.append(
        f"size {old_size} -> {image_size}: grid {old_grid} -> {config.grid_size}, {config.position_resampling}"
    )


def import_to_folder(source: str | Path, out: str | Path, max_shard_size: str = "5GB", **request: Any) -> Report:
    """`import_checkpoint`, written as a Hub folder: weights, configuration, image processor, code, card, record."""
    with whole_or_nothing(Path(out).expanduser()) as folder:
        model, processor, report = import_checkpoint(source, **request)
        save(model, processor, report, folder, max_shard_size)
    return report


def save(
    model: ViTCustomPreTrainedModel,
    processor: ViTCustomImageProcessor,
    report: Report,
    folder: Path,
    max_shard_size: str = "5GB",
) -> None:
    """Writes what `import_checkpoint` gave as a Hub folder, which `export_checkpoint` takes."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    processor.save_pretrained(folder)
    if report.kept:
        save_file({name: tensor.contiguous() for name, tensor in report.kept.items()}, folder / KEPT, {"format": "pt"})
    (folder / RECORD).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    write_card(folder / "README.md", model, report, FAMILIES[report.family].title)
