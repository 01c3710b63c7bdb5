"""Numbers to compare runs by: size, tokens, losses, speed; and versions and machine.

In:      a run's record and settings
Out:     RunFacts
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.quickclasses import dataclass
from lowtide.reporting.runcurves import RunRecord
from lowtide.reporting.series import finite_number

__all__ = ["RunFacts", "made_with", "run_facts"]

_STEP_SETTINGS = ("batch_size", "gradient_accumulation_steps", "seq_len")


@dataclass(frozen=True)
class RunFacts:
    """One run in numbers; None if unknown."""

    name: str
    parameters: float | None
    steps: int
    tokens_per_step: float | None
    flops_per_token: float | None
    loss: float | None
    best_val_loss: float | None
    best_step: int | None
    bits_per_byte: float | None
    seconds: float
    """Of training and other work."""
    aside_seconds: Mapping[str, float]
    """Of the other work, by kind: evaluation, sample, saving."""
    peak_flops: float | None
    """Of the hardware, if known."""
    peak_bytes: int
    hardware: str

    @property
    def tokens(self) -> float | None:
        """Tokens seen."""
        return None if self.tokens_per_step is None else self.steps * self.tokens_per_step

    @property
    def flops(self) -> float | None:
        """Arithmetic done."""
        if self.tokens is None or self.flops_per_token is None:
            return None
        return self.tokens * self.flops_per_token

    @property
    def aside_share(self) -> float:
        """The share of the time spent on other work than training."""
        return min(1.0, sum(self.aside_seconds.values()) / self.seconds) if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Of training alone."""
        seconds = self.seconds * (1 - self.aside_share)
        return self.tokens / seconds if self.tokens and seconds > 0 else None

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation: the arithmetic of training against what the hardware could do."""
        if not (self.tokens_per_second and self.flops_per_token and self.peak_flops):
            return None
        return self.tokens_per_second * self.flops_per_token / self.peak_flops


def run_facts(
    root: Path, record: RunRecord, settings: Mapping[str, Any], *, name: str | None = None
) -> RunFacts:
    """The current facts of a run; its name is that of its folder unless `name` is given."""
    found = record.environment
    val = record.evaluations.get("val")
    has_val = val is not None and bool(val.curve)
    return RunFacts(
        name=name or root.resolve().name,
        parameters=finite_number(found.get("num_parameters")),
        steps=record.step,
        tokens_per_step=finite_number(found.get("tokens_per_step")) or _tokens_per_step(settings),
        flops_per_token=finite_number(found.get("flops_per_token")),
        loss=record.curves["loss"].last,
        best_val_loss=val.curve.low if val is not None and has_val else None,
        best_step=val.best_step if val is not None and has_val else None,
        bits_per_byte=val.bits.last if val is not None and has_val else None,
        seconds=record.elapsed_seconds or record.job.seconds,
        aside_seconds=record.aside_seconds,
        peak_flops=finite_number(found.get("peak_flops")),
        peak_bytes=record.job.peak_bytes,
        hardware=str(found.get("hardware", "")),
    )


def _tokens_per_step(settings: Mapping[str, Any]) -> float | None:
    sizes = [finite_number(settings.get(name)) for name in _STEP_SETTINGS]
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(_STEP_SETTINGS) else None


def made_with(record: RunRecord) -> list[list[str]]:
    """Versions, machine and command of a run, as rows of names and texts."""
    found = record.environment
    versions = found.get("versions")
    rows = [["hardware", found.get("hardware")], ["command", found.get("command")]]
    if isinstance(versions, dict):
        text = ", ".join(f"{name} {version}" for name, version in versions.items())  # pyright: ignore[reportUnknownVariableType]
        rows.insert(1, ["versions", text])
    return [[str(name), str(value)] for name, value in rows if value]
