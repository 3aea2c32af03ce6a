"""The losses of the classifier, masked image modelling, the backbone and the users of its interface."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    UperNetConfig,
    UperNetForSemanticSegmentation,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
)
from transformers.models.bert import BertConfig

from modeling_vit_custom import (
    ViTCustomBackbone,
    ViTCustomForImageClassification,
    ViTCustomForMaskedImageModeling,
    ViTCustomModel,
)
from tests.tiny import pictures, tiny_config, tiny_model


SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
NUMBERS = torch.tensor([1, 4, 0, 2])
HOT = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]])
SOFT = torch.softmax(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), dim=1)


def loss_of(labels, **options) -> tuple[torch.Tensor, torch.Tensor]:
    output = tiny_model(**options)(pictures(4), labels=labels)
    return output.loss, output.logits


def test_single_label_is_cross_entropy():
    loss, logits = loss_of(NUMBERS)
    torch.testing.assert_close(loss, F.cross_entropy(logits, NUMBERS))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_class_numbers_of_any_whole_type(dtype):
    assert torch.equal(loss_of(NUMBERS.to(dtype))[0], loss_of(NUMBERS)[0])


def test_ignored_labels_count_for_nothing():
    loss, logits = loss_of(torch.tensor([1, -100, 0, -100]))
    torch.testing.assert_close(loss, F.cross_entropy(logits[[0, 2]], torch.tensor([1, 0])))
    assert loss_of(torch.full((4,), -100))[0] == 0


def test_soft_targets_are_cross_entropy_and_mix_linearly():
    loss, logits = loss_of(SOFT, problem_type=SINGLE)
    torch.testing.assert_close(loss, -(SOFT * logits.log_softmax(dim=1)).sum(dim=1).mean())
    mixed = 0.3 * F.one_hot(NUMBERS, 5).float() + 0.7 * F.one_hot(NUMBERS.flip(0), 5).float()
    expected = 0.3 * loss_of(NUMBERS)[0] + 0.7 * loss_of(NUMBERS.flip(0))[0]
    torch.testing.assert_close(loss_of(mixed, problem_type=SINGLE)[0], expected)


@pytest.mark.parametrize("labels", [NUMBERS, SOFT], ids=["numbers", "soft"])
def test_label_smoothing_is_torch_s_and_only_in_training(labels):
    model = tiny_model(label_smoothing=0.1, problem_type=SINGLE)
    logits = model(pictures(4)).logits
    torch.testing.assert_close(model(pictures(4), labels=labels).loss, F.cross_entropy(logits, labels))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(model.train()(pictures(4), labels=labels).loss, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_multi_label_is_binary_cross_entropy_whatever_the_type(dtype):
    loss, logits = loss_of(HOT.to(dtype), problem_type=MULTI)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, HOT.float()))


def test_multi_label_leaves_out_what_is_not_known():
    labels = HOT.clone()
    labels[0, 0] = labels[2, 3] = -100
    loss, logits = loss_of(labels, problem_type=MULTI)
    known = labels != -100
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits[known], HOT[known].float()))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_regression_is_squared_error_for_one_output_of_either_shape(shape):
    targets = torch.randn(4)
    loss, logits = loss_of(targets.reshape(shape), num_labels=1)
    torch.testing.assert_close(loss, F.mse_loss(logits[:, 0], targets))


def test_regression_with_several_outputs():
    targets = torch.randn(4, 5)
    loss, logits = loss_of(targets, problem_type=REGRESSION)
    torch.testing.assert_close(loss, F.mse_loss(logits, targets))


def test_regression_leaves_out_no_number():
    targets = torch.randn(4, 5)
    targets[1, 2] = -100.0
    model = tiny_model(problem_type=REGRESSION)
    output = model(pictures(4), labels=targets)
    torch.testing.assert_close(output.loss, F.mse_loss(output.logits, targets))
    torch.testing.assert_close(model(pictures(4), labels=targets, num_items_in_batch=40).loss, output.loss / 2)


def test_smoothing_is_refused_where_it_means_nothing():
    with pytest.raises(ValueError, match="label_smoothing"):
        tiny_model(label_smoothing=0.1).train()(pictures(4), labels=HOT)


def test_the_problem_type_is_inferred_for_each_batch_and_never_written():
    model = tiny_model()
    assert model.loss(torch.zeros(4, 5), NUMBERS) == pytest.approx(torch.tensor(5.0).log().item())
    assert model.loss(torch.zeros(4, 5), HOT) == pytest.approx(torch.tensor(2.0).log().item())
    assert model.config.problem_type is None


@pytest.mark.parametrize("labels, options, named", [
    (SOFT, {}, ["problem_type", SINGLE, MULTI]),
    (torch.tensor([1, 5, 0, 2]), {}, ["0..4", "5"]),
    (torch.tensor([1, -1, 0, 2]), {}, ["0..4", "-1"]),
    (HOT * 2, {"problem_type": MULTI}, ["0..1", "2"]),
    (NUMBERS, {"problem_type": MULTI}, ["multi-label", "(4, 5)", "(4,)"]),
    (HOT, {"problem_type": SINGLE}, ["class numbers", "(4,)", "(4, 5)"]),
    (SOFT[:, :3], {"problem_type": SINGLE}, ["soft targets", "(4, 5)", "(4, 3)"]),
    (torch.randn(4, 3), {"problem_type": REGRESSION}, ["regression", "(4, 5)", "(4, 3)"]),
])  # fmt: skip
def test_labels_that_do_not_fit_are_an_error_that_says_how(labels, options, named):
    with pytest.raises(ValueError) as caught:
        loss_of(labels, **options)
    assert all(part in str(caught.value) for part in named)


@pytest.mark.parametrize("labels, options", [
    (NUMBERS, {}), (torch.tensor([1, -100, 0, 2]), {}), (SOFT, {"problem_type": SINGLE}), (HOT, {"problem_type": MULTI}),
    (torch.randn(4, 5), {"problem_type": REGRESSION}),
])  # fmt: skip
@pytest.mark.parametrize("cut", [1, 2])
def test_the_loss_and_gradients_do_not_depend_on_how_a_batch_is_split(labels, options, cut):
    whole, parts = tiny_model(**options), tiny_model(**options)
    whole(pictures(4), labels=labels).loss.backward()
    items = (labels != -100).sum()
    for part in (slice(0, cut), slice(cut, 4)):
        parts(pictures(4)[part], labels=labels[part], num_items_in_batch=items).loss.backward()
    for found, expected in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_many_classes_is_finite_in_half_precision(problem, dtype):
    targets = {SINGLE: torch.softmax(torch.randn(64, 2000), 1), MULTI: torch.randint(2, (64, 2000))}
    labels = targets.get(problem, 30 * torch.randn(64, 2000))
    model = tiny_model(num_labels=2000, problem_type=problem)
    expected = model(pictures(64), labels=labels).loss
    loss = model.to(dtype)(pictures(64), labels=labels).loss
    torch.testing.assert_close(loss.float(), expected, atol=0, rtol=0.05)


def test_no_classes_means_no_classifier():
    model = tiny_model(num_labels=0)
    assert torch.equal(model(pictures()).logits, model.vit(pictures()).pooler_output)


def test_a_classifier_without_a_pooled_vector_is_refused():
    with pytest.raises(ValueError, match="pooling='none'"):
        ViTCustomForImageClassification(tiny_config(pooling="none"))
    assert ViTCustomModel(tiny_config(pooling="none"))(pictures()).pooler_output is None


@pytest.mark.parametrize("registers", [0, 4])
def test_the_mean_is_of_the_patches_alone(registers):
    model = tiny_model(ViTCustomModel, pooling="mean", num_register_tokens=registers)
    output = model(pictures())
    tokens = output.last_hidden_state.clone()
    tokens[:, : 1 + registers] = 1e3
    torch.testing.assert_close(model.pooler(tokens), output.pooler_output)


# ---------------------------------------------------------------------------------------------------------------------
# Masked image modelling


@pytest.mark.parametrize("shape", [(2, 12), (2, 4, 3)])
def test_the_loss_is_the_mean_error_of_the_masked_pixels(shape):
    model = tiny_model(ViTCustomForMaskedImageModeling)
    mask = torch.zeros(2, 4, 3, dtype=torch.bool)
    mask[0, 1, 2] = mask[1, 3, 0] = True
    output = model(pictures(), bool_masked_pos=mask.reshape(shape))
    errors = (output.reconstruction - pictures()).abs()
    masked = torch.stack([errors[0, :, 4:8, 16:24], errors[1, :, 12:16, 0:8]])
    torch.testing.assert_close(output.loss, masked.mean(), atol=0, rtol=1e-5)
    assert model(pictures()).loss is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_many_pixels_is_finite_in_half_precision(dtype):
    model = tiny_model(ViTCustomForMaskedImageModeling)
    images, mask = pictures(4, (160, 160)), torch.ones(4, 800)
    expected = model(images, bool_masked_pos=mask).loss
    loss = model.to(dtype)(images, bool_masked_pos=mask).loss
    torch.testing.assert_close(loss.float(), expected, atol=0, rtol=0.02)


def test_only_masked_patches_are_hidden():
    model = tiny_model(ViTCustomForMaskedImageModeling)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[:, 5] = True
    changed = pictures()
    changed[:, :, 4:8, 16:24] += 1
    found = [model(images, bool_masked_pos=mask).reconstruction for images in (pictures(), changed)]
    assert torch.equal(*found)
    assert not torch.equal(model(pictures()).reconstruction, model(changed).reconstruction)


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 11\).*\(2, 12\)"):
        tiny_model(ViTCustomForMaskedImageModeling)(pictures(), bool_masked_pos=torch.zeros(2, 11))
    with pytest.raises(ValueError, match="mask token"):
        tiny_model(ViTCustomModel)(pictures(), bool_masked_pos=torch.zeros(2, 12))


@pytest.mark.parametrize("model_class", [ViTCustomForMaskedImageModeling, ViTCustomBackbone])
def test_patch_dropout_is_refused_where_all_patches_are_needed(model_class):
    with pytest.raises(ValueError, match=r"patch_drop_rate=0\.5"):
        model_class(tiny_config(patch_drop_rate=0.5))


# ---------------------------------------------------------------------------------------------------------------------
# Backbone


@pytest.mark.parametrize("size", [(16, 24), (32, 16)])
def test_feature_maps_are_the_hidden_states_as_grids(size):
    model = tiny_model(ViTCustomBackbone, num_register_tokens=2, out_features=["stem", "stage2", "stage3"])
    output = model(pictures(size=size), output_hidden_states=True)
    grid = (size[0] // 4, size[1] // 8)
    assert [maps.shape for maps in output.feature_maps] == [(2, 48, *grid)] * 3
    for index, maps in zip([0, 2, 3], output.feature_maps, strict=True):
        expected = model.vit.norm(output.hidden_states[index])[:, 3:]
        torch.testing.assert_close(maps.flatten(2).transpose(1, 2), expected)
    assert model.channels == [48, 48, 48]
    assert model(pictures()).hidden_states is None


def test_stages_by_index_and_by_name_and_the_last_by_default():
    by_index, default = tiny_model(ViTCustomBackbone, out_indices=[1, -1]), tiny_model(ViTCustomBackbone)
    assert by_index.out_features == ["stage1", "stage3"]
    assert default.out_features == ["stage3"]
    assert torch.equal(by_index(pictures()).feature_maps[1], default(pictures()).feature_maps[0])
    with pytest.raises(ValueError, match="stage9"):
        tiny_config(out_features=["stage9"])


def test_a_norm_that_is_not_there_is_not_promised():
    with pytest.raises(ValueError, match="apply_layernorm=False"):
        ViTCustomBackbone(tiny_config(final_norm="pooled"))


def test_raw_feature_maps():
    model = tiny_model(ViTCustomBackbone, apply_layernorm=False)
    output = model(pictures(), output_hidden_states=True)
    assert torch.equal(output.feature_maps[0].flatten(2).transpose(1, 2), output.hidden_states[-1][:, 1:])


def test_stages_can_be_chosen_when_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = ViTCustomBackbone.from_pretrained(tmp_path, out_indices=[0, 2])
    assert model.out_features == ["stem", "stage2"]
    model.save_pretrained(tmp_path)
    assert ViTCustomBackbone.from_pretrained(tmp_path).out_features == ["stem", "stage2"]


def test_upernet_accepts_the_backbone():
    config = UperNetConfig(
        backbone_config=tiny_config(out_features=["stage1", "stage2", "stage3"]),
        num_labels=4, hidden_size=16, pool_scales=[1, 2], use_auxiliary_head=False,
    )  # fmt: skip
    output = UperNetForSemanticSegmentation(config).eval()(pictures())
    assert output.logits.shape == (2, 4, 16, 24)


def test_detr_accepts_the_backbone():
    config = DetrConfig(
        backbone_config=tiny_config(), use_timm_backbone=False, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=6,
        num_labels=3,
    )  # fmt: skip
    output = DetrForObjectDetection(config).eval()(pictures())
    assert output.logits.shape == (2, 6, 4) and output.pred_boxes.shape == (2, 6, 4)


def test_a_dual_encoder_accepts_the_model():
    text = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(tiny_config(), text, projection_dim=8)
    model = VisionTextDualEncoderModel(config).eval()
    output = model(input_ids=torch.ones(2, 4, dtype=torch.long), pixel_values=pictures())
    assert output.image_embeds.shape == (2, 8)
