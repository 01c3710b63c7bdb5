"""The demo's text: one document per source file, or a plain error."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from lowtide.demo.text import write_library_sources
from lowtide.errors import DataError


def test_the_library_is_one_document_per_file(tmp_path: Path) -> None:
    path = tmp_path / "python.jsonl"
    write_library_sources(path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sources = [row["source"] for row in rows]
    assert len(rows) >= 50
    assert len(set(sources)) == len(sources)
    assert "json/decoder.py" in sources
    assert not any("site-packages" in source or "/test/" in source for source in sources)
    decoder = next(row for row in rows if row["source"] == "json/decoder.py")
    assert decoder["text"] == Path(json.decoder.__file__).read_text(encoding="utf-8")
    again = tmp_path / "again.jsonl"
    write_library_sources(again)
    assert again.read_bytes() == path.read_bytes()


def test_a_python_without_sources_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("pass\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError) as caught:
        write_library_sources(tmp_path / "python.jsonl")
    assert "only 1 source files" in caught.value.message
    assert "--text FILE" in str(caught.value.next_step)
    assert not (tmp_path / "python.jsonl").exists()
