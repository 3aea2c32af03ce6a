"""transformers: folders of every model type against the models that wrote them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images

from conversion import FAMILIES, ConversionError, FactNeeded, export_checkpoint, import_checkpoint, import_to_folder
from conversion.locate import open_source
from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomImageProcessor, ViTCustomModel
from tests.tiny import pictures, randomise, tiny_model


SIZES = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80, "image_size": 32, "patch_size": 8,
}  # fmt: skip
NATIVE, LARGER, RECTANGLE = (32, 32), (48, 48), (24, 48)
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]
NAMES = {0: "tench", 1: "crane", 2: "crane", 3: "shark", 4: "hammerhead"}
TEXT = {
    "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 50, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
RESIZED = {"interpolate_pos_encoding": True}


@dataclass
class Case:
    """A model class with a configuration, the arguments that let it take other sizes, and the family that reads it."""

    model: str
    family: str
    config: str
    options: dict = field(default_factory=dict)
    call: dict = field(default_factory=dict)
    sizes: tuple = (NATIVE, LARGER, RECTANGLE)
    float64: float = 1e-9

    def build(self) -> torch.nn.Module:
        config_class = getattr(hf, self.config)
        towers = "vision_config" in self.options
        options = {**({} if towers else SIZES), **self.options}
        if "Classification" in self.model:
            options |= {"id2label": NAMES, "label2id": {name: i for i, name in NAMES.items()}}
        model = getattr(hf, self.model)(config_class(**options)).eval()
        return randomise(model)

    def run(self, model: torch.nn.Module, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What both models give; of two towers the image's."""
        if "MAE" in self.model:
            count = pixels.shape[2] * pixels.shape[3] // 64
            return {"last_hidden_state": model.base_model(pixels, torch.arange(count).expand(2, -1), **self.call)[0]}
        if self.model == "CLIPModel":
            tower = model.vision_model(pixels, **self.call)
            return {
                "last_hidden_state": tower.last_hidden_state,
                "pooler_output": model.visual_projection(tower.pooler_output),
            }
        if self.model in ("SiglipModel", "ViTForMaskedImageModeling"):
            model = model.vision_model if self.model == "SiglipModel" else model.vit
        if "Backbone" in self.model:
            last = model(pixels, output_hidden_states=True).hidden_states[-1]
            return {"last_hidden_state": model.layernorm(last)}
        output = model(pixels, **self.call)
        if "Projection" in self.model:
            return {"last_hidden_state": output.last_hidden_state, "pooler_output": output.image_embeds}
        names = ("logits", "cls_logits", "distillation_logits", "last_hidden_state", "pooler_output")
        return {name: output[name] for name in names if output.get(name) is not None}


def ours(model: torch.nn.Module, pixels: torch.Tensor, names) -> dict[str, torch.Tensor]:
    output = model(pixels)
    return {name: output[name] for name in names}


