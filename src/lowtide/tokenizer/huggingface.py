"""Read and write Hugging Face's tokenizer.json, for byte-level BPE and for characters.

In:      a tokenizer.json; one with parts that native code does not support runs in the package
Out:     a Vocabulary; or a tokenizer.json that tokenizers and transformers load
Memory:  a few times the file
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.errors import DataError
from lowtide.filenames import CONFIG_NAME, METADATA_NAME
from lowtide.files import Publisher, read_json, write_bytes
from lowtide.packages import MissingPackageError
from lowtide.tokenizer.bytelevel import (
    check_ids,
    format_merges,
    format_vocab,
    merge_texts,
    read_bpe,
    read_bpe_text,
    require_package_ids,
    split_merge,
    vocab_section,
)
from lowtide.tokenizer.jsonsections import (
    Parts,
    added_section,
    name_section,
    normalizer_section,
    pre_tokenizer_section,
    read_added,
    read_normalizer,
    read_parts,
    split_expression,
    split_step,
)
from lowtide.tokenizer.patterns import UnknownPartError
from lowtide.tokenizer.vocabulary import UNKNOWN, Vocabulary, require_dense

__all__ = [
    "load_tokenizer_json",
    "parsed_bytes",
    "replacement",
    "tokenizer_json",
    "why_package",
    "write_tokenizer_json",
]

_CHARACTER_EXPRESSION = r"[\s\S]"
_ADVICE = "take the file as it was published, or train a tokenizer: lowtide train-tokenizer"
# Settings of a BPE model that change ids and that lowtide does not support.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}  # GPT-NeoX and OLMo 1 have no tokens for these
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
            return _load_anyway(path, error)
    except DataError as error:
        step = error.next_step or replacement(path.parent, otherwise=_ADVICE)
        raise DataError(error.message, path=error.path or path, next_step=step) from None


def replacement(folder: Path, *, otherwise: str) -> str:
    """What to do without the tokenizer of a folder: for a model or a dataset no other will do."""
    if (folder / CONFIG_NAME).is_file():
        return (
            "bring back the tokenizer of this model, as another one has other ids; "
            "a run has it in its folder and in best/, not in steps/"
        )
    if (folder / METADATA_NAME).is_file():
        return (
            "bring back the tokenizer of this dataset, as another one has other ids; "
            "a run that was trained on it has a copy"
        )
    return otherwise


def _load_anyway(path: Path, error: DataError) -> Vocabulary:
    """Load a file that native code refuses with the package; if it refuses too, raise the error."""
    from lowtide.tokenizer.package import load_with_package

    try:
        return load_with_package(path, error.message)
    except (DataError, MissingPackageError, OSError):
        raise error from None


def why_package(path: Path) -> str | None:
    """The part of a tokenizer.json that native code does not support; None if there is none."""
    try:
        text = path.read_bytes()
        places = _native.find_json_sections(text)
        if places is None:
            _load(json.loads(text), path)
            return None
        vocab, merges = slice(places[0], sum(places[:2])), slice(places[2], sum(places[2:]))
        data = _require_model(json.loads(_without(text, vocab, merges)), path)
        read_parts(data, path)
        _check_bpe(data["model"], path)
    except UnknownPartError as error:
        return error.message
    except (OSError, ValueError, RecursionError, DataError):
        pass
    return None


def parsed_bytes(path: Path) -> int:
    """Bytes of a tokenizer.json that become Python objects: all but vocabulary and merges.

    0 if it cannot be read or has an unusual form, which is reported when it is loaded.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return 0
    places = _native.find_json_sections(text)
    return 0 if places is None else len(text) - places[1] - places[3]


def _require_bytes(vocabulary: Vocabulary) -> Vocabulary:
    """Refuse a vocabulary that lacks a token for a UTF-8 byte, which native code needs."""
    if vocabulary.kind == "bpe":
        specials = set(vocabulary.added_ids.values())
        tokens = enumerate(vocabulary.tokens)
        known = {token[0] for id, token in tokens if len(token) == 1 and id not in specials}
        missing = set(range(256)) - known - _NEVER_IN_UTF8
        if missing:
            raise UnknownPartError(f"no token for byte {min(missing)}")
    return vocabulary


