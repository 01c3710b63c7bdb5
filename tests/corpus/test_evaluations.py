"""Evaluation items: read once, counted before they are read, damage named."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import _native, prepare_dataset
from lowtide.corpus import evaluations
from lowtide.corpus.evaluations import (
    checksum_items,
    find_item_files,
    load_items,
    planned_item_bytes,
    smallest_item_budget,
)
from lowtide.corpus.settings import CleaningSettings
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.files import checksum_bytes
from lowtide.memory import smallest_budget

CLEANING = CleaningSettings()
ROWS = b"".join(
    json.dumps({"question": f"what does item {n} of all say about tides and other things"}).encode()
    + b"\n"
    for n in range(50)
)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl.gz"
    whole = gzip.compress(ROWS)
    damaged = bytearray(whole)
    damaged[20:60] = bytes(40)  # within the stream: zlib itself fails
    for data in (bytes(damaged), whole[:-20], b"no gzip at all"):
        path.write_bytes(data)
        with pytest.raises(DataError, match="damaged or cut-off gzip file: ") as failed:
            load_items([str(path)], CLEANING)
        assert str(path) in str(failed.value) and failed.value.next_step == "fetch the file again"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(ROWS, mtime=0), "this file is compressed with gzip, expected text"),
        (lzma.compress(ROWS), "this file is compressed with xz, expected text"),
        (b"PK\3\4" + bytes(100), "this file is a zip archive, expected text"),
        (ROWS.decode().encode("utf-16"), "this looks like a binary file: byte 3 is NUL"),
        (ROWS + b'{"a": "\xe9"}', r"line 51 is not UTF-8 \(byte 7 is 0xe9\)"),
        (b"no rows", "line 1 is not JSON: Expecting value"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_items_that_are_no_text_are_named(
    tmp_path: Path, data: bytes, message: str, suffix: str
) -> None:
    """The answer was the message of a decoder: 'utf-8' codec can't decode byte 0x8b."""
    path = tmp_path / f"items.json{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(DataError, match=message):
        load_items([str(path)], CLEANING)


def test_packed_items_are_counted_as_they_are_unpacked(tmp_path: Path) -> None:
    plain, packed = tmp_path / "items.jsonl", tmp_path / "items.jsonl.gz"
    plain.write_bytes(ROWS)
    packed.write_bytes(ROWS)  # its size alone counts here, before anything is read
    needed = len(ROWS) // 6 * 32
    budget = 3 * needed + 3 * 32
    assert load_items([str(plain)], CLEANING, budget_bytes=budget).first_items == (0, 50)
    plain.write_bytes(b"\xef\xbb\xbf\r\n" + ROWS)
    assert load_items([str(plain)], CLEANING, budget_bytes=2 * budget).first_items == (0, 50)
    with pytest.raises(BudgetError, match="more than a third of the budget") as refused:
        load_items([str(packed)], CLEANING, budget_bytes=4 * budget, least_bytes=200 << 20)
    assert f"{smallest_budget(200 << 20)}, or fewer files" in str(refused.value)
    packed.write_bytes(gzip.compress(ROWS))
    assert load_items([str(packed)], CLEANING, budget_bytes=budget).first_items == (0, 50)


