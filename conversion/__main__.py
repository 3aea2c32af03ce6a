"""Reads checkpoints of other libraries, writes them back, and proves both against the original implementation."""

import argparse
import sys
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from conversion.errors import ConversionError
from conversion.exporting import export_checkpoint
from conversion.families import FAMILIES
from conversion.families.base import one_or_two, sides
from conversion.importing import import_to_folder, plan_import
from conversion.locate import open_source
from conversion.records import DTYPES, Report, Request
from conversion.table import markdown
from conversion.verify import verify
from modeling_vit_custom import VARIANTS, ViTCustomConfig


MAX_LABELS = 10_000_000  # bytes


def parse_value(text: str) -> Any:
    """The value of `--set field=value`: a number, `true`, `false`, `none`, numbers `a,b`, or text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return [parse_value(part) for part in text.strip("[]()").split(",")]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def picture_size(text: str | None) -> int | list[int] | None:
    return None if text is None else one_or_two(*sides(parse_value(text)))


def setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not field=value")
    return name, parse_value(value)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m conversion", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the families, what each direction covers and what proves it")
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("source", metavar="PATH", help="a file, a folder or the name of a Hub repository")
    reading.add_argument("--family", choices=FAMILIES, help="where the file alone doesn't tell")
    reading.add_argument("--file", metavar="NAME", help="which of several files of weights in a folder")
    reading.add_argument("--weights", metavar="KEY", help="which of several state dicts: model_ema, teacher, ...")
    reading.add_argument(
        "--set", metavar="FIELD=VALUE", type=setting, action="append", default=[],
        help="a fact that is not in the file: a field of the configuration or of the image processor",
    )  # fmt: skip
    commands.add_parser("inspect", parents=[reading], help="what a file is, without reading its weights")
    into = commands.add_parser("import", parents=[reading], help="writes a Hub folder of ours")
    into.add_argument("out", metavar="OUT", help="the folder to write")
    into.add_argument("--labels", metavar="FILE", type=Path, help="names of the classes, one in a line")
    into.add_argument("--num-labels", type=int, help="another number of classes; the head starts anew")
    into.add_argument("--image-size", help="another size, PIXELS or HEIGHT,WIDTH; positions are resampled")
    into.add_argument("--drop-head", action="store_true", help="leave out the classifier")
    into.add_argument("--dtype", choices=DTYPES, help="another type than the stored one")
    into.add_argument("--max-shard-size", default="5GB", help="the largest file of weights (default: %(default)s)")
    out = commands.add_parser("export", help="writes a folder of ours in a family's own format")
    out.add_argument("folder", metavar="FOLDER", help="a folder that was imported or saved")
    out.add_argument("out", metavar="OUT", help="the file or folder to write")
    out.add_argument("--to", required=True, choices=FAMILIES, metavar="FAMILY", help=", ".join(FAMILIES))
    out.add_argument("--layout", help="which of the family's spellings, where it has several")
    out.add_argument(
        "--position-resampling", metavar="NAME", help="that of the other library, where it is not the model's own"
    )
    check = commands.add_parser("verify", parents=[reading], help="runs the original and ours on the same pictures")
    check.add_argument("folder", metavar="FOLDER", nargs="?", help="what was imported (default: imports anew)")
    check.add_argument(
        "--tolerance", type=float, default=1e-5, help="largest difference over the largest value (%(default)s)"
    )
    check.add_argument("--plot", type=Path, metavar="PNG", help="a figure of the difference in each layer")
    return main


def fields_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `--set` says; each field once."""
    names = [name for name, _ in options.set]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConversionError(f"--set {twice} is given twice")
    return dict(options.set)


def list_families(options: argparse.Namespace) -> None:
    """Prints the table of families."""
    print(markdown())


