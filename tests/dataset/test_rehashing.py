"""Documents of a dataset, decoded: whole, in parts and in blocks, compared with plain Python."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import rehashing
from lowtide.dataset.rehashing import (
    TokenStretch,
    as_it_is,
    block_of_documents,
    block_of_lines,
    count_documents,
    find_start,
    in_order,
    iter_texts,
    whole_shards,
)
from lowtide.dataset.settings import PrepareSettings

END = 0


class Bytes:
    """A tokenizer whose ids are bytes; 0 is end-of-text, which has a text of its own."""

    vocab_size = 256

    def __init__(self, end: int | None = END) -> None:
        self.end_of_text_id = end

    def token_bytes(self, number: int) -> bytes:
        return b"<end>" if number == END else bytes([number])

    def decode_bytes(self, ids: Any) -> bytes:
        return b"".join(map(self.token_bytes, ids.tolist()))


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes shards of ids and ends that are not in files."""

    def make(*parts: tuple[bytes, list[int]], **more: Any) -> list[Any]:
        return [
            SimpleNamespace(
                path=Path(f"shard_{number:05d}.bin"), num_tokens=len(ids), checksum="x",
                ids=np.frombuffer(ids, np.uint8).astype("<u2"), ends=np.array(ends, np.uint64),
                **more,
            )
            for number, (ids, ends) in enumerate(parts)
        ]  # fmt: skip

    monkeypatch.setattr(rehashing, "load_shard_tokens", lambda shard, dtype: shard.ids)
    monkeypatch.setattr(rehashing, "load_document_ends", lambda shard: shard.ends)
    return make


def read(found: list[Any], tokenizer: Any, **options: Any) -> tuple[list[bytes], list[int]]:
    pieces = list(iter_texts(whole_shards(found), np.dtype("<u2"), tokenizer, **options))
    return [text for texts, _ in pieces for text in texts], [count for _, count in pieces]


@pytest.mark.parametrize("decoded", [1, 2, 3, 100])
@pytest.mark.parametrize("cut_long", [False, True])
def test_documents_come_whole_from_any_number_of_shards(
    shards: Any, decoded: int, cut_long: bool
) -> None:
    found = shards(
        (b"ab\0cd", [3]),  # the second continues in the next shard
        (b"e\0\0f", [2, 3]),  # and an empty one follows
        (b"g\0hi", [2]),  # the last has no end
    )
    texts, counts = read(found, Bytes(), block_bytes=100, decode_tokens=decoded, cut_long=cut_long)
    assert texts == [b"ab", b"cde", b"", b"fg", b"hi"]
    assert sum(counts) == 13


def test_ends_are_found_by_their_id_where_no_file_says_them(shards: Any) -> None:
    found = shards((b"ab\0c", []), (b"d\0", []))
    assert read(found, Bytes())[0] == [b"ab", b"cd"]
    assert read(found, Bytes(None))[0] == [b"ab<end>cd<end>"]  # of a tokenizer that has none
    named = shards((b"ab\0c", [4]), (b"d", [1]))
    assert read(named, Bytes())[0] == [b"ab<end>c", b"d"]  # the file of ends is correct


def parts_of(text: bytes, block: int) -> list[bytes]:
    """A document, cut after the last line that ends before it exceeds the size of a block."""
    parts: list[bytes] = []
    held = b""
    for place in range(len(text)):
        held += text[place : place + 1]
        if len(held) > block:
            line_end = held.rfind(b"\n") + 1 or len(held)
            parts.append(held[:line_end])
            held = held[line_end:]
    return [*parts, held]


