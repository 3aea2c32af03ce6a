"""The configuration: strict, exact through JSON, and the table of named sizes."""

import json

import pytest
import timm
import torch
import torchvision
from transformers import AutoConfig

from modeling_vit_custom import VARIANTS, ViTCustomConfig, ViTCustomForImageClassification
from modeling_vit_custom.embeddings_vit_custom import POSITIONS
from modeling_vit_custom.initialization_vit_custom import INITIALIZERS
from modeling_vit_custom.modeling_vit_custom import FFNS, NORMS, POOLINGS
from modeling_vit_custom.positions_vit_custom import RESAMPLING
from tests.tiny import VARIED, label, tiny_config


WRONG = {
    # options: what the message must name
    "misspelt key": ({"hiden_size": 48}, ["hiden_size", "hidden_size"]),
    "key of another model": ({"encoder_stride": 16}, ["encoder_stride"]),
    "generation key": ({"temperature": 1.0}, ["temperature"]),
    "text for a number": ({"hidden_size": "48"}, ["hidden_size"]),
    "number for text": ({"pooling": 1}, ["pooling"]),
    "unknown pooling": ({"pooling": "max"}, ["pooling", "cls_mean"]),
    "unknown position": ({"position_embedding": "learnt"}, ["position_embedding", "learned_2d"]),
    "unknown activation": ({"hidden_act": "gellu"}, ["hidden_act", "gelu"]),
    "unknown problem type": ({"problem_type": "foo"}, ["problem_type", "regression"]),
    "heads": ({"hidden_size": 50, "num_attention_heads": 4}, ["hidden_size=50", "num_attention_heads=4"]),
    "no heads": ({"num_attention_heads": 0}, ["num_attention_heads=0"]),
    "no layers": ({"num_hidden_layers": 0}, ["num_hidden_layers=0"]),
    "negative width": ({"hidden_size": -48}, ["hidden_size=-48"]),
    "no channels": ({"num_channels": 0}, ["num_channels=0"]),
    "no patch": ({"patch_size": 0}, ["patch_size=0"]),
    "three sides": ({"image_size": [32, 32, 32]}, ["image_size"]),
    "one side": ({"image_size": [32]}, ["image_size"]),
    "image no multiple": ({"image_size": 30, "patch_size": 8}, ["image_size=30", "patch_size=8", "24", "32"]),
    "width no multiple": ({"image_size": [32, 30], "patch_size": 8}, ["width", "30"]),
    "patch larger than image": ({"image_size": 8, "patch_size": 16}, ["image_size=8", "16"]),
    "rope": ({"position_embedding": "rope_2d", "num_attention_heads": 8}, ["rope_2d", "divisible by 4", "6"]),
    "sincos": ({"position_embedding": "sincos_2d", "hidden_size": 50, "num_attention_heads": 2}, ["hidden_size", "4"]),
    "cls without token": ({"class_token": False}, ["pooling='cls'", "class_token=True"]),
    "cls_mean without token": ({"class_token": False, "pooling": "cls_mean"}, ["class_token=True"]),
    "representation of nothing": ({"pooling": "none", "representation_size": 8}, ["representation_size", "pooling"]),
    "projection of nothing": ({"pooling": "none", "projection_dim": 8}, ["projection_dim", "pooling"]),
    "norm of nothing": ({"pooling": "none", "final_norm": "pooled"}, ["final_norm", "pooling"]),
    "empty representation": ({"representation_size": 0}, ["representation_size=0"]),
    "distillation pooling": ({"distillation_token": True, "pooling": "mean"}, ["distillation_token", "pooling='cls'"]),
    "swiglu without silu": ({"ffn_type": "swiglu"}, ["swiglu", "hidden_act='silu'"]),
    "dropout of 2": ({"hidden_dropout_prob": 2}, ["hidden_dropout_prob=2"]),
    "drop path of 1": ({"drop_path_rate": 1.0}, ["drop_path_rate=1.0"]),
    "negative rate": ({"patch_drop_rate": -0.1}, ["patch_drop_rate=-0.1"]),
    "NaN rate": ({"label_smoothing": float("nan")}, ["label_smoothing"]),
    "negative epsilon": ({"layer_norm_eps": -1e-6}, ["layer_norm_eps"]),
    "NaN epsilon": ({"layer_norm_eps": float("nan")}, ["layer_norm_eps"]),
    "negative registers": ({"num_register_tokens": -1}, ["num_register_tokens=-1"]),
    "negative labels": ({"num_labels": -1}, ["num_labels=-1"]),
    "zero initial weights": ({"initializer_range": 0}, ["initializer_range=0"]),
    "endless initial weights": ({"initializer_range": float("inf")}, ["initializer_range=inf"]),
    "NaN LayerScale": ({"layerscale_value": float("nan")}, ["layerscale_value=nan"]),
    "truth for a count": ({"num_labels": True}, ["num_labels=True"]),
    "list of labels": ({"id2label": ["a", "b"]}, ["id2label"]),
    "labels by text": ({"id2label": {"a": "x"}}, ["id2label", "class numbers"]),
    "number for a label": ({"id2label": {0: 5}}, ["id2label"]),
    "list for a label": ({"id2label": {0: ["a"]}}, ["id2label"]),
    "text for a number of a label": ({"id2label": {0: "a"}, "label2id": {"a": "x"}}, ["label2id"]),
    "number twice": ({"id2label": {"0": "a", 0: "b"}}, ["id2label"]),
    "smoothing of many labels": (
        {"label_smoothing": 0.1, "problem_type": "multi_label_classification"},
        ["label_smoothing", "multi_label"],
    ),
    "gap in labels": ({"id2label": {0: "a", 2: "b"}}, ["id2label", "gaps"]),
    "label twice": ({"id2label": {0: "crane", 1: "dog", 2: "crane"}}, ["id2label", "crane"]),
    "count of labels": ({"id2label": {0: "a", 1: "b"}, "num_labels": 3}, ["num_labels=3", "2"]),
    "label2id contradicts": ({"id2label": {0: "a", 1: "b"}, "label2id": {"a": 1, "b": 0}}, ["label2id"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_an_error_that_names_it(case):
    options, named = WRONG[case]
    with pytest.raises(Exception) as caught:
        tiny_config(**options)
    for part in named:
        assert part in str(caught.value)


def test_impossible_combinations_are_plain_value_errors():
    with pytest.raises(ValueError, match="not divisible by num_attention_heads"):
        tiny_config(hidden_size=50)


@pytest.mark.parametrize("field, table", [
    ("ffn_type", FFNS), ("norm_type", NORMS), ("position_embedding", POSITIONS), ("position_resampling", RESAMPLING),
    ("pooling", {**POOLINGS, "none": None}), ("weight_init", INITIALIZERS),
])  # fmt: skip
def test_the_values_of_a_field_are_the_rows_of_its_table(field, table):
    assert set(ViTCustomConfig.__dataclass_fields__[field].type.__args__) == set(table)


@pytest.mark.parametrize("options", VARIED, ids=label)
def test_json_round_trip_is_exact(options, tmp_path):
    config = tiny_config(**options)
    assert ViTCustomConfig.from_dict(json.loads(config.to_json_string())) == config
    config.save_pretrained(tmp_path)
    reloaded = AutoConfig.from_pretrained(tmp_path)
    assert reloaded == config
    assert reloaded.to_dict() | {"_name_or_path": ""} == config.to_dict() | {
        "transformers_version": reloaded.transformers_version
    }


def test_pairs_and_numbers_stay_what_they_are():
    config = tiny_config(image_size=(32, 64), patch_size=8)
    assert config == ViTCustomConfig.from_dict(json.loads(config.to_json_string()))
    assert (config.image_size, config.patch_size, config.grid_size) == ([32, 64], 8, (4, 8))
    assert tiny_config(image_size=(32, 64)) != tiny_config(image_size=(64, 32))


def test_derived_values_are_not_saved():
    saved = json.loads(tiny_config().to_json_string())
    assert not {"grid_size", "head_dim", "num_prefix_tokens", "stage_names", "pooled_size"} & saved.keys()


def test_overrides_at_load_are_checked_and_replace_labels(tmp_path):
    tiny_config(id2label={0: "a", 1: "b", 2: "c"}).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, num_hidden_layers=7).stage_names[-1] == "stage7"
    assert AutoConfig.from_pretrained(tmp_path, num_labels=2).id2label == {0: "LABEL_0", 1: "LABEL_1"}
    assert AutoConfig.from_pretrained(tmp_path, id2label={0: "x", 1: "y"}).label2id == {"x": 0, "y": 1}
    with pytest.raises(ValueError, match="num_attention_heads=5"):
        AutoConfig.from_pretrained(tmp_path, num_attention_heads=5)


def test_the_same_number_of_labels_keeps_their_names(tmp_path):
    tiny_config(id2label={0: "a", 1: "b", 2: "c"}).save_pretrained(tmp_path)
    for count in (3, None):
        assert AutoConfig.from_pretrained(tmp_path, num_labels=count).id2label == {0: "a", 1: "b", 2: "c"}


def test_a_misspelt_override_is_not_ignored(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="hiden_size.*hidden_size"):
        AutoConfig.from_pretrained(tmp_path, hiden_size=3)
    assert AutoConfig.from_pretrained(tmp_path, revision="main", trust_remote_code=True) == tiny_config()


def test_labels_agree():
    assert tiny_config(id2label={"0": "a", "1": "b"}).label2id == {"a": 0, "b": 1}
    assert ViTCustomConfig(label2id={"a": 0, "b": 1}).id2label == {0: "a", 1: "b"}
    assert tiny_config(num_labels=3).id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


def test_a_field_set_to_nonsense_later_is_caught_when_a_model_is_built():
    config = tiny_config()
    config.num_attention_heads = 5
    with pytest.raises(ValueError, match="num_attention_heads=5"):
        ViTCustomForImageClassification(config)


def test_an_attribute_that_could_not_be_read_back_is_not_saved(tmp_path):
    config = tiny_config()
    config.hiden_size = 3
    with pytest.raises(Exception, match="hiden_size.*hidden_size"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()


# Counts that torchvision publishes with its weights; they are the models of the paper's table 1.
PUBLISHED = {
    "B/16": torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.meta["num_params"],
    "B/32": torchvision.models.ViT_B_32_Weights.IMAGENET1K_V1.meta["num_params"],
    "L/16": torchvision.models.ViT_L_16_Weights.IMAGENET1K_V1.meta["num_params"],
    "L/32": torchvision.models.ViT_L_32_Weights.IMAGENET1K_V1.meta["num_params"],
    "H/14": torchvision.models.ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1.meta["num_params"],
}
TIMM = {
    "Ti/16": "vit_tiny_patch16_224", "S/8": "vit_small_patch8_224", "S/16": "vit_small_patch16_224",
    "S/32": "vit_small_patch32_224", "B/8": "vit_base_patch8_224", "L/14": "vit_large_patch14_224",
    "g/14": "vit_giant_patch14_224", "G/14": "vit_gigantic_patch14_224",
}  # fmt: skip


def parameters(name: str) -> int:
    with torch.device("meta"):
        model = ViTCustomForImageClassification(ViTCustomConfig.from_variant(name, num_labels=1000))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert parameters(name) == PUBLISHED[name]


def test_the_paper_s_base_model_counts_86_567_656():
    assert parameters("B/16") == PUBLISHED["B/16"] == 86_567_656


@pytest.mark.parametrize("name", TIMM)
def test_parameter_counts_are_timm_s(name):
    with torch.device("meta"):
        peer = timm.create_model(TIMM[name], num_classes=1000)
    assert parameters(name) == sum(parameter.numel() for parameter in peer.parameters())


def test_no_size_of_the_table_is_untested():
    tested = {name.split("/")[0] for name in (*PUBLISHED, *TIMM)}
    assert set(VARIANTS) - tested == {"M", "so400m"}  # these two have no plain classifier in a peer to count


@pytest.mark.parametrize("name, near", [("B/17", "B/16"), ("b/16", "B/16"), ("Huge", "known: ")])
def test_an_unknown_variant_lists_the_near_ones(name, near):
    with pytest.raises(ValueError, match=near):
        ViTCustomConfig.from_variant(name)


def test_variant_overrides():
    config = ViTCustomConfig.from_variant("S/32", num_labels=10, image_size=384, drop_path_rate=0.1)
    assert (config.hidden_size, config.patch_size, config.num_labels, config.image_size) == (384, 32, 10, 384)
