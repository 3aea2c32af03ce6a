"""Auto classes, with the package and, in a process that cannot import it, with the code in the saved folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
    ViTConfig,
    ViTModel,
    pipeline,
)
from transformers.models.auto import auto_factory

import modeling_vit_custom as package
from tests.clean_room import run_clean_room
from tests.tiny import pictures, tiny_config, tiny_model


CODE = {path.name for path in Path(package.__file__).parent.glob("*.py")} - {"__init__.py"}
MODELS = {
    "AutoModel": (AutoModel, package.ViTCustomModel),
    "AutoModelForImageClassification": (AutoModelForImageClassification, package.ViTCustomForImageClassification),
    "AutoModelForMaskedImageModeling": (AutoModelForMaskedImageModeling, package.ViTCustomForMaskedImageModeling),
    "AutoBackbone": (AutoBackbone, package.ViTCustomBackbone),
}


@pytest.fixture
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def save(folder: Path, model_class=package.ViTCustomForImageClassification) -> torch.nn.Module:
    model = tiny_model(model_class)
    model.save_pretrained(folder)
    package.ViTCustomImageProcessor.for_model(model.config).save_pretrained(folder)
    return model


@pytest.fixture
def local_backbones(monkeypatch):
    """`AutoBackbone.from_pretrained` asks the Hub first, for a local folder too; without a network it can't be asked."""
    monkeypatch.setattr(auto_factory, "hf_api", lambda: type("Api", (), {"repo_exists": lambda self, name: True})())


@pytest.mark.parametrize("name", MODELS)
def test_auto_models_with_the_package(name, tmp_path, local_backbones):
    auto_class, model_class = MODELS[name]
    model = save(tmp_path, model_class)
    loaded, info = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is model_class and not any(info.values())
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    assert type(auto_class.from_config(tiny_config())) is model_class
    assert type(AutoConfig.from_pretrained(tmp_path)) is package.ViTCustomConfig


def test_the_image_processor_with_the_package(tmp_path, picture):
    save(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(processor) is package.ViTCustomImageProcessor
    assert processor(picture, return_tensors="pt").pixel_values.shape == (1, 3, 16, 24)


def test_pipelines_with_the_package(tmp_path, picture):
    model = save(tmp_path)
    pixels = AutoImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt").pixel_values
    best = pipeline("image-classification", model=str(tmp_path))(picture)[0]
    scores = model(pixels).logits.softmax(dim=1)[0]
    assert best["label"] == f"LABEL_{scores.argmax()}"
    assert best["score"] == pytest.approx(scores.max().item(), abs=1e-5)
    features = pipeline("image-feature-extraction", model=str(tmp_path))(picture)
    torch.testing.assert_close(torch.tensor(features), model.vit(pixels).last_hidden_state, atol=1e-4, rtol=1e-4)


def test_nothing_built_in_is_changed():
    assert (
        type(AutoModel.from_config(ViTConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=2))) is ViTModel
    )


@pytest.mark.parametrize("saved", [*MODELS, "AutoConfig", "AutoImageProcessor"])
def test_whichever_class_is_saved_the_folder_carries_all_code(saved, tmp_path):
    objects = {"AutoConfig": tiny_config(), "AutoImageProcessor": package.ViTCustomImageProcessor()}
    (objects[saved] if saved in objects else tiny_model(MODELS[saved][1])).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == CODE
    for name in CODE:
        assert (tmp_path / name).read_bytes() == (Path(package.__file__).parent / name).read_bytes()
    if saved != "AutoImageProcessor":
        auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
        assert auto_map == package.configuration_vit_custom.AUTO_MAP


