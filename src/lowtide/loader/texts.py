"""Texts in a fixed order that can be resumed anywhere, and their ids, for tokenizing on the fly.

In:      text files (as stage 1 reads them) or a Hugging Face dataset; any of three tokenizers
Out:     Text: some bytes, their position, whether a document ends with them; ids of texts
Memory:  one block of stage 1, or one row of the dataset
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import xxhash

from lowtide.aliases import takes_second_names
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.hub import (
    HUB_PREFIX,
    hub_text,
    iter_hub_rows,
    open_hub_rows,
    parse_hub_name,
)
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import (
    BLOCK_BYTES,
    ReadingSettings,
    block_documents,
    iter_blocks,
    plan_streams,
)
from lowtide.corpus.textblocks import StreamPaths
from lowtide.dataset.resources import estimate_text_bytes
from lowtide.errors import UsageError, from_os_error
from lowtide.files import checksum_bytes
from lowtide.loader.ordering import derive_seed, order_indices
from lowtide.loader.sources import sample_fingerprint
from lowtide.loader.textencoders import Ids, TextEncoder
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored

__all__ = [
    "FileTexts",
    "HubTexts",
    "PathLike",
    "Text",
    "TextSource",
    "epoch_seed",
    "iter_encoded",
    "path_list",
]

PathLike = str | os.PathLike[str]
_TEXT_BYTES = 512  # overhead of a text in a group: its Python objects, and those of its ids
Place = tuple[int, ...]


@dataclass(frozen=True)
class Text:
    """A document, or a part of one that is very large."""

    data: bytes
    place: Place
    """The position from which reading starts with this text."""
    ends_document: bool = True
    begins_document: bool = True


class TextSource(Protocol):
    """A source of texts."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def text_bytes(self) -> int | None:
        """Bytes of all texts, estimated for compressed files; None if unknown."""
        ...

    def iter_texts(self, *, seed: int | None, place: Place | None = None) -> Iterator[Text]:
        """Return the texts from `place` on; the seed shuffles files, None keeps their order."""
        ...


class FileTexts:
    """Text, jsonl or parquet files, plain or compressed.

    A window or a page of more than `reader_bytes` is refused; `budget_bytes` is the whole budget,
    for the error message.
    """

    @takes_second_names
    def __init__(
        self,
        paths: Iterable[PathLike],
        *,
        text_field: str = "text",
        block_bytes: int = BLOCK_BYTES,
        reader_bytes: int = ReadingSettings.reader_bytes,
        budget_bytes: int | None = None,
    ) -> None:
        self._options = ReadingSettings(
            text_field=text_field,
            block_bytes=block_bytes,
            reader_bytes=reader_bytes,
            budget_bytes=budget_bytes,
        )
        self._inputs = expand_inputs([os.fspath(path) for path in paths])
        self._streams = plan_streams(self._inputs, self._options)
        self._paths = StreamPaths(self._streams)

    @property
    def fingerprint(self) -> str:
        """A hash of the files, in order; they may be renamed."""
        return self._hash(named=False)

    @property
    def named_fingerprint(self) -> str:
        """The same with the files' names, as in states of earlier versions."""
        return self._hash(named=True)

    def _hash(self, *, named: bool) -> str:
        digest = xxhash.xxh3_128(self._options.text_field.encode())
        for source in self._inputs:
            row = _file_fingerprint(source, named=named)
            digest.update(b"\n" + row.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    @property
    def reading_bytes(self) -> int:
        """Memory for reading them: windows of compressed files, pages of parquet."""
        return reader_bytes(self._inputs, self._options)

    @property
    def text_bytes(self) -> int:
        """Bytes of text in all files."""
        return estimate_text_bytes(self._inputs)

    def iter_texts(self, *, seed: int | None, place: Place | None = None) -> Iterator[Text]:
        """Return the texts from `place` (file, block, document) on."""
        first_stream, first_block, first_document = place or (0, 0, 0)
        for number in range(first_stream, len(self._streams)):
            stream = self._streams[self._stream_at(number, seed)]
            skipped = first_block if number == first_stream else 0
            for block_number, block in enumerate(iter_blocks(stream, self._options, known=skipped)):
                if block is None:
                    continue
                here = (number, block_number) == (first_stream, first_block)
                documents = block_documents(block, self._options, self._paths)
                for index, document in enumerate(documents):
                    if here and index < first_document:
                        continue
                    yield Text(
                        document.text,
                        (number, block_number, index),
                        ends_document=document.is_last,
                        begins_document=document.is_first,
                    )

    def _stream_at(self, number: int, seed: int | None) -> int:
        if seed is None:
            return number
        size = len(self._streams)
        return int(order_indices("shuffle", seed=seed, size=size, first=number, count=1)[0])


def _file_fingerprint(source: InputFile, *, named: bool = False) -> str:
    if is_stored(source.path):  # its ETag; samples instead would take fifteen requests
        return f"{source.path.name} {source.size_bytes} {source.modified_ns}"
    try:
        with source.path.open("rb", buffering=0) as file:
            name = source.path.name if named else source.format.block_kind
            return f"{name} {sample_fingerprint(file.fileno(), source.size_bytes)}"
    except OSError as error:
        raise from_os_error(error) from error


def path_list(files: PathLike | Sequence[PathLike] | None) -> list[PathLike]:
    """One path or several as a list; UsageError for anything else in it."""
    given: list[Any] = [files] if isinstance(files, str | os.PathLike) else list(files or ())
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"files has {path!r}, expected paths")
    return given


