"""Hugging Face's tokenizer.json, for byte-level BPE and for characters.

In:      a tokenizer.json; one with parts that native code does not know goes to the package
Out:     a Vocabulary; or a tokenizer.json that tokenizers and transformers load
Memory:  a few times the file
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.errors import DataError
from lowtide.files import read_json, write_bytes
from lowtide.tokenizer.bytelevel import (
    check_ids,
    format_merges,
    format_vocab,
    merge_texts,
    read_bpe,
    read_bpe_text,
    split_merge,
    vocab_section,
)
from lowtide.tokenizer.patterns import (
    EXPRESSIONS,
    Pattern,
    UnknownPartError,
    pattern_of_expression,
)
from lowtide.tokenizer.vocabulary import UNKNOWN, Vocabulary, require_dense

__all__ = ["load_tokenizer_json", "tokenizer_json", "why_package", "write_tokenizer_json"]

_CHARACTER_EXPRESSION = r"[\s\S]"
_ADVICE = "take the file as it was published, or train a tokenizer: lowtide train-tokenizer"
# Settings of a BPE model that change ids in ways that lowtide has no counterpart for.
_UNSUPPORTED = ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout")


def load_tokenizer_json(path: Path) -> Vocabulary:
    """Read a tokenizer.json."""
    try:
        try:
            return _require_bytes(_load_natively(path) or _load(read_json(path), path))
        except UnknownPartError as error:
            from lowtide.tokenizer.package import load_with_package  # few tokenizers need it

            return load_with_package(path, error.message)
    except DataError as error:
        raise DataError(
            error.message, path=error.path or path, next_step=error.next_step or _ADVICE
        ) from None


def why_package(path: Path) -> str | None:
    """What native code does not know of a tokenizer.json; None: it runs it, or it is damaged."""
    try:
        text = path.read_bytes()
        places = _native.find_json_sections(text)
        if places is None:
            _load(json.loads(text), path)
            return None
        vocab, merges = slice(places[0], sum(places[:2])), slice(places[2], sum(places[2:]))
        data = json.loads(_without(text, vocab, merges))
        _check_data(data, path)
        _check_bpe(data["model"], path)
        _read_pattern(data.get("pre_tokenizer"), path)
    except UnknownPartError as error:
        return error.message
    except (OSError, ValueError, DataError):
        pass
    return None


def _require_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """A byte-level vocabulary that has a token for each byte, as native code needs it."""
    if vocabulary.kind == "bpe":
        specials = set(vocabulary.special_tokens.values())
        tokens = enumerate(vocabulary.tokens)
        known = {token for id, token in tokens if len(token) == 1 and id not in specials}
        if len(known) < 256:
            missing = next(byte for byte in range(256) if bytes([byte]) not in known)
            raise UnknownPartError(f"no token for byte {missing}")
    return vocabulary


def _name(section: Any) -> str:
    """What a section is, in a few words.

    >>> _name({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})
    'Sequence(NFKC, Lowercase)'
    """
    if not isinstance(section, dict):
        return "none" if section is None else repr(section)[:40]
    inner = next((rows for rows in section.values() if isinstance(rows, list)), None)
    name = str(section.get("type"))
    return name if inner is None else f"{name}({', '.join(map(_name, inner))})"


def _load_natively(path: Path) -> Vocabulary | None:
    """Read a byte-level tokenizer.json without a Python object for each token.

    None if it is not of the usual form: `_load` then reads it, or says what is wrong.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return None
    places = _native.find_json_sections(text)
    if places is None:
        return None
    vocab, merges = slice(places[0], sum(places[:2])), slice(places[2], sum(places[2:]))
    try:
        data = json.loads(_without(text, vocab, merges))
        specials = _check_data(data, path)
        if data["model"].get("type", "BPE") != "BPE":
            return None
        _check_bpe(data["model"], path)
        return read_bpe_text(
            text[vocab],
            text[merges],
            specials,
            merges_are_json=True,
            pattern=_read_pattern(data.get("pre_tokenizer"), path),
            whole_pieces=bool(data["model"].get("ignore_merges")),
        )
    except UnknownPartError:
        raise
    except (ValueError, DataError):
        return None


def _without(text: bytes, *sections: slice) -> bytes:
    """Return JSON text with null in place of two sections."""
    first, second = sorted(sections, key=lambda section: section.start)
    rest = [text[: first.start], text[first.stop : second.start], text[second.stop :]]
    return b"null".join(rest)


def _check_data(data: Any, path: Path) -> dict[str, int]:
    """Check what is outside the model, and give the special tokens."""
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise DataError("not a tokenizer.json: no model in it", path=path)
    if data.get("normalizer") is not None:
        raise UnknownPartError(f"normalizer {_name(data['normalizer'])}", path=path)
    return _read_specials(data.get("added_tokens") or [], path)


def _check_bpe(model: Mapping[str, Any], path: Path) -> None:
    for setting in _UNSUPPORTED:
        if model.get(setting):
            raise UnknownPartError(f"{setting} {model[setting]!r}", path=path)


