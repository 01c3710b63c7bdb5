"""Preparation: every document once, shuffled, split, the same bytes for any number of workers."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide import files
from lowtide.dataset import layout, phases, preparation, resources, sharding, threaded
from lowtide.dataset.existing import PrepareResult
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.sharding import ShardJob
from lowtide.dataset.summary import describe_preparation
from lowtide.dataset.tokenfiles.shards import ShardInfo, shard_number
from lowtide.errors import BudgetError, DataError, LowtideError, UsageError
from lowtide.stores.paths import StorePath
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, make_documents, read_documents, read_tokens, snapshot, write_corpus

TAG = re.compile(r"(?<=shard_\d{5})-[0-9a-f]{8}-[0-9a-f]{8}")


def prepare(paths: Any, out: Path, **options: Any) -> PrepareResult:
    """Prepare small shards from small blocks: a few kilobytes of text make many."""
    small = {"tokens_per_shard": 1000, "block_bytes": 2048}
    options = {"tokenization": "char", "memory": "8GiB", **small, **options}
    return prepare_dataset(input_files=paths, out_dir=out, **options)


def test_every_document_once(tmp_path: Path) -> None:
    documents = make_documents(400)
    corpus = write_corpus(tmp_path / "a.txt", documents)
    result = prepare([corpus], tmp_path / "out")
    train, val = (read_documents(tmp_path / "out", split) for split in layout.SPLITS)
    assert sorted(train + val) == sorted(documents)
    assert train != [text for text in documents if text in set(train)], "not shuffled"
    assert 0.05 < len(val) / len(documents) < 0.2
    info = result.info
    assert info is not None and info.metadata["total_documents"] == 400
    for split in layout.SPLITS:
        sizes = [shard.num_tokens for shard in info.shards[split]]
        assert all(size == 1000 for size in sizes[:-1]) and 0 < sizes[-1] <= 1000
    numbers = [shard_number(s.path) for split in layout.SPLITS for s in info.shards[split]]
    assert numbers == list(range(len(numbers)))
    assert not (tmp_path / "out" / ".work").exists()


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, workers: int) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(200) + make_documents(150))
    prepare([corpus], tmp_path / "one", processes=1)
    prepare([corpus], tmp_path / "many", processes=workers, memory="8GiB")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "many")


@pytest.mark.parametrize("tokenization", ["char", "gpt2"])
def test_files_read_side_by_side_give_the_same_bytes(tmp_path: Path, tokenization: str) -> None:
    """With rows longer than several blocks, plain and compressed."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(4):
        documents = make_documents(60, seed=number) + make_documents(20, seed=number + 1)
        documents.insert(30, "\n".join(f"{number}: line {line} of many" for line in range(400)))
        rows = "\n".join(json.dumps({"text": text}) for text in documents).encode()
        (folder / f"a{number}.txt.gz").write_bytes(
            gzip.compress(SEPARATOR.join(documents).encode())
        )
        (folder / f"b{number}.jsonl.gz").write_bytes(gzip.compress(rows))
        (folder / f"c{number}.jsonl").write_bytes(rows)
    given: Any = {"tokenization": tokenization, "dedup": tokenization == "char"}
    expected = {}
    for workers in (1, 2, 4):
        out = tmp_path / str(workers)
        prepare([folder], out, processes=workers, **given)
        expected = expected or snapshot(out)
        assert snapshot(out) == expected


def test_block_size_decides_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(200) + make_documents(150))
    prepare([corpus], tmp_path / "large", block_bytes=4 << 20)
    prepare([corpus], tmp_path / "small")
    large, small = (snapshot(tmp_path / name) for name in ("large", "small"))
    assert large.pop("seen/00000.hashes") != b""
    del small["seen/00000.hashes"]  # the same hashes, block by block
    plain: list[dict[str, bytes]] = []
    for files_of in (large, small):
        metadata = json.loads(files_of.pop("dataset_metadata.json"))
        del metadata["seen"], metadata["sources"][0]["content"]  # a hash of hashes of blocks
        # It is also in the names of the shards.
        plain.append({TAG.sub("", name): data for name, data in files_of.items()})
        plain[-1]["metadata"] = TAG.sub("", json.dumps(metadata)).encode()
    assert plain[0] == plain[1]


