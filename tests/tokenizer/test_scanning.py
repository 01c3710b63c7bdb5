"""Scanning finds every character, whatever the file and wherever its blocks end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.errors import DataError
from lowtide.progress import Progress
from lowtide.tokenizer.scanning import _iter_codes, scan_characters

TEXT = "<|end|>a é<|end|>中\n😀\x01<|en" + "<|sep|>" * 3


def scan(*paths: Path, read_bytes: int = 1 << 20) -> set[str]:
    with Progress("scan", stream=None) as progress, progress.phase("scanning") as phase:
        scanned = scan_characters(
            expand_inputs(paths),
            specials=["<|end|>", "<|sep|>", "|>a"],
            options=ReadingSettings(),
            phase=phase,
            read_bytes=read_bytes,
        )
    return set(scanned.characters)


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 5, 1000])
def test_blocks_end_anywhere(tmp_path: Path, read_bytes: int) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 5))
    expected = set("a é中\n😀\x01<|en")
    assert scan(tmp_path / "text.txt", read_bytes=read_bytes) == expected
    assert scan(tmp_path / "text.txt.gz", read_bytes=read_bytes) == expected


def test_rows_and_invalid_bytes(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "xß"}) + "\n" + '{"text": ""}\n')
    (tmp_path / "text.txt").write_bytes(b"ok\xff")
    assert scan(tmp_path / "rows.jsonl", tmp_path / "text.txt") == set("xßok\ufffd")


def test_what_prepare_refuses_is_no_text_here_either(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"abc\0def")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"abc\0def"))
    for name in ("text.txt", "text.txt.gz"):
        with pytest.raises(DataError, match="binary file"):
            scan(tmp_path / name)


class Noting:
    """A phase that notes how far it is."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def update(self, done: int, *, characters: int) -> None:
        self.told.append((done, characters))


def test_how_far_scanning_is_and_what_it_has_seen(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcab")
    (tmp_path / "b.txt").write_text("aaaad")
    (tmp_path / "c.jsonl").write_text('{"text": "ae"}\n{"text": "f"}\n')
    phase: Any = Noting()
    inputs = expand_inputs([tmp_path])
    found = scan_characters(
        inputs, specials=[], options=ReadingSettings(), phase=phase, read_bytes=3
    )
    assert found.characters == set("abcdef") and found.num_bytes == 13
    assert phase.told == [
        (3, 2), (5, 3), (5, 3), (8, 3), (10, 3), (10, 4), (39, 5), (39, 6),
    ]  # fmt: skip


def test_what_cannot_be_read_is_passed_by_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\0y")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"abc" * 1000)[:-9])
    (tmp_path / "c.txt").write_text("z")
    notices: list[str] = []
    options = ReadingSettings(skip_bad=True, on_notice=notices.append)
    phase: Any = Noting()
    found = scan_characters(expand_inputs([tmp_path]), specials=[], options=options, phase=phase)
    assert found.characters == set("abcz")
    assert len(notices) == 2 and notices[0].endswith("; skipped")
    assert notices[1].startswith(f"{tmp_path / 'b.txt.gz'}: damaged or cut-off gzip file")
    assert notices[1].endswith("; the rest of it skipped")


@given(text=st.text() | st.binary(), step_bytes=st.integers(4, 9))
@settings(max_examples=300)
def test_a_text_is_scanned_in_small_parts(text: str | bytes, step_bytes: int) -> None:
    """Whole texts left 60 MiB behind, of a budget that was refused for being 1 MiB."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    parts = list(_iter_codes(data, step_bytes=step_bytes))
    assert all(len(part) <= step_bytes for part in parts)
    found = [chr(code) for part in parts for code in part]
    expected = data.decode("utf-8", "replace")
    assert set(found) == set(expected)
    if "\ufffd" not in expected:  # several of them may stand for one invalid sequence
        assert "".join(found) == expected
