"""Check by a sample whether rules would remove everything, before a large corpus is read.

In:      PrepareSettings, inputs
Out:     nothing, or an error or a note with the rules that removed every sampled document
Memory:  one reader, and one block of 1 MiB as it is cleaned

Reading ends at the first document that is kept, usually in the first block. The command is refused
only if none of twenty thousand documents, from all parts of the corpus, is kept: rules that keep
one document in two thousand would be refused wrongly once in twenty thousand corpora. A smaller or
less representative sample, or filters by language or score (which are often the same for whole
files), only lead to a notice, and the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import ReadingSettings, Stream, iter_blocks, plan_streams, read_block
from lowtide.corpus.removals import Report
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import StreamPaths, TextBlock
from lowtide.counts import counted
from lowtide.dataset.resources import estimate_text_bytes
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import DataError, LowtideError
from lowtide.memory import format_size
from lowtide.quickclasses import dataclass

__all__ = ["SampleLimits", "require_some_kept"]

_SHOWN = 3


@dataclass(frozen=True)
class SampleLimits:
    """The size of a sample, and when it is large enough to refuse a corpus."""

    long_run_bytes: int = 256 << 20
    """A smaller corpus is not sampled: preparing it takes seconds, and then reports the same."""
    block_bytes: int = 1 << 20
    fewest_documents: int = 20_000
    """A sample of fewer documents refuses nothing."""
    fewest_told: int = 200
    """With fewer documents nothing is reported; a sample of long documents has some thousand."""
    most_bytes: int = 128 << 20
    places: int = 64
    """Number of sampled blocks, from all parts of the corpus."""
    most_files: int = 1024


_LIMITS = SampleLimits()


def require_some_kept(
    settings: PrepareSettings,
    inputs: Sequence[InputFile],
    reading: ReadingSettings,
    *,
    on_notice: Callable[[str], None],
    limits: SampleLimits = _LIMITS,
) -> None:
    """Refuse a large corpus if no sampled document is kept; only warn if that may be chance.

    Unreadable data ends the sample: it is reported when everything is read.
    """
    if estimate_text_bytes(inputs) < limits.long_run_bytes:
        return
    small = replace(reading, block_bytes=limits.block_bytes, on_notice=_pass_over)
    looked_at = [inputs[number] for number in _spaced(len(inputs), limits.most_files)]
    cleaning = _sampled(settings.cleaning)
    try:
        streams = plan_streams([row for row in looked_at if row.format.is_file], small)
        blocks = _iter_sample(streams, small, limits.places)
        found = _find_none(blocks, cleaning, small, StreamPaths(streams), limits.most_bytes)
    except (OSError, LowtideError):
        return
    if found is None or found.report.documents_in < limits.fewest_told:
        return
    unseen = {row.index for row in looked_at if row.size_bytes} - found.inputs
    is_spread = len(looked_at) == len(inputs) and all(stream.random_access for stream in streams)
    is_enough = is_spread and found.report.documents_in >= limits.fewest_documents
    if is_enough and not unseen and not (cleaning.language_model or cleaning.score):
        raise _nothing_left(settings, found)
    on_notice(f"warning: {_describe(found)}; going on, since the rest may be otherwise")


def _pass_over(notice: str) -> None:
    """Ignore notices: they are reported when everything is read."""


def _sampled(cleaning: CleaningSettings) -> CleaningSettings:
    """The settings for a sample, without duplicates and best scores, which a part does not show."""
    if cleaning.keep_top is None:
        return replace(cleaning, dedup=False)
    return replace(cleaning, dedup=False, keep_top=None, score="", score_label="")


@dataclass(frozen=True)
class _Sample:
    """Sampled documents, none of which is kept."""

    report: Report
    num_bytes: int
    inputs: frozenset[int]
    """The indices of the inputs that they are from."""


def _find_none(
    blocks: Iterator[TextBlock],
    cleaning: CleaningSettings,
    reading: ReadingSettings,
    paths: StreamPaths,
    most_bytes: int,
) -> _Sample | None:
    """Clean a sample up to the first document that is kept; None if there is one."""
    report, num_bytes, inputs = Report(), 0, set[int]()
    for block in blocks:
        cleaned = clean_block(block, reading, cleaning, paths=paths)
        if len(cleaned.documents):
            return None
        report.add(cleaned.counts, [], documents_in=cleaned.documents_in)
        num_bytes += len(block.data)
        inputs.update(segment.input_index for segment in block.segments)
        if num_bytes >= most_bytes:
            break
    return _Sample(report, num_bytes, frozenset(inputs))


def _iter_sample(
    streams: Sequence[Stream], reading: ReadingSettings, places: int
) -> Iterator[TextBlock]:
    """Blocks from all parts of the corpus; from inputs that are read sequentially, the beginning.

    One stream after the other: readers of many compressed files at once would not fit the budget.
    """
    spread = _spaced(len(streams), places)
    each = -(-places // max(len(spread), 1))
    for number in spread:
        stream = streams[number]
        blocks = islice(iter_blocks(stream, reading), each)
        if stream.random_access:
            spots = _spaced(stream.num_blocks, each)
            blocks = (read_block(stream, spot, reading) for spot in spots)
        yield from (block for block in blocks if block is not None)


def _spaced(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced.

    >>> _spaced(10, 4), _spaced(3, 8)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [count * number // min(count, most) for number in range(min(count, most))]


def _describe(found: _Sample) -> str:
    rules = found.report.as_json()["rules"]
    worst = sorted(rules, key=lambda rule: -rules[rule]["count"])[:_SHOWN]
    why = ", ".join(f"{rule} {rules[rule]['count']:,}" for rule in worst)
    return (
        f"nothing stays of {counted(found.report.documents_in, 'document')} from "
        f"{counted(len(found.inputs), 'file')} ({format_size(found.num_bytes)}): removed by {why}"
    )


def _nothing_left(settings: PrepareSettings, found: _Sample) -> DataError:
    return DataError(
        _describe(found),
        path=settings.out_dir,
        next_step="loosen these rules; lowtide prepare --dry-run on one of the files shows what "
        "each removes",
    )
