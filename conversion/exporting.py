"""The way out: a folder of ours in the format of a family."""

import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from conversion.errors import ConversionError
from conversion.families import FAMILIES, Family
from conversion.families.base import Facts, Found, entry
from conversion.folders import open_folder, read_json, whole_or_nothing
from conversion.locate import belongs, is_wrapper
from conversion.mapping import Row, rows_of, to_theirs
from conversion.records import KEPT, RECORD
from conversion.sources import open_weights
from conversion.weights import Weights
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import did_you_mean


def export_checkpoint(folder: str | Path, out: str | Path, to: str, layout: str | None = None) -> Path:
    """
    Writes a folder of ours in the format of the family `to`.

    Args:
        folder: As `save_pretrained` or `import_to_folder` wrote it.
        out: The file, or the folder for a family whose format is one.
        to: Name of the family.
        layout: Which of the family's spellings; that of the source by default, if it was of this family.

    Raises:
        `ConversionError`: if the family can't express the model, with the reason.
    """
    if to not in FAMILIES:
        raise ConversionError(f"unknown family {to!r}: {did_you_mean(to, list(FAMILIES))}")
    family, folder, out = FAMILIES[to], Path(folder).expanduser(), Path(out).expanduser()
    if not folder.is_dir():
        raise ConversionError(f"{folder} is no folder; give one that was imported or saved")
    weights = open_folder(folder)[0][""]
    try:
        config = ViTCustomConfig.from_pretrained(folder)
        processor = ViTCustomImageProcessor.from_pretrained(folder) if family.config else None
    except (OSError, ValueError) as error:
        raise ConversionError(f"{folder}: {' '.join(str(error).split())}") from error
    record = read_record(folder / RECORD, family)
    usual = family.spelling(config) if family.spelling else family.layouts[0]
    layout = layout or record.get("layout") or usual
    if layout not in family.layouts:
        raise ConversionError(f"--layout {layout!r}: {to} knows {', '.join(family.layouts)}")
    names = {name.removeprefix("vit."): name for name in weights.shapes}
    rows = rows_of(family.table(config, layout), names, config.num_hidden_layers)
    unmapped = [name for name in names if name not in {part for row in rows for part in row.ours}]
    if unmapped:
        raise ConversionError(f"{to} has no place for {len(unmapped)} tensors, such as {', '.join(unmapped[:6])}")
    kept = kept_tensors(folder, record, family, config)
    theirs = {row.theirs: shape_of(row, names, weights) for row in rows}
    theirs |= {name: tuple(tensor.shape) for name, tensor in kept.items()}
    tables = tables_of(family, config, processor, record)
    check_expressed(family, config, theirs, tables, layout)

    base = record.get("base", family.bases[0] if family.bases and config.num_labels else "")
    prefix = record.get("prefix", family.prefix)

    def named(name: str) -> str:
        return prefix + ("" if belongs(name, family.heads) else base) + name

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in to_theirs(rows, lambda name: weights.read(names[name])):
            yield named(name), tensor
        for name, tensor in kept.items():
            yield named(name), tensor

    with whole_or_nothing(out) as written:
        WRITERS[family.suffix](written, tensors(), tables, record.get("container", family.wrap))
    return out


def read_record(path: Path, family: Family) -> Facts:
    """
    Where a folder came from, if that was a source of `family`; empty otherwise.

    Raises:
        `ConversionError`: for a record that no import wrote.
    """
    if not path.exists() or entry(table := read_json(path), "family", str, file=RECORD) != family.name:
        return {}
    kinds = {
        "layout": str,
        "base": str,
        "prefix": str,
        "container": str,
        "their_config": dict,
        "their_processor": dict,
    }
    record = {name: entry(table, name, kind, file=path.name) for name, kind in kinds.items()}
    known = {
        "layout": record["layout"] in family.layouts,
        "base": record["base"] in ("", *family.bases),
        "prefix": record["prefix"] is not None and is_wrapper(record["prefix"], family),
        "container": record["container"] is not None,
    }
    for name, is_right in known.items():
        if not is_right:
            raise ConversionError(
                f"{path}: {name}={record[name]!r} is not what an import writes; remove the file to do without it"
            )
    return record


