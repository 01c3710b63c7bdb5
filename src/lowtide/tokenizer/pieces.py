"""SentencePiece-style BPE in native code: a text is one merge problem, cut where no merge crosses.

In:      the contents of a tokenizer.json with spaces as U+2581 and byte fallback (Llama 2,
         Mistral, TinyLlama, Gemma)
Out:     PieceEncoder, with the same ids as the package tokenizers
Memory:  the native vocabulary; the pairs of characters that are adjacent in a token

Such merges start from characters, but native code starts from bytes. So every character of the
vocabulary is first assembled from its bytes by merges of higher priority than all others; partial
characters that are not in the vocabulary become bytes again.

Text is not split into words first, so the vocabulary decides where it may be cut: a merge across a
border makes a token that contains the two characters beside the border. If they are adjacent in no
token, nothing merges across. In published vocabularies this holds before every run of spaces,
whatever precedes it (checked on loading; otherwise the package is used), so the texts between
such borders are the pieces that the native cache stores.

An added token may also be an ordinary token of the vocabulary: Gemma's runs of spaces are, and are
made by merges, because as added tokens they match only a text that has the character U+2581.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import _native
from lowtide.arrays import np
from lowtide.errors import DataError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.bytelevel import check_ids, package_ids
from lowtide.tokenizer.jsonsections import read_added
from lowtide.tokenizer.vocabulary import AddedToken

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.uint32]

__all__ = ["PieceEncoder", "PieceRules", "open_pieces"]

BLANK = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# When a blank is put before a text, by the numbers of native code.
_NEVER, _EACH, _EACH_WITHOUT, _FIRST_WITHOUT = range(4)
_SCHEMES = {"never": _NEVER, "always": _EACH_WITHOUT, "first": _FIRST_WITHOUT}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
_PREPEND = {"type": "Prepend", "prepend": BLANK}
# Gemma's: there are no blanks left to split at.
_IDLE_SPLIT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
_NAME = Path(TOKENIZER_NAME)
_MOST_LOOKS = 4096  # positions that are tried as places to cut


@dataclass(frozen=True)
class PieceEncoder:
    """An encoder for a SentencePiece-style vocabulary; thread-safe."""

    native: _native.Vocabulary
    pairs: frozenset[str]
    """Pairs of characters that are adjacent in a token, blanks as spaces."""
    added: tuple[AddedToken, ...]

    def encode(self, text: str, *, allow: bool, is_first: bool = True) -> Ids:
        """Return the ids of a text, or of a part that begins at a place to cut."""
        return self.native.encode(text.encode("utf-8", "replace"), allow, is_first)

    def last_cut(self, text: str) -> int:
        """The last place to cut near the end of a text that goes on; 0 if there is none."""
        # Behind `last`, an added token across the place might not have ended yet.
        last = len(text) - max([1, *(len(token.content) - 1 for token in self.added)])
        end = last + 1
        while (end := text.rfind(" ", 1, max(0, end))) > 0:
            if self._is_cut(text, end):
                return end
            if last - end >= _MOST_LOOKS:
                break
        for place in range(last, max(0, last + 1 - _MOST_LOOKS), -1):
            if self._is_cut(text, place):
                return place
        return 0

    def _is_cut(self, text: str, place: int) -> bool:
        pair = text[place - 1 : place + 1].replace(BLANK, " ")
        # Runs of blanks are not cut, nor cut off from tokens that absorb blanks.
        if pair in self.pairs or pair[0].isspace() or (pair[1].isspace() and pair[1] != " "):
            return False
        for token in self.added:
            size = len(token.content)
            # Nor after such a token: the text after it may get a blank put before it.
            if token.content in text[max(0, place - size) : place + size - 1]:
                return False
        return True


@dataclass(frozen=True)
class PieceRules:
    """The parts of a tokenizer.json that decide ids, if native code supports them."""

    texts: Mapping[int, str]
    """Tokens by id, blanks as spaces."""
    rows: list[tuple[int, int, int]]
    """Merges: left id, right id, token id."""
    added: tuple[AddedToken, ...]
    before: int
    pairs: frozenset[str]

    @classmethod
    def of(cls, contents: Mapping[str, Any]) -> PieceRules | None:
        """Read a tokenizer.json; None if only the package supports it."""
        model, before = contents.get("model"), _blank_before(contents)
        if before is None or not isinstance(model, dict) or not _is_plain(model):
            return None
        try:
            vocab = check_ids(model["vocab"], _NAME)
            added = read_added(contents.get("added_tokens") or [], _NAME)
        except DataError:
            return None
        rows = _merge_rows(vocab, model["merges"])
        ids = {token.content: token.id for token in added}
        if (
            package_ids(ids, vocab, len(vocab)) != ids
            or rows is None
            or not _fits(added, contents.get("normalizer"))
        ):
            return None
        texts = {id: text.replace(BLANK, " ") for text, id in vocab.items() if " " not in text}
        pairs = _pairs_of(texts, rows)
        return None if pairs is None else cls(texts, rows, added, before, pairs)


def open_pieces(rules: PieceRules, *, cache_bytes: int) -> PieceEncoder:
    """Make the encoder of a tokenizer.json."""
    return PieceEncoder(_make_native(rules, cache_bytes), rules.pairs, rules.added)


def _is_plain(model: Mapping[str, Any]) -> bool:
    """True for BPE with a token for every byte in which only merges decide ids."""
    vocab, merges = model.get("vocab"), model.get("merges")
    others = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    return (
        model.get("type", "BPE") == "BPE"
        and isinstance(vocab, dict)
        and isinstance(merges, list)
        and bool(model.get("byte_fallback"))
        and not any(model.get(name) for name in others)
        and all(f"<0x{byte:02X}>" in vocab or _is_ascii(byte, vocab) for byte in range(256))
        and BLANK in vocab
    )


def _is_ascii(byte: int, vocab: Mapping[str, int]) -> bool:
    """True if a byte occurs only as a character of the vocabulary, as Gemma's tabs do."""
    return byte < 0x80 and chr(byte) in vocab


