"""The demo's text: one document per source file, or a plain error."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from lowtide.demo import text
from lowtide.demo.stages import DemoSettings
from lowtide.demo.text import find_text, write_library_sources
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


def test_a_text_of_ones_own_or_the_library_gathered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.txt"
    for content, said in ((None, "not found"), ("", "is empty")):
        if content is not None:
            own.write_text(content)
        with pytest.raises(DataError, match=said):
            find_text(DemoSettings(text=own, out_dir=tmp_path / "out"))
    own.write_text("low tide")
    monkeypatch.chdir(tmp_path)
    assert find_text(DemoSettings(text=Path("own.txt"), out_dir=tmp_path / "out")) == own
    gathered: list[Path] = []
    monkeypatch.setattr(text, "write_library_sources", lambda path: gathered.append(path))
    place = tmp_path / "out" / "text" / "python.jsonl"
    assert find_text(DemoSettings(out_dir=tmp_path / "out")) == place == gathered[0]
    place.write_text("")  # its folder was made
    assert find_text(DemoSettings(out_dir=tmp_path / "out")) == place and len(gathered) == 1


def test_files_that_are_no_text_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tmp_path / f"{number}.py").write_text(f"x = {number}  # é\n")
    (tmp_path / "old.py").write_bytes(b"caf\xe9")
    (tmp_path / "blank.py").write_text(" \n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "one.py").write_text("pass")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    write_library_sources(tmp_path / "python.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "python.jsonl").read_text().splitlines()]
    assert rows[:2] == [{"text": f"x = {n}  # é\n", "source": f"{n}.py"} for n in (0, 1)]
    assert len(rows) == 50
    assert "é" in (tmp_path / "python.jsonl").read_text(encoding="utf-8")  # and no escapes


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


def test_advice_about_rows_is_the_demos(tmp_path: Path) -> None:
    """The demo has no --text-field, which the command that failed spoke of."""
    (tmp_path / "rows.jsonl").write_text('{"body": "a few words"}\n')
    with pytest.raises(DataError, match="its fields: 'body'") as caught:
        find_text(DemoSettings(text=tmp_path / "rows.jsonl"))
    assert "rows with a field called text" in str(caught.value.next_step)
    (tmp_path / "rows.jsonl").write_text('{"text": "a few words"}\n')
    assert find_text(DemoSettings(text=tmp_path / "rows.jsonl")) == tmp_path / "rows.jsonl"