def test_ranges_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(200))
    prepare([corpus], tmp_path / "one")
    limits = {"range_bytes": 1000, "chunk_bytes": 64, "max_open_files": 3}
    monkeypatch.setattr(threaded, "ShardJob", lambda **given: ShardJob(**{**given, **limits}))
    prepare([corpus], tmp_path / "many")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "many")


def test_order_is_kept_on_request(tmp_path: Path) -> None:
    documents = make_documents(200)
    corpus = write_corpus(tmp_path / "a.txt", documents)
    prepare([corpus], tmp_path / "out", shuffle=False)
    train, val = (read_documents(tmp_path / "out", split) for split in layout.SPLITS)
    assert train == [text for text in documents if text in set(train)]
    assert val == [text for text in documents if text in set(val)]


def test_seed_changes_the_order_but_not_the_split(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(200))
    for seed in (0, 1):
        prepare([corpus], tmp_path / str(seed), seed=seed)
    first, second = (read_documents(tmp_path / str(seed), "train") for seed in (0, 1))
    assert first != second and sorted(first) == sorted(second)


def test_duplicates_are_removed_across_files(tmp_path: Path) -> None:
    documents = make_documents(150)
    one = write_corpus(tmp_path / "a.txt", documents)
    two = write_corpus(tmp_path / "b.txt", documents[:50])
    result = prepare([one, two], tmp_path / "out")
    found = read_documents(tmp_path / "out", "train") + read_documents(tmp_path / "out", "val")
    assert sorted(found) == sorted(documents)
    rule = result.report["rules"]["duplicate_document"]
    assert rule["count"] == 50 and len(rule["examples"]) == 3
    again = prepare([one, two], tmp_path / "kept", dedup=False)
    assert again.info is not None and again.info.metadata["total_documents"] == 200


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_documents_are_split_at_the_end(tmp_path: Path, count: int) -> None:
    documents = make_documents(count)
    corpus = write_corpus(tmp_path / "a.txt", documents)
    result = prepare([corpus], tmp_path / "out", val_fraction=0.2)
    info = result.info
    assert info is not None and info.metadata["split"]["mode"] == "tail"
    tokens = [info.num_tokens(split) for split in layout.SPLITS]
    assert min(tokens) > 0 and abs(tokens[1] / sum(tokens) - 0.2) < 0.05
    ids = np.concatenate([read_tokens(info, split) for split in layout.SPLITS])
    text = Tokenizer.load(tmp_path / "out").decode(ids)
    assert sorted(text.split(SEPARATOR)[:-1]) == sorted(documents)


def test_no_validation_on_request(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(200))
    result = prepare([corpus], tmp_path / "out", val_fraction=0)
    assert result.info is not None
    assert result.info.num_tokens("val") == 0 and result.info.metadata["total_documents"] == 200


def test_document_larger_than_a_block(tmp_path: Path) -> None:
    large = "\n".join(
        f"line {number} of one long document, unlike all others" for number in range(500)
    )
    documents = [*make_documents(60), large, *make_documents(60, seed=1)[30:]]
    corpus = write_corpus(tmp_path / "a.txt", documents)
    for name in ("one", "two"):
        prepare([corpus], tmp_path / name, processes=1 if name == "one" else 3, dedup=False)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    info = layout.load_dataset_info(tmp_path / "one")
    ids = np.concatenate([read_tokens(info, split) for split in layout.SPLITS])
    found = Tokenizer.load(tmp_path / "one").decode(ids).split(SEPARATOR)[:-1]
    assert sorted(found) == sorted(documents)


