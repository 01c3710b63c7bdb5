from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.errors import DataError
from lowtide.loader import selftest
from lowtide.loader.selftest import check_loading
from lowtide.loader.windows import RowPlan, TokenDataset


def test_the_report_of_a_good_dataset(counting_dataset: Path) -> None:
    report = check_loading(counting_dataset, seq_len=64, batch_size=4, seconds=0.05)
    assert report.num_tokens == 2000 and report.checked_windows == report.num_windows == 32
    assert report.batch_shape == (4, 64)
    assert report.tokens_per_second > 1000
    text = str(report)
    for words in ("first batch", "exactly once", "resume", "tokens/s", "memory"):
        assert words in text


def test_the_command(counting_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(counting_dataset), "--test-loading"]) == 0
    assert "exactly once" in capsys.readouterr().out


def test_the_command_on_files_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "ids.npy", np.arange(5000, dtype=np.int32))
    np.arange(5000, dtype=np.uint32).tofile(tmp_path / "raw.bin")
    assert main(["inspect", str(tmp_path / "ids.npy"), "--test-loading"]) == 0
    assert "exactly once" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "raw.bin"), "--dtype", "uint32", "--start", "7"]) == 0
    shown = capsys.readouterr().out
    assert "Total tokens: 5,000" in shown
    assert "train tokens 7 to 107:\n7 8 9 " in shown


def test_short_data_is_tried_with_short_windows(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.arange(30, dtype=np.int32))
    report = check_loading(tmp_path / "few.npy", split="all", seconds=0.01)
    assert report.batch_shape == (32, 29)


def test_overlap_and_wrong_targets_are_found(
    counting_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Repeating(TokenDataset):
        def plan_rows(self, *arguments: object, **options: object) -> list[RowPlan]:
            (plan,) = super().plan_rows(*arguments, **options)  # pyright: ignore[reportArgumentType]
            plan.starts[-1] = plan.starts[0]
            return [plan]

    monkeypatch.setattr(selftest, "TokenDataset", Repeating)
    with pytest.raises(DataError, match="came twice"):
        check_loading(counting_dataset, seq_len=64, batch_size=4, seconds=0.01)
    data = TokenDataset(counting_dataset, seq_len=64)
    inputs, _ = data.get_batch([0, 1])
    with pytest.raises(DataError, match="not the inputs moved"):
        selftest._check_batch(data, (inputs, inputs), 2)
    with pytest.raises(DataError, match="expected"):
        selftest._check_batch(data, (inputs, inputs), 3)


def test_speed_is_that_of_the_batches_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that goes on by a second at every look, and batches of ten tokens."""
    ticks, sizes = itertools.count(), iter([1000, 1700])
    monkeypatch.setattr(selftest, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(selftest, "tree_resident_bytes", lambda: next(sizes))
    batches = itertools.count()
    loader: Any = batches
    assert selftest._measure(loader, 10, 4.0) == (30, 4, 700)
    assert next(batches) == 3 + 3
    ticks, sizes = itertools.count(), iter([0, 0])
    assert selftest._measure(loader, 10, 0.5) == (10, 2, 0)  # one at least