D2, D2R, D3 = "dinov2", "dinov2_with_registers", "dinov3_vit"
GATED3 = {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 2, "rope_theta": 30.0}
TOWERS = {"vision_config": SIZES, "text_config": TEXT}
MAE = {
    "mask_ratio": 0.0, "decoder_hidden_size": 24, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 32,
}  # fmt: skip
SWIGLU = {"use_swiglu_ffn": True, "qkv_bias": False}
CASES = {
    "vit": Case("ViTModel", "vit", "ViTConfig", {"pooler_output_size": 20, "layer_norm_eps": 1e-6}, RESIZED),
    "vit-classifier": Case("ViTForImageClassification", "vit", "ViTConfig", {"hidden_act": "quick_gelu"}, RESIZED),
    "vit-rectangle": Case(
        "ViTForImageClassification", "vit", "ViTConfig", {"image_size": [24, 48]}, sizes=(RECTANGLE,)
    ),
    "vit-mim": Case("ViTForMaskedImageModeling", "vit", "ViTConfig", {"encoder_stride": 8}, RESIZED),
    "deit": Case("DeiTModel", "deit", "DeiTConfig", {}, RESIZED),
    "deit-classifier": Case("DeiTForImageClassification", "deit", "DeiTConfig", {"qkv_bias": False}, RESIZED),
    "deit-teacher": Case("DeiTForImageClassificationWithTeacher", "deit", "DeiTConfig", {}, RESIZED),
    "msn": Case("ViTMSNModel", "vit_msn", "ViTMSNConfig", {}, RESIZED),
    "msn-classifier": Case("ViTMSNForImageClassification", "vit_msn", "ViTMSNConfig", {}, RESIZED),
    "mae": Case("ViTMAEModel", "vit_mae", "ViTMAEConfig", MAE, RESIZED),
    "mae-decoder": Case("ViTMAEForPreTraining", "vit_mae", "ViTMAEConfig", MAE, RESIZED),
    "ijepa": Case("IJepaModel", "ijepa", "IJepaConfig", {}, RESIZED, (NATIVE, LARGER)),
    "ijepa-classifier": Case("IJepaForImageClassification", "ijepa", "IJepaConfig", {}, RESIZED, (NATIVE, LARGER)),
    "dinov2": Case("Dinov2Model", D2, "Dinov2Config", {"mlp_ratio": 2}),
    "dinov2-gated-classifier": Case("Dinov2ForImageClassification", D2, "Dinov2Config", SWIGLU),
    "dinov2-backbone": Case("Dinov2Backbone", D2, "Dinov2Config", {"use_mask_token": False, "reshape_hidden_states": False}),
    "registers": Case("Dinov2WithRegistersModel", D2R, "Dinov2WithRegistersConfig", SWIGLU),
    "registers-classifier": Case(
        "Dinov2WithRegistersForImageClassification", D2R, "Dinov2WithRegistersConfig", {"num_register_tokens": 3}
    ),
    "dinov3-gated": Case("DINOv3ViTModel", D3, "DINOv3ViTConfig", GATED3, float64=1e-5),
    "dinov3": Case(
        "DINOv3ViTModel", D3, "DINOv3ViTConfig", {"num_register_tokens": 4, "query_bias": False}, float64=1e-5
    ),
    "clip": Case("CLIPVisionModel", "clip_vision", "CLIPVisionConfig", {}, RESIZED),
    "clip-projection": Case(
        "CLIPVisionModelWithProjection", "clip_vision", "CLIPVisionConfig", {"projection_dim": 7, "hidden_act": "gelu"}, RESIZED
    ),
    "clip-towers": Case("CLIPModel", "clip_vision", "CLIPConfig", {**TOWERS, "projection_dim": 9}, RESIZED),
    "siglip": Case("SiglipVisionModel", "siglip_vision", "SiglipVisionConfig", {}, RESIZED),
    "siglip-no-head": Case(
        "SiglipVisionModel", "siglip_vision", "SiglipVisionConfig", {"vision_use_head": False}, RESIZED
    ),
    "siglip-towers": Case("SiglipModel", "siglip_vision", "SiglipConfig", TOWERS, RESIZED),
    "siglip-classifier": Case("SiglipForImageClassification", "siglip_classifier", "SiglipConfig", TOWERS, RESIZED),
}  # fmt: skip
PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": 32}
TOLD = {"set": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}}


def write(model: torch.nn.Module, folder: Path, spelling: str = "disk", processor: dict | None = PROCESSOR) -> Path:
    """A folder as `save_pretrained` writes it, whole or in shards, or with the names of the model in memory."""
    model.save_pretrained(folder, max_shard_size="100KB" if spelling == "shards" else "5GB")
    if spelling == "memory":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def change(path: Path, **fields) -> None:
    """Other values in a JSON file; `None` takes a field out."""
    table = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in table.items() if value is not None}))


def close(theirs: dict[str, torch.Tensor], got: dict[str, torch.Tensor], limit: float) -> bool:
    return bool(theirs) and all((got[n] - t).abs().max() <= limit * max(1, t.abs().max()) for n, t in theirs.items())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spelling", ["disk", "memory"])
def test_outputs_are_the_original_s(name, spelling, tmp_path):
    case = CASES[name]
    their = case.build()
    model, _, report = import_checkpoint(write(their, tmp_path / "theirs", spelling))
    assert report.family == f"transformers_{case.family}"
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, case.float64)):
        their, model = their.to(dtype), model.to(dtype)
        for size in case.sizes:
            # DINOv2 resamples in float32.
            reached = 1e-5 if size != NATIVE and "dinov2" in case.family else limit
            with torch.no_grad():
                pixels = pictures(2, size).to(dtype)
                expected = case.run(their, pixels)
                assert close(expected, ours(model, pixels, expected), reached), (size, dtype)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spelling", ["disk", "memory", "shards"])
