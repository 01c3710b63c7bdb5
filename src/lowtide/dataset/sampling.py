"""Refuse rules that leave nothing of a large corpus before all of it is read, by a sample.

In:      PrepareSettings, inputs
Out:     nothing, or an error with the rules that removed every document looked at
Memory:  one block of 1 MiB as it is cleaned

Reading ends at the first document that stays, mostly in the first block. Only where none of
twenty thousand documents, from places all over the corpus, stays, is it refused: a share of one in
two thousand would be missed in one corpus of twenty thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import ReadingSettings, Stream, iter_blocks, plan_streams, read_block
from lowtide.corpus.removals import Report
from lowtide.corpus.textblocks import StreamPaths, TextBlock
from lowtide.counts import counted
from lowtide.dataset.resources import estimate_text_bytes
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import DataError, LowtideError
from lowtide.memory import format_size

__all__ = ["require_some_kept"]

_LONG_RUN_BYTES = 256 << 20  # less is prepared in seconds, and then told
_BLOCK_BYTES = 1 << 20
_FEWEST_DOCUMENTS = 20_000
_MOST_BYTES = 128 << 20
_PLACES = 64
_MOST_FILES = 1024
_SHOWN = 3


def require_some_kept(
    settings: PrepareSettings, inputs: Sequence[InputFile], reading: ReadingSettings
) -> None:
    """Refuse a large corpus of which no document of a sample stays."""
    if estimate_text_bytes(inputs) < _LONG_RUN_BYTES:
        return
    small = replace(reading, block_bytes=_BLOCK_BYTES, on_notice=_pass_over)
    looked_at = [inputs[number] for number in _spaced(len(inputs), _MOST_FILES)]
    streams = plan_streams([row for row in looked_at if row.format.is_file], small)
    cleaning = replace(settings.cleaning, dedup=False)
    report, paths, num_bytes = Report(), StreamPaths(streams), 0
    for block in _iter_sample(streams, small):
        try:
            cleaned = clean_block(block, small, cleaning, paths=paths)
        except LowtideError:
            return  # told by whoever reads all of it
        if len(cleaned.documents):
            return
        report.add(cleaned.counts, [], documents_in=cleaned.documents_in)
        num_bytes += len(block.data)
        if num_bytes >= _MOST_BYTES:
            break
    if report.documents_in >= _FEWEST_DOCUMENTS:
        raise _nothing_left(settings, report, num_bytes)


def _pass_over(notice: str) -> None:
    """What cannot be read is told when all of it is."""


def _iter_sample(streams: Sequence[Stream], reading: ReadingSettings) -> Iterator[TextBlock]:
    """Blocks from places all over the corpus, of what is read in order its beginning."""
    spread = _spaced(len(streams), _PLACES)
    each = -(-_PLACES // max(len(spread), 1))
    for turn in range(each):
        for number in spread:
            stream = streams[number]
            try:
                block = _read_one(stream, turn, each, reading)
            except LowtideError:
                return  # told by whoever reads all of it
            if block is not None:
                yield block


def _read_one(stream: Stream, turn: int, each: int, reading: ReadingSettings) -> TextBlock | None:
    if not stream.random_access:
        return next(islice(iter_blocks(stream, reading), turn, None), None)
    places = _spaced(stream.num_blocks, each)
    return read_block(stream, places[turn], reading) if turn < len(places) else None


def _spaced(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly apart.

    >>> _spaced(10, 4), _spaced(3, 8)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [count * number // min(count, most) for number in range(min(count, most))]


def _nothing_left(settings: PrepareSettings, report: Report, num_bytes: int) -> DataError:
    rules = report.as_json()["rules"]
    worst = sorted(rules, key=lambda rule: -rules[rule]["count"])[:_SHOWN]
    why = ", ".join(f"{rule} {rules[rule]['count']:,}" for rule in worst)
    return DataError(
        f"nothing stays of {counted(report.documents_in, 'document')} from all over the corpus "
        f"({format_size(num_bytes)}): removed by {why}",
        path=settings.out_dir,
        next_step="loosen these rules; lowtide prepare --dry-run on one of the files shows what "
        "each removes",
    )
