"""How the speed of a whole step follows from a few rows of it, with a stand-in for the clock."""

from __future__ import annotations

import contextlib
import io
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.model.config import GPTConfig
from lowtide.model.sizing import flops_per_token
from lowtide.settings import settings_as_json
from lowtide.training import trial
from lowtide.training.settings import train_settings
from lowtide.training.stepping import Stepper

CONFIG = GPTConfig(61, 64, 2, 32, 4)
OPTIONS = {"seq_len": 64, "batch_size": 8, "gradient_accumulation_steps": 3, "device": "cpu"}
ROW_FLOPS = flops_per_token(CONFIG, 64) * 64


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Times of steps by their parts, which a test may change, and what was asked for."""
    asked: list[Any] = []

    def time_step(config: GPTConfig, options: Any, *, rows: int, parts: int, seconds: float) -> Any:
        asked.append((rows, parts, seconds, options["optimizer"]))
        return asked[0][parts], 10 * parts

    monkeypatch.setattr(trial, "_time_step", time_step)
    monkeypatch.setattr(trial, "usable_cores", lambda: 2)
    monkeypatch.setattr(trial, "process_peak_bytes", lambda: 77)
    return asked


@pytest.mark.parametrize(("once", "twice", "step"), [
    (2.0, 3.5, 0.5 + 1.5 * 6),  # of four rows; the rest is the update
    (2.0, 9.0, 2.0 * 6),  # no more than all of it
    (2.0, 2.1, 1.0 + 1.0 * 6),  # no less than half of it
])  # fmt: skip
def test_a_step_of_more_rows_follows_from_few(
    timed: list[Any], once: float, twice: float, step: float
) -> None:
    timed.append((None, once, twice))
    seconds = 4.5 * ROW_FLOPS / 10e9
    found = trial.time_steps(CONFIG, OPTIONS, seconds=seconds)
    wanted = 24 * 64 / step
    assert found["tokens_per_second"] == pytest.approx(wanted) and found["rows"] == 4
    assert (found["peak_bytes"], found["device_peak_bytes"]) == (77, 20)
    assert timed[1:] == [(4, 1, seconds, "muon"), (4, 2, seconds, "muon")]


def test_a_step_that_is_all_computed_is_what_it_took(timed: list[Any]) -> None:
    timed.append((None, 4.0))
    whole = {**OPTIONS, "gradient_accumulation_steps": 1}
    found = trial.time_steps(CONFIG, whole, seconds=0, all_rows=True)
    assert found["tokens_per_second"] == 8 * 64 / 4.0 and found["rows"] == 8
    assert len(timed) == 2 and found["device_peak_bytes"] == 10


@pytest.mark.parametrize(("seq_len", "flops", "rows"), [
    (64, 0, 4), (64, 4.9, 4), (64, 5.1, 5), (64, 99, 8), (200, 0, 1),
])  # fmt: skip
def test_rows_that_a_slow_core_computes_in_time(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch, seq_len: int, flops: float, rows: int
) -> None:
    settings = train_settings(**{**OPTIONS, "seq_len": seq_len})
    seconds = flops * ROW_FLOPS / 10e9
    assert trial._affordable_rows(CONFIG, settings, seconds) == rows
    kinds = {"cpu": "cuda"}
    monkeypatch.setattr(trial, "backend_of", lambda _: SimpleNamespace(device_kind=kinds.get))
    assert trial._affordable_rows(CONFIG, settings, seconds) == 8
    kinds["cpu"] = "mps"
    assert trial._affordable_rows(CONFIG, settings, seconds) == rows


def test_a_request_is_answered_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def answer(*given: Any, **options: Any) -> dict[str, int]:
        asked.append((*given, options))
        return {"rows": len(asked)}

    monkeypatch.setattr(trial, "time_steps", answer)
    request = {"config": settings_as_json(CONFIG), "settings": OPTIONS, "seconds": 3}
    for more in ({}, {"all_rows": True}):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({**request, **more})))
        trial.main()
    assert capsys.readouterr().out == '{"rows": 1}\n{"rows": 2}\n'
    options = [{"seconds": 3, "all_rows": all_rows} for all_rows in (False, True)]
    assert asked == [(CONFIG, OPTIONS, one) for one in options]


def test_real_steps_are_timed_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=iter(range(100)).__next__)
    monkeypatch.setattr(trial, "time", clock)  # each look at it is a second later
    given = {**OPTIONS, "memory": "64GiB", "optimizer": "adamw"}
    waits: list[Stepper] = []
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "wait", lambda stepper: waits.append(stepper))
        found = trial._time_step(CONFIG, given, rows=2, parts=2, seconds=4)
    # Begun at 0, looked at after one step at 1 and at 2, ended at 3; each step is waited for.
    assert found == (3 / 2, 0) and len(waits) == 3
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "device_peak_bytes", lambda _: 99)
        assert trial._time_step(CONFIG, given, rows=2, parts=2, seconds=0)[1] == 99


def test_what_is_timed_is_a_step_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []

    class Noting:
        def __init__(self, model: Any, *, data: Any, settings: Any) -> None:
            noted.append((model, data, settings))

        def prepare(self, group: Any) -> Any:
            assert group == "group"
            feed = SimpleNamespace(close=lambda: noted.append("close"))
            engine = SimpleNamespace(
                wait=lambda: noted.append("wait"), device_peak_bytes=lambda: peak
            )
            step = lambda: noted.append("step")  # noqa: E731
            return SimpleNamespace(train_step=step, feed=feed, engine=engine)

    def dataset(path: Any, **options: Any) -> Any:
        return np.fromfile(path, np.uint32), options

    made = SimpleNamespace(
        new_model=lambda config, seed: (config, seed),
        open_group=lambda device: contextlib.nullcontext("group"),
    )
    monkeypatch.setattr(trial, "Trainer", Noting)
    monkeypatch.setattr(trial, "TokenDataset", dataset)
    monkeypatch.setattr(trial, "backend_of", lambda settings: made)
    for peak in (None, 99):
        noted.clear()
        clock = SimpleNamespace(monotonic=iter(range(9)).__next__)
        monkeypatch.setattr(trial, "time", clock)
        found = trial._time_step(CONFIG, {**OPTIONS, "seed": 5}, rows=2, parts=3, seconds=4)
        assert found == (3 / 2, peak or 0)
    (model, (ids, options), settings), *rest = noted
    assert model == (CONFIG, 5)
    assert options == {"split": "all", "seq_len": 64, "dtype": "uint32", "stride": 1}
    assert ids.min() == 0 and ids.max() == CONFIG.vocab_size - 1 and len(ids) == trial._NUM_IDS
    assert (settings.batch.batch_size, settings.batch.gradient_accumulation_steps) == (2, 3)
    assert rest == ["step", "wait"] * 3 + ["close"]