@pytest.mark.parametrize("decoded", [1, 3, 100])
@pytest.mark.parametrize("block", [1, 4, 5, 6, 7, 12])
def test_long_documents_are_cut_at_lines_or_left_out(shards: Any, decoded: int, block: int) -> None:
    documents = [b"one\ntwo\nthree\n4", b"six", b"", b"seven!!", b"a\nb"]
    ids = b"\0".join(documents) + b"\0"
    ends = list(itertools.accumulate(len(text) + 1 for text in documents))
    cut, _ = read(shards((ids, ends)), Bytes(), block_bytes=block, decode_tokens=decoded)
    assert cut == [part for text in documents for part in parts_of(text, block)]
    left, _ = read(
        shards((ids, ends)), Bytes(), block_bytes=block, decode_tokens=decoded, cut_long=False
    )
    assert left == [text if len(text) <= block else b"" for text in documents]


def test_where_a_document_is_cut_depends_on_itself_alone(shards: Any) -> None:
    long = b"aaaa\nbb\nccccc\ndd\ne"
    alone, _ = read(shards((long + b"\0", [len(long) + 1])), Bytes(), block_bytes=8)
    for before in (b"", b"x", b"yyyyy", b"zzzzzzzzz"):
        ids = before + b"\0" + long + b"\0"
        texts, _ = read(
            shards((ids, [len(before) + 1, len(ids)])), Bytes(), block_bytes=8, decode_tokens=9
        )
        assert texts[-len(alone) :] == alone


def test_stretches_are_read_from_where_they_begin(shards: Any) -> None:
    (shard,) = shards((b"ab\0cd\0ef\0", [3, 6, 9]))
    pieces = iter_texts([TokenStretch(shard, 3, 6)], np.dtype("<u2"), Bytes())  # type: ignore
    assert list(pieces) == [([b"cd"], 3)]
    pieces = iter_texts([TokenStretch(shard, 3, 8)], np.dtype("<u2"), Bytes())  # type: ignore
    assert list(pieces) == [([b"cd"], 5), ([b"ef"], 0)]


def test_ids_are_cut_behind_the_one_that_passes_a_size() -> None:
    lengths = np.array([5, 1, 2, 0], np.int32)
    tokens = np.array([1, 2, 3, 3, 0, 1])
    for size, count in ((-9, 1), (0, 1), (1, 2), (2, 2), (3, 5), (7, 5), (8, 6), (99, 6)):
        assert rehashing._cut_ids(tokens, lengths, size).tolist() == tokens[:count].tolist()
    assert rehashing._token_lengths(Bytes())[:3].tolist() == [5, 1, 1]  # type: ignore


def test_where_documents_begin_from_a_shard_on(shards: Any) -> None:
    found = shards(
        (b"ab\0", [3]), (b"cd", []), (b"e\0f", [2]), (b"g\0", [2]), (b"hi", []), (b"jk", [])
    )
    starts = [find_start(found, index, np.dtype("<u2"), Bytes()) for index in range(7)]  # type: ignore
    assert starts == [(0, 0), (1, 0), (2, 2), (4, 0), (4, 0), (6, 0), (6, 0)]
    counts = [count_documents(shard, np.dtype("<u2"), Bytes()) for shard in found]  # type: ignore
    assert counts == [1, 0, 1, 1, 0, 0]
    unmarked = shards((b"a\0b\0", []))
    assert count_documents(unmarked[0], np.dtype("<u2"), Bytes()) == 2  # type: ignore
    assert count_documents(unmarked[0], np.dtype("<u2"), Bytes(None)) == 0  # type: ignore


def test_shards_are_in_the_order_they_were_written(shards: Any) -> None:
    def shard(name: str, checksum: str | None = "x") -> Any:
        return SimpleNamespace(path=Path(name), checksum=checksum)

    rows = [
        shard("shard_00000.bin", None), shard("val/shard_00002.bin"), shard("mine.bin", None),
        shard("shard_00001.bin"), shard("train/shard_00000.bin"),
    ]  # fmt: skip
    names = [str(one.path) for one in in_order(rows)]
    assert names[:3] == ["train/shard_00000.bin", "shard_00001.bin", "val/shard_00002.bin"]
    assert names[3:] == ["shard_00000.bin", "mine.bin"]