def tables_of(
    family: Family, config: ViTCustomConfig, processor: ViTCustomImageProcessor | None, record: Facts
) -> dict[str, Facts]:
    """The JSON files of a folder format, with what the record has of the source's own."""
    if family.config is None:
        return {}
    try:
        return family.config(config, processor, record)
    except ConversionError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConversionError(
            f"{RECORD}: their_config or their_processor is not what an import writes: {error}"
        ) from error


def kept_tensors(folder: Path, record: Facts, family: Family, config: ViTCustomConfig) -> dict[str, Tensor]:
    """The tensors of the source that the model has no place for; of a model from elsewhere, what the family puts there."""
    if not record:
        return family.made(config)
    if not (folder / KEPT).exists():
        return {}
    kept = open_weights(folder / KEPT)[""]
    return {name: kept.stored(name) for name in kept.shapes}


def shape_of(row: Row, names: dict[str, str], weights: Weights) -> tuple[int, ...]:
    (made,) = row.op.to_theirs([torch.empty(weights.shapes[names[name]], device="meta") for name in row.ours])
    return tuple(made.shape)


# Fields that don't change what a model computes: of training and initialisation, and of a backbone.
FREE = {
    "attention_probs_dropout_prob", "hidden_dropout_prob", "drop_path_rate", "patch_drop_rate", "label_smoothing", "weight_init",
    "zero_init_head", "initializer_range", "apply_layernorm", "layerscale_value", "pixel_mean", "pixel_std",
}  # fmt: skip
COMPARED = (set(ViTCustomConfig.__annotations__) & ViTCustomConfig.field_names()) - FREE


def check_expressed(
    family: Family, config: ViTCustomConfig, theirs: dict[str, tuple[int, ...]], tables: dict[str, Facts], layout: str
) -> None:
    """
    Reads what would be written back and compares it with `config`.

    Raises:
        `ConversionError`: naming the field that the family can't express.
    """
    told = {name: getattr(config, name) for name in family.asked}
    found = Found(theirs, tables.get("config.json"), tables.get("preprocessor_config.json"), told, layout)
    if not family.recognise(found):
        raise ConversionError(
            f"{family.name} cannot express this model: what it would write is not its own kind of file"
        )
    try:
        facts = family.facts(found)
    except ConversionError as error:
        reason = str(error).partition("; say it with")[0]
        raise ConversionError(f"{family.name} cannot express this model: {reason}") from error
    back = ViTCustomConfig(**{**facts, **{name: told[name] for name in family.unsaid(found)}})
    unused = UNUSED.get(config.position_embedding, set()) | (
        set() if config.num_prefix_tokens else {"prefix_positions"}
    )
    for name in sorted(COMPARED - unused):
        ours, again = getattr(config, name), getattr(back, name)
        if ours != again:
            raise ConversionError(f"{family.name} cannot express {name}={ours!r}; a file of it means {again!r}")


# Fields that a kind of position doesn't read.
UNUSED = {
    "none": {"position_resampling", "sincos_frequencies", "rope_theta", "prefix_positions"},
    "learned": {"sincos_frequencies", "rope_theta"},
    "sincos_2d": {"position_resampling", "rope_theta", "prefix_positions"},
    "rope_2d": {"position_resampling", "sincos_frequencies", "prefix_positions"},
}


def write_npz(path: Path, tensors: Iterable[tuple[str, Tensor]], tables: dict[str, Facts], container: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors:
            array = tensor.view(torch.int16).numpy().view("V2") if tensor.dtype == torch.bfloat16 else tensor.numpy()
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def write_pth(path: Path, tensors: Iterable[tuple[str, Tensor]], tables: dict[str, Facts], container: str) -> None:
    content: dict[str, Any] = dict(tensors)
    for key in reversed(container.split(".") if container else []):
        content = {key: content}
    torch.save(content, path)


def write_folder(path: Path, tensors: Iterable[tuple[str, Tensor]], tables: dict[str, Facts], container: str) -> None:
    path.mkdir()
    save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
    for name, table in tables.items():
        (path / name).write_text(json.dumps(table, indent=2) + "\n")


WRITERS = {".npz": write_npz, ".pth": write_pth, "": write_folder}
