"""A plain `transformers.Trainer`, set up as its documentation shows, with nothing of ours but model and processor."""

import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as PILImage
from transformers import Trainer, TrainingArguments, pipeline

from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomImageProcessor
from tests.tiny import pictures, tiny_config, tiny_model


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """24 pictures of five classes, told apart by their brightness."""
    random = np.random.default_rng(0)
    labels = [index % 5 for index in range(24)]
    images = [PILImage.fromarray(random.integers(50 * n, 50 * n + 40, (20, 30, 3), dtype=np.uint8)) for n in labels]
    features = Features({"image": Image(), "label": ClassLabel(names=list("abcde"))})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def build_trainer(folder, dataset, **options) -> Trainer:
    names = dataset.features["label"].names
    config = tiny_config(id2label=dict(enumerate(names)), hidden_dropout_prob=0.1, drop_path_rate=0.1)
    processor = ViTCustomImageProcessor.for_model(config)

    def transform(batch):
        return {**processor(batch["image"], return_tensors="pt"), "labels": batch["label"]}

    arguments = TrainingArguments(
        output_dir=str(folder), remove_unused_columns=False, per_device_train_batch_size=4, learning_rate=1e-2,
        max_steps=6, eval_strategy="steps", eval_steps=2, save_steps=2, logging_steps=1, use_cpu=True, report_to="none",
        seed=0, disable_tqdm=True, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    data = dataset.with_transform(transform)
    return Trainer(
        model=ViTCustomForImageClassification(config), args=arguments, train_dataset=data, eval_dataset=data,
        processing_class=processor,
    )  # fmt: skip


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def assert_equal(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), atol=0, rtol=0)


def test_trains_resumes_and_reloads_bit_for_bit(dataset, tmp_path):
    whole = build_trainer(tmp_path / "whole", dataset)
    whole.train()
    assert len(losses(whole)) == 6 and losses(whole)[-1] < losses(whole)[0]
    assert "eval_loss" in whole.evaluate()

    resumed = build_trainer(tmp_path / "resumed", dataset)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_equal(resumed.model, whole.model)

    # At the last step there is nothing left to train: what was loaded is what was saved.
    finished = build_trainer(tmp_path / "finished", dataset)
    finished.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert_equal(finished.model, whole.model)
    checkpoint = tmp_path / "whole" / "checkpoint-6"
    assert_equal(ViTCustomForImageClassification.from_pretrained(checkpoint), whole.model)

    result = pipeline("image-classification", model=str(checkpoint))(dataset[0]["image"])
    assert {entry["label"] for entry in result} == set("abcde")


def test_the_best_model_is_restored_bit_for_bit(dataset, tmp_path):
    trainer = build_trainer(
        tmp_path, dataset, load_best_model_at_end=True, metric_for_best_model="eval_loss", lr_scheduler_type="constant"
    )
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None
    assert_equal(trainer.model, ViTCustomForImageClassification.from_pretrained(best))


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_accumulated_gradients_are_those_of_the_whole_batch(problem, tmp_path):
    """Four parts of two pictures against one of eight: the same step."""
    random = torch.Generator().manual_seed(0)
    labels = {
        "single_label_classification": torch.randint(5, (8,), generator=random),
        "multi_label_classification": torch.randint(2, (8, 5), generator=random),
        "regression": torch.randn(8, 5, generator=random),
    }[problem]
    data = [{"pixel_values": x, "labels": y} for x, y in zip(pictures(8), labels, strict=True)]
    models, found = [], []
    for parts in (1, 4):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8 // parts, optim="sgd", use_cpu=True,
            gradient_accumulation_steps=parts, max_grad_norm=0, learning_rate=1.0, report_to="none", logging_steps=1,
            save_strategy="no", disable_tqdm=True, lr_scheduler_type="constant",
        )  # fmt: skip
        model = tiny_model(problem_type=problem)
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
        models.append(model.state_dict())
        found.append(losses(trainer)[0])
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    torch.testing.assert_close(*models, atol=1e-4, rtol=1e-4)


def test_predictions_are_the_logits_alone(dataset, tmp_path):
    trainer = build_trainer(tmp_path, dataset)
    trainer.model.config.output_hidden_states = True
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (24, 5)


def test_checkpoints_hold_all_that_a_pipeline_needs(dataset, tmp_path):
    build_trainer(tmp_path, dataset).train()
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "config.json", "preprocessor_config.json", "modeling_vit_custom.py"} <= names
    assert json.loads((tmp_path / "checkpoint-2" / "config.json").read_text())["id2label"]["4"] == "e"