def test_blocks_of_documents_and_of_lines() -> None:
    block = block_of_documents([b"ab", b"", b"cde"], 7, first=5)
    assert (block.stream, block.number, block.kind, block.data) == (0, 7, "rows", b"abcde")
    (segment,) = block.segments
    assert segment == type(segment)(0, 5, 0, 5)
    assert block.row_ends is not None and block.row_ends.tolist() == [2, 2, 5]
    assert (block.continues, block.continued) == (False, False)
    lines = block_of_lines([b"ab", b"c"], 3)
    assert (lines.data, lines.number, lines.continues, lines.continued) == (b"ab\nc", 3, True, True)
    assert lines.row_ends is not None and lines.row_ends.tolist() == [4]
    empty = block_of_lines([], 3)
    assert (empty.data, empty.continues, empty.continued) == (b"", False, False)


def test_text_that_was_cleaned_is_taken_as_it_is() -> None:
    settings = PrepareSettings(
        input_files=("a",), out_dir=Path("b"), rules="c4", lowercase=True, min_document_chars=9,
    )  # fmt: skip
    for dedup in (True, False):
        found = as_it_is(settings.cleaning, dedup=dedup)
        assert found.dedup is dedup
        assert (found.normalize, found.filter, found.rules, found.keep_top) == (
            False, False, "", None
        )  # fmt: skip
        assert found.min_document_chars == 9


@pytest.mark.parametrize("has_seen", [True, False])
def test_documents_are_hashed_whole_where_no_hashes_of_them_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: Any, has_seen: bool
) -> None:
    """Moved shards have no stored hashes; stored hashes come last, each as a block."""
    made = shards((b"ab\0", [3]), (b"cd\0", [3]), (b"ef\0", [3]))
    made[2].checksum = None
    hashed: list[Any] = []

    def hash_texts(job: Any, texts: Any, number: int, tokens: int, *, whole: bool) -> int:
        hashed.append((texts, number, whole))
        return tokens

    def hash_seen(job: Any, rows: bytes, number: int) -> int:
        hashed.append((rows, number))
        return 0

    monkeypatch.setattr(rehashing, "_hash_texts", hash_texts)
    monkeypatch.setattr(rehashing, "_hash_seen", hash_seen)
    monkeypatch.setattr(
        rehashing, "iter_seen", lambda root, rows: iter([b"first", b"second"] if rows else [])
    )
    tables: list[int] = []
    monkeypatch.setattr(
        rehashing, "load_block_table",
        lambda job: tables.append(job.streams[0].num_blocks) or "table",
    )  # fmt: skip
    monkeypatch.setattr(rehashing, "as_it_is", lambda cleaning, *, dedup: ("as it is", dedup))
    told: list[Any] = []

    class Shown:
        @contextlib.contextmanager
        def phase(self, name: str, *, total: int, unit: str) -> Any:
            told.append((name, total, unit))
            yield SimpleNamespace(advance=told.append)

    text: Any = SimpleNamespace(
        reading=SimpleNamespace(block_bytes=100), cleaning="cleaning", folder=tmp_path / "work",
        shards={"train": made[1:], "val": made[:1]}, seen=[1] if has_seen else [],
        dtype=np.dtype("<u2"), root=tmp_path,
    )  # fmt: skip
    pool: Any = SimpleNamespace(run=lambda tasks: (task() for task in tasks))
    shown: Any = Shown()
    tokenizer: Any = Bytes()
    assert rehashing.hash_existing(text, tokenizer, pool, shown) == "table"
    kept: list[Any] = [(b"first", 3), (b"second", 4)] if has_seen else []
    assert hashed == [
        ([b"ab"], 0, not has_seen), ([b"cd"], 1, not has_seen), ([b"ef"], 2, True), *kept
    ]  # fmt: skip
    assert tables == [3 + len(kept)]
    assert told == [("read dataset", 9, "tokens"), 3, 3, 3, *([0] * len(kept))]
    assert (tmp_path / "work").is_dir()
