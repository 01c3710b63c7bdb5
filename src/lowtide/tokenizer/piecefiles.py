"""Convert SentencePiece's files (tokenizer.model), if they are BPE with byte fallback.

In:      the file of Llama 2, Mistral 7B, TinyLlama or Gemma, a protocol buffer
Out:     the equivalent tokenizer.json, as transformers converts it
Memory:  some objects for each token

The file has pieces with scores, from which merges are derived: every way to split a piece into two
other pieces is a merge, and merges into pieces with higher scores come first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

__all__ = ["is_piece_file", "tokenizer_json_of_pieces"]

_BLANK = "▁"
_BPE = 2
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_UNKNOWN, _CONTROL, _ADDED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_CONVERT = (
    'convert it: python -c "from transformers import AutoTokenizer as T; '
    "T.from_pretrained('FOLDER').save_pretrained('FOLDER')\"   (it needs sentencepiece)"
)


@dataclass
class _Pieces:
    """The contents of a file."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_type: int = 1
    has_byte_fallback: bool = False
    charsmap_bytes: int = 0
    adds_blank: bool = True
    removes_blanks: bool = True
    blank_is_suffix: bool = False


def is_piece_file(path: Path) -> bool:
    """True for the names of such files: tokenizer.model, and Mistral's tokenizer.model.v3."""
    return ".model" in path.suffixes


def tokenizer_json_of_pieces(path: Path) -> bytes:
    """The tokenizer.json of a SentencePiece file; other kinds of models are refused."""
    try:
        pieces = _read(path.read_bytes())
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise DataError(
            f"not a file of SentencePiece: {error}",
            path=path,
            next_step="name a tokenizer.json, a .tiktoken file, or a tokenizer's folder",
        ) from None
    reasons = {
        "no byte-fallback BPE": pieces.model_type != _BPE or not pieces.has_byte_fallback,
        "rules that change characters": pieces.charsmap_bytes > 0,
        "blanks that are removed": pieces.removes_blanks,
        "blanks behind words": pieces.blank_is_suffix,
    }
    if found := [reason for reason, is_so in reasons.items() if is_so]:
        raise DataError(
            f"a SentencePiece file with {', '.join(found)}", path=path, next_step=_CONVERT
        )
    return json.dumps(_contents(pieces), ensure_ascii=False).encode()


def _contents(pieces: _Pieces) -> dict[str, Any]:
    vocab = {text: id for id, text in enumerate(pieces.texts)}
    unknown = pieces.texts[pieces.kinds.index(_UNKNOWN)] if _UNKNOWN in pieces.kinds else None
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    ]
    decoding: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if pieces.adds_blank:
        steps.insert(0, {"type": "Prepend", "prepend": _BLANK})
        decoding.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "added_tokens": [
            _added(id, text, kind)
            for id, (text, kind) in enumerate(zip(pieces.texts, pieces.kinds, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _ADDED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _begin("<s>", vocab) if "<s>" in vocab else None,
        "decoder": {"type": "Sequence", "decoders": decoding},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(pieces, vocab),
        },
    }


def _added(id: int, text: str, kind: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": text, **flags, "special": kind != _ADDED}


def _begin(token: str, vocab: dict[str, int]) -> dict[str, Any]:
    """The token that Llama's and Mistral's tokenizers put before a text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    rest = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    second = {"SpecialToken": {"id": token, "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, rest[0]],
        "pair": [first, rest[0], second, rest[1]],
        "special_tokens": {token: {"id": token, "ids": [vocab[token]], "tokens": [token]}},
    }


def _merges(pieces: _Pieces, vocab: dict[str, int]) -> list[list[str]]:
    """All splits of a piece into two pieces, the highest score first."""
    joined = {
        text: score
        for text, score, kind in zip(pieces.texts, pieces.scores, pieces.kinds, strict=True)
        if kind not in (_UNKNOWN, _CONTROL, _BYTE, _UNUSED)
    }
    found: list[tuple[float, int, int, str, str]] = []
    for text, score in joined.items():
        ways = [
            (vocab[text[:place]], vocab[text[place:]], text[:place], text[place:])
            for place in range(1, len(text))
            if text[:place] in joined and text[place:] in joined
        ]
        found += [(score, len(left), len(right), left, right) for *_, left, right in sorted(ways)]
    found.sort(key=lambda row: row[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def _read(data: bytes) -> _Pieces:
    """Read the message of a file: pieces, trainer settings, and normalizer settings."""
    pieces = _Pieces()
    for number, value in _fields(data):
        if number == 1:
            row = dict(_fields(_part(value)))
            pieces.texts.append(_part(row[1]).decode())
            pieces.scores.append(struct.unpack("<f", _part(row.get(2, bytes(4))))[0])
            pieces.kinds.append(_number(row.get(3, 1)))
        elif number == 2:
            trained = dict(_fields(_part(value)))
            pieces.model_type = _number(trained.get(3, 1))
            pieces.has_byte_fallback = bool(trained.get(35, 0))
            pieces.blank_is_suffix = bool(trained.get(24, 0))
        elif number == 3:
            rules = dict(_fields(_part(value)))
            pieces.charsmap_bytes = len(_part(rules.get(2, b"")))
            pieces.adds_blank = bool(rules.get(3, True))
            pieces.removes_blanks = bool(rules.get(4, True))
    if not pieces.texts:
        raise ValueError("no pieces in it")
    if len(set(pieces.texts)) < len(pieces.texts):
        raise ValueError("a piece comes twice")
    return pieces


def _part(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a part of the message should be")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a part of the message where a number should be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers and values."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        elif kind == 2:
            size, place = _varint(data, place)
        else:
            raise ValueError(f"a field of kind {kind}")
        if place + size > len(data):
            raise ValueError("it ends too early")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
