"""Clean and filter blocks of documents in native code, and count removals by their reason.

In:      TextBlock (reading)
Out:     CleanedBlock (native): clean text, document rows, hashes of lines for deduplication
Memory:  about three times the block
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.normalforms import to_nfc
from lowtide.corpus.quality import native_masks, native_rules
from lowtide.corpus.ranking import ScoreCut
from lowtide.corpus.reading import ReadingSettings, TextBlock, extract_json_rows
from lowtide.corpus.textblocks import Paths
from lowtide.corpus.usersteps import StepError, apply_step

if TYPE_CHECKING:
    import numpy.typing as npt

from lowtide.corpus.removals import RULES, Report
from lowtide.corpus.settings import NATIVE_OPTIONS, CleaningSettings

__all__ = [
    "DOCUMENT_ROW_BYTES",
    "HASH_ROW_BYTES",
    "clean_block",
    "count_languages",
    "native_options",
]

DOCUMENT_ROW_BYTES = _native.DOCUMENT_ROW_BYTES
HASH_ROW_BYTES = _native.HASH_ROW_BYTES
FIRST, LAST = 1, 2
_LARGEST_KEY = (1 << 64) - 1


def native_options(
    options: CleaningSettings,
    *,
    collect_characters: bool = False,
    collect_scores: bool = False,
    cut: ScoreCut | None = None,
) -> _native.CleanOptions:
    """The options for the native core; with `keep_top`, `cut` decides which documents are kept."""
    native = _native.CleanOptions()
    for name in NATIVE_OPTIONS:
        setattr(native, name, getattr(options, name))
    native.set_rules(*native_rules(options.rules, options.rule_limit))
    native.mask_kinds = native_masks(options.mask)
    models = options.models
    if models is not None:
        native.set_models(
            models.language,
            models.wanted,
            models.min_language_score,
            models.score,
            models.score_label,
            models.keep_above,
        )
    if options.keep_top is not None:
        native.set_rank(collect_scores, _LARGEST_KEY if cut is None else cut.key)
    native.collect_characters = collect_characters
    return native


def count_languages(
    cleaned: _native.CleanedBlock, options: CleaningSettings
) -> dict[str, tuple[int, int]]:
    """Documents and bytes of a block by language, if a model identifies it."""
    models = options.models if cleaned.languages else None
    if models is None or models.language is None:
        return {}
    rows = zip(models.language.labels, cleaned.languages, strict=True)
    return {label: row for label, row in rows if row[0]}


def clean_block(
    block: TextBlock,
    reading: ReadingSettings,
    options: CleaningSettings,
    *,
    paths: Paths,
    collect_characters: bool = False,
    collect_scores: bool = False,
    cut: ScoreCut | None = None,
    native: _native.CleanOptions | None = None,
) -> _native.CleanedBlock:
    """Split a block into documents and clean them; releases the GIL meanwhile.

    `native` is the result of `native_options`, passed in if many blocks are cleaned.
    """
    if options.step and not collect_scores:
        judged = replace(options, step="", dedup=False)
        cleaned = clean_block(block, reading, judged, paths=paths, cut=cut)
        return _take_step(cleaned, options, paths, collect_characters=collect_characters)
    compose = _compose_lower if options.lowercase else _compose
    native = native or native_options(
        options, collect_characters=collect_characters, collect_scores=collect_scores, cut=cut
    )
    if block.kind == "text":
        segments = [
            (part.input_index, part.offset, part.begin, part.end) for part in block.segments
        ]
        return _native.clean_text(
            block.data,
            reading.separators,
            segments,
            block.continues,
            block.continued,
            native,
            compose,
        )
    data, rows = _locate_rows(block, reading, paths)
    return _native.clean_block(data, *rows, native, compose)


class _SteppedBlock:
    """A clean block after the user's step: text of the second pass, counts of both passes."""

    def __init__(
        self, before: _native.CleanedBlock, after: _native.CleanedBlock, report: Report
    ) -> None:
        self._after = after
        report.add(before.counts, before.samples)
        report.add(after.counts, after.samples)
        self.counts = [tuple(row) for row in report.counts]
        self.samples = [
            (rule, text.encode()) for rule, texts in enumerate(report.samples) for text in texts
        ]
        self.languages = before.languages
        self.documents_in = before.documents_in
        self.lines_in = before.lines_in
        self.bytes_in = before.bytes_in

    def __getattr__(self, name: str) -> Any:
        return getattr(self._after, name)