def test_the_folder_comes_back_bit_for_bit(name, spelling, tmp_path):
    source = write(CASES[name].build(), tmp_path / "theirs", spelling)
    report = import_to_folder(source, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", report.family)
    theirs, back = (open_source(path).containers[""] for path in (source, tmp_path / "back"))
    assert set(back.shapes) == set(theirs.shapes) - set(report.left_behind)
    assert all("text" in left or "logit_" in left for left in report.left_behind)
    for key in back.shapes:
        a, b = theirs.read(key), back.read(key)
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), key
    assert json.loads((tmp_path / "back/preprocessor_config.json").read_text()) == PROCESSOR
    if not report.left_behind:
        assert json.loads((source / "config.json").read_text()) == json.loads(
            (tmp_path / "back/config.json").read_text()
        )
    again = import_to_folder(tmp_path / "back", tmp_path / "again")
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "again"))
    assert again.family == report.family and first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keeps_record", [True, False], ids=["record", "anew"])
def test_transformers_loads_what_is_exported_to_it(name, keeps_record, tmp_path):
    """With the folder's record and built anew from our configuration without it."""
    case = CASES[name]
    their = case.build()
    report = import_to_folder(write(their, tmp_path / "theirs"), tmp_path / "ours")
    if not keeps_record:
        (tmp_path / "ours/conversion.json").unlink()
    export_checkpoint(tmp_path / "ours", tmp_path / "back", report.family)
    config = hf.AutoConfig.from_pretrained(tmp_path / "back")
    (architecture,) = config.architectures
    model, info = getattr(hf, architecture).from_pretrained(tmp_path / "back", output_loading_info=True)
    unused = ("mask_token", "head.", "decoder", "pooler")
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    assert all(any(part in key for part in unused) for key in info["missing_keys"])
    hf.AutoImageProcessor.from_pretrained(tmp_path / "back")
    case = Case(**{**vars(case), "model": architecture})
    config.mask_ratio = 0.0
    model.config.mask_ratio = 0.0
    original = CASES[name]
    with torch.no_grad():
        pixels = pictures(2, original.sizes[0])
        expected, got = original.run(their, pixels), case.run(model.eval(), pixels)
    common = {key: value for key, value in expected.items() if key in got}
    assert close(common, got, 1e-5)


def test_auto_classes_load_what_is_made_from_ours(tmp_path):
    """A model of ours that never was theirs."""
    options = {"image_size": 32, "patch_size": 8}
    for family, config, auto in (
        ("vit", {"layer_norm_eps": 1e-6}, hf.AutoModelForImageClassification),
        ("deit", {"distillation_token": True}, None),
        (
            "dinov2",
            {"layerscale_value": 0.1, "pooling": "cls_mean", "intermediate_size": 96},
            hf.AutoModelForImageClassification,
        ),
        ("siglip_classifier", {"class_token": False, "pooling": "mean"}, hf.AutoModelForImageClassification),
    ):
        folder, back = tmp_path / family, tmp_path / f"{family}-back"
        model = tiny_model(**options, **config)
        model.save_pretrained(folder)
        ViTCustomImageProcessor(size={"height": 32, "width": 32}, crop_pct=0.88).save_pretrained(folder)
        export_checkpoint(folder, back, f"transformers_{family}")
        their = (auto or hf.DeiTForImageClassificationWithTeacher).from_pretrained(back).eval()
        processor = hf.AutoImageProcessor.from_pretrained(back)
        with torch.no_grad():
            pixels = processor(PHOTOS[0], return_tensors="pt").pixel_values
            mine = ViTCustomImageProcessor.from_pretrained(folder)(PHOTOS[0], return_tensors="pt").pixel_values
            assert (pixels - mine).abs().max() * 127.5 <= 1.01
            assert (their(pixels).logits - model(pixels).logits).abs().max() <= 1e-5 * model(pixels).logits.abs().max()


