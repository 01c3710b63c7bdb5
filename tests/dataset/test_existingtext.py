"""Text of an existing dataset, as runs of its shards: every document once."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import rehashing
from lowtide.dataset.staged import existingtext
from lowtide.dataset.staged.existingtext import DocumentRuns, ExistingStage, ShardRuns


class Letters:
    """A tokenizer of bytes; 0 is end-of-text."""

    vocab_size, end_of_text_id = 256, 0

    def token_bytes(self, number: int) -> bytes:
        return bytes([number])

    def decode_bytes(self, ids: Any) -> bytes:
        return bytes(ids.tolist())


# Documents that continue over shards, shards without an end, and one that ends with its shard.
SHARDS = [b"ab\0cd", b"e\0\0f", b"gh", b"ij\0", b"kl\0m", b"n"]
TEXTS = [b"ab", b"cde", b"", b"fghij", b"kl", b"mn"]


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rehashing, "load_shard_tokens", lambda shard, dtype: shard.ids)
    monkeypatch.setattr(
        rehashing, "load_document_ends",
        lambda shard: (np.flatnonzero(shard.ids == 0) + 1).astype("<u8"),
    )  # fmt: skip

    def make(parts: list[bytes], *, moved: int = 0, seen: Any = ()) -> Any:
        shards = [
            SimpleNamespace(
                path=Path(f"shard_{number:05d}.bin"), num_tokens=len(ids),
                ids=np.frombuffer(ids, np.uint8),
                checksum=None if number >= len(parts) - moved else "x",
            )
            for number, ids in enumerate(parts)
        ]  # fmt: skip
        return SimpleNamespace(
            shards={"train": shards[1:], "val": shards[:1]}, tokenizer=Letters(), seen=list(seen),
            info=SimpleNamespace(dtype=np.dtype("u1")), root=Path("root"),
        )  # fmt: skip

    return make


def runs_of(grown: Any, run_tokens: int) -> ShardRuns:
    shards = rehashing.in_order([*grown.shards["train"], *grown.shards["val"]])
    return ShardRuns(grown, shards, run_tokens, 1000)


@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 9, 100])
def test_runs_have_all_documents_once(dataset: Any, tokens: int) -> None:
    runs = runs_of(dataset(SHARDS), tokens)
    firsts = list(runs.firsts)
    assert (firsts[0], firsts[-1], len(runs)) == (0, 6, len(firsts) - 1)
    sizes = [sum(map(len, SHARDS[a:b])) for a, b in itertools.pairwise(firsts)]
    assert all(size >= tokens for size in sizes[:-1])
    assert all(sum(map(len, SHARDS[a : b - 1])) < tokens for a, b in itertools.pairwise(firsts))
    found = [
        text
        for run in range(len(runs))
        for texts, _ in runs.iter_texts(run, cut_long=True)
        for text in texts
    ]
    assert found == TEXTS
    stretches = [one for run in range(len(runs)) for one in runs.stretches(run)]
    assert sum(one.end - one.begin for one in stretches) == sum(map(len, SHARDS))
    assert all(one.begin < one.end for one in stretches)


def test_no_shards_are_no_runs(dataset: Any) -> None:
    runs = ShardRuns(dataset([b""]), [], 5, 1000)
    assert (list(runs.firsts), len(runs)) == ([0], 0)


@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_documents_have_the_numbers_of_the_dataset(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    cleaned = SimpleNamespace(text=b"", documents=b"")
    monkeypatch.setattr(existingtext._CleanExisting, "clean", lambda self, block: cleaned)
    job: Any = SimpleNamespace(reading=SimpleNamespace(block_bytes=1000))
    runs = DocumentRuns(job, dataset(SHARDS), tokens)
    numbers: list[int] = []
    monkeypatch.setattr(
        existingtext, "block_of_documents",
        lambda texts, block, *, first: numbers.extend(range(first, first + len(texts))),
    )  # fmt: skip
    for part in range(len(runs)):
        for load in runs.iter_part(part):
            load()
    assert numbers == list(range(len(TEXTS)))


def stage_of(grown: Any, *, dedup: bool = True, run_tokens: int = 6) -> ExistingStage:
    job: Any = SimpleNamespace(
        reading=SimpleNamespace(block_bytes=1000),
        settings=SimpleNamespace(dedup=dedup, cleaning=None),
        limits=SimpleNamespace(seen_rows=10, seen_step=4),
    )
    return ExistingStage(job, grown, run_tokens)


def test_tasks_are_runs_moved_shards_and_stretches_of_hashes(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [{"file": "a", "rows": 23}, {"file": "b", "rows": 0}, {"file": "c", "rows": 10}]
    grown = dataset(SHARDS, moved=2, seen=seen)
    stage = stage_of(grown)
    runs = list(map(len, stage._runs))
    assert runs == [2, 1]  # two of ours, and one of all shards that were moved in
    assert [(row["file"], begin) for row, begin in stage._seen] == [
        ("a", 0), ("a", 10), ("a", 20), ("c", 0)
    ]  # fmt: skip
    assert stage.count_tasks() == 7
    assert stage_of(grown, dedup=False).count_tasks() == 0
    read: list[Any] = []
    monkeypatch.setattr(
        existingtext, "read_seen",
        lambda root, row, begin, end: read.append((row["file"], begin, end)),
    )  # fmt: skip
    monkeypatch.setattr(existingtext, "sort_seen", lambda data: ("hashes", "ends"))
    assert list(stage._iter_hashes(4)) == [("hashes", "ends")] * 3
    assert list(stage._iter_hashes(5)) == [("hashes", "ends")]
    row = existingtext.ROW_BYTES
    assert read == [
        ("a", 10 * row, 14 * row), ("a", 14 * row, 18 * row), ("a", 18 * row, 20 * row),
        ("a", 20 * row, 23 * row),
    ]  # fmt: skip


@pytest.mark.parametrize("has_seen", [True, False])
def test_documents_are_hashed_whole_where_no_hashes_are_kept(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, has_seen: bool
) -> None:
    grown = dataset(SHARDS, moved=2, seen=[{"file": "a", "rows": 1}] if has_seen else [])
    stage = stage_of(grown)
    kinds: list[tuple[str, list[bytes], int]] = []
    for name in ("block_of_documents", "block_of_lines"):
        monkeypatch.setattr(
            existingtext, name,
            lambda texts, number, name=name: kinds.append((name, texts, number)),
        )  # fmt: skip
    cleaned = SimpleNamespace(hashes="hashes", radix_ends="ends")
    monkeypatch.setattr(existingtext._CleanExisting, "clean", lambda self, block: cleaned)
    for index in range(3):
        assert set(stage._iter_hashes(index)) <= {("hashes", "ends")}  # may be empty
    ours = "block_of_lines" if has_seen else "block_of_documents"
    assert {name for name, *_ in kinds[:2]} == {ours}
    assert kinds[-1][0] == "block_of_documents"  # no hashes are stored for moved shards
    assert [text for _, texts, _ in kinds for text in texts] == [
        b"ab", b"cde", b"", b"fghij", b"kl", b"mn"
    ]  # fmt: skip
