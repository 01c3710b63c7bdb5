"""Files of other programs: their split, and the content of their headers."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.tokenfiles import mypt, npy, raw, streams, table
from lowtide.dataset.tokenfiles.llmc import open_llmc, write_llmc
from lowtide.dataset.tokenfiles.megatron import MEGATRON_MAGIC, _measure_index, open_megatron
from lowtide.dataset.tokenfiles.streams import Opening, TokenStream, iter_lengths
from lowtide.dataset.tokenfiles.table import open_source
from lowtide.errors import DataError

UINT16 = np.dtype("<u2")


def test_names_tell_what_a_file_is_for(tmp_path: Path) -> None:
    for name in ("medieval_train", "validation", "test"):
        np.arange(100, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    notices: list[str] = []
    found = open_source(
        tmp_path, kind="nanogpt", dtype=UINT16, end_id=None, on_notice=notices.append
    )
    assert {split: len(source.parts) for split, source in found.items()} == {"train": 1, "val": 1}
    assert len(notices) == 1 and "test.bin is left out" in notices[0]
    alone = open_source(tmp_path / "validation.bin", kind="nanogpt", dtype=UINT16, end_id=None)
    assert list(alone) == ["all"]


def test_a_stream_crosses_files_and_finds_the_ends_of_documents(tmp_path: Path) -> None:
    for name, ids in (("train_0", [5, 0, 7]), ("train_1", [8, 9, 0, 3])):
        np.array(ids, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    source = open_source(tmp_path, kind="nanogpt", dtype=UINT16, end_id=0)["all"]
    assert source.num_tokens == 7
    chunks = list(source.iter_chunks(1, 6))
    assert [ids.tolist() for ids, _ in chunks] == [[0, 7], [8, 9, 0]]
    assert [ends.tolist() for _, ends in chunks] == [[1], [3]]


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("nanogpt", "x.bin", b"123", "3 bytes, not a whole number of uint16 ids"),
        ("llmc", "x.bin", b"\0" * 1024, "the header begins with 0 0"),
        ("llmc", "x.bin", b"short", "the header begins with 0 0"),
        ("npy", "x.npy", b"no header", "not a .npy file"),
        ("npy", "x.npy", b"\x93NUMPY", "damaged NumPy header"),
        ("megatron", "x.idx", b"MMIDIDX", "MMIDIDX is missing"),
    ],
)
def test_files_that_are_something_else_are_named(
    tmp_path: Path, kind: str, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_source(tmp_path / name, kind=kind, dtype=UINT16, end_id=None)
    assert Path(str(caught.value.path)).name == name


def test_a_folder_without_such_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no files of the kind npy here"):
        open_source(tmp_path, kind="npy", dtype=UINT16, end_id=None)


@pytest.mark.parametrize(("version", "code"), [(0, 8), (2, 8), (1, 0), (1, 99), (2, 99)])
def test_other_versions_of_megatrons_index_are_refused(
    tmp_path: Path, version: int, code: int
) -> None:
    lengths, places = struct.pack("<i", 2), struct.pack("<q", 0)
    head = MEGATRON_MAGIC + struct.pack("<QBQQ", version, code, 1, 2)
    (tmp_path / "x.idx").write_bytes(head + lengths + places + struct.pack("<qq", 0, 1))
    (tmp_path / "x.bin").write_bytes(b"\1\0\2\0")
    with pytest.raises(DataError, match=f"version {version} and type {code} are not supported"):
        open_source(tmp_path / "x.idx", kind="megatron", dtype=UINT16, end_id=None)


def test_a_pipe_in_place_of_metadata_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dataset_metadata.json")
    assert not table._has_metadata(tmp_path, ours=True)
    assert not table._has_metadata(tmp_path, ours=False)


def test_ids_of_four_bytes_are_not_read_as_two(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.arange(200, dtype="<u4").tofile(path)
    with pytest.raises(DataError, match="looks like uint32"):
        open_source(path, kind="nanogpt", dtype=None, end_id=None)
    np.arange(1, 33, dtype="<u4").tofile(path)  # the minimum to decide
    with pytest.raises(DataError, match="looks like uint32"):
        open_source(path, kind="nanogpt", dtype=None, end_id=None)
    few = np.arange(62) % 2 == 0
    for ids in (np.arange(1, 200), np.zeros(200), np.arange(63) * 65537, few):
        ids.astype("<u2").tofile(path)
        (found,) = open_source(path, kind="nanogpt", dtype=None, end_id=None).values()
        assert found.num_tokens == len(ids)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_headers_of_all_versions_of_npy_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(5, dtype="<u2"), version=version)
    nothing: Any = None
    found = npy.open_npy(path, nothing)
    assert (found.num_tokens, found.dtype) == (5, np.dtype("<u2"))
    with path.open("rb") as file:
        file.seek(found.byte_offset)
        assert np.frombuffer(file.read(), "<u2").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"text", "a.txt is text, not tokens"),
        ("a.jsonl", b"text", "a.jsonl is text, not tokens"),
        ("a.json", b"{}", "a.json is text, not tokens"),
        ("a.ids", b"", "a.ids has no NumPy header, so its dtype is unknown"),
        ("a.bin", np.arange(32, dtype="<u4").tobytes(), "a.bin looks like uint32"),
        ("a.bin", (np.arange(64, dtype="<u4") * 3000).tobytes(), "a.bin looks like uint32"),
    ],
)
def test_a_file_whose_type_is_not_known_is_told(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as caught:
        raw._guess_dtype(tmp_path / name)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "data",
    [
        np.arange(31, dtype="<u4").tobytes(),  # too few to tell
        np.zeros(64, "<u4").tobytes(),  # all are 0
        np.arange(64, dtype="<u2").tobytes(),
        np.arange(32, dtype="<u4").tobytes()[:-1],
        np.append(np.arange(40, dtype="<u4"), 1 << 16).astype("<u4").tobytes(),
        np.append(np.arange(400, dtype="<u4"), 4 << 16).astype("<u4").tobytes(),
        (np.arange(400, dtype="<u2") % 5).tobytes(),  # few characters
        (np.arange(400, dtype="<u2") * 7 % 4).tobytes(),
        b"",
    ],
)
def test_ids_without_a_header_are_of_two_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    assert raw._guess_dtype(tmp_path / "a.bin") == np.dtype("<u2")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", ["<u2", "<i4", "<i8"])
def test_headers_of_every_version_of_numpy(tmp_path: Path, version: int, kind: str) -> None:
    path = tmp_path / "a.npy"
    ids = np.arange(5).astype(kind)
    with path.open("wb") as file:
        np.lib.format.write_array(file, ids, version=(version, 0))
    found = npy.open_npy(path, Opening())
    assert (found.num_tokens, found.dtype) == (5, np.dtype(kind))
    assert np.fromfile(path, kind, offset=found.byte_offset).tolist() == ids.tolist()
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError) as caught:
        npy.open_npy(path, Opening())
    assert caught.value.message == "a.npy is cut short: its header promises 5 tokens, 4 are there"


@pytest.mark.parametrize("size", range(12))
def test_a_file_that_ends_in_its_header_is_told(tmp_path: Path, size: int) -> None:
    np.save(tmp_path / "whole.npy", np.arange(3))
    path = tmp_path / "a.npy"
    path.write_bytes((tmp_path / "whole.npy").read_bytes()[:size])
    with pytest.raises(DataError, match="not a .npy file" if size < 6 else "damaged NumPy header"):
        npy.open_npy(path, Opening())


def test_an_index_of_megatron_is_measured_in_pieces(tmp_path: Path) -> None:
    lengths = np.array([2, 0, 3, 1, 0, 4], "<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype("<i8") * 2
    index = tmp_path / "a.idx"
    head = MEGATRON_MAGIC + struct.pack("<QBQQ", 1, 8, 6, 7)
    bounds = np.arange(7, dtype="<i8").tobytes()
    index.write_bytes(head + lengths.tobytes() + pointers.tobytes() + bounds)
    np.arange(10, dtype="<u2").tofile(tmp_path / "a.bin")
    notices: list[str] = []
    part = open_megatron(index, Opening(on_notice=notices.append))
    assert notices == [f"{index}: 2 documents without a single id left out"]
    assert (part.num_tokens, part.num_documents, part.dtype) == (10, 6, np.dtype("<u2"))
    for rows in (1, 2, 4, 5, 6, 7):
        assert _measure_index(replace(part, index_rows=rows)) == (10, 2)
    np.arange(9, dtype="<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(DataError, match="the index says 10 ids, the file has 18 bytes"):
        open_megatron(index, Opening())
    lengths[3] = -1
    index.write_bytes(head + lengths.tobytes() + pointers.tobytes())
    with pytest.raises(DataError, match="a document of -1 ids"):
        open_megatron(index, Opening())
    for damaged, message in (
        (head[:-1], "MMIDIDX is missing"),
        (b"x" + head[1:], "MMIDIDX is missing"),
        (MEGATRON_MAGIC + struct.pack("<QBQQ", 2, 8, 6, 7), "version 2 and type 8"),
        (MEGATRON_MAGIC + struct.pack("<QBQQ", 1, 7, 6, 7), "version 1 and type 7"),
    ):
        index.write_bytes(damaged)
        with pytest.raises(DataError, match=message):
            open_megatron(index, Opening())
    index.write_bytes(head)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(DataError, match=r"the \.bin of this index is missing"):
        open_megatron(index, Opening())


def write_index(path: Path, lengths: list[int], bounds: list[int], *, pointers: Any = None) -> None:
    sizes = np.array(lengths, "<i4")
    if pointers is None:
        pointers = (np.cumsum(sizes) - sizes) * 2
    head = MEGATRON_MAGIC + struct.pack("<QBQQ", 1, 8, len(sizes), len(bounds))
    arrays = (np.array(pointers, "<i8"), np.array(bounds, "<i8"))
    path.write_bytes(head + sizes.tobytes() + b"".join(array.tobytes() for array in arrays))
    np.arange(sizes.sum(), dtype="<u2").tofile(path.with_suffix(".bin"))


@pytest.mark.parametrize(
    ("lengths", "bounds", "ends", "empty"),
    [
        ([2, 3, 1, 4], [0, 1, 2, 3, 4], [2, 5, 6, 10], 0),
        ([2, 3, 1, 4], [0, 2, 4], [5, 10], 0),
        ([2, 3, 1, 4], [0, 1, 4], [2, 10], 0),
        ([2, 3, 1, 4], [0, 4], [10], 0),
        ([2, 0, 0, 4], [0, 1, 1, 3, 4], [2, 6], 2),
        ([0, 2, 0, 4, 0], [0, 1, 2, 4, 5], [2, 6], 2),
    ],
)
def test_documents_of_megatron_may_have_several_sequences(
    tmp_path: Path, lengths: list[int], bounds: list[int], ends: list[int], empty: int
) -> None:
    index = tmp_path / "a.idx"
    write_index(index, lengths, bounds)
    notices: list[str] = []
    part = open_megatron(index, Opening(on_notice=notices.append))
    assert len(notices) == (empty > 0)
    assert not notices or f"{empty} documents without" in notices[0]
    for rows in (1, 2, 3, 100):
        for step in (1, 3, 100):
            stream = TokenStream([replace(part, index_rows=rows)], step_tokens=step)
            found, base = [], 0
            for ids, stops in stream.iter_chunks(0, stream.num_tokens):
                found += (stops + base).tolist()
                base += len(ids)
            assert found == ends
            assert (
                np.concatenate(list(iter_lengths(stream))).tolist() == np.diff([0, *ends]).tolist()
            )


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0, 2, 1, 4], "do not follow one another"),
        ([1, 2, 4], "do not follow one another"),
        ([-1, 4], "do not follow one another"),
        ([0, 2, 3], "the documents have 3 sequences, the index 4"),
        ([0, 5], "the documents have 5 sequences, the index 4"),
        ([0], "the documents have 0 sequences, the index 4"),
        ([], "the documents have 0 sequences, the index 4"),
    ],
)
def test_a_damaged_index_of_documents_is_told(
    tmp_path: Path, bounds: list[int], message: str
) -> None:
    write_index(tmp_path / "a.idx", [2, 3, 1, 4], bounds)
    with pytest.raises(DataError, match=message):
        open_megatron(tmp_path / "a.idx", Opening())


@pytest.mark.parametrize("pointers", [[0, 4, 0, 12], [2, 6, 12, 14]])
def test_sequences_that_do_not_follow_one_another_are_told(
    tmp_path: Path, pointers: list[int]
) -> None:
    write_index(tmp_path / "a.idx", [2, 3, 1, 4], [0, 2, 4], pointers=pointers)
    with pytest.raises(DataError, match=r"do not follow one another|ends at id 11 of 10"):
        open_megatron(tmp_path / "a.idx", Opening())


def llmc_head(*words: int) -> bytes:
    return struct.pack("<3i", *words) + bytes(1024 - 12)


@pytest.mark.parametrize(
    ("head", "data", "message"),
    [
        (llmc_head(20240520, 1, 3), bytes(6), None),
        (llmc_head(20240801, 7, 3), bytes(12), None),
        (llmc_head(20240520, 1, 4), bytes(6), "cut short: its header promises 4 tokens, 3 are"),
        (llmc_head(20240520, 1, 2), bytes(6), "damaged: its header promises 2 tokens, 3 are there"),
        (llmc_head(20240520, 1, 3), bytes(7), "damaged: its header promises 3 tokens, 3 are there"),
        (llmc_head(20240520, 7, 3), bytes(6), "the header begins with 20240520 7, expected"),
        (llmc_head(1, 1, 3), bytes(6), "the header begins with 1 1, expected"),
        (llmc_head(20240520, 1, 3)[:-1], b"", "the header begins with 0 0, expected"),
    ],
)  # fmt: skip
def test_headers_of_llmc(tmp_path: Path, head: bytes, data: bytes, message: str | None) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(head + data)
    if message is None:
        found = open_llmc(path, Opening())
        assert (found.byte_offset, found.num_tokens) == (1024, 3)
        assert found.dtype.itemsize == len(data) // 3
        assert table.open_token_file(path).num_tokens == 3  # by its header
        return
    with pytest.raises(DataError) as caught:
        open_llmc(path, Opening())
    assert message in caught.value.message


def test_files_of_llmc_are_one_for_each_part(tmp_path: Path) -> None:
    parts = []
    for name, ids in (("x", [1, 2, 3]), ("y", [4, 5])):
        np.array(ids, "<u2").tofile(tmp_path / name)
        parts.append(streams.TokenFile(tmp_path / name, 0, len(ids), np.dtype("<u2")))
    stream = streams.TokenStream(parts)
    for dtype, kind in (("<u2", (20240520, 1)), ("<u4", (20240801, 7))):
        out = tmp_path / dtype[1:]
        out.mkdir()
        written = streams.WrittenFiles({}, lambda: None)
        paths = write_llmc(out, "val", stream, np.dtype(dtype), written)
        assert [path.name for path in paths] == ["val_000000.bin", "val_000001.bin"]
        for path, ids in zip(paths, ([1, 2, 3], [4, 5]), strict=True):
            head = np.fromfile(path, "<i4", count=256)
            assert head[:3].tolist() == [*kind, len(ids)] and not head[3:].any()
            assert np.fromfile(path, dtype, offset=1024).tolist() == ids
        again = write_llmc(out, "val", stream, np.dtype(dtype), written)
        assert again == paths


@pytest.mark.parametrize(
    ("state", "named", "expected"),
    [
        (None, "gpt2", "loaded gpt2"),
        ({"token_kind": "gpt2"}, "mine", "loaded mine"),
        ({"token_kind": "other"}, "mine", "loaded mine"),
        ({"token_kind": "other"}, "gpt2", "token_kind 'other' is not known, expected gpt2 or char"),
        ([], "gpt2", "token_kind None is not known, expected gpt2 or char"),
        ({"token_kind": "char", "chars": "ab"}, "gpt2", ["a", "b"]),
        ({"token_kind": "char", "chars": ["b", "é"]}, "gpt2", ["b", "é"]),
        ({"token_kind": "char", "chars": ["ab"]}, "gpt2", "chars must be a list of single"),
        ({"token_kind": "char", "chars": [5]}, "gpt2", "chars must be a list of single"),
        ({"token_kind": "char"}, "gpt2", "chars must be a list of single"),
    ],
)
def test_the_tokenizer_that_lies_with_the_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, named: str, expected: Any
) -> None:
    if state is not None:
        (tmp_path / "tokenizer_state.json").write_text(json.dumps(state))
    monkeypatch.setattr(mypt.Tokenizer, "load", lambda name: f"loaded {name}")
    if isinstance(expected, str) and not expected.startswith("loaded"):
        with pytest.raises(DataError) as caught:
            table.load_source_tokenizer(tmp_path, kind="mypt", named=named)
        assert caught.value.message.startswith(expected)
        return
    found: Any = table.load_source_tokenizer(tmp_path, kind="mypt", named=named)
    if isinstance(expected, str):
        assert found == expected
        return
    assert [found.token_bytes(number).decode() for number in range(2)] == expected
    assert found.special_tokens == {"<|endoftext|>": 2, "<unk>": 3}
    assert (found.kind, found.name) == ("char", "char")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.bin", "train"), ("val.bin", "val"), ("my_validation_01.bin", "val"),
        ("dev-2.bin", "val"), ("eval.bin", "val"), ("Valid.bin", "val"), ("test.bin", "test"),
        ("latest.bin", "train"), ("interval.bin", "train"), ("val_test.bin", "val"),
    ],
)  # fmt: skip
def test_a_split_by_the_words_of_a_name(name: str, split: str) -> None:
    assert table._split_by_name(Path(name)) == split


def test_splits_of_a_folder_and_of_one_file(tmp_path: Path) -> None:
    for name in ("train_0.bin", "train_1.bin", "val.bin", "test.bin"):
        np.arange(3, dtype="<u2").tofile(tmp_path / name)
    told: list[str] = []
    found = open_source(tmp_path, kind="nanogpt", end_id=7, on_notice=told.append)
    assert {split: len(stream.parts) for split, stream in found.items()} == {"train": 2, "val": 1}
    assert {stream.end_id for stream in found.values()} == {7}
    assert told == [f"{tmp_path / 'test.bin'} is left out, by its name it is for testing"]
    for name in ("test.bin", "val.bin"):  # a named file is read, whatever its name
        assert list(open_source(tmp_path / name, kind="nanogpt")) == ["all"]
    (tmp_path / "val.bin").unlink()
    assert list(open_source(tmp_path, kind="nanogpt")) == ["all"]