def test_gpt2_ids_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    documents = make_documents(150)
    corpus = write_corpus(tmp_path / "a.txt", documents)
    result = prepare([corpus], tmp_path / "out", tokenization="gpt2", shuffle=False, val_fraction=0)
    tokenizer = Tokenizer.load("gpt2")
    expected = [
        part for text in documents for part in (tokenizer.encode(text), [tokenizer.end_of_text_id])
    ]
    assert result.info is not None and result.info.dtype == np.uint16
    assert read_tokens(result.info, "train").tolist() == np.concatenate(expected).tolist()
    assert result.info.tokenizer_fingerprint == tokenizer.fingerprint


def test_all_kinds_of_files_give_the_same_documents(tmp_path: Path) -> None:
    documents = make_documents(120)
    write_corpus(tmp_path / "a" / "x.txt", documents)
    rows = [json.dumps({"text": text}) for text in documents]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (tmp_path / "c").mkdir()
    pq.write_table(pa.table({"text": documents}), tmp_path / "c" / "x.parquet")
    (tmp_path / "d").mkdir()
    for number, text in enumerate(documents):
        (tmp_path / "d" / f"{number:04d}.txt").write_text(text)
    for name in "abcd":
        prepare([tmp_path / name], tmp_path / f"out_{name}")
        found = [read_documents(tmp_path / f"out_{name}", split) for split in layout.SPLITS]
        assert sorted(found[0] + found[1]) == sorted(documents)
        # The split of a document depends only on its text.
        assert set(found[1]) == set(read_documents(tmp_path / "out_a", "val"))


@pytest.mark.parametrize("separator", ["\\n\\n", "\n\n"])
def test_paragraphs_as_documents(tmp_path: Path, separator: str) -> None:
    documents = make_documents(120)
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    prepare([tmp_path / "a.txt"], tmp_path / "out", document_separator=separator)
    found = read_documents(tmp_path / "out", "train") + read_documents(tmp_path / "out", "val")
    assert sorted(found) == sorted(documents)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("normalize", [True, False])
def test_paragraphs_with_line_ends_of_windows(tmp_path: Path, suffix: str, normalize: bool) -> None:
    """In one file and in many that share blocks, beside others with plain line ends."""
    pack = gzip.compress if suffix == ".txt.gz" else bytes
    documents = make_documents(240)
    for number in range(24):
        text = "\n\n".join(documents[number * 10 : number * 10 + 10]).encode()
        text = text.replace(b"\n", b"\r\n") if number % 2 else text
        (tmp_path / f"{number:02}{suffix}").write_bytes(pack(text))
    whole = "\n\n".join(documents).encode().replace(b"\n", b"\r\n")
    (tmp_path / f"whole{suffix}").write_bytes(pack(whole))
    given: dict[str, Any] = {"document_separator": "\n\n", "normalize": normalize}
    given |= {"shuffle": False, "val_fraction": 0, "dedup": False, "processes": 2}
    prepare([tmp_path], tmp_path / "out", **given)
    found = read_documents(tmp_path / "out", "train")
    assert [text.replace("\r\n", "\n") for text in found] == documents * 2
    assert normalize != ("\r\n" in "".join(found))


def test_files_as_documents(tmp_path: Path) -> None:
    for number, text in enumerate(make_documents(120)):
        (tmp_path / f"{number}.txt").write_text(f"{text}\nwith {SEPARATOR} inside")
    result = prepare([tmp_path], tmp_path / "out", document_separator="")
    assert result.info is not None and result.info.metadata["total_documents"] == 120


def test_the_next_command_can_be_copied(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(120))
    out = tmp_path / "my data; $(x)"
    words = shlex.split(describe_preparation(prepare([corpus], out)).splitlines()[-1])
    assert words[:5] == ["Next:", "lowtide", "train", "--dataset-dir", str(out)]


