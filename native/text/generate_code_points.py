"""Write code_points.inc: what cleaning must know of each code point, as a two-level table.

Run it with `python native/generate_corpus_unicode.py` from the root after a new Unicode version.
A value of 1 to 240 is the canonical combining class of a mark that NFC leaves alone.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

BLANK, DROP, NEWLINE, UNSTABLE = 241, 242, 243, 244
PAGE = 128
HANGUL_TAILS = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}


def second_characters() -> set[int]:
    """Give the characters that may join the one before them under NFC."""
    found: set[int] = set(HANGUL_TAILS)
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            joined = unicodedata.normalize("NFC", "".join(chr(int(part, 16)) for part in parts))
            if joined == chr(code):
                found.add(int(parts[1], 16))
    return found


def classify(code: int, seconds: set[int]) -> int:
    character = chr(code)
    if code in (0x0A, 0x0D, 0x85, 0x2028, 0x2029):
        return NEWLINE
    if code in (0x09, 0x0B, 0x0C) or unicodedata.category(character) == "Zs":
        return BLANK
    if unicodedata.category(character) == "Cc" or code in (0x200B, 0x2060, 0xFEFF):
        return DROP
    if 0xD800 <= code <= 0xDFFF:
        return 0
    if code in seconds or not unicodedata.is_normalized("NFC", character):
        return UNSTABLE
    return unicodedata.combining(character)


def main() -> None:
    seconds = second_characters()
    values = [classify(code, seconds) for code in range(sys.maxunicode + 1)]
    pages: dict[tuple[int, ...], int] = {}
    index = [
        pages.setdefault(tuple(values[start : start + PAGE]), len(pages))
        for start in range(0, len(values), PAGE)
    ]
    lines = [
        f"// Unicode {unicodedata.unidata_version}, written by generate_code_points.py.",
        "// clang-format off",
        f"constexpr uint8_t kUnicodePageIndex[{len(index)}] = {{",
        *(",".join(map(str, index[at : at + 32])) + "," for at in range(0, len(index), 32)),
        "};",
        f"constexpr uint8_t kUnicodePages[{len(pages)}][{PAGE}] = {{",
        *("{" + ",".join(map(str, page)) + "}," for page in pages),
        "};",
        "// clang-format on",
    ]
    assert len(pages) <= 256
    Path(__file__).with_name("code_points.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
