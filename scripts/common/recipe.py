"""
Recipes: what a run does, as frozen dataclasses.

Any field can be set from the command line by its path, `--set optim.lr=1e-3`. The resolved recipe is written into the
run folder as `recipe.json`.
"""

import dataclasses
import importlib
import json
import pkgutil
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from modeling_vit_custom.configuration_vit_custom import did_you_mean
from scripts import recipes
from scripts.common.errors import UserError


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
STRICT = ConfigDict(extra="forbid")


def low_first(span: tuple[float, float]) -> tuple[float, float]:
    """A pair that is a range."""
    if span[0] > span[1]:
        raise ValueError("expected a range, the lower end first")
    return span


Range = Annotated[tuple[Positive, Positive], AfterValidator(low_first)]
PartRange = Annotated[tuple[Positive, Annotated[Positive, Field(le=1)]], AfterValidator(low_first)]


@dataclass(frozen=True, config=STRICT)
class ModelRecipe:
    """What is trained."""

    pretrained: str | None = None
    """Folder or Hub id of a model to start from; `None` starts from random weights."""
    variant: str | None = "S/16"
    """Named size, see `VARIANTS`, where `pretrained` is `None`; `None` if `config` says all."""
    config: dict[str, Any] = field(default_factory=dict)
    """Further fields of the configuration, `--set model.config.drop_path_rate=0.1`."""
    from_rgb: bool = False
    """Make of a `pretrained` model for RGB one for `model.config.num_channels`: 1 (grey) or 4 (RGB and opacity)."""


@dataclass(frozen=True, config=STRICT)
class DataRecipe:
    """What it is trained on. A source is a folder with a folder for each class, a dataset saved to disk, a parquet file
    or a folder of them, the name of a dataset on the Hub, or `sklearn:digits`."""

    train: str = ""
    """Source of the training pictures, and of the other splits that it holds."""
    validation: str | None = None
    """Source of the validation pictures; `None` takes that split of `train`, or a part of the training pictures."""
    test: str | None = None
    """Source of the test pictures; `None` takes that split of `train`, if it has one."""
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of each class of the training pictures that validates where no other pictures do."""
    image_column: str = "image"
    label_column: str = "label"
    workers: Natural = 2
    """Processes that decode and augment, which share the cores; 0 does so in the main one."""


@dataclass(frozen=True, config=STRICT)
class AugmentRecipe:
    """How training pictures are varied. Size, mean and deviation come from the image processor."""

    crop_scale: PartRange = (0.2, 1.0)
    """Range of the area of the random crop."""
    crop_ratio: Range = (0.75, 4 / 3)
    """Range of the aspect ratio of the random crop."""
    horizontal_flip: Share = 0.5
    """Chance of a mirrored picture."""
    rotation: NonNegative = 0.0
    """Largest angle of a random rotation, in degrees."""
    policy: Literal["none", "rand_augment", "trivial_augment"] = "none"


@dataclass(frozen=True, config=STRICT)
class OptimRecipe:
    """How it is trained: AdamW (Loshchilov and Hutter 2019)."""

    batch_size: Count = 64
    """Pictures in an optimiser step, over all processes and accumulated parts."""
    accumulation_steps: Count = 1
    """Parts that a process works through for one optimiser step."""
    lr: NonNegative = 1e-3
    """Learning rate at its peak."""
    weight_decay: NonNegative = 0.05
    """Decay of the weights of linear and convolutional layers; the rest isn't decayed."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    clip_norm: Positive = 1.0
    """Largest norm of the gradients."""


@dataclass(frozen=True, config=STRICT)
class ScheduleRecipe:
    """The learning rate as a share of its peak: a linear rise, then a fall."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Share = 0.05
    """Share of the steps in which it rises."""
    final: Share = 0.0
    """Share of the peak at the end."""


@dataclass(frozen=True, config=STRICT)
class RunRecipe:
    """How long, how precisely, and where to."""

    folder: str = "runs/run"
    epochs: Positive = 10.0
    seed: Natural = 0
    precision: Literal["no", "bf16"] = "no"
    """Type of the automatic mixed precision."""
    log_every: Count = 10
    """Optimiser steps between two lines of the log."""
    eval_epochs: Positive = 1.0
    """Epochs between two looks at the validation pictures."""
    save_epochs: Positive = 1.0
    """Epochs between two checkpoints."""
    keep: Count = 2
    """Checkpoints kept."""


@dataclass(frozen=True, config=STRICT)
class Recipe:
    """A whole run."""

    model: ModelRecipe = ModelRecipe()
    data: DataRecipe = DataRecipe()
    augment: AugmentRecipe = AugmentRecipe()
    optim: OptimRecipe = OptimRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    run: RunRecipe = RunRecipe()


def recipe_names() -> list[str]:
    """The recipes that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(recipes.__path__))


