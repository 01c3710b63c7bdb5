"""Flags of all verbs that read documents; each field's docstring is its help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lowtide.corpus.reading import BLOCK_BYTES, DEFAULT_SEPARATOR, ReadingSettings
from lowtide.errors import UsageError
from lowtide.flatsettings import limit
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = ["ReadingFlags", "as_sequence", "check_workers"]

_MOST_WORKERS = 4096
_LONGEST_SEPARATOR = 1024


@dataclass(frozen=True, kw_only=True)
class ReadingFlags:
    """How documents are read; settings that inherit it call `check_reading`."""

    # Reading
    document_separator: str = DEFAULT_SEPARATOR
    """Separator between documents in text files; may contain \\n (which is also found as
    \\r\\n) and \\t; "" makes each file one document."""
    text_field: str = "text"
    """Field of jsonl rows, or column of parquet files, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    skip_bad_inputs: bool = False
    """Skip files and rows that cannot be read, and list them, instead of stopping."""
    block_bytes: Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress] = limit(BLOCK_BYTES)

    def check_reading(self) -> None:
        """Return the separator with its escapes resolved; refuse one that no text can contain."""
        separator = self.document_separator.replace("\\n", "\n").replace("\\t", "\t")
        object.__setattr__(self, "document_separator", separator)
        if len(separator.encode(errors="replace")) > _LONGEST_SEPARATOR:
            raise UsageError(f"--document-separator is longer than {_LONGEST_SEPARATOR} bytes")
        if any("\ud800" <= letter <= "\udfff" for letter in separator):
            raise UsageError(
                f"--document-separator {separator!r} is not text in UTF-8",
                next_step="give characters, as they stand between documents",
            )

    def reading(
        self,
        *,
        reader_bytes: int | None = None,
        budget_bytes: int | None = None,
        reader_cost: int = 1,
    ) -> ReadingSettings:
        """The settings of reading."""
        return ReadingSettings(
            separator=self.document_separator.encode(),
            text_field=self.text_field,
            encoding=self.encoding,
            block_bytes=self.block_bytes,
            reader_bytes=reader_bytes or ReadingSettings.reader_bytes,
            budget_bytes=budget_bytes,
            reader_cost=reader_cost,
            skip_bad=self.skip_bad_inputs,
        )


def check_workers(count: int | None) -> None:
    """Refuse an invalid number of workers."""
    if count is not None and not 1 <= count <= _MOST_WORKERS:
        raise UsageError(f"--processes {count} must be at least 1, and {_MOST_WORKERS} at most")


def as_sequence(value: object) -> tuple[object, ...]:
    """One path, or several, as a tuple."""
    return (value,) if isinstance(value, str | Path) else tuple(value)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