def test_what_transformers_cannot_express_is_refused_with_the_reason(tmp_path):
    for options, family, reason in (
        ({"pooling": "mean"}, "vit", "pooling='mean'"),
        ({"query_bias": False}, "vit", "key_bias|query_bias"),
        ({"layerscale_value": 0.1}, "vit", "gamma"),
        ({"num_register_tokens": 3}, "vit", "register_tokens"),
        ({"intermediate_size": 97, "layerscale_value": 0.1}, "dinov2", "intermediate_size"),
        ({}, "dinov2", "cannot express"),
        ({"final_norm": "pooled", "embedding_norm": True, "patch_bias": False}, "clip_vision", "head|classifier"),
    ):
        folder = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        tiny_model(image_size=32, patch_size=8, **options).save_pretrained(folder)
        ViTCustomImageProcessor().save_pretrained(folder)
        with pytest.raises(ConversionError, match=reason):
            export_checkpoint(folder, tmp_path / "out", f"transformers_{family}")
    for pixels, reason in (
        ({"antialias": False}, "antialias"),
        ({"crop_pct": 0.9, "size": {"height": 32, "width": 48}}, "crop_pct"),
    ):
        folder = tmp_path / reason
        tiny_model(image_size=32, patch_size=8).save_pretrained(folder)
        ViTCustomImageProcessor(**pixels).save_pretrained(folder)
        with pytest.raises(ConversionError, match=reason):
            export_checkpoint(folder, tmp_path / "out", "transformers_vit")


HUB_NAMES = {
    "clip": ("", "vision_model."),
    "siglip": ("", "vision_model."),
    "msn-classifier": ("encoder.layer.", "vit.encoder.layer."),
    "mae-decoder": ("decoder.decoder_encoder.layer.", "decoder.decoder_layers."),
}


@pytest.mark.parametrize("name", HUB_NAMES)
def test_names_of_older_versions_are_read_and_come_back(name, tmp_path):
    """What is on the Hub was written by transformers 4."""
    source = write(CASES[name].build(), tmp_path / "theirs")
    old, new = HUB_NAMES[name]
    path, model = source / "model.safetensors", import_checkpoint(source).model
    weights = {new + key.removeprefix(old) if key.startswith(old) else key: v for key, v in load_file(path).items()}
    save_file(weights, path)
    report = import_to_folder(source, tmp_path / "ours")
    again = load_file(tmp_path / "ours/model.safetensors")
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())
    export_checkpoint(tmp_path / "ours", tmp_path / "back", report.family)
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == weights.keys() and all(torch.equal(back[key], weights[key]) for key in back)


# ---------------------------------------------------------------------------------------------------------------------
# Facts, labels, accounting


@pytest.mark.parametrize("name", ["vit-classifier", "registers-classifier", "siglip-classifier"])
def test_labels_come_over_and_those_of_one_name_stay_apart(name, tmp_path):
    model, _, _ = import_checkpoint(write(CASES[name].build(), tmp_path / "theirs"))
    assert list(model.config.id2label.values()) == ["tench", "crane", "crane (2)", "shark", "hammerhead"]


def test_what_has_changed_since_is_written(tmp_path):
    source = write(CASES["vit-classifier"].build(), tmp_path / "theirs")
    request = {"labels": list("abcde"), "image_size": [48, 48], "dtype": "bfloat16"}
    import_to_folder(source, tmp_path / "ours", **request)
    export_checkpoint(tmp_path / "ours", tmp_path / "back", "transformers_vit")
    config = hf.AutoConfig.from_pretrained(tmp_path / "back")
    assert list(config.id2label.values()) == list("abcde") and config.image_size == [48, 48]
    assert config.dtype == torch.bfloat16
    pixels = hf.AutoImageProcessor.from_pretrained(tmp_path / "back")(PHOTOS[0], return_tensors="pt").pixel_values
    assert pixels.shape[2:] == (48, 48)
    model, _, _ = import_checkpoint(source, drop_head=True)
    assert isinstance(model, ViTCustomModel)


