"""What a run says while it goes on."""

import sys

from accelerate import Accelerator
from torch import nn
from tqdm import tqdm

from scripts.common.data import Splits
from scripts.common.run_folder import RunFolder


def describe(splits: Splits, model: nn.Module, accelerator: Accelerator, step: int, total_steps: int) -> None:
    """Prints the sizes of data, model and run."""
    counts = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    pictures = ", ".join(f"{len(rows)} {name}" for name, rows in counts.items() if rows is not None)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{pictures} pictures of {len(splits.names)} classes")
    processes = "" if accelerator.num_processes == 1 else f" x {accelerator.num_processes} processes"
    print(
        f"{parameters:,} parameters on {accelerator.device.type}{processes}, steps {step} to {total_steps}", flush=True
    )


class Reporter:
    """Progress bar, log and terminal: `advance()` each step, `report(split, step, epoch, **values)`. Main process only."""

    def __init__(self, run: RunFolder, accelerator: Accelerator, step: int, total_steps: int):
        self.run, self.is_main = run, accelerator.is_main_process
        self.bar = tqdm(
            total=total_steps, initial=step, unit="step", disable=not (self.is_main and sys.stderr.isatty())
        )

    def __call__(self, split: str, step: int, epoch: float, **values: float) -> None:
        if not self.is_main:
            return
        self.run.log(split=split, step=step, epoch=round(epoch, 4), **values)
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if split == "train" and not self.bar.disable:
            self.bar.set_postfix_str(text)
        else:
            self.bar.write(f"step {step:6}  epoch {epoch:6.2f}  {split:10}  {text}")
            sys.stdout.flush()

    def advance(self) -> None:
        self.bar.update()

    def close(self) -> None:
        self.bar.close()
