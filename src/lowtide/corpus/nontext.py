"""Refuse files that are not text in UTF-8, or not as their reader takes it, and say what to do.

In:      an InputFile and its first bytes, decompressed
Out:     an error that names what the file is
Memory:  none
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from lowtide.corpus.inputformats import COMPRESSIONS, may_hold_rows
from lowtide.errors import DataError

if TYPE_CHECKING:
    from lowtide.corpus.inputs import InputFile

__all__ = ["check_text", "explain_json", "find_binary"]

_BYTE_ORDER_MARKS = {
    32: (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    16: (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),  # which begins the one of UTF-32
}
_UNPACK = "unpack it, and name its files or their folder"
_RENAME = "unpack it, or name it with the suffix "
_SIGNATURES = (
    (0, b"PK\3\4", "a zip archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!\x1a\7", "a rar archive", _UNPACK),
    (0, b"%PDF-1.", "a PDF", "extract its text first, such as with pdftotext"),
    *(
        (place, sign, f"compressed with {name}", _RENAME + COMPRESSIONS[name].suffix)
        for name, place, sign in (
            ("gzip", 0, b"\x1f\x8b\x08"),
            ("zstd", 0, b"\x28\xb5\x2f\xfd"),
            ("xz", 0, b"\xfd7zXZ\0"),
            ("bzip2", 4, b"1AY&SY"),  # behind BZh and the level, which a text may begin with
        )
    ),
)
"""Bytes by which a file is known and their place, what it is, and what to do about it."""
_ROW_MAKERS = {b"{": "jq -c '.[]'", b'"': "jq -c '.[] | {text: .}'"}
"""By the first value of a JSON array: what makes rows of it."""


def check_text(source: InputFile, probe: bytes) -> None:
    """Refuse files that are not text, before a dataset or a tokenizer is made of them."""
    for bits, marks in _BYTE_ORDER_MARKS.items():
        if probe.startswith(marks):
            raise DataError(
                f"this looks like UTF-{bits}, not UTF-8",
                path=source.path,
                next_step=f"--encoding utf-{bits}",
            )
    if (found := find_binary(probe)) is not None:
        raise _refuse(source, *found)
    if may_hold_rows(source.path) and (command := _find_row_maker(probe)) is not None:
        raise _refuse(
            source,
            "this file is one JSON array, expected a JSON object on each line (jsonl)",
            f"{command} makes such rows of it, or name it .txt to have its text as it is",
        )


def find_binary(probe: bytes) -> tuple[str, str] | None:
    """Why the first bytes of a file are no text, and what to do about it; None if they are."""
    for place, sign, what, advice in _SIGNATURES:
        if probe.startswith(sign, place):
            return f"this file is {what}, expected text", advice
    if b"\0" in probe:
        message = f"this looks like a binary file: byte {probe.index(0)} is NUL"
        return message, "take it out of the inputs"
    return None


def explain_json(error: Exception) -> str:
    """Why bytes are no JSON, in words for people who did not write a decoder.

    >>> import json
    >>> try:
    ...     json.loads(b'{"a": "\\xe9"}')
    ... except ValueError as error:
    ...     print(explain_json(error))
    not UTF-8 (byte 7 is 0xe9)
    """
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start} is {error.object[error.start]:#04x})"
    return f"not JSON: {error}"


def _find_row_maker(probe: bytes) -> str | None:
    """What makes rows of a JSON array of objects or texts; None for anything else."""
    opening, *values = probe.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"[")
    return None if opening else _ROW_MAKERS.get(values[-1].lstrip()[:1])


def _refuse(source: InputFile, message: str, advice: str) -> DataError:
    return DataError(
        message,
        path=source.path,
        next_step=f"{advice}, or skip such files with --skip-bad-inputs",
    )
