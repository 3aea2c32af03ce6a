"""
The folder of a run: resolved recipe, log, checkpoints, figures and, at the end, the model as a Hub repository holds it.

    recipe.json  metrics.jsonl  checkpoints/step-00000100/  curves.png  predictions.png  examples/  final/
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from scripts.common.errors import UserError
from scripts.common.recipe import Recipe, differences, read_recipe, write_recipe


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """Gives a path beside `target` to write a file or folder to, and renames it to `target` if nothing goes wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as room:
        written = Path(room) / target.name
        yield written
        if written.is_dir() and target.exists():
            target.rename(Path(room) / "old")
        written.replace(target)


def read_log(folder: Path) -> list[dict]:
    """The lines of the `metrics.jsonl` of a run; a last one that was cut short by a kill doesn't count."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UserError(f"{path}: line {number} is no JSON") from error
    return entries


class RunFolder:
    """
    Opens the folder of a recipe, or makes it.

    Raises:
        `UserError`: if the folder holds something and `resume` isn't asked for, or holds the run of another recipe.
    """

    def __init__(self, recipe: Recipe, resume: bool = False):
        self.path = Path(recipe.run.folder).expanduser()
        if self.path.is_file():
            raise UserError(f"{self.path} is a file; set run.folder to a folder")
        if self.path.exists() and any(self.path.iterdir()):
            self._check(recipe, resume)

    def _check(self, recipe: Recipe, resume: bool) -> None:
        if not resume:
            raise UserError(
                f"{self.path} exists already: --resume continues that run, --set run.folder=... starts another"
            )
        if not (self.path / "recipe.json").exists():
            raise UserError(f"{self.path} holds no run (no recipe.json): set run.folder to another folder")
        changed = differences(read_recipe(self.path / "recipe.json"), recipe)
        if changed:
            raise UserError(
                f"--resume needs the recipe of {self.path}, but these differ: {'; '.join(changed)}; --set run.folder=... starts "
                "another run"
            )

    def create(self, recipe: Recipe, step: int) -> None:
        """
        Makes the folder or, where a run goes on at `step`, drops what it will write again and what a kill left behind.

        Raises:
            `UserError`: if it can't be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_recipe(recipe, self.path / "recipe.json")
        except OSError as error:
            raise UserError(f"run.folder={self.path} cannot be made: {error.strerror}") from error
        for leftover in [*self.path.glob("tmp-*"), *self.path.glob("checkpoints/tmp-*")]:
            shutil.rmtree(leftover)
        kept = [entry for entry in read_log(self.path) if entry["step"] <= step and entry["split"] != "test"]
        with atomic(self.path / "metrics.jsonl") as path:
            path.write_text("".join(json.dumps(entry) + "\n" for entry in kept))

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.png"

    @property
    def finished(self) -> bool:
        """Whether everything is there: the sheet of predictions is written last."""
        return self.predictions.exists()

    def log(self, **values) -> None:
        """Adds a line to `metrics.jsonl`."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(values) + "\n")

    def checkpoints(self) -> list[Path]:
        """The whole checkpoints, oldest first; what a run that was killed left half-written isn't one."""
        return sorted((self.path / "checkpoints").glob("step-*"))

    def last_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """A folder to write the checkpoint of `step` to, kept whole or not at all; then all but the last `keep` are deleted."""
        with atomic(self.path / "checkpoints" / f"step-{step:08d}") as folder:
            folder.mkdir()
            yield folder
        for old in self.checkpoints()[:-keep]:
            with tempfile.TemporaryDirectory(dir=self.path / "checkpoints", prefix="tmp-") as trash:
                old.rename(Path(trash) / old.name)  # gone at once, then deleted

    def save_examples(self, examples: list[tuple[Image.Image, str]]) -> None:
        """Writes pictures as files that name their class."""
        folder = self.path / "examples"
        folder.mkdir(exist_ok=True)
        for index, (picture, label) in enumerate(examples):
            name = re.sub(r"[^\w.-]+", "_", label)
            picture.save(folder / f"{index:02}-{name}.png")
