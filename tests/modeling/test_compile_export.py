"""torch.compile, torch.export and PEFT."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from modeling_vit_custom import ViTCustomBackbone, ViTCustomForImageClassification, ViTCustomForMaskedImageModeling
from tests.tiny import VARIED, label, pictures, tiny_model


CLOSE = {"atol": 1e-5, "rtol": 1e-4}
varied = pytest.mark.parametrize("options", VARIED, ids=label)


@varied
def test_one_graph_without_breaks(options):
    """The graph that `fullgraph=True` captures, run without code generation."""
    model = tiny_model(**options)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for images in (pictures(), pictures(3), pictures(size=(32, 24))):
        torch.testing.assert_close(compiled(images).logits, model(images).logits, **CLOSE)


def test_compiled_code_trains_like_eager_code():
    """Inductor's own code, forward and backward, with a loss and the hidden states."""
    torch._dynamo.reset()
    model, labels = tiny_model().train(), torch.tensor([1, 4])
    compiled = torch.compile(model, fullgraph=True)
    output, expected = (run(pictures(), labels=labels, output_hidden_states=True) for run in (compiled, model))
    torch.testing.assert_close(output.loss, expected.loss, **CLOSE)
    torch.testing.assert_close(output.hidden_states, expected.hidden_states, **CLOSE)
    found = torch.autograd.grad(output.loss, list(model.parameters()))
    torch.testing.assert_close(found, torch.autograd.grad(expected.loss, list(model.parameters())), **CLOSE)


def test_stochastic_training_compiles():
    torch._dynamo.reset()
    model = tiny_model(drop_path_rate=0.3, hidden_dropout_prob=0.1, patch_drop_rate=0.5).train()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert compiled(pictures(), labels=torch.tensor([1, 4])).loss.isfinite()


@pytest.mark.parametrize("model_class", [ViTCustomForMaskedImageModeling, ViTCustomBackbone])
def test_the_other_heads_compile(model_class):
    torch._dynamo.reset()
    model = tiny_model(model_class)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(pictures()).to_tuple(), model(pictures()).to_tuple(), **CLOSE)


@varied
def test_export_static_and_with_a_dynamic_batch(options):
    model = tiny_model(**options)
    static = torch.export.export(model, (pictures(),), strict=False)
    torch.testing.assert_close(static.module()(pictures()).logits, model(pictures()).logits, **CLOSE)
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = torch.export.export(model, (pictures(),), dynamic_shapes={"pixel_values": {0: batch}}, strict=False)
    for count in (1, 3, 8):
        images = pictures(count)
        torch.testing.assert_close(dynamic.module()(images).logits, model(images).logits, **CLOSE)


def test_a_compiled_model_saves_clean_names(tmp_path):
    model = tiny_model()
    torch.compile(model, backend="eager").save_pretrained(tmp_path)
    loaded = ViTCustomForImageClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)


def test_lora_by_the_names_of_the_projections(tmp_path):
    model = tiny_model()
    expected = model(pictures()).logits
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    )
    torch.testing.assert_close(adapted(pictures()).logits, expected, **CLOSE)
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, adapted.parameters()), lr=1.0)
    for _ in range(2):
        adapted(pictures(), labels=torch.tensor([1, 4])).loss.backward()
        optimizer.step()
    trained = {name.split(".lora")[0] for name, p in adapted.named_parameters() if p.requires_grad and "lora" in name}
    assert len(trained) == 3 * 2
    changed = adapted(pictures()).logits
    assert not torch.allclose(changed, expected, atol=1e-3)
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny_model(), tmp_path)
    torch.testing.assert_close(again(pictures()).logits, changed, **CLOSE)
    torch.testing.assert_close(again.merge_and_unload()(pictures()).logits, changed, atol=1e-4, rtol=1e-4)


def test_lora_with_activation_checkpointing():
    model = tiny_model().train()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    adapted(pictures(), labels=torch.tensor([1, 4])).loss.backward()
    gradients = [p.grad for name, p in adapted.named_parameters() if "lora_B" in name]
    assert len(gradients) == 6 and all(gradient.any() for gradient in gradients)