def test_one_table_at_a_time(tmp_path: Path) -> None:
    """A process that prepares many datasets holds the items of the last, read once."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
    for path in paths:
        path.write_bytes(ROWS)
        items = load_items([str(path)], CLEANING)
        assert load_items([str(path)], CLEANING) is items
        assert list(evaluations._loaded.values()) == [items]
    paths[2].write_bytes(ROWS + ROWS)
    assert load_items([str(paths[2])], CLEANING).first_items == (
        0,
        100,
    )  # a file that changed is read again


def test_words_far_into_a_document_are_looked_at() -> None:
    """Beyond a million words, and where one part of a document ends and the next begins."""
    item = "low tide uncovers the mussels that the turnstones eat along the northern shore again"
    table = _native.EvalGrams()
    num_grams = table.add(item.encode(), 0)
    table.finish()
    for before in ((1 << 19) - 6, (3 << 19) + 5):  # words of two bytes: the first ends in a MiB
        text = ("\n".join(["x"] * before) + "\n" + item + "\n").encode()
        row = np.array([0, 0, 0, len(text), 0, 0, 0, 3], np.uint64)
        found = np.frombuffer(table.scan(text, row.view(np.uint8)), np.uint32).reshape(-1, 7)
        assert len(found) == num_grams == 2
        assert found[:, 1].tolist() != found[::-1, 1].tolist()
        assert found[:, 2].tolist() == [before] * 2


def test_an_item_is_named_by_its_file_and_its_row_there() -> None:
    table: Any = None
    items = evaluations.EvaluationItems(("a", "b", "c"), (0, 3, 4, 9), table, 0)
    assert [items.name(item) for item in (0, 2, 3, 4, 8)] == [
        ("a", 0), ("a", 2), ("b", 0), ("c", 0), ("c", 4),
    ]  # fmt: skip


def test_names_and_patterns_mean_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl", "[odd].jsonl"):
        Path(name).write_bytes(ROWS)
    found = find_item_files(["b.jsonl", "*.jsonl", "[odd].jsonl"])
    names = ("b.jsonl", "[odd].jsonl", "a.jsonl")
    assert found == tuple(str(tmp_path / name) for name in names)
    with pytest.raises(UsageError) as caught:
        find_item_files(["a.jsonl", "none*"])
    assert caught.value.message == (
        "--decontaminate 'none*' names no file, and no file matches it as a pattern"
    )
    os.mkfifo("pipe.jsonl")
    with pytest.raises(OSError, match=r"pipe\.jsonl"):
        find_item_files(["pipe*"])


def test_what_items_take_is_known_by_their_sizes(tmp_path: Path) -> None:
    plain, packed = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")
    Path(plain).write_bytes(b"x" * 1003)
    Path(packed).write_bytes(b"x" * 200)
    assert planned_item_bytes([plain]) == 1003 // 6 * 32
    assert planned_item_bytes([plain, packed]) == 2003 // 6 * 32
    assert smallest_item_budget([plain, packed]) == 3 * (2003 // 6 * 32)
    sums = [evaluations.files.checksum_file(Path(path)) for path in (plain, packed)]
    assert checksum_items([plain, packed]) == checksum_bytes(" ".join(sums).encode())


def test_a_budget_of_three_times_the_table_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(ROWS)
    least = smallest_item_budget([str(path)])
    assert load_items([str(path)], CLEANING, budget_bytes=least).first_items == (0, 50)
    with pytest.raises(BudgetError) as caught:
        load_items([str(path)], CLEANING, budget_bytes=least - 1)
    assert caught.value.next_step == f"{smallest_budget(least)}, or fewer files"


def test_items_are_counted_over_all_files(tmp_path: Path) -> None:
    """Texts wherever they stand in a row; those without eight words are short, blank lines none."""
    rows = [
        {"a": ["one two three four five six seven eight"], "b": {"c": "short"}, "d": 7, "e": None},
        {"a": "too short"},
        ["nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen", "  "],
    ]
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    Path(paths[0]).write_text("\n".join(["", *map(json.dumps, rows), "  ", ""]))
    Path(paths[1]).write_text(json.dumps(rows[0]))
    items = load_items(paths, CLEANING)
    assert items.files == tuple(paths) and items.first_items == (0, 3, 4)
    assert items.num_short == 1
    assert len(items.table) == 2 and items.count_bytes == 2 * 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no evaluation item is in this file"),
        ("\n \n", "no evaluation item is in this file"),
        ('{"a": "short"}\n{"a": "short too"}', "none of 2 evaluation items has a text of eight"),
        ('{"a": "b"}\n\n{"a": 7}', "line 3 has no text"),
        ('{"a": "b"}\n{"a": " "}', "line 2 has no text"),
        ('{"a": "b"}\nno json', "line 2 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_items_that_are_none_are_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=why) as caught:
        load_items([str(path)], CLEANING)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("engine", ["threads", "files"])
@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("caf\u00e9", {}),
        ("cafe\u0301", {}),
        ("ca\u200bf\u00e9", {}),
        ("caf\x07\u00e9", {}),
        ("caf\x07\u00e9", {"normalize": False}),
        ("Caf\u00c9", {"lowercase": True}),
        ("an@example.org or ", {"mask": "email"}),
    ],
)
def test_items_are_changed_like_documents(
    tmp_path: Path, word: str, options: dict[str, Any], engine: str
) -> None:
    item = " ".join(f"{word}{number}" for number in range(14))
    (tmp_path / "items.jsonl").write_text(json.dumps({"q": item}) + "\n")
    (tmp_path / "a.txt").write_text(f"Before {item} after<|endoftext|>Nothing of an item is here")
    work = {} if engine == "threads" else {"engine": engine, "work_dir": tmp_path / "work"}
    made = prepare_dataset(
        input_files=tmp_path / "a.txt",
        out_dir=tmp_path / "out",
        decontaminate=[str(tmp_path / "items.jsonl")],
        val_fraction=0,
        progress=False,
        **options,
        **work,
    )
    assert made.info.metadata["total_documents"] == 1


@pytest.mark.parametrize("suffix", ["zst", "xz", "bz2"])
def test_items_in_another_compression_are_refused_before_any_work(
    tmp_path: Path, suffix: str
) -> None:
    """They were said to be no JSON, after inputs had been looked at."""
    path = tmp_path / f"items.jsonl.{suffix}"
    path.write_bytes(b"packed")
    with pytest.raises(UsageError, match=r"read plain or from \.gz, these are") as caught:
        find_item_files([str(tmp_path / "items*")])
    assert caught.value.path == str(path)
