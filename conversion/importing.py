"""The way in: a checkpoint of any family as our model, and the Hub folder that holds it."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import save_file
from torch import Tensor, nn

from conversion.card import write_card
from conversion.changing import change
from conversion.errors import ConversionError
from conversion.families import FAMILIES, Family
from conversion.families.base import Facts, Found, check_modest
from conversion.folders import expanded, whole_or_nothing
from conversion.locate import Place, Source, belongs, locate, open_source, without_wrappers
from conversion.mapping import Row, account, rows_of, to_ours
from conversion.ours import empty_model
from conversion.records import DTYPES, KEPT, RECORD, Report, Request
from conversion.weights import is_finite
from modeling_vit_custom import (
    ViTCustomConfig,
    ViTCustomImageProcessor,
    ViTCustomPreTrainedModel,
)


HEADS = ("classifier", "distillation_classifier")


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


def plan_import(source: Source, request: Request) -> Plan:
    """
    Everything about an import but the numbers.

    Raises:
        `ConversionError`: for what is missing, left over, of a wrong shape or ambiguous; `FactNeeded` for a fact to supply.
    """
    fields, of_processor = request.split()
    place = locate(source, request.family, request.weights, request.set)
    family, found = place.family, place.found
    beside = [name for name in place.beside if name not in set(place.siblings)]
    strangers = [n for n in beside if not belongs(without_wrappers(n), family.beside)]
    if strangers:
        raise ConversionError(
            f"{source.path}: beside the image encoder ({place.where}) there are {len(strangers)} tensors that no part of the "
            f"family has, such as {', '.join(strangers[:6])}"
        )
    facts = family.facts(found)
    check_modest(facts, str(source.path))
    dropped = []
    if request.drop_head and facts.get("num_labels"):
        dropped = [name for name in found.shapes if name in head_names(family, found, facts)]
        facts |= {"num_labels": 0}
    config = configuration(source, family, found, facts, fields, request)
    try:
        model = empty_model(config)
    except ValueError as error:
        raise ConversionError(f"{source.path}: {error}") from error
    parameters = {name.removeprefix("vit."): tuple(value.shape) for name, value in model.state_dict().items()}
    kept = [name for name in found.shapes if place.is_kept(name)]
    for name, tensor in family.made(config).items():
        if found.shapes.get(name, tensor.shape) != tuple(tensor.shape):
            raise ConversionError(
                f"{source.path}: {name} has the shape {found.shapes[name]}, expected {tuple(tensor.shape)}"
            )
    rest = {name: shape for name, shape in found.shapes.items() if name not in {*kept, *dropped}}
    rows = rows_of(family.table(config, found.layout), parameters, config.num_hidden_layers)
    account(rows, rest, parameters, str(source.path))
    build_processor(family, found, config, of_processor)  # asks for what it lacks, before anything is read
    notes = [f"head dropped, as asked: {', '.join(dropped)}"] if dropped else []
    if found.assumed:
        notes.append(
            f"not in the file, taken as documented: {', '.join(f'{n}={v}' for n, v in found.assumed.items())}"
        )
    return Plan(source, place, config, rows, model, kept, dropped, notes)


def head_names(family: Family, found: Found, facts: Facts) -> set[str]:
    """Their names of the classifiers."""
    config = ViTCustomConfig(**facts)
    heads = [f"{head}.{leaf}" for head in HEADS for leaf in ("weight", "bias")]
    return {row.theirs for row in rows_of(family.table(config, found.layout), heads, 1)}


def configuration(
    source: Source, family: Family, found: Found, facts: Facts, told: Facts, request: Request
) -> ViTCustomConfig:
    """Our configuration: what the file says, then what was told where the file says nothing."""
    unsaid = family.unsaid(found)
    for name, value in told.items():
        said = facts.get(name, ViTCustomConfig.__dict__.get(name))
        if said != value and name not in unsaid:
            raise ConversionError(
                f"--set {name}={value}: a file of {family.name} means {said}; what the file or its library says cannot be set "
                f"(can be told: {', '.join(unsaid) or 'nothing'})"
            )
    classes = facts.pop("num_labels", 0)
    if request.labels is not None and not classes:
        raise ConversionError(
            f"--labels: {'without its head' if request.drop_head else source.path} there are no classes to name"
        )
    named = request.labels is not None and request.num_labels in (None, classes)
    labels = request.labels if named else family.labels(found)
    if labels is not None and classes and len(labels) != classes:
        raise ConversionError(f"the head has {classes} outputs but there are {len(labels)} labels")
    names = {"id2label": dict(enumerate(labels))} if labels and classes else {"num_labels": classes}
    try:
        return ViTCustomConfig(**{**facts, **{n: v for n, v in told.items() if n in unsaid}, **names})
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConversionError(f"{source.path}: {' '.join(str(error).split())}") from error


def build_processor(family: Family, found: Found, config: ViTCustomConfig, told: Facts) -> ViTCustomImageProcessor:
    try:
        return ViTCustomImageProcessor.for_model(config, **{**family.pixels(found, config), **told})
    except ConversionError:
        raise
    except (ValueError, TypeError, StrictDataclassError) as error:
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
    asked = Request(**request)
    opened = open_source(source, asked.file)
    with hashed(opened) as sha256:
        imported = convert(opened, asked)
        imported.report.sha256 = sha256.result()
    return imported


def import_to_folder(source: str | Path, out: str | Path, max_shard_size: str = "5GB", **request: Any) -> Report:
    """
    `import_checkpoint`, written as a Hub folder, which `export_checkpoint` takes: weights, configuration, image processor, code,
    card, and the record of where it came from.
    """
    with whole_or_nothing(expanded(out)) as folder:
        asked = Request(**request)
        opened = open_source(source, asked.file)
        with hashed(opened) as sha256:
            model, processor, report = convert(opened, asked)
            try:
                model.save_pretrained(folder, max_shard_size=max_shard_size)
            except ValueError as error:
                raise ConversionError(f"{out} cannot be written: {error}") from error
            processor.save_pretrained(folder)
            report.sha256 = sha256.result()
        if report.kept:
            kept = {name: tensor.contiguous() for name, tensor in report.kept.items()}
            save_file(kept, folder / KEPT, {"format": "pt"})
        (folder / RECORD).write_text(json.dumps(report.as_json(), indent=2) + "\n")
        write_card(folder / "README.md", model, report, FAMILIES[report.family].title)
    return report


@contextmanager
def hashed(source: Source) -> Iterator[Future[dict[str, str]]]:
    """The hashes of the files of `source`, made beside what else is done; that takes about as long."""
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(source.sha256)


def convert(source: Source, request: Request) -> Imported:
    """A source as our model."""
    plan = plan_import(source, request)
    report = report_of(plan, request, read_into_model(plan, request))
    change(plan.model, request, report)
    processor = build_processor(plan.place.family, plan.place.found, plan.model.config, request.split()[1])
    return Imported(plan.model, processor, report)


def read_into_model(plan: Plan, request: Request) -> dict[str, Tensor]:
    """Fills the model; returns what is kept beside it."""
    place, prefix = plan.place, "vit." if plan.config.num_labels else ""

    def read(name: str) -> Tensor:
        return place.weights.read(place.names[name])

    for name, tensor in to_ours(plan.rows, read):
        fill(plan.model, name if name.partition(".")[0] in HEADS else prefix + name, cast(name, tensor, request.dtype))
    plan.model.config.dtype = common_dtype(plan.model)
    return {name: place.weights.stored(place.names[name]) for name in plan.kept}


def cast(name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    """In another type, where one was asked for."""
    if dtype is None:
        return tensor
    changed = tensor.to(DTYPES[dtype])
    if not is_finite(changed):
        raise ConversionError(
            f"--dtype {dtype} cannot hold {name}, whose values reach {tensor.abs().max():g}; bfloat16 can"
        )
    return changed


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


def report_of(plan: Plan, request: Request, kept: dict[str, Tensor]) -> Report:
    place, source = plan.place, plan.source
    return Report(
        family=place.family.name,
        source=source.name,
        container=place.container,
        prefix=place.prefix,
        base=place.base,
        layout=place.found.layout,
        told=request.set,
        their_config=source.config,
        their_processor=source.processor,
        left_behind=[*place.beside, *plan.dropped],
        notes=plan.notes,
        kept=kept,
    )
