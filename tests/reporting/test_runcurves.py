"""A record of a run keeps what its page needs, and only so much of it."""

from __future__ import annotations

from lowtide.reporting.runcurves import MAX_SAMPLES, Evaluation, RunRecord

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


def test_a_record_begins_with_nothing_and_keeps_lists_short() -> None:
    record = RunRecord()
    assert (record.step, record.elapsed_seconds, record.skipped_steps) == (0, 0.0, 0)
    assert record.forgetting_tolerance == 0.0
    assert Evaluation().best_step == 0
    for step in range(100):
        record.take({"time": float(step), "step": step, "micro_batch": step})
    assert len(record.micro_batches) == 60
    for step in range(200, 400):
        row = {"event": "eval", "step": step, "forgetting": True, "time": float(step)}
        record.take({**row, "eval_web_loss": 1.0 + step})
    assert record.step == 399  # an evaluation counts too
    assert len(record.evaluations["web"].marks.items) <= 60
    for number in range(30):
        record.take({"event": "eval", "step": 500, "time": 500.0, f"eval_{number}_loss": 1.0})
    assert len(record.evaluations) == 24
    record.take({"event": "eval", "step": 600, "time": 600.0, "eval_web_loss": 0.5})
    assert record.evaluations["web"].best_step == 600  # a known one goes on


def test_exactly_the_tolerance_is_no_forgetting_and_long_samples_are_cut() -> None:
    record = RunRecord(forgetting_tolerance=0.5)
    for step, loss in ((0, 1.0), (1, 1.5), (2, 1.75)):
        row = {"event": "eval", "step": step, "time": float(step), "forgetting": True}
        record.take({**row, "eval_web_loss": loss, "sample": "x" * (799 + step)})
    assert [mark["step"] for mark in record.evaluations["web"].marks.items] == [2]
    assert [len(item["text"]) for item in record.samples.items] == [799, 800, 802]


def test_the_newest_answers_of_so_many_tasks_are_kept() -> None:
    record = RunRecord()
    for number in range(30):
        record.take({"event": "task", "task": f"task {number}", "accuracy": 0.5, "note": "x"})
    assert list(record.tasks) == [f"task {number}" for number in range(24)]
    record.take({"event": "task", "task": "task 3", "accuracy": 0.75})
    record.take({"event": "task", "task": "task 29", "accuracy": 0.75})
    record.take({"event": "task", "task": 7, "accuracy": 0.75})
    assert len(record.tasks) == 24
    assert record.tasks["task 3"] == {"accuracy": 0.75}
    assert record.tasks["task 4"] == {"accuracy": 0.5}