def test_metadata_says_what_happened(tmp_path: Path) -> None:
    documents = [*make_documents(120), "short", "=" * 100 + "\nsomething else that stays here"]
    corpus = write_corpus(tmp_path / "a.txt", documents)
    result = prepare([str(corpus)], tmp_path / "out")
    metadata = json.loads((tmp_path / "out" / "dataset_metadata.json").read_text())
    assert metadata["input_files"] == [str(corpus)]
    assert metadata["cleaning"]["rules"]["document_too_short"] == {
        "count": 1,
        "bytes": 5,
        "examples": ["short"],
    }
    assert metadata["cleaning"]["rules"]["line_repetitive"]["count"] == 1
    assert metadata["settings"]["val_fraction"] == 0.1
    text = describe_preparation(result)
    assert "documents removed: too short" in text and "Train shards:" in text


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50) + make_documents(20))
    result = prepare([corpus], tmp_path / "out", dry_run=True)
    with pytest.raises(UsageError, match="dry run makes no dataset"):
        _ = result.info
    assert result.dataset is None and not (tmp_path / "out").exists()
    assert result.report["rules"]["duplicate_document"]["count"] == 20
    assert "dry run" in describe_preparation(result)


def test_dry_run_makes_no_folder_and_harms_no_unfinished_work(tmp_path: Path) -> None:
    good = write_corpus(tmp_path / "good.txt", make_documents(50))
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nonsense")
    prepare([good], tmp_path / "deep" / "er" / "out", dry_run=True)
    assert not (tmp_path / "deep").exists()
    with pytest.raises(DataError):
        prepare([good, bad], tmp_path / "out")
    before = snapshot(tmp_path / "out")
    assert any(name.startswith(".work/clean") for name in before)
    with pytest.raises(DataError):
        prepare([good, bad], tmp_path / "out", dry_run=True)
    assert snapshot(tmp_path / "out") == before
    assert {path.name for path in tmp_path.iterdir()} == {"good.txt", "bad.jsonl", "out"}


def test_two_commands_never_work_in_one_folder(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    (tmp_path / "out").mkdir()
    with (
        files.hold_lock(tmp_path / "out"),
        pytest.raises(UsageError, match="another lowtide command is at work"),
    ):
        prepare([corpus], tmp_path / "out")
    assert prepare([corpus], tmp_path / "out").info is not None


def test_nothing_of_a_command_given_up_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(100))

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", fail)
        with pytest.raises(LowtideError, match="the disk is full"):
            prepare([corpus], tmp_path / "out", tokens_per_shard=300)
    assert len(list((tmp_path / "out" / "train").glob("*.bin"))) > 9
    prepare([corpus], tmp_path / "out", restart=True)
    prepare([corpus], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


@pytest.mark.parametrize("plan_is_left", [True, False])
def test_killed_while_it_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_is_left: bool
) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    with monkeypatch.context() as patch:
        patch.setattr(threaded, "remove_work", lambda _, **__: None)
        result = prepare([corpus], tmp_path / "out")
    if not plan_is_left:
        (tmp_path / "out" / ".work" / "plan.json").unlink()
    with pytest.raises(UsageError, match="finished dataset"):
        prepare([corpus], tmp_path / "out", seed=5)
    again = prepare([corpus], tmp_path / "out")
    assert again.report == result.report and not (tmp_path / "out" / ".work").exists()


