"""The list of inputs: stable order, each file once, nothing silently left out."""

from __future__ import annotations

import dataclasses
import gzip
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus import inputs
from lowtide.corpus.inputs import (
    InputFile,
    InputList,
    as_input_list,
    changed_input,
    expand_inputs,
    has_changed,
    hash_inputs,
    names_files,
)
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.stores.objects import ObjectInfo
from lowtide.stores.urls import store_url
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


ROWS = '{"text": "one", "id": 1}\n{"text": "two"}\n'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ROWS, "jsonl"),
        ("\ufeff\n" + ROWS.replace("\n", "\r\n\r\n"), "jsonl"),
        (ROWS.split("\n")[0] + "\n", "text"),  # one object: settings, say
        ('{\n  "text": "one"\n}\n{\n}', "text"),
        (f"[{ROWS.strip()}]", "text"),
        ("[1]\n{}", "text"),
        ("{}\nwords", "text"),
        ("words", "text"),
        ("", "text"),
        ("[" * 100_000 + "\n{", "text"),
        ("1" * 5000 + "\n{", "text"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".JSON.gz"])
def test_json_is_rows_if_its_first_lines_are(
    tmp_path: Path, text: str, kind: str, suffix: str
) -> None:
    """As C4 and other datasets have them; their JSON would be learned as text."""
    path = tmp_path / f"a{suffix}"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert expand_inputs([path])[0].kind == kind
    assert expand_inputs([str(tmp_path / "a*")])[0].kind == kind
    (tmp_path / "b.txt").write_text("x")
    assert names(expand_inputs([tmp_path])) == ["b.txt"]  # a folder has settings beside its texts


@pytest.mark.parametrize(
    ("first", "rest", "kind"),
    [
        ('"}', "\n{}", "jsonl"),
        ('"}  \r', "\n" * 3_000_000 + "{}", "jsonl"),
        ('"}', "\n", "text"),  # one object
        ('"}', "", "text"),
        ('"}', "\nwords", "text"),
        ('"', "\n}\n{}", "text"),
    ],
)
@pytest.mark.parametrize("size", [100, (1 << 20) - 12, (1 << 20) - 11, (1 << 20) - 10, 3 << 20])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_first_row_of_json_may_be_longer_than_what_is_read_at_once(
    tmp_path: Path, first: str, rest: str, kind: str, size: int, suffix: str
) -> None:
    """Its rows were learned as text; they begin with 10 bytes of JSON."""
    path = tmp_path / f"a{suffix}"
    data = f'{{"text": "{"x" * size}{first}{rest}'.encode()
    path.write_bytes(gzip.compress(data, 1) if suffix.endswith(".gz") else data)
    assert expand_inputs([path])[0].kind == kind


def test_a_long_first_line_of_json_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"text": "' + b" " * (40 << 20) + b'"}\n{}')
    tracemalloc.start()
    assert expand_inputs([path])[0].kind == "jsonl"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_json_that_is_read_as_plain_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "one"}')
    (tmp_path / "b.json").write_text(ROWS)
    notices: list[str] = []
    expand_inputs([tmp_path / "b.json"], on_notice=notices.append)
    assert not notices
    expand_inputs([str(tmp_path / "*.json")], on_notice=notices.append)
    assert len(notices) == 1
    assert notices[0].startswith(f"{tmp_path / 'a.json'}: read as plain text")
    (tmp_path / "c.json").write_text("[1]")
    expand_inputs([str(tmp_path / "*.json")], on_notice=notices.append)
    assert notices[1].startswith(f"{tmp_path / 'a.json'} and 1 other file: read as plain text")


def test_json_that_cannot_be_read_is_reported_by_reading_it(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"no archive")
    assert expand_inputs([tmp_path / "a.json.gz"])[0].kind == "text"


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


def test_an_empty_word_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unset variable of the shell had everything there prepared."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text")
    with pytest.raises(UsageError, match="an empty word") as caught:
        expand_inputs(["a.txt", ""])
    assert caught.value.next_step == "is a variable of the shell empty? the current folder is ."
    assert len(expand_inputs(["."])) == 1


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


