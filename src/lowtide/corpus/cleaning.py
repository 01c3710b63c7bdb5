"""Clean and filter blocks of documents, natively, and say what was removed and why.

In:      TextBlock (reading)
Out:     CleanedBlock (native): clean text, document rows, hashes of lines for deduplication
Memory:  about three times the block
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.classifiers import Models, load_models, read_languages
from lowtide.corpus.quality import (
    canonical_limits,
    canonical_masks,
    canonical_rules,
    native_masks,
    native_rules,
)
from lowtide.corpus.ranking import ScoreCut
from lowtide.corpus.reading import ReadingSettings, TextBlock, extract_json_rows
from lowtide.corpus.steps import StepError, apply_step, canonical_step
from lowtide.corpus.textblocks import Paths
from lowtide.errors import UsageError
from lowtide.flags import flag_name

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DOCUMENT_ROW_BYTES",
    "HASH_ROW_BYTES",
    "RULES",
    "RULE_TEXTS",
    "CleaningSettings",
    "Report",
    "clean_block",
    "count_languages",
    "native_options",
]

RULES = tuple(name for name, _ in _native.CLEANING_RULES)
"""Names of what cleaning changes and removes, as reports have them."""
RULE_TEXTS = dict(_native.CLEANING_RULES)
"""What to call each of them before people."""
DOCUMENT_ROW_BYTES = _native.DOCUMENT_ROW_BYTES
HASH_ROW_BYTES = _native.HASH_ROW_BYTES
FIRST, LAST = 1, 2
_SAMPLES_PER_RULE = 3
_LARGEST_KEY = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class CleaningSettings:
    """What cleaning and filtering do; each field is a flag of `lowtide prepare`."""

    normalize: bool = True
    """Unicode NFC, one kind of newline, no control characters, no runs of blanks or empty lines."""
    lowercase: bool = False
    """Lower-case everything (with normalize)."""
    filter: bool = True
    """Remove lines and documents by the limits below."""
    min_line_chars: int = 0
    """Remove lines with fewer characters; 0 keeps short lines, which verse, code and lists need."""
    max_line_chars: int = 100_000
    """Remove lines with more characters (data dumps, minified code); 0 for no limit."""
    min_line_words: int = 0
    """Remove lines with fewer words; 0 for no limit."""
    min_document_chars: int = 20
    """Remove documents with fewer characters."""
    max_document_chars: int = 0
    """Remove documents with more characters; 0 for no limit."""
    min_document_words: int = 3
    """Remove documents with fewer words."""
    max_repetition: float = 0.8
    """Remove lines of 64 bytes or more of which a larger share repeats itself; 1 for no limit."""
    dedup: bool = True
    """Remove every document, and every line, that came before in the inputs."""
    min_dedup_chars: int = 20
    """Lines with fewer characters may repeat: names of speakers, brackets, list marks."""
    rules: str = ""
    """Rules of text quality, in the order they are applied, such as gopher,c4,fineweb: gopher (both
    of gopher-repetition, gopher-quality), c4, c4-paragraphs, fineweb, refinedweb; default: none."""
    rule_limit: tuple[str, ...] = ()
    """Other numbers for rules, such as fineweb.max-newlines=0.5; 0 switches a rule off. All names
    are in docs/quality.md."""
    mask: str = ""
    """Personal data to replace by its kind in brackets, such as email,ip,phone,iban,card; default:
    none."""
    language_model: str = ""
    """A fastText model that tells languages, such as lid.176.bin: counts documents by language."""
    languages: str = ""
    """Languages to keep, as the model names them, such as en,de; default: all."""
    min_language_score: float = 0.65
    """Remove documents whose language is less certain than this."""
    score: str = ""
    """A fastText model (.bin, .ftz) that tells good text from other."""
    score_label: str = ""
    """The model's label of good text; default: hq, good, positive, pos, high or 1."""
    keep_above: float = 0.5
    """Remove documents whose score is below this."""
    keep_top: float | None = None
    """Keep this share of the documents that have a score, those with the highest, such as 0.1:
    instead of --keep-above. Reads everything twice; equal scores are ordered by a hash of the
    text."""
    step: str = ""
    """A Python function of yours, FILE.py:NAME, that gets each document that is left and returns
    it, another text, or None to remove it. Runs in processes of its own, slower than native rules;
    it must depend on the document alone."""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{flag_name(name)} {value} is negative")
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        limits = canonical_limits(self.rule_limit, self.rules)
        object.__setattr__(self, "rule_limit", limits)
        object.__setattr__(self, "mask", canonical_masks(self.mask))
        object.__setattr__(self, "step", canonical_step(self.step))
        object.__setattr__(self, "languages", ",".join(read_languages(self.languages)))
        for name in ("language_model", "score"):
            path = getattr(self, name)
            object.__setattr__(self, name, str(Path(path).absolute()) if path else "")
        self._check_models()
        if not 0 < self.max_repetition <= 1:
            raise UsageError(f"--max-repetition {self.max_repetition} must be in (0, 1]")

    def _check_models(self) -> None:
        for name in ("min_language_score", "keep_above"):
            if not 0 <= getattr(self, name) <= 1:
                value = getattr(self, name)
                raise UsageError(f"{flag_name(name)} {value} must be between 0 and 1")
        if self.languages and not self.language_model:
            raise UsageError(
                f"--languages {self.languages} needs a model that tells languages",
                next_step="name one with --language-model",
            )
        if self.score_label and not self.score:
            raise UsageError(
                f"--score-label {self.score_label} needs a model", next_step="name one with --score"
            )
        if self.keep_top is not None:
            self._check_keep_top(self.keep_top)

    def _check_keep_top(self, share: float) -> None:
        if not 0 < share <= 1:
            raise UsageError(
                f"--keep-top {share} must be above 0, and 1 at most",
                next_step="a share of the documents, such as 0.1 for a tenth",
            )
        if not self.score:
            raise UsageError(
                f"--keep-top {share} needs a model that scores documents",
                next_step="name one with --score",
            )
        if self.keep_above != CleaningSettings.keep_above:
            raise UsageError(
                f"--keep-top {share} and --keep-above {self.keep_above} are two ways to say which "
                "documents stay",
                next_step="leave one of them out",
            )

    @property
    def models(self) -> Models | None:
        """The models that judge documents, loaded; None where there are none."""
        if not (self.language_model or self.score):
            return None
        return load_models(
            language_model=self.language_model,
            languages=self.languages,
            min_language_score=self.min_language_score,
            score=self.score,
            score_label=self.score_label,
            keep_above=self.keep_above,
        )

    @property
    def cleaning(self) -> CleaningSettings:
        """These options alone, of settings that have others too."""
        names = CleaningSettings.__dataclass_fields__
        return CleaningSettings(**{name: getattr(self, name) for name in names})


