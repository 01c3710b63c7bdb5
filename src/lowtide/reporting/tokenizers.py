"""The page of a tokenizer: compression by source, lengths and kinds of tokens, text taken apart.

In:      a tokenizer; files of text to measure it on
Out:     page data
Memory:  a batch of text and its ids, 8 bytes per token of the vocabulary
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import ReadingSettings, iter_documents
from lowtide.counts import counted
from lowtide.errors import DataError
from lowtide.filenames import LEARNED_NAME, METRICS_NAME
from lowtide.longjson import read_long_json
from lowtide.memory import format_size
from lowtide.progress import format_count
from lowtide.quickclasses import dataclass
from lowtide.reporting.jobs import memory_chart, phase_table
from lowtide.reporting.metrics import JobMetrics, MetricsFile
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.inspection import SENTENCE, kind_of_token

__all__ = ["SourceMeasure", "TokenizerReader", "measure_source"]

_SAMPLE_BYTES = 16 << 20
_BATCH_BYTES = 1 << 20
_MAX_SOURCES = 40
_MAX_TEXTS = 8
_TEXT_CHARACTERS = 360
_LONGEST_COLUMN = 20
_LONGEST_SHOWN = 12


@dataclass(frozen=True)
class SourceMeasure:
    """Measurements of a tokenizer on one source."""

    name: str
    num_bytes: int
    num_characters: int
    num_tokens: int
    num_distinct: int
    beginning: str

    @property
    def bytes_per_token(self) -> float:
        """Compression: more bytes per token mean fewer tokens."""
        return self.num_bytes / max(self.num_tokens, 1)


def measure_source(tokenizer: Tokenizer, source: InputFile, text_field: str) -> SourceMeasure:
    """Encode the beginning of a file, at most 16 MiB of text, and count the tokens."""
    seen = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    num_bytes = num_characters = num_tokens = 0
    beginning = ""
    # A row cut off at the end of a sample is not an error.
    for batch in _iter_batches(source, ReadingSettings(text_field=text_field, skip_bad=True)):
        for ids in tokenizer.encode_batch(batch, special="text", num_workers=1):
            num_tokens += len(ids)
            seen[ids] = True
        for text in batch:
            num_bytes += len(text)
            num_characters += len(text.decode("utf-8", "replace"))
        if not beginning:
            beginning = batch[0][: 4 * _TEXT_CHARACTERS].decode("utf-8", "ignore")
    if not num_tokens:
        raise DataError(
            "there is no text in this sample",
            path=source.path,
            next_step="name the field of jsonl or parquet rows with --text-field",
        )
    return SourceMeasure(
        name=str(source.path),
        num_bytes=num_bytes,
        num_characters=num_characters,
        num_tokens=num_tokens,
        num_distinct=int(np.count_nonzero(seen)),
        beginning=beginning.strip()[:_TEXT_CHARACTERS],
    )


def _iter_batches(source: InputFile, options: ReadingSettings) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = total = 0
    for document in iter_documents([source], options):
        batch.append(document.text[: _SAMPLE_BYTES - total])
        size += len(batch[-1])
        total += len(batch[-1])
        if size >= _BATCH_BYTES or total >= _SAMPLE_BYTES:
            yield batch
            batch, size = [], 0
        if total >= _SAMPLE_BYTES:
            return
    if batch:
        yield batch


class TokenizerReader:
    """Reads a tokenizer, and measures it on samples."""

    def __init__(
        self, source: Path, *, samples: tuple[str, ...] = (), text_field: str = "text"
    ) -> None:
        self.source = source
        self._tokenizer: Tokenizer | None = None
        self._samples = samples
        self._text_field = text_field
        self._record: dict[str, Any] = {}
        self._measures: list[SourceMeasure] = []
        self._job = JobMetrics()

    def read(self) -> bool:
        """Read the tokenizer once; it does not change."""
        if self._tokenizer is not None:
            return False
        self._tokenizer = Tokenizer.load(self.source)
        record = self.source / LEARNED_NAME
        if record.is_file():
            self._record = _read_record(record)
            self._job.read(MetricsFile(self.source / METRICS_NAME))
        for source in self._find_samples():
            self._measures.append(measure_source(self._tokenizer, source, self._text_field))
        return True

    def _find_samples(self) -> Sequence[InputFile]:
        """The files to measure on: those named, else its training files, if they still exist."""
        if self._samples:
            sources = expand_inputs(self._samples)
            if len(sources) > _MAX_SOURCES:
                raise DataError(
                    f"{len(sources):,} samples are too many for one picture",
                    next_step=f"name at most {_MAX_SOURCES} files with --sample",
                )
            return sources
        known = (Path(row["path"]) for row in self._record.get("input_files", []))
        there = list(itertools.islice(filter(Path.is_file, known), _MAX_TEXTS))
        return expand_inputs(there) if there else []

    # -- the page ------------------------------------------------------------------------------

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        assert self._tokenizer is not None
        tokenizer = self._tokenizer
        specials = set(tokenizer.special_tokens.values())
        tokens = [token for id, token in tokenizer.vocabulary.items() if id not in specials]
        sections = [
            self._compression(),
            _length_chart(tokens),
            _kind_bars(tokens),
            self._texts(),
            _longest_table(tokens),
            self._facts(),
            memory_chart(self._job) if self._job.num_rows else None,
            phase_table(self._job),
        ]
        return {
            "kind": "tokenizer",
            "title": tokenizer.name,
            "subtitle": f"{_kind_name(tokenizer)} · fingerprint {tokenizer.fingerprint}",
            "tiles": self._tiles(tokenizer, tokens),
            "sections": [section for section in sections if section is not None],
        }

    def _tiles(self, tokenizer: Tokenizer, tokens: list[bytes]) -> list[dict[str, Any]]:
        mean = sum(map(len, tokens)) / max(len(tokens), 1)
        tiles = [
            ("tokens", f"{tokenizer.vocab_size:,}", f"{len(tokenizer.special_tokens):,} special"),
            ("mean length", f"{mean:.2f}", "bytes"),
        ]
        num_bytes = sum(row.num_bytes for row in self._measures)
        num_tokens = sum(row.num_tokens for row in self._measures)
        if num_tokens:
            ratio = f"{num_bytes / num_tokens:.2f}"
            tiles.append(("bytes per token", ratio, f"on {format_size(num_bytes)} of samples"))
        counts = self._record.get("counts", {})
        if "bytes" in counts:
            note = f"{format_count(counts['pieces'])} pieces" if "pieces" in counts else ""
            tiles.append(("learned from", format_size(counts["bytes"]), note))
        if self._job.peak_bytes:
            budget = self._job.budget_bytes
            note = f"of {format_size(budget)} budget" if budget else ""
            tiles.append(("peak memory", format_size(self._job.peak_bytes), note))
        return [{"label": a, "value": b, "note": c, "tone": ""} for a, b, c in tiles]

    def _compression(self) -> dict[str, Any]:
        assert self._tokenizer is not None
        size = max(self._tokenizer.vocab_size, 1)
        given = (
            ""
            if self._samples
            else "the files it learned from, which flatter it; --sample names others"
        )
        return {
            "type": "bars",
            "id": "compression",
            "title": "Bytes per token by source",
            "note": given if self._measures else "",
            "width": "wide",
            "rows": [
                {
                    "name": row.name,
                    "value": row.bytes_per_token,
                    "text": f"{row.bytes_per_token:.2f} bytes · "
                    f"{row.num_characters / max(row.num_tokens, 1):.2f} characters · "
                    f"{100 * row.num_distinct / size:.0f} % of the vocabulary · "
                    f"{format_size(row.num_bytes)}",
                }
                for row in self._measures
            ],
            "empty": "Name text with --sample FILES to see how short it becomes, file by file.",
        }

    def _texts(self) -> dict[str, Any]:
        assert self._tokenizer is not None
        texts = [(row.name, row.beginning) for row in self._measures if row.beginning]
        texts = texts[:_MAX_TEXTS] or [("a sentence", SENTENCE)]
        items: list[dict[str, Any]] = []
        for name, text in texts:
            ids = self._tokenizer.encode(text, special="text")
            shown = [_show(self._tokenizer.token_bytes(int(id))) for id in ids]
            ratio = len(text.encode("utf-8", "replace")) / max(len(ids), 1)
            items.append(
                {
                    "name": f"{name}: {counted(len(ids), 'token')}, {ratio:.2f} bytes each",
                    "tokens": shown,
                }
            )
        return {
            "type": "tokens",
            "id": "texts",
            "title": "Text as tokens",
            "width": "wide",
            "items": items,
        }

    def _facts(self) -> dict[str, Any]:
        assert self._tokenizer is not None
        tokenizer = self._tokenizer
        rows = [["kind", _kind_name(tokenizer)]]
        if tokenizer.kind == "bpe" and tokenizer.data.merges is not None:
            rows.append(["merges", f"{len(tokenizer.data.merges):,}"])
        specials = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
        rows += [[f"special token {text}", str(id)] for text, id in specials[:8]]
        for key, value in self._record.get("settings", {}).items():
            if key in ("tie_break", "min_frequency"):
                rows.append([key.replace("_", " "), str(value)])
        return {
            "type": "table",
            "id": "facts",
            "title": "Facts",
            "columns": ["what", "value"],
            "rows": rows,
            "empty": "",
        }


def _kind_name(tokenizer: Tokenizer) -> str:
    if tokenizer.kind == "package":
        reason = tokenizer.data.reason
        return f"run by the package tokenizers ({reason})" if reason else "BPE of pieces of text"
    return f"BPE, pattern {tokenizer.data.pattern}" if tokenizer.kind == "bpe" else "characters"


def _length_chart(tokens: list[bytes]) -> dict[str, Any]:
    lengths = Counter(min(len(token), _LONGEST_COLUMN) for token in tokens)
    last = max(lengths, default=0)
    bins = [
        {
            "label": f"{length}+" if length == _LONGEST_COLUMN else str(length),
            "text": f"{length}{' or more' if length == _LONGEST_COLUMN else ''} bytes",
            "count": lengths[length],
        }
        for length in range(1, last + 1)
    ]
    return {
        "type": "columns",
        "id": "lengths",
        "title": "Lengths of tokens",
        "axis": "bytes",
        "bins": bins,
        "empty": "There are no ordinary tokens.",
    }


def _kind_bars(tokens: list[bytes]) -> dict[str, Any]:
    kinds = Counter(map(kind_of_token, tokens))
    return {
        "type": "bars",
        "id": "kinds",
        "title": "What the tokens are",
        "color": 2,
        "rows": [
            {
                "name": kind,
                "value": count,
                "text": f"{count:,} · {100 * count / len(tokens):.1f} %",
            }
            for kind, count in kinds.most_common()
        ],
        "empty": "There are no ordinary tokens.",
    }


def _longest_table(tokens: list[bytes]) -> dict[str, Any]:
    longest = sorted(tokens, key=len, reverse=True)[:_LONGEST_SHOWN]
    return {
        "type": "table",
        "id": "longest",
        "title": "The longest tokens",
        "note": "spaces as ·",
        "columns": ["token", "bytes"],
        "rows": [
            [_show(token)[:120].replace(" ", "·").replace("\n", "\\n"), f"{len(token)}"]
            for token in longest
        ],
        "empty": "There are no ordinary tokens.",
    }


def _show(token: bytes) -> str:
    """Return a token as readable text, with unprintable characters escaped."""
    text = token.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def _read_record(path: Path) -> dict[str, Any]:
    """Read training.json; a malformed one gives an error."""
    record: Any = read_long_json(path, ("input_files",))
    kinds = {"input_files": Sequence, "counts": dict, "settings": dict}
    is_whole = isinstance(record, dict) and all(
        name not in record or isinstance(record[name], kind) for name, kind in kinds.items()
    )
    if is_whole:
        rows, counts = record.get("input_files", []), record.get("counts", {})
        is_whole = all(isinstance(row, dict) and isinstance(row.get("path"), str) for row in rows)
        is_whole = is_whole and all(type(count) is int for count in counts.values())
    if not is_whole:
        raise DataError(
            "this does not say what a tokenizer was learned from: names or types differ",
            path=path,
            next_step="bring it back, or remove it: the page then leaves that part out",
        )
    return record