CLEAN_ROOM = """
    import sys, torch
    from PIL import Image
    from transformers import *
    from transformers.models.auto import auto_factory

    folder, again = sys.argv[1:]
    try:
        import modeling_vit_custom
    except ImportError:
        pass
    else:
        raise SystemExit("the package can be imported: this is no clean room")
    auto_factory.hf_api = lambda: type("Api", (), {"repo_exists": lambda self, name: True})()
    trust = {"trust_remote_code": True}
    images = torch.load(folder + "/pixels.pt")
    picture = Image.open(folder + "/picture.png")

    def use(folder):
        config = AutoConfig.from_pretrained(folder, **trust)
        processor = AutoImageProcessor.from_pretrained(folder, **trust)
        models = {
            name: globals()[name].from_pretrained(folder, **trust).eval()
            for name in ("AutoModel", "AutoModelForImageClassification", "AutoModelForMaskedImageModeling", "AutoBackbone")
        }
        for model in models.values():
            assert type(model).__module__.startswith("transformers_modules"), type(model)
        classify = pipeline("image-classification", model=folder, **trust)(picture)
        features = pipeline("image-feature-extraction", model=folder, **trust)(picture)
        return {
            "logits": models["AutoModelForImageClassification"](images).logits,
            "tokens": models["AutoModel"](images).last_hidden_state,
            "map": models["AutoBackbone"](images).feature_maps[0],
            "pixels": processor(picture, return_tensors="pt").pixel_values,
            "features": torch.tensor(features), "scores": classify,
        }, {**models, "AutoConfig": config, "AutoImageProcessor": processor}

    result, loaded = use(folder)
    torch.save(result, folder + "/result.pt")
    for name, thing in loaded.items():
        thing.save_pretrained(again + "/" + name)
    loaded["AutoModelForImageClassification"].save_pretrained(again + "/whole")
    loaded["AutoImageProcessor"].save_pretrained(again + "/whole")
    second, _ = use(again + "/whole")
    for name in ("logits", "tokens", "map", "pixels", "features"):
        assert torch.allclose(result[name], second[name], atol=1e-6), name
"""


@pytest.mark.parametrize("saved", MODELS)
def test_remote_code_in_a_clean_room(saved, tmp_path, picture):
    """Whichever class was saved opens as every other, and what they save opens again."""
    folder, again = tmp_path / "saved", tmp_path / "again"
    model = save(folder, MODELS[saved][1])
    picture.save(folder / "picture.png")
    torch.save(pictures(), folder / "pixels.pt")
    done = run_clean_room(CLEAN_ROOM, folder, again, home=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]

    result, base = torch.load(folder / "result.pt"), getattr(model, "vit", model)
    tokens = base(pictures()).last_hidden_state
    pixels = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt").pixel_values
    torch.testing.assert_close(result["tokens"], tokens, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result["map"].flatten(2).transpose(1, 2), tokens[:, 1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result["features"], base(pixels).last_hidden_state, atol=1e-4, rtol=1e-4)
    assert torch.equal(result["pixels"], pixels)
    if saved == "AutoModelForImageClassification":
        torch.testing.assert_close(result["logits"], model(pictures()).logits, atol=1e-5, rtol=1e-5)
        assert result["scores"][0]["label"] == f"LABEL_{model(pixels).logits.argmax()}"

    for name in [*MODELS, "AutoConfig", "AutoImageProcessor", "whole"]:
        assert {path.name for path in (again / name).glob("*.py")} == CODE, name
        if name != "AutoImageProcessor":
            config = json.loads((again / name / "config.json").read_text())
            assert config["auto_map"] == package.configuration_vit_custom.AUTO_MAP
    loaded = MODELS[saved][1].from_pretrained(again / saved)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)


def test_code_in_a_folder_does_not_run_untrusted(tmp_path):
    save(tmp_path / "saved")
    marker = tmp_path / "ran"
    for path in (tmp_path / "saved").glob("*.py"):
        path.write_text(f"open({str(marker)!r}, 'w')\n" + path.read_text())
    script = "import sys; from transformers import AutoModel; AutoModel.from_pretrained(sys.argv[1])"
    done = run_clean_room(script, tmp_path / "saved", home=tmp_path)
    assert done.returncode != 0 and "trust_remote_code" in done.stderr
    assert not marker.exists()
