"""Tables and charts of any job, from what its metrics say."""

from __future__ import annotations

from pathlib import Path

from lowtide.reporting.jobs import JobReader, describe_state, phase_table
from lowtide.reporting.metrics import JobMetrics, PhaseTime


def test_phases_are_a_table_where_there_are_several() -> None:
    clean = PhaseTime("prepare", "clean", begin=0, end=3, done=2 << 20, rate=1 << 20, unit="B")
    encode = PhaseTime("prepare", "encode", begin=3, end=9, done=500, unit="tokens", seconds=5)
    assert phase_table(JobMetrics(phases=[clean])) is None
    table = phase_table(JobMetrics(phases=[clean, encode]))
    assert table is not None and table["columns"][:3] == ["job", "phase", "time"]
    assert [row[:3] for row in table["rows"]] == [
        ["prepare", "clean", "3.0s"],
        ["prepare", "encode", "5.0s"],
    ]
    assert [row[4] for row in table["rows"]] == ["1.0 MiB/s", ""]


def test_a_job_is_alive_for_a_quarter_of_a_minute(tmp_path: Path) -> None:
    job = JobMetrics()
    job.add({"time": 100.0})
    assert describe_state(job, 115.0)["text"] == "running"
    assert describe_state(job, 115.5)["text"].startswith("no news since ")


def test_news_of_a_job_are_told_once_and_a_new_file_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = JobReader(path, title="mine")
    assert not reader.read()
    path.write_text('{"time": 1, "peak_memory_bytes": 5}\n')
    assert reader.read() and not reader.read()
    with path.open("a") as file:
        file.write('{"time": 2, "peak_memory_bytes": 6}\n')
    assert reader.read()
    assert reader._job.num_rows == 2
    path.write_text('{"time": 9, "peak_memory_bytes": 1}\n')
    assert reader.read()
    assert reader._job.num_rows == 1 and reader._job.peak_bytes == 1
