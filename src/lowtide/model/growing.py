"""Add tokens to an existing model: rows in its matrices, and entries of its tokenizer.

In:      the folder of a model, a file with a token on each line
Out:     a tokenizer with the tokens appended; the model's tensors with rows for them
Memory:  the tokenizer, some rows of a matrix

A new row is the mean of the rows of the tokens that the text was encoded as before, in the
embedding and, if it is separate, in the output matrix. So at first the model treats the token about
like those tokens, and no new token is likelier than they were.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import DataError, UsageError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.files import open_file, read_json
from lowtide.model.config import GPTConfig
from lowtide.model.tensorfiles import (
    TableRows,
    copy_tensors,
    from_float32,
    iter_pieces,
    read_exactly,
    to_float32,
)
from lowtide.model.tensorheaders import ITEM_BYTES, StoredTensor
from lowtide.model.tensors import HEAD
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.huggingface import tokenizer_json

__all__ = ["NewTokens", "copy_grown", "find_new_tokens", "grown_config", "grown_tokenizer"]

_MOST_TOKENS = 1 << 17
_LONGEST = 1 << 10  # bytes of a token
_SHOWN = 3


@dataclass(frozen=True)
class NewTokens:
    """Tokens to add, and the ids that each was encoded as before."""

    texts: tuple[str, ...]
    pieces: tuple[tuple[int, ...], ...]
    first_id: int

    @property
    def end_id(self) -> int:
        """The id after the last one."""
        return self.first_id + len(self.texts)


def find_new_tokens(path: Path, tokenizer: Tokenizer) -> NewTokens:
    """Read a file with a token on each line; an error names the line that cannot be added."""
    if tokenizer.kind == "char":
        raise UsageError(
            "a model by characters takes no further tokens: it knows characters and no pieces",
            next_step="train a model with a BPE vocabulary: lowtide train-tokenizer",
        )
    texts = list(_iter_lines(path))
    if not texts:
        raise DataError(
            "this list of new tokens is empty", path=path, next_step="write one token on each line"
        )
    ids = [tuple(int(id) for id in tokenizer.encode(text, special="text")) for text in texts]
    known = [
        f"{text!r} (line {line}, id {id})"
        for line, (text, found) in enumerate(zip(texts, ids, strict=True), 1)
        if (id := _known_id(tokenizer, text, found)) is not None
    ]
    if known:
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise DataError(
            f"the tokenizer has {', '.join(known[:_SHOWN])}{more} already",
            path=path,
            next_step="remove these lines from the list of new tokens",
        )
    return NewTokens(tuple(texts), tuple(ids), tokenizer.vocab_size)


def _known_id(tokenizer: Tokenizer, text: str, ids: tuple[int, ...]) -> int | None:
    """The id of a text that is a token already, with a leading space or without."""
    if text in tokenizer.data.added_ids:
        return tokenizer.data.added_ids[text]
    is_one = len(ids) == 1 and tokenizer.token_bytes(ids[0]).strip() == text.encode().strip()
    return ids[0] if is_one else tokenizer.special_tokens.get(text)


def _iter_lines(path: Path) -> Iterator[str]:
    """Yield the tokens of a file; empty lines, repeated and endless ones are refused."""
    seen: dict[str, int] = {}
    try:
        with io.TextIOWrapper(
            io.BufferedReader(open_file(path)), encoding="utf-8-sig", newline="\n"
        ) as file:
            rows = iter(lambda: file.readline(_LONGEST + 2), "")  # the rest of a line is not read
            for line, row in enumerate(rows, 1):
                text = row.removesuffix("\n").removesuffix("\r")
                problem = None
                if len(text.encode()) > _LONGEST:
                    problem = f"longer than {_LONGEST:,} bytes"
                elif not text.strip():
                    problem = "empty"
                elif text in seen:
                    problem = f"{text!r} again, as on line {seen[text]}"
                elif line > _MOST_TOKENS:
                    problem = f"beyond the {_MOST_TOKENS:,} tokens that can be added at once"
                if problem:
                    raise DataError(
                        f"line {line} is {problem}", path=path, next_step="remove this line"
                    )
                seen[text] = line
                yield text
    except FileNotFoundError:
        raise DataError(
            "file of tokens not found", path=path, next_step="check the path for typing errors"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error}", path=path, next_step="save it as UTF-8") from None


def grown_tokenizer(folder: Path, tokenizer: Tokenizer, tokens: NewTokens) -> bytes:
    """Return the tokenizer.json of a folder with the new tokens; the rest is unchanged."""
    path = folder / TOKENIZER_NAME
    contents: Any = read_json(path) if path.is_file() else tokenizer_json(tokenizer.data)
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    contents["added_tokens"] = [
        *(contents.get("added_tokens") or []),
        *(
            {"id": id, "content": text, **rules, "special": False}
            for id, text in enumerate(tokens.texts, tokens.first_id)
        ),
    ]
    return json.dumps(contents, ensure_ascii=False, indent=2).encode("utf-8", "surrogatepass")


def grown_config(config: GPTConfig, tokens: NewTokens, path: Path) -> GPTConfig:
    """Return a shape with rows for all ids; unused (padding) rows are used first."""
    try:
        return config.replace(vocab_size=max(config.vocab_size, tokens.end_id))
    except UsageError as error:
        raise DataError(
            f"{len(tokens.texts):,} tokens do not fit: {error.message}", path=path
        ) from None


def copy_grown(
    folder: Path,
    path: Path,
    *,
    config: GPTConfig,
    tokens: NewTokens,
    dtype: str | None = None,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Write the tensors of a folder to `path`, atomically, with rows for new tokens."""
    rows = TableRows(
        max(config.vocab_size, tokens.end_id), lambda row, kind: _iter_grown(row, kind, tokens)
    )
    tables = dict.fromkeys((f"{config.family.embedding}.weight", HEAD), rows)
    copy_tensors(folder, path, config=config, dtype=dtype, tables=tables, on_bytes=on_bytes)


def _iter_grown(row: StoredTensor, kind: str, tokens: NewTokens) -> Iterator[bytes]:
    """The rows of a table before the new ones, these, and what was behind them."""
    width = math.prod(row.shape[1:])
    first, end = (min(place, row.shape[0]) for place in (tokens.first_id, tokens.end_id))
    yield from iter_pieces(_rows(row, 0, first), kind)
    with row.path.open("rb", buffering=0) as file:
        for pieces in tokens.pieces:
            total = np.zeros(width, np.float32)
            for id in pieces:
                total += _read_row(file, row, id)
            yield from_float32(total / np.float32(len(pieces)), kind)
    yield from iter_pieces(_rows(row, end, row.shape[0]), kind)


def _rows(row: StoredTensor, first: int, end: int) -> StoredTensor:
    """Some rows of a table, as a tensor of their own."""
    size = math.prod(row.shape[1:]) * ITEM_BYTES[row.kind]
    return dataclasses.replace(
        row, shape=(end - first, *row.shape[1:]), offset=row.offset + first * size
    )


def _read_row(file: FileIO, row: StoredTensor, id: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    part = _rows(row, id, id + 1)
    data = bytearray(part.num_bytes)
    file.seek(part.offset)
    read_exactly(file, data, part)
    return to_float32(data, row.kind)
