"""The Tokenizer: text to ids and back, natively (byte-level BPE, characters) or by the package.

In:      text (str or bytes; any bytes)
Out:     ids as NumPy arrays, or written directly to a file
Memory:  a cache for each working thread (`EncodingLimits`); one window of a stream
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lowtide import _native
from lowtide.aliases import takes_second_names
from lowtide.arrays import np
from lowtide.errors import DataError, UsageError, explaining_os_errors
from lowtide.filenames import TOKENIZER_NAME
from lowtide.memory import usable_cores
from lowtide.settings import require_counts
from lowtide.tokenizer.characters import CharacterEncoder, last_character_cut
from lowtide.tokenizer.composing import compose_nfc
from lowtide.tokenizer.filesteps import check_files, encode_by_windows, encode_natively
from lowtide.tokenizer.formats import load_vocabulary, write_tiktoken, write_vocab_and_merges
from lowtide.tokenizer.giventexts import (
    as_bytes,
    as_part,
    as_text,
    merge_list,
    require_several,
    text_list,
    tokens_by_id,
)
from lowtide.tokenizer.huggingface import write_tokenizer_json
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.patterns import Pattern
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary, find_end, id_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide.tokenizer.ids import TokenIds
    from lowtide.tokenizer.package import PackageEncoder

__all__ = ["SpecialMode", "Tokenizer"]

SpecialMode = Literal["text", "allow", "forbid"]

_LIMITS = EncodingLimits()
_SPECIAL_MODES = ("text", "allow", "forbid")


def _make_tokenizer(vocabulary: Vocabulary, name: str, limits: EncodingLimits) -> Tokenizer:
    return Tokenizer(vocabulary, name=name, limits=limits)


class Tokenizer:
    """A vocabulary with its encoder and decoder.

    >>> tokenizer = Tokenizer.from_merges([(b"h", b"i")], special_tokens=["<|endoftext|>"])
    >>> tokenizer.encode("hi!").tolist()
    [257, 34]
    >>> tokenizer.decode([257, 34])
    'hi!'
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        name: str = "tokenizer",
        limits: EncodingLimits = _LIMITS,
    ) -> None:
        self.data = vocabulary
        self.name = name
        self._limits = limits
        self._characters: CharacterEncoder | None = None
        self._native: _native.Vocabulary | None = None
        self._package: PackageEncoder | None = None
        self._fingerprint: str | None = None
        if vocabulary.kind == "char":
            self._characters = CharacterEncoder(vocabulary)
            return
        if vocabulary.kind == "package":
            self._package = _open_package(vocabulary, limits)
            return
        try:
            self._native = _native.Vocabulary(
                vocabulary.pattern,
                vocabulary.tokens,
                vocabulary.merge_ids,
                [(text.encode(), id) for text, id in vocabulary.special_tokens.items()],
                whole_pieces=vocabulary.whole_pieces,
                cache_bytes=limits.cache_bytes,
                added=[
                    (t.content.encode(), t.id, t.special, t.lstrip, t.rstrip, t.normalized)
                    for t in vocabulary.added_tokens
                ],
                compose=compose_nfc if vocabulary.normalizer == "nfc" else None,
            )
        except ValueError as error:
            raise DataError(f"this vocabulary cannot be used: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its vocabulary, from which the encoder is made again."""
        return _make_tokenizer, (self.data, self.name, self._limits)

    @classmethod
    def load(cls, source: str | Path) -> Tokenizer:
        """Load a folder or file (tokenizer.json, vocab.json + merges.txt, .tiktoken), or "gpt2"."""
        vocabulary = load_vocabulary(source)
        path = Path(source)
        name = path.resolve().name if path.is_dir() else path.stem
        if path.name == TOKENIZER_NAME:
            name = path.resolve().parent.name
        try:
            return cls(vocabulary, name="char" if vocabulary.kind == "char" else name)
        except DataError as error:
            raise DataError(error.message, path=source) from None

    @classmethod
    def from_merges(
        cls,
        merges: Iterable[tuple[bytes, bytes]],
        *,
        special_tokens: Iterable[str] = (END_OF_TEXT,),
        pattern: Pattern = "gpt2",
    ) -> Tokenizer:
        """Make a tokenizer of merges alone; ids are special tokens, 256 bytes, merges."""
        specials, merges = text_list(special_tokens), merge_list(merges)
        return cls(Vocabulary.from_merges(merges, special_tokens=specials, pattern=pattern))

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Mapping[int, bytes],
        merges: Iterable[tuple[bytes, bytes]],
        special_tokens: Iterable[str] | None = None,
        *,
        pattern: Pattern = "gpt2",
    ) -> Tokenizer:
        """Make a tokenizer of tokens by id and merges; special tokens not in it get new ids."""
        tokens, merges = tokens_by_id(vocabulary), merge_list(merges)
        ids = {token: id for id, token in reversed(tokens.items())}
        specials: dict[str, int] = {}
        for text in text_list(special_tokens or ()):
            if text.encode() not in ids:
                ids[text.encode()] = max(tokens, default=-1) + 1
                tokens[ids[text.encode()]] = text.encode()
            specials[text] = ids[text.encode()]
        return cls(Vocabulary.from_tokens(tokens, merges, special_tokens=specials, pattern=pattern))

    @classmethod
    def from_characters(
        cls, characters: Iterable[str], special_tokens: Iterable[str] = (END_OF_TEXT, UNKNOWN)
    ) -> Tokenizer:
        """Make a character tokenizer that knows exactly these characters."""
        return cls(
            Vocabulary.from_characters(characters, special_tokens=text_list(special_tokens)),
            name="char",
        )

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into `folder`."""
        folder = Path(folder)
        with explaining_os_errors():
            folder.mkdir(parents=True, exist_ok=True)
            write_tokenizer_json(folder / TOKENIZER_NAME, self.data)

    def save_vocabulary(self, folder: str | Path) -> None:
        """Write vocab.json and merges.txt into `folder`."""
        with explaining_os_errors():
            Path(folder).mkdir(parents=True, exist_ok=True)
            write_vocab_and_merges(folder, self.data)

    def save_tiktoken(self, path: str | Path) -> None:
        """Write a .tiktoken file; it holds ranks only, so special tokens and pattern go by name."""
        with explaining_os_errors():
            write_tiktoken(path, self.data)

    @property
    def kind(self) -> str:
        """`bpe`, `char`, or `package`: what the package tokenizers runs."""
        return self.data.kind

    @property
    def vocab_size(self) -> int:
        """How many ids there are; the largest id is one less."""
        return len(self.data.tokens)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides ids; equal fingerprints give equal ids."""
        if self._fingerprint is None:
            self._fingerprint = self.data.fingerprint
        return self._fingerprint

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return dict(self.data.special_tokens)

    @property
    def end_of_text_id(self) -> int | None:
        """The id of the token between documents: <|endoftext|>, or this tokenizer's name for it."""
        text = self.end_of_text
        return None if text is None else self.data.special_tokens[text]

    @property
    def end_of_text(self) -> str | None:
        """The special token that ends documents."""
        return find_end(self.data.special_tokens)

    @property
    def vocabulary(self) -> dict[int, bytes]:
        """Tokens by id."""
        return {id: token for id, token in enumerate(self.data.tokens) if token}

    @property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in the order they apply."""
        return self.data.merge_bytes() if self.kind == "bpe" else []

    @property
    def native(self) -> _native.Vocabulary:
        """The native vocabulary, for encoding in native code; BPE only."""
        if self._native is None:
            raise UsageError("a character tokenizer has no native vocabulary")
        return self._native

    @property
    def package(self) -> PackageEncoder | None:
        """The encoder of the package tokenizers, if native code does not support the tokenizer."""
        return self._package

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of one token."""
        require_counts(least=None, id=id)
        if not 0 <= id < self.vocab_size:
            raise UsageError(f"id {id} is not in the vocabulary of {self.vocab_size}")
        return self.data.tokens[id]

    def encode(self, text: str | bytes, *, special: SpecialMode = "allow") -> TokenIds:
        """Return the ids of `text`: an array of int32 of which `+` joins two, as it joins lists.

        `special` says what special tokens in it are: ordinary "text", "allow" (their ids), or
        "forbid" (an error).
        """
        self._check_mode(special)
        if self._package is not None:
            return _as_ids(self._package.encode(as_text(text), special=special))
        if self._characters is not None:
            return _as_ids(self._characters.encode(as_text(text), special=special))
        data = as_bytes(text)
        if special == "forbid":
            self._refuse_specials(data)
        return _as_ids(self.native.encode(data, special == "allow"))

    @takes_second_names
    def encode_batch(
        self,
        texts: Sequence[str | bytes],
        *,
        special: SpecialMode = "allow",
        num_workers: int | None = None,
    ) -> list[TokenIds]:
        """Return the ids of each text, on several threads; the arrays share one block of memory."""
        self._check_mode(special)
        require_counts(least=0, num_workers=num_workers)
        require_several(texts, "encode_batch")
        workers = int(num_workers or usable_cores())
        if self._package is not None:
            whole = [as_text(text) for text in texts]
            parts = self._package.encode_batch(whole, special=special, num_workers=workers)
            return [_as_ids(part) for part in parts]
        if self._native is None:
            return [self.encode(text, special=special) for text in texts]
        data = [as_bytes(text) for text in texts]
        if special == "forbid":
            for item in data:
                self._refuse_specials(item)
        ids, ends = self._native.encode_many(data, special == "allow", workers)
        parts = np.split(ids, ends[:-1].astype(np.int64)) if len(data) else []
        return [_as_ids(part) for part in parts]

    def encode_iterable(
        self, texts: Iterable[str | bytes], *, special: SpecialMode = "allow"
    ) -> Iterator[int]:
        """Return the ids of a stream one by one, as if its strings were one long text.

        Only a window of the text is held, whatever its length; an open file is such a stream.
        """
        for ids in self.iter_encoded(texts, special=special):
            yield from ids.tolist()

    def iter_encoded(
        self, texts: Iterable[str | bytes], *, special: SpecialMode = "allow"
    ) -> Iterator[TokenIds]:
        """Return the ids of a stream, an array per window."""
        self._check_mode(special)
        if self._package is not None:
            parts = map(as_part, texts)
            yield from map(_as_ids, self._package.iter_encoded(parts, special=special))
            return
        held = bytearray()
        checked = 0  # up to here no place to cut was found
        for text in texts:
            held += as_bytes(text)
            if len(held) - checked < self._limits.window_bytes:
                continue
            cut = self.last_cut(bytes(held))
            if cut:
                yield self.encode(bytes(held[:cut]), special=special)
                del held[:cut]
            checked = len(held) if not cut else 0
        if held:
            yield self.encode(bytes(held), special=special)

    @takes_second_names
    def encode_file(
        self,
        path: str | Path,
        out_path: str | Path,
        *,
        special: SpecialMode = "allow",
        dtype: npt.DTypeLike | None = None,
        num_workers: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Encode a text file into a file of raw little-endian ids, and return how many.

        Memory does not depend on the file's size. `dtype` is uint16 where the vocabulary fits it,
        else uint32. `on_progress` is called with the bytes read so far.
        """
        self._check_mode(special)
        require_counts(least=0, num_workers=num_workers)
        item = self._file_dtype(dtype)
        with explaining_os_errors():
            check_files(Path(path), Path(out_path))
            if self._native is None or special == "forbid":
                return encode_by_windows(
                    lambda texts: self.iter_encoded(texts, special=special),
                    path,
                    out_path,
                    dtype=item,
                    on_progress=on_progress,
                    window_bytes=self._limits.window_bytes,
                )
            return encode_natively(
                self._native,
                path,
                out_path,
                id_bytes=item.itemsize,
                specials=special == "allow",
                num_workers=num_workers or usable_cores(),
                on_progress=on_progress,
                window_bytes=self._limits.window_bytes,
            )

    def _file_dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        small = id_bytes(self.vocab_size) == 2
        item = np.dtype(dtype if dtype is not None else ("<u2" if small else "<u4"))
        if item not in (np.dtype("<u2"), np.dtype("<u4")):
            raise UsageError(f"ids are written as uint16 or uint32, not {item}")
        if item.itemsize == 2 and not small:
            raise UsageError(f"a vocabulary of {self.vocab_size} does not fit uint16")
        return item

    def last_cut(self, data: bytes) -> int:
        """The last offset where `data` can be cut if more text follows; 0 if there is none."""
        if self._native is not None:
            return self._native.last_cut(data, True)
        return last_character_cut(data, [text.encode() for text in self.data.special_tokens])

    def _refuse_specials(self, data: bytes) -> None:
        place = self.native.find_special(data)
        if place >= 0:
            raise DataError(
                f"special token in the text at byte {place}",
                next_step='encode it as text (special="text") or as its id (special="allow")',
            )

    def _check_mode(self, special: str) -> None:
        if special not in _SPECIAL_MODES:
            raise UsageError(f"special is {special!r}, expected one of {_SPECIAL_MODES}")

    def decode_bytes(self, ids: Iterable[int] | npt.NDArray[Any]) -> bytes:
        """Return the bytes of `ids`."""
        from lowtide.tokenizer.ids import checked_ids  # needs NumPy

        array = checked_ids(ids, vocab_size=self.vocab_size)
        if array.size == 0:
            return b""
        if self._native is not None:
            return self._native.decode(np.ascontiguousarray(array.reshape(-1), dtype=np.uint32))
        if self._package is not None:
            return self._package.decode(array.reshape(-1).tolist()).encode("utf-8", "replace")
        return b"".join(self.data.tokens[id] for id in array.reshape(-1).tolist())

    def decode(self, ids: Iterable[int] | npt.NDArray[Any], *, errors: str = "replace") -> str:
        """Return the text of `ids`; invalid UTF-8 bytes become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, kind={self.kind!r}, vocab_size={self.vocab_size})"


def _open_package(vocabulary: Vocabulary, limits: EncodingLimits) -> PackageEncoder:
    from lowtide.tokenizer.package import PackageEncoder, tell_once  # few tokenizers need it

    if vocabulary.reason:
        tell_once(vocabulary.reason)
    return PackageEncoder(vocabulary, limits)


def _as_ids(found: np.ndarray[Any, Any]) -> TokenIds:
    # Its module imports NumPy, which preparing text does not need.
    from lowtide.tokenizer.ids import TokenIds

    return found.view(np.int32).view(TokenIds)
