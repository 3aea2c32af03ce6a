"""
The engine: tables of names, read from left to right on the way in and from right to left on the way out.

A table maps our modules to theirs. `{i}` stands for the number of a block; `{q,k,v}` on our side for several modules that
they keep as one; `Leaves` says what their name ends with for the leaves of a module (`weight`, `bias`). An `Op` is reversible:
values pass through it both ways bit for bit.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conversion.errors import ConversionError


Tensors = list[Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """A reversible step: `to_ours` of their tensors, `to_theirs` of ours."""

    to_ours: Callable[[Tensors], Tensors]
    to_theirs: Callable[[Tensors], Tensors]

    def then(self, other: "Op") -> "Op":
        """This step on their side of `other`."""
        return Op(lambda x: other.to_ours(self.to_ours(x)), lambda x: self.to_theirs(other.to_theirs(x)))


def each(to_ours: Callable[[Tensor], Tensor], to_theirs: Callable[[Tensor], Tensor]) -> Op:
    """An op on tensors one by one."""
    return Op(lambda x: [to_ours(t) for t in x], lambda x: [to_theirs(t) for t in x])


SAME = Op(list, list)


def permute(*dims: int) -> Op:
    """Our axis k is their axis `dims[k]`."""
    back = [dims.index(axis) for axis in range(len(dims))]
    return each(lambda t: t.permute(*dims), lambda t: t.permute(*back))


TRANSPOSE = permute(1, 0)


def reshape(theirs: Shape, ours: Shape) -> Op:
    """The same numbers in the same order."""
    return each(lambda t: exactly(t, theirs).reshape(ours), lambda t: exactly(t, ours).reshape(theirs))


def exactly(tensor: Tensor, shape: Shape) -> Tensor:
    """`tensor`, which has `shape`."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"expected the shape {tuple(shape)}, got {tuple(tensor.shape)}")
    return tensor


def split(count: int, absent: tuple[int, ...] = ()) -> Op:
    """
    One of theirs is `count` of ours, along the first axis. Of those that are `absent` here, theirs must be zero.

    The zeros are the key bias of DINOv3, BEiT and others, which has no effect on attention.
    """

    def to_ours(tensors: Tensors) -> Tensors:
        (fused,) = tensors
        if fused.shape[0] % count:
            raise ValueError(f"{fused.shape[0]} rows are not {count} equal parts")
        parts = fused.chunk(count)
        for index in absent:
            if not parts[index].is_meta and parts[index].any():
                raise ValueError(f"part {index + 1} of {count} must be zero, since the model has no such bias")
        return [part.clone() for index, part in enumerate(parts) if index not in absent]

    def to_theirs(tensors: Tensors) -> Tensors:
        rest = iter(tensors)
        return [torch.cat([torch.zeros_like(tensors[0]) if i in absent else next(rest) for i in range(count)])]

    return Op(to_ours, to_theirs)


def stacked(op: Op, depth: int) -> Op:
    """Theirs have one more axis in front, of `depth` blocks; ours are the first block's tensors, the second's, ..."""

    def to_ours(tensors: Tensors) -> Tensors:
        for tensor in tensors:
            if tensor.shape[0] != depth:
                raise ValueError(f"expected {depth} blocks on the first axis, got the shape {tuple(tensor.shape)}")
        return [out for block in zip(*tensors, strict=True) for out in op.to_ours(list(block))]

    def to_theirs(tensors: Tensors) -> Tensors:
        width = len(tensors) // depth
        blocks = [op.to_theirs(tensors[index : index + width]) for index in range(0, len(tensors), width)]
        return [torch.stack(parts) for parts in zip(*blocks, strict=True)]

    return Op(to_ours, to_theirs)


def positions(prefix: int, grid: tuple[int, int], width: int, axes: int = 3) -> Op:
    """
    A flat table of `prefix` rows and then a row-major grid, ([1,] P + h * w, D), as rows (1, P, D) and grid (1, h, w, D).

    `axes` is how many their table has.
    """
    h, w = grid
    flat = (prefix + h * w, width) if axes == 2 else (1, prefix + h * w, width)

    def to_ours(tensors: Tensors) -> Tensors:
        rows = exactly(tensors[0], flat).reshape(-1, width)
        table = rows[prefix:].clone().reshape(1, h, w, width)
        return [rows[:prefix].clone()[None], table] if prefix else [table]

    def to_theirs(tensors: Tensors) -> Tensors:
        return [torch.cat([t.reshape(-1, width) for t in tensors]).reshape(flat)]

    return Op(to_ours, to_theirs)


# ---------------------------------------------------------------------------------------------------------------------
# Tables

Leaves = Mapping[str, tuple[str, Op]]
"""Our leaf of a module: what their name ends with, and the op between the two."""

