"""Figures of a classifier: those of counting by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.classifier.judging import Shown, measure_scores

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
    assert abs(figures["auc"] - sum(pairs) / len(pairs)) < 1e-4
    taken = sum(score >= 0.5 for score in scores)
    right = sum(score >= 0.5 for score in good)
    assert abs(figures["precision"] - right / max(taken, 1)) < 1e-4
    assert abs(figures["recall"] - right / len(good)) < 1e-4
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
