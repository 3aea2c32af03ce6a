"""
Trains an image classifier with Accelerate, on one CPU or many GPUs.

    python -m scripts.train --recipe digits
    python -m scripts.train --recipe finetune --set data.train=path/to/folder
    accelerate launch -m scripts.train --recipe finetune --set data.train=path/to/folder

Every random draw of training is a function of seed, step and sample (dropout's of part and process too), so a resumed run equals an uninterrupted
one without the state of any generator being saved.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset
from datasets import disable_progress_bars as disable_datasets_bars
from torch import nn
from torch.utils.data import DataLoader
from transformers import BaseImageProcessor
from transformers.utils.logging import disable_progress_bar as disable_transformers_bars

from scripts.common.augment import Normalise, eval_transform, picture_loader, train_transform
from scripts.common.card import write_card
from scripts.common.data import PictureDataset, SampleStream, Splits, load_splits, mix, threads_per_worker
from scripts.common.errors import UserError, as_user_error, one_line
from scripts.common.metrics import evaluate
from scripts.common.model import build_model, check_fit, load_model
from scripts.common.optim import build_optimizer, set_lr
from scripts.common.recipe import Recipe, field_paths, load_recipe, recipe_names
from scripts.common.report import Reporter, describe
from scripts.common.run_folder import RunFolder, atomic, read_log
from scripts.common.schedule import lr_factor
from scripts.plot import plot_curves, plot_predictions


EXAMPLES = 24


def train(recipe: Recipe, resume: bool = False) -> RunFolder:
    """
    Trains as `recipe` says, evaluates, and leaves the folder that `RunFolder` describes.

    Raises:
        `UserError`: for bad input, before anything is written, and for a loss that is no longer finite.
    """
    # --- Where, on what, and how far an earlier run came --------------------------------------------------------------
    run = RunFolder(recipe, resume)
    if run.finished:
        print(f"{run.path} is finished already.")
        return run
    accelerator = Accelerator(
        mixed_precision=recipe.run.precision, gradient_accumulation_steps=recipe.optim.accumulation_steps
    )
    splits = load_splits(recipe.data, recipe.run.seed)
    step, checkpoint = resume_point(run, splits)

    # --- Model and optimiser ------------------------------------------------------------------------------------------
    torch.manual_seed(recipe.run.seed)
    if checkpoint is None:
        model, processor = build_model(recipe.model, splits.names)
    else:
        model, processor = load_model(str(checkpoint))
    transform, loader = train_transform(recipe.augment, processor), picture_loader(processor)
    check_fit(model, processor, recipe.model.pretrained or "model")
    optimizer = build_optimizer(model, recipe.optim)
    if checkpoint is not None:
        optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", weights_only=True))

    # --- Durations in optimiser steps, the same for any number of processes -------------------------------------------
    batch_size, size = recipe.optim.batch_size, len(splits.train)
    total_steps = math.ceil(recipe.run.epochs * size / batch_size)
    eval_every = max(1, round(recipe.run.eval_epochs * size / batch_size))
    save_every = max(1, round(recipe.run.save_epochs * size / batch_size))

    # --- Loaders ------------------------------------------------------------------------------------------------------
    part = part_size(recipe, accelerator.num_processes)
    stream = SampleStream(size, recipe.run.seed, step * batch_size, total_steps * batch_size)
    threads = threads_per_worker(recipe.data.workers)
    pictures = PictureDataset(splits.train, transform, recipe.run.seed, loader, threads)
    train_loader = DataLoader(pictures, batch_size=part, sampler=stream, num_workers=recipe.data.workers)
    validation_loader = eval_loader(splits.validation, processor, part, recipe.data.workers)
    model, optimizer, train_loader, validation_loader = accelerator.prepare(
        model, optimizer, train_loader, validation_loader
    )
    normalise = Normalise(processor).to(accelerator.device)
    if accelerator.is_main_process:
        run.create(recipe, step)
        describe(splits, model, accelerator, step, total_steps)

    # --- The loop -----------------------------------------------------------------------------------------------------
    report = Reporter(run, accelerator, step, total_steps)
    parts = iter(train_loader)
    model.train()
    epoch, loss_sum, seconds, steps = step * batch_size / size, 0.0, 0.0, 0
    while step < total_steps:
        began = time.perf_counter()
        lr = recipe.optim.lr * lr_factor(step, total_steps, recipe.schedule)
        set_lr(optimizer, lr)
        for part_index in range(recipe.optim.accumulation_steps):
            with accelerator.accumulate(model):
                batch = next(parts)
                seeds = (recipe.run.seed, step, part_index, accelerator.process_index)
                torch.manual_seed(mix(*seeds))  # of dropout and stochastic depth
                loss = model(pixel_values=normalise(batch["pixel_values"]), labels=batch["labels"]).loss
                accelerator.backward(loss)
                loss_sum += finite(loss, "loss", step, run) / recipe.optim.accumulation_steps
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), recipe.optim.clip_norm)
                    grad_norm = finite(norm, "norm of the gradients", step, run)
                optimizer.step()
                optimizer.zero_grad()
        step, steps, seconds = step + 1, steps + 1, seconds + time.perf_counter() - began
        epoch, is_last = step * batch_size / size, step == total_steps
        report.advance()

        if step % recipe.run.log_every == 0 or is_last:
            mean_loss = accelerator.reduce(torch.tensor(loss_sum / steps, device=accelerator.device), "mean").item()
            rate = steps * batch_size / seconds
            report("train", step, epoch, loss=mean_loss, lr=lr, grad_norm=grad_norm, images_per_second=rate)
            loss_sum, seconds, steps = 0.0, 0.0, 0
        if step % eval_every == 0 or is_last:
            report("validation", step, epoch, **evaluate(model, validation_loader, accelerator, normalise))
        if (step % save_every == 0 or is_last) and accelerator.is_main_process:
            with run.new_checkpoint(step, recipe.run.keep) as folder:
                save_model(folder, accelerator.unwrap_model(model), processor)
                torch.save(optimizer.state_dict(), folder / "optimizer.pt")
                (folder / "state.json").write_text(json.dumps(state_of(splits, step)))

    # --- Test, figures, final folder ----------------------------------------------------------------------------------
    if splits.test is not None:
        loader = accelerator.prepare(eval_loader(splits.test, processor, part, recipe.data.workers))
        report("test", step, epoch, **evaluate(model, loader, accelerator, normalise))
    report.close()
    if accelerator.is_main_process:
        finish(recipe, run, accelerator.unwrap_model(model), processor, splits)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return run


def part_size(recipe: Recipe, processes: int) -> int:
    """Pictures that one process works through at a time."""
    parts = processes * recipe.optim.accumulation_steps
    if recipe.optim.batch_size % parts:
        raise UserError(
            f"optim.batch_size={recipe.optim.batch_size} is not divisible by {processes} processes x "
            f"optim.accumulation_steps={recipe.optim.accumulation_steps}"
        )
    return recipe.optim.batch_size // parts


def eval_loader(rows: Dataset, processor: BaseImageProcessor, batch_size: int, workers: int) -> DataLoader:
    """All rows once, in order, for `Normalise` and the model."""
    loader, threads = picture_loader(processor), threads_per_worker(workers)
    pictures = PictureDataset(rows, eval_transform(processor), loader=loader, threads=threads)
    return DataLoader(pictures, batch_size=batch_size, num_workers=workers)


def finite(value: torch.Tensor, what: str, step: int, run: RunFolder) -> float:
    """`value` as a number; a `UserError` if it is none, before the optimiser moves."""
    number = value.item()
    if not math.isfinite(number):
        raise UserError(
            f"the {what} is {number} at step {step}: lower optim.lr or look at the pictures; {run.path} keeps the checkpoints "
            "made before"
        )
    return number


def state_of(splits: Splits, step: int) -> dict:
    """What a checkpoint says of the run beside weights and optimiser: the step, and what tells its data from other data."""
    return {"step": step, "classes": splits.names, "training_pictures": len(splits.train)}


def resume_point(run: RunFolder, splits: Splits) -> tuple[int, Path | None]:
    """The step to go on from and the checkpoint of it, 0 and `None` for a new run; a `UserError` if the data changed."""
    checkpoint = run.last_checkpoint()
    if checkpoint is None:
        return 0, None
    with as_user_error(f"{checkpoint} cannot be read; delete it to go on from the one before"):
        state = json.loads((checkpoint / "state.json").read_text())
    for key, value in state_of(splits, state["step"]).items():
        if state[key] != value:
            raise UserError(
                f"the data changed since {checkpoint}: {key} was {state[key]}, is {value}; restore it, or set run.folder to "
                "start another run"
            )
    return state["step"], checkpoint


def save_model(folder: Path, model: nn.Module, processor: BaseImageProcessor) -> None:
    """Writes a model folder: weights, configuration, code and image processor."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def finish(recipe: Recipe, run: RunFolder, model: nn.Module, processor: BaseImageProcessor, splits: Splits) -> None:
    """The final folder, then figures and example pictures of the test split or, without one, the validation split."""
    log = read_log(run.path)

    with atomic(run.final) as folder:
        save_model(folder, model, processor)
        write_card(folder / "README.md", recipe, model, splits, log)
    kind, rows = ("validation", splits.validation) if splits.test is None else ("test", splits.test)
    pictures = PictureDataset(rows, eval_transform(processor), loader=picture_loader(processor))
    count = min(EXAMPLES, len(rows))
    spread = [index * len(rows) // count for index in range(count)]
    examples = [(pictures.picture(index), splits.names[rows[index]["label"]]) for index in spread]
    run.save_examples(examples)
    plot_curves([run.path], run.path / "curves.png")
    with atomic(run.predictions) as path:
        plot_predictions(model, processor, examples, path)
    result = next(entry for entry in reversed(log) if entry["split"] == kind)
    print(f"{kind} accuracy {result['accuracy']:.2%} on {result['pictures']} pictures")
    print(f"model        {run.final}")
    print(f"log          {run.path / 'metrics.jsonl'}")
    print(f"curves       {run.path / 'curves.png'}")
    print(f"predictions  {run.predictions}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train",
        description="Trains an image classifier as a recipe says.",
        epilog=f"Fields: {', '.join(field_paths(Recipe()))}. See scripts/common/recipe.py for what they mean.",
    )
    parser.add_argument("--recipe", required=True, help=f"one of: {', '.join(recipe_names())}")
    parser.add_argument(
        "--set",
        action="append",
        metavar="PATH=VALUE",
        help="set a field of the recipe, such as optim.lr=1e-3; repeatable",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in run.folder from its last checkpoint, or start it"
    )
    options = parser.parse_args(arguments)
    disable_datasets_bars()
    disable_transformers_bars()
    try:
        train(load_recipe(options.recipe, options.set), options.resume)
    except UserError as error:
        raise SystemExit(f"error: {one_line(error)}") from error
    except KeyboardInterrupt as error:
        print("interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from error


if __name__ == "__main__":
    main()
