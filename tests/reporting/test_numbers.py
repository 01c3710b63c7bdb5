"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'reporting'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "reporting.comparisons": {"MOST_RUNS": 32, "ComparisonReader.__init__(most)": 32},
    "reporting.datasetcomparisons": {
        "MOST_DATASETS": 8,
        "_MAX_SOURCES": 40,
        "_EXAMPLE_LETTERS": 160,
    },
    "reporting.datasetfacts": {"_PER_OCTAVE": 8, "_NUM_BINS": 320},
    "reporting.datasets": {"_MAX_SOURCES": 24, "_MAX_SHARDS": 200},
    "reporting.jobs": {"_ALIVE_SECONDS": 15.0},
    "reporting.metrics": {
        "_GAP_SECONDS": 30.0,
        "_MAX_LINE_BYTES": 1_048_576,
        "_LAST_BYTES": 4_096,
        "_MAX_PHASES": 60,
        "_MAX_RESUMES": 100,
        "PhaseTime.done": 0,
        "PhaseTime.rate": 0,
        "PhaseTime.seconds": 0,
        "JobMetrics.seconds": 0.0,
        "JobMetrics.peak_bytes": 0,
        "JobMetrics.device_peak_bytes": 0,
        "JobMetrics.is_over_budget": False,
        "JobMetrics.num_rows": 0,
    },
    "reporting.reports": {
        "_PAGE_BYTES": 16_777_216,
        "_TOKENIZER_BYTES": 41_943_040,
        "_RUN_BYTES": 2_097_152,
        "ReportResult.was_there": False,
    },
    "reporting.runcurves": {
        "MAX_SAMPLES": 200,
        "_MAX_EVALUATIONS": 24,
        "_MAX_MARKS": 60,
        "_SAMPLE_CHARACTERS": 800,
        "Evaluation.best_step": 0,
        "RunRecord.forgetting_tolerance": 0.0,
        "RunRecord.step": 0,
        "RunRecord.elapsed_seconds": 0.0,
        "RunRecord.skipped_steps": 0,
    },
    "reporting.series": {"Series.__init__(limit)": 480, "round_number(digits)": 6},
    "reporting.settings": {
        "ReportSettings.watch": False,
        "ReportSettings.port": 0,
        "ReportSettings.interval": 2.0,
    },
    "reporting.tokenizers": {
        "_SAMPLE_BYTES": 16_777_216,
        "_BATCH_BYTES": 1_048_576,
        "_MAX_SOURCES": 40,
        "_MAX_TEXTS": 8,
        "_TEXT_CHARACTERS": 360,
        "_LONGEST_COLUMN": 20,
        "_LONGEST_SHOWN": 12,
    },
    "reporting.watching": {"PageServer.__init__(port)": 0, "PageServer.__init__(interval)": 2.0},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("reporting", NUMBERS) == {}
