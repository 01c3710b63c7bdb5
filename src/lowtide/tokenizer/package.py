"""Tokenizers that native code does not support, run by the package `tokenizers`.

SentencePiece-style BPE is stored as its tokenizer.json too, but encoded natively (pieces).

In:      the text of a tokenizer.json; text of any length
Out:     the ids that the package gives for the whole text; the text of ids
Memory:  the package's tables; some text at a time (both: see needs)

The package needs some hundred bytes for each byte of a text that it encodes, so long texts are
encoded in parts. Where a text may be cut depends on the tokenizer: a SentencePiece vocabulary puts
a space before every text, others strip spaces at its ends. So each part is encoded together with
the end of the previous part, and the ids of that end are dropped. A text is cut at a point only
if the package gives the same ids for the preceding text with and without the following text.
"""

from __future__ import annotations

import codecs
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from lowtide import ranks
from lowtide.arrays import np
from lowtide.errors import BudgetError, DataError, warn
from lowtide.filenames import TOKENIZER_NAME
from lowtide.packages import import_package
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.pieces import PieceEncoder, PieceRules, open_pieces
from lowtide.tokenizer.tokentexts import TokenTexts
from lowtide.tokenizer.vocabulary import Vocabulary, require_dense

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.uint32]

__all__ = ["PackageEncoder", "load_with_package", "package_vocabulary", "tell_once"]