def test_a_part_of_a_part_of_inputs_is_one_again(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("x" * number)
    found = expand_inputs([tmp_path])[1:5]
    part = found[1:3]
    assert [source.index for source in part] == [2, 3]
    assert (len(part), part.total_bytes) == (2, 5)


def objects(monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    """A bucket of these objects, under any prefix."""
    urls = [store_url(f"s3://bucket/{key}") for key in keys]
    rows = [ObjectInfo(url, 10 + at, f"tag{at}") for at, url in enumerate(urls) if url is not None]
    monkeypatch.setattr(inputs, "find_objects", lambda _: iter(rows))


def test_objects_under_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("in/a.txt", "in/.b.txt", "in/c.png", "in/d.jsonl.gz", "in/e.bin")
    objects(monkeypatch, *keys)
    notices: list[str] = []
    found = expand_inputs(["s3://bucket/in/", "s3://bucket/in/"], on_notice=notices.append)
    rows = [(str(row.path), row.kind, row.compression, row.size_bytes) for row in found]
    assert rows == [
        ("s3://bucket/in/a.txt", "text", None, 10),
        ("s3://bucket/in/d.jsonl.gz", "jsonl", "gzip", 13),
    ]
    assert all(row.modified_ns == row.changed_ns != 0 for row in found)
    assert notices == [
        "s3://bucket/in: 3 objects of other kinds ignored",
        "s3://bucket/in/a.txt is named twice: read once",
        "s3://bucket/in/d.jsonl.gz is named twice: read once",
        "s3://bucket/in: 3 objects of other kinds ignored",
    ]


@pytest.mark.parametrize("key", ["in/c.png", "in/.b.txt"])
def test_an_object_that_is_named_is_read_whatever_its_name(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    objects(monkeypatch, key)
    notices: list[str] = []
    (found,) = expand_inputs([f"s3://bucket/{key}"], on_notice=notices.append)
    assert (found.kind, notices) == ("text", [])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("in/", "no text under this prefix (txt, md, jsonl, parquet, plain or compressed)"),
        ("in/*", "no object matches this pattern"),
        ("in/a?", "no object matches this pattern"),
        ("in/[a]", "no object matches this pattern"),
    ],
)
def test_a_prefix_without_text_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    objects(monkeypatch, "in/c.png")
    with pytest.raises(DataError) as caught:
        expand_inputs([f"s3://bucket/{name}"])
    assert caught.value.message == why
    assert caught.value.path == f"s3://bucket/{name.rstrip('/')}"


def test_a_change_of_a_file_is_noticed_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("twelve bytes")
    (source,) = expand_inputs([path])
    assert has_changed(source) is False
    hub = InputFile(0, Path("some/texts"), "hub", None, 0)
    assert has_changed(hub) is False
    path.write_text("other bytes!")
    assert has_changed(source) is True
    assert changed_input(source).message == (
        "this file was changed while it was read: its bytes are other ones"
    )
    path.write_text("fewer")
    error = changed_input(source, next_step="try again")
    assert error.message == "this file was changed while it was read: it had 12 bytes, now 5"
    assert (error.path, error.next_step) == (path, "try again")
    path.unlink()
    assert has_changed(source) is True
    assert changed_input(source).message == "this file was changed while it was read: it is gone"
    assert "when nothing writes to it any more" in str(changed_input(source).next_step)


def test_any_time_or_size_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (source,) = expand_inputs([tmp_path])
    assert not has_changed(source)
    for name in ("size_bytes", "modified_ns", "changed_ns"):
        assert has_changed(dataclasses.replace(source, **{name: getattr(source, name) + 1}))


def test_a_hash_of_inputs_is_of_paths_sizes_and_times() -> None:
    row = InputFile(0, Path("a.txt"), "text", None, 10, 1, 2)
    known = hash_inputs([row])
    same = [dataclasses.replace(row, index=5), dataclasses.replace(row, changed_ns=7)]
    assert [hash_inputs([one]) for one in same] == [known] * 2
    others: list[dict[str, Any]] = [
        {"path": Path("b.txt")}, {"split": "train"}, {"size_bytes": 11}, {"modified_ns": 2},
    ]  # fmt: skip
    found = {hash_inputs([dataclasses.replace(row, **other)]) for other in others}
    assert len({known, hash_inputs([]), hash_inputs([row, row]), *found}) == 7


def test_a_list_keeps_the_numbers_of_its_first(tmp_path: Path) -> None:
    rows = [InputFile(7 + at, tmp_path / f"{at}.txt", "text", None, at) for at in range(3)]
    found = as_input_list(rows)
    assert [row.index for row in found] == [7, 8, 9]
    assert as_input_list(found) is found
    assert len(as_input_list([])) == 0


def test_which_files_only_one_worker_can_read(tmp_path: Path) -> None:
    rows = [
        ("text", None),
        ("text", "xz"),
        ("jsonl", None),
        ("jsonl", "zstd"),
        ("parquet", None),
        ("hub", None),
    ]
    found = [InputFile(0, tmp_path, kind, packing, 1).is_read_in_order for kind, packing in rows]
    assert found == [False, True, False, True, True, False]


def test_names_of_files(tmp_path: Path) -> None:
    names = [
        str(tmp_path),
        str(tmp_path / "none"),
        "s3://bucket/a",
        "a*",
        "a?",
        "[a]",
        "owner/name",
    ]
    assert [names_files(name) for name in names] == [True, False, True, True, True, True, False]


def test_a_folder_says_what_it_leaves_out(tmp_path: Path) -> None:
    """Hidden files and folders, other kinds, links to nothing; the next file is read."""
    for name in ("a.txt", ".hidden.txt", "b.png", "z.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "none")
    (tmp_path / "metrics.jsonl").write_text('{"time": 1}\n')
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.txt").write_text("x")
    notices: list[str] = []
    assert names(expand_inputs([tmp_path], on_notice=notices.append)) == ["a.txt", "z.txt"]
    assert notices == [
        f"{tmp_path / 'metrics.jsonl'} is an output of lowtide: left out",
        f"{tmp_path}: 3 files of other kinds ignored",
    ]


def test_a_folder_of_a_saved_dataset_says_how_to_name_it(tmp_path: Path) -> None:
    for name, step in (
        ("a.png", "name the files themselves, they are then read as text"),
        ("state.json", f"name it as hf://{tmp_path}: a Hugging Face dataset is in it"),
    ):
        (tmp_path / name).write_text("x")
        with pytest.raises(DataError, match="no text in this folder") as caught:
            expand_inputs([tmp_path])
        assert caught.value.next_step == step


def test_a_pattern_without_files_is_checked_for_typing_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches this pattern") as caught:
        expand_inputs([tmp_path / "nots*.txt"])
    assert caught.value.next_step == "check the pattern for typing errors"
