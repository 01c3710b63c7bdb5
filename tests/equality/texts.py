"""Texts of our own for equality tests: many scripts, code, emoji and odd blanks, from a seed."""

from __future__ import annotations

import random

# First and last letter of a stretch of each script; marks and digits that go with some of them.
_SCRIPTS = {
    "latin": ("a", "z", "\u0301\u0308", "0123456789"),
    "capitals": ("A", "Z", "", "0123456789"),
    "accented": ("À", "ſ", "\u0327", "½²"),
    "greek": ("α", "ω", "\u0301", ""),
    "cyrillic": ("А", "я", "\u0306", ""),
    "armenian": ("ա", "ֆ", "", ""),
    "hebrew": ("א", "ת", "\u05b4\u05bc", ""),
    "arabic": ("ا", "ي", "\u064e\u0651", "٠١٢٣٤٥٦٧٨٩"),
    "devanagari": ("अ", "ह", "\u093f\u0940\u094d", "०१२३४५६७८९"),
    "thai": ("ก", "ฮ", "\u0e31\u0e34\u0e48", "๐๑๒๓"),
    "hangul": ("가", "힣", "", ""),
    "kana": ("ぁ", "ヺ", "\u3099", ""),
    "han": ("一", "龥", "", "〇"),
    "plane two": ("\U00020000", "\U000200ff", "", ""),
    "deseret": ("\U00010400", "\U0001044f", "", "\U000104a0"),
    "newer than Unicode 16": ("\U0003d000", "\U0003d0ff", "", ""),
}
_EMOJI = ["😀", "👩\u200d💻", "🇩🇪", "👍🏽", "❤\ufe0f", "☃", "1\ufe0f\u20e3"]
_BLANKS = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028",
           "    ", "\n    ", " \n", "\x0b", "\x85", "\u200b"]  # fmt: skip
_SYMBOLS = [".", ",", "!", "?...", "'s", "'S", "'re", "'LL", "’t", "—", "«", "。", "/", "//",
            "=" * 9, "€", "<|endoftext|>", "''", "'\u017f", "\x00", "\ufeff", "\ufffd"]  # fmt: skip
_CODE = """\
def {0}({1}: int = {2}) -> str:
    \"\"\"{0} of {1}.\"\"\"
    if {1} != {2} and not self._{0}[{1}:-1]:
\t\treturn f"{{{1}!r}}\\n"  # {0}...
    for (int i=0; i<{2}; ++i) {{ {0}->{1}[i] |= 0x{2:X}; }}


"""


def make_words(script: str, chooser: random.Random, count: int) -> list[str]:
    """Words of one script, some with marks and digits, some capitalised."""
    first, last, marks, digits = _SCRIPTS[script]
    words: list[str] = []
    for _ in range(count):
        word = ""
        for _ in range(chooser.randint(1, 9)):
            word += chr(chooser.randint(ord(first), ord(last)))
            if marks and chooser.random() < 0.1:
                word += chooser.choice(marks)
        if digits and chooser.random() < 0.2:
            word += "".join(chooser.choices(digits, k=chooser.randint(1, 5)))
        words.append(word.capitalize() if chooser.random() < 0.2 else word)
    return words


def make_text(seed: int, *, num_words: int) -> str:
    """Words of few scripts, repeated as words are, with emoji, symbols, blanks and code between."""
    chooser = random.Random(seed)
    scripts = chooser.sample(list(_SCRIPTS), 3)
    words = [word for script in scripts for word in make_words(script, chooser, 60)]
    parts: list[str] = []
    for _ in range(num_words):
        parts.append(words[min(int(chooser.expovariate(0.03)), len(words) - 1)])
        parts.append(chooser.choice(_BLANKS))
        kind = chooser.random()
        if kind < 0.1:
            parts.append(chooser.choice(_SYMBOLS))
        elif kind < 0.13:
            parts.append(chooser.choice(_EMOJI))
        elif kind < 0.14:
            names = chooser.sample(words, 2)
            parts.append(_CODE.format(*names, chooser.randint(0, 99999)))
    return "".join(parts)


def make_texts() -> list[str]:
    """Enough texts that each script is in several of them."""
    return [make_text(seed, num_words=800) for seed in range(24)]
