"""Texts in a store: every verb makes of them what it makes of the same files on a disk."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from lowtide import append_to_dataset, prepare_dataset, pretokenize_files, train_tokenizer
from lowtide.corpus.inputs import expand_inputs, has_changed
from lowtide.corpus.reading import ReadingSettings, iter_blocks, plan_streams
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.stores import paths
from lowtide.stores.paths import StorePath
from lowtide.tokenizer import Tokenizer

WORDS = [f"word{number} other{number * 7} and more" for number in range(300)]


def some_text(seed: int, lines: int = 400) -> str:
    pick = random.Random(seed)
    return "\n".join(" ".join(pick.choices(WORDS, k=6)) for _ in range(lines)) + "\n"


@pytest.fixture
def texts(server: Any, tmp_path: Path) -> Path:
    """Files of every kind, here and in the store."""
    root = tmp_path / "texts"
    root.mkdir()
    (root / "a.txt").write_text(some_text(1))
    (root / "b.txt").write_text(some_text(2, 9000))  # several blocks
    rows = [json.dumps({"text": some_text(seed, 3)}) for seed in range(200)]
    (root / "c.jsonl").write_text("\n".join(rows))
    (root / "d.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor().compress("\n".join(rows[::-1]).encode())
    )
    (root / "e.txt.gz").write_bytes(gzip.compress(some_text(3, 2000).encode(), mtime=0))
    (root / "note.pdf").write_bytes(b"no text")
    server.upload(root, "texts")
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix in (".bin", ".docs")
    }


def test_what_a_url_names_is_found_in_order(texts: Path, server: Any) -> None:
    notices: list[str] = []
    found = expand_inputs(["s3://bucket/texts"], on_notice=notices.append)
    here = expand_inputs([texts])
    assert [row.path.name for row in found] == [row.path.name for row in here]
    assert [(row.kind, row.compression, row.size_bytes) for row in found] == [
        (row.kind, row.compression, row.size_bytes) for row in here
    ]
    assert notices == ["s3://bucket/texts: 1 object of other kinds ignored"]
    assert [str(row.path) for row in expand_inputs(["s3://bucket/te*/*.txt*"])] == [
        f"s3://bucket/texts/{name}" for name in ("a.txt", "b.txt", "e.txt.gz")
    ]
    twice = expand_inputs(["s3://bucket/texts/a.txt", Path("s3://bucket/texts/a.txt")])
    assert len(twice) == 1
    assert str(pickle.loads(pickle.dumps(twice[0])).path) == "s3://bucket/texts/a.txt"


def test_objects_in_folders_have_the_order_of_files_on_a_disk(server: Any, tmp_path: Path) -> None:
    root = tmp_path / "many"
    names = (
        "b.txt", "\u00fcber.txt", "a/z.txt", "a/k/q.txt", "a/k.txt", "a b/x.txt", "a-/x.txt",
        "B/x.txt", ".hidden/x.txt", "a/.hidden/x.txt", "a/.x.txt",
    )  # fmt: skip
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(some_text(number, 2))
    server.upload(root, "many")
    here = [str(row.path.relative_to(root)) for row in expand_inputs([root])]
    for url in ("s3://bucket/many", "s3://bucket/many/"):
        found = [str(row.path) for row in expand_inputs([url])]
        assert found == [f"s3://bucket/many/{name}" for name in here]
    by_glob = [str(Path(row.path).relative_to(root)) for row in expand_inputs([root / "**/*.txt"])]
    found = [str(row.path) for row in expand_inputs(["s3://bucket/many/**/*.txt"])]
    assert found == [f"s3://bucket/many/{name}" for name in by_glob]
    hidden = expand_inputs(["s3://bucket/many/a/.hidden/*.txt"])
    assert [str(row.path) for row in hidden] == ["s3://bucket/many/a/.hidden/x.txt"]


def test_json_of_rows_is_jsonl_where_it_is_named(server: Any, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": some_text(seed, 3)}) + "\n" for seed in range(9))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "b.json").write_text('{"one": "object"}')
    (tmp_path / "c.txt").write_text(some_text(1, 3))
    server.upload(tmp_path, "json")
    found = expand_inputs(["s3://bucket/json/*.json*", "s3://bucket/json"])
    assert [(row.path.name, row.kind) for row in found] == [
        ("a.json.gz", "jsonl"),
        ("b.json", "text"),
        ("c.txt", "text"),
    ]
    assert expand_inputs(["s3://bucket/json/a.json.gz"])[0].kind == "jsonl"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/nothing", "no text under this prefix"),
        ("s3://bucket/texts/*.csv", "no object matches this pattern"),
        ("s3://nobucket/x", "no text under|no bucket"),
    ],
)
def test_a_url_that_names_nothing_is_told(texts: Path, url: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        expand_inputs([url])


def test_an_object_is_read_as_a_file(texts: Path, server: Any) -> None:
    path, here = StorePath("s3://bucket/texts/b.txt"), texts / "b.txt"
    data = here.read_bytes()
    assert path.is_file() and not path.is_dir() and path.stat().st_size == len(data)
    with path.open("rb", buffering=0) as file:
        assert file.seek(-10, 2) == len(data) - 10
        assert file.read(100) == data[-10:]
        assert file.read(5) == b""
        file.seek(1000)
        assert file.read(2000) == data[1000:3000]
        assert file.read() == data[3000:]
    server.requests.clear()
    with path.open("rb") as file:
        assert list(file) == data.splitlines(keepends=True)
    assert server.count("GET") <= 4  # in growing ranges, not in buffers
    with path.open("rb") as file:
        file.read(10)
        server.objects["texts/b.txt"] = data[::-1]
        with pytest.raises(DataError, match="changed while it was read"):
            file.read()
    with pytest.raises(OSError, match="only read"):
        path.open("wb")


def test_a_dataset_is_the_one_from_disk(texts: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenization": "gpt2", "tokens_per_shard": 20_000, "processes": 2}
    prepare_dataset(input_files=[str(texts)], out_dir=tmp_path / "here", **options)
    prepare_dataset(input_files=["s3://bucket/texts"], out_dir=tmp_path / "there", **options)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert len(files_of(tmp_path / "here")) > 6
    metadata = (tmp_path / "there" / "dataset_metadata.json").read_text()
    assert "s3://bucket/texts/d.jsonl.zst" in metadata
    assert "secret" not in metadata
    # Given again, nothing is done; with another text it is another dataset.
    prepare_dataset(input_files=["s3://bucket/texts"], out_dir=tmp_path / "there", **options)


def test_a_tokenizer_is_the_one_from_disk(texts: Path, tmp_path: Path) -> None:
    for name, source in (("here", str(texts)), ("there", "s3://bucket/texts")):
        train_tokenizer(input=[source], out_dir=tmp_path / name, vocab_size=400)
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("here", "there"))
    assert one == two


@pytest.mark.parametrize("name", ["b.txt", "d.jsonl.zst"])
def test_ids_are_those_from_disk(texts: Path, tmp_path: Path, name: str) -> None:
    pretokenize_files(file=[texts / name], out_path=tmp_path / "here.npy")
    pretokenize_files(file=[f"s3://bucket/texts/{name}"], out_path=tmp_path / "there.npy")
    assert (tmp_path / "here.npy").read_bytes() == (tmp_path / "there.npy").read_bytes()
    with pytest.raises(UsageError, match="give --out-path"):
        pretokenize_files(file=[f"s3://bucket/texts/{name}"])


def test_blocks_of_plain_text_are_those_from_disk(texts: Path) -> None:
    options = ReadingSettings(block_bytes=1 << 16)
    found: list[list[bytes]] = []
    for source in (texts / "b.txt", "s3://bucket/texts/b.txt"):
        (stream,) = plan_streams(expand_inputs([source]), options)
        found.append([block.data for block in iter_blocks(stream, options)])
    assert found[0] == found[1]
    assert len(found[0]) > 5


def test_many_processes_and_later_texts_take_urls(texts: Path, tmp_path: Path) -> None:
    for name, source in (("here", texts), ("there", "s3://bucket/texts")):
        prepare_dataset(
            input_files=[f"{source}/[ab].txt"],
            out_dir=tmp_path / name,
            engine="files",
            work_dir=tmp_path / f"{name}.work",
        )
        append_to_dataset(dataset_dir=tmp_path / name, input_files=[f"{source}/c.jsonl"])
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_a_stream_of_texts_may_lie_in_a_store(texts: Path) -> None:
    tokenizer = Tokenizer.load("gpt2")
    here, there = (
        StreamingDataLoader(source, tokenizer=tokenizer, seq_len=64, batch_size=4)
        for source in (f"{texts}/*.txt", "s3://bucket/texts/*.txt")
    )
    for one, two in itertools.islice(zip(here, there, strict=True), 5):
        assert (one["input_ids"] == two["input_ids"]).all()


def test_outputs_are_not_written_to_an_address(texts: Path, tmp_path: Path) -> None:
    text, out = str(texts / "a.txt"), "s3://bucket/out"
    with contextlib.chdir(tmp_path):
        for call in (
            lambda: prepare_dataset(input_files=[text], out_dir=out),
            lambda: train_tokenizer(input=[text], out_dir=out, vocab_size=300),
            lambda: pretokenize_files(file=[text], out_path="s3://bucket/out.npy"),
        ):
            with pytest.raises(UsageError, match=r"s3://bucket/out.* is an address"):
                call()
        assert not Path("s3:").exists()
    with pytest.raises(UsageError, match="--engine threads adds text on a disk") as caught:
        append_to_dataset(dataset_dir="s3://bucket/data", input_files=[text])
    command = f"lowtide append s3://bucket/data --input-files {text} --engine files"
    assert caught.value.next_step == command


def test_parquet_is_read_by_ranges(server: Any, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [some_text(seed, 3) for seed in range(300)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    server.objects["rows.parquet"] = (tmp_path / "rows.parquet").read_bytes()
    for name, source in (
        ("here", tmp_path / "rows.parquet"),
        ("there", "s3://bucket/rows.parquet"),
    ):
        prepare_dataset(input_files=[str(source)], out_dir=tmp_path / name)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


@pytest.mark.parametrize("request_number", [2, 3])
def test_an_object_that_changes_under_way_is_refused(
    texts: Path, server: Any, tmp_path: Path, request_number: int
) -> None:
    (source,) = expand_inputs(["s3://bucket/texts/b.txt"])
    assert not has_changed(source)
    asked = [0]

    def change(key: str) -> None:
        asked[0] += key == "texts/b.txt"
        if asked[0] == request_number:
            server.objects["texts/b.txt"] = server.objects["texts/b.txt"][::-1]

    server.before = change
    with pytest.raises(LowtideError, match="changed while it was read"):
        prepare_dataset(input_files=["s3://bucket/texts/b.txt"], out_dir=tmp_path / "there")
    assert has_changed(source)
    assert not (tmp_path / "there" / "dataset_metadata.json").exists()


def test_lost_connections_change_nothing(
    texts: Path, server: Any, tmp_path: Path, waits: list[float]
) -> None:
    prepare_dataset(input_files=[str(texts)], out_dir=tmp_path / "here")
    server.faults.extend(["", "", "drop", "cut", "503"] * 6)
    prepare_dataset(input_files=["s3://bucket/texts"], out_dir=tmp_path / "there")
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert len(waits) > 5


def test_what_was_found_is_not_asked_for_again(texts: Path, server: Any) -> None:
    (source,) = expand_inputs(["s3://bucket/texts/a.txt"])
    server.requests.clear()
    text = source.path.read_bytes()
    assert server.count("HEAD") == 0
    server.objects["texts/a.txt"] = text + b"more"  # listed again, it is opened as it is then
    (source,) = expand_inputs(["s3://bucket/texts/a*"])
    assert source.path.read_bytes() == text + b"more"
    server.requests.clear()
    paths._infos.clear()
    source.path.read_bytes()
    assert server.count("HEAD") == 1