def test_work_goes_on_once_an_input_is_mended(tmp_path: Path) -> None:
    first = write_corpus(tmp_path / "a.txt", make_documents(60))
    broken = tmp_path / "b.txt.gz"
    whole = gzip.compress("<|endoftext|>".join(make_documents(60, seed=1)).encode(), mtime=0)
    broken.write_bytes(whole[:-50])
    last = write_corpus(tmp_path / "c.txt", make_documents(60) + make_documents(60, seed=1))
    with pytest.raises(DataError, match="cut-off gzip"):
        prepare([first, broken, last], tmp_path / "out")
    broken.write_bytes(whole)
    prepare([first, broken, last], tmp_path / "out")
    prepare([first, broken, last], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


def test_finished_dataset_is_never_overwritten(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    prepare([corpus], tmp_path / "out")
    before = snapshot(tmp_path / "out")
    os.utime(corpus, ns=(1, 1))
    again = prepare([corpus], tmp_path / "out")
    assert again.was_there and again.info is not None
    assert "is there already" in describe_preparation(again)
    other = write_corpus(tmp_path / "b.txt", make_documents(50, seed=1))
    with pytest.raises(UsageError, match="already, and it was made with --seed 0, now it is 3"):
        prepare([corpus], tmp_path / "out", seed=3)
    with pytest.raises(UsageError, match=r"already, and .*b\.txt was not among its inputs"):
        prepare([corpus, other], tmp_path / "out")
    data = corpus.read_bytes()
    corpus.write_bytes(data[:-1] + b"?")
    with pytest.raises(UsageError, match=r"already, and .*a\.txt is not as it was then"):
        prepare([corpus], tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["grown", "cut", "other bytes", "gone"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "txt.gz"])
def test_an_input_that_changes_under_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, kind: str
) -> None:
    documents = make_documents(50)
    data = SEPARATOR.join(documents).encode()
    if kind == "jsonl":
        data = "\n".join(json.dumps({"text": text}) for text in documents).encode()
    data = gzip.compress(data) if kind == "txt.gz" else data
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    real = phases.TableBuilder.finish

    def change_input(table: Any) -> Any:
        texts = {"grown": data + b"x", "cut": data[:-9], "other bytes": data[::-1], "gone": b""}
        path.write_bytes(texts[change])
        if change == "gone":
            path.unlink()
        return real(table)

    with monkeypatch.context() as patch:
        patch.setattr(phases.TableBuilder, "finish", change_input)
        with pytest.raises(DataError, match="this file was changed while it was read"):
            prepare([path], tmp_path / "out")
    path.write_bytes(data)
    prepare([path], tmp_path / "out")
    prepare([path], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


def test_an_input_that_grows_before_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is read, but it is not the file that the dataset would be a record of."""
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    real = phases.clean_corpus

    def grow_input(*given: Any, **options: Any) -> Any:
        with path.open("ab") as file:
            file.write(b"<|endoftext|>one more document")
        return real(*given, **options)

    monkeypatch.setattr(phases, "clean_corpus", grow_input)
    with pytest.raises(DataError, match="this file was changed while it was read: it had"):
        prepare([path], tmp_path / "out")
    monkeypatch.undo()
    prepare([path], tmp_path / "out")
    prepare([path], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


def test_a_copy_of_a_long_input_adds_no_short_lines(tmp_path: Path) -> None:
    verse = "\n".join(f"line {number}" for number in range(900))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(verse)
    (tmp_path / "c.txt").write_text(verse[::-1])  # of the same size
    prepare([tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"], tmp_path / "out")
    prepare([tmp_path / "a.txt", tmp_path / "c.txt"], tmp_path / "two")
    both = [snapshot(tmp_path / name) for name in ("out", "two")]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"PK\x03\x04\0\0binary", "zip archive"),
        ("a.txt", b"\x7fELF\0\0binary", "binary file"),
        ("a.txt.gz", gzip.compress(b"text " * 1000, mtime=0)[:-9], "damaged or cut-off gzip"),
        ("a.jsonl", b'{"body": "text"}\n', "not a JSON object with text in field 'text'"),
        ("a.parquet", b"PAR1", "not a parquet file"),
    ],
)
def test_bad_input_is_named_or_skipped(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    documents = make_documents(120)
    good = write_corpus(tmp_path / "good.txt", documents)
    bad = tmp_path / name
    bad.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        prepare([good, bad], tmp_path / "out")
    assert name in str(caught.value)
    result = prepare([good, bad], tmp_path / "skipped", skip_bad_inputs=True, filter=False)
    assert any(name in notice for notice in result.notices)
    found = [read_documents(tmp_path / "skipped", split) for split in layout.SPLITS]
    assert set(documents) <= set(found[0] + found[1])
    assert result.info is not None and result.info.metadata["notices"] == result.notices


def test_work_goes_on_after_an_error(tmp_path: Path) -> None:
    good = write_corpus(tmp_path / "good.txt", make_documents(50))
    (tmp_path / "bad.jsonl").write_text("nonsense")
    with pytest.raises(DataError):
        prepare([good, tmp_path / "bad.jsonl"], tmp_path / "out")
    with pytest.raises(UsageError, match="--tokens-per-shard 1000, now it is 500"):
        prepare([good, tmp_path / "bad.jsonl"], tmp_path / "out", tokens_per_shard=500)
    with pytest.raises(UsageError, match=r"list of inputs changed"):
        prepare([good], tmp_path / "out")
    prepare([good], tmp_path / "out", restart=True)
    prepare([good], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


@pytest.mark.parametrize("text", ["", "tiny", "\n\n\n"])
def test_nothing_left_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match="0 tokens are left after cleaning"):
        prepare([tmp_path / "a.txt"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_budget_too_small_is_refused_with_one_that_works(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    with pytest.raises(BudgetError, match="too small") as caught:
        prepare([corpus], tmp_path / "out", memory="20MiB")
    assert caught.value.next_step is not None
    smallest = caught.value.next_step.rsplit(" ", 1)[1]
    assert prepare([corpus], tmp_path / "out", memory=smallest).info is not None


def test_full_disk_is_refused_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(50))
    monkeypatch.setattr(resources.files, "free_disk_bytes", lambda _: 100)
    with pytest.raises(BudgetError, match="of disk"):
        prepare([corpus], tmp_path / "out")


def test_full_disk_midway_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(100))
    calls = 0
    real = sharding.write_shard  # pyright: ignore[reportPrivateUsage]

    def fail(*given: Any, **named: Any) -> ShardInfo:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device")
        return real(*given, **named)

    monkeypatch.setattr(sharding, "write_shard", fail)
    with pytest.raises(LowtideError, match="the disk is full") as caught:
        prepare([corpus], tmp_path / "out", processes=1)
    assert str(tmp_path / "out") in str(caught.value)
    prepare([corpus], tmp_path / "out")
    prepare([corpus], tmp_path / "fresh")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")


@pytest.mark.parametrize(
    "options",
    [{"val_fraction": 1.0}, {"tokens_per_shard": 1}, {"processes": 0}, {"max_repetition": 2}],
)
def test_senseless_settings_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options)).replace("_", "-")):
        prepare([tmp_path / "a.txt"], tmp_path / "out", **options)


def test_a_share_of_validation_that_was_missed_is_said(tmp_path: Path) -> None:
    documents = make_documents(150)
    info = prepare([write_corpus(tmp_path / "a.txt", documents)], tmp_path / "fair")
    held_out = read_documents(tmp_path / "fair", "val")[0]
    assert "were asked for" not in describe_preparation(info)
    long = "\n".join(f"{held_out} {number}" for number in range(40))
    for number in range(40):  # one that the hash of its text puts into validation
        texts = [*documents, f"{long} {number}"]
        corpus = write_corpus(tmp_path / "b.txt", texts)
        result = prepare([corpus], tmp_path / f"b{number}", block_bytes=4 << 20)
        assert result.info is not None
        share = result.info.num_tokens("val") / result.info.metadata["total_tokens"]
        if abs(share - 0.1) > 0.04:
            break
    text = describe_preparation(result)
    assert f"Validation has {100 * share:.1f} % of the tokens, 10.0 % were asked for" in text


def test_a_dry_run_counts_every_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_corpus(tmp_path / "a.txt", make_documents(60))
    prepare([corpus], tmp_path / "out", dry_run=True)
    (counted,) = re.findall(r"count .* (\d+) of (\d+) blocks", capsys.readouterr().err)
    assert counted[0] == counted[1] and int(counted[0]) > 3


@pytest.mark.parametrize(
    ("options", "finished", "expected"),
    [
        ({"dry_run": True}, True, ["folder", "prepare"]),
        ({}, True, ["same"]),
        ({"engine": "files"}, True, ["same", "removal"]),
        ({"engine": "files"}, False, ["others"]),
        ({"engine": "ray"}, False, ["others"]),
        ({}, False, ["strangers", "prepare"]),
    ],
)
def test_which_way_a_preparation_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], finished: bool,
    expected: list[str],
) -> None:  # fmt: skip
    calls: list[str] = []
    outs: list[Path] = []

    @contextlib.contextmanager
    def folder_beside(path: Path) -> Any:
        calls.append("folder")
        yield tmp_path / "beside"

    def note(name: str) -> Any:
        return lambda settings: calls.append(name) or outs.append(settings.out_dir) or name

    monkeypatch.setattr(preparation, "is_finished", lambda root: finished)
    monkeypatch.setattr(preparation, "_folder_beside", folder_beside)
    for name, word in (
        ("_prepare", "prepare"), ("require_same", "same"), ("_prepare_with_others", "others"),
        ("refuse_strangers", "strangers"),
    ):  # fmt: skip
        monkeypatch.setattr(preparation, name, note(word))
    monkeypatch.setattr("lowtide.dataset.staged.running.finish_removal", note("removal"))
    given = PrepareSettings(input_files=("a",), out_dir=tmp_path / "out", **options)
    result: Any = prepare_dataset(given)
    assert calls == expected
    assert result == ("same" if "same" in expected else expected[-1])
    assert outs[-1] == (tmp_path / ("beside" if "dry_run" in options else "out"))


@pytest.mark.parametrize("engine", ["files", "ray"])
def test_what_others_helped_to_make_is_looked_at_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    done = SimpleNamespace(reading="reading", seconds=2.5, peak_bytes=7, budget_bytes=9)
    asked: list[str] = []
    monkeypatch.setattr(
        "lowtide.dataset.staged.onray.prepare_on_ray", lambda settings: asked.append("ray") or done
    )
    monkeypatch.setattr(
        "lowtide.dataset.staged.running.prepare_shared",
        lambda settings, *, loading: asked.append("files") or done,
    )
    info: Any = "info"
    made = PrepareResult(info, {}, [], 0.0, 0, 0, was_there=True)
    looked: list[Any] = []
    monkeypatch.setattr(
        preparation, "require_same", lambda settings, reading: looked.append(reading) or made
    )
    settings: Any = PrepareSettings(
        input_files=("a",),
        out_dir=tmp_path / "out",
        engine=engine,  # type: ignore[arg-type]
    )
    found = preparation._prepare_with_others(settings)
    assert asked == [engine] and looked == ["reading"]
    assert found == PrepareResult(info, {}, [], 2.5, 7, 9, was_there=False)


def test_a_dataset_that_was_finished_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("some words to learn from\n" * 20)
    given: Any = {"input_files": [tmp_path / "a.txt"], "tokenization": "char", "memory": "1GiB"}
    prepare_dataset(out_dir=tmp_path / "out", **given)
    answers = iter([False, True])
    monkeypatch.setattr(preparation, "is_finished", lambda root: next(answers))
    monkeypatch.setattr(preparation, "refuse_strangers", lambda settings: None)
    found = prepare_dataset(out_dir=tmp_path / "out", **given)
    assert found.was_there and found.info is not None
    assert (found.seconds, found.peak_bytes, found.budget_bytes) == (0.0, 0, 0)


def test_a_dry_run_has_a_folder_on_the_disk_of_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = preparation._folder_beside
    with beside(tmp_path / "not" / "there" / "yet") as folder:
        assert folder.parent == tmp_path and folder.is_dir()
        assert folder.name.startswith(".lowtide.dry-run.")
    assert not folder.exists()
    monkeypatch.chdir(tmp_path)
    with beside(StorePath("s3://bucket/out")) as folder:
        assert folder.parent == tmp_path
    real = preparation.ScratchFolder
    asked: list[Any] = []

    def make(purpose: str, *, inside: Path | None = None) -> Any:
        asked.append(inside)
        if inside is not None:
            raise PermissionError
        return real(purpose)

    monkeypatch.setattr(preparation, "ScratchFolder", make)
    with beside(tmp_path) as folder:
        assert folder.parent != tmp_path
    assert asked == [tmp_path, None] and not folder.exists()