def _blank_before(contents: Mapping[str, Any]) -> int | None:
    """When a blank is put before a text; None if the text is changed in other ways too."""
    normalizer, splits = contents.get("normalizer"), contents.get("pre_tokenizer")
    steps = [normalizer]
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        steps = normalizer.get("normalizers")
    if steps in ([_PREPEND, _REPLACE], [_REPLACE]) and splits in (None, _IDLE_SPLIT):
        return _EACH if len(steps) == 2 else _NEVER
    if normalizer is not None or not isinstance(splits, dict):
        return None
    is_metaspace = splits.get("type") == "Metaspace" and splits.get("replacement") == BLANK
    return (
        _SCHEMES.get(splits.get("prepend_scheme", ""))
        if is_metaspace and not splits.get("split", True)
        else None
    )


def _fits(added: tuple[AddedToken, ...], normalizer: Any) -> bool:
    """True if added tokens match at the same positions before and after spaces are replaced."""
    prepends = normalizer is not None and normalizer != _REPLACE
    return not any(
        token.normalized
        and (
            prepends
            or (normalizer is not None and (token.lstrip or token.rstrip))
            or any(blank in token.content for blank in (" ", BLANK))
        )
        for token in added
    )


def _merge_rows(vocab: Mapping[str, int], merges: list[Any]) -> list[tuple[int, int, int]] | None:
    """The merges as ids; None if one involves bytes, or is not a merge."""
    rows: list[tuple[int, int, int]] = []
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            return None
        left, right = pair
        if " " in left or " " in right:
            continue  # spaces are replaced before merging
        if any(_BYTE.fullmatch(text) for text in (left, right, left + right)):
            return None
        if left not in vocab or right not in vocab or left + right not in vocab:
            return None
        rows.append((vocab[left], vocab[right], vocab[left + right]))
    return rows


def _pairs_of(texts: Mapping[int, str], rows: list[tuple[int, int, int]]) -> frozenset[str] | None:
    """The pairs of characters that merges join; None if a blank follows another character."""
    pairs = {texts[left][-1] + texts[right][0] for left, right, _ in rows}
    return None if any(pair[1] == " " != pair[0] for pair in pairs) else frozenset(pairs)


def _make_native(rules: PieceRules, cache_bytes: int) -> _native.Vocabulary:
    texts = rules.texts
    size = 1 + max((*texts, *(token.id for token in rules.added)))
    table = [b""] * size
    byte_ids: dict[int, int] = {}
    characters: dict[bytes, int] = {}
    for id, text in texts.items():
        if byte := _BYTE.fullmatch(text):
            byte_ids[int(byte[1], 16)] = id
        else:
            table[id] = text.encode("utf-8", "surrogatepass")
            if len(text) == 1:
                characters.setdefault(table[id], id)
    for byte, id in byte_ids.items():
        if bytes([byte]) not in characters:
            characters[bytes([byte])] = id
            table[id] = bytes([byte])
    halves: dict[bytes, int] = {}
    joins: list[tuple[int, int, int]] = []
    for whole, id in sorted(characters.items(), key=lambda item: item[0]):
        if len(whole) == 1:
            continue
        left = byte_ids[whole[0]]
        for length in range(2, len(whole) + 1):
            part = whole[:length]
            target = id if length == len(whole) else halves.get(part)
            if target is None:
                target = halves[part] = size + len(halves)
            joins.append((left, byte_ids[whole[length - 1]], target))
            left = target
    table += list(halves)
    flat = array("I", (number for row in (*dict.fromkeys(joins), *rules.rows) for number in row))
    return _native.Vocabulary(
        "spaces",
        table,
        memoryview(flat),
        [],
        whole_pieces=False,
        cache_bytes=cache_bytes,
        added=[
            (t.content.encode(), t.id, t.special, t.lstrip, t.rstrip, t.normalized)
            for t in rules.added
        ],
        first_half=size,
        blank_before=rules.before,
    )
