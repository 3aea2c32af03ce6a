"""What a person asks of an import, and the report of what it found and did."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from PIL.Image import Resampling
from torch import Tensor

from conversion.errors import ConversionError
from conversion.families.base import Facts, sides
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import did_you_mean


RECORD = "conversion.json"  # where a folder came from, and how to write it back
KEPT = "kept.safetensors"  # tensors of the source that the model has no place for
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

    def split(self) -> tuple[Facts, Facts]:
        """The facts told about the model and those about the pixels."""
        known = ViTCustomConfig.field_names()
        for name in self.set:
            if name not in known | PROCESSOR_FIELDS:
                raise ConversionError(f"--set {name}: {did_you_mean(name, sorted(known | PROCESSOR_FIELDS))}")
        if "image_size" in self.set:
            sides(self.set["image_size"])
        fields = {name: value for name, value in self.set.items() if name in known}
        return fields, {name: value for name, value in self.set.items() if name in PROCESSOR_FIELDS}

    def __post_init__(self) -> None:
        resample = self.set.get("resample")
        if isinstance(resample, str):
            names = {kind.name.lower(): int(kind) for kind in Resampling}
            if resample.lower() not in names:
                raise ConversionError(f"--set resample={resample}: {did_you_mean(resample, sorted(names))}")
            self.set = {**self.set, "resample": names[resample.lower()]}
