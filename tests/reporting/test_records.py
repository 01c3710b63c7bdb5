"""A record of a run keeps what its page needs, and only so much of it."""

from __future__ import annotations

from lowtide.reporting.records import MAX_SAMPLES, RunRecord

from .conftest import eval_row, step_row


def test_forgetting_is_marked_beyond_the_tolerance_only() -> None:
    record = RunRecord(forgetting_tolerance=0.1)
    for step, general in ((10, 3.0), (20, 3.05), (30, 3.2)):
        record.take(eval_row(step, val=3.0, general=general, forgetting=step > 10))
    marks = record.evaluations["general"].marks.items
    assert [mark["step"] for mark in marks] == [30]
    assert "0.20 above its first loss" in marks[0]["text"]
    assert record.evaluations["val"].marks.count == 0


def test_micro_batches_are_kept_where_they_change() -> None:
    record = RunRecord()
    for step in range(1, 9):
        record.take(step_row(step, micro_batch=4 if step < 5 else 2))
    assert record.micro_batches == [(1, 4), (5, 2)]


def test_rows_of_other_jobs_and_values_that_are_no_numbers_are_left_out() -> None:
    record = RunRecord()
    record.take({**step_row(1), "job": "evaluate"})
    assert record.step == 0
    record.take(step_row(2, loss=None, gradient_norm="nan"))
    assert record.step == 2
    assert not record.curves["loss"]
    assert not record.curves["gradient_norm"]


def test_samples_do_not_pile_up() -> None:
    record = RunRecord()
    for step in range(1, 500):
        record.take(eval_row(step, val=3.0, general=3.0, sample="x" * 5000))
    assert record.samples.count == 499
    assert len(record.samples.items) <= MAX_SAMPLES
    assert all(len(item["text"]) < 1000 for item in record.samples.items)
