"""Scanning finds every character, whatever the file and wherever its blocks end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.errors import DataError
from lowtide.progress import Progress
from lowtide.tokenizer.scanning import scan_characters

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
