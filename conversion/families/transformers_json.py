"""The two JSON files of a transformers folder: the pixels that one says, and both as `export` writes them."""

from typing import Any

import transformers
from transformers.image_processing_utils import get_size_dict

from conversion.errors import ConversionError
from conversion.families.base import BILINEAR, Facts, Found, sides
from conversion.families.transformers_facts import Kind, label_list, said, settings
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import pair


PIXELS = (
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "do_convert_rgb",
)  # fmt: skip
PROCESSORS = {
    name: getattr(transformers, f"{name}ImageProcessor")
    for name in ("ViT", "DeiT", "Bit", "CLIP", "Siglip", "DINOv3ViT")
}
OVERSHOOTING = (1, 3)  # lanczos and bicubic
# Fields that change no pixel: of the class, of the call, and of the layout that models take.
HARMLESS = {
    "image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys", "data_format", "device",
    "input_data_format", "return_tensors", "disable_grouping", "default_to_square", "transformers_version",
}  # fmt: skip


def processor_class(kind: Kind, table: Facts) -> type:
    """The image processor that a table names, in any of its spellings; that of the model by default."""
    full = str(table.get("image_processor_type") or table.get("feature_extractor_type") or kind.processor)
    name = (
        full.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    )
    if name not in PROCESSORS:
        raise ConversionError(
            f"preprocessor_config.json names {full}; known: {', '.join(f'{name}ImageProcessor' for name in PROCESSORS)}"
        )
    return PROCESSORS[name]


def meaning(kind: Kind, table: Facts) -> Facts:
    """
    The fields of a `preprocessor_config.json`, missing ones with the default of its class.

    Raises:
        `ConversionError`: for a field that changes the pixels in a way that isn't ours.
    """
    theirs = processor_class(kind, table)
    strange = sorted(n for n, v in table.items() if n not in {*PIXELS, *HARMLESS} and v is not None and v is not False)
    if strange:
        raise ConversionError(
            f"preprocessor_config.json: {strange[0]}={table[strange[0]]!r} is not known to change no pixel"
        )
    found = {n: getattr(theirs, n, None) if table.get(n) is None else table[n] for n in PIXELS}
    try:
        square = table.get("default_to_square")
        square = getattr(theirs, "default_to_square", True) if square is None else square
        found["size"] = get_size_dict(found["size"], default_to_square=square)
        if found["crop_size"] is not None:
            found["crop_size"] = get_size_dict(found["crop_size"], param_name="crop_size")
    except (TypeError, ValueError, IndexError) as error:
        raise ConversionError(f"preprocessor_config.json: {error}") from error
    for name in ("size", "crop_size"):
        if found[name] and set(found[name]) not in ({"height", "width"}, {"shortest_edge"}):
            raise ConversionError(f"preprocessor_config.json: {name}={found[name]} is not one of our ways to a size")
        for side in (found[name] or {}).values():
            sides(side, name)
    if theirs is PROCESSORS["DINOv3ViT"] and found["resample"] in OVERSHOOTING:
        raise ConversionError(
            f"preprocessor_config.json: {theirs.__name__} with resample={found['resample']} resizes floats, beyond black and white; ours "
            "resizes 0..255"
        )
    found["do_convert_rgb"] = found["do_convert_rgb"] is not False
    found["do_center_crop"] = bool(found["do_center_crop"])
    found["crop_rounding"] = "down"
    return {n: list(value) if isinstance(value, tuple) else value for n, value in found.items() if value is not None}


def pixels(kind: Kind, found: Found, config: ViTCustomConfig) -> Facts:
    """What `preprocessor_config.json` says, in proportion if the model gets another size; without one, what was told."""
    if found.processor is None:
        why = "there is no preprocessor_config.json, so the pixels' {} is not known"
        statistics = {
            n: found.ask(n, why.format(what)) for n, what in (("image_mean", "mean"), ("image_std", "deviation"))
        }
        return {"resample": BILINEAR, **statistics}
    read = meaning(kind, found.processor)
    old = pair(said(kind, settings(kind, found.config), "image_size"))
    new = pair(config.image_size)
    ratios = {"height": new[0] / old[0], "width": new[1] / old[1], "shortest_edge": min(new) / min(old)}
    for name in ("size", "crop_size"):
        if name in read:
            read[name] = {side: round(value * ratios[side]) for side, value in read[name].items()}
    return read


