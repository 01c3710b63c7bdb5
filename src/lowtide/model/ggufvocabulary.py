"""The tokenizer fields of GGUF: tokens, their kinds, merges or scores, and the pre-tokenizer.

In:      a Tokenizer, and the files beside it
Out:     pairs of key and value; notes on what llama.cpp does differently
Memory:  a few times the tokenizer's file
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError, UsageError
from lowtide.filenames import TOKENIZER_CONFIG_NAME
from lowtide.files import read_json
from lowtide.model.config import GPTConfig
from lowtide.model.templates import begin_token, read_sections, steps_of
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.bytelevel import merge_texts, token_texts
from lowtide.tokenizer.patterns import Pattern

__all__ = ["VocabularyFields", "describe_vocabulary"]

_NORMAL, _UNKNOWN, _CONTROL, _ADDED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# llama.cpp's names of pre-tokenizers, and whether it keeps a piece that is a token whole.
_SPLITS: dict[Pattern, tuple[str, bool]] = {
    "gpt2": ("gpt-2", False),
    "cl100k": ("dbrx", False),
    "qwen2": ("qwen2", False),
    "qwen35": ("qwen35", False),
    "digits": ("smollm", False),
    "o200k": ("gpt-4o", False),
    "tekken": ("tekken", True),
}


@dataclass(frozen=True)
class VocabularyFields:
    """The fields of a GGUF file for the tokenizer."""

    pairs: dict[str, Any]
    notes: tuple[str, ...]
    """Notes on texts for which llama.cpp gives other ids."""


def describe_vocabulary(tokenizer: Tokenizer, config: GPTConfig, folder: Path) -> VocabularyFields:
    """Return the pairs that begin with tokenizer., for the files of a folder."""
    if tokenizer.kind == "char":
        raise UsageError(
            "GGUF has no vocabulary of characters: its tokenizers are BPE, SentencePiece, "
            "WordPiece and Unigram",
            path=folder,
            next_step="train with a BPE vocabulary (lowtide train-tokenizer), or export without "
            "--to gguf",
        )
    contents = read_sections(tokenizer, folder)
    is_pieces = tokenizer.kind == "package"
    pairs, notes = _pieces(tokenizer, contents, folder) if is_pieces else _byte_level(tokenizer)
    texts: list[str] = pairs["tokenizer.ggml.tokens"]
    kinds: list[int] = pairs["tokenizer.ggml.token_type"]
    for id in range(len(texts), config.vocab_size):
        texts.append(f"[PAD{id}]")
        kinds.append(_UNUSED)
        if is_pieces:
            pairs["tokenizer.ggml.scores"].append(-1e9)
    begin = begin_token(contents)
    ends = {"eos": config.others.get("eos_token_id"), "bos": config.others.get("bos_token_id")}
    ends["pad"] = config.others.get("pad_token_id")
    for name, given in ends.items():
        first = given[0] if isinstance(given, list) and given else given
        if name == "bos" and begin is not None:
            first = begin
        if not isinstance(first, int) or not 0 <= first < config.vocab_size:
            first = None if name == "pad" else tokenizer.end_of_text_id
        if first is not None:
            pairs[f"tokenizer.ggml.{name}_token_id"] = first
    pairs["tokenizer.ggml.add_bos_token"] = begin is not None
    pairs["tokenizer.ggml.add_eos_token"] = False
    template = _chat_template(folder)
    if template is not None:
        pairs["tokenizer.chat_template"] = template
    return VocabularyFields(pairs, tuple(notes))


def _byte_level(tokenizer: Tokenizer) -> tuple[dict[str, Any], list[str]]:
    vocabulary = tokenizer.data
    split, keeps_whole = _SPLITS[vocabulary.pattern]
    notes: list[str] = []
    if vocabulary.pattern == "cl100k" and vocabulary.whole_pieces:
        split, keeps_whole = "llama-bpe", True
    if vocabulary.pattern == "gpt2" and vocabulary.normalizer == "nfc":
        split = "olmo"
    if vocabulary.normalizer == "nfc":
        notes.append("llama.cpp does not compose characters (NFC): decomposed text has other ids")
    if vocabulary.pattern in ("o200k", "tekken"):
        notes.append("llama.cpp splits by case for ASCII letters only: other scripts differ")
    if vocabulary.whole_pieces and not keeps_whole:
        notes.append("llama.cpp merges words that are tokens already: rare words differ")
    added = {token.id: token.special for token in vocabulary.added_tokens}
    added |= dict.fromkeys(vocabulary.special_tokens.values(), True)
    texts = token_texts(vocabulary)
    kinds = [_NORMAL] * len(texts)
    for id, token in enumerate(vocabulary.tokens):
        if id in added:
            kinds[id] = _CONTROL if added[id] else _ADDED
        elif not token:
            texts[id], kinds[id] = f"[PAD{id}]", _UNUSED
    pairs = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merge_texts(vocabulary)],
    }
    return pairs, notes


def _pieces(
    tokenizer: Tokenizer, contents: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """SentencePiece-style BPE: the earlier a token is merged, the higher its score."""
    model = contents["model"]
    if model.get("type", "BPE") != "BPE" or not model.get("byte_fallback"):
        raise DataError(
            f"this tokenizer ({tokenizer.data.reason}) cannot be written as GGUF: byte-level BPE "
            "and SentencePiece-style BPE can",
            path=folder,
            next_step="export without --to gguf, and convert it with llama.cpp's own script",
        )
    texts = [""] * tokenizer.vocab_size
    kinds = [_NORMAL] * len(texts)
    scores = [-1e6] * len(texts)
    ids: dict[str, int] = model["vocab"]
    for text, id in ids.items():
        texts[id] = text
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            kinds[id] = _BYTE
    for rank, merge in enumerate(model["merges"]):
        pair = merge.split(" ", 1) if isinstance(merge, str) else merge
        id = ids["".join(pair)]
        scores[id] = max(scores[id], -float(rank))
    for token in contents.get("added_tokens") or ():
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = _CONTROL if token.get("special") else _ADDED
    if isinstance(model.get("unk_token"), str) and model["unk_token"] in ids:
        kinds[ids[model["unk_token"]]] = _UNKNOWN
        special = ids[model["unk_token"]]
    else:
        special = None
    for id, text in enumerate(texts):
        if not text:
            texts[id], kinds[id] = f"[PAD{id}]", _UNUSED
    pairs: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": _has_prefix(contents),
    }
    if special is not None:
        pairs["tokenizer.ggml.unknown_token_id"] = special
    return pairs, []


def _has_prefix(contents: Mapping[str, Any]) -> bool:
    """True if a space is put before a text."""
    for step in steps_of(contents.get("normalizer"), "normalizers"):
        if step.get("type") == "Prepend":
            return True
    for step in steps_of(contents.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            return step.get("prepend_scheme", "always") != "never"
    return False


def _chat_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = folder / TOKENIZER_CONFIG_NAME
    fields: Any = read_json(path) if path.is_file() else None
    template: Any = fields.get("chat_template") if isinstance(fields, dict) else None
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