def _load_natively(path: Path) -> Vocabulary | None:
    """Read a byte-level tokenizer.json without a Python object for each token.

    None if it does not have the usual form: `_load` then reads it or reports the error.
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
        data = _require_model(json.loads(_without(text, vocab, merges)), path)
        if data["model"].get("type", "BPE") != "BPE":
            return None
        parts = read_parts(data, path)
        _check_bpe(data["model"], path)
        vocabulary = read_bpe_text(
            text[vocab],
            text[merges],
            parts.ids,
            merges_are_json=True,
            pattern=parts.pattern,
            whole_pieces=bool(data["model"].get("ignore_merges")),
        )
        return vocabulary and _with_rules(vocabulary, parts)
    except UnknownPartError:
        raise
    except (ValueError, DataError):
        return None


def _without(text: bytes, *sections: slice) -> bytes:
    """Return JSON text with null in place of two sections."""
    first, second = sorted(sections, key=lambda section: section.start)
    rest = [text[: first.start], text[first.stop : second.start], text[second.stop :]]
    return b"null".join(rest)


def _require_model(data: Any, path: Path) -> dict[str, Any]:
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise DataError("not a tokenizer.json: no model in it", path=path)
    return data


def _with_rules(vocabulary: Vocabulary, parts: Parts) -> Vocabulary:
    """The same with rules for added tokens, if there are any."""
    if parts.is_plain:
        return vocabulary
    return dataclasses.replace(
        vocabulary,
        special_tokens={token.content: token.id for token in parts.added if token.special},
        added_tokens=parts.added,
        normalizer=parts.normalizer,
    )


def _check_bpe(model: Mapping[str, Any], path: Path) -> None:
    for setting in _UNSUPPORTED:
        if model.get(setting):
            raise UnknownPartError(f"{setting} {model[setting]!r}", path=path)


def _load(data: Any, path: Path) -> Vocabulary:
    model = _require_model(data, path)["model"]
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "WordLevel"):
        raise UnknownPartError(f"model {kind}", path=path)
    vocab = check_ids(model.get("vocab"), path)
    if kind == "WordLevel":
        return _read_characters(data, vocab, path)
    parts = read_parts(data, path)
    _check_bpe(model, path)
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise DataError("the model has no list of merges", path=path)
    vocabulary = read_bpe(
        vocab,
        [split_merge(row, path) for row in merges],
        parts.ids,
        pattern=parts.pattern,
        whole_pieces=bool(model.get("ignore_merges")),
        path=path,
    )
    return _with_rules(vocabulary, parts)


def _read_characters(data: Mapping[str, Any], vocab: Mapping[str, int], path: Path) -> Vocabulary:
    added = read_added(data.get("added_tokens") or [], path)
    parts = Parts("gpt2", read_normalizer(data.get("normalizer"), path), added)
    if not parts.is_plain:
        raise UnknownPartError("added tokens of words with rules of their own", path=path)
    specials = parts.ids
    require_package_ids(specials, vocab, len(vocab), path)
    if UNKNOWN not in specials:
        raise UnknownPartError(f"words without the special token {UNKNOWN}", path=path)
    step = data.get("pre_tokenizer")
    unknown = UnknownPartError(f"pre_tokenizer {name_section(step)} of words", path=path)
    if not isinstance(step, dict) or split_expression(step, unknown) != _CHARACTER_EXPRESSION:
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
    """Return everything but the vocab and the merges, with None in their place, at the end."""
    if vocabulary.kind == "char":
        model, pre_tokenizer, decoder = _character_sections(vocabulary)
    else:
        model, pre_tokenizer, decoder = _bpe_sections(vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_section(vocabulary),
        "normalizer": normalizer_section(vocabulary),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _bpe_sections(vocabulary: Vocabulary) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
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
    return model, pre_tokenizer_section(vocabulary.pattern), pre_tokenizer_section("gpt2")


def _character_sections(
    vocabulary: Vocabulary,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    model = {"type": "WordLevel", "unk_token": UNKNOWN, "vocab": None}
    return model, split_step(_CHARACTER_EXPRESSION), {"type": "Fuse"}


def write_tokenizer_json(
    path: str | Path, vocabulary: Vocabulary, publisher: Publisher | None = None
) -> None:
    """Write a tokenizer.json atomically, one token or merge per line."""
    if vocabulary.source is not None:
        _write_source(path, vocabulary.source, publisher)
        return
    small = json.dumps(_small_sections(vocabulary), ensure_ascii=False, indent=2)
    large = b'"vocab": ' + format_vocab(vocabulary, between=",\n", colon=":")
    if vocabulary.kind == "bpe":
        large += b',\n    "merges": ' + format_merges(vocabulary, as_json=True)
    text = small.encode("utf-8", "surrogatepass").replace(b'"vocab": null', large)
    write_bytes(path, text + b"\n", publisher=publisher)


def _write_source(path: str | Path, source: bytes, publisher: Publisher | None) -> None:
    """Write a tokenizer.json as it was read."""
    import zstandard  # few tokenizers need it

    write_bytes(path, zstandard.ZstdDecompressor().decompress(source), publisher=publisher)