DAMAGE = {
    "extra": (lambda w, last: w.update({f"{last.rpartition('.')[0]}.odd": torch.ones(3)}), "odd"),
    "missing": (lambda w, last: w.pop(last), "missing in the file"),
    "shape": (lambda w, last: w.update({last: w[last][:-1]}), "does not fit"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["vit-classifier", "deit-teacher", "msn-classifier", "dinov2", "dinov3", "clip", "siglip"]
)
def test_what_does_not_fit_is_named(name, damage, tmp_path):
    source = write(CASES[name].build(), tmp_path / "theirs")
    weights = load_file(source / "model.safetensors")
    last = next(key for key in weights if key.endswith(("layernorm_after.bias", "norm2.bias", "layer_norm2.bias")))
    act, reason = DAMAGE[damage]
    act(weights, last)
    (source / "model.safetensors").unlink()
    torch.save(weights, source / "pytorch_model.bin")
    with pytest.raises(ConversionError, match=reason) as error:
        import_to_folder(source, tmp_path / "out")
    assert (last if damage != "extra" else "odd").rpartition("layer")[2] in str(error.value)
    assert not (tmp_path / "out").exists()


LIES = {
    "num_hidden_layers": 20_000, "num_labels": 10**9, "hidden_size": 10**15, "image_size": 10**10, "intermediate_size": 81,
    "num_attention_heads": 5, "patch_size": 16, "num_channels": 10**12, "hidden_act": "gelou", "layer_norm_eps": "small",
    "qkv_bias": False, "vision_config": 3, "id2label": {"0": "a", "1": "b"},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_config_that_lies_is_refused_at_once(lie, tmp_path):
    source = write(CASES["vit-classifier"].build(), tmp_path / "theirs")
    change(source / "config.json", **{lie: LIES[lie]}, **({"id2label": None} if lie == "num_labels" else {}))
    with pytest.raises(ConversionError):
        import_checkpoint(source)


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        *((name, {"num_hidden_layers": 20_000}) for name in ("dinov2", "dinov3", "clip", "siglip")),
        *((name, {"intermediate_size": 10**12}) for name in ("dinov3", "clip", "siglip")),
        *((name, {"num_register_tokens": 10**15}) for name in ("registers", "dinov3")),
        ("dinov2", {"mlp_ratio": 10**12}),
    ],
)
def test_others_that_lie_are_refused_at_once(name, lie, tmp_path):
    source = write(CASES[name].build(), tmp_path / "theirs")
    change(source / "config.json", **lie)
    with pytest.raises(ConversionError):
        import_checkpoint(source)


@pytest.mark.parametrize("name", ["vit-classifier", "dinov3", "clip", "siglip-classifier"])
def test_a_field_left_out_has_the_default_of_transformers(name, tmp_path):
    source = write(CASES[name].build(), tmp_path / "theirs")
    before = import_checkpoint(source).model.config
    gone = dict.fromkeys(["layer_norm_eps", "initializer_range", "num_channels", "attention_dropout", "qkv_bias"])
    change(source / "config.json", **gone)
    after = import_checkpoint(source).model.config
    assert after == before


def test_what_our_model_has_not_is_refused(tmp_path):
    for index, (name, fields, reason) in enumerate(
        [
            ("vit", {"pooler_act": "relu"}, "pooler_act"),
            ("dinov3", {"mlp_bias": False}, "mlp_bias"),
            ("dinov3-gated", {"hidden_act": "gelu"}, "silu"),
        ]
    ):
        source = write(CASES[name].build(), tmp_path / str(index))
        change(source / "config.json", **fields)
        with pytest.raises(ConversionError, match=reason):
            import_checkpoint(source)
    pooler = {"pooler.dense.weight": torch.ones(48, 48), "pooler.dense.bias": torch.ones(48)}
    for name, prefix in (("ijepa", ""), ("mae", "")):
        source = write(CASES[name].build(), tmp_path / name)
        weights = load_file(source / "model.safetensors") | {prefix + key: value for key, value in pooler.items()}
        save_file(weights, source / "model.safetensors")
        with pytest.raises(ConversionError, match=r"unknown to this family: pooler\.dense"):
            import_checkpoint(source)
    case = Case("CLIPForImageClassification", "clip_vision", "CLIPConfig", TOWERS)
    with pytest.raises(ConversionError, match="without a norm"):
        import_checkpoint(write(case.build(), tmp_path / "clip"))


