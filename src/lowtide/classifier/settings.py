"""Settings of `lowtide train-classifier`; each field's docstring is its help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from lowtide.aliases import WORKER_FLAG
from lowtide.corpus.readingflags import ReadingFlags, as_sequence, check_workers
from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.quickclasses import dataclass

__all__ = ["ClassifierSettings"]

_LIMITS = {
    "epochs": (1, 1000),
    "max_examples": (10, 50_000_000),
    "min_count": (1, 1_000_000),
    "max_words": (1, 100_000_000),
    "buckets": (1, 1_000_000_000),
    "seed": (0, (1 << 64) - 1),
}


@dataclass(frozen=True, kw_only=True)
class _Learning:
    """Examples and the model; the first of the flags."""

    good: tuple[str, ...]
    """Examples of good text: files, folders or globs, as prepare takes them (txt, jsonl, parquet,
    .gz, .zst, .xz, .bz2, hf://NAME:SPLIT)."""
    other: tuple[str, ...]
    """Negative examples: a sample of the text you want to filter, such as a part of a crawl."""
    out_dir: Path
    """Folder for model.bin, which prepare --score and the fasttext package read, and
    classifier.json, a record of its training and its accuracy."""
    max_examples: int = 200_000
    """Most passages (of about 8 KiB) of each class; if there are more, a sample by hash is used."""
    epochs: int = 5
    """Passes over the examples."""
    min_count: int = 2
    """Words that occur less often are left out of the dictionary; their bigrams are still used."""
    max_words: int = 500_000
    """Size limit of the dictionary; the most frequent words are kept."""
    buckets: int = 2_000_000
    """Hash buckets for bigrams (pairs of words)."""
    seed: int = 0
    """Seed of the order of the examples."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(ReadingFlags, _Learning):
    """Examples and size of a classifier.

    Fields are inherited so that the help shows them in the order examples, reading, machine.
    """

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    # Machine
    num_workers: int | None = None
    """Workers; default: one for each core. The result does not depend on it."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""
    restart: bool = False
    """Discard the unfinished work of an earlier command in this folder."""

    def __post_init__(self) -> None:
        for name in ("good", "other"):
            paths = as_sequence(getattr(self, name))
            object.__setattr__(self, name, tuple(map(str, paths)))
            if not paths:
                raise UsageError(f"--{name} names no files", next_step=f"--{name} FILES")
        object.__setattr__(self, "out_dir", Path(self.out_dir))
        self.check_reading()
        check_workers(self.num_workers)
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{flag_name(name)} {value} must be {least} to {most}")
