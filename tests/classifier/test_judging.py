"""Figures of a classifier: those of counting by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.classifier.judging import Shown, measure, measure_scores
from lowtide.corpus.workfiles import write_work_file

SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(
    good=st.lists(SCORES, min_size=1, max_size=9), other=st.lists(SCORES, min_size=1, max_size=9)
)
@settings(max_examples=50, deadline=None)
def test_figures_are_those_of_pairs(good: list[float], other: list[float]) -> None:
    scores = np.array([*good, *other], np.float32)
    labels = np.array([1] * len(good) + [0] * len(other), np.uint8)
    figures = measure_scores(scores, labels)
    pairs = [(a > b) + 0.5 * (a == b) for a in good for b in other]
    assert figures["auc"] == pytest.approx(round(sum(pairs) / len(pairs), 4), abs=1e-12)
    taken = sum(score >= 0.5 for score in scores)
    right = sum(score >= 0.5 for score in good)
    assert figures["precision"] == round(right / max(taken, 1), 4)
    assert figures["recall"] == round(right / len(good), 4)
    assert (figures["good"], figures["other"]) == (len(good), len(other))


def test_shown_are_the_extremes_and_the_first_of_equals() -> None:
    shown = Shown()
    for number, score in enumerate([0.5, 0.9, 0.1, 0.9, 0.5, 0.9, 0.9]):
        shown.add(score, number, b"text \xff " + str(number).encode() * 300)
    best = shown.best_rows()
    assert [row["text"].split()[1][0] for row in best] == ["1", "3", "5"]
    worst = shown.worst_rows()
    assert [row["score"] for row in worst] == [0.1, 0.5, 0.5]
    assert [row["text"].split()[1][0] for row in worst] == ["2", "0", "4"]
    assert all(len(row["text"]) <= 240 for row in best)


def test_figures_without_one_of_the_classes() -> None:
    """Nothing is divided by nothing."""
    scores = np.array([0.2, 0.7], np.float32)
    for label, good, other in ((0, 0, 2), (1, 2, 0)):
        figures = measure_scores(scores, np.full(2, label, np.uint8))
        assert (figures["good"], figures["other"], figures["auc"]) == (good, other, 0.0)
        assert (figures["precision"], figures["recall"]) == (float(label), label / 2)
    none = measure_scores(np.array([0.1], np.float32), np.ones(1, np.uint8))
    assert (none["precision"], none["recall"]) == (0.0, 0.0)


def test_scores_are_shown_with_six_digits_and_texts_in_one_line() -> None:
    shown = Shown()
    shown.add(1 / 3, 0, b"  a \n\t b " + "\u00e9".encode() * 200)
    (best,), (worst,) = shown.best_rows(), shown.worst_rows()
    assert best == worst == {"score": 0.333333, "text": "a b " + "\u00e9" * 115}


def test_what_was_held_out_is_scored_file_by_file(tmp_path: Path) -> None:
    """Of two classes, the texts to look at; equal scores by their place among all."""
    texts = [[f"{name}{number}" for number in range(4)] for name in "ab"]
    scores = [[0.9, 0.2, 0.6, 0.6], [0.6, 0.1, 0.7, 0.3]]
    labels = [[1, 0, 0, 1], [0, 0, 1, 0]]
    paths = [tmp_path / name for name in "ab"]
    for path, words, kinds in zip(paths, texts, labels, strict=True):
        ends = np.cumsum([len(word) for word in words]).astype(np.uint64)
        sections = {"text": "".join(words).encode(), "ends": ends.tobytes(), "labels": bytes(kinds)}
        write_work_file(path, {}, {name: memoryview(data) for name, data in sections.items()})
    asked: list[int] = []

    class Trainer:
        def score(self, text: Any, ends: Any, workers: int) -> list[float]:
            asked.append(workers)
            return scores[0 if bytes(text).startswith(b"a") else 1]

    told: list[int] = []
    trainer: Any = Trainer()
    found = measure(trainer, paths, num_workers=3, on_done=told.append)
    assert (asked, told) == ([3, 3], [4, 4])
    rows = {
        name: [(row["score"], row["text"]) for row in found.pop(name)]
        for name in ("would_keep", "would_drop", "good_with_low_scores")
    }
    assert rows == {
        "would_keep": [(0.6, "a2"), (0.6, "b0"), (0.3, "b3")],
        "would_drop": [(0.1, "b1"), (0.2, "a1"), (0.3, "b3")],
        "good_with_low_scores": [(0.6, "a3"), (0.7, "b2"), (0.9, "a0")],
    }
    assert found == {"good": 3, "other": 5, "precision": 0.6, "recall": 1.0, "auc": 0.9333}
