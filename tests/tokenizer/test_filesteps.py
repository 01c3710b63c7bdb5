"""Steps through a file: which bytes are given to native code, with how many threads, where to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.tokenizer.filesteps import encode_by_windows, encode_natively, iter_file_steps


class Native:
    """Notes its calls, and cuts two bytes before it has to."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def encode_file(self, **given: Any) -> tuple[int, int]:
        self.calls.append(given)
        reached = given["stop"] if given["stop"] == given["end"] else given["stop"] - 2
        return (reached - given["begin"]) // 2, reached

    def column(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(call[name] for name in names) for call in self.calls]


def steps(native: Native, **more: Any) -> list[tuple[int, int]]:
    given = {"size": 100, "out": 7, "out_path": "out", "id_bytes": 4, "num_workers": 3}
    given |= {"step_bytes": 40, "window_bytes": 15, **more}
    return list(iter_file_steps(native, "in", **given))  # type: ignore[arg-type]


def test_every_step_begins_where_the_last_one_cut() -> None:
    native = Native()
    assert steps(native) == [(38, 19), (76, 38), (100, 50)]
    assert native.column("begin", "stop", "end") == [(0, 40, 100), (38, 78, 100), (76, 100, 100)]
    assert native.column("output_offset") == [(0,), (76,), (152,)]
    assert native.column("input_path", "output_path", "output_file") == [("in", "out", 7)] * 3
    assert native.column("id_bytes", "specials", "window_bytes") == [(4, True, 15)] * 3
    assert native.column("largest_window") == [(1 << 31,)] * 3


def test_a_run_goes_on_behind_what_is_written() -> None:
    native = Native()
    assert steps(native, done=(60, 31), out_offset=128) == [(100, 51)]
    assert native.column("begin", "output_offset") == [(60, 128 + 4 * 31)]
    assert steps(native, done=(100, 50)) == []


@pytest.mark.parametrize(
    ("size", "done", "threads"),
    [(15, 0, 1), (16, 0, 2), (30, 0, 2), (31, 0, 3), (46, 0, 3), (40, 25, 1), (40, 24, 2)],
)
def test_no_more_threads_than_windows_of_a_step(size: int, done: int, threads: int) -> None:
    native = Native()
    steps(native, size=size, done=(done, 0), step_bytes=1000)
    assert native.column("num_threads") == [(threads,)]


def test_a_whole_file_says_how_far_it_is_and_how_many_ids_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"x" * 100)
    seen: list[int] = []
    native: Any = Native()
    given: dict[str, Any] = {"id_bytes": 2, "specials": False, "num_workers": 1}
    count = encode_natively(native, tmp_path / "in", tmp_path / "out", on_progress=seen.append,
                            **given)  # fmt: skip
    assert (count, seen) == (50, [100]) and (tmp_path / "out").exists()
    assert native.column("specials", "id_bytes", "begin", "end") == [(False, 2, 0, 100)]
    assert encode_natively(native, tmp_path / "in", tmp_path / "out", **given) == 50
    (tmp_path / "in").write_bytes(b"")
    assert encode_natively(native, tmp_path / "in", tmp_path / "out", **given) == 0


def test_windows_of_a_file_are_encoded_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(range(100)))

    def encode(windows: Iterable[bytes]) -> Iterator[Any]:
        return (np.frombuffer(window, np.uint8).astype(np.uint32) for window in windows)

    seen: list[int] = []
    out = tmp_path / "out"
    kind = np.dtype("<u2")
    count = encode_by_windows(
        encode, tmp_path / "in", out, dtype=kind, on_progress=seen.append, window_bytes=40
    )
    assert count == 100
    assert seen == [40, 80, 100]
    assert np.fromfile(out, kind).tolist() == list(range(100))
    assert encode_by_windows(encode, tmp_path / "in", out, dtype=kind) == 100
