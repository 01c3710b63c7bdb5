"""Measure a classifier on held-out examples, and show what it would keep and drop.

In:      a trainer, files of held-out examples
Out:     precision, recall, AUC; texts of the highest and lowest scores
Memory:  one file's examples, a number for each example
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import _native
from lowtide.arrays import np
from lowtide.classifier.examplefiles import iter_chunks
from lowtide.classifier.examples import GOOD, OTHER
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Shown", "measure", "measure_scores"]

_SHOWN = 3
_SHOWN_BYTES = 240


@dataclass
class Shown:
    """The texts with the highest and the lowest scores."""

    best: list[tuple[float, int, str]] = field(default_factory=list)
    worst: list[tuple[float, int, str]] = field(default_factory=list)

    def add(self, score: float, number: int, text: bytes) -> None:
        """Keep a text if its score is among the highest or lowest; of equal scores, the first."""
        for heap, key in ((self.best, score), (self.worst, -score)):
            if len(heap) < _SHOWN or (key, -number) > heap[0][:2]:
                row = (key, -number, _shorten(text))
                heapq.heappush(heap, row) if len(heap) < _SHOWN else heapq.heapreplace(heap, row)

    def best_rows(self) -> list[dict[str, Any]]:
        """Scores and texts, the best first."""
        return _as_rows(self.best, 1)

    def worst_rows(self) -> list[dict[str, Any]]:
        """Scores and texts, the worst first."""
        return _as_rows(self.worst, -1)


def _as_rows(heap: list[tuple[float, int, str]], sign: float) -> list[dict[str, Any]]:
    rows = sorted(heap, reverse=True)
    return [{"score": round(sign * key, 6), "text": text} for key, _, text in rows]


def _shorten(text: bytes) -> str:
    return " ".join(text[:_SHOWN_BYTES].decode("utf-8", "ignore").split())


def measure(
    trainer: _native.ClassifierTrainer,
    paths: list[Path],
    *,
    num_workers: int,
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """Score held-out examples; return metrics, and texts to show."""
    scores: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.uint8]] = []
    shown = (Shown(), Shown())
    number = 0
    for chunk in iter_chunks(paths):
        found = np.array(trainer.score(chunk.text, chunk.ends, num_workers), np.float32)
        for place, (score, label) in enumerate(zip(found, chunk.labels, strict=True)):
            shown[label].add(float(score), number, chunk.text_of(place))
            number += 1
        scores.append(found)
        labels.append(chunk.labels)
        on_done(len(chunk))
    figures = measure_scores(np.concatenate(scores), np.concatenate(labels))
    others, good = shown[OTHER], shown[GOOD]
    return {
        **figures,
        "would_keep": others.best_rows(),
        "would_drop": others.worst_rows(),
        "good_with_low_scores": good.worst_rows(),
    }


def measure_scores(scores: NDArray[np.float32], labels: NDArray[np.uint8]) -> dict[str, Any]:
    """Precision and recall of the good class at a score of 0.5, and the area under the ROC curve.

    >>> figures = measure_scores(
    ...     np.array([0.9, 0.4, 0.6, 0.1], np.float32), np.array([1, 1, 0, 0], np.uint8)
    ... )
    >>> figures["precision"], figures["recall"], figures["auc"]
    (0.5, 0.5, 0.75)
    """
    good = labels == GOOD
    num_good, num_other = int(good.sum()), int((~good).sum())
    taken = scores >= 0.5
    right = int((taken & good).sum())
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal scores have one rank
    area = (ranks[good].sum() - num_good * (num_good + 1) / 2) / max(num_good * num_other, 1)
    return {
        "good": num_good,
        "other": num_other,
        "precision": round(right / max(int(taken.sum()), 1), 4),
        "recall": round(right / max(num_good, 1), 4),
        "auc": round(float(area), 4),
    }
