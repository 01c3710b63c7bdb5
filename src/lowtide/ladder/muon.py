"""Muon over packed states: update a block's momentum, orthogonalize it, update the weights.

In:      a block on the device, with gradients
Out:     new momentum and weights; nothing if the step is skipped
Memory:  4 bytes a row; during a step the stack of matrices that is orthogonalized and its
         intermediate results (offloading.py)

The memory of a block's gradients also holds the intermediate results: after the pass over the
momentum Nesterov's updates, after orthogonalization the steps, both in bfloat16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from lowtide.ladder.packing import PIECE, MuonNumbers, move_weights, take_momentum
from lowtide.ladder.placement import Moving
from lowtide.ladder.units import Matrix, Unit
from lowtide.model.gpt import GPT
from lowtide.training.muon import even_rows, matrix_splits, orthogonalize
from lowtide.training.offloading import STACK_NUMBERS

__all__ = ["PackedMuon"]


class PackedMuon:
    """Updates the matrices of blocks; the mean squares of their rows stay on the device."""

    def __init__(self, outline: GPT, units: list[Unit], device: torch.device) -> None:
        by_id = matrix_splits(outline)
        self._splits = {
            name: by_id.get(id(parameter), (parameter.shape[0],))
            for name, parameter in outline.named_parameters()
            if parameter.ndim == 2
        }
        self.rows = {
            matrix.name: torch.zeros(matrix.shape[0], 1, device=device)
            for unit in units
            if unit.layer is not None
            for matrix in unit.matrices
        }

    def move(self, moving: Moving, numbers: MuonNumbers) -> None:
        """Update a block by one step."""
        goes = numbers.scalars[1]
        for part, codes, scales in moving.iter_momentum():
            take_momentum(codes, scales, moving.gradients[part], numbers)
        for matrix in moving.unit.matrices:
            self._make_steps(matrix, moving.gradients[matrix.where].view(matrix.shape), goes)
        for part, low_bits in moving.iter_low_bits():
            position = moving.unit.position + part.start
            move_weights(
                moving.weights[part], low_bits, moving.gradients[part], numbers, position=position
            )

    def _make_steps(self, matrix: Matrix, updates: Tensor, goes: Tensor) -> None:
        """Turn a parameter's updates into steps, in place, all of its matrices."""
        rows = self.rows[matrix.name]
        for where, height in self._stacks(matrix):
            stack = updates[where].view(-1, height, matrix.shape[1])
            steps = orthogonalize(stack)
            own = list(rows[where].view(-1, height, 1).unbind())
            factors = even_rows(steps, own, goes)
            factors.mul_(0.2 * max(height, matrix.shape[1]) ** 0.5)
            # A few rows at a time, because the product is in float32.
            flat, out = steps.flatten(0, 1), stack.flatten(0, 1)
            for some in _few_rows(*flat.shape):
                out[some] = flat[some] * factors.flatten(0, 1)[some]

    def _stacks(self, matrix: Matrix) -> Iterator[tuple[slice, int]]:
        """Stacks of equally shaped matrices, as many as are orthogonalized at once."""
        start = 0
        for height, group in itertools.groupby(self._splits[matrix.name]):
            count = len(list(group))
            limit = max(1, STACK_NUMBERS // (height * matrix.shape[1]))
            for first in range(0, count, limit):
                size = height * min(limit, count - first)
                yield slice(start, start + size), height
                start += size


def _few_rows(height: int, width: int) -> Iterator[slice]:
    some = max(1, PIECE // width)
    for start in range(0, height, some):
        yield slice(start, start + some)
