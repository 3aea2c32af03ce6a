"""Metrics are exact sums, on an uneven last batch too."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from torch import nn
from torch.utils.data import DataLoader

from scripts.common.metrics import evaluate
from tests.tiny import pictures, tiny_model


@pytest.mark.parametrize("batch_size", [1, 4, 7, 16])
@pytest.mark.parametrize("classes", [2, 5, 9])
def test_they_are_scikit_learn_s_whatever_the_batch(batch_size, classes):
    model, images = tiny_model(num_labels=classes), pictures(7)
    labels = torch.arange(7) % classes
    data = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(data, batch_size=batch_size))
    model.train()
    found = evaluate(model, loader, accelerator, nn.Identity())
    assert model.training

    scores = model.eval()(images).logits.detach().double().softmax(dim=1).numpy()
    assert found["pictures"] == 7
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, scores.argmax(axis=1)))
    assert found["loss"] == pytest.approx(log_loss(labels, scores, labels=np.arange(classes)), rel=1e-5)
    if classes > 5:
        expected = top_k_accuracy_score(labels, scores, k=5, labels=np.arange(classes))
        assert found["top5_accuracy"] == pytest.approx(expected)
    else:
        assert "top5_accuracy" not in found
