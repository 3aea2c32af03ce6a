"""What a reader gives: names, shapes and types at once, the numbers when asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from conversion.errors import ConversionError
from conversion.mapping import Shape


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LONGEST = 2**31  # side of a tensor


class Weights:
    """
    The tensors of one state dict: `shapes` and `dtypes` at once, the numbers by `read`.

    A type that is no weight's, of which `read` gives nothing, is a text.

    Raises:
        `ConversionError`: for sides that no tensor has.
    """

    def __init__(self, path: Path, entries: Mapping[str, tuple[Shape, torch.dtype | str, Callable[[], Tensor]]]):
        self.path = path
        self.shapes = {name: tuple(shape) for name, (shape, _, _) in entries.items()}
        self.dtypes = {name: dtype for name, (_, dtype, _) in entries.items()}
        self._readers = {name: reader for name, (_, _, reader) in entries.items()}
        self._looked_at: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if not all(0 <= side < LONGEST for side in shape):
                raise ConversionError(f"{path}: {name} has the impossible shape {shape}")

    def read(self, name: str) -> Tensor:
        """
        The tensor; of a file that lay in memory it is given away.

        Raises:
            `ConversionError`: if it is no floating-point tensor or not finite.
        """
        if self.dtypes[name] not in FLOATS:
            raise ConversionError(
                f"{self.path}: {name} is {self.dtypes[name]}; weights must be floating-point numbers"
            )
        tensor = self._looked_at.pop(name) if name in self._looked_at else self._readers[name]()
        if not is_finite(tensor):
            raise ConversionError(f"{self.path}: {name} holds values that are not finite (NaN or infinity)")
        return tensor

    def equals(self, other: "Weights", in_numbers: bool) -> bool:
        """Whether `other` has the same names, shapes and types, and, if asked, the same numbers, which are then given away."""
        if (self.shapes, self.dtypes) != (other.shapes, other.dtypes):
            return False
        return not in_numbers or all(
            torch.equal(self._readers[name](), other._readers[name]()) for name in self.shapes
        )

    def stored(self, name: str) -> Tensor:
        """The tensor as it is, of any type: for a small one that is looked at or only kept."""
        if name not in self._looked_at:
            self._looked_at[name] = self._readers[name]()
        return self._looked_at[name]


def is_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity, in one pass and without memory."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


Containers = dict[str, Weights]
"""State dicts by the place they have in a file: `""` where the file is one, `"model"`, `"teacher"`, ..."""
