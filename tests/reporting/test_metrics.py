"""Metrics files are read once, from where the last reading ended, whatever their length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lowtide.reporting.jobs import describe_state
from lowtide.reporting.metrics import JobMetrics, MetricsFile, PhaseTime

from .conftest import MIB, metrics_row, write_rows


def read_all(path: Path) -> JobMetrics:
    job = JobMetrics()
    job.read(MetricsFile(path))
    return job


def test_memory_budget_and_phases_are_found(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [metrics_row(second, phase="clean", done=second, unit="B") for second in range(5)]
    rows += [metrics_row(5 + second, phase="encode", done=1, unit="B") for second in range(3)]
    write_rows(path, [*rows, metrics_row(8, event="end")])
    job = read_all(path)
    assert (job.seconds, job.peak_bytes, job.budget_bytes) == (8, 350 * MIB, 1024 * MIB)
    assert [(phase.name, phase.begin, phase.end) for phase in job.phases] == [
        ("clean", 0, 4),
        ("encode", 4, 7),
    ]
    assert job.last_event == "end"


def test_a_job_that_passed_its_budget_does_not_look_finished_like_others(tmp_path: Path) -> None:
    for excess, text, tone in ((0, "finished", "good"), (5, "finished, over its budget", "warn")):
        path = tmp_path / f"metrics{excess}.jsonl"
        write_rows(path, [metrics_row(0), metrics_row(1, event="end", over_budget_bytes=excess)])
        assert describe_state(read_all(path), 2.0) == {"text": text, "tone": tone}


def test_a_pause_between_stop_and_start_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [metrics_row(0), metrics_row(1), metrics_row(2, event="stopped")])
    write_rows(path, [metrics_row(5), metrics_row(6)])  # started again soon, as asked to
    write_rows(path, [metrics_row(5000), metrics_row(5001)])  # killed, and started the next day
    job = read_all(path)
    assert job.seconds == 4
    assert job.resumes == [2, 3]
    assert job.last_event is None


def test_half_a_line_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    text = json.dumps(metrics_row(1)) + "\n"
    path.write_text(text + text[:20])
    file, job = MetricsFile(path), JobMetrics()
    assert job.read(file) == 1
    assert job.read(file) == 0
    with path.open("a") as more:
        more.write(text[20:])
    assert job.read(file) == 1


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"time": 1\n\xff\xfe\n[1, 2]\n"text"\n' + b"[" * 100_000 + b"\n{}\n")
    write_rows(path, [metrics_row(3)])
    assert read_all(path).num_rows == 1


def test_a_file_written_anew_is_told_from_one_that_grew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    assert file.is_same()
    write_rows(path, [metrics_row(1)])
    assert JobMetrics().read(file) == 1
    write_rows(path, [metrics_row(2)])
    assert file.is_same()
    (tmp_path / "other").write_text(path.read_text())
    (tmp_path / "other").replace(path)
    assert not file.is_same()


def test_a_file_written_anew_with_the_inode_of_the_old_one(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    write_rows(file.path, [metrics_row(1)])
    assert JobMetrics().read(file) == 1
    file.path.write_text("")  # the inode stays
    write_rows(file.path, [metrics_row(50), metrics_row(51), metrics_row(52)])
    assert not file.is_same()


def test_long_files_give_short_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [metrics_row(second) for second in range(5000)])
    assert 200 <= len(read_all(path).memory.as_json(["time"])["y"]) <= 480


def add_all(*rows: dict[str, Any]) -> JobMetrics:
    job = JobMetrics()
    for row in rows:
        job.add(row)
    return job


def test_a_job_begins_with_nothing() -> None:
    job = JobMetrics()
    assert job.is_over_budget is False
    assert (job.seconds, job.peak_bytes, job.device_peak_bytes, job.num_rows) == (0.0, 0, 0, 0)
    phase = PhaseTime("job", "name", 1.0, 2.0)
    assert (phase.done, phase.rate, phase.unit, phase.seconds) == (0, 0, "", 0)


def test_half_a_minute_of_silence_is_a_stop_and_time_never_runs_back() -> None:
    assert add_all({"time": 0.0}, {"time": 30.0}).resumes == []
    assert add_all({"time": 0.0}, {"time": 30.5}).resumes == [0.0]
    assert add_all({"time": 5.0}, {"time": 3.0}, {"time": 4.0}).seconds == 1.0


def test_lists_of_a_job_stay_short() -> None:
    phases = [{"time": float(n), "phase": f"p{n}"} for n in range(70)]
    job = add_all(*phases)
    assert len(job.phases) == 60 and job.phases[-1].name == "p59"
    assert job.phases[0].done == 0 and job.phases[0].rate == 0 and job.phases[0].seconds == 0
    stops = [{"time": 100.0 * n} for n in range(150)]
    assert len(add_all(*stops).resumes) == 100


def test_a_file_that_was_not_read_yet_is_the_same_whatever_it_is(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    assert file.is_same()
    file.path.write_text('{"time": 1}\n')
    assert file.is_same()
    assert len(list(file.iter_rows())) == 1
    assert file.is_same()
    file.path.unlink()
    assert not file.is_same()


def test_a_peak_has_the_budget_of_its_job(tmp_path: Path) -> None:
    """A dataset is prepared in little memory and verified without a limit, in the same folder."""
    small = {"peak_memory_bytes": 30 * MIB, "budget_bytes": 9000 * MIB}
    large = {"peak_memory_bytes": 120 * MIB, "budget_bytes": 500 * MIB}
    for number, rows in enumerate(([small, large], [large, small], [large, small, large])):
        path = tmp_path / f"metrics{number}.jsonl"
        write_rows(path, [metrics_row(time, **row) for time, row in enumerate(rows)])
        job = read_all(path)
        assert (job.peak_bytes, job.budget_bytes) == (120 * MIB, 500 * MIB)