def load_recipe(name: str, assignments: list[str] | None = None) -> Recipe:
    """The recipe `name` with `assignments` such as `"optim.lr=1e-3"` made."""
    if name not in recipe_names():
        raise UserError(f"no recipe {name!r}: {did_you_mean(name, recipe_names())}")
    recipe = importlib.import_module(f"scripts.recipes.{name}").RECIPE
    for assignment in assignments or []:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: expected path=value, such as optim.lr=1e-3")
        recipe = assign(recipe, path, text)
    return recipe


def assign(recipe: Recipe, path: str, text: str) -> Recipe:
    """A copy of `recipe` with the field at the dotted `path` set to what `text` says, checked against the field's type."""

    def replace(node: Any, parts: list[str]) -> Any:
        if not parts:
            return text
        if isinstance(node, dict):  # an open table, whose keys the model's configuration checks
            return {**node, ".".join(parts): parse_json(text)}
        hints = get_type_hints(type(node), include_extras=True) if dataclasses.is_dataclass(node) else {}
        if parts[0] not in hints:
            siblings = [other for other in field_paths(recipe) if other.startswith(path.rpartition(".")[0] + ".")]
            raise UserError(
                f"--set {path}={text}: no such field; {did_you_mean(path, siblings or field_paths(recipe))}"
            )
        value = replace(getattr(node, parts[0]), parts[1:])
        if len(parts) == 1:
            value = convert(path, value, hints[parts[0]])
        return dataclasses.replace(node, **{parts[0]: value})

    return replace(recipe, path.split("."))


def parse_json(text: str) -> Any:
    """A number, list, table, truth value or `null` as JSON writes it; everything else is text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def convert(path: str, text: str, hint: Any) -> Any:
    """`text` as a value of the type `hint`: as it stands, as JSON, or `None` for `none`."""
    adapter, wrong = TypeAdapter(hint), None
    for value in (None if text.lower() == "none" else parse_json(text), text):
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            wrong = wrong or error
    raise UserError(f"--set {path}={text}: {first_trouble(wrong)}") from wrong


def first_trouble(error: ValidationError) -> str:
    """What pydantic found wrong first, and where if that is inside a value."""
    trouble = error.errors()[0]
    place = ".".join(str(part) for part in trouble["loc"])
    return f"{place}: {trouble['msg']}" if place else trouble["msg"]


def field_paths(node: Any, prefix: str = "") -> list[str]:
    """The dotted paths of all fields."""
    paths = []
    for entry in dataclasses.fields(node):
        value, path = getattr(node, entry.name), f"{prefix}{entry.name}"
        paths += field_paths(value, f"{path}.") if dataclasses.is_dataclass(value) else [path]
    return paths


def as_json(value: Any) -> Any:
    """A recipe, or a value in one, as its file holds it."""
    value = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
    return json.loads(json.dumps(value))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Writes a recipe as JSON."""
    path.write_text(json.dumps(as_json(recipe), indent=2) + "\n")


def read_recipe(path: Path) -> Recipe:
    """A recipe that `write_recipe` wrote."""
    try:
        return TypeAdapter(Recipe).validate_json(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise UserError(f"{path}: no recipe of this version of the project: {first_trouble(error)}") from error


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The fields in which two recipes differ, as `path: old -> new`."""

    def value(recipe: Any, path: str) -> Any:
        for part in path.split("."):
            recipe = getattr(recipe, part)
        return recipe

    pairs = [(path, as_json(value(old, path)), as_json(value(new, path))) for path in field_paths(new)]
    return [f"{path}: {before!r} -> {after!r}" for path, before, after in pairs if before != after]
