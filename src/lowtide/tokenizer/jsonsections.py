"""Convert the sections of a tokenizer.json around its model to native settings, and back.

In:      the sections normalizer, pre_tokenizer and added_tokens
Out:     Parts (pattern, normalizer, added tokens); UnknownPartError names an unsupported part
Memory:  a few hundred bytes for each added token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.bytelevel import check_ids
from lowtide.tokenizer.patterns import (
    EXPRESSIONS,
    Pattern,
    UnknownPartError,
    pattern_of_expression,
)
from lowtide.tokenizer.vocabulary import AddedToken, Normalizer, Vocabulary

__all__ = [
    "Parts",
    "added_section",
    "name_section",
    "normalizer_section",
    "pre_tokenizer_section",
    "read_added",
    "read_normalizer",
    "read_parts",
    "split_expression",
    "split_step",
]

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
# ASCII that NFC produces from other characters: Kelvin sign, Greek question mark, Greek varia.
_FROM_OTHERS = frozenset("K;`")


@dataclass(frozen=True)
class Parts:
    """The parts besides vocab and merges that decide ids."""

    pattern: Pattern
    normalizer: Normalizer
    added: tuple[AddedToken, ...]

    @property
    def ids(self) -> dict[str, int]:
        """The added tokens with their ids."""
        return {token.content: token.id for token in self.added}

    @property
    def is_plain(self) -> bool:
        """True if all added tokens are plain special tokens, matched in the unnormalized text."""
        normalized = {token.normalized for token in self.added}
        return (
            self.normalizer == "none"
            and len(normalized) < 2
            and all(token.special and not (token.lstrip or token.rstrip) for token in self.added)
        )


def name_section(section: Any) -> str:
    """A short description of a section.

    >>> name_section({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})
    'Sequence(NFKC, Lowercase)'
    """
    if not isinstance(section, dict):
        return "none" if section is None else repr(section)[:40]
    inner = next((rows for rows in section.values() if isinstance(rows, list)), None)
    name = str(section.get("type"))
    return name if inner is None else f"{name}({', '.join(map(name_section, inner))})"


def read_parts(data: Mapping[str, Any], path: Path) -> Parts:
    """Read everything but the model."""
    normalizer = read_normalizer(data.get("normalizer"), path)
    added = read_added(data.get("added_tokens") or [], path)
    for token in added:
        if token.normalized and normalizer == "nfc" and not _is_safe(token.content):
            raise UnknownPartError(f"added token {token.content!r}, normalized", path=path)
    return Parts(_read_pattern(data.get("pre_tokenizer"), path), normalizer, added)


def _is_safe(content: str) -> bool:
    """True if NFC neither changes the text nor produces it from other text."""
    return content.isascii() and not _FROM_OTHERS & set(content)


def read_normalizer(section: Any, path: Path) -> Normalizer:
    """Find which normalizer a section describes."""
    steps = [section]
    if isinstance(section, dict) and section.get("type") == "Sequence":
        steps = section.get("normalizers")
    if section is None or steps == []:
        return "none"
    if steps == [{"type": "NFC"}]:
        return "nfc"
    raise UnknownPartError(f"normalizer {name_section(section)}", path=path)


def read_added(rows: Any, path: Path) -> tuple[AddedToken, ...]:
    """Read the added tokens."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        text = row.get("content") if isinstance(row, dict) else None
        if not isinstance(text, str) or not text:
            raise DataError(f"an added token has no content: {row!r}", path=path)
        if row.get("single_word"):
            raise UnknownPartError(f"added token {text!r} as a single word", path=path)
        found[text] = row
    ids = check_ids({text: row.get("id") for text, row in found.items()}, path)
    flags = ("special", "lstrip", "rstrip", "normalized")
    return tuple(
        AddedToken(text, ids[text], **{name: bool(row.get(name)) for name in flags})
        for text, row in found.items()
    )


def _read_pattern(section: Any, path: Path) -> Pattern:
    """Find which pattern a pre_tokenizer section describes.

    The byte-level step is last. Before it is its own expression (gpt2), digits one by one and then
    that expression, or one Split.
    """
    steps: Any = [section]
    if isinstance(section, dict) and section.get("type") == "Sequence":
        steps = section.get("pretokenizers")
    unknown = UnknownPartError(f"pre_tokenizer {name_section(section)}", path=path)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise unknown
    types = [step.get("type") for step in steps]
    if types not in (["ByteLevel"], ["Digits", "ByteLevel"], ["Split", "ByteLevel"]):
        raise unknown
    if steps[-1].get("add_prefix_space"):
        raise UnknownPartError("add_prefix_space", path=path)
    if steps[-1].get("use_regex", True) != (types[0] != "Split"):
        raise unknown
    if types[0] == "Digits":
        if not steps[0].get("individual_digits"):
            raise unknown
        return "digits"
    if types[0] == "ByteLevel":
        return "gpt2"
    return pattern_of_expression(split_expression(steps[0], unknown), path=path)


def split_expression(step: Mapping[str, Any], unknown: DataError) -> str:
    """The expression of a Split whose matches are the pieces.

    Isolated keeps matches and the text between them; inverted Removed drops the text between. If
    every character is part of a match, as in all patterns here, both are the same.
    """
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    way = (step.get("behavior"), bool(step.get("invert")))
    if not isinstance(expression, str) or way not in (("Isolated", False), ("Removed", True)):
        raise unknown
    return expression


def split_step(expression: str) -> dict[str, Any]:
    """A Split whose matches are the pieces."""
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": "Isolated",
        "invert": False,
    }


def pre_tokenizer_section(pattern: Pattern) -> dict[str, Any]:
    """The pre_tokenizer section of a pattern."""
    if pattern == "gpt2":
        return {**_BYTE_LEVEL, "use_regex": True}
    if pattern == "digits":
        digits = {"type": "Digits", "individual_digits": True}
        return _sequence([digits, {**_BYTE_LEVEL, "use_regex": True}])
    return _sequence([split_step(EXPRESSIONS[pattern]), {**_BYTE_LEVEL, "use_regex": False}])


def _sequence(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def normalizer_section(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """The normalizer section."""
    return {"type": "NFC"} if vocabulary.normalizer == "nfc" else None


def added_section(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """The section of special and added tokens."""
    tokens = vocabulary.added_tokens or [
        AddedToken(text, id) for text, id in vocabulary.special_tokens.items()
    ]
    return [
        {
            "id": token.id,
            "content": token.content,
            "single_word": False,
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "normalized": token.normalized,
            "special": token.special,
        }
        for token in sorted(tokens, key=lambda token: token.id)
    ]
