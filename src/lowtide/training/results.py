"""Loss and bits per byte on datasets, always on the same windows; warnings about forgetting.

In:      an engine of either backend, datasets by name
Out:     EvalResult per dataset; a warning with advice when another dataset's loss rises
Memory:  a batch of windows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from lowtide.errors import DataError
from lowtide.loader.windows import TokenDataset
from lowtide.notebooks import shown_in_notebooks
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.settinggroups import ReplaySettings
from lowtide.training.settings import EVAL_BATCH_ROWS, TrainSettings
from lowtide.training.state import RunState

__all__ = [
    "EvalResult",
    "EvalSums",
    "ForgettingWatch",
    "RunEvaluator",
    "TrainResult",
    "evaluate_windows",
    "evaluation_windows",
    "require_same_tokenizer",
    "token_bytes",
]

# Characters of a sample: with repetitive text, a token can have megabytes.
_MOST_SHOWN = 10_000

Array = np.ndarray[Any, Any]


@shown_in_notebooks()
@dataclass(frozen=True)
class EvalResult:
    """How well a model predicts a dataset."""

    loss: float
    """Mean loss in nats per token."""
    bits_per_byte: float | None
    """Bits per byte of text, comparable across tokenizers; None without a tokenizer."""
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """e to the power of the loss."""
        return math.exp(min(self.loss, 700.0))


@shown_in_notebooks()
@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    steps: int
    loss: float
    """Training loss of the last logged steps."""
    val_loss: float | None
    """Validation loss at the end."""
    best_val_loss: float | None
    skipped_steps: int
    stopped: str
    """finished, time, forgetting, or callback."""

    @classmethod
    def of(cls, state: RunState, *, skipped_steps: int) -> TrainResult:
        """The result of a run that has ended."""
        return cls(
            steps=state.step,
            loss=state.last_loss,
            val_loss=state.last_val_loss,
            best_val_loss=state.best_val_loss,
            skipped_steps=skipped_steps,
            stopped=state.stopped or "finished",
        )


def token_bytes(tokenizer: Tokenizer) -> Array:
    """Return the bytes of every token; special tokens are not text and have none."""
    counts = np.array([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)])
    for token in tokenizer.special_tokens.values():
        counts[token] = 0
    return counts


def evaluation_windows(
    num_windows: int, wanted: int | None, *, first: int = 0, count: int | None = None
) -> Array:
    """Choose windows evenly over a dataset: always the same, from all of it.

    With `count` only so many of them, from number `first` on, to save memory.
    """
    total = num_windows if wanted is None else min(wanted, num_windows)
    places = np.arange(first, total if count is None else min(first + count, total))
    return places if total == num_windows else places * num_windows // total


class EvalSums(Protocol):
    """Losses of windows, summed on the device."""

    def add(self, inputs: Array, targets: Array, *, counted: bool) -> None:
        """Add the loss of some windows; not `counted`: only computed, to match other processes."""
        ...

    def totals(self) -> tuple[float, float, float]:
        """Return nats, tokens and bytes, over all processes."""
        ...


def evaluate_windows(
    sums: EvalSums,
    dataset: TokenDataset,
    *,
    batch_size: int,
    num_windows: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    on_windows: Callable[[int], None] = lambda count: None,
) -> EvalResult:
    """Return the mean loss over evenly spaced windows.

    With several processes each takes every `world_size`-th batch.
    """
    total_windows = len(dataset) if num_windows is None else min(num_windows, len(dataset))
    starts = range(0, total_windows, batch_size)
    # Every process runs equally many batches, because FSDP gathers weights in every forward pass.
    for turn in range(-(-len(starts) // world_size)):
        mine = turn * world_size + rank
        counted = mine < len(starts)
        first = starts[mine if counted else 0]
        windows = evaluation_windows(len(dataset), num_windows, first=first, count=batch_size)
        inputs, targets = dataset.get_batch(windows)
        sums.add(inputs, targets, counted=counted)
        on_windows(len(inputs))
    nats, tokens, num_bytes = sums.totals()
    bits = None if num_bytes == 0 else nats / math.log(2) / num_bytes
    return EvalResult(nats / tokens, bits, round(tokens))


class _Rank(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


class _Engine(Protocol):
    """The part of an Engine (backends.py) that evaluates."""

    state: RunState

    def eval_sums(
        self, tokenizer: Tokenizer | None, *, batch_size: int
    ) -> AbstractContextManager[EvalSums]: ...
    def sample(self, tokenizer: Tokenizer) -> str: ...


class RunEvaluator:
    """Evaluates a network in training on every dataset of its run; each process takes its share."""

    def __init__(
        self,
        engine: _Engine,
        settings: TrainSettings,
        group: _Rank,
        *,
        rows: int,
        datasets: Mapping[str, TokenDataset],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._engine, self._settings, self._group, self._rows = engine, settings, group, rows
        self._datasets, self._tokenizer = datasets, tokenizer

    def evaluate_all(self, tell: Callable[[str], None] = lambda _: None) -> dict[str, EvalResult]:
        """Return a result per dataset; `tell` is called with a line about the progress."""
        return {
            name: self.evaluate_one(dataset, name, tell) for name, dataset in self._datasets.items()
        }

    def identities(self) -> dict[str, str]:
        """A key of the data and windows of each loss; losses with other keys do not compare."""
        count = self._settings.evaluation.eval_iters
        return {
            name: f"{getattr(dataset, 'fingerprint', '')} {count}"
            for name, dataset in self._datasets.items()
        }

    def evaluate_one(
        self, dataset: TokenDataset, name: str, tell: Callable[[str], None]
    ) -> EvalResult:
        """Return the loss with the current weights, in the run's precision."""
        num_windows = self._settings.evaluation.eval_iters * EVAL_BATCH_ROWS
        total = -(-min(num_windows, len(dataset)) // self._group.world_size)
        done = 0

        def count(windows: int) -> None:
            nonlocal done
            done += windows
            tell(f"evaluating {name}: {done} of {total} windows")

        count(0)
        rows = max(1, min(self._engine.state.micro_batch, self._rows))
        with self._engine.eval_sums(self._tokenizer, batch_size=rows) as sums:
            return evaluate_windows(
                sums,
                dataset,
                batch_size=rows,
                num_windows=num_windows,
                rank=self._group.rank,
                world_size=self._group.world_size,
                on_windows=count,
            )

    def sample(self) -> str:
        """Return a short text from the current weights, sampled with a separate generator."""
        settings = self._settings
        is_divided = self._group.world_size > 1 and settings.machine.parallel == "fsdp"
        if not settings.output.sample_tokens or self._tokenizer is None or is_divided:
            return ""
        return self._engine.sample(self._tokenizer)[:_MOST_SHOWN]


class ForgettingWatch:
    """Stores each other dataset's loss before training, and warns when it has risen too far."""

    def __init__(
        self,
        tolerance: float,
        *,
        learning_rate: float = 3e-4,
        replay: ReplaySettings | None = None,
    ) -> None:
        self.tolerance = tolerance
        self.learning_rate = learning_rate
        replay = replay or ReplaySettings()
        self.replay_fraction = replay.replay_fraction if replay.replay_dataset_dir else 0.0
        self.first: dict[str, float] = {}
        self.times_in_a_row = 0

    def check(self, losses: Mapping[str, float]) -> str | None:
        """Compare the losses of an evaluation with the first; return a warning, or None."""
        risen: list[str] = []
        for name, loss in losses.items():
            before = self.first.setdefault(name, loss)
            if loss > before + self.tolerance:
                risen.append(f"{name} {before:.2f} -> {loss:.2f}")
        self.times_in_a_row = self.times_in_a_row + 1 if risen else 0
        if not risen:
            return None
        replay = "--replay-dataset-dir with general data"
        if self.replay_fraction:
            replay = f"more general data (--replay-fraction is {self.replay_fraction:g})"
        return (
            f"warning: the model is forgetting: {', '.join(risen)}. What helps: a lower "
            f"--learning-rate ({self.learning_rate / 4:.2g} instead of {self.learning_rate:.2g}), "
            f"fewer steps, a longer --warmup, or {replay}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the stored losses."""
        return {"first": self.first, "times_in_a_row": self.times_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the stored losses."""
        self.first = dict(state["first"])
        self.times_in_a_row = int(state["times_in_a_row"])


def require_same_tokenizer(dataset: TokenDataset, tokenizer: Tokenizer, owner: str) -> None:
    """Refuse a dataset whose ids mean other text than the tokenizer's."""
    theirs = dataset.tokenizer_fingerprint
    if theirs is not None and theirs != tokenizer.fingerprint:
        raise DataError(
            f"the dataset was made with another tokenizer ({theirs[:12]}) than {owner} "
            f"({tokenizer.name}, {tokenizer.fingerprint[:12]}): the same ids mean other text",
            path=dataset.source.place,
            next_step="lowtide prepare … --tokenization RUN_FOLDER makes a dataset that fits",
        )
