"""Inputs that are recognized: by place or content, read once, with few bytes for each."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus.inputs import InputFile, InputList
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset import identity, layout
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME
from lowtide.longjson import Rows

READING = ReadingSettings()
MANY = 8000


def make_inputs(count: int, folder: str = "texts") -> Iterator[InputFile]:
    for number in range(count):
        path = Path(folder, f"{number % 100:02d}", f"a_file_of_some_name_{number:06d}.txt")
        yield InputFile(number, path, "text", None, 40 + number % 3, 10**18 + number, 10**18)


def rows_of(inputs: list[InputFile]) -> list[dict[str, Any]]:
    return [
        {
            "file": str(source.path),
            "stored": [source.size_bytes, source.modified_ns, "", ""],
            "content": f"hash of {source.path.name}",
        }
        for source in inputs
    ]


def test_each_new_file_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def hash_input(source: InputFile, reading: ReadingSettings) -> str:
        looked.append(source.path.name)
        return f"hash of {source.path.name}"

    monkeypatch.setattr(identity, "hash_input", hash_input)
    known = list(make_inputs(300))
    notices: list[str] = []
    moved = [*make_inputs(310, folder="moved"), *known[:2]]
    new = identity.drop_known(
        moved, rows_of(known), READING, first_index=300, on_notice=notices.append
    )
    assert [source.path.name[-10:] for source in new] == [f"{n:06d}.txt" for n in range(300, 310)]
    assert [source.index for source in new] == list(range(300, 310))
    assert len(looked) == 310
    assert notices[0].startswith("moved/00/a_file_of_some_name_000000.txt is in the dataset")
    assert notices[0].endswith("as texts/00/a_file_of_some_name_000000.txt: left out")
    assert notices[-1] == "282 more files are in the dataset already: left out"
    assert len(notices) == 21


def test_inputs_come_back_as_they_were() -> None:
    inputs = [*make_inputs(5), InputFile(5, Path("name"), "hub", None, 0, split="train[:5]")]
    inputs.append(InputFile(6, Path("b\udcff.jsonl.xz"), "jsonl", "xz", 1 << 40, 5, 6))
    files = InputList(inputs)
    assert list(files) == inputs
    assert files[-1] == inputs[-1]
    assert list(files[2:4]) == inputs[2:4]
    assert files.total_bytes == sum(source.size_bytes for source in inputs)
    with pytest.raises(IndexError):
        files[7]
    assert [row.index for row in InputList(inputs, first_index=9)] == list(range(9, 16))


def test_many_files_take_few_bytes_each(tmp_path: Path) -> None:
    files = InputList(make_inputs(MANY))
    assert sum(map(sys.getsizeof, vars(files).values())) < 130 * MANY
    # Other tests' threads may use memory meanwhile, but not three times.
    assert any(_metadata_peak(files, tmp_path) < 6 << 20 for _ in range(3))
    metadata = layout.read_metadata(tmp_path)
    assert (tmp_path / METADATA_NAME).stat().st_size > 2 << 20
    assert [len(metadata[key]) for key in ("input_files", "sources")] == [MANY, MANY]
    assert metadata["input_files"][MANY - 1] == str(files[MANY - 1].path)


def _metadata_peak(files: InputList, folder: Path) -> int:
    """The peak memory of writing and reading metadata of many files."""
    rows = [METADATA_NAME, *rows_of(list(make_inputs(1)))]
    gc.disable()  # when garbage is collected must make no difference: rows leave none
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        layout.write_metadata(
            folder,
            shards={},
            vocab_size=300,
            tokenizer_fingerprint="x",
            tokenization="char",
            tokens_per_shard=10,
            input_files=Rows(MANY, lambda: (str(source.path) for source in files)),
            more={"sources": Rows(MANY, lambda: (rows[1] for _ in range(MANY)))},
        )
        layout.read_metadata(folder)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"stored": None}, False),  # as earlier versions wrote it
        ({"stored": [5, 1, "", ""]}, False),
        ({"stored": [4, 1, "body", ""]}, False),
        ({"stored": [4, 1, "", "train"]}, False),
        ({"stored": [4, 9, "", ""]}, True),  # another time: its content decides
        ({"file": "elsewhere.txt"}, True),
        ({"stored": [4, 9, "", ""], "content": "other"}, False),
        ({"stored": [4, 9, "", ""], "content": None}, False),
        ({"file": "elsewhere.txt", "content": None}, False),
    ],
)
def test_an_input_is_known_by_place_and_time_or_by_content(
    tmp_path: Path, change: dict[str, Any], same: bool
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("tide")
    source = InputFile(0, path, "text", None, 4, 1, 1)
    content = identity.hash_input(source, READING)
    row = {"file": str(path), "stored": [4, 1, "", ""], "content": content, **change}
    assert identity._is_same(source, row, READING) is same


def test_what_is_no_file_is_never_read_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: InputFile, reading: ReadingSettings) -> str:
        raise AssertionError("it was read")

    monkeypatch.setattr(identity, "hash_input", refuse)
    hub = InputFile(0, Path("name"), "hub", None, 0, split="train")
    row = {"file": "name", "stored": identity._stored(hub, READING), "content": "hash"}
    assert identity._is_same(hub, row, READING) is True
    assert identity._is_same(hub, {**row, "file": "other"}, READING) is False
    known = identity._KnownInputs([row])
    assert known.find(hub, READING) == 0
    assert known.find(InputFile(0, Path("other"), "hub", None, 0, split="train"), READING) is None
    contents: Any = {0: "first"}
    inputs = [hub, InputFile(1, Path("b"), "hub", None, 0, split="val")]
    assert list(identity.list_contents(inputs, contents)) == ["first", "b:val"]
    empty = InputFile(1, Path("in/none.parquet"), "parquet", None, 400)
    assert list(identity.list_contents([hub, empty], contents)) == ["first", ""]  # wherever it is
    rows = [("name", {"stored": row["stored"], "content": "first"})]
    assert list(identity.iter_sources([hub], READING, contents)) == rows


@pytest.mark.parametrize(
    ("kind", "field"), [("text", ""), ("jsonl", READING.text_field), ("hub", READING.text_field)]
)
def test_of_rows_the_field_counts_too(kind: str, field: str) -> None:
    source = InputFile(0, Path("a"), kind, None, 7, 9, split="x")
    assert identity._stored(source, READING) == [7, 9, field, "x"]


def test_copies_of_long_files_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    block = READING.block_bytes
    contents = {"a": "1", "b": "1", "c": "2", "d": "1", "small": "1", "tiny": "1", "alone": "9"}
    looked: list[str] = []

    def hash_input(source: InputFile, reading: ReadingSettings) -> str:
        looked.append(str(source.path))
        return contents[str(source.path)]

    monkeypatch.setattr(identity, "hash_input", hash_input)
    sizes = {
        "a": block + 1, "b": block + 1, "c": block + 1, "d": block + 1, "small": block,
        "tiny": block, "alone": block + 2, "hub": block + 1,
    }  # fmt: skip
    inputs = [
        InputFile(number, Path(name), "hub" if name == "hub" else "text", None, size)
        for number, (name, size) in enumerate(sizes.items())
    ]
    notices: list[str] = []
    new = identity.drop_copies(inputs, READING, on_notice=notices.append)
    assert [str(one.path) for one in new] == ["a", "c", "small", "tiny", "alone", "hub"]
    assert [one.index for one in new] == list(range(6))
    assert notices == ["b is a copy of a: left out", "d is a copy of a: left out"]
    assert looked == ["a", "b", "c", "d"]  # files of equal size, longer than a block


@pytest.mark.parametrize(
    ("touched", "content", "size", "there", "refused"),
    [
        (False, "other", 4, True, False),  # not even touched
        (True, "same", 4, True, False),
        (True, "other", 4, True, True),
        (True, "same", 5, True, True),
        (True, "same", 4, False, True),
    ],
)
def test_an_input_that_was_overwritten_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: bool, content: str, size: int,
    there: bool, refused: bool,
) -> None:  # fmt: skip
    path = tmp_path / "a.txt"
    if there:
        path.write_bytes(bytes(size))
    source = InputFile(0, path, "text", None, 4, 1, 1)
    monkeypatch.setattr(identity, "has_changed", lambda source: touched)
    monkeypatch.setattr(identity, "hash_input", lambda source, reading: content)
    contents: Any = {0: "same"}
    if not refused:
        identity.require_unchanged([source], contents, READING)
        return
    with pytest.raises(DataError):
        identity.require_unchanged([source], contents, READING)
