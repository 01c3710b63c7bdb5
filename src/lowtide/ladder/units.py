"""The units of offloading, each fetched, computed and updated as a whole: a block, or a table.

In:      a network's outline
Out:     units with the offset of every matrix in them; the small parameters (gains and biases)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from lowtide.ladder.packing import BLOCK
from lowtide.quickclasses import dataclass
from lowtide.training.offloading import CHUNK

__all__ = ["Matrix", "Unit", "small_shapes", "unit_name", "units_of"]


@dataclass(frozen=True)
class Matrix:
    """A parameter's range in its unit, padded to whole blocks of 128 numbers."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def where(self) -> slice:
        """The range of its numbers in the unit."""
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Unit:
    """Matrices that are stored and moved together."""

    name: str
    matrices: tuple[Matrix, ...]
    size: int
    """Numbers, with padding."""
    position: int
    """Index of the first number among those of all units."""
    layer: int | None
    """The block it is; None for tables."""

    def chunks(self) -> Iterator[slice]:
        """The numbers whose states lie together."""
        for start in range(0, self.size, CHUNK):
            yield slice(start, min(start + CHUNK, self.size))


def units_of(outline: nn.Module) -> list[Unit]:
    """The tables first, then the blocks in their order."""
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, parameter in outline.named_parameters():
        if parameter.ndim >= 2:
            groups.setdefault(unit_name(name), []).append((name, tuple(parameter.shape)))
    units: list[Unit] = []
    position = 0
    for name in sorted(
        groups, key=lambda name: (_layer(name) is not None, _layer(name) or 0, name)
    ):
        matrices: list[Matrix] = []
        start = 0
        for full, shape in groups[name]:
            matrices.append(Matrix(full, shape, start))
            start += -(-math.prod(shape) // BLOCK) * BLOCK
        units.append(Unit(name, tuple(matrices), start, position, _layer(name)))
        position += start
    return units


def small_shapes(outline: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what stays in float32 on the device: gains and biases."""
    return {n: tuple(p.shape) for n, p in outline.named_parameters() if p.ndim < 2}


def unit_name(name: str) -> str:
    """The block, table or norm that a parameter is part of."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]


def _layer(unit: str) -> int | None:
    first, _, number = unit.partition(".")
    return int(number) if first == "blocks" else None