TORCH: Leaves = {"weight": (".weight", SAME), "bias": (".bias", SAME)}
IN_PROJ: Leaves = {"weight": ("_weight", SAME), "bias": ("_bias", SAME)}


def parameter(op: Op) -> Leaves:
    """A parameter that stands alone, changed by `op`."""
    return {"": ("", op)}


PARAMETER = parameter(SAME)


@dataclass(frozen=True)
class Their:
    """What is on their side of a line of a table. Where it is one for several of ours, `SAME` means that it is split."""

    name: str
    leaves: Leaves = field(default_factory=lambda: TORCH)


Table = Mapping[str, str | Their]


@dataclass(frozen=True)
class Row:
    """Their tensor and ours, and the way between them."""

    theirs: str
    ours: tuple[str, ...]
    op: Op = SAME


def expand(template: str) -> list[str]:
    """`a.{q,k}.b` as `a.q.b`, `a.k.b`; a template without such braces as itself."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", template)
    if not found:
        return [template]
    return [template[: found.start()] + part + template[found.end() :] for part in found[1].split(",")]


def rows_of(table: Table, parameters: Iterable[str], depth: int) -> list[Row]:
    """The lines of `table` that fill some of `parameters`, block by block; a line that fills none is left out."""
    known, rows = set(parameters), []
    for ours, their in table.items():
        their = Their(their) if isinstance(their, str) else their
        for leaf, (their_leaf, op) in their.leaves.items():
            rows += rows_of_line(f"{ours}.{leaf}" if leaf else ours, their.name + their_leaf, op, known, depth)
    return rows


def rows_of_line(ours: str, theirs: str, op: Op, known: set[str], depth: int) -> list[Row]:
    """A row for each block, or one for all where theirs are stacked."""
    rows = []
    for index in range(depth) if "{i}" in ours else [0]:
        wanted = expand(ours.replace("{i}", str(index)))
        absent = tuple(place for place, name in enumerate(wanted) if name not in known)
        if len(absent) < len(wanted):
            joined = split(len(wanted), absent) if op is SAME and len(wanted) > 1 else op
            live = tuple(name for name in wanted if name in known)
            rows.append(Row(theirs.replace("{i}", str(index)), live, joined))
    if rows and "{i}" in ours and "{i}" not in theirs:
        return [Row(theirs, tuple(name for row in rows for name in row.ours), stacked(rows[0].op, len(rows)))]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Strict accounting


def account(rows: list[Row], theirs: Mapping[str, Shape], ours: Mapping[str, Shape], what: str) -> None:
    """
    Every tensor of theirs is used once and every parameter of ours filled once, in the right shape; nothing is read.

    Raises:
        `ConversionError`: listing what is missing, left over, given twice or of a wrong shape.
    """
    faults = []
    wanted, filled = [row.theirs for row in rows], [name for row in rows for name in row.ours]
    faults += listed("missing in the file", [name for name in wanted if name not in theirs])
    faults += listed("in the file, but unknown to this family", [name for name in theirs if name not in set(wanted)])
    faults += listed("parameters that nothing fills", [name for name in ours if name not in set(filled)])
    for names in (wanted, filled):
        faults += listed("used twice", sorted(name for name, count in Counter(names).items() if count > 1))
    if faults:
        raise ConversionError(f"{what}: {'; '.join(faults)}")
    for row in rows:
        try:
            made = row.op.to_ours([torch.empty(theirs[row.theirs], device="meta")])
            for name, tensor in zip(row.ours, made, strict=True):
                exactly(tensor, ours[name])
        except (ValueError, RuntimeError, IndexError) as error:
            raise ConversionError(
                f"{what}: {row.theirs} has the shape {tuple(theirs[row.theirs])}, which does not fit {', '.join(row.ours[:4])} "
                f"of {' and '.join(str(tuple(ours[name])) for name in row.ours[:4])}: {error}"
            ) from error


def listed(what: str, names: list[str], at_most: int = 8) -> list[str]:
    """A fault and the names it is about, the first few of them; no fault without names."""
    if not names:
        return []
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return [f"{what}: {', '.join(names[:at_most])}{more}"]


def to_ours(rows: list[Row], read: Callable[[str], Tensor]) -> Iterable[tuple[str, Tensor]]:
    """Our parameters by name, each made when asked for, in memory of its own."""
    for row in rows:
        theirs = read(row.theirs)
        try:
            made = row.op.to_ours([theirs])
        except ValueError as error:
            raise ConversionError(f"{row.theirs}: {error}") from error
        for name, tensor in zip(row.ours, made, strict=True):
            yield name, tensor.contiguous()


def to_theirs(rows: list[Row], read: Callable[[str], Tensor]) -> Iterable[tuple[str, Tensor]]:
    """Their tensors by name, each made when asked for."""
    for row in rows:
        (made,) = row.op.to_theirs([read(name) for name in row.ours])
        yield row.theirs, made.contiguous()
