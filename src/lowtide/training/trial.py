"""Time a few training steps on random ids; run as a program, it prints JSON.

In:      stdin: {"config": GPTConfig, "settings": TrainSettings, "seconds": about so long,
         "all_rows": false to compute fewer rows where they take too long}
Out:     stdout: {"tokens_per_second", "rows", "peak_bytes", "device_peak_bytes"}
Memory:  that of training; with fewer rows if a step would take longer than the trial
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from lowtide.loader.windows import TokenDataset
from lowtide.memory import process_peak_bytes, usable_cores
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import flops_per_token
from lowtide.scratch import scratch_folder
from lowtide.settings import build_settings
from lowtide.training.backends import backend_of
from lowtide.training.choosing import choose_optimizer
from lowtide.training.settings import TrainSettings
from lowtide.training.trainer import Trainer

__all__ = ["time_steps"]

_CORE_FLOPS = 10e9  # a slow core: the trial must end in time there too
_FEWEST_TOKENS = 256
_NUM_IDS = 1 << 18


def time_steps(
    config: GPTConfig, options: dict[str, Any], *, seconds: float, all_rows: bool = False
) -> dict[str, Any]:
    """Return the tokens per second of training, from about `seconds` of it, and its peaks.

    A step that would take too long is timed with fewer rows, with one and with two micro-batches:
    the difference is the cost of rows, the rest that of the update, and both give the time of the
    whole step. With `all_rows` whole micro-batches are computed, however long they take: for the
    peaks.
    """
    whole = build_settings(TrainSettings, options)
    # Resolved before, because auto depends on the rows, and the trial has fewer.
    options = {
        **options,
        "optimizer": choose_optimizer(whole.learning, config, whole.tokens_per_step),
    }
    rows = whole.batch.batch_size if all_rows else _affordable_rows(config, whole, seconds)
    once, device_peak = _time_step(config, options, rows=rows, parts=1, seconds=seconds)
    if rows < whole.batch.rows_per_step:
        twice, device_peak = _time_step(config, options, rows=rows, parts=2, seconds=seconds)
        per_rows = min(max(twice - once, once / 2), once)
        step_seconds = once - per_rows + per_rows * whole.batch.rows_per_step / rows
    else:
        step_seconds = once
    return {
        "tokens_per_second": whole.tokens_per_step / step_seconds,
        "rows": rows,
        "peak_bytes": process_peak_bytes(),
        "device_peak_bytes": device_peak,
    }


def _affordable_rows(config: GPTConfig, whole: TrainSettings, seconds: float) -> int:
    """Return the rows of a micro-batch that a slow CPU computes within the trial."""
    if backend_of(whole).device_kind(whole.machine.device) not in ("cpu", "mps"):
        return whole.batch.batch_size
    flops = flops_per_token(config, whole.model.seq_len) * whole.model.seq_len
    affordable = int(seconds / 2 * usable_cores() * _CORE_FLOPS / flops)
    return min(whole.batch.batch_size, max(1, _FEWEST_TOKENS // whole.model.seq_len, affordable))


def _time_step(
    config: GPTConfig, options: dict[str, Any], *, rows: int, parts: int, seconds: float
) -> tuple[float, int]:
    """Return the seconds of one step of so many micro-batches, without the first, and the peak.

    The peak is that of the device; 0 on a CPU.
    """
    with scratch_folder("trial") as folder:
        settings = build_settings(
            TrainSettings,
            {
                **options,
                "batch_size": rows,
                "gradient_accumulation_steps": parts,
                "checkpoints_dir": folder,
            },
        )
        path = folder / "ids.bin"
        ids = np.random.default_rng(0).integers(config.vocab_size, size=_NUM_IDS)
        ids.astype(np.uint32).tofile(path)
        data = TokenDataset(
            path, split="all", seq_len=settings.model.seq_len, dtype="uint32", stride=1
        )
        backend = backend_of(settings)
        model = backend.new_model(config, seed=settings.learning.seed)
        trainer = Trainer(model, data=data, settings=settings)
        with backend.open_group(settings.machine.device) as group:
            ready = trainer.prepare(group)
            try:
                ready.train_step()  # it allocates, compiles and fills caches
                ready.engine.wait()
                steps, started = 0, time.monotonic()
                while steps == 0 or time.monotonic() - started < seconds / 2:
                    ready.train_step()
                    ready.engine.wait()
                    steps += 1
                took = (time.monotonic() - started) / steps
                return took, ready.engine.device_peak_bytes() or 0
            finally:
                ready.feed.close()


def main() -> None:
    """Read a request, time it, print the result."""
    request = json.load(sys.stdin)
    config = build_settings(GPTConfig, request["config"])
    answer = time_steps(
        config,
        request["settings"],
        seconds=request["seconds"],
        all_rows=request.get("all_rows", False),
    )
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
