"""`inspect` and `verify` of a dataset that lies in a store: what they say of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowtide import inspect, verify_dataset
from lowtide.errors import DataError


@pytest.mark.parametrize("start", [0, 119_990, 230_000])
def test_what_a_dataset_is_and_says(dataset: Path, stored: str, start: int) -> None:
    here = inspect(dataset, start=start, tokens=30, show_ids=True)
    there = inspect(stored, start=start, tokens=30, show_ids=True)
    assert there.text.replace(stored, str(dataset)) == here.text
    assert there.facts == {**here.facts, "dataset_dir": there.facts["dataset_dir"]}
    assert str(there.facts["dataset_dir"]) == stored


def test_a_dataset_may_be_a_whole_bucket(dataset: Path, stored: str, server: Any) -> None:
    server.objects.update(
        {key.removeprefix("data/mine/"): data for key, data in server.objects.items()}
    )
    assert inspect("s3://bucket").text.replace("s3://bucket", str(dataset)) == inspect(dataset).text


def test_every_byte_is_read(dataset: Path, stored: str, server: Any) -> None:
    whole = verify_dataset(stored)
    assert whole == verify_dataset(dataset) and whole.problems == []
    name = next(key for key in server.objects if key.endswith("shard_00002.bin"))
    data = server.objects[name]
    server.objects[name] = data[:100_000] + bytes([data[100_000] ^ 1]) + data[100_001:]
    (problem,) = verify_dataset(stored).problems
    assert problem.startswith("train/shard_00002.bin: checksum ")
    ends = name.replace(".bin", ".docs")
    server.objects[name], server.objects[ends] = data, server.objects[ends][:-8]
    (problem,) = verify_dataset(stored).problems
    assert problem.startswith("shard_00002.docs: ")
    del server.objects[name]
    assert "train/shard_00002.bin: missing" in verify_dataset(stored).problems


def test_a_shard_that_nobody_described_is_looked_at(stored: str, server: Any) -> None:
    server.objects["data/mine/train/more.bin"] = bytes([5, 0] * 600)
    found = verify_dataset(stored)
    assert found.problems == [] and found.num_strangers == 1 and found.num_shards == 8
    server.objects["data/mine/train/more.bin"] = b"odd"
    (problem,) = verify_dataset(stored).problems
    assert problem.startswith("train/more.bin: 3 bytes")


def test_what_is_no_dataset_is_named(stored: str, server: Any) -> None:
    with pytest.raises(DataError, match="nothing is stored under this prefix"):
        verify_dataset("s3://bucket/nothing")
    with pytest.raises(DataError, match="did you mean s3://bucket/data/mine"):
        inspect(f"{stored}/train")
    server.objects["data/mine/dataset_metadata.json"] = b"{}"
    with pytest.raises(DataError, match="lacks format_version") as caught:
        verify_dataset(stored)
    assert str(caught.value.path) == f"{stored}/dataset_metadata.json"
