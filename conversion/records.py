"""What a person asks of an import, and the report of what it found and did."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL.Image import Resampling
from torch import Tensor

from conversion.errors import ConversionError
from conversion.families.base import Facts, check_modest, sides
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import did_you_mean


RECORD = "conversion.json"  # where a folder came from, and how to write it back
KEPT = "kept.safetensors"  # tensors of the source that the model has no place for
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
OF_A_CALL = {"return_tensors", "device", "data_format", "input_data_format", "disable_grouping"}
PROCESSOR_FIELDS = set(ViTCustomImageProcessor.valid_kwargs.__annotations__) - OF_A_CALL


@dataclass
class Report:
    """What was found and done: the source, the facts, what was kept aside and what was left behind."""

    family: str
    source: str
    sha256: dict[str, str] = field(default_factory=dict)
    container: str = ""
    prefix: str = ""
    base: str = ""
    layout: str = ""
    told: Facts = field(default_factory=dict)
    their_config: Facts | None = None
    their_processor: Facts | None = None
    left_behind: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def as_json(self) -> dict[str, Any]:
        """All but the tensors, of which there are the shapes."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "kept": {name: list(tensor.shape) for name, tensor in self.kept.items()}}


@dataclass
class Request:
    """What a person asks of an import; see `import_checkpoint`."""

    family: str | None = None
    file: str | None = None
    weights: str | None = None
    set: Facts = field(default_factory=dict)
    labels: list[str] | None = None
    num_labels: int | None = None
    image_size: int | list[int] | None = None
    drop_head: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            `ConversionError`: for what can't be, before anything is opened.
        """
        self.set = dict(self.set or {})
        if self.num_labels is not None and (type(self.num_labels) is not int or self.num_labels < 1):
            raise ConversionError(
                f"--num-labels {self.num_labels!r} must be 1 or more; --drop-head leaves out the classifier"
            )
        check_modest({"num_labels": self.num_labels}, "--num-labels")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConversionError(f"--dtype {self.dtype!r} must be {', '.join(DTYPES)}")
        if self.image_size is not None:
            sides(self.image_size)
        if "image_size" in self.set:
            sides(self.set["image_size"])
        resample = self.set.get("resample")
        names = {kind.name.lower(): int(kind) for kind in Resampling}
        if isinstance(resample, str) and resample.lower() in names:
            self.set["resample"] = names[resample.lower()]
        elif "resample" in self.set and (isinstance(resample, bool) or resample not in names.values()):
            raise ConversionError(f"--set resample={resample}: {did_you_mean(str(resample), sorted(names))}")

    def split(self) -> tuple[Facts, Facts]:
        """The facts told about the model and those about the pixels."""
        known = ViTCustomConfig.field_names()
        for name in self.set:
            if name not in known | PROCESSOR_FIELDS:
                raise ConversionError(f"--set {name}: {did_you_mean(name, sorted(known | PROCESSOR_FIELDS))}")
        fields = {name: value for name, value in self.set.items() if name in known}
        return fields, {name: value for name, value in self.set.items() if name in PROCESSOR_FIELDS}