def _take_step(
    cleaned: _native.CleanedBlock,
    options: CleaningSettings,
    paths: Paths,
    *,
    collect_characters: bool,
) -> _native.CleanedBlock:
    """Apply the user's function to whole documents; the results are cleaned and hashed again."""
    rows = np.frombuffer(cleaned.documents, np.uint64).reshape(-1, DOCUMENT_ROW_BYTES // 8)
    whole = rows[:, _FLAGS] == (FIRST | LAST)
    texts = [cleaned.text[int(row[_BEGIN]) : int(row[_END])] for row in rows]
    report, kept, parts = Report(), np.ones(len(rows), bool), list[Any](texts)
    places = np.flatnonzero(whole)
    try:
        for place, made in zip(
            places, apply_step(options.step, [texts[at] for at in places]), strict=True
        ):
            if made is not texts[place]:
                rule = "document_step" if made is None else "step_changed"
                _count_step(report, rule, texts[place])
                kept[place], parts[place] = made is not None, made
    except StepError as failure:
        row = rows[places[failure.document]]
        failure.path = paths.get(int(row[_INPUT]))
        failure.message += f", on the document at {int(row[_ORDINAL])} (byte or row) of this file"
        raise
    for place in np.flatnonzero(~whole):
        _count_step(report, "rules_unjudged", texts[place])
    left = [parts[place] for place in np.flatnonzero(kept)]
    ends = np.cumsum([len(part) for part in left]).astype(np.uint64)
    rows = rows[kept]
    after = _native.clean_block(
        np.frombuffer(b"".join(left), np.uint8),
        ends - np.array([len(part) for part in left], np.uint64),
        ends,
        np.ascontiguousarray(rows[:, _INPUT]),
        np.ascontiguousarray(rows[:, _ORDINAL]),
        np.ascontiguousarray(rows[:, _FLAGS]),
        native_options(_only_hashing(options), collect_characters=collect_characters),
        _compose_lower if options.lowercase else _compose,
    )
    return cast("_native.CleanedBlock", _SteppedBlock(cleaned, after, report))


_INPUT, _ORDINAL, _BEGIN, _END, _FLAGS = 0, 1, 2, 3, 7
"""Columns of a document's row."""


def _count_step(report: Report, rule: str, text: memoryview) -> None:
    counts: list[Any] = [(0, 0)] * len(RULES)
    counts[RULES.index(rule)] = (1, text.nbytes)
    report.add(counts, [(RULES.index(rule), bytes(text[:160]))])


def _only_hashing(options: CleaningSettings) -> CleaningSettings:
    """The options for text that was filtered already."""
    return CleaningSettings(
        normalize=options.normalize,
        lowercase=options.lowercase,
        filter=False,
        dedup=options.dedup,
        min_dedup_chars=options.min_dedup_chars,
    )


def _compose(line: bytes) -> bytes:
    return to_nfc(line.decode()).encode()


def _compose_lower(line: bytes) -> bytes:
    return _compose(line.decode().lower().encode())


if TYPE_CHECKING:
    Rows = tuple[
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
    ]


def _locate_rows(
    block: TextBlock, reading: ReadingSettings, paths: Paths
) -> tuple[_native.Bytes, Rows]:
    """Return a block's bytes, and starts, ends, inputs, ordinals and flags of its documents."""
    if block.row_ends is None:
        text, ends, offsets, inputs = extract_json_rows(block, reading, paths)
        return text, _rows(ends, offsets, inputs)
    segment = block.segments[0]
    ends = block.row_ends
    ordinals = np.arange(len(ends), dtype=np.uint64) + np.uint64(segment.offset)
    return block.data, _mark_parts(block, _rows(ends, ordinals, segment.input_index))


def _mark_parts(block: TextBlock, rows: Rows) -> Rows:
    """Mark the first and last document where they are parts of a larger one."""
    if block.continues:
        rows[4][0] &= ~np.uint64(FIRST)
    if block.continued:
        rows[4][-1] &= ~np.uint64(LAST)
    return rows


def _rows(
    ends: npt.NDArray[np.uint64],
    ordinals: npt.NDArray[np.uint64],
    inputs: npt.NDArray[np.uint64] | int,
) -> Rows:
    begins = np.concatenate([np.zeros(1, np.uint64), ends[:-1]]) if len(ends) else ends
    return (
        begins.astype(np.uint64),
        ends,
        np.full(len(ends), inputs, dtype=np.uint64),
        ordinals,
        np.full(len(ends), FIRST | LAST, dtype=np.uint64),
    )
