"""Write word_characters.inc: what the rules of text quality must know of each code point.

Run it with `python native/generate_quality_unicode.py` from the root after a new Unicode version.
The word splitter follows spaCy's English rules, which name scripts rather than properties; the sets
of marks are those that datatrove's filters count by.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

PAGE = 128
FLAGS = {
    "Alpha": "a letter to the word splitter",
    "Lower": "a small letter to it, or one without case",
    "Upper": "a capital to it, or one without case",
    "Icon": "a symbol that is a word of its own",
    "Letter": "str.isalpha",
    "Mark": "a word of nothing but these is no real word",
    "End": "ends a sentence",
    "Space": "str.isspace",
    "Punct": "split off both ends of a word",
    "Quote": "as well",
    "Currency": "split off the beginning, and off the end after a digit",
    "Punctuation": "of a category P",
    "Capital": "str.isupper",
    "Digit": "str.isdigit",
    "WordChar": "\\w of Python's regular expressions",
    "Break": "ends a line for str.splitlines",
}

UNCASED = (
    "1200-137F 980-9FF 591-5F4 FB1D-FB4F 900-97F C80-CFF B80-BFF C00-C7F 620-64A 66E-6D5 6E5-6FF "
    "750-77F 8A0-8BD FB50-FBB1 FBD3-FD3D FD50-FDC7 FDF0-FDFB FE70-FEFC 1EE00-1EEBB D80-DFF "
    "AC00-D7AF 1100-11FF 3040-30FF 4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2EBEF 2E80-2FDF "
    "2FF0-303F 31C0-31EF 3200-33FF F900-FAFF FE30-FE4F 1F200-1F2FF 2F800-2FA1F"
)
CASED = "41-24F 250-2AF 370-3FF 400-52F 1D00-1D9A 1E00-1EFF 2C60-2C7F A722-A7FA AB30-AB64 FF21-FF5A"
END = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E "
    "1735-1736 17D4-17D6 17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E "
    "1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 "
    "A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F "
    "FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 "
    "111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 "
    "11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 "
    "11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
MARK = (
    "0-8 B-1F 22-2D 2F 3A-3E 40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA "
    "3001 3008-300D 3010-3011 FF05 FF08-FF09 FF0C FF11 FF1A-FF1B FF5E"
)
PUNCT = (
    "21 23 26 28-2A 2C 3A-3C 3E-3F 5B 5D 5F 7B 7D A1 B7 BF 60C 61B 61F 66A 6D4 964 2026 3001-3002 "
    "FF01 FF0C FF1A-FF1B FF1F FF5E"
)
QUOTE = "22 27 2C 60 AB B4 BB 2018-201A 201C-201E 2329-232A 27E6-27E7 3008-3011 3014-3015 FF08-FF09"
CURRENCY = "24 A3 A5 E3F 20A0-20BF FDFC"
BREAK = "A-D 1C-1E 85 2028-2029"


def expand(ranges: str) -> set[int]:
    """The code points of a list of hexadecimal ranges."""
    found: set[int] = set()
    for part in ranges.split():
        first, _, last = part.partition("-")
        found.update(range(int(first, 16), int(last or first, 16) + 1))
    return found


def classify() -> list[int]:
    """The flags of every code point."""
    uncased, cased, end = expand(UNCASED), expand(CASED), expand(END)
    mark = expand(MARK) | end
    punct, quote, currency = expand(PUNCT), expand(QUOTE), expand(CURRENCY)
    breaks = expand(BREAK)
    values: list[int] = []
    for code in range(sys.maxunicode + 1):
        char, category = chr(code), unicodedata.category(chr(code))
        lower = code in uncased or (code in cased and category == "Ll")
        upper = code in uncased or (code in cased and category in ("Lu", "Lt"))
        flags = (
            lower or upper,
            lower,
            upper,
            category == "So",
            char.isalpha(),
            code in mark,
            code in end,
            char.isspace(),
            code in punct,
            code in quote,
            code in currency,
            category[0] == "P",
            char.isupper(),
            char.isdigit(),
            char.isalnum() or char == "_",
            code in breaks,
        )
        values.append(sum(bit << place for place, bit in enumerate(flags)))
    return values


def main() -> None:
    values = classify()
    pages: dict[tuple[int, ...], int] = {}
    index = [
        pages.setdefault(tuple(values[start : start + PAGE]), len(pages))
        for start in range(0, len(values), PAGE)
    ]
    lines = [
        f"// Unicode {unicodedata.unidata_version}, written by generate_word_characters.py.",
        "// clang-format off",
        *(
            f"constexpr uint16_t kText{name} = {1 << place};  // {meaning}"
            for place, (name, meaning) in enumerate(FLAGS.items())
        ),
        f"constexpr uint16_t kTextPageIndex[{len(index)}] = {{",
        *(",".join(map(str, index[at : at + 32])) + "," for at in range(0, len(index), 32)),
        "};",
        f"constexpr uint16_t kTextPages[{len(pages)}][{PAGE}] = {{",
        *("{" + ",".join(map(str, page)) + "}," for page in pages),
        "};",
        "// clang-format on",
    ]
    Path(__file__).with_name("word_characters.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
