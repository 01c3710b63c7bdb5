"""How many tokens suit a model, how often the data is seen, and how long training takes.

In:      numbers of parameters and tokens, arithmetic per token, a measured speed
Out:     ComputePlan
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from lowtide.progress import format_count
from lowtide.quickclasses import dataclass
from lowtide.training.settings import AGAINST_LEARNING_BY_HEART

__all__ = [
    "ComputePlan",
    "fitted_parameters",
    "fitted_tokens",
    "plan_compute",
    "size_for_a_day",
    "size_for_tokens",
]

_TOKENS_PER_PARAM = 20.0
# Loss = E + A / params**alpha + B / tokens**beta, as Besiroglu et al. (2024) fitted it anew to the
# runs of Hoffmann et al. (2022).
_A, _ALPHA = 482.01, 0.3478
_B, _BETA = 2085.43, 0.3658
# Muennighoff et al. (2023): up to 4 epochs count nearly as new text, beyond 16 there is no gain.
_GOOD_EPOCHS, _MOST_EPOCHS = 4.0, 16.0
_FRESH_EPOCHS = 2.0  # up to here text is not memorized
# What a step gets out of a core or a GPU, roughly; only to choose a size where none is named.
_CORE_FLOPS, _GPU_FLOPS = 20e9, 30e12
_DAY_SECONDS = 86400
_SMALLEST_SIZE = 1_000_000  # smaller ones learn little more than words


@dataclass(frozen=True)
class ComputePlan:
    """How long to train."""

    parameters: int
    optimal_tokens: int
    """20 tokens per parameter."""
    fitted_tokens: int
    """The optimum by the fitted scaling law."""
    planned_tokens: int
    """Tokens that the command trains on."""
    steps: int
    train_tokens: int | None
    """Tokens in the data; None if no data is named."""
    flops: float
    tokens_per_second: float | None
    """Measured on this machine; None if not measured."""

    @property
    def epochs(self) -> float | None:
        """How often the data is seen."""
        return self.planned_tokens / self.train_tokens if self.train_tokens else None

    @property
    def seconds(self) -> float | None:
        """How long it takes at the measured speed."""
        return self.planned_tokens / self.tokens_per_second if self.tokens_per_second else None

    def describe_best_size(self) -> str | None:
        """Advice on the model size that suits the data; None if no data is named."""
        if self.train_tokens is None:
            return None
        by_rule = format_count(max(1, round(self.train_tokens / _TOKENS_PER_PARAM)))
        by_law = format_count(fitted_parameters(self.train_tokens))
        return (
            f"a model that sees them once should have {by_rule} parameters (20 tokens for each), "
            f"or {by_law} by the fitted law; {_GOOD_EPOCHS:.0f} times as many if it sees them "
            f"{_GOOD_EPOCHS:.0f} times"
        )

    def describe_repetition(self) -> str | None:
        """Advice for text that is seen more than twice; None if it is not."""
        if self.epochs is None or self.epochs <= _FRESH_EPOCHS:
            return None
        return (
            f"{AGAINST_LEARNING_BY_HEART} (or the preset small-data) keep it from being "
            "learned by heart"
        )

    def describe_epochs(self) -> str:
        """A sentence on what seeing the data so often means."""
        if self.epochs is None:
            return "no data is named"
        if self.epochs <= 1:
            return "no token is seen twice"
        if self.epochs <= _GOOD_EPOCHS:
            return "up to 4 times counts nearly as new text"
        return "more than 4 times helps less and less: more text, or a smaller model"


def fitted_tokens(parameters: int) -> int:
    """Return the number of tokens for which this model size is compute-optimal, by the law.

    >>> round(fitted_tokens(124_000_000) / 124_000_000)
    25
    """
    return int((_BETA * _B / (_ALPHA * _A) * parameters**_ALPHA) ** (1 / _BETA))


def fitted_parameters(tokens: int) -> int:
    """Return the compute-optimal number of parameters for so many tokens, by the same law.

    >>> round(fitted_parameters(fitted_tokens(10_000_000)) / 1_000_000)
    10
    """
    return int((_ALPHA * _A / (_BETA * _B) * tokens**_BETA) ** (1 / _ALPHA))


def plan_compute(
    parameters: int,
    *,
    flops_per_token: float,
    tokens_per_step: int,
    train_tokens: int | None,
    tokens_per_param: float | None = None,
    max_iters: int | None = None,
    epochs: float | None = None,
    tokens_per_second: float | None = None,
) -> ComputePlan:
    """Choose how long to train: as requested, else 20 tokens a parameter, at most 16 epochs."""
    optimal = int(_TOKENS_PER_PARAM * parameters)
    wanted = (tokens_per_param or _TOKENS_PER_PARAM) * parameters
    if max_iters is not None:
        wanted = max_iters * tokens_per_step
    elif epochs is not None and train_tokens is not None:
        wanted = epochs * train_tokens
    elif train_tokens is not None and tokens_per_param is None:
        wanted = min(wanted, _MOST_EPOCHS * train_tokens)
    steps = max(1, math.ceil(wanted / tokens_per_step))
    return ComputePlan(
        parameters=parameters,
        optimal_tokens=optimal,
        fitted_tokens=fitted_tokens(parameters),
        planned_tokens=steps * tokens_per_step,
        steps=steps,
        train_tokens=train_tokens,
        flops=steps * tokens_per_step * flops_per_token,
        tokens_per_second=tokens_per_second,
    )


def size_for_a_day(cores: int, *, has_gpu: bool) -> int:
    """Return the parameters that 20 tokens each can be trained on in about a day, two digits of it.

    >>> size_for_a_day(4, has_gpu=False), size_for_a_day(8, has_gpu=True)
    (7600000, 150000000)
    """
    speed = _GPU_FLOPS if has_gpu else cores * _CORE_FLOPS
    return two_digits(math.sqrt(_DAY_SECONDS * speed / (6 * _TOKENS_PER_PARAM)))


def size_for_tokens(train_tokens: int | None) -> int:
    """Return the most parameters worth training on so many tokens, each seen up to four times.

    >>> size_for_tokens(10_000_000), size_for_tokens(1000)
    (2000000, 1000000)
    """
    if train_tokens is None:
        return sys.maxsize
    return max(_SMALLEST_SIZE, two_digits(_GOOD_EPOCHS * train_tokens / _TOKENS_PER_PARAM))


def two_digits(count: float, *, rounded: Callable[[float], int] = round) -> int:
    """A count with nothing but zeros after its second digit.

    >>> two_digits(7_690_000), two_digits(7_690_000, rounded=math.floor)
    (7700000, 7600000)
    """
    unit = 10 ** max(0, int(math.log10(max(count, 1.0))) - 1)
    return rounded(count / unit) * unit