def _load(data: Any, path: Path) -> Vocabulary:
    specials = _check_data(data, path)
    model = data["model"]
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "WordLevel"):
        raise UnknownPartError(f"model {kind}", path=path)
    vocab = check_ids(model.get("vocab"), path)
    if kind == "WordLevel":
        return _read_characters(data, vocab, specials, path)
    _check_bpe(model, path)
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise DataError("the model has no list of merges", path=path)
    return read_bpe(
        vocab,
        [split_merge(row, path) for row in merges],
        specials,
        pattern=_read_pattern(data.get("pre_tokenizer"), path),
        whole_pieces=bool(model.get("ignore_merges")),
        path=path,
    )


def _read_specials(rows: Any, path: Path) -> dict[str, int]:
    specials: dict[str, Any] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        text = row.get("content") if isinstance(row, dict) else None
        if not isinstance(text, str) or not text:
            raise DataError(f"an added token has no content: {row!r}", path=path)
        if row.get("lstrip") or row.get("rstrip") or row.get("single_word"):
            raise UnknownPartError(f"added token {text!r} strips its neighbours", path=path)
        specials[text] = row.get("id")
    return check_ids(specials, path)


def _read_pattern(pre_tokenizer: Any, path: Path) -> Pattern:
    """Find which pattern a pre_tokenizer section describes.

    Either ByteLevel with its own expression, or one Split and then ByteLevel without.
    """
    steps: Any = [pre_tokenizer]
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        steps = pre_tokenizer.get("pretokenizers")
    unknown = UnknownPartError(f"pre_tokenizer {_name(pre_tokenizer)}", path=path)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise unknown
    types = [step.get("type") for step in steps]
    if types not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise unknown
    if steps[-1].get("add_prefix_space"):
        raise UnknownPartError("add_prefix_space", path=path)
    if steps[-1].get("use_regex", True) != (types == ["ByteLevel"]):
        raise unknown
    if types == ["ByteLevel"]:
        return "gpt2"
    return pattern_of_expression(_split_expression(steps[0], unknown), path=path)


def _split_expression(step: Mapping[str, Any], unknown: DataError) -> str:
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(expression, str) or step.get("behavior") != "Isolated" or step.get("invert"):
        raise unknown
    return expression


def _read_characters(
    data: Mapping[str, Any], vocab: Mapping[str, int], specials: Mapping[str, int], path: Path
) -> Vocabulary:
    if UNKNOWN not in specials:
        raise UnknownPartError(f"words without the special token {UNKNOWN}", path=path)
    step = data.get("pre_tokenizer")
    unknown = UnknownPartError(f"pre_tokenizer {_name(step)} of words", path=path)
    if not isinstance(step, dict) or _split_expression(step, unknown) != _CHARACTER_EXPRESSION:
        raise unknown
    highest = max([*vocab.values(), *specials.values()], default=-1)
    require_dense(highest, len(vocab) + len(specials))
    table = [b""] * (highest + 1)
    for text, id in [*vocab.items(), *specials.items()]:
        if len(text) != 1 and text not in specials:
            raise UnknownPartError(f"token {text!r} of more than a character", path=path)
        table[id] = text.encode("utf-8", "surrogatepass")
    return Vocabulary(kind="char", tokens=tuple(table), special_tokens=dict(specials))


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a vocabulary as the contents of a Hugging Face tokenizer.json."""
    sections = _small_sections(vocabulary)
    sections["model"]["vocab"] = vocab_section(vocabulary)
    if vocabulary.kind == "bpe":
        sections["model"]["merges"] = merge_texts(vocabulary)
    return sections


def _small_sections(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return everything but the vocab and the merges; None stands where they come last."""
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


def _split_step(expression: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": "Isolated",
        "invert": False,
    }


def _bpe_sections(vocabulary: Vocabulary) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pre_tokenizer: dict[str, Any] = {**byte_level, "use_regex": True}
    if vocabulary.pattern != "gpt2":
        pre_tokenizer = {
            "type": "Sequence",
            "pretokenizers": [
                _split_step(EXPRESSIONS[vocabulary.pattern]),
                {**byte_level, "use_regex": False},
            ],
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
        "vocab": None,
    }
    return model, pre_tokenizer, {**byte_level, "use_regex": True}


def _character_sections(
    vocabulary: Vocabulary,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    model = {"type": "WordLevel", "unk_token": UNKNOWN, "vocab": None}
    return model, _split_step(_CHARACTER_EXPRESSION), {"type": "Fuse"}


def write_tokenizer_json(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a tokenizer.json atomically, a token and a merge a line."""
    if vocabulary.source is not None:
        _write_source(path, vocabulary.source)
        return
    small = json.dumps(_small_sections(vocabulary), ensure_ascii=False, indent=2)
    large = b'"vocab": ' + format_vocab(vocabulary, between=",\n", colon=":")
    if vocabulary.kind == "bpe":
        large += b',\n    "merges": ' + format_merges(vocabulary, as_json=True)
    text = small.encode("utf-8", "surrogatepass").replace(b'"vocab": null', large)
    write_bytes(path, text + b"\n")


def _write_source(path: str | Path, source: bytes) -> None:
    """Write a tokenizer.json as it was read."""
    import zstandard  # few tokenizers need it

    write_bytes(path, zstandard.ZstdDecompressor().decompress(source))
