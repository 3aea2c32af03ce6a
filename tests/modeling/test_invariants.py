"""What must hold of every model, whatever its axes."""

import copy
import weakref

import pytest
import torch

from modeling_vit_custom import (
    ViTCustomBackbone,
    ViTCustomForImageClassification,
    ViTCustomForMaskedImageModeling,
    ViTCustomModel,
)
from modeling_vit_custom.modeling_vit_custom import DropPath
from modeling_vit_custom.positions_vit_custom import sincos_2d
from tests.tiny import FFNS, POSITIONS, VARIED, label, pictures, tiny_model


CLOSE = {"atol": 1e-5, "rtol": 1e-5}
varied = pytest.mark.parametrize("options", VARIED, ids=label)


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def loss_and_gradients(model, **inputs):
    model.zero_grad()
    loss = model(pictures(), labels=torch.tensor([1, 4]), **inputs).loss
    loss.backward()
    return loss.detach(), gradients(model)


@varied
def test_eager_equals_sdpa_with_gradients(options):
    model = tiny_model(**options)
    assert model.config._attn_implementation == "sdpa"
    fused = model(pictures()).logits, *loss_and_gradients(model)
    model.set_attn_implementation("eager")
    torch.testing.assert_close((model(pictures()).logits, *loss_and_gradients(model)), fused, **CLOSE)


@varied
def test_a_picture_s_result_does_not_depend_on_its_batch(options):
    model, images = tiny_model(**options), pictures(4)
    together = model(images).logits
    torch.testing.assert_close(torch.cat([model(image[None]).logits for image in images]), together, **CLOSE)
    torch.testing.assert_close(model(images[[2, 0, 3, 1]]).logits, together[[2, 0, 3, 1]], **CLOSE)
    padded = torch.cat([images, torch.full_like(images, float("nan"))])
    torch.testing.assert_close(model(padded).logits[:4], together, **CLOSE)


@varied
def test_training_mode_without_rates_is_evaluation(options):
    model = tiny_model(**options)
    expected = model(pictures()).logits
    assert torch.equal(model.train()(pictures()).logits, expected)


@varied
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(options, reentrant):
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "drop_path_rate": 0.3}
    model = tiny_model(**options, **rates).train()
    torch.manual_seed(3)
    expected = loss_and_gradients(model)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    assert model.vit.layers[0].gradient_checkpointing
    torch.manual_seed(3)
    torch.testing.assert_close(loss_and_gradients(model), expected, atol=0, rtol=0)


def test_gradient_checkpointing_with_frozen_embeddings():
    model = tiny_model().train()
    for parameter in [*model.vit.embeddings.parameters(), *model.vit.layers[0].parameters()]:
        parameter.requires_grad = False
    _, expected = loss_and_gradients(model)
    model.activation_checkpointing_enable()
    _, found = loss_and_gradients(model)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    assert all((found[name] is not None) == p.requires_grad for name, p in model.named_parameters())


