"""Conversion: what goes out comes back the same, and other programs' own readers understand it."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.dataset import layout
from lowtide.dataset.conversion import convert_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, UsageError
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, read_tokens, write_corpus


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
        ends += [base + int(end) for end in layout.load_document_ends(shard)]
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
        ("x.bin", b"abc", {}, "3 bytes are no whole number of uint16"),
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
    assert not (tmp_path / "out" / layout.METADATA_NAME).exists()
    assert str(tmp_path) in str(caught.value)


def test_command_line(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(dataset), str(tmp_path / "npy"), "--to", "npy"]) == 0
    assert "train.npy" in capsys.readouterr().out
    assert main(["convert", str(dataset), str(tmp_path / "npy"), "--to", "npy"]) == 2
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
