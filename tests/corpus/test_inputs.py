"""The list of inputs: stable order, each file once, nothing silently left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.corpus.inputs import InputFile, InputList, expand_inputs, is_our_output
from lowtide.errors import DataError, LowtideError
from lowtide.tokenizer.training import train_tokenizer


def names(inputs: list) -> list[str]:
    return [source.path.name for source in inputs]


def test_files_folders_and_globs(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    for path in (tmp_path / "b.txt", tmp_path / "a.jsonl.gz", folder / "c.parquet"):
        path.write_text("x")
    (tmp_path / "image.png").write_text("x")
    notices: list[str] = []
    found = expand_inputs([tmp_path], on_notice=notices.append)
    assert names(found) == ["a.jsonl.gz", "b.txt", "c.parquet"]
    assert [(source.kind, source.compression) for source in found] == [
        ("jsonl", "gzip"),
        ("text", None),
        ("parquet", None),
    ]
    assert notices == [f"{tmp_path}: 1 file of other kinds ignored"]
    assert names(expand_inputs([str(tmp_path / "*.txt")])) == ["b.txt"]
    assert expand_inputs([tmp_path / "image.png"])[0].kind == "text"


def test_order_is_as_given(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    found = expand_inputs([tmp_path / "b.txt", tmp_path / "a.txt"])
    assert names(found) == ["b.txt", "a.txt"]
    assert [source.index for source in found] == [0, 1]


def test_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    (tmp_path / "link.txt").symlink_to(path)
    notices: list[str] = []
    found = expand_inputs([path, path, tmp_path], on_notice=notices.append)
    assert names(found) == ["a.txt"]
    assert len(notices) == 3 and "same file" in notices[0]


def test_link_loop_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    assert names(expand_inputs([tmp_path])) == ["a.txt"]
    with pytest.raises(LowtideError, match="in a circle"):
        expand_inputs([tmp_path / "self.txt"])


@pytest.mark.parametrize("given", ["nothing.txt", "*.none"])
def test_missing_inputs_are_named(tmp_path: Path, given: str) -> None:
    with pytest.raises(DataError, match=r"no such file|no file matches"):
        expand_inputs([tmp_path / given])


def test_folder_without_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_text("x")
    with pytest.raises(DataError, match="no text in this folder"):
        expand_inputs([tmp_path])


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for given in (tmp_path / "pipe.txt", str(tmp_path / "pipe*"), "/dev/null", "-"):
        with pytest.raises(DataError, match="pipe or a device"):
            expand_inputs([given])
    (tmp_path / "a.txt").write_text("x")
    assert names(expand_inputs([tmp_path])) == ["a.txt"]


def test_outputs_of_ours_are_never_inputs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words of a text to learn a few merges from, and more words")
    words = {"input": [tmp_path], "out_dir": tmp_path / "tok", "vocab_size": 300}
    first = train_tokenizer(**words)
    assert (tmp_path / "tok" / "metrics.jsonl").exists()
    assert (tmp_path / "tok" / "merges.txt").exists()
    notices: list[str] = []
    for given in ([tmp_path], [tmp_path / "*.txt", tmp_path / "tok" / "*"]):
        found = [source.path.name for source in expand_inputs(given, on_notice=notices.append)]
        assert "merges.txt" not in found and "metrics.jsonl" not in found
    assert any("merges.txt is an output of lowtide" in text for text in notices)
    (tmp_path / "tok" / "tokenizer.json").unlink()  # as if it had been killed just before the last
    again = train_tokenizer(**words)
    assert again.record["input_files"] == first.record["input_files"]
    assert train_tokenizer(**words).was_there


def test_a_text_of_the_user_may_have_such_a_name(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("a story of two firms that merge\n")
    (tmp_path / "metrics.jsonl").write_text('{"text": "a row of text"}\n')
    found = [source.path.name for source in expand_inputs([tmp_path])]
    assert found == ["merges.txt", "metrics.jsonl"]


def test_a_list_of_inputs_gives_back_what_it_was_given(tmp_path: Path) -> None:
    rows = [
        InputFile(0, tmp_path / "a.txt", "text", None, 10, 1, 2),
        InputFile(1, Path("some/texts"), "hub", None, 0, split="train"),
        InputFile(2, tmp_path / "\u4e2d.jsonl.zst", "jsonl", "zstd", 30, 3, 4),
        InputFile(3, tmp_path / "b.parquet", "parquet", None, 5, 5, 6),
        InputFile(4, tmp_path / "c.txt.gz", "text", "gzip", 7, 7, 8),
        InputFile(5, tmp_path / "d.txt.xz", "text", "xz", 9, 9, 10),
    ]
    found = InputList(rows)
    assert list(found) == rows and len(found) == 6 and found.total_bytes == 61
    assert found[-1] == rows[-1] and list(found[1:3]) == rows[1:3]
    later = InputList(rows, first_index=7)
    assert [row.index for row in later] == list(range(7, 13))
    assert InputList().first_index == 0 and InputList().total_bytes == 0


def test_a_log_of_ours_that_cannot_be_opened_is_not_taken_for_one(tmp_path: Path) -> None:
    assert is_our_output(tmp_path / "metrics.jsonl") is False
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert is_our_output(tmp_path / "metrics.jsonl") is True


def test_a_part_of_a_part_of_inputs_is_one_again(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("x" * number)
    found = expand_inputs([tmp_path])[1:5]
    part = found[1:3]
    assert [source.index for source in part] == [2, 3]
    assert (len(part), part.total_bytes) == (2, 5)
