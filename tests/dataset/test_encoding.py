"""Keys of the shuffle: a pure function, spread evenly, different for every seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide import _native
from lowtide.corpus.cleaning import RULES
from lowtide.corpus.removals import Report
from lowtide.dataset import encoding


def keys_of(seed: int, *, inputs: int = 4, rows: int = 5000) -> np.ndarray:
    keys = [
        _native.testing.shuffle_key(seed, index, row)
        for index in range(inputs)
        for row in range(rows)
    ]
    return np.array(keys, dtype=np.uint64)


def test_keys_are_different_and_known() -> None:
    keys = keys_of(0)
    assert len(np.unique(keys)) == len(keys)
    # Datasets on disk depend on these numbers: they must never change.
    assert _native.testing.shuffle_key(0, 0, 0) == 9467373207687813366
    assert _native.testing.shuffle_key(0, 1, 7) == 12599236417288752389


def test_keys_are_spread_evenly() -> None:
    for seed in (0, 1, 12345):
        counts = np.bincount((keys_of(seed) >> np.uint64(56)).astype(np.int64), minlength=256)
        expected = counts.sum() / 256
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert 180 < chi_squared < 345  # 255 degrees of freedom, within one in ten thousand


def test_order_has_no_memory_of_the_input() -> None:
    ranks = np.argsort(np.argsort(keys_of(3)))
    order = np.arange(len(ranks))
    correlation = float(np.corrcoef(ranks, order)[0, 1])
    neighbours = float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1])
    other_seed = float(np.corrcoef(ranks, np.argsort(np.argsort(keys_of(4))))[0, 1])
    assert max(map(abs, (correlation, neighbours, other_seed))) < 0.03


def totals_file(folder: Path, number: int, *, seen: bytes | None, **header: Any) -> Any:
    rows = {
        "tokens": 10 + number, "documents": number, "counts": [(0, 0)] * len(RULES), "samples": [],
        "sources": [[5 + number, number, 2 * number]], **header,
    }  # fmt: skip
    sections = {"ids": memoryview(b"ids")}
    if seen is not None:
        sections["seen"] = memoryview(seen)
    path = folder / f"{number}.ids"
    return path, encoding.write_work_file(path, rows, sections)


def test_blocks_are_added_up_to_the_first_gap_and_the_rest_at_the_end(tmp_path: Path) -> None:
    made = [
        totals_file(tmp_path, 0, seen=b"abc", unknown_characters=2),
        totals_file(tmp_path, 1, seen=None),
        totals_file(tmp_path, 2, seen=b""),
        totals_file(tmp_path, 3, seen=b"defg", unknown_characters=3),
    ]
    totals = encoding.EncodedTotals(4, first_index=5)
    totals.add(made[0][1])
    assert (totals.num_tokens, totals.num_documents) == (10, 0)
    totals.add(None)
    totals.add(made[2][1])  # after a gap: later
    assert totals.num_tokens == 10
    report = Report()
    totals.finish([path for path, _ in made], report)
    assert (totals.num_tokens, totals.num_documents) == (46, 6)
    assert report.as_json()["unknown_characters"] == 5
    places = [work.sections.get("seen") for _, work in made]
    assert [totals.find_seen(block) for block in range(4)] == [
        tuple(places[0]), None, tuple(places[2]), tuple(places[3])
    ]  # fmt: skip
    described = [(f"{number}.txt", {"stored": number}) for number in range(4)]
    assert list(totals.sources.iter_json(described)) == [
        {"file": f"{n}.txt", "documents": n, "tokens": 2 * n, "stored": n} for n in range(4)
    ]


@pytest.mark.parametrize(
    ("kind", "special", "ids", "count"),
    [
        ("char", {"<unk>": 3}, [3, 1, 3, 0], 2),
        ("char", {}, [3, 1, 3, 0], 0),
        ("bpe", {"<unk>": 3}, [3, 1, 3, 0], 0),
        ("char", {"<unk>": 0}, [0, 0, 1], 2),
        ("char", {"<unk>": 3}, [], 0),
    ],
)
def test_characters_that_are_unknown_are_counted(
    monkeypatch: pytest.MonkeyPatch, kind: str, special: dict[str, int], ids: list[int], count: int
) -> None:
    monkeypatch.setattr(encoding, "_native_coder", lambda tokenizer: "native")
    for vocab_size, dtype in ((300, "<u2"), (70_000, "<u4")):
        tokenizer: Any = SimpleNamespace(
            name="mine", vocab_size=vocab_size, kind=kind, special_tokens=special
        )
        coder = encoding.Coder(tokenizer, end_id=None)
        assert coder.count_unknown(memoryview(np.array(ids, dtype).tobytes())) == count
        assert (coder.end_id, coder.id_bytes) == (-1, np.dtype(dtype).itemsize)
    assert encoding.Coder(tokenizer, end_id=0).end_id == 0
