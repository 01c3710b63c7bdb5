"""The encodings that text files may have, and the errors for others.

In:      the name of an encoding, from --encoding
Out:     a decoder that works block by block; UsageError for other codecs
"""

from __future__ import annotations

import codecs

from lowtide.errors import DataError, UsageError

__all__ = [
    "TELLING_BYTES",
    "check_encoding",
    "explain_undecodable",
    "is_utf8",
    "make_decoder",
    "refuse_utf8",
]

TELLING_BYTES = 64
"""Bytes to check: UTF-16 or UTF-32 of this length is hardly ever valid UTF-8 without a NUL."""


_EXAMPLES = (
    "utf-8, utf-16, utf-16-le, utf-16-be, utf-32, latin-1, cp1252, cp1251, koi8-r, shift_jis, "
    "euc-jp, gb18030, big5, euc-kr"
)
# Python lists them as text encodings, but they encode domain names or source code: they cannot skip
# damaged bytes, or cannot continue after a block.
_NOTATIONS = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")


def is_utf8(encoding: str) -> bool:
    """True for UTF-8, however it is written."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def check_encoding(encoding: str) -> None:
    """Refuse names that are not encodings of text files.

    >>> check_encoding("base64")
    Traceback (most recent call last):
    lowtide.errors.UsageError: --encoding 'base64' is not an encoding of text files
      next: one of utf-8, utf-16, utf-16-le, utf-16-be, utf-32, latin-1, cp1252, cp1251, koi8-r, \
shift_jis, euc-jp, gb18030, big5, euc-kr, or any other that Python reads text files in
    """
    if is_utf8(encoding):
        return
    try:
        codec = codecs.lookup(encoding)
        known = bool(codec._is_text_encoding)  # pyright: ignore[reportPrivateUsage]
    except (LookupError, ValueError):  # ValueError: the name has a NUL
        known, codec = False, None
    if codec is None or not known or codec.name.replace("_", "-") in _NOTATIONS:
        raise UsageError(
            f"--encoding {encoding!r} is not an encoding of text files",
            next_step=f"one of {_EXAMPLES}, or any other that Python reads text files in",
        )


def make_decoder(encoding: str) -> codecs.IncrementalDecoder | None:
    """A decoder for a file's blocks, with U+FFFD for undecodable bytes; None for UTF-8."""
    check_encoding(encoding)
    return None if is_utf8(encoding) else codecs.getincrementaldecoder(encoding)("replace")


def explain_undecodable(encoding: str, error: Exception) -> DataError:
    """The error for a file that its decoder cannot decode."""
    name = codecs.lookup(encoding).name
    if name in ("utf-16", "utf-32"):
        return DataError(
            f"this {name} text does not say its byte order: the mark at its beginning is missing",
            next_step=f"--encoding {name}-le (usual), or {name}-be; or is it utf-8?",
        )
    return DataError(f"this cannot be read as {encoding}: {error}", next_step="--encoding utf-8")


def refuse_utf8(encoding: str, head: bytes) -> None:
    """Refuse UTF-8 with --encoding UTF-16 or UTF-32: it would be decoded as other characters.

    >>> refuse_utf8("utf-16-le", "plain text".encode() * 10)
    Traceback (most recent call last):
    lowtide.errors.DataError: this looks like UTF-8, not utf-16-le
      next: leave --encoding out
    """
    name = codecs.lookup(encoding).name
    if not name.startswith(("utf-16", "utf-32")) or len(head) < TELLING_BYTES or b"\0" in head:
        return
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be incomplete
    except UnicodeDecodeError:
        return
    raise DataError(f"this looks like UTF-8, not {name}", next_step="leave --encoding out")