_LIMITS = EncodingLimits()
SLOWER = 100
"""How many times slower than native code it is, measured."""
_CONTEXT = 1 << 10  # characters before a place to cut that are encoded again
# Characters on either side of a place that are encoded to test it. Inside a long run, of line ends
# say, tokens of two stand wherever the text begins: two lengths without a common divisor tell that.
_TESTED = (_CONTEXT, _CONTEXT // 4 - 1)
_MOST_TRIES = 64


def load_with_package(path: Path, reason: str) -> Vocabulary:
    """Read a tokenizer.json that native code does not support, and report why."""
    return package_vocabulary(path.read_bytes(), path, reason)


def package_vocabulary(source: bytes, path: Path, reason: str) -> Vocabulary:
    """The vocabulary of a tokenizer.json's text; `path` is for errors."""
    contents = _parse(source, path, reason)
    try:
        texts = TokenTexts.of(contents)
    except (AttributeError, KeyError, TypeError):  # of another type than the format says
        raise DataError(
            f"this tokenizer is damaged: its decoder is {str(contents['decoder'])[:100]}",
            path=path,
            next_step="fetch its tokenizer.json again",
        ) from None
    rules = PieceRules.of(contents)
    if rules is not None:
        added: dict[int, Any] = {token.id: token for token in rules.added}
        found = {**contents["model"]["vocab"], **{t.content: t.id for t in rules.added}}
    else:
        tokenizer = _open(source, path, reason)
        found = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
    highest = max(found.values(), default=-1)
    require_dense(highest, len(found))
    table = [b""] * (highest + 1)
    for text, id in found.items():
        table[id] = text.encode("utf-8", "replace") if id in added else texts.bytes_of(text)
    return Vocabulary(
        kind="package",
        tokens=tuple(table),
        special_tokens={token.content: id for id, token in added.items() if token.special},
        source=zstandard.ZstdCompressor(level=3).compress(source),
        reason="" if rules is not None else reason,
    )


def _parse(source: bytes, path: Path, reason: str) -> dict[str, Any]:
    try:
        contents = json.loads(source)
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise DataError(f"{reason}, and it is not a tokenizer.json", path=path)
    return contents


def _open(source: bytes, path: object, reason: str) -> Any:
    """The package's tokenizer, without truncation and padding."""
    # Its threads would be added to ours, and it warns about every fork after they start.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizers = import_package("tokenizers", f"a tokenizer with {reason}", path=str(path))
    try:
        tokenizer = tokenizers.Tokenizer.from_str(source.decode())
    except Exception as error:  # the package raises no narrower class
        raise DataError(
            f"{reason}, and the package tokenizers cannot read it either: {error}", path=str(path)
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # random dropout of merges: no two runs would be equal
    return tokenizer


_told = threading.Lock()


def tell_once(reason: str) -> None:
    """Print on stderr, once per process, that the package does the work and how slow that is."""
    if not ranks.is_first() or not _told.acquire(blocking=False):
        return
    warn(
        f"note: {reason}: this tokenizer runs through the package tokenizers, about {SLOWER} times "
        "slower than native code"
    )


class PackageEncoder:
    """A tokenizer of the package; thread-safe."""

    def __init__(self, vocabulary: Vocabulary, limits: EncodingLimits = _LIMITS) -> None:
        self._limits = limits
        assert vocabulary.source is not None
        self._source = vocabulary.source
        self._reason = vocabulary.reason
        self._specials = tuple(vocabulary.special_tokens)
        self._lock = threading.Lock()
        # Two objects, because whether special tokens become their ids is a setting of the object.
        self._by_mode: dict[bool, Any] = {}
        self._pieces: PieceEncoder | None = None
        if self._reason:
            self._mode(False)
            return
        rules = PieceRules.of(json.loads(zstandard.ZstdDecompressor().decompress(self._source)))
        assert rules is not None
        self._pieces = open_pieces(rules, cache_bytes=limits.cache_bytes)

    def _mode(self, allow: bool) -> Any:
        with self._lock:
            if allow not in self._by_mode:
                source = zstandard.ZstdDecompressor().decompress(self._source)
                tokenizer = _open(source, TOKENIZER_NAME, self._reason)
                tokenizer.encode_special_tokens = not allow
                self._by_mode[allow] = tokenizer
            return self._by_mode[allow]

    def encode(self, text: str, *, special: str = "text") -> Ids:
        """The ids of a text; `special` as for a Tokenizer."""
        parts = list(self.iter_encoded([text], special=special))
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint32), *parts])

    def encode_bytes(self, data: bytes) -> Ids:
        """The ids of a document; called by native code."""
        return self.encode(data.decode("utf-8", "replace"))

    def encode_batch(
        self, texts: Sequence[str | bytes], *, special: str, num_workers: int
    ) -> list[Ids]:
        """The ids of each text, on several threads."""

        def encode(text: str | bytes) -> Ids:
            whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
            return self.encode(whole, special=special)

        if min(len(texts), num_workers) < 2:
            return [encode(text) for text in texts]
        with ThreadPoolExecutor(num_workers) as pool:
            return list(pool.map(encode, texts))

    def iter_encoded(self, texts: Iterable[str | bytes], *, special: str = "text") -> Iterator[Ids]:
        """The ids of a stream of strings that form one text, an array per part."""
        strings = _iter_strings(texts, self._limits.piece_characters)
        if special == "forbid":
            strings = self._iter_refusing(strings)
        if self._pieces is not None:
            return _iter_natively(self._pieces, strings, self._limits, allow=special == "allow")
        return self._iter_pieces(strings, self._mode(special == "allow"))

    def _iter_refusing(self, strings: Iterable[str]) -> Iterator[str]:
        """Yield strings, and refuse special tokens in them, also across string borders."""
        longest = max(map(len, self._specials), default=1)
        begin, seen = 0, ""  # offset of the kept end in the text
        for text in strings:
            seen += text
            for token in self._specials:
                if (place := seen.find(token)) >= 0:
                    raise DataError(
                        f"special token {token!r} in the text at {begin + place}",
                        next_step='encode it as text (special="text") or as its id '
                        '(special="allow")',
                    )
            begin += max(0, len(seen) - longest)
            seen = seen[-longest:]
            yield text

    def _iter_pieces(self, texts: Iterable[str], tokenizer: Any) -> Iterator[Ids]:
        context, held, begin = "", "", 0
        looked = 0  # characters from `begin` on that have no place to cut
        size = self._limits.piece_characters
        reach = size // 2  # how far from the target a place to cut is searched for
        for text in texts:
            held, begin = held[begin:] + text, 0
            while len(held) - begin - looked >= 2 * size:
                cut = _find_cut(tokenizer, held, begin + max(looked, size), reach)
                if cut is None:
                    looked = _require_room(max(looked, size) + reach, self._limits)
                    continue
                yield _encode_behind(tokenizer, context, held[begin:cut])
                context, begin, looked = held[max(0, cut - _CONTEXT) : cut], cut, 0
        if begin < len(held):
            yield _encode_behind(tokenizer, context, held[begin:])

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        return self._mode(False).decode(ids, skip_special_tokens=False)


