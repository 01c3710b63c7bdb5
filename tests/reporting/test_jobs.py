"""Tables and charts of any job, from what its metrics say."""

from __future__ import annotations

from lowtide.reporting.jobs import phase_table
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
