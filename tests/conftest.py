"""No network and repeatable numbers, for every test and every process that a test starts."""

import os


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
import transformers


torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
