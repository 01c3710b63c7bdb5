"""Inspection of a dataset: which tokens are read, and every line of the description."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import inspection
from lowtide.dataset.inspection import inspect_dataset, plan_inspection, read_window
from lowtide.errors import UsageError
from lowtide.memory import MemoryBudget


def info_of(monkeypatch: pytest.MonkeyPatch, *sizes: int, **metadata: Any) -> Any:
    ids = np.arange(sum(sizes), dtype="<u2")
    begins = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    shards = [
        SimpleNamespace(num_tokens=size, num_documents=number + 1, ids=ids[begin : begin + size])
        for number, (size, begin) in enumerate(zip(sizes, begins, strict=False))
    ]
    read: list[tuple[int, int]] = []

    def read_tokens(shard: Any, dtype: Any, begin: int, end: int) -> Any:
        read.append((begin, end))
        return shard.ids[begin:end]

    monkeypatch.setattr(inspection, "read_shard_tokens", read_tokens)
    splits: dict[str, Any] = {"train": shards, "val": []}
    return SimpleNamespace(
        root=Path("data"), shards=splits, dtype=np.dtype("<u2"), vocab_size=5000, metadata=metadata,
        num_tokens=lambda split: sum(one.num_tokens for one in splits[split]), read=read,
        tokenizer_fingerprint="0123456789abcdef", describe_moved_in=lambda: None,
    )  # fmt: skip


def test_any_window_of_several_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    info = info_of(monkeypatch, 4, 1, 5)
    for start in range(10):
        for count in range(1, 13):
            info.read.clear()
            found = read_window(info, "train", start, count)
            assert found.tolist() == list(range(start, min(start + count, 10)))
            assert found.dtype == np.uint32
            assert all(begin < end for begin, end in info.read)
    for start in (-1, 10):
        with pytest.raises(UsageError) as caught:
            read_window(info, "train", start, 1)
        assert caught.value.message == f"--start {start} is outside the 10 tokens of train"
        assert caught.value.next_step == "give --start 0 to 9"


@pytest.mark.parametrize("sample", [None, "a.txt"])
def test_a_window_that_the_budget_cannot_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, sample: str | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(MemoryBudget, "require", lambda self, shares: asked.append(shares))
    needs = SimpleNamespace(table_bytes=7)
    monkeypatch.setattr(inspection, "tokenizer_needs", lambda root: needs)
    settings: Any = SimpleNamespace(
        memory="1GiB", dataset_dir=Path("data"), tokens=10, sample=sample
    )
    assert plan_inspection(settings) == 1 << 30
    more = {} if sample is None else {"sample": 24 << 20}
    tokenizer = inspection._TOKENIZER_BYTES + 7
    assert asked == [{"tokenizer": tokenizer, "window": 640, **more}]


def test_every_line_of_a_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = info_of(monkeypatch, 600, 1424, tokenization="gpt2", input_files=["a"])
    monkeypatch.setattr(inspection, "load_any_info", lambda root: info)
    monkeypatch.setattr(inspection, "is_work_folder", lambda root: root == Path("work"))
    monkeypatch.setattr(inspection, "describe_work", lambda root: "work that goes on")
    monkeypatch.setattr(inspection, "describe_cleaning", lambda report: f"cleaned {report}")
    decoded = SimpleNamespace(decode=lambda ids: "-".join(map(str, ids.tolist())))
    monkeypatch.setattr(inspection.Tokenizer, "load", lambda folder: decoded)
    assert inspect_dataset(dataset_dir="work") == "work that goes on"
    head = [
        "data: 2,024 tokens, 4.0 KiB",
        "  tokenizer  gpt2, vocabulary 5,000, uint16, fingerprint 0123456789ab",
        "  inputs     1 file",
        "  train      2,024 tokens, 3 documents, 2 shards",
        "  val        0 tokens, 0 documents, 0 shards",
    ]
    found = inspect_dataset(dataset_dir="data", start=598, tokens=3).splitlines()
    assert found == [*head, "", "train tokens 598 to 601:", "598-599-600"]
    shown = inspect_dataset(dataset_dir="data", start=2022, tokens=9, show_ids=True).splitlines()
    assert shown[6:] == ["train tokens 2,022 to 2,024:", "2022-2023", "", "2022 2023"]
    assert inspect_dataset(dataset_dir="data", tokens=0).splitlines() == head
    assert inspect_dataset(dataset_dir="data", split="val").splitlines() == head
    info.metadata["cleaning"] = {"c": 1}
    info.describe_moved_in = lambda: "one was moved in"
    told = inspect_dataset(dataset_dir="data", tokens=0).splitlines()
    assert told == [*head, "  note       one was moved in", "", "cleaned {'c': 1}"]
