"""The numbers that runs are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.reporting.runcurves import Evaluation, RunRecord
from lowtide.reporting.runfacts import made_with, run_facts

from .conftest import metrics_row, step_row


def test_speed_and_shares_leave_out_what_is_no_training() -> None:
    record = RunRecord()
    environment = {"tokens_per_step": 100, "flops_per_token": 1e9, "peak_flops": 1e12}
    record.take(metrics_row(0, event="environment", **environment))
    record.take(step_row(10, evaluation_seconds=1.0))
    record.take(step_row(20, saving_seconds=0.5, sample_seconds=0.5))
    facts = run_facts(Path("some/run"), record, {})
    assert facts.name == "run" and facts.tokens == 2000 and facts.seconds == 10
    assert facts.aside_seconds == {"evaluation": 1, "saving": 0.5, "sample": 0.5}
    assert facts.aside_share == 0.2 and facts.tokens_per_second == 250
    assert facts.flops == 2e12 and facts.mfu == pytest.approx(0.25)
    record.take(step_row(21, saving_seconds=500.0))  # by another clock than the rows'
    facts = run_facts(Path("some/run"), record, {})
    assert facts.aside_share == 1 and facts.tokens_per_second is None


def test_nothing_is_made_up() -> None:
    facts = run_facts(Path("run"), RunRecord(), {"batch_size": 4})
    unknown = (facts.tokens, facts.flops, facts.tokens_per_second, facts.mfu, facts.parameters)
    assert unknown == (None,) * 5 and facts.aside_share == 0
    assert made_with(RunRecord()) == []


def test_a_strange_row_is_no_trouble() -> None:
    record = RunRecord()
    record.take(metrics_row(0, event="environment", versions="?", num_parameters="many", command=3))
    assert run_facts(Path("run"), record, {}).parameters is None
    assert made_with(record) == [["command", "3"]]


def test_an_evaluation_without_a_number_has_no_best_one() -> None:
    record = RunRecord()
    record.evaluations["val"] = Evaluation()
    facts = run_facts(Path("run"), record, {})
    assert (facts.best_val_loss, facts.best_step, facts.bits_per_byte) == (None, None, None)