def _iter_natively(
    pieces: PieceEncoder, texts: Iterable[str], limits: EncodingLimits, *, allow: bool
) -> Iterator[Ids]:
    """The ids of a text, encoded natively in parts between borders that no merge crosses."""
    held, wanted, is_first = "", limits.native_characters, True
    for text in texts:
        held += text
        begin = 0
        while len(held) - begin >= wanted:
            cut = pieces.last_cut(held[begin : begin + wanted])
            if cut == 0:
                wanted = _require_room(2 * wanted, limits)
                continue
            yield pieces.encode(held[begin : begin + cut], allow=allow, is_first=is_first)
            begin, wanted, is_first = begin + cut, limits.native_characters, False
        held = held[begin:]
    if held:
        yield pieces.encode(held, allow=allow, is_first=is_first)


def _iter_strings(texts: Iterable[str | bytes], least: int) -> Iterator[str]:
    """Strings of at least this many characters, except the last one.

    A character that is split over two byte strings is joined.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text if isinstance(text, str) else decoder.decode(text))
        size += len(held[-1])
        if size >= least:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held) + decoder.decode(b"", final=True)


def _encode(tokenizer: Any, text: str) -> list[int]:
    try:
        # A batch of one: the package releases the GIL, and computes no offsets.
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the package is no Exception, and nothing narrower
        raise DataError(
            f"the package tokenizers cannot encode text with this tokenizer: {error}",
            next_step="mend its tokenizer.json (is every unk_token in the vocabulary?), or name "
            "another tokenizer",
        ) from None


def _encode_behind(tokenizer: Any, context: str, text: str) -> Ids:
    """The ids of a part that follows `context`."""
    before = len(_encode(tokenizer, context)) if context else 0
    return np.array(_encode(tokenizer, context + text)[before:], dtype=np.uint32)


def _find_cut(tokenizer: Any, text: str, start: int, reach: int) -> int | None:
    """An offset after `start` up to which ids do not depend on later text; None if none is near."""
    for place in _iter_places(text, start, reach):
        if all(_is_border(tokenizer, text, place, size) for size in _TESTED):
            return place
    return None


def _is_border(tokenizer: Any, text: str, place: int, size: int) -> bool:
    """True if `size` characters before a place have the same ids with as many behind it."""
    left = text[max(0, place - size) : place]
    ids = _encode(tokenizer, left)
    return _encode(tokenizer, left + text[place : place + size])[: len(ids)] == ids


def _iter_places(text: str, start: int, reach: int) -> Iterator[int]:
    """Candidate places to cut: around line ends, then before spaces."""
    stop = min(start + reach, len(text) - _CONTEXT)
    for sign in ("\n", " "):
        at = text.find(sign, start, stop)
        for _ in range(_MOST_TRIES):
            if at < 0:
                break
            yield from (at + 1, at) if sign == "\n" else (at,)
            at = text.find(sign, at + 1, stop)


def _require_room(looked: int, limits: EncodingLimits) -> int:
    if looked > limits.most_characters:
        raise BudgetError(
            f"there is no place to cut in {looked:,} characters of text for this tokenizer, and "
            "the package tokenizers holds a text at once",
            next_step="put line ends into the text, or make documents of it",
        )
    return looked
