"""Verification: a good dataset passes, and every kind of damage is found and named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.dataset import layout, verification
from lowtide.dataset.inspection import inspect_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.tokenfiles.shards import documents_path
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.filenames import METADATA_NAME
from lowtide.files import checksum_bytes
from lowtide.memory import MemoryBudget

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, write_corpus


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(150))
    prepare_dataset(
        input_files=[corpus], out_dir=tmp_path / "out", tokenization="char", tokens_per_shard=4000
    )
    return tmp_path / "out"


def test_ends_that_are_used_up_are_no_more(tmp_path: Path) -> None:
    """This test is first: a search that does not stop would never end, also in all tests below."""
    path = tmp_path / "shard.bin"
    np.array([3], dtype="<u8").tofile(documents_path(path))
    shard = SimpleNamespace(path=path, documents=1, end_id=9, ends_checksum=None)
    ends = verification._Ends(shard, "shard.bin", 8)  # pyright: ignore
    assert ends._fill()  # pyright: ignore
    ends._held = ends._held[1:]  # pyright: ignore
    assert not ends._fill()  # pyright: ignore


def test_good_dataset(dataset: Path) -> None:
    result = verify_dataset(dataset_dir=dataset)
    assert result.problems == []
    info = layout.load_dataset_info(dataset)
    assert result.num_tokens == sum(map(info.num_tokens, layout.SPLITS))


def change_bytes(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("train/shard_00000*.bin", lambda data: data.__setitem__(10, data[10] ^ 1), "checksum"),
        ("train/shard_00000*.bin", lambda data: data.__delitem__(slice(-2, None)), "3999 tokens"),
        ("train/shard_00000*.bin", lambda data: data.__delitem__(-1), "not a whole number"),
        (
            "train/shard_00000*.bin",
            lambda data: data.__setitem__(slice(0, 2), b"\xff\xff"),
            "id 65535",
        ),
        ("train/shard_00000*.docs", lambda data: data.__delitem__(-1), "multiple of 8"),
        ("train/shard_00000*.docs", lambda data: data.__delitem__(slice(-8, None)), "documents"),
        (
            "train/shard_00000*.docs",
            lambda data: data.__setitem__(slice(0, 8), b"\1" + b"\0" * 7),
            "end",
        ),
        ("tokenizer.json", lambda data: data.clear(), "tokenizer.json"),
    ],
)
def test_damage_is_found(
    dataset: Path, name: str, change: Callable[[bytearray], object], problem: str
) -> None:
    path = next(dataset.glob(name))
    change_bytes(path, change)
    problems = verify_dataset(dataset_dir=dataset).problems
    assert problems and any(problem in text for text in problems)
    assert path.name in " ".join(problems)


def test_missing_shard_and_strangers(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.arange(2, 20, dtype=np.uint16).tofile(dataset / "train" / "extra.bin")
    result = verify_dataset(dataset_dir=dataset)
    assert result.problems == [] and (result.num_strangers, result.num_unnamed) == (1, 1)
    path = next((dataset / "train").glob("shard_00000*.bin"))
    (dataset / "train" / "extra.bin").rename(dataset / "train" / path.name.replace("000", "007", 1))
    result = verify_dataset(dataset_dir=dataset)
    assert result.problems == [] and (result.num_strangers, result.num_unnamed) == (1, 0)
    path.unlink()
    assert main(["verify", str(dataset)]) == 1
    assert f"train/{path.name}: missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"train_tokens": ', '"train_tokens": 1', "train_tokens is 1"),
        ('"val_shards"', '"vel_shards"', "val_shards is None"),
        ('"min_id": ', '"min_id": 1', "smallest id"),
        ('"head_xxh3_64": "', '"head_xxh3_64": "0', "checksum of its head"),
        ('"max_id": ', '"mex_id": ', "damaged row of shards"),
        ('"xxh3_128": ', '"xxi3_128": ', "damaged row of hashes"),
        ('"xxh3_128": "', '"xxh3_128": "0', "00000.hashes: another checksum"),
        ('"seen/00000', '"seen/00001', "seen/00001.hashes: missing"),
    ],
)
def test_damaged_metadata_is_found(dataset: Path, old: str, new: str, message: str) -> None:
    path = dataset / METADATA_NAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    problems = verify_dataset(dataset_dir=dataset).problems
    assert any(message in problem for problem in problems), problems


def test_other_tokenizer_is_noticed(dataset: Path) -> None:
    path = dataset / METADATA_NAME
    metadata = json.loads(path.read_text())
    metadata["tokenizer_fingerprint"] = "0" * 32
    path.write_text(json.dumps(metadata))
    (problem,) = verify_dataset(dataset_dir=dataset).problems
    assert "fingerprint" in problem


def test_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a finished dataset"):
        verify_dataset(dataset_dir=tmp_path)


def test_inspection_shows_text(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(dataset), "--start", "3990", "--tokens", "40", "--show-ids"]) == 0
    shown = capsys.readouterr().out
    assert "vocabulary" in shown and "train tokens 3,990 to 4,030:" in shown
    assert "in the corpus" in inspect_dataset(dataset_dir=dataset, split="val")
    with pytest.raises(UsageError, match="--start 99999999 is outside"):
        inspect_dataset(dataset_dir=dataset, start=99_999_999)


def check_ends(
    tmp_path: Path,
    ends: list[int],
    *,
    ids: list[int],
    end_id: int | None = 9,
    parts: int = 100,
    **limits: int,
) -> list[str]:
    """The errors in the ends of a shard whose ids are read in parts of this size."""
    path = tmp_path / "shard.bin"
    np.array(ends, dtype="<u8").tofile(documents_path(path))
    shard = SimpleNamespace(path=path, documents=len(ends), end_id=end_id, ends_checksum=None)
    found = verification._Ends(shard, "shard.bin", len(ids), **limits)  # pyright: ignore
    for base in range(0, len(ids), parts):
        found.check(np.array(ids[base : base + parts]), base)
    return [problem.partition(": ")[2] for problem in found.finish()]


IDS = [1, 2, 9, 3, 9, 4, 4, 9]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("held", [8, 16, 1 << 20])
def test_ends_of_documents_are_where_the_text_ends(tmp_path: Path, parts: int, held: int) -> None:
    def check(ends: list[int], *, end_id: int | None = 9) -> list[str]:
        return check_ends(tmp_path, ends, ids=IDS, parts=parts, end_id=end_id, read_bytes=held)

    assert check([3, 5, 8]) == []
    assert check([3, 5]) == []
    assert check([]) == []
    assert check([4], end_id=None) == []
    wrong = check([3, 4, 8])
    message = "says a document ends at token 3 of shard.bin, but id 3 is there, not end-of-text (9)"
    assert wrong == [message]
    for ends in ([3, 3], [5, 3], [0], [9]):
        (problem,) = check(ends)
        assert problem == "document ends must rise and stay within the shard's 8 tokens"


def test_files_of_ends_that_cannot_be_right(tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    ends = documents_path(path)

    def problems(documents: int | None) -> list[str]:
        shard = SimpleNamespace(path=path, documents=documents, end_id=9, ends_checksum=None)
        return verification._Ends(shard, "shard.bin", 8).finish()  # pyright: ignore

    assert problems(None) == []
    assert problems(2) == [f"{ends.name}: missing"]
    ends.write_bytes(bytes(9))
    assert problems(1) == [f"{ends.name}: 9 bytes, expected a multiple of 8"]
    ends.write_bytes(bytes(16))
    assert problems(2) == [] and problems(None) == []
    assert problems(3) == [f"{ends.name}: 2 documents, {METADATA_NAME} says 3"]


def test_what_is_in_a_shard_is_counted_over_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    for ids in ([5, 7, 3, 9, 4], [0], [65535, 65535]):
        np.array(ids, dtype=np.uint16).tofile(path)
        shard = SimpleNamespace(
            path=path, dtype=np.dtype("uint16"), described=True, documents=None, end_id=None
        )
        found = verification._read_shard(
            shard,  # pyright: ignore
            verification._Ends(shard, "s", len(ids)),  # pyright: ignore
            buffer_bytes=4,
        )
        assert (found.num_tokens, found.min_id, found.max_id) == (len(ids), min(ids), max(ids))
        assert found.checksum == checksum_bytes(path.read_bytes())


def test_a_flipped_bit_in_document_ends_is_found_where_no_id_tells(dataset: Path) -> None:
    """As in datasets whose documents have no end-of-text between them."""
    metadata = json.loads((dataset / METADATA_NAME).read_text())
    metadata["end_of_text_id"] = None
    (dataset / METADATA_NAME).write_text(json.dumps(metadata))
    assert verify_dataset(dataset_dir=dataset).problems == []
    path = min(dataset.glob("train/*.docs"))
    change_bytes(path, lambda data: data.__setitem__(0, data[0] ^ 1))
    (problem,) = verify_dataset(dataset_dir=dataset).problems
    assert problem.startswith(f"{path.name}: checksum ")


def test_a_budget_holds_the_tokenizer_and_a_worker(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many workers as fit beside the tokenizer, and an error if not even one does."""
    seen: list[int] = []

    def open_pool(workers: int) -> None:
        seen.append(workers)
        raise KeyboardInterrupt

    needs = SimpleNamespace(table_bytes=5 << 20)
    monkeypatch.setattr(verification, "tokenizer_needs", lambda root: needs)
    monkeypatch.setattr(verification, "WorkerPool", open_pool)
    for room, workers in ((10, 1), (19, 1), (20, 2), (100, 4)):
        budget = MemoryBudget((32 + 5 + room) << 20, used_bytes=0)
        monkeypatch.setattr(MemoryBudget, "from_setting", lambda memory, budget=budget: budget)
        with pytest.raises(KeyboardInterrupt):
            verify_dataset(dataset_dir=dataset, num_workers=4)
        assert seen.pop() == workers
    budget = MemoryBudget((32 + 5 + 10 << 20) - 1, used_bytes=0)
    monkeypatch.setattr(MemoryBudget, "from_setting", lambda memory: budget)
    with pytest.raises(BudgetError):
        verify_dataset(dataset_dir=dataset)
