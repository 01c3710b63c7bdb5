"""Shared updates of embedding rows: tokens with common parts of their spelling learn together.

In:      the gradient of a table of tokens, which parts its tokens have (spelling.py)
Out:     a step of the table, in addition to AdamW's own
Memory:  8 bytes a number of as many rows as there are parts; in a step 12 bytes more

This works as if each row were the sum of its own numbers and of one vector for each of its parts,
all learned by Adam. These vectors are not stored: their steps are added to the rows at once, so the
network does not change. Sums have a fixed order, so every process computes the same bits. On a GPU
there are kernels for it (partkernels.py), which take a third of the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.errors import DataError
from lowtide.training.partkernels import has_part_kernels, list_on_gpu, step_rows
from lowtide.training.spelling import Spelling

__all__ = ["SharedRows"]

_FIRST, _SECOND = "shared_avg", "shared_avg_sq"
_STEP, _PARTS = "shared_step", "shared_parts"
_STRETCH = 128

Array = np.ndarray[Any, Any]


class SharedRows:
    """Optimizer steps for the parts that tokens of a table share."""

    def __init__(self, spelling: Spelling, rate: float, device: torch.device) -> None:
        self._rate = rate
        self._num_parts, self._fingerprint = spelling.num_parts, spelling.fingerprint
        self._lists = list_on_gpu(spelling, device) if has_part_kernels(device) else None
        if self._lists is not None:
            return
        stretches, firsts = _cut_lists(spelling.token_ends)
        self._parts, self._part_ends, self._tokens, self._stretches, self._firsts = (
            _on(device, array)
            for array in (
                spelling.parts,
                spelling.part_ends,
                spelling.tokens,
                stretches,
                firsts,
            )
        )
        self._scales = _on(device, spelling.scales)[:, None]

    def step(
        self,
        parameter: nn.Parameter,
        state: dict[str, Any],
        group: dict[str, Any],
        *,
        divisor: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        """Update the rows of a table by its gradient; nothing if `skip` is 1."""
        if parameter.grad is None or self._num_parts == 0:
            return
        self._require_state(parameter, state)
        if self._lists is not None:
            step_rows(
                parameter,
                parameter.grad,
                self._lists,
                first=state[_FIRST],
                second=state[_SECOND],
                count=state[_STEP],
                rate=self._rate * group["lr"],
                betas=group["betas"],
                eps=group["eps"],
                divisor=divisor,
                skip=skip,
            )
            return
        gradients = self._sum_tokens(parameter.grad)
        if divisor is not None:
            gradients.div_(divisor)
        keep = torch.ones((), dtype=torch.float32, device=parameter.device)
        if skip is not None:
            keep = keep - skip
            gradients.masked_fill_(skip.bool(), 0.0)
        first, second = state[_FIRST], state[_SECOND]
        beta1, beta2 = group["betas"]
        first.lerp_(gradients, (1 - beta1) * keep)
        second.lerp_(gradients.square_(), (1 - beta2) * keep)
        state[_STEP] += keep
        # If the first step is skipped the count is 0: no division by it.
        corrected1, corrected2 = (
            (1 - beta ** state[_STEP]).clamp_(min=1e-12) for beta in (beta1, beta2)
        )
        sizes = torch.div(second, corrected2, out=gradients).sqrt_().add_(group["eps"])
        steps = torch.div(first, sizes, out=gradients)
        moved = _sum_rows(steps, self._parts, self._part_ends)
        size = self._rate * group["lr"] * keep / corrected1
        parameter.sub_(moved.mul_(self._scales * size))

    def _sum_tokens(self, rows: Tensor) -> Tensor:
        """Sum the scaled rows of each part's tokens; long lists in stretches, then their sums."""
        scaled = rows * self._scales
        sums = _sum_rows(scaled, self._tokens, self._stretches)
        del scaled
        if len(sums) == self._num_parts:
            return sums
        every = torch.arange(len(sums), dtype=torch.int32, device=rows.device)
        return _sum_rows(sums, every, self._firsts)

    def _require_state(self, parameter: nn.Parameter, state: dict[str, Any]) -> None:
        if _FIRST not in state:
            shape = (self._num_parts, parameter.shape[1])
            state[_FIRST] = parameter.new_zeros(shape)
            state[_SECOND] = parameter.new_zeros(shape)
            state[_STEP] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state[_PARTS] = self._fingerprint
        elif state[_PARTS] != self._fingerprint:
            raise DataError(
                "the run was begun with other parts of tokens: another tokenizer, or characters "
                "whose small letters this Python does not know as such",
                next_step="go on with the Python that the run was begun with",
            )


def _cut_lists(ends: Array) -> tuple[Array, Array]:
    """Split lists into stretches; return where each begins, and the first one of each list.

    One group of threads sums a list row by row, and a leading space is a part of half of the
    vocabulary.
    """
    counts = -(-np.diff(ends) // _STRETCH)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    starts = np.repeat(ends[:-1], counts) + _STRETCH * places
    return np.append(starts, ends[-1]).astype(np.int32), firsts.astype(np.int32)


def _sum_rows(rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
    """Sum the chosen rows between each end and the next."""
    return F.embedding_bag(chosen, rows, ends, mode="sum", include_last_offset=True)


def _on(device: torch.device, array: Array) -> Tensor:
    return torch.from_numpy(array).to(device)
