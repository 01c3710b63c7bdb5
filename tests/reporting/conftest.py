"""Runs as training writes them, of any length, and a real browser where one is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.files import write_json

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
    "--dump-dom",
)
MIB = 1 << 20


def metrics_row(second: float, **values: Any) -> dict[str, Any]:
    return {
        "time": 1_000_000.0 + second,
        "job": "train",
        "memory_bytes": 300 * MIB,
        "peak_memory_bytes": 350 * MIB,
        "budget_bytes": 1024 * MIB,
        **values,
    }


def step_row(step: int, **values: Any) -> dict[str, Any]:
    numbers = {
        "event": "step",
        "step": step,
        "loss": 5.0 - step / 1000,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "tokens_per_second": 5000.0,
        "elapsed_seconds": step * 0.5,
        "skipped_steps": 0,
        "micro_batch": 4,
    }
    return metrics_row(step * 0.5, **{**numbers, **values})


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_run(root: Path, rows: list[dict[str, Any]]) -> Path:
    (root / "steps").mkdir(parents=True, exist_ok=True)
    settings = {
        "dataset_dir": "data/mine",
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "seq_len": 64,
        "forgetting_tolerance": 0.1,
    }
    write_json(root / "settings.json", settings)
    write_rows(root / "metrics.jsonl", rows)
    return root


def eval_row(step: int, val: float, general: float, **values: Any) -> dict[str, Any]:
    losses = {"val_loss": val, "val_bits_per_byte": val / 3, "eval_general_loss": general}
    return metrics_row(step * 0.5 + 0.1, event="eval", step=step, **losses, **values)


@pytest.fixture
def open_page(tmp_path: Path) -> Callable[[Path | str], tuple[str, list[str]]]:
    """Return a function that opens a page and returns its document and the console's lines."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium or Chrome is installed")

    def open_page(page: Path | str) -> tuple[str, list[str]]:
        address = page.absolute().as_uri() if isinstance(page, Path) else page
        done = subprocess.run(
            [program, *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", address],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return open_page