@varied
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loads_run_and_stay_close(options, dtype, tmp_path):
    model = tiny_model(**options)
    model.save_pretrained(tmp_path)
    half = ViTCustomForImageClassification.from_pretrained(tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    logits, expected = half(pictures()).logits, model(pictures()).logits
    assert logits.dtype == dtype
    assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()


@varied
@pytest.mark.parametrize("size", [(16, 24), (24, 24), (8, 40), (4, 8), (64, 16)])
def test_any_whole_number_of_patches_runs(options, size):
    model = tiny_model(**options)
    outputs = model.vit(pictures(size=size))
    tokens = model.config.num_prefix_tokens + (size[0] // 4) * (size[1] // 8)
    assert outputs.last_hidden_state.shape == (2, tokens, 48)
    assert outputs.last_hidden_state.isfinite().all()


@pytest.mark.parametrize("position", POSITIONS)
def test_a_position_is_seen(position):
    """Swapping two patches changes the mean of the tokens, unless there is no position."""
    model = tiny_model(ViTCustomModel, position_embedding=position, pooling="mean")
    images = pictures()
    swapped = images.clone()
    swapped[:, :, :4, :8], swapped[:, :, 8:12, 16:24] = images[:, :, 8:12, 16:24], images[:, :, :4, :8]
    same = torch.allclose(model(images).pooler_output, model(swapped).pooler_output, atol=1e-4)
    assert same == (position == "none")


def positions_added(**options) -> tuple[torch.Tensor, ViTCustomModel]:
    """What a model adds to its patches, (h, w, D)."""
    model = tiny_model(ViTCustomModel, **options)
    patches = model.embeddings.patch_embeddings(pictures())
    return (model.embeddings.position.add(patches) - patches)[0], model


def test_learned_2d_is_a_column_s_vector_beside_a_row_s():
    added, model = positions_added(position_embedding="learned_2d")
    position = model.embeddings.position
    for y in range(4):
        for x in range(3):
            expected = torch.cat([position.columns[0, 0, x], position.rows[0, y, 0]])
            torch.testing.assert_close(added[y, x], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("frequencies", ["mae", "big_vision"])
def test_the_model_adds_the_fixed_table_it_was_told(frequencies):
    added, _ = positions_added(position_embedding="sincos_2d", sincos_frequencies=frequencies)
    table = sincos_2d((4, 3), 48, frequencies, torch.float32, torch.device("cpu"))[0]
    torch.testing.assert_close(added, table, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "rate", ["hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate", "patch_drop_rate"]
)
def test_every_rate_acts_in_training_alone(rate):
    model, plain = tiny_model(**{rate: 0.5}), tiny_model()
    assert torch.equal(model(pictures()).logits, plain(pictures()).logits)
    model.train()
    assert not torch.equal(model(pictures(8)).logits, model(pictures(8)).logits)


@pytest.mark.parametrize("ffn", FFNS, ids=label)
def test_dropout_stands_after_the_embeddings_in_the_ffn_and_at_the_end_of_both_branches(ffn):
    """The four places of vit_jax, models_vit.py."""
    model = tiny_model(ViTCustomModel, hidden_dropout_prob=0.5, **ffn).train()
    layer, x = model.layers[0], torch.randn(2, 13, 48)
    places = [lambda: model.embeddings(pictures())[0], lambda: layer.ffn(x)]
    places += [lambda: layer.branch1(x), lambda: layer.branch2(x)]
    for place in places:
        assert not torch.equal(place(), place())
    for branch in (layer.branch1, layer.branch2, lambda x: model.embeddings(pictures())[0]):
        assert 0.4 < (branch(x) == 0).float().mean() < 0.6


@varied
def test_hidden_states_are_those_before_the_last_norm(options):
    model = tiny_model(ViTCustomModel, **options)
    outputs = model(pictures(), output_hidden_states=True)
    assert len(outputs.hidden_states) == model.config.num_hidden_layers + 1
    x = outputs.hidden_states[0]
    rotary, bias = model.embeddings(pictures())[1:]
    for layer, state in zip(model.layers, outputs.hidden_states[1:], strict=True):
        x, _ = layer(x, rotary, bias)
        torch.testing.assert_close(x, state)
    torch.testing.assert_close(model.norm(outputs.hidden_states[-1]), outputs.last_hidden_state)


@varied
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attentions_are_real_under_every_implementation(options, implementation):
    model = tiny_model(**options)
    model.set_attn_implementation(implementation)
    outputs = model(pictures(), output_attentions=True)
    tokens = model.config.num_prefix_tokens + 12
    assert [weights.shape for weights in outputs.attentions] == [(2, 4, tokens, tokens)] * 3
    for weights in outputs.attentions:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 4, tokens))
        assert weights.std() > 1e-3
    torch.testing.assert_close(outputs.logits, model(pictures()).logits, **CLOSE)
    assert model(pictures()).attentions is None


def test_nobody_keeps_weights_that_nobody_asked_for():
    model = tiny_model(ViTCustomModel)
    model.set_attn_implementation("eager")
    alive = []

    def watch(module, inputs, output):
        alive.append(weakref.ref(output[1]))

    for layer in model.layers:
        layer.attention.register_forward_hook(watch)
    model.norm.register_forward_hook(lambda *_: alive.append([reference() for reference in alive]))
    with torch.no_grad():
        model(pictures())
    assert len(alive) == 4 and sum(weights is not None for weights in alive[-1]) <= 1


def test_attentions_and_states_can_be_asked_for_in_the_configuration():
    model = tiny_model()
    model.config.output_hidden_states = True
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    outputs = model(pictures())
    assert len(outputs.hidden_states) == 4 and len(outputs.attentions) == 3
    assert model(pictures(), output_hidden_states=False).hidden_states is None


def test_a_bias_is_never_dropped_by_an_implementation_that_ignores_it():
    model = tiny_model(position_embedding="relative")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"relative.*flash_attention_2.*'sdpa'"):
        model(pictures())


@pytest.mark.parametrize("model_class", [
    ViTCustomModel, ViTCustomForImageClassification, ViTCustomForMaskedImageModeling, ViTCustomBackbone,
])  # fmt: skip
def test_tuples_hold_what_the_outputs_hold(model_class):
    model = tiny_model(model_class)
    options = {"output_hidden_states": True, "output_attentions": True}
    named, plain = model(pictures(), **options), model(pictures(), **options, return_dict=False)
    assert isinstance(plain, tuple)
    torch.testing.assert_close(plain, named.to_tuple(), atol=0, rtol=0)
    model.config.return_dict = False
    assert isinstance(model(pictures()), tuple)


