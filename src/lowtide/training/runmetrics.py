"""What a run reports: how much of the data it will see, and its numbers, to files, TensorBoard,
W&B.

In:      rows of numbers from the loop
Out:     metrics.jsonl always; TensorBoard and Weights & Biases if enabled
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from lowtide.counts import counted
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.sizing import count_parameters
from lowtide.packages import import_package
from lowtide.progress import Progress, format_count
from lowtide.settings import settings_as_json
from lowtide.training.backends import Counters
from lowtide.training.eventfiles import EventFile
from lowtide.training.results import EvalResult
from lowtide.training.settings import AGAINST_LEARNING_BY_HEART, TrainSettings
from lowtide.training.state import RunState

__all__ = [
    "MetricSinks",
    "Pace",
    "describe_coverage",
    "describe_evaluation",
    "describe_overfitting",
    "evaluation_row",
]

_OVERFITTING_GAP = 0.3  # nats; noise of both losses, and dropout in one of them, are far smaller


def describe_coverage(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, total_steps: int | None, data: Any
) -> list[str]:
    """Lines on the length of the training and the number of passes over the data."""
    parameters = count_parameters(config)
    lines = [f"model: {format_count(parameters)} parameters, {_describe_shape(config)}"]
    if total_steps is None:
        length = (
            f"{settings.length.max_hours} hours"
            if settings.length.max_hours
            else f"{settings.length.epochs} epochs"
        )
        return [*lines, f"coverage: as many steps as {length} have"]
    seen = total_steps * settings.tokens_per_step
    line = (
        f"coverage: {total_steps:,} steps x {settings.tokens_per_step:,} tokens = "
        f"{format_count(seen)} tokens, {seen / parameters:.1f} per parameter"
    )
    there = getattr(data, "num_tokens", None)
    if there:
        line += f"; {seen / there:.2f} times the {format_count(there)} training tokens"
    lines.append(line)
    if there and seen > 20 * there:
        lines.append(
            f"note: every token will be seen {seen / there:.0f} times; more text, fewer steps or "
            f"{AGAINST_LEARNING_BY_HEART} keep the model from learning it by heart"
        )
    return lines


def _describe_shape(config: GPTConfig | ModuleConfig) -> str:
    ends = f"context {config.context_length}, vocabulary {config.vocab_size:,}"
    if isinstance(config, ModuleConfig):
        return f"the torch module {config.module}, {ends}"
    return (
        f"{counted(config.num_layers, 'layer')}, width {config.width}, "
        f"{counted(config.num_heads, 'head')}, {ends} "
        f"({config.layout})"
    )


def evaluation_row(step: int, results: Mapping[str, EvalResult]) -> dict[str, Any]:
    """Return the numbers of an evaluation as a row of metrics.jsonl."""
    row: dict[str, Any] = {"event": "eval", "step": step}
    for name, result in results.items():
        row[f"{name}_loss"] = result.loss
        row[f"{name}_bits_per_byte"] = result.bits_per_byte
    return row


def describe_evaluation(step: int, results: Mapping[str, EvalResult]) -> str:
    """Return the numbers of an evaluation as a line to read."""
    line = " | ".join(f"{name} {result.loss:.2f}" for name, result in results.items())
    bits = results["val"].bits_per_byte if "val" in results else None
    return f"step {step}: {line}" + (f" | {bits:.3f} bits/byte" if bits else "")


def describe_overfitting(
    settings: TrainSettings, *, epoch: float, train_loss: float, val_loss: float
) -> str | None:
    """A warning if training loss falls far below validation loss on repeated text, else None.

    None if the run has dropout or strong weight decay already.
    """
    guarded = settings.model.dropout > 0 or settings.learning.weight_decay >= 1
    if epoch < 1 or guarded or not val_loss > train_loss + _OVERFITTING_GAP:
        return None
    return (
        f"note: training loss is {val_loss - train_loss:.2f} below validation loss: the text is "
        f"being learned by heart; {AGAINST_LEARNING_BY_HEART} keep it from that, and so does more "
        "text or a smaller model"
    )


class Pace:
    """Measures the speed of training between two logged rows, and the time of other work."""

    def __init__(self, tokens_per_step: int, flops_per_token: float, *, step: int) -> None:
        self._tokens_per_step, self._flops_per_token = tokens_per_step, flops_per_token
        self._at, self._step = time.monotonic(), step
        self._aside: dict[str, float] = {}

    @contextlib.contextmanager
    def aside(self, work: str) -> Generator[None]:
        """Count the time of evaluation, samples and saving separately."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._aside[work] = self._aside.get(work, 0.0) + time.monotonic() - began

    def row(self, state: RunState, counters: Counters, *, learning_rate: float) -> dict[str, Any]:
        """Return the numbers of the steps since the last row."""
        now = time.monotonic()
        aside, self._aside = self._aside, {}
        seconds = max(now - self._at - sum(aside.values()), 1e-9)
        speed = (state.step - self._step) * self._tokens_per_step / seconds
        self._at, self._step = now, state.step
        return {
            "event": "step",
            "step": state.step,
            "loss": state.last_loss,
            "learning_rate": learning_rate,
            "gradient_norm": counters.norm.item(),
            "tokens_per_second": speed,
            "flops_per_second": speed * self._flops_per_token,
            "skipped_steps": int(counters.bad.item()),
            "elapsed_seconds": state.elapsed_seconds,
            "micro_batch": state.micro_batch,
            **{f"{work}_seconds": round(spent, 6) for work, spent in aside.items()},
        }


class MetricSinks:
    """Writes rows to metrics.jsonl, and to TensorBoard and W&B if enabled."""

    def __init__(self, settings: TrainSettings, progress: Progress, is_first: bool) -> None:
        self._progress = progress
        self._board: EventFile | None = None
        self._wandb: Any = None
        if not is_first:
            return
        if settings.output.tensorboard:
            self._board = EventFile(settings.run.folder / "tensorboard", progress.note)
        if settings.output.wandb:
            wandb = import_package("wandb", "--wandb")
            self._wandb = wandb.init(
                project="lowtide",
                name=settings.run.model_name,
                id=settings.run.model_name,
                resume="allow",
                dir=settings.run.folder,
                config=settings_as_json(settings),
            )

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row that has a step."""
        self._progress.write_metrics(row)
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "step"}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, row["step"])
            if "sample" in row:
                self._board.add_text("sample", row["sample"], row["step"])
        if self._wandb is not None:
            self._wandb.log(numbers, step=row["step"])

    def __enter__(self) -> MetricSinks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
