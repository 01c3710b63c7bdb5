"""Cleaning and deduplication once more, in plain Python: the truth the native core is held to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_NEWLINES = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_DROPPED = {0x200B, 0x2060, 0xFEFF}


def clean_line(line: str) -> str:
    """Blanks, control characters and NFC of one line."""
    kept = [
        c
        for c in line
        if is_blank(c) or not (unicodedata.category(c) == "Cc" or ord(c) in _DROPPED)
    ]
    start = next((at for at, c in enumerate(kept) if not is_blank(c)), len(kept))
    indentation = "".join("\t" if c == "\t" else " " for c in kept[:start] if ord(c) < 128)
    body = "".join(" " if is_blank(c) and c != "\t" else c for c in kept[start:])
    body = re.sub("[ \t]{2,}", " ", body)
    return unicodedata.normalize("NFC", (indentation + body).rstrip(" \t"))


def is_blank(character: str) -> bool:
    return character in "\t\v\f" or unicodedata.category(character) == "Zs"


def clean_document(raw: bytes) -> str:
    """A whole document: every line clean, at most two empty lines together, none at the ends."""
    lines: list[str] = []
    for line in map(clean_line, _NEWLINES.split(raw.decode("utf-8", "replace"))):
        if line or (lines and lines[-2:] != ["", ""] and any(lines)):
            lines.append(line)
    return "\n".join(lines).strip("\n")


def remove_duplicates(documents: Iterable[str], *, min_chars: int, min_document_chars: int):
    """Leave out every document and every line of at least `min_chars` that came before."""
    seen_documents: set[str] = set()
    seen_lines: set[str] = set()
    for document in documents:
        duplicate = document in seen_documents
        seen_documents.add(document)
        lines: list[str] = []
        removed = False
        for line in document.split("\n"):
            long_enough = len(line.lstrip(" \t")) >= min_chars and line.strip(" \t")
            if long_enough and line in seen_lines:
                removed = True
            elif line or (lines and lines[-2:] != ["", ""]):
                lines.append(line)
            if long_enough:
                seen_lines.add(line)
        rest = "\n".join(lines).strip("\n")
        if duplicate or (removed and (len(rest) < min_document_chars or not rest.strip())):
            continue
        yield rest
