"""Normalize text to NFC with the same result as Hugging Face's tokenizers.

In:      bytes, valid UTF-8 or not
Out:     the same in NFC
Memory:  a few times the text

The package has the combining marks of Unicode 9; Python has newer ones too, and would reorder them.
For the package those are ordinary characters, so the text between them is normalized in parts.
"""

from __future__ import annotations

import re

from lowtide.corpus.normalforms import to_nfc

__all__ = ["compose_nfc"]

# Marks and composites added after Unicode 9, up to 16; the last rows are whole blocks.
_LATER = (
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27 10EAB-10EAC "
    "10F46-10F50 10F82-10F85 11070 1133B 1145E 11839-1183A 11930 11935 11938 1193D-1193E 11943 "
    "119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 16FF0-16FF1 1E130-1E136 1E2AE 1E2EC-1E2EF "
    "10D40-10D8F 10EC0-10EFF 11380-113FF 11F00-11F5F 16100-1613F 16D40-16D7F 1E4D0-1E4FF "
    "1E5D0-1E5FF"
)


def _class_of(ranges: str) -> str:
    ends = (row.partition("-") for row in ranges.split())
    return "".join(f"{chr(int(a, 16))}-{chr(int(b or a, 16))}" for a, _, b in ends)


_AT_LATER = re.compile(f"([{_class_of(_LATER)}]+)")


def compose_nfc(data: bytes) -> bytes:
    """Return text in NFC; bytes that are not valid UTF-8 stay as they are.

    >>> compose_nfc("cafe\\u0301".encode()).decode()
    'café'
    """
    text = data.decode("utf-8", "surrogateescape")
    # Parts alternate: every second one is a run of later characters.
    parts = _AT_LATER.split(text)
    parts[::2] = [to_nfc(part) for part in parts[::2]]
    return "".join(parts).encode("utf-8", "surrogateescape")
