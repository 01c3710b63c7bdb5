"""Datasets on disk: a round trip, and errors that name files that do not belong."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import layout, shardlist
from lowtide.dataset.inspection import inspect_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.summary import describe_verification
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    load_document_ends,
    load_shard_tokens,
    shard_name,
)
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME
from lowtide.loader.windows import TokenDataset

sys.path.insert(0, str(Path(__file__).parent))
from corpora import write_shard


def make_dataset(root: Path, *, vocab_size: int = 300) -> layout.DatasetInfo:
    train = write_shard(
        root / "train" / shard_name(0), np.arange(100), [40, 100], vocab_size=vocab_size
    )
    val = write_shard(root / "val" / shard_name(1), np.arange(20), [20], vocab_size=vocab_size)
    layout.write_metadata(
        root,
        shards={"train": [train], "val": [val]},
        vocab_size=vocab_size,
        tokenizer_fingerprint="f00d",
        tokenization="char",
        tokens_per_shard=100,
        input_files=["a.txt"],
    )
    return layout.load_dataset_info(root)


def test_round_trip(tmp_path: Path) -> None:
    info = make_dataset(tmp_path)
    assert info.dtype == np.uint16
    assert info.num_tokens("train") == 100 and info.num_tokens("val") == 20
    tokens = load_shard_tokens(info.shards["train"][0], info.dtype)
    assert tokens.tolist() == list(range(100))
    assert load_document_ends(info.shards["train"][0]).tolist() == [40, 100]
    metadata = json.loads((tmp_path / "dataset_metadata.json").read_text())
    assert (metadata["total_tokens"], metadata["total_shards"]) == (120, 2)
    assert metadata["train_shards"] == 1 and metadata["val_shards"] == 1
    assert layout.load_dataset_info(tmp_path).fingerprint == info.fingerprint


def test_wide_vocabulary_is_uint32(tmp_path: Path) -> None:
    info = make_dataset(tmp_path, vocab_size=70_000)
    assert info.dtype == np.uint32
    assert load_shard_tokens(info.shards["train"][0], info.dtype)[99] == 99


def test_shard_moved_in_is_found(tmp_path: Path) -> None:
    before = make_dataset(tmp_path)
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "train" / "shard_00077.bin")
    after = layout.load_dataset_info(tmp_path)
    moved = after.shards["train"][1]
    assert (moved.num_tokens, moved.max_id, moved.checksum) == (50, 49, None)
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([5, 300] * 9, dtype=np.uint16), "it has id 300, the vocabulary ends at 299"),
        (np.arange(1, 60, dtype=np.uint32), "as if it held uint32"),
        (np.arange(5, dtype=np.uint8), "5 bytes"),
        (np.arange(0, dtype=np.uint8), "0 bytes"),
    ],
)
def test_shard_that_cannot_belong_is_named(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    make_dataset(tmp_path)
    array.tofile(tmp_path / "train" / "extra.bin")
    with pytest.raises(DataError, match=reason) as caught:
        layout.load_dataset_info(tmp_path)
    assert "extra.bin" in str(caught.value)


def test_truncated_and_missing_shards_are_named(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    path = tmp_path / "train" / "shard_00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"shard_00000.bin holds 99 tokens, .* says 100"):
        layout.load_dataset_info(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"shard_00000.bin is missing"):
        layout.load_dataset_info(tmp_path)


def test_unfinished_dataset_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a finished dataset"):
        layout.load_dataset_info(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        layout.load_dataset_info(tmp_path / "nowhere")


@pytest.mark.parametrize("rows", ["[1]", '{"train": [{"file": 5}]}', '{"train": {"a": 1}}', "null"])
def test_damaged_rows_of_shards_are_an_error(tmp_path: Path, rows: str) -> None:
    make_dataset(tmp_path)
    path = tmp_path / "dataset_metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shards": json.loads(rows)}))
    with pytest.raises(DataError, match="is damaged"):
        layout.load_dataset_info(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("min_id", -1), ("min_id", 99), ("max_id", 1 << 20)])
def test_ids_that_no_shard_can_have_are_damage(tmp_path: Path, key: str, value: int) -> None:
    make_dataset(tmp_path)
    path = tmp_path / METADATA_NAME
    metadata = json.loads(path.read_text())
    metadata["shards"]["train"][0].update({"max_id": 98, key: value})
    path.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match=r"is damaged.*has ids from"):
        layout.load_dataset_info(tmp_path)


def test_a_fingerprint_does_not_know_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_dataset(tmp_path / "one").fingerprint
    assert make_dataset(tmp_path / "two" / "deep").fingerprint == first
    monkeypatch.chdir(tmp_path / "one")
    assert layout.load_dataset_info(".").fingerprint == first


def test_metadata_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_metadata.json").write_text('{"total_tokens": 5}')
    with pytest.raises(DataError, match="lacks format_version"):
        layout.load_dataset_info(tmp_path)
    make_dataset(tmp_path)
    path = tmp_path / "dataset_metadata.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(DataError, match="format version 9, this lowtide reads 1"):
        layout.load_dataset_info(tmp_path)


def test_another_shard_of_the_same_size_is_noticed(tmp_path: Path) -> None:
    make_dataset(tmp_path / "mine")
    write_shard(tmp_path / "other.bin", np.arange(100)[::-1], [100], vocab_size=300)
    (tmp_path / "other.bin").rename(tmp_path / "mine/train/shard_00000.bin")
    with pytest.raises(DataError, match=r"shard_00000.bin is not the shard .* other first bytes"):
        layout.load_dataset_info(tmp_path / "mine")


def test_a_copied_dataset_is_as_good(tmp_path: Path) -> None:
    info = make_dataset(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    assert layout.load_dataset_info(tmp_path / "copy").fingerprint == info.fingerprint


def test_a_shard_moved_in_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_dataset(tmp_path)
    path = tmp_path / "train/mine.bin"
    np.arange(50, dtype="<u2").tofile(path)
    first = layout.load_dataset_info(tmp_path)
    real = shardlist.scan_shard
    scans: list[Path] = []

    def scan(path: Path, **given: Any) -> ShardInfo:
        scans.append(path)
        return real(path, **given)

    monkeypatch.setattr(shardlist, "scan_shard", scan)
    again = layout.load_dataset_info(tmp_path)
    assert again.shards == first.shards and not scans
    np.arange(60, dtype="<u2").tofile(path)
    assert layout.load_dataset_info(tmp_path).num_tokens("train") == 160
    (tmp_path / shardlist.MOVED_IN_NAME).write_text("[not, json")
    assert layout.load_dataset_info(tmp_path).num_tokens("train") == 160
    assert scans == [path, path]


@pytest.mark.parametrize(
    ("place", "next_step"),
    [
        ("nothing", "did you mean .*mine"),
        ("mine/nothing", "lowtide prepare --input-files FILES --out-dir .*nothing"),
        (".", "did you mean .*mine"),
        ("text.txt", "lowtide prepare --input-files .*text.txt --out-dir data/text"),
        ("begun", "the interrupted lowtide command again"),
    ],
)
def test_what_is_no_dataset_gets_a_next_step(tmp_path: Path, place: str, next_step: str) -> None:
    make_dataset(tmp_path / "mine")
    (tmp_path / "begun" / ".work").mkdir(parents=True)
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(DataError) as raised:
        layout.load_dataset_info(tmp_path / place)
    assert raised.value.next_step is not None
    assert re.search(next_step, raised.value.next_step)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", "many"), ("vocab_size", None), ("vocab_size", -1), ("vocab_size", True),
        ("dtype", 3), ("dtype", "float32"), ("shards", []), ("shards", {"train": 3}),
        ("shards", {"train": [3]}), ("shards", {"train": [{"file": "x"}]}),
        ("tokenizer_fingerprint", None), ("sources", {}), ("sources", [3]), ("appended", [{}]),
        ("sources", [{"file": "a", "stored": 1.5}]),
        ("seen", 1), ("seen", [{"file": "a"}]), ("seen", [{"file": "a", "rows": "3"}]),
        ("split", []), ("settings", 3), ("input_files", 5), ("total_tokens", "9"),
        ("format_version", [1]), ("cleaning", 1), ("tokenization", None),
        ("end_of_text_id", "x"), ("end_of_text_id", -1), ("end_of_text_id", 1 << 20),
        ("split", {"val_fraction": "x"}), ("split", {"val_fraction": 1.5}),
        ("seen", [{"file": 3, "rows": 3}]),
    ],
)  # fmt: skip
def test_metadata_of_other_types_is_called_damaged(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "a.txt").write_text("a few words to learn from, one after the other\n")
    root = tmp_path / "out"
    prepare_dataset(input_files=[tmp_path / "a.txt"], out_dir=root, tokenization="char")
    metadata = json.loads((root / METADATA_NAME).read_text())
    (root / METADATA_NAME).write_text(json.dumps({**metadata, key: value}))
    with pytest.raises(DataError) as caught:
        layout.load_dataset_info(root)
    assert caught.value.next_step or "dtype" in caught.value.message
    assert METADATA_NAME in str(caught.value)


def test_what_cannot_be_checked_of_a_shard_moved_in_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a few words to learn from, one after the other\n" * 40)
    root = tmp_path / "out"
    options: Any = {"tokenization": "char", "dedup": False}
    prepare_dataset(input_files=[tmp_path / "a.txt"], out_dir=root, **options)
    assert layout.load_dataset_info(root).describe_moved_in() is None
    shutil.copy(next((root / "train").glob("*.bin")), root / "train" / "other.bin")
    expected = "1 shard moved in by hand (train/other.bin): the ids are in the vocabulary"
    assert expected in (layout.load_dataset_info(root).describe_moved_in() or "")
    assert "nothing says which tokenizer" in TokenDataset(root, seq_len=8).describe()
    assert "nothing says which tokenizer" in inspect_dataset(dataset_dir=root)
    assert "nothing says which tokenizer" in describe_verification(verify_dataset(dataset_dir=root))


def test_a_dataset_near_by_is_proposed(tmp_path: Path) -> None:
    suggest = layout._suggest_dataset
    root = tmp_path / "runs" / "here"
    (root / "train").mkdir(parents=True)
    make = f"lowtide prepare --input-files FILES --out-dir {root}"
    assert suggest(root) == make
    beside = tmp_path / "runs" / "zz"
    beside.mkdir()
    (beside / "dataset_metadata.json").touch()
    assert suggest(root) == f"did you mean {beside}?"
    (root / "inside").mkdir()
    (root / "inside" / "dataset_metadata.json").touch()
    assert suggest(root) == f"did you mean {root / 'inside'}?"  # the nearer one
    (root / "dataset_metadata.json").touch()
    assert suggest(root / "train") == f"did you mean {root}?"
    (root / "other").mkdir()
    for name in ("val.npy", "train.npy"):  # as convert writes them
        (root / "other" / name).write_bytes(b"")
    assert (suggest(root / "other") or "").startswith(f"lowtide inspect {root}/other/train.npy ")
    shutil.rmtree(root / "other")
    assert suggest(root / "other") == f"did you mean {root / 'inside'}?"
    (root / ".work").mkdir()
    assert (
        suggest(root) == "give the interrupted lowtide command again: it goes on where it stopped"
    )
    assert suggest(tmp_path / "none" / "at all").startswith("lowtide prepare")
    for name in ("books", "wiki-2024"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "dataset_metadata.json").touch()
    assert suggest(tmp_path / "data" / "wiki") == f"did you mean {tmp_path / 'data/wiki-2024'}?"
    assert suggest(tmp_path / "data" / "code").startswith("lowtide prepare")  # none is like it
    assert suggest(tmp_path / "data").startswith("did you mean")  # one of those in it


def test_new_metadata_forgets_what_was_moved_in_and_flushes_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(layout.files, "sync_directory", lambda path: flushed.append(path.name))
    (tmp_path / "train").mkdir()
    (tmp_path / shardlist.MOVED_IN_NAME).write_text("{}")
    layout.write_metadata(
        tmp_path, shards={}, vocab_size=300, tokenizer_fingerprint="f", tokenization="char",
        tokens_per_shard=10, input_files=["a"],
    )  # fmt: skip
    assert not (tmp_path / shardlist.MOVED_IN_NAME).exists()
    assert flushed[0] == "train" and "val" not in flushed
    found = json.loads((tmp_path / METADATA_NAME).read_text())
    assert found["shards"] == {"train": [], "val": []} and found["total_tokens"] == 0


def test_totals_are_those_of_all_shards() -> None:
    rows = {
        "train": [{"tokens": 5, "documents": 1}, {"tokens": 7, "documents": 2}],
        "val": [{"tokens": 3, "documents": 4}],
    }
    assert layout.count_totals(rows) == {
        "total_tokens": 15, "total_documents": 7, "total_shards": 3, "train_shards": 2,
        "val_shards": 1, "train_tokens": 12, "val_tokens": 3,
    }  # fmt: skip


def test_settings_that_another_program_wrote_again_are_the_same(tmp_path: Path) -> None:
    """jq and JavaScript write 1.0 as 1, and keys in another order."""
    facts: dict[str, Any] = {"settings": {"seed": 1, "keep_top": 1.0}, "split": {"mode": "tail"}}
    layout.write_metadata(
        tmp_path,
        shards={},
        vocab_size=9,
        tokenizer_fingerprint="a",
        tokenization="char",
        tokens_per_shard=7,
        input_files=[],
        more=facts,
    )
    metadata = layout.read_metadata(tmp_path)
    assert layout.check_settings(metadata) == []
    metadata["settings"] = {"keep_top": 1, "seed": 1}
    assert layout.check_settings(metadata) == []
    for changed in ({**metadata, "split": {}}, {**metadata, "settings": {"seed": 1}}):
        assert len(layout.check_settings(changed)) == 1
    del metadata["settings_checksum"], metadata["split"]
    assert layout.check_settings(metadata) == [], "an earlier version wrote none"
