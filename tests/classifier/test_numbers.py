"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'classifier'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "classifier.describing": {"_SHOWN_CHARS": 90},
    "classifier.examplefiles": {"CHUNK_EXAMPLES": 256},
    "classifier.examples": {
        "PASSAGE_BYTES": 8_192,
        "OTHER": 0,
        "GOOD": 1,
        "_ALL": 18_446_744_073_709_551_615,
        "_FEWEST": 10,
        "_MOST_PARTS": 1_024,
        "_HELD_OUT": 10,
        "_MOST_HELD_OUT": 20_000,
        "choose_examples(most_parts)": 1_024,
    },
    "classifier.judging": {"_SHOWN": 3, "_SHOWN_BYTES": 240},
    "classifier.learning": {
        "_RATE": 5.0,
        "_FIRST_SUM": 1e-09,
        "_FEWEST_BATCHES": 100,
        "_SMALLEST_BATCH": 16,
    },
    "classifier.resources": {
        "_EXAMPLE_BYTES": 40,
        "_CHOICE_BYTES": 160,
        "_WORD_BYTES": 90,
        "_ROW_BYTES": 28,
        "_CHANGE_BYTES": 20,
        "_FILE_BYTES": 250,
        "_SMALLEST_TABLE": 4_194_304,
        "_SMALLEST_DOCUMENT": 20,
    },
    "classifier.settings": {
        "_LIMITS": {
            "epochs": (1, 1_000),
            "max_examples": (10, 50_000_000),
            "min_count": (1, 1_000_000),
            "max_words": (1, 100_000_000),
            "buckets": (1, 1_000_000_000),
            "seed": (0, 18_446_744_073_709_551_615),
        },
        "_Learning.max_examples": 200_000,
        "_Learning.epochs": 5,
        "_Learning.min_count": 2,
        "_Learning.max_words": 500_000,
        "_Learning.buckets": 2_000_000,
        "_Learning.seed": 0,
        "ClassifierSettings.restart": False,
    },
    "classifier.training": {"TrainedClassifier.was_there": False},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("classifier", NUMBERS) == {}
