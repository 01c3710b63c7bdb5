"""The stages of `--keep-top`: score every part, then find the lowest score that is kept.

In:      parts of the corpus, a fastText model
Out:     score: a key for each scored document, and the hashes of the text read, one file per part;
         top: the threshold, which cleaning applies from then on
Memory:  one block and its keys; 65,536 counters
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from lowtide.corpus.ranking import find_cut
from lowtide.dataset.staged.hashing import CONTENT_ROW
from lowtide.dataset.staged.job import SCORE_STAGE, TOP_STAGE, CleanPart, StagedJob
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.tasks import Task, Uncommitted

__all__ = ["ScoreStage", "top_stage"]

_CHUNK_BYTES = 1 << 20


class ScoreStage:
    """A task for each part of the corpus."""

    name = SCORE_STAGE

    def __init__(self, job: StagedJob) -> None:
        self._job = job

    def count_tasks(self) -> int:
        """One for each part."""
        return len(self._job.parts)

    def run(self, index: int) -> Uncommitted:
        """Score a part."""
        records = self._job.records

        def write(output: OutputWriter) -> dict[str, Any]:
            contents = bytearray()
            output.begin("keys")
            for _, cleaned, rows in CleanPart(self._job, index, collect_scores=True):
                output.write(cleaned.score_keys)
                for number, digest in rows:
                    contents += CONTENT_ROW.pack(number, bytes.fromhex(digest))
            output.section("contents", bytes(contents))
            return {}

        return records.write(Task(self.name, index), write)


def top_stage(job: StagedJob, share: float) -> OneTask:
    """One task: finds the threshold from the keys of all parts."""
    return OneTask(
        TOP_STAGE, job.records, lambda _: find_cut(partial(_iter_keys, job), share).as_json()
    )


def _iter_keys(job: StagedJob) -> Iterator[memoryview]:
    for part in range(len(job.parts)):
        output = job.records.open(Task(SCORE_STAGE, part))
        size = output.size("keys")
        for begin in range(0, size, _CHUNK_BYTES):
            yield output.read("keys", begin=begin, end=min(begin + _CHUNK_BYTES, size))
