"""The split patterns: their names, and their regular expressions in other programs.

lowtide scans these patterns with native code; the expressions are used to write files for other
programs, to recognise the patterns in their files, and as the reference in tests.
"""

from __future__ import annotations

from typing import Literal, get_args

from lowtide.errors import DataError

__all__ = ["EXPRESSIONS", "PATTERN_NAMES", "Pattern", "UnknownPartError", "pattern_of_expression"]


class UnknownPartError(DataError):
    """A part of a tokenizer that native code does not support; the package may."""


Pattern = Literal["gpt2", "cl100k", "o200k", "qwen2", "qwen35", "digits", "tekken"]
PATTERN_NAMES: tuple[Pattern, ...] = get_args(Pattern)

_O200K_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_O200K_HEADS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_O200K_TAILS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _by_words(*, letters: str = r"\p{L}", marks: str = "", numbers: str = r"\p{N}{1,3}") -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _by_case(*, ending: str = f"{_CONTRACTIONS}?", numbers: str = r"\p{N}{1,3}") -> str:
    return "|".join(
        [
            f"{_O200K_PREFIX}{_O200K_HEADS}*{_O200K_TAILS}+{ending}",
            f"{_O200K_PREFIX}{_O200K_HEADS}+{_O200K_TAILS}*{ending}",
            numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ]
    )


EXPRESSIONS: dict[Pattern, str] = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _by_words(),
    "o200k": _by_case(),
    # Qwen 2 to 3: cl100k, numbers one by one; Qwen 3.5: marks are parts of words.
    "qwen2": _by_words(numbers=r"\p{N}"),
    "qwen35": _by_words(letters=r"[\p{L}\p{M}]", marks=r"\p{M}", numbers=r"\p{N}"),
    # SmolLM, StarCoder: numbers one by one, and gpt2 in each part between them. Files have two
    # steps for it; as one expression, blanks before a number are treated like those at the end of a
    # text.
    "digits": (
        r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
    ),
    # Mistral's: o200k without contractions, numbers one by one.
    "tekken": _by_case(ending="", numbers=r"\p{N}"),
}

# Other spellings of the same patterns, found in published files.
_OTHER_SPELLINGS: dict[str, Pattern] = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "cl100k",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "cl100k",
}


def pattern_of_expression(expression: str, *, path: object = None) -> Pattern:
    """Return the pattern of a regular expression; an unknown one is an error."""
    for name, known in EXPRESSIONS.items():
        if expression == known:
            return name
    if expression in _OTHER_SPELLINGS:
        return _OTHER_SPELLINGS[expression]
    shown = expression if len(expression) <= 60 else f"{expression[:57]}..."
    raise UnknownPartError(
        f"unknown split pattern {shown!r}", path=str(path) if path is not None else None
    )
