"""A running average of the weights, from which a run saves, evaluates and samples (--average-over).

In:      a network's parameters, after each step
Out:     their average over the last share of the run; the parameters themselves for a checkpoint
Memory:  4 bytes a parameter, and one tensor more while they are swapped

Text that is seen several times is memorized in the last, small steps of a run: the training loss
falls and the validation loss does not. The average lags behind those steps and smooths them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import UsageError
from lowtide.training.distributed import shard_like

__all__ = ["WeightAverage", "average_weight"]

_STEPPED = "stepped."
_SPAN = 5  # at first the average is over a fifth of the steps so far
_torch: Any = torch  # the operations on lists of tensors have names of private functions


def average_weight(step: int, share_done: float, over: float) -> float:
    """The weight of a step's parameters in the average, after `share_done` of the run.

    Steps further back than the share `over` of the run hardly count. Early in a run that would
    include the random initial weights, so the average starts as the weights themselves.

    >>> [round(average_weight(n, n / 1000, 0.1), 4) for n in (0, 5, 100, 500, 999)]
    [1.0, 1.0, 0.05, 0.01, 0.01]
    """
    if step <= _SPAN or share_done <= 0:
        return 1.0
    return max(1 - math.exp(-share_done / step / over), _SPAN / step)


class WeightAverage:
    """The average of a network's parameters, which replaces them within `in_place`."""

    def __init__(self, model: nn.Module, over: float) -> None:
        self._model, self._over = model, over
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if any(parameter.dtype != torch.float32 for parameter in self._parameters):
            raise UsageError(
                "an average of weights adds up small differences, and these are not in float32",
                next_step="leave --average-over out, or keep the module's parameters in float32",
            )
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def add(self, step: int, share_done: float) -> None:
        """Add the parameters after a step to the average."""
        weight = average_weight(step, share_done, self._over)
        _torch._foreach_lerp_(self._averages, self._parameters, weight)

    @contextlib.contextmanager
    def in_place(self) -> Generator[None]:
        """Let the network compute with the average."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Swap parameters and average, one tensor at a time."""
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    def averaged(self) -> dict[str, Tensor]:
        """The network's tensors by name, with the average instead of parameters."""
        own = {id(p): a for p, a in zip(self._parameters, self._averages, strict=True)}
        named: dict[str, Tensor] = self._model.state_dict(keep_vars=True)
        return {name: own.get(id(value), value).detach() for name, value in named.items()}

    def stepped(self) -> dict[str, Tensor]:
        """The parameters that steps change, by their names in a checkpoint."""
        return {f"{_STEPPED}{name}": value.detach() for name, value in self._named()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Any]) -> None:
        """Load the parameters of a checkpoint; the weights it has for the network are averages."""
        for name, parameter in self._named():
            parameter.copy_(shard_like(tensors[f"{_STEPPED}{name}"].clone(), parameter))

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
