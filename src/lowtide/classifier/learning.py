"""Train a classifier on gathered examples: build a dictionary, then passes of AdaGrad.

In:      files of examples (examplefiles)
Out:     a native trainer with trained rows
Memory:  tables of words, `table_bytes` per worker; then the dictionary, and twelve bytes per row

The result is the same for any number of workers and any memory: words are counted exactly, in as
many partitions as the tables need, and a batch updates the rows in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide import _native
from lowtide.arrays import np
from lowtide.classifier.examplefiles import CHUNK_EXAMPLES, iter_chunks
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file, write_work_file
from lowtide.quickclasses import dataclass

__all__ = ["Learning", "count_words", "learn"]

# Chosen on one task: whether a passage of Wikipedia contained words of war, which were removed from
# it. An AUC of 0.946 after five passes, on the same passages on which some thirty settings were
# compared. fastText had 0.847 at its default rate and 0.947 at the best of three.
_RATE = 5.0
_FIRST_SUM = 1e-9  # initial sum of squares: it slows down words rarer than one in 30,000
_FEWEST_BATCHES = 100  # per pass: with few examples, batches are smaller
_SMALLEST_BATCH = 16


def count_words(
    paths: list[Path], pool: WorkerPool, *, min_count: int, max_words: int, table_bytes: int
) -> _native.WordList:
    """The most frequent words of all examples, with their counts."""
    num_partitions = pool.num_workers
    while True:
        words = _count_partitions(paths, pool, num_partitions, min_count, max_words, table_bytes)
        if words is not None:
            return words
        num_partitions *= 2


def _count_partitions(
    paths: list[Path],
    pool: WorkerPool,
    num_partitions: int,
    min_count: int,
    max_words: int,
    table_bytes: int,
) -> _native.WordList | None:
    """The words, or None if a table was full: then more partitions are needed."""

    def count(partition: int) -> _native.WordList | None:
        counter = _native.WordCounter(partition, num_partitions, table_bytes)
        for chunk in iter_chunks(paths):
            if not counter.add(chunk.text, chunk.ends):
                return None
        return _native.choose_words([counter.list(min_count)], max_words)

    chosen: _native.WordList | None = None
    for words in pool.run(
        (lambda number=number: count(number)) for number in range(num_partitions)
    ):
        if words is None:
            return None
        chosen = words if chosen is None else _native.choose_words([chosen, words], max_words)
    return chosen


@dataclass(frozen=True)
class Learning:
    """Settings of the training of a classifier."""

    epochs: int
    min_count: int
    buckets: int
    counts: tuple[int, int]
    """Number of examples of each class, others first."""
    folder: Path
    """Folder for the rows after each pass."""

    @property
    def batch_examples(self) -> int:
        """Batch size: a power of two, at most a file's examples; scored with the same rows."""
        size = CHUNK_EXAMPLES
        while size > _SMALLEST_BATCH and size * _FEWEST_BATCHES > sum(self.counts):
            size //= 2
        return size

    @property
    def weights(self) -> tuple[float, float]:
        """The weight of an error by class, so that both classes have equal weight."""
        total = sum(self.counts)
        return total / (2 * self.counts[0]), total / (2 * self.counts[1])

    def state_path(self, epoch: int) -> Path:
        """The path of the rows after a pass."""
        return self.folder / f"rows-{epoch:06d}.gathered"


def learn(
    learning: Learning,
    words: _native.WordList,
    paths: list[Path],
    *,
    num_workers: int,
    on_done: Callable[[int, float], None],
) -> _native.ClassifierTrainer:
    """Make `epochs` passes over all examples; when resuming, finished passes are not repeated.

    `on_done` is called with how many examples were learned, and their mean loss.
    """
    trainer = _native.ClassifierTrainer(
        words, learning.buckets, learning.min_count, learning.epochs, _FIRST_SUM
    )
    total = sum(learning.counts)
    first = _restore(learning, trainer)
    on_done(first * total, 0.0)
    num_batches = -(-total // learning.batch_examples)  # a file contains whole batches
    step = first * num_batches
    for epoch in range(first, learning.epochs):
        for chunk in iter_chunks(paths):
            for begin in range(0, len(chunk), learning.batch_examples):
                part = chunk.part(begin, min(begin + learning.batch_examples, len(chunk)))
                rate = _RATE * (1 - step / (learning.epochs * num_batches))
                loss = trainer.step(
                    part.text, part.ends, part.labels, learning.weights, rate, num_workers
                )
                step += 1
                on_done(len(part), loss / len(part))
        _keep(learning, trainer, epoch + 1)
    return trainer


def _keep(learning: Learning, trainer: _native.ClassifierTrainer, epoch: int) -> None:
    sections = {"rows": trainer.rows, "sums": trainer.sums}
    write_work_file(learning.state_path(epoch), {}, sections)
    learning.state_path(epoch - 1).unlink(missing_ok=True)


def _restore(learning: Learning, trainer: _native.ClassifierTrainer) -> int:
    """Load the rows of the last finished pass; return the number of finished passes."""
    for epoch in range(learning.epochs, 0, -1):
        path = learning.state_path(epoch)
        if path.exists():
            work = open_work_file(path)
            rows, sums = (np.frombuffer(work.read(name), np.float32) for name in ("rows", "sums"))
            trainer.restore(rows, sums)
            return epoch
    return 0