class HubTexts:
    """A dataset of the Hugging Face hub, or a local folder that their library reads."""

    @takes_second_names
    def __init__(
        self,
        dataset_id: str,
        *,
        split: str = "train",
        text_field: str = "text",
        config_name: str | None = None,
        streaming: bool = True,
    ) -> None:
        if dataset_id.startswith(HUB_PREFIX):  # as in prepare and train-tokenizer
            dataset_id, split = parse_hub_name(dataset_id, split=split)
        self._identity = f"{dataset_id}\n{config_name}\n{split}\n{text_field}"
        self._dataset_id = dataset_id
        self._split = split
        self._text_field = text_field
        self._rows = open_hub_rows(
            dataset_id, split=split, config_name=config_name, streaming=streaming
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the names; the contents on the hub are not checked."""
        return checksum_bytes(self._identity.encode())

    @property
    def text_bytes(self) -> int | None:
        """Bytes of the split, if the dataset records them."""
        splits: Any = getattr(getattr(self._rows, "info", None), "splits", None) or {}
        size = getattr(splits.get(self._split), "num_bytes", None)
        return int(size) if size else None

    def iter_texts(self, *, seed: int | None, place: Place | None = None) -> Iterator[Text]:
        """Return the texts from `place` (row) on; the seed orders the dataset's own files."""
        first = place[0] if place else 0
        rows = self._rows
        if seed is not None and hasattr(rows, "num_shards") and rows.num_shards > 1:
            # A buffer of one shuffles the files, but not the rows in them.
            rows = rows.shuffle(seed=seed % (1 << 32), buffer_size=1)
        rows = rows.skip(first)
        name, column = self._dataset_id, self._text_field
        for number, row in enumerate(iter_hub_rows(rows, name), start=first):
            data = hub_text(row, name=name, number=number, text_field=column)
            yield Text(data, (number,))


def iter_encoded(
    source: TextSource,
    encoder: TextEncoder,
    *,
    seed: int | None,
    place: Place | None = None,
    max_documents: int | None = None,
    group_bytes: int = 1 << 20,
) -> Iterator[tuple[Text, Ids]]:
    """Each text with its ids, the end-of-text id after each document.

    Texts are encoded in groups of about `group_bytes`, for threaded tokenizers. A longer text that
    can be cut is yielded several times, each time with some of its ids, because all of them at once
    would take four times its size or more.
    """
    texts = source.iter_texts(seed=seed, place=place)
    if max_documents is not None:
        texts = _take_documents(texts, max_documents)
    end = np.empty(0, dtype=np.int32)
    if encoder.end_of_text_id is not None:
        end = np.array([encoder.end_of_text_id], dtype=np.int32)
    group: list[Text] = []
    held = 0

    def encoded() -> Iterator[tuple[Text, Ids]]:
        for text, ids in zip(group, encoder.encode([text.data for text in group]), strict=True):
            yield text, np.concatenate([ids, end]) if text.ends_document else ids

    for text in texts:
        if len(text.data) > encoder.part_bytes and encoder.iter_parts is not None:
            yield from encoded()
            group, held = [], 0
            yield from _iter_long(text, encoder.iter_parts(text.data), end)
            continue
        group.append(text)
        held += len(text.data) + _TEXT_BYTES
        if held >= group_bytes:
            yield from encoded()
            group, held = [], 0
    if group:
        yield from encoded()


def _iter_long(text: Text, parts: Iterator[Ids], end: Ids) -> Iterator[tuple[Text, Ids]]:
    """The ids of one text in parts; only the last part has its bytes, and the document's end."""
    last: Ids | None = None
    for ids in parts:
        if last is not None:
            yield replace(text, data=b"", ends_document=False), last
        last = ids
    assert last is not None
    yield text, np.concatenate([last, end]) if text.ends_document else last


def _take_documents(texts: Iterator[Text], count: int) -> Iterator[Text]:
    while count > 0 and (text := next(texts, None)) is not None:
        yield text
        count -= text.ends_document


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of one epoch."""
    return derive_seed(seed, f"epoch {epoch}")