_QUALITY = (
    "rules",
    "rule_limit",
    "mask",
    "language_model",
    "languages",
    "min_language_score",
    "score",
    "score_label",
    "keep_above",
    "keep_top",
    "step",
)
_NUMBERS = tuple(name for name in CleaningSettings.__dataclass_fields__ if name not in _QUALITY)
"""Options that the native core has by the same name."""


def native_options(
    options: CleaningSettings,
    *,
    collect_characters: bool = False,
    collect_scores: bool = False,
    cut: ScoreCut | None = None,
) -> _native.CleanOptions:
    """The options as the native core takes them; with `keep_top` a cut lets documents stay."""
    native = _native.CleanOptions()
    for name in _NUMBERS:
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


class Report:
    """What was read, and what was removed and why: counts and bytes per rule, a few examples."""

    def __init__(self) -> None:
        self.documents_in = 0
        self.lines_in = 0
        self.bytes_in = 0
        self.counts = [[0, 0] for _ in RULES]
        self.samples: list[list[str]] = [[] for _ in RULES]
        self.languages: dict[str, list[int]] = {}
        self.cut: ScoreCut | None = None

    def add(
        self,
        counts: list[Any],
        samples: list[Any],
        *,
        documents_in: int = 0,
        lines_in: int = 0,
        bytes_in: int = 0,
        languages: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Add the counts of one block; blocks in order give the same examples each time."""
        for label, (count, size) in (languages or {}).items():
            row = self.languages.setdefault(label, [0, 0])
            row[0] += count
            row[1] += size
        self.documents_in += documents_in
        self.lines_in += lines_in
        self.bytes_in += bytes_in
        for row, (count, size) in zip(self.counts, counts, strict=False):  # rules are only added
            row[0] += count
            row[1] += size
        for rule, text in samples:
            if len(self.samples[rule]) < _SAMPLES_PER_RULE:
                self.samples[rule].append(
                    text if isinstance(text, str) else text.decode("utf-8", "replace")
                )

    def as_state(self) -> dict[str, Any]:
        """Return what `add` takes, so that reports of several tasks can be added up."""
        return {
            "documents_in": self.documents_in,
            "lines_in": self.lines_in,
            "bytes_in": self.bytes_in,
            "counts": self.counts,
            "samples": [(rule, text) for rule, texts in enumerate(self.samples) for text in texts],
            "languages": self.languages,
        }

    def as_json(self) -> dict[str, Any]:
        """Return the report as it goes into the metadata."""
        return {
            "documents_in": self.documents_in,
            "lines_in": self.lines_in,
            "bytes_in": self.bytes_in,
            "rules": {
                rule: {"count": count, "bytes": size, "examples": self.samples[number]}
                for number, (rule, (count, size)) in enumerate(zip(RULES, self.counts, strict=True))
                if count
            },
            **self._languages_as_json(),
            **({} if self.cut is None else {"score": self.cut.as_json()}),
        }

    def _languages_as_json(self) -> dict[str, Any]:
        """Documents and bytes by language, the most frequent first, where a model told them."""
        if not self.languages:
            return {}
        rows = sorted(self.languages.items(), key=lambda row: (-row[1][0], row[0]))
        return {"languages": {label: {"count": n, "bytes": size} for label, (n, size) in rows}}


def count_languages(
    cleaned: _native.CleanedBlock, options: CleaningSettings
) -> dict[str, tuple[int, int]]:
    """Documents and bytes of a block by language, where a model told them."""
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
) -> _native.CleanedBlock:
    """Take a block apart into documents and clean them; other Python threads go on meanwhile."""
    if options.step and not collect_scores:
        judged = replace(options, step="", dedup=False)
        cleaned = clean_block(block, reading, judged, paths=paths, cut=cut)
        return _take_step(cleaned, options, paths, collect_characters=collect_characters)
    compose = _compose_lower if options.lowercase else _compose
    native = native_options(
        options, collect_characters=collect_characters, collect_scores=collect_scores, cut=cut
    )
    if block.kind == "text":
        segments = [
            (part.input_index, part.offset, part.begin, part.end) for part in block.segments
        ]
        return _native.clean_text(
            block.data,
            reading.separator,
            segments,
            block.continues,
            block.continued,
            native,
            compose,
        )
    data, rows = _locate_rows(block, reading, paths)
    return _native.clean_block(data, *rows, native, compose)


class _SteppedBlock:
    """A clean block after the user's step: the text of the second pass, the counts of both."""

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
    """Let the user's function judge whole documents; what is left is cleaned and hashed again."""
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
    """The options for text that was judged already."""
    return CleaningSettings(
        normalize=options.normalize,
        lowercase=options.lowercase,
        filter=False,
        dedup=options.dedup,
        min_dedup_chars=options.min_dedup_chars,
    )


def _compose(line: bytes) -> bytes:
    from unicodedata import normalize  # few corpora need it

    return normalize("NFC", line.decode()).encode()


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
    """Return a block's bytes, and begins, ends, inputs, ordinals and flags of its documents."""
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