# ---------------------------------------------------------------------------------------------------------------------
# Out


def files(kind: Kind, config: ViTCustomConfig, processor: ViTCustomImageProcessor, record: Facts) -> dict[str, Facts]:
    """Their own files where the folder came from some, with what has changed since."""
    theirs = record.get("their_config") or {}
    return {
        "config.json": config_of(kind, config, theirs),
        "preprocessor_config.json": processor_of(kind, config, processor, record.get("their_processor")),
    }


def config_of(kind: Kind, config: ViTCustomConfig, theirs: Facts) -> Facts:
    """`config.json`; of a model with two towers the image tower's alone."""
    vision = {**settings(kind, theirs)}
    wanted = {name: getattr(config, ours) for name, ours in kind.fields.items()} | kind.write(config)
    vision |= {n: v for n, v in wanted.items() if not theirs or said(kind, vision, n) != v}
    is_cut = "vision_config" in theirs and not kind.is_whole
    if kind.is_whole:
        vision |= {"model_type": kind.model_type, **({} if theirs else {"vision_use_head": False})}
        written = {**theirs, "vision_config": vision, "model_type": kind.towers}
    else:
        written = {**vision, "model_type": kind.model_type}
    old = theirs.get("architectures")
    if is_cut or not old or ("ImageClassification" in str(old)) != bool(config.num_labels):
        written["architectures"] = [architecture(kind, config)]
    names = list(config.id2label.values())
    if config.num_labels and (not theirs.get("id2label") or label_list(theirs["id2label"]) != names):
        written["id2label"] = {str(index): name for index, name in enumerate(names)}
        written["label2id"] = {name: index for index, name in enumerate(names)}
    if config.dtype is not None:
        written["torch_dtype" if "torch_dtype" in written else "dtype"] = str(config.dtype).removeprefix("torch.")
    return written


def architecture(kind: Kind, config: ViTCustomConfig) -> str:
    """The class that loads the model."""
    if config.distillation_token and config.num_labels:
        return f"{kind.classes[1]}WithTeacher"
    return kind.classes[bool(config.num_labels or config.projection_dim)]


def processor_of(
    kind: Kind, config: ViTCustomConfig, processor: ViTCustomImageProcessor, theirs: Facts | None
) -> Facts:
    """`preprocessor_config.json`, with the normalisation of a model that does it itself."""
    ours = {n: list(v) if isinstance(v, tuple) else v for n, v in processor.to_dict().items() if n in PIXELS}
    if not processor.antialias:
        raise ConversionError(
            "transformers cannot express antialias=False; its processors smooth what becomes smaller"
        )
    if processor.crop_pct is not None:
        ours |= covered(processor)
    if config.pixel_mean is not None:
        statistics = {"image_mean": config.pixel_mean, "image_std": config.pixel_std}
        ours |= {name: [value / 255 for value in values] for name, values in statistics.items()}
        ours |= {"rescale_factor": 1 / 255, "do_rescale": True, "do_normalize": True}
    if theirs is None:
        return {**ours, "image_processor_type": kind.processor}
    was = meaning(kind, theirs)
    return {**theirs, **{name: value for name, value in ours.items() if was.get(name, value) != value}}


def covered(processor: ViTCustomImageProcessor) -> dict[str, Any]:
    """timm's way to a size in theirs: the shorter side, then a crop."""
    height, width = processor.size.height, processor.size.width
    if height != width:
        raise ConversionError(
            f"transformers cannot express crop_pct={processor.crop_pct} with {height} x {width} pixels"
        )
    return {
        "size": {"shortest_edge": int(height / processor.crop_pct)},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
    }
