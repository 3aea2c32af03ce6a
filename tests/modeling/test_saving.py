"""What is saved comes back: weights and buffers bit for bit, under every way of loading."""

import copy
import json
import pickle

import pytest
import torch
from accelerate import cpu_offload
from safetensors import safe_open

from modeling_vit_custom import (
    ViTCustomBackbone,
    ViTCustomForImageClassification,
    ViTCustomForMaskedImageModeling,
    ViTCustomModel,
)
from tests.tiny import VARIED, label, pictures, tiny_config, tiny_model


varied = pytest.mark.parametrize("options", VARIED, ids=label)
CLASSES = [ViTCustomModel, ViTCustomForImageClassification, ViTCustomForMaskedImageModeling, ViTCustomBackbone]


def tensors(model) -> dict[str, torch.Tensor]:
    """Parameters and buffers, the ones outside the state dict too."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def assert_equal(found, expected):
    torch.testing.assert_close(tensors(found), tensors(expected), atol=0, rtol=0)


def load(model_class, folder, **options):
    """A model, loaded into memory that holds junk, and nothing missing, unexpected or mismatched."""
    junk = [torch.full((1000, 1000), float("nan")) for _ in range(3)]
    del junk
    model, info = model_class.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    return model


@varied
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_buffers_are_bit_equal(options, dtype, tmp_path):
    model = tiny_model(**options).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = load(ViTCustomForImageClassification, tmp_path)
    assert_equal(loaded, model)
    assert torch.equal(loaded(pictures()).logits, model(pictures()).logits)
    assert loaded.config == model.config


@pytest.mark.parametrize("model_class", CLASSES)
def test_every_class_comes_back(model_class, tmp_path):
    model = tiny_model(model_class, num_register_tokens=2, layerscale_value=0.1)
    model.save_pretrained(tmp_path)
    assert_equal(load(model_class, tmp_path), model)


def test_names_on_disk_are_the_names_in_memory(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.state_dict())
        assert file.metadata() == {"format": "pt"}


def test_saving_twice_writes_the_same_bytes(tmp_path):
    model = tiny_model()
    for folder in ("a", "b"):
        model.save_pretrained(tmp_path / folder)
    load(ViTCustomForImageClassification, tmp_path / "a").save_pretrained(tmp_path / "c")
    for name in ("model.safetensors", "config.json"):
        assert len({(tmp_path / folder / name).read_bytes() for folder in "abc"}) == 1


@varied
def test_a_head_from_a_base_and_a_base_from_a_head(options, tmp_path):
    base, classifier = tiny_model(ViTCustomModel, seed=1, **options), tiny_model(seed=2, **options)
    base.save_pretrained(tmp_path / "base")
    classifier.save_pretrained(tmp_path / "classifier")

    loaded, info = ViTCustomForImageClassification.from_pretrained(tmp_path / "base", output_loading_info=True)
    heads = {name for name in loaded.state_dict() if "classifier" in name}
    assert info["missing_keys"] == heads and not info["unexpected_keys"]
    assert_equal(loaded.vit, base)

    loaded, info = ViTCustomModel.from_pretrained(tmp_path / "classifier", output_loading_info=True)
    assert info["unexpected_keys"] == heads and not info["missing_keys"]
    assert_equal(loaded, classifier.vit)


def test_sharded(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_equal(load(ViTCustomForImageClassification, tmp_path), model)


@pytest.mark.parametrize("options", [{}, {"distillation_token": True}, {"representation_size": 9}], ids=label)
def test_a_new_number_of_classes_makes_exactly_the_head_new(options, tmp_path):
    model = tiny_model(**options)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        ViTCustomForImageClassification.from_pretrained(tmp_path, num_labels=7)
    loaded, info = ViTCustomForImageClassification.from_pretrained(
        tmp_path, num_labels=7, ignore_mismatched_sizes=True, output_loading_info=True
    )
    fresh = {name for name in model.state_dict() if "classifier" in name}
    assert {name for name, *_ in info["mismatched_keys"]} == fresh
    assert not info["missing_keys"] and not info["unexpected_keys"]
    old = {name: value for name, value in tensors(model).items() if name not in fresh}
    new = {name: value for name, value in tensors(loaded).items() if name not in fresh}
    torch.testing.assert_close(new, old, atol=0, rtol=0)
    assert 0.01 < loaded.classifier.weight.std() < 0.03 and not loaded.classifier.bias.any()
    assert loaded.classifier.weight.shape[0] == loaded.config.num_labels == 7


def test_an_input_of_another_size_needs_no_new_table(tmp_path):
    """The table stays at the size it was trained at; a configuration that says otherwise is refused, not filled at random."""
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        ViTCustomForImageClassification.from_pretrained(tmp_path, image_size=[32, 48])
    assert load(ViTCustomForImageClassification, tmp_path)(pictures(size=(32, 48))).logits.shape == (2, 5)


@varied
def test_built_on_the_meta_device(options):
    with torch.device("meta"):
        model = ViTCustomForImageClassification(tiny_config(**options))
    assert {tensor.device.type for tensor in tensors(model).values()} == {"meta"}
    model.load_state_dict(tiny_model(**options).state_dict(), assign=True)
    assert torch.equal(model.eval()(pictures()).logits, tiny_model(**options)(pictures()).logits)


@varied
def test_device_map(options, tmp_path):
    model = tiny_model(**options)
    model.save_pretrained(tmp_path)
    loaded = load(ViTCustomForImageClassification, tmp_path, device_map="cpu")
    assert_equal(loaded, model)
    assert torch.equal(loaded(pictures()).logits, model(pictures()).logits)


@varied
def test_a_parameter_missing_in_the_file_is_initialised_and_the_others_are_not(options, tmp_path):
    """Every parameter in turn: transformers fills what is missing through `_init_weights`, into uninitialised memory."""
    model = tiny_model(**options)
    model.save_pretrained(tmp_path)
    for name in model.state_dict():
        rest = {key: value for key, value in model.state_dict().items() if key != name}
        loaded, info = ViTCustomForImageClassification.from_pretrained(
            None, config=model.config, state_dict=rest, output_loading_info=True
        )
        assert info["missing_keys"] == {name}
        for key, value in loaded.state_dict().items():
            assert torch.equal(value, rest[key]) if key != name else (value.isfinite() & (value.abs() <= 1)).all()


def test_wrong_keys_are_seen(tmp_path):
    model = tiny_model()
    weights = {f"module.{name}": value for name, value in model.state_dict().items()}
    _, info = ViTCustomForImageClassification.from_pretrained(
        None, config=model.config, state_dict=weights, output_loading_info=True
    )
    assert info["missing_keys"] == set(model.state_dict())
    assert info["unexpected_keys"] == set(weights)


def test_saving_over_the_folder_it_was_loaded_from(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = load(ViTCustomForImageClassification, tmp_path)
    with torch.no_grad():
        loaded.classifier.bias.add_(1)
    expected = copy.deepcopy(loaded)
    loaded.save_pretrained(tmp_path)
    assert_equal(loaded, expected)
    assert_equal(load(ViTCustomForImageClassification, tmp_path), expected)


def test_labels_set_later_are_saved_as_a_pair(tmp_path):
    model = tiny_model(num_labels=2)
    model.config.id2label = {0: "cat", 1: "dog"}
    assert model.config.label2id == {"cat": 0, "dog": 1}
    model.save_pretrained(tmp_path)
    assert ViTCustomForImageClassification.from_pretrained(tmp_path).config.label2id == {"cat": 0, "dog": 1}
    model.config.label2id = {"cat": 1, "dog": 0}
    with pytest.raises(Exception, match="not the inverse"):
        model.save_pretrained(tmp_path)


@varied
def test_pickle_and_deepcopy(options):
    model = tiny_model(**options)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_equal(twin, model)
        assert torch.equal(twin(pictures()).logits, model(pictures()).logits)


@varied
def test_offloaded_weights_are_fetched_where_they_are_used(options):
    """Accelerate's hooks stand at each module's call: weights that another module read would be missing."""
    model, offloaded = tiny_model(**options), tiny_model(**options)
    cpu_offload(offloaded, execution_device="cpu")
    assert {parameter.device.type for parameter in offloaded.parameters()} == {"meta"}
    assert torch.equal(offloaded(pictures()).logits, model(pictures()).logits)


def test_disk_offload(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    places = {
        "vit.embeddings": "disk",
        "vit.layers": "cpu",
        "vit.norm": "disk",
        "vit.pooler": "cpu",
        "classifier": "cpu",
    }
    loaded = ViTCustomForImageClassification.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=str(tmp_path / "offload")
    )
    assert torch.equal(loaded(pictures()).logits, model(pictures()).logits)


@pytest.mark.parametrize("pooling", ["cls", "map"])
def test_layers_that_must_not_be_split_exist(pooling):
    for model_class in CLASSES[:2] if pooling == "map" else CLASSES:
        model = tiny_model(model_class, pooling=pooling)
        assert set(model._no_split_modules) <= {type(module).__name__ for module in model.modules()}


def test_the_configuration_on_disk_holds_our_fields_and_the_whole_auto_map(tmp_path):
    tiny_model(ViTCustomModel).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "vit_custom"
    assert saved["image_size"] == [16, 24] and saved["architectures"] == ["ViTCustomModel"]
    assert len(saved["auto_map"]) == 6
