"""Initial weights: those of the sources cited, in a fresh model and in one whose file lacks some."""

import math

import pytest
import torch

from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomModel
from tests.tiny import tiny_config


WIDE = {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3, "patch_size": [8, 8]}


def fresh(model_class=ViTCustomForImageClassification, **options):
    return model_class(tiny_config(**{**WIDE, **options}))


def test_truncated_normal_is_cut_at_two_deviations_and_biases_are_zero():
    model = fresh(num_register_tokens=2, layerscale_value=1e-5)
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            assert (parameter == 1e-5).all()
        elif "norm" in name:
            assert (parameter == name.endswith("weight")).all()
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            assert parameter.abs().max() <= 0.04
            assert parameter.std().item() == pytest.approx(0.02 * 0.88, rel=0.15)


def test_the_jax_scheme_is_that_of_models_vit_py():
    model = fresh(weight_init="jax", zero_init_head=True, representation_size=160, pooling="cls")
    layer, patch = model.vit.layers[0], model.vit.embeddings.patch_embeddings.projection
    bound = math.sqrt(6 / (192 + 192))
    for projection in (layer.attention.q_proj, layer.attention.o_proj):
        assert projection.weight.abs().max() <= bound
        assert projection.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert not projection.bias.any()
    assert layer.ffn.fc1.weight.abs().max() <= math.sqrt(6 / (192 + 768))
    assert layer.ffn.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert patch.weight.std().item() == pytest.approx((3 * 8 * 8) ** -0.5, rel=0.05)
    assert model.vit.pooler.pre_logits[0].weight.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert not model.vit.embeddings.cls_token.any()
    assert model.vit.embeddings.position.grid.std().item() == pytest.approx(0.02, rel=0.2)
    assert not model.classifier.weight.any() and not model.classifier.bias.any()


def test_register_tokens_start_apart():
    registers = fresh(ViTCustomModel, weight_init="jax", num_register_tokens=4).embeddings.register_tokens[0]
    assert torch.pdist(registers).min() > 0.1


@pytest.mark.parametrize("options", [{}, {"distillation_token": True}])
def test_a_zero_head_leaves_the_rest_alone(options):
    model = fresh(zero_init_head=True, **options)
    heads = {name for name, parameter in model.named_parameters() if name.endswith("weight") and not parameter.any()}
    expected = {"classifier.weight"} | ({"distillation_classifier.weight"} if options else set())
    assert heads == expected


def test_the_same_seed_gives_the_same_model():
    twins = []
    for _ in range(2):
        torch.manual_seed(7)
        twins.append(fresh().state_dict())
    torch.testing.assert_close(*twins, atol=0, rtol=0)
