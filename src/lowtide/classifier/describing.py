"""Describe in a few lines how good a classifier is, and what it would keep.

In:      TrainedClassifier
Out:     text for users
"""

from __future__ import annotations

from typing import Any

from lowtide.classifier.training import TrainedClassifier
from lowtide.counts import counted
from lowtide.errors import DataError, printable
from lowtide.filenames import CLASSIFIER_NAME
from lowtide.flags import path_word

__all__ = ["describe_classifier"]

_SHOWN_CHARS = 90


def describe_classifier(trained: TrainedClassifier) -> str:
    """The output of `lowtide train-classifier`."""
    try:
        return _describe(trained)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"classifier.json is damaged: what it says of the model cannot be read ({error!r})",
            path=trained.path.with_name(CLASSIFIER_NAME),
            next_step="remove this folder, and give the command again",
        ) from None


def _describe(trained: TrainedClassifier) -> str:
    record = trained.record
    examples, held_out = record["examples"], record["held_out"]
    there = " (was there already; nothing was touched)" if trained.was_there else ""
    lines = [
        f"Classifier in {trained.path}{there}",
        f"  learned from {examples['good']:,} good and {examples['other']:,} other passages, "
        f"{record['words']:,} words",
    ]
    if examples["in_both"]:
        lines.append(f"  in both: {counted(examples['in_both'], 'text')}; good, not other")
    lines += [
        f"Held out: {held_out['good']:,} good and {held_out['other']:,} other passages",
        f"  precision {held_out['precision']:.3f} and recall {held_out['recall']:.3f} of good at "
        f"a score of 0.5, AUC {held_out['auc']:.4f}",
        *_show("Of --other it would keep first:", held_out["would_keep"]),
        *_show("and drop first:", held_out["would_drop"]),
        *_show("Of --good it likes least:", held_out["good_with_low_scores"]),
        f"Next: lowtide prepare --input-files FILES --score {path_word(trained.path)} "
        "--keep-top 0.1 --out-dir data/mine",
    ]
    return "\n".join(lines)


def _show(title: str, rows: list[dict[str, Any]]) -> list[str]:
    shown = []
    for row in rows:
        text = printable(row["text"])
        more = "…" if len(text) > _SHOWN_CHARS else ""
        shown.append(f"  {row['score']:.4f}  {text[:_SHOWN_CHARS]}{more}")
    return [title, *shown]