@varied
def test_gradients_reach_every_parameter_of_every_head(options):
    classifier = tiny_model(**options)
    loss_and_gradients(classifier)
    base = tiny_model(ViTCustomModel, **options)
    base(pictures()).pooler_output.square().sum().backward()
    masked = tiny_model(ViTCustomForMaskedImageModeling, **options)
    masked(pictures(), bool_masked_pos=torch.rand(2, 12) < 0.5).loss.backward()
    backbone = tiny_model(ViTCustomBackbone, apply_layernorm=options.get("final_norm") != "pooled", **options)
    backbone(pictures()).feature_maps[-1].square().sum().backward()
    for model in (classifier, base, masked, backbone):
        without = {name for name, gradient in gradients(model).items() if gradient is None or not gradient.any()}
        # A constant added to all keys moves no softmax: its gradient is zero by mathematics, not for want of use.
        assert not {name for name in without if not name.endswith("k_proj.bias")}


def test_copies_are_independent():
    model = tiny_model()
    twin = copy.deepcopy(model)
    expected = twin(pictures()).logits
    with torch.no_grad():
        model.classifier.weight.add_(1)
    assert torch.equal(twin(pictures()).logits, expected)


def test_channels_last_memory():
    model = tiny_model()
    images = pictures().to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images).logits, model(pictures()).logits, **CLOSE)


@pytest.mark.parametrize("channels", [1, 4, 12])
def test_any_number_of_channels(channels):
    model = tiny_model(ViTCustomForMaskedImageModeling, num_channels=channels)
    assert model(pictures(channels=channels)).reconstruction.shape == (2, channels, 16, 24)


@pytest.mark.parametrize("images, named", [
    (pictures(channels=1), ["num_channels=3", "(2, 1, 16, 24)"]),
    (pictures().permute(0, 2, 3, 1), ["channels", "(2, 16, 24, 3)"]),
    (pictures()[0], ["(3, 16, 24)"]),
    (torch.tensor(1.0), ["()"]),
    (pictures(size=(18, 24)), ["18 x 24", "4 x 8"]),
    (pictures(size=(16, 20)), ["16 x 20", "4 x 8"]),
    (pictures(size=(0, 24)), ["0 x 24"]),
    (pictures(0), ["empty batch", "(0, 3, 16, 24)"]),
])  # fmt: skip
def test_pictures_that_do_not_fit_are_an_error_that_names_their_size(images, named):
    with pytest.raises(ValueError) as caught:
        tiny_model()(images)
    assert all(part in str(caught.value) for part in named)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="head_mask"):
        tiny_model()(pictures(), head_mask=torch.zeros(3, 4))


def test_stochastic_depth_is_linear_and_only_in_training():
    model = tiny_model(num_hidden_layers=5, drop_path_rate=0.2)
    rates = [layer.branch1.drop_path.rate if len(layer.branch1) else 0 for layer in model.vit.layers]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert torch.equal(model(pictures()).logits, model(pictures()).logits)
    model.train()
    assert not torch.equal(model(pictures(16)).logits, model(pictures(16)).logits)


def test_stochastic_depth_keeps_the_mean():
    dropped = DropPath(0.3).train()(torch.ones(20_000, 2, 3))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    assert (dropped.std(dim=(1, 2)) == 0).all()


@varied
def test_patch_dropout_keeps_prefix_tokens_and_a_share_of_the_patches(options):
    model = tiny_model(ViTCustomModel, patch_drop_rate=0.5, **options)
    prefix = model.config.num_prefix_tokens
    assert model(pictures()).last_hidden_state.shape[1] == prefix + 12
    model.train()
    kept = model(pictures(), output_hidden_states=True).hidden_states[0]
    assert kept.shape[1] == prefix + 6
    everything = model.embedding_norm(model.embeddings(pictures())[0])
    for tokens, all_tokens in zip(kept, everything, strict=True):
        rows = [int((all_tokens - token).abs().sum(dim=1).argmin()) for token in tokens]
        assert rows[:prefix] == list(range(prefix)) and rows == sorted(set(rows))


@pytest.mark.parametrize("position", POSITIONS)
def test_patch_dropout_keeps_each_patch_s_own_position(position):
    """Attention of the tokens kept equals that of the whole sequence with the others masked out."""
    model = tiny_model(ViTCustomModel, patch_drop_rate=0.5, position_embedding=position, num_hidden_layers=1)
    x, rotary, bias = model.embeddings(pictures())
    model.patch_dropout.train()
    torch.manual_seed(5)
    kept_x, kept_rotary, kept_bias = model.patch_dropout(x, rotary, bias)
    torch.manual_seed(5)
    index = model.patch_dropout.sample(x)
    found, _ = model.layers[0](kept_x, kept_rotary, kept_bias)
    mask = torch.full((2, 1, 1, 13), float("-inf"))
    mask[torch.arange(2)[:, None], 0, 0, index] = 0
    model.set_attn_implementation("eager")
    whole, _ = model.layers[0](x, rotary, mask if bias is None else bias + mask)
    expected = whole.gather(1, index[..., None].expand(-1, -1, 48))
    torch.testing.assert_close(found, expected, **CLOSE)
