"""Writing the ids of one text into a .npy: with stand-ins that record their calls."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.dataset import npywriting
from lowtide.dataset.npywriting import (
    WORKER_BYTES,
    PlainFile,
    checksum_npy,
    encode_batches,
    encode_documents,
    held_bytes,
    iter_batches,
)
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget, smallest_budget
from lowtide.tokenizer.stretches import Stretch

MIB = 1 << 20


@pytest.mark.parametrize("normalizes", [False, True])
def test_what_a_text_without_a_place_to_cut_holds(normalizes: bool) -> None:
    times = 2 if normalizes else 1
    assert held_bytes(Stretch(), normalizes) == 0
    assert held_bytes(Stretch(3 * MIB), normalizes) == 0  # included in any case
    assert held_bytes(Stretch(3 * MIB + 1), normalizes) == times * (5 * MIB + 1)
    assert held_bytes(Stretch(100 * MIB), normalizes) == times * 102 * MIB


def plain_file(**changes: Any) -> PlainFile:
    parts: dict[str, Any] = {
        "source": SimpleNamespace(path=Path("a.txt"), size_bytes=500),
        "out": Path("a.npy"),
        "tokenizer": SimpleNamespace(native="native", data=SimpleNamespace(normalizer="none")),
        "dtype": np.dtype("<u2"),
        "workers": 3,
        "budget": MemoryBudget(100 * MIB, used_bytes=40 * MIB),
        "num_workers": None,
        "find_stretch": lambda: Stretch(),
        "on_notice": lambda text: None,
        "group": None,
    }
    return PlainFile(**(parts | changes))


@pytest.mark.parametrize(
    ("normalizer", "used", "largest"),
    [
        ("none", 40 * MIB, 60 * MIB),
        ("nfc", 40 * MIB, 30 * MIB),  # text and its normalized form at once
        ("none", 99 * MIB, 4 * MIB),
        ("nfc", 94 * MIB, 4 * MIB),
    ],
)
def test_what_is_asked_of_the_native_encoder(
    monkeypatch: pytest.MonkeyPatch, normalizer: str, used: int, largest: int
) -> None:
    asked: list[Any] = []

    def steps(*given: Any, **options: Any) -> Any:
        asked.append((given, options))
        yield from ((100, 7), (500, 20))

    monkeypatch.setattr(npywriting, "iter_file_steps", steps)
    job = plain_file(
        tokenizer=SimpleNamespace(native="native", data=SimpleNamespace(normalizer=normalizer)),
        budget=MemoryBudget(100 * MIB, used_bytes=used),
    )
    file: Any = SimpleNamespace(fileno=lambda: 9)
    assert list(job.iter_steps(file, (50, 3))) == [(100, 7), (500, 20)]
    ((given, options),) = asked
    assert given == ("native", Path("a.txt"))
    assert options == {
        "size": 500, "out": 9, "out_path": Path("a.npy"), "id_bytes": 2, "num_workers": 3,
        "out_offset": 128, "done": (50, 3), "step_bytes": 64 * MIB, "window_bytes": MIB,
        "largest_window": largest,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "normalizer", "found", "held"),
    [
        (None, "none", Stretch(), 1 * 52 * MIB),
        (8, "none", Stretch(), 1 * 52 * MIB),
        (8, "nfc", Stretch(), 2 * 52 * MIB),
        (8, "none", Stretch(70 * MIB), 72 * MIB),
    ],
)
def test_a_text_without_a_place_to_cut_is_refused_with_the_budget_that_would_do(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, normalizer: str, found: Stretch, held: int
) -> None:
    def steps(*given: Any, **options: Any) -> Any:
        raise ValueError(f"{50 * MIB} bytes without a place to cut from byte 7 on")
        yield

    monkeypatch.setattr(npywriting, "iter_file_steps", steps)
    monkeypatch.setattr(npywriting, "usable_cores", lambda: 5)
    job = plain_file(
        num_workers=asked, find_stretch=lambda: found,
        tokenizer=SimpleNamespace(native=None, data=SimpleNamespace(normalizer=normalizer)),
    )  # fmt: skip
    file: Any = SimpleNamespace(fileno=lambda: 9)
    with pytest.raises(BudgetError) as caught:
        list(job.iter_steps(file, (0, 0)))
    assert caught.value.message == (
        "there is no place to cut in 50.0 MiB of text (from byte 7 on), which are held at once"
    )
    more = WORKER_BYTES * ((asked or 5) - 3)
    advice = smallest_budget(40 * MIB + held + more)
    assert caught.value.next_step == f"{advice}, or put line ends into it if it may be cut"
    assert caught.value.path == Path("a.txt")


class Letters:
    """A tokenizer whose ids are bytes, returned in several parts."""

    end_of_text_id: int | None = 0

    def iter_encoded(self, parts: Any, *, special: str) -> Any:
        assert special == "text"
        for part in parts:
            yield np.frombuffer(part, np.uint8)

    def encode_batch(self, texts: list[bytes], *, special: str, num_workers: int) -> Any:
        assert (special, num_workers) == ("text", 4)
        return [np.frombuffer(text, np.uint8) for text in texts]


@pytest.mark.parametrize("end", [0, None])
def test_documents_of_any_number_of_parts_end_with_end_of_text(end: int | None) -> None:
    tokenizer: Any = Letters()
    tokenizer.end_of_text_id = end
    parts = [(b"ab", False), (b"c", True), (b"d", True), (b"", True), (b"ef", False)]
    found = [
        (np.concatenate(arrays).tolist(), done)
        for arrays, done in encode_documents(iter(parts), tokenizer)
    ]
    ends = [end] if end is not None else []
    assert found == [
        ([97, 98], 0), ([99], 2), (ends, 3), ([100], 3), (ends, 4), ([], 4), (ends, 4),
        ([101, 102], 4),
    ]  # fmt: skip
    assert list(encode_documents(iter([]), tokenizer)) == []


def test_batches_have_end_of_text_behind_marked_texts() -> None:
    tokenizer: Any = Letters()
    batches = [([b"ab", b"c"], [True, False]), ([b"d"], [True])]
    found = [
        ([part.tolist() for part in arrays], done)
        for arrays, done in encode_batches(iter(batches), tokenizer, 4)
    ]
    assert found == [([[97, 98], [0], [99]], 3), ([[100], [0]], 4)]


def test_batches_are_full_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 2 * MIB
    for sizes, batches in (
        ([room - 256, 0], [1, 1]),
        ([room - 512 - 1, 1], [2]),
        ([room - 512, 0], [2]),
        ([room - 512, 1], [1, 1]),
        ([room + 5, 0, 0], [1, 2]),
        ([0, room + 5, 0], [1, 1, 1]),
        ([], []),
    ):
        parts = [(bytes(size), number % 2 == 0) for number, size in enumerate(sizes)]
        monkeypatch.setattr(npywriting, "iter_parts", lambda *given, parts=parts: iter(parts))
        found: Any = list(iter_batches(None, None))  # pyright: ignore[reportArgumentType]
        assert [len(texts) for texts, _ in found] == batches
        assert [text for texts, _ in found for text in texts] == [text for text, _ in parts]
        assert [mark for _, marks in found for mark in marks] == [mark for _, mark in parts]


def test_a_header_is_written_last_and_what_is_behind_the_ids_is_cut_off() -> None:
    file = io.BytesIO(bytes(128) + np.arange(5, dtype="<u2").tobytes() + b"left over")
    npywriting._write_header(file, 4, np.dtype("<u2"))
    assert file.tell() == 0
    assert np.load(file).tolist() == [0, 1, 2, 3]
    assert len(file.getvalue()) == 128 + 8
    file.seek(0)
    told: list[int] = []
    assert checksum_npy(file, told.append) == xxhash.xxh3_128_hexdigest(file.getvalue())
    assert told == [136]
    large = io.BytesIO(bytes((2 << 20) + 5))
    told.clear()
    assert checksum_npy(large, told.append) == xxhash.xxh3_128_hexdigest(large.getvalue())
    assert told == [MIB, MIB, 5]


def test_a_checksum_follows_a_file_step_by_step(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    path = tmp_path / "a"
    path.write_bytes(data)
    for start in (0, 128):
        digest = npywriting._Digest(start)
        for position in (500, 500, MIB + 700, len(data), len(data) + 99):
            digest.advance_file(path, position)
            assert digest.hexdigest() == xxhash.xxh3_128_hexdigest(data[start:position])


def test_only_a_plain_file_with_one_name_is_gone_on_with(tmp_path: Path) -> None:
    plain, linked, second = (tmp_path / name for name in ("plain", "linked", "second"))
    plain.write_bytes(b"x")
    linked.symlink_to(plain)
    opened = npywriting._open_regular(plain)
    assert opened is not None
    os.pwrite(opened, b"y", 0)  # it can be written
    os.close(opened)
    before = sorted(Path("/proc/self/fd").iterdir())
    assert npywriting._open_regular(linked) is None
    assert npywriting._open_regular(tmp_path / "none") is None
    second.hardlink_to(plain)
    assert npywriting._open_regular(plain) is None
    assert npywriting._open_regular(tmp_path) is None
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_ids_are_written_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    source: Any = SimpleNamespace(path=tmp_path / "a.txt", size_bytes=10)
    group: Any = SimpleNamespace(add=lambda partial, path: partial.rename(path))
    told: list[int] = []
    finished: list[Any] = []

    def finish(count: int, checksum: str, file: Any) -> None:
        finished.append((count, checksum, np.load(file).tolist()))

    encoded = iter([([np.array([1, 2]), np.array([3])], 4), ([np.array([], int)], 99)])
    count = npywriting.write_encoded(
        encoded, source, tmp_path / "a.npy", np.dtype("<u2"), told.append, finish, group
    )
    assert count == 3
    assert told == [4, 10]  # at most all of it
    assert finished == [(3, xxhash.xxh3_128_hexdigest(b"0123456789"), [1, 2, 3])]
    assert np.load(tmp_path / "a.npy").dtype == np.dtype("<u2")
