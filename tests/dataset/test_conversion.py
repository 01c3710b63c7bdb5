"""Conversion: a round trip gives the same, and other programs' own readers read the files."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide import files
from lowtide.cli import main
from lowtide.dataset import conversion, layout
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.conversion import convert_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.tokenfiles import streams
from lowtide.dataset.tokenfiles.megatron import open_megatron
from lowtide.dataset.tokenfiles.shards import load_document_ends
from lowtide.dataset.tokenfiles.streams import Opening, TokenStream, iter_lengths
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, UsageError
from lowtide.filenames import METADATA_NAME
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, read_tokens, snapshot, write_corpus


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    corpus = write_corpus(folder / "a.txt", make_documents(150))
    prepare_dataset(
        input_files=[corpus], out_dir=folder / "out", tokenization="char", tokens_per_shard=4000
    )
    return folder / "out"


def ends_of(info: layout.DatasetInfo, split: str) -> list[int]:
    ends: list[int] = []
    base = 0
    for shard in info.shards[split]:
        ends += [base + int(end) for end in load_document_ends(shard)]
        base += shard.num_tokens
    return ends


@pytest.mark.parametrize("kind", ["nanogpt", "llmc", "megatron", "npy"])
def test_round_trip(dataset: Path, tmp_path: Path, kind: Any) -> None:
    info = layout.load_dataset_info(dataset)
    convert_dataset(in_path=dataset, out_path=tmp_path / "theirs", to=kind)
    convert_dataset(
        in_path=tmp_path / "theirs",
        out_path=tmp_path / "ours",
        tokenizer=str(dataset),
        tokens_per_shard=3000,
    )
    back = layout.load_dataset_info(tmp_path / "ours")
    assert back.metadata["imported_from"] == kind
    assert back.tokenizer_fingerprint == info.tokenizer_fingerprint
    for split in layout.SPLITS:
        assert np.array_equal(read_tokens(back, split), read_tokens(info, split))
        assert ends_of(back, split) == ends_of(info, split)
        assert all(shard.num_tokens == 3000 for shard in back.shards[split][:-1])
    assert verify_dataset(dataset_dir=tmp_path / "ours").problems == []


def test_nanogpt_reads_it(dataset: Path, tmp_path: Path) -> None:
    convert_dataset(in_path=dataset, out_path=tmp_path, to="nanogpt")
    info = layout.load_dataset_info(dataset)
    data = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")
    assert np.array_equal(data, read_tokens(info, "train"))


def test_llmc_reads_it(dataset: Path, tmp_path: Path) -> None:
    convert_dataset(in_path=dataset, out_path=tmp_path, to="llmc")
    shard = layout.load_dataset_info(dataset).shards["train"][1]
    header = np.fromfile(tmp_path / "train_000001.bin", dtype=np.int32, count=256)
    assert header[:3].tolist() == [20240520, 1, shard.num_tokens]
    assert (tmp_path / "train_000001.bin").read_bytes()[1024:] == shard.path.read_bytes()


def test_megatron_reads_it(dataset: Path, tmp_path: Path) -> None:
    convert_dataset(in_path=dataset, out_path=tmp_path, to="megatron")
    info = layout.load_dataset_info(dataset)
    tokens, ends = read_tokens(info, "train"), ends_of(info, "train")
    with (tmp_path / "train.idx").open("rb") as file:
        assert file.read(9) == b"MMIDIDX\x00\x00"
        assert struct.unpack("<QB", file.read(9)) == (1, 8)
        sequences, documents = struct.unpack("<QQ", file.read(16))
        lengths = np.frombuffer(file.read(4 * sequences), dtype=np.int32)
        pointers = np.frombuffer(file.read(8 * sequences), dtype=np.int64)
        indices = np.frombuffer(file.read(8 * documents), dtype=np.int64)
        assert file.read() == b""
    assert indices.tolist() == list(range(len(lengths) + 1))
    assert lengths.sum() == len(tokens)
    begins = [0, *ends[:-1]]
    assert pointers.tolist()[: len(ends)] == [2 * begin for begin in begins]
    third = np.fromfile(
        tmp_path / "train.bin", dtype=np.uint16, count=int(lengths[2]), offset=int(pointers[2])
    )
    assert np.array_equal(third, tokens[begins[2] : ends[2]])


def test_a_document_that_is_cut_at_the_end_of_train_ends_where_appended_text_begins(
    tmp_path: Path,
) -> None:
    """With few documents validation is the end of the text, and begins within one of them."""
    corpus = write_corpus(tmp_path / "a.txt", make_documents(20))
    root = tmp_path / "data"
    prepare_dataset(
        input_files=[corpus], out_dir=root, tokenization="char", tokens_per_shard=1000, seed=1
    )
    before = layout.load_dataset_info(root)
    border = before.num_tokens("train")
    assert ends_of(before, "train")[-1] < border, "a document is cut"
    more = write_corpus(tmp_path / "b.txt", make_documents(20, seed=1))
    append_to_dataset(dataset_dir=root, input_files=[more])
    convert_dataset(in_path=root, out_path=tmp_path / "out", to="megatron")
    part = open_megatron(tmp_path / "out" / "train.idx", Opening())
    lengths = np.concatenate(list(iter_lengths(TokenStream([part]))))
    ends = ends_of(layout.load_dataset_info(root), "train")
    expected = {*ends, border, layout.load_dataset_info(root).num_tokens("train")}
    assert np.cumsum(lengths).tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"First Citizen: " * 100, "a.txt is text, not tokens"),
        ("a.jsonl.gz", b"rows" * 100, "a.jsonl.gz is text, not tokens"),
        ("a.npz", b"arrays" * 100, "its dtype is unknown"),
        ("a.bin", np.arange(1000, dtype="<u4").tobytes(), "looks like uint32"),
    ],
)
def test_what_is_not_of_two_bytes_is_imported_only_if_the_flag_says_so(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        convert_dataset(in_path=path, out_path=tmp_path / "out")
    assert "--dtype" in (caught.value.next_step or "") or "pretokenize" in caught.value.next_step
    assert not (tmp_path / "out").exists()
    convert_dataset(in_path=path, out_path=tmp_path / "out", dtype="uint16", val_fraction=0)
    info = layout.load_dataset_info(tmp_path / "out")
    assert read_tokens(info, "train").tobytes() == data


def test_an_import_with_the_type_that_was_guessed_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    for dtype in (None, "uint16"):
        convert_dataset(in_path=path, out_path=tmp_path / "out", dtype=dtype)
    with pytest.raises(UsageError, match="dtype=uint16, now dtype=uint32"):
        convert_dataset(in_path=path, out_path=tmp_path / "out", dtype="uint32")


def test_wide_ids(tmp_path: Path) -> None:
    ids = np.arange(10, dtype=np.uint32) * 1000
    header = np.zeros(256, dtype=np.int32)
    header[:3] = [20240801, 7, 10]
    path = tmp_path / "x.bin"
    path.write_bytes(header.tobytes() + ids.tobytes())
    convert_dataset(in_path=path, out_path=tmp_path / "out", val_fraction=0.2)
    info = layout.load_dataset_info(tmp_path / "out")
    assert read_tokens(info, "train").tolist() == ids[:8].tolist()
    assert read_tokens(info, "val").tolist() == ids[8:].tolist()


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("x.bin", b"abc", {}, "3 bytes, not a whole number of uint16"),
        ("x.bin", np.full(9, 60000, np.uint16).tobytes(), {}, "id 60000 is outside"),
        (
            "x.bin",
            np.int32(20240520).tobytes() * 256,
            {},
            "the header begins with 20240520 20240520",
        ),
        ("x.npy", b"abc", {}, "not a .npy file"),
        ("x.idx", b"abc", {}, "MMIDIDX is missing"),
        ("x.bin", b"ab", {}, "only 1 ids"),
        ("x.bin", b"ab", {"source_kind": "llmc"}, "the header begins with 0 0"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, name: str, data: bytes, options: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        convert_dataset(in_path=tmp_path / name, out_path=tmp_path / "out", **options)
    assert not (tmp_path / "out" / METADATA_NAME).exists()
    assert str(tmp_path) in str(caught.value)


def test_command_line(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(dataset), str(tmp_path / "npy"), "--to", "npy"]) == 0
    assert "train.npy" in capsys.readouterr().out
    assert main(["convert", str(dataset), str(tmp_path / "npy"), "--to", "npy"]) == 0
    assert "is there already, nothing was touched" in capsys.readouterr().out
    assert main(["convert", str(dataset), str(tmp_path / "npy"), "--to", "nanogpt"]) == 2
    assert "it was made with to=npy, now to=nanogpt" in capsys.readouterr().err
    arguments = [str(tmp_path / "npy" / "train.npy"), str(tmp_path / "out"), "--from", "npy"]
    assert main(["convert", *arguments, "--tokenizer", str(dataset)]) == 0
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.fingerprint == Tokenizer.load(dataset).fingerprint
    with pytest.raises(UsageError, match="finished dataset"):
        convert_dataset(in_path=tmp_path / "npy" / "train.npy", out_path=tmp_path / "out")


def test_an_interrupted_import_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", fail)
        with pytest.raises(OSError, match="No space"):
            convert_dataset(
                in_path=tmp_path / "train.bin", out_path=tmp_path / "out", tokens_per_shard=10
            )
    convert_dataset(in_path=tmp_path / "train.bin", out_path=tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*/*.bin"))) == 2
    assert not (tmp_path / "out" / ".work").exists()
    (tmp_path / "other" / "train").mkdir(parents=True)
    with pytest.raises(UsageError, match="no dataset that it belongs to"):
        convert_dataset(in_path=tmp_path / "train.bin", out_path=tmp_path / "other")


@pytest.mark.parametrize("kind", ["nanogpt", "llmc", "megatron", "npy"])
def test_an_interrupted_export_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    convert_dataset(in_path=dataset, out_path=tmp_path / "fresh", to=kind)
    real = streams.files.atomic_file
    written: list[str] = []

    @contextlib.contextmanager
    def fail_at_the_second(path: Path, **more: Any) -> Any:
        with real(path, **more) as file:
            yield file
            if path.suffix != ".json":
                written.append(path.name)
            if len(written) == 2:
                raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(streams.files, "atomic_file", fail_at_the_second)
        with pytest.raises(OSError, match="No space"):
            convert_dataset(in_path=dataset, out_path=tmp_path / "out", to=kind)
    assert not (tmp_path / "out" / written[1]).exists()
    stamp = (tmp_path / "out" / written[0]).stat().st_mtime_ns
    with pytest.raises(UsageError, match="made with to="):
        convert_dataset(
            in_path=dataset, out_path=tmp_path / "out", to="npy" if kind != "npy" else "llmc"
        )
    convert_dataset(in_path=dataset, out_path=tmp_path / "out", to=kind)
    assert (tmp_path / "out" / written[0]).stat().st_mtime_ns == stamp, "written twice"
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")
    # Damaged before it is resumed; and of a version that stored checksums only at the end.
    record = files.read_json(tmp_path / "out" / "conversion.json")
    first = tmp_path / "out" / written[0]
    unchecked = {name: record[name] for name in ("to", "dataset")}
    for before in (record, unchecked):
        files.write_json(tmp_path / "out" / "conversion.json", {**before, "finished": False})
        first.write_bytes(bytes([first.read_bytes()[0] ^ 1]) + first.read_bytes()[1:])
        convert_dataset(in_path=dataset, out_path=tmp_path / "out", to=kind)
        assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")
    # Killed after its last file, before the record was complete: finished all the same.
    record = files.read_json(tmp_path / "out" / "conversion.json")
    files.write_json(tmp_path / "out" / "conversion.json", {**record, "finished": False})
    convert_dataset(in_path=dataset, out_path=tmp_path / "out", to=kind)
    assert convert_dataset(in_path=dataset, out_path=tmp_path / "out", to=kind).was_there
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["nanogpt", "llmc", "megatron"])
def test_a_finished_export_that_lost_a_file_is_made_once_more(
    dataset: Path, tmp_path: Path, kind: Any
) -> None:
    out = tmp_path / "out"
    convert_dataset(in_path=dataset, out_path=out, to=kind)
    whole = snapshot(out)
    record = files.read_json(out / "conversion.json")
    first, last = (out / record["files"][place] for place in (0, -1))
    first.unlink()
    last.write_bytes(last.read_bytes()[:-2])
    assert not convert_dataset(in_path=dataset, out_path=out, to=kind).was_there
    assert snapshot(out) == whole
    for damaged in ({"files": None}, {"files": ["../x"]}, {"bytes": [1]}, {"files": [[]]}):
        files.write_json(out / "conversion.json", {**record, **damaged})
        convert_dataset(in_path=dataset, out_path=out, to=kind)
        assert snapshot(out) == whole


def test_a_folder_with_something_else_in_it_is_refused(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"not empty: it holds mine\.txt"):
        convert_dataset(in_path=dataset, out_path=tmp_path, to="npy")


def test_the_same_import_again_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    convert_dataset(in_path=path, out_path=tmp_path / "out")
    before = snapshot(tmp_path / "out")
    assert convert_dataset(in_path=path, out_path=tmp_path / "out").was_there
    with pytest.raises(UsageError, match=r"made with val-fraction=0\.1, now val-fraction=0\.2"):
        convert_dataset(in_path=path, out_path=tmp_path / "out", val_fraction=0.2)
    np.arange(1000, dtype="<u2")[::-1].tofile(path)
    with pytest.raises(UsageError, match=r"train\.bin holds other ids than then"):
        convert_dataset(in_path=path, out_path=tmp_path / "out")
    np.arange(1000, dtype="<u2").tofile(path)
    os.utime(path, (1, 1))
    assert convert_dataset(in_path=path, out_path=tmp_path / "out").was_there, "only touched"
    assert snapshot(tmp_path / "out") == before


def write_megatron(folder: Path, lengths: list[int]) -> None:
    """Write ids 1, 2, 3, … as documents of these lengths."""
    np.arange(1, sum(lengths) + 1, dtype="<u2").tofile(folder / "x.bin")
    count = len(lengths)
    begins = np.cumsum([0, *lengths], dtype="<i8")[:-1] * 2
    with (folder / "x.idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.write(np.array(lengths, "<i4").tobytes() + begins.tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def test_documents_without_an_id_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_megatron(tmp_path, [0, 3, 0, 0, 0, 5, 1, 0, 2, 0])
    convert_dataset(in_path=tmp_path / "x.idx", out_path=tmp_path / "out", val_fraction=0)
    info = layout.load_dataset_info(tmp_path / "out")
    assert read_tokens(info, "train").tolist() == list(range(1, 12))
    assert ends_of(info, "train") == [3, 8, 9, 11]
    assert "6 documents without a single id left out" in capsys.readouterr().err
    part = replace(open_megatron(tmp_path / "x.idx", Opening()), index_rows=3)
    stream = TokenStream([part], step_tokens=4)
    chunks = list(stream.iter_chunks(0, stream.num_tokens))
    assert [len(ids) for ids, _ in chunks] == [4, 4, 3]
    firsts = range(0, 11, 4)
    ends = [first + end for first, (_, found) in zip(firsts, chunks, strict=True) for end in found]
    assert ends == [3, 8, 9, 11]
    assert [length for part in iter_lengths(stream) for length in part] == [3, 5, 1, 2]
    assert verify_dataset(dataset_dir=tmp_path / "out").problems == []


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [(34, -1, "a document of -1 ids"), (34, 7, "the index says"), (34 + 12 + 8, 2, "not follow")],
)
def test_a_damaged_index_is_an_error(tmp_path: Path, at: int, value: int, message: str) -> None:
    write_megatron(tmp_path, [3, 5, 2])
    data = bytearray((tmp_path / "x.idx").read_bytes())
    data[at : at + 4] = struct.pack("<i", value)
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(DataError, match=message):
        convert_dataset(in_path=tmp_path / "x.idx", out_path=tmp_path / "out")


@pytest.mark.parametrize("kind", ["gpt2", "char"])
def test_a_dataset_of_the_guides_program_comes_in_whole(tmp_path: Path, kind: str) -> None:
    theirs = tmp_path / "theirs"
    characters = sorted("abc \n")
    ids = {"train": np.array([0, 1, 2, 3, 4, 4, 3]), "val": np.array([2, 2, 1])}
    for number, (split, values) in enumerate(ids.items()):
        (theirs / split).mkdir(parents=True)
        values.astype("<u4").tofile(theirs / split / f"shard_{number:05d}.bin")
    metadata = {"total_tokens": 10, "tokenization": kind, "vocab_size": 5, "train_shards": 1}
    files.write_json(theirs / "dataset_metadata.json", metadata)
    state = {"token_kind": kind, "chars": characters if kind == "char" else None}
    files.write_json(theirs / "tokenizer_state.json", state)
    convert_dataset(in_path=theirs, out_path=tmp_path / "ours")
    info = layout.load_dataset_info(tmp_path / "ours")
    assert {split: read_tokens(info, split).tolist() for split in layout.SPLITS} == {
        split: values.tolist() for split, values in ids.items()
    }
    assert info.dtype.itemsize == 2
    tokenizer = Tokenizer.load(tmp_path / "ours")
    if kind == "char":
        assert tokenizer.decode(ids["train"]) == "".join(characters[n] for n in ids["train"])
    else:
        assert tokenizer.vocab_size == 50257
    assert verify_dataset(dataset_dir=tmp_path / "ours").problems == []
    with pytest.raises(DataError, match="was it made by another program") as caught:
        layout.load_dataset_info(theirs)
    assert "lowtide convert" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "is_taken"),
    [
        ({"tokens_per_shard": 2}, True),
        ({"tokens_per_shard": 1}, False),
        ({"val_fraction": 0.0}, True),
        ({"val_fraction": 1.0}, False),
        ({"val_fraction": -0.01}, False),
    ],
)
def test_the_borders_of_shards_and_splits(options: dict[str, Any], is_taken: bool) -> None:
    given = {"in_path": "a.bin", "out_path": "out", "source_kind": "nanogpt", **options}
    if is_taken:
        ConvertSettings(**given)
        return
    with pytest.raises(UsageError, match="must be"):
        ConvertSettings(**given)


@pytest.mark.parametrize("to", ["lowtide", "nanogpt"])
def test_another_conversion_to_the_same_folder_is_named(
    dataset: Path, tmp_path: Path, to: str
) -> None:
    given: Any = {"in_path": dataset, "to": to}
    if to == "lowtide":
        np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
        given["in_path"] = tmp_path / "train.bin"
    out = tmp_path / "out"
    with (
        files.hold_lock(out, create_folder=True),
        pytest.raises(UsageError, match="another lowtide command is at work here: process"),
    ):
        convert_dataset(**given, out_path=out)
    convert_dataset(**given, out_path=out)
    assert convert_dataset(**given, out_path=out).was_there


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["nanogpt", "llmc", "megatron", "npy"])
@pytest.mark.parametrize("name", ["train/*.bin", "train/*.docs"])
def test_a_flipped_bit_is_not_exported(dataset: Path, tmp_path: Path, kind: Any, name: str) -> None:
    """A new checksum would hide damage; the same command resumes later."""
    copied = Path(shutil.copytree(dataset, tmp_path / "copy"))
    path = sorted(copied.glob(name))[1]
    whole = path.read_bytes()
    flip(path)
    options: dict[str, Any] = {"in_path": copied, "out_path": tmp_path / "out", "to": kind}
    with pytest.raises(DataError) as caught:
        convert_dataset(**options)
    assert caught.value.path == path
    convert_dataset(in_path=dataset, out_path=tmp_path / "right", to=kind)
    right, there = files_of(tmp_path / "right"), files_of(tmp_path / "out")
    assert there.items() <= right.items()  # llm.c's first file is of the first shard
    assert len(there) <= (kind == "llmc")
    path.write_bytes(whole)
    convert_dataset(**options)
    assert files_of(tmp_path / "out") == right


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(folder).items() if not name.endswith(".json")}


def test_a_flipped_bit_in_our_npy_is_not_imported(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    path = pretokenize_file(file=corpus, tokenization="gpt2").path
    flip(path)
    with pytest.raises(DataError, match="is damaged") as caught:
        convert_dataset(in_path=path, out_path=tmp_path / "out", tokenizer="gpt2")
    assert "remove a.npy.json" in str(caught.value.next_step)
    assert not (tmp_path / "out" / METADATA_NAME).exists()
    (tmp_path / "a.npy.json").unlink()
    assert convert_dataset(in_path=path, out_path=tmp_path / "own", tokenizer="gpt2").num_tokens


@pytest.mark.parametrize(
    ("stored", "rows"),
    [
        (
            {"files": ["a", "b"], "bytes": [1, 2], "xxh3_128": ["x", "y"]},
            {"a": (1, "x"), "b": (2, "y")},
        ),
        ({"files": ["a"]}, {"a": (None, None)}),  # as earlier versions wrote it
        ({"files": ["a"], "bytes": [1]}, {"a": (1, None)}),
        ({}, {}),
        ({"files": "a"}, {}),
        ({"files": ["a"], "bytes": [1, 2], "xxh3_128": ["x"]}, {}),
        ({"files": ["a"], "bytes": [1], "xxh3_128": []}, {}),
        ({"files": ["a"], "bytes": 1, "xxh3_128": ["x"]}, {}),
        ({"files": ["a/b"], "bytes": [1], "xxh3_128": ["x"]}, {}),
        ({"files": [5], "bytes": [1], "xxh3_128": ["x"]}, {}),
    ],
)  # fmt: skip
def test_files_that_a_record_names(stored: dict[str, Any], rows: dict[str, Any]) -> None:
    assert conversion._read_rows(stored) == rows


def test_files_that_are_still_as_they_were_written(tmp_path: Path) -> None:
    for name in ("whole", "longer", "other", "old"):
        (tmp_path / name).write_bytes(b"12345")
    checksum = xxhash.xxh3_128_hexdigest(b"12345")
    expected: Any = {
        "whole": (5, checksum), "longer": (4, checksum), "other": (5, "0" * 32),
        "old": (None, None), "gone": (5, checksum),
    }  # fmt: skip
    told: list[Any] = []

    class Shown:
        @contextlib.contextmanager
        def phase(self, name: str, *, total: int, unit: str) -> Any:
            told.append((name, total, unit))
            yield SimpleNamespace(advance=lambda count: told.append(count))

        def note(self, text: str) -> None:
            told.append(text)

    shown: Any = Shown()
    whole = conversion._find_whole(tmp_path, expected, shown)
    assert whole == {"whole": (5, checksum), "old": (None, None)}
    assert told == [
        ("check", 20, "B"), 5, "longer is damaged: it is written anew", 5,
        "other is damaged: it is written anew",
    ]  # fmt: skip
    told.clear()
    assert conversion._find_whole(tmp_path, {"gone": (5, checksum)}, shown) == {} and told == []