@pytest.mark.parametrize(
    ("name", "prefix"), [("vit-classifier", "vit."), ("deit-teacher", "deit."), ("deit-classifier", "deit.")]
)
def test_a_pooler_that_a_classifier_does_not_use_is_kept_aside(name, prefix, tmp_path):
    their = CASES[name].build()
    source = write(their, tmp_path / "theirs")
    pooler = {f"{prefix}pooler.dense.weight": torch.randn(48, 48), f"{prefix}pooler.dense.bias": torch.randn(48)}
    weights = load_file(source / "model.safetensors") | pooler
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    report = import_to_folder(source, tmp_path / "ours")
    assert set(report.kept) == {"pooler.dense.weight", "pooler.dense.bias"}
    model = ViTCustomForImageClassification.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        pixels = pictures(2, (32, 32))
        expected = their(pixels).logits
        assert (model(pixels).logits - expected).abs().max() <= 1e-5 * expected.abs().max()
    export_checkpoint(tmp_path / "ours", tmp_path / "back", report.family)
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == weights.keys() and all(torch.equal(back[key], weights[key]) for key in weights)


# ---------------------------------------------------------------------------------------------------------------------
# Pixels

PROCESSORS = {
    "vit": ("ViTImageProcessor", {"size": {"height": 64, "width": 64}}),
    "vit-one-number": ("ViTImageProcessor", {"size": 48, "image_mean": [0.1, 0.2, 0.3]}),
    "deit": ("DeiTImageProcessor", {"size": {"height": 72, "width": 72}, "crop_size": {"height": 64, "width": 64}}),
    "bit": ("BitImageProcessor", {"size": {"shortest_edge": 73}, "crop_size": {"height": 64, "width": 64}}),
    "clip": ("CLIPImageProcessor", {"size": 64, "crop_size": 64}),
    "siglip": ("SiglipImageProcessor", {"size": {"height": 64, "width": 64}, "do_convert_rgb": None}),
    "dinov3": ("DINOv3ViTImageProcessor", {"size": {"height": 64, "width": 64}, "do_pad": False}),
    "no-normalisation": ("ViTImageProcessor", {"do_normalize": False, "resample": 0, "size": 64}),
    "no-resize": ("ViTImageProcessor", {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 96, "width": 96}}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_their_processor(name, tmp_path):
    class_name, fields = PROCESSORS[name]
    source = write(
        CASES["vit-classifier"].build(), tmp_path / "theirs", processor={"image_processor_type": class_name, **fields}
    )
    theirs = getattr(hf, class_name)(**fields)
    import_to_folder(source, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", "transformers_vit")
    back = getattr(hf, class_name).from_pretrained(tmp_path / "back")
    processor = ViTCustomImageProcessor.from_pretrained(tmp_path / "ours")
    level = (torch.tensor(theirs.image_std)[:, None, None] if theirs.do_normalize else 1.0) * 255
    for photo in PHOTOS:
        expected, got, again = (np.asarray(p(photo)["pixel_values"][0]) for p in (theirs, processor, back))
        assert got.shape == expected.shape and np.array_equal(expected, again)
        assert (np.abs(got - expected) * np.asarray(level)).max() <= 1.01


def test_pixels_that_nothing_says_are_asked_for(tmp_path):
    source = write(CASES["vit-classifier"].build(), tmp_path / "theirs", processor=None)
    with pytest.raises(FactNeeded, match="image_mean"):
        import_checkpoint(source)
    assert list(import_checkpoint(source, **TOLD).processor.image_mean) == [0.5] * 3
    for fields, reason in (
        ({"image_processor_type": "OtherImageProcessor"}, "OtherImageProcessor"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"size": {"longest_edge": 40}}, "longest_edge"),
        ({"crop_pct": 0.9}, "crop_pct"),
        ({"image_mean": [float("nan")] * 3}, "image_mean"),
    ):
        (source / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **fields}))
        with pytest.raises(ConversionError, match=reason):
            import_checkpoint(source)


def test_every_family_of_transformers_is_covered():
    mine = {name for name in FAMILIES if name.startswith("transformers_")}
    assert mine == {f"transformers_{case.family}" for case in CASES.values()}