def inspect(options: argparse.Namespace) -> None:
    """Prints what a source is."""
    request = Request(family=options.family, file=options.file, weights=options.weights, set=fields_of(options))
    source = open_source(options.source, options.file, mapped=True)
    plan = plan_import(source, request)
    config, place = plan.config, plan.place
    states = {f"{name or 'top'}": f"{len(state.shapes)} tensors" for name, state in source.containers.items()}
    dtypes = sorted({str(place.weights.dtypes[full]).removeprefix("torch.") for full in place.names.values()})
    facts = {
        "family": f"{place.family.name}, {place.family.title}",
        "variant": variant(config),
        "weights": f"{place.where}; {len(place.names)} tensors of {sum(p.numel() for p in plan.model.parameters()):,} numbers",
        "state dicts": ", ".join(f"{name} ({size})" for name, size in states.items()),
        "types": ", ".join(dtypes),
        "size": f"{config.image_size} pixels, patches of {config.patch_size}",
        "blocks": f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.ffn_type} of {config.intermediate_size} ({config.hidden_act}), eps {config.layer_norm_eps:g}",
        "positions": f"{config.position_embedding}, grid {config.grid_size}, resampled by {config.position_resampling}",
        "pooling": f"{config.pooling}, last norm on {config.final_norm}",
        "head": f"{config.num_labels} classes" if config.num_labels else "none",
        "not in the file": ", ".join(f"{name}={getattr(config, name)}" for name in place.family.unsaid(place.found))
        or "nothing",
        "kept aside": ", ".join(plan.kept) or "nothing",
        "left behind": f"{len(place.beside)} tensors" if place.beside else "nothing",
    }
    for name, value in facts.items():
        print(f"{name:16} {value}")


def variant(config: ViTCustomConfig) -> str:
    """The named size, such as B/16."""
    sizes = {row[:4]: name for name, row in VARIANTS.items()}
    key = (config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads)
    return f"{sizes[key]}/{config.patch_size}" if key in sizes else "no named size"


def read_labels(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_LABELS + 1)
        if len(content) > MAX_LABELS:
            raise ConversionError(f"--labels {path} has more than {MAX_LABELS:,} bytes")
        lines = [line.strip() for line in content.decode("utf-8-sig").rstrip().split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise ConversionError(f"--labels {path}: {error}") from error
    if "" in lines:
        raise ConversionError(f"--labels {path}: line {lines.index('') + 1} is empty; each line names a class")
    return lines


def run_import(options: argparse.Namespace) -> None:
    report = import_to_folder(
        options.source, options.out, options.max_shard_size, family=options.family, file=options.file, weights=options.weights, set=fields_of(options),
        labels=read_labels(options.labels), num_labels=options.num_labels, image_size=picture_size(options.image_size),
        drop_head=options.drop_head, dtype=options.dtype,
    )  # fmt: skip
    print(f"{report.source} ({report.family}) -> {options.out}")
    summarise(report)


def summarise(report: Report) -> None:
    for name, names in (("kept aside", list(report.kept)), ("left behind", report.left_behind)):
        if names:
            print(f"{name}: {len(names)} tensors ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})")
    for note in report.notes:
        print(note)


def run_export(options: argparse.Namespace) -> None:
    exported = export_checkpoint(options.folder, options.out, options.to, options.layout, options.position_resampling)
    print(f"{options.folder} -> {exported.path}")
    for note in exported.notes:
        print(note)


def run_verify(options: argparse.Namespace) -> int:
    result = verify(
        options.source, options.folder, options.tolerance, options.plot,
        family=options.family, file=options.file, weights=options.weights, set=fields_of(options),
    )  # fmt: skip
    print(result)
    return 0 if result.within else 1


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; 0 if all is well, 1 if `verify` finds a difference, 2 for an error."""
    options = parser().parse_args(arguments)
    commands = {
        "list": list_families, "inspect": inspect, "import": run_import, "export": run_export, "verify": run_verify,
    }  # fmt: skip
    disable_progress_bar()  # of transformers, between our lines
    try:
        return commands[options.command](options) or 0
    except (ConversionError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
