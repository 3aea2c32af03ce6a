"""The way out: a folder of ours in the format of a family."""

import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from conversion.errors import ConversionError
from conversion.expressing import check_expressed, notes_of
from conversion.families import FAMILIES, Family
from conversion.families.base import Facts, Found, entry
from conversion.folders import expanded, inside, json_in, only, whole_or_nothing
from conversion.locate import belongs, is_wrapper
from conversion.mapping import Row, rows_of, to_theirs
from conversion.ours import Ours, open_ours
from conversion.records import KEPT, RECORD
from conversion.sources import open_weights
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import did_you_mean


@dataclass
class Exported:
    """What was written, and what of the folder is not in it."""

    path: Path
    notes: list[str]


def export_checkpoint(
    folder: str | Path, out: str | Path, to: str, layout: str | None = None, position_resampling: str | None = None
) -> Exported:
    """
    Writes a folder of ours in the format of the family `to`.

    Args:
        folder: As `save_pretrained` or `import_to_folder` wrote it.
        out: The file, or the folder for a family whose format is one.
        to: Name of the family.
        layout: Which of the family's spellings; that of the source by default, if it was of this family.
        position_resampling: That of the other library, where it is not the model's: at other sizes than its own the two differ.

    Raises:
        `ConversionError`: if the folder is damaged, or the family can't express the model, with the reason.
    """
    if to not in FAMILIES:
        raise ConversionError(f"unknown family {to!r}: {did_you_mean(to, list(FAMILIES))}")
    family, folder = FAMILIES[to], expanded(folder)
    ours = open_ours(folder, **({} if position_resampling is None else {"position_resampling": position_resampling}))
    config, names = ours.config, ours.names
    record = read_record(folder, family)
    usual = family.spelling(config) if family.spelling else family.layouts[0]
    layout = layout or record.get("layout") or usual
    if layout not in family.layouts:
        raise ConversionError(f"--layout {layout!r}: {to} knows {', '.join(family.layouts)}")
    rows = rows_of(family.table(config, layout), names, config.num_hidden_layers)
    unmapped = [name for name in names if name not in {part for row in rows for part in row.ours}]
    if unmapped:
        raise ConversionError(f"{to} has no place for {len(unmapped)} tensors, such as {', '.join(unmapped[:6])}")
    theirs = {row.theirs: shape_of(row, ours, family) for row in rows}
    kept = kept_tensors(folder, record, family, config, theirs)
    theirs |= {name: tuple(tensor.shape) for name, tensor in kept.items()}
    tables = tables_of(family, ours, record)
    told = {n: v for n, v in record.get("told", {}).items() if n in family.asked and getattr(config, n) == v}
    theirs_beside = record.get("their_config")  # of a file without tables, beside the source
    beside = tables or {"config.json": theirs_beside and family.at_size(theirs_beside, config)}
    found = Found(
        theirs, beside["config.json"], beside.get("preprocessor_config.json"), told, layout, None, kept.__getitem__
    )
    check_expressed(family, config, found)
    notes = [] if tables else notes_of(family, ours, found)
    if beside["config.json"] and not tables:
        notes.append(
            f"it goes with the configuration of the source{'' if beside['config.json'] == theirs_beside else f', with image_size={config.image_size}'}"
        )

    base = record.get("base", family.bases[0] if family.bases and config.num_labels else "")
    prefix = record.get("prefix", family.prefix)

    def named(name: str) -> str:
        return prefix + ("" if belongs(name, family.heads) else base) + name

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in to_theirs(rows, lambda name: ours.weights.read(names[name])):
            yield named(name), tensor
        for name, tensor in kept.items():
            yield named(name), tensor

    out = expanded(out)
    with whole_or_nothing(out) as written:
        WRITERS[family.suffix](written, tensors(), tables, record.get("container", family.wrap))
    return Exported(out, notes)


def read_record(folder: Path, family: Family) -> Facts:
    """
    Where a folder came from, if that was a source of `family`; empty otherwise.

    Raises:
        `ConversionError`: for a record that no import wrote.
    """
    table = json_in(folder, RECORD)
    if table is None or entry(table, "family", str, file=RECORD) != family.name:
        return {}
    kinds = {
        "layout": str, "base": str, "prefix": str, "container": str, "their_config": dict, "their_processor": dict, "told": dict,
        "kept": dict,
    }  # fmt: skip
    record = {name: entry(table, name, kind, file=RECORD) for name, kind in kinds.items()}
    known = {
        "layout": record["layout"] in family.layouts,
        "base": record["base"] in ("", *family.bases),
        "prefix": record["prefix"] is not None and is_wrapper(record["prefix"], family),
        "container": record["container"] is not None,
        "told": record["told"] is not None,
        "kept": record["kept"] is not None and all(isinstance(shape, list) for shape in record["kept"].values()),
    }
    for name, is_right in known.items():
        if not is_right:
            raise ConversionError(
                f"{folder / RECORD}: {name}={record[name]!r} is not what an import writes; remove the file to do without it"
            )
    return record


def tables_of(family: Family, ours: Ours, record: Facts) -> dict[str, Facts]:
    """The JSON files of a folder format, with what the record has of the source's own."""
    if family.config is None:
        return {}
    if ours.processor is None:
        raise ConversionError(f"{ours.folder}: there is no preprocessor_config.json, which {family.name} needs")
    try:
        return family.config(ours.config, ours.processor, record)
    except ConversionError:
        raise
    except Exception as error:  # whatever a record that was edited leads to
        if not record:
            raise
        raise ConversionError(
            f"{RECORD}: their_config or their_processor is not what an import writes: {error!r}; remove the file to do without it"
        ) from error


def kept_tensors(
    folder: Path, record: Facts, family: Family, config: ViTCustomConfig, theirs: dict[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """
    The tensors of the source that the model has no place for; of a model from elsewhere, what the family puts there.

    Raises:
        `ConversionError`: if they are not those that the record names.
    """
    if not record:
        return family.made(config)
    known = {name: tuple(shape) for name, shape in record["kept"].items()}
    kept = only(open_weights(inside(folder, KEPT)), folder / KEPT) if known else None
    if known and kept.shapes != known:
        raise ConversionError(
            f"{folder / KEPT} does not hold the tensors that {RECORD} names; import the source again"
        )
    strange = [n for n in known if n in theirs or not belongs(n, (*family.kept, *family.unused(Found(theirs))))]
    if strange:
        raise ConversionError(
            f"{folder / RECORD}: kept names {', '.join(strange[:4])}, which {family.name} does not keep"
        )
    return {name: kept.stored(name) for name in known}


def shape_of(row: Row, ours: Ours, family: Family) -> tuple[int, ...]:
    """The shape of one of theirs."""
    shapes = [ours.weights.shapes[ours.names[name]] for name in row.ours]
    try:
        (made,) = row.op.to_theirs([torch.empty(shape, device="meta") for shape in shapes])
    except (ValueError, RuntimeError) as error:
        raise ConversionError(f"{family.name} has no place for {', '.join(row.ours)} of {shapes}: {error}") from error
    return tuple(made.shape)


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
