"""Imports: identified by the content of their files, and resumed after a kill."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import importing
from lowtide.dataset.conversion import convert_dataset
from lowtide.dataset.tokenfiles.shards import ShardInfo, shard_number, write_shard_stream
from lowtide.dataset.verification import verify_dataset
from lowtide.dataset.workfolder import begin_work
from lowtide.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import snapshot


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[Path]:
    """Stop an import before it writes shard `number`; its writes are recorded."""
    real = write_shard_stream

    def write(path: Path, chunks: Any, **given: Any) -> ShardInfo:
        if shard_number(path) == number:
            raise KeyboardInterrupt
        written.append(path)
        return real(path, chunks, **given)

    written: list[Path] = []
    monkeypatch.setattr(importing, "write_shard_stream", write)
    return written


@pytest.mark.parametrize("changed", ["nothing", "time", "content", "settings"])
def test_an_interrupted_import_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: str,
) -> None:
    path = tmp_path / "train.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    options: Any = {"in_path": path, "tokens_per_shard": 100}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 3)
        convert_dataset(**options, out_path=tmp_path / "out")
    if changed == "time":
        os.utime(path, (1, 1))
    elif changed == "content":
        np.arange(1000, dtype="<u2")[::-1].tofile(path)
    elif changed == "settings":
        options["val_fraction"] = 0.5
    with monkeypatch.context() as patch:
        written = stop_at(patch, -1)
        convert_dataset(**options, out_path=tmp_path / "out")
    numbers = [shard_number(path) for path in written]
    goes_on = changed in {"nothing", "time"}
    assert numbers == list(range(3 if goes_on else 0, 10))
    assert ("begun anew" in capsys.readouterr().err) != goes_on
    convert_dataset(**options, out_path=tmp_path / "undisturbed")
    found, wanted = (snapshot(tmp_path / name) for name in ("out", "undisturbed"))
    if changed == "time":
        del found["dataset_metadata.json"], wanted["dataset_metadata.json"]  # it contains the time
    assert found == wanted
    assert not verify_dataset(dataset_dir=tmp_path / "out").problems


@pytest.mark.parametrize("found", ["train", "val", "tokenizer.json", ".work"])
def test_what_belongs_to_no_dataset_is_named_and_stays(tmp_path: Path, found: str) -> None:
    path, out = tmp_path / "train.bin", tmp_path / "out"
    np.arange(1000, dtype="<u2").tofile(path)
    begin_work(out, verb="prepare", facts={})  # left by another command
    if found != ".work":
        (out / found).mkdir()
    before = snapshot(out)
    with pytest.raises(UsageError, match=f"^{re.escape(found)} is here already"):
        convert_dataset(in_path=path, out_path=out)
    assert snapshot(out) == before


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (None, "nothing says what it was made of"),
        (
            {"kind": "raw", "files": [["a.bin", 10, 1, "x"]]},
            "it was made with kind=raw, now kind=npy",
        ),
        ({"kind": "npy", "files": [["b.bin", 10, 1, "x"]]}, "a.bin was not among its inputs"),
        ({"kind": "npy", "files": [["a.bin", 11, 1, "x"]]}, "a.bin holds other ids than then"),
        ({"kind": "npy", "files": [["a.bin", 10, 1, "y"]]}, "a.bin holds other ids than then"),
        ({"kind": "npy", "files": [["a.bin", 10, 2]]}, "a.bin holds other ids than then"),
        ({"kind": "npy", "files": [["a.bin", 10, 1]]}, None),  # as earlier versions wrote it
        ({"kind": "npy", "files": [["a.bin", 10, 7, "x"]]}, None),  # a new time
    ],
)
def test_how_a_conversion_differs_is_said(stored: Any, why: str | None) -> None:
    wanted = {"kind": "npy", "files": [["a.bin", 10, 1, "x"]]}
    assert importing.find_other_conversion(stored, wanted) == why


def test_files_are_read_again_only_where_size_or_time_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    options: Any = {"in_path": path, "out_path": tmp_path / "out", "tokens_per_shard": 100}
    convert_dataset(**options)
    read: list[Path] = []
    plain = importing.files.checksum_file
    noting = SimpleNamespace(
        **{**vars(importing.files), "checksum_file": lambda one: read.append(one) or plain(one)}
    )
    monkeypatch.setattr(importing, "files", noting)
    assert convert_dataset(**options).was_there
    assert read == []
    os.utime(path, (1, 1))
    assert convert_dataset(**options).was_there
    assert read == [path]


def plan_of(sources: dict[str, int], **settings: Any) -> list[tuple[str, int, int]]:
    given: Any = SimpleNamespace(in_path=Path("in"), **settings)
    streams: Any = {split: SimpleNamespace(num_tokens=count) for split, count in sources.items()}
    rows = importing._plan_shards(streams, given)
    own = "all" in streams
    assert all(row[1] is streams["all" if own else row[0]] for row in rows)
    return [(split, first, last) for split, _, first, last in rows]


@pytest.mark.parametrize(
    ("total", "fraction", "per_shard", "expected"),
    [
        (10, 0.2, 100, [("train", 0, 8), ("val", 8, 10)]),
        (10, 0.2, 3, [("train", 0, 3), ("train", 3, 6), ("train", 6, 8), ("val", 8, 10)]),
        (10, 0.0, 5, [("train", 0, 5), ("train", 5, 10)]),
        (10, 0.001, 100, [("train", 0, 9), ("val", 9, 10)]),  # at least one
        (10, 0.999, 100, [("train", 0, 1), ("val", 1, 10)]),  # at least one of train
        (2, 0.5, 100, [("train", 0, 1), ("val", 1, 2)]),
    ],
)
def test_one_stream_is_split_at_its_end(
    total: int, fraction: float, per_shard: int, expected: list[tuple[str, int, int]]
) -> None:
    assert plan_of({"all": total}, val_fraction=fraction, tokens_per_shard=per_shard) == expected


def test_streams_of_splits_stay_theirs() -> None:
    given: Any = {"val_fraction": 0.5, "tokens_per_shard": 4}
    assert plan_of({"val": 3, "train": 5}, **given) == [
        ("train", 0, 4), ("train", 4, 5), ("val", 0, 3)
    ]  # fmt: skip
    assert plan_of({"train": 0}, **given) == []
    for count in (0, 1):
        with pytest.raises(DataError) as caught:
            plan_of({"all": count}, **given)
        assert caught.value.message == f"only {count} ids here, expected 2 at least"


@pytest.mark.parametrize("changed", [True, False])
def test_files_that_change_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    source = tmp_path / "in" / "train.bin"
    source.parent.mkdir()
    np.arange(100, dtype="<u2").tofile(source)
    real = write_shard_stream

    def write(path: Path, chunks: Any, **given: Any) -> ShardInfo:
        shard = real(path, chunks, **given)
        ids = np.arange(100, dtype="<u2")
        if changed:
            ids[5] = 7
        ids.tofile(source)  # by another program; the same bytes would only change its time
        os.utime(source, ns=(1, 1))
        return shard

    monkeypatch.setattr(importing, "write_shard_stream", write)
    options: Any = {"source_kind": "nanogpt", "tokenizer": "gpt2", "val_fraction": 0.1}
    if not changed:
        convert_dataset(in_path=source.parent, out_path=tmp_path / "out", **options)
        assert verify_dataset(dataset_dir=tmp_path / "out").problems == []
        return
    with pytest.raises(DataError, match="these files were changed while they were read"):
        convert_dataset(in_path=source.parent, out_path=tmp_path / "out", **options)
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()
