"""Appending: new documents once, existing files untouched, the same after any kill."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.dataset import appendable, appending, grown, layout, rehashing
from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.summary import describe_append, describe_preparation
from lowtide.dataset.tokenfiles.shards import load_document_ends, shard_number
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.filenames import METADATA_NAME
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import (
    SEPARATOR,
    kill_at_rename,
    make_documents,
    read_documents,
    snapshot,
    write_corpus,
)


def make_dataset(folder: Path, documents: list[str], **options: Any) -> Path:
    corpus = write_corpus(folder / "old.txt", documents)
    options = {"tokenization": "char", "tokens_per_shard": 4000, "block_bytes": 2048, **options}
    prepare_dataset(input_files=[corpus], out_dir=folder / "out", **options)
    return folder / "out"


def append(root: Path, *paths: Path, **options: Any) -> AppendResult:
    options = {"block_bytes": 2048, **options}
    return append_to_dataset(dataset_dir=root, input_files=paths, **options)


def all_documents(root: Path) -> list[str]:
    """Decode all documents: an appended shard begins with a new document."""
    info = layout.load_dataset_info(root)
    assert info.root == root
    return read_documents(root, "train") + read_documents(root, "val")


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"tokenization": "gpt2"}])
def test_new_documents_once_and_old_files_untouched(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    old, new = make_documents(200), make_documents(150, seed=1)
    root = make_dataset(tmp_path, old, **options)
    before = snapshot(root)
    extra = write_corpus(tmp_path / "new.txt", [*old[50:100], *new, new[0]])
    result = append(root, extra)
    after = snapshot(root)
    assert {name: after[name] for name in before if name != METADATA_NAME} == {
        name: data for name, data in before.items() if name != METADATA_NAME
    }
    assert sorted(all_documents(root)) == sorted(old + new)
    assert result.report["rules"]["duplicate_document"]["count"] == 51
    assert verify_dataset(dataset_dir=root).problems == []
    metadata = result.info.metadata
    assert metadata["input_files"] == [str(tmp_path / "old.txt"), str(extra)]
    numbers = [shard_number(s.path) for split in layout.SPLITS for s in result.info.shards[split]]
    assert len(numbers) == len(set(numbers)) == metadata["total_shards"]
    assert metadata["total_tokens"] == sum(map(result.info.num_tokens, layout.SPLITS))


def test_documents_keep_their_split(tmp_path: Path) -> None:
    old, new = make_documents(200), make_documents(150, seed=1)
    root = make_dataset(tmp_path, old)
    append(root, write_corpus(tmp_path / "new.txt", new))
    together = make_dataset(tmp_path / "together", old + new)
    for split in layout.SPLITS:
        assert sorted(read_documents(root, split)) == sorted(read_documents(together, split))


def test_single_lines_are_compared_with_what_is_there(tmp_path: Path) -> None:
    old = make_documents(120)
    root = make_dataset(tmp_path, old, tokenization="gpt2")
    line = old[7].split("\n")[0]
    fresh = "a line that nobody has seen before, in a document of two"
    extra = write_corpus(tmp_path / "new.txt", [f"{line}\n{fresh}"])
    result = append(root, extra)
    assert result.report["rules"]["duplicate_line"]["count"] == 1
    assert fresh in all_documents(root)


def test_nothing_new_adds_nothing(tmp_path: Path) -> None:
    old = make_documents(120)
    root = make_dataset(tmp_path, old)
    result = append(root, tmp_path / "old.txt")
    assert result.added_tokens == 0 and result.added_shards == 0
    assert sorted(all_documents(root)) == sorted(old)


@pytest.mark.parametrize("dedup", [True, False])
def test_the_same_append_again_touches_nothing(tmp_path: Path, dedup: bool) -> None:
    root = make_dataset(tmp_path, make_documents(120), dedup=dedup)
    new = write_corpus(tmp_path / "new.txt", make_documents(40, seed=1))
    assert append(root, new).added_tokens > 0
    before = snapshot(root)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(new.read_bytes())
    for path in (new, copy, tmp_path / "old.txt"):
        result = append(root, path)
        assert result.was_there and result.added_tokens == 0
        assert "nothing was touched" in describe_append(result)
    assert snapshot(root) == before
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one text of a row, some words", "more": "another text of this row"}')
    for field in ("text", "more"):  # one file, two texts
        result = append(root, rows, text_field=field)
        assert result.added_tokens > 0
        again = append(root, rows, text_field=field)
        assert again.was_there


def test_an_append_after_one_that_added_nothing_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path, make_documents(120))
    known = write_corpus(tmp_path / "known.txt", make_documents(120)[::-1])
    assert append(root, known).added_tokens == 0
    new = write_corpus(tmp_path / "new.txt", make_documents(40, seed=1))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            append(root, new)
    assert append(root, new).added_tokens > 0
    assert verify_dataset(dataset_dir=root).problems == []


LINES = st.sampled_from(
    ["short", "a b", "x" * 19, *(f"a line {n} that is long enough to compare" for n in range(5))]
)
DOCUMENTS = st.lists(st.lists(LINES, min_size=1, max_size=5), min_size=1, max_size=5)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DOCUMENTS, min_size=2, max_size=5), st.data())
def test_any_split_of_the_inputs_keeps_what_one_preparation_would(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[list[str]]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("split")
    # A first document that is always kept, so that no preparation is left with nothing.
    texts = [[["a first document that nothing can be said against"]], *texts]
    paths = [
        write_corpus(folder / f"{number}.txt", ["\n".join(lines) for lines in documents])
        for number, documents in enumerate(texts)
    ]
    paths = [paths[0], *data.draw(st.permutations(paths[1:]))]
    Tokenizer.from_merges([]).save(folder / "bytes")
    options: dict[str, Any] = {"tokenization": str(folder / "bytes"), "tokens_per_shard": 300}
    prepare_dataset(input_files=paths, out_dir=folder / "one", **options)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(paths) - 1), min_size=1)))
    prepare_dataset(input_files=paths[: cuts[0]], out_dir=folder / "many", **options)
    for begin, end in pairwise([*cuts, len(paths)]):
        append(folder / "many", *paths[begin:end])
    one, many = (sorted(_decode(folder / name)) for name in ("one", "many"))
    assert many == one


def _decode(root: Path) -> list[bytes]:
    """Decode all documents, also those that begin in train and end in val."""
    info = layout.load_dataset_info(root)
    tokenizer = Tokenizer.load(root)
    rows = sorted(
        (shard for split in layout.SPLITS for shard in info.shards[split]),
        key=lambda shard: shard.path.name,
    )
    data = b"".join(shard.path.read_bytes() for shard in rows)
    text = tokenizer.decode_bytes(np.frombuffer(data, dtype=info.dtype))
    return text.split(SEPARATOR.encode())


def test_one_document_dataset_grows_at_its_end(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(1))
    new = make_documents(3, seed=1)
    result = append_to_dataset(
        dataset_dir=root, input_files=[write_corpus(tmp_path / "new.txt", new)]
    )
    assert result.added_tokens > 0
    assert min(map(result.info.num_tokens, layout.SPLITS)) > 0


def test_unknown_characters_are_named(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(120), tokenization="char")
    extra = write_corpus(tmp_path / "new.txt", ["a document with a € sign in the middle"])
    result = append(root, extra)
    assert any("'€'" in notice for notice in result.notices)


def test_killed_anywhere_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = make_documents(120), make_documents(80, seed=1)
    root = make_dataset(tmp_path, old, tokenization="char")
    extra = write_corpus(tmp_path / "new.txt", new)
    shutil.copytree(root, tmp_path / "expected")
    append(tmp_path / "expected", extra)
    expected = snapshot(tmp_path / "expected")

    kills = 0
    for limit in range(1, 60, 7):
        copy = tmp_path / f"copy{limit}"
        shutil.copytree(root, copy)
        kills += kill_at_rename(
            monkeypatch,
            limit,
            lambda copy=copy: append(copy, extra, processes=1),
        )
        if (copy / ".work").exists():
            append(copy, extra)
        assert snapshot(copy) == expected, f"after rename {limit}"
    assert kills >= 2, "hardly anything was killed"


def test_killed_while_cleaning_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_dataset(tmp_path, make_documents(120))
    extra = write_corpus(tmp_path / "new.txt", make_documents(30, seed=1))
    with monkeypatch.context() as patch:
        patch.setattr(appending, "remove_work", lambda _: None)
        first = append(root, extra)
    again = append(root, extra)
    assert again.was_there and again.added_tokens == 0
    assert not (root / ".work").exists()
    assert layout.load_dataset_info(root).fingerprint == first.info.fingerprint


def test_other_work_in_the_folder_is_not_mixed_up(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(120))
    (tmp_path / "bad.jsonl").write_text("nonsense")
    new = write_corpus(tmp_path / "new.txt", make_documents(20, seed=1))
    with pytest.raises(DataError):
        append(root, new, tmp_path / "bad.jsonl")
    with pytest.raises(UsageError, match="finished dataset"):
        prepare_dataset(input_files=[tmp_path / "old.txt"], out_dir=root, tokenization="char")
    other = write_corpus(tmp_path / "other.txt", make_documents(120)[::-1])
    with pytest.raises(UsageError, match="changed since"):
        append(root, other)
    result = append(root, other, restart=True)
    assert result.added_tokens == 0
    assert not (root / ".work").exists()


def test_nothing_of_an_append_given_up_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path, make_documents(120))
    extra = write_corpus(tmp_path / "extra.txt", make_documents(40, seed=1))

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", fail)
        with pytest.raises(LowtideError, match="the disk is full"):
            append(root, extra)
    assert None in {shard.checksum for shard in layout.load_dataset_info(root).shards["train"]}
    other = write_corpus(tmp_path / "other.txt", make_documents(3, seed=2))
    moved = root / "train" / "shard_00900.bin"
    moved.write_bytes(next((root / "train").glob("*.bin")).read_bytes())  # of another program
    result = append(root, other, restart=True)
    assert result.info.moved_in == ["train/shard_00900.bin"]
    moved.unlink()
    metadata = root / METADATA_NAME
    rows = json.loads(metadata.read_text())
    rows["shards"]["train"] = [r for r in rows["shards"]["train"] if r["xxh3_128"] is not None]
    metadata.write_text(json.dumps(rows))
    found = [text for split in layout.SPLITS for text in read_documents(root, split)]
    assert sorted(found) == sorted(make_documents(120) + make_documents(3, seed=2))


@pytest.mark.parametrize("block_bytes", [1 << 20, 1000])
def test_a_document_of_short_lines_is_found_across_shards_and_splits(
    tmp_path: Path, block_bytes: int
) -> None:
    verse = "\n".join(f"line {number}" for number in range(150))
    root = make_dataset(tmp_path, [verse], tokens_per_shard=400)
    more = write_corpus(tmp_path / "more.txt", [verse, verse])
    again = append(root, more, block_bytes=block_bytes)
    assert again.added_tokens == 0
    assert again.report["rules"]["duplicate_document"]["count"] == 2


def test_documents_of_a_shard_moved_in_without_ends_are_found(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(120))
    other = make_dataset(
        tmp_path / "other",
        make_documents(40, seed=1),
        tokenization=str(root),
        tokens_per_shard=100_000,
    )
    shutil.copy(next((other / "train").glob("*.bin")), root / "train" / "shard_00900.bin")
    moved = [text for text in make_documents(40, seed=1) if text in read_documents(other, "train")]
    extra = write_corpus(tmp_path / "new.txt", moved)
    result = append(root, extra)
    assert result.report["rules"]["duplicate_document"]["count"] == len(moved) > 10


def test_restart_removes_work_where_there_is_nothing_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_dataset(tmp_path, make_documents(30))
    write_corpus(tmp_path / "new.txt", make_documents(30, seed=1))

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", stop)
        with pytest.raises(KeyboardInterrupt):
            append(root, tmp_path / "new.txt")
    for restart in (False, True):
        options = {"dataset_dir": root, "input_files": [tmp_path / "old.txt"]}
        assert append_to_dataset(**options, restart=restart).was_there
        assert (root / ".work").exists() != restart


def test_a_dataset_that_keeps_no_settings_keeps_the_size_of_its_shards(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(30), tokens_per_shard=1234)
    metadata = root / METADATA_NAME
    rows = json.loads(metadata.read_text())
    del rows["settings"], rows["settings_checksum"]
    assert rows["tokens_per_shard"] == 1234
    metadata.write_text(json.dumps(rows))
    info = layout.load_dataset_info(root)
    given = appending.AppendSettings(dataset_dir=root, input_files=("a.txt",))
    assert appendable.stored_settings(info, given).tokens_per_shard == 1234


def test_documents_that_end_where_a_chunk_ends_are_decoded_once(tmp_path: Path) -> None:
    root = make_dataset(tmp_path, make_documents(20), val_fraction=0.0, tokens_per_shard=100_000)
    info = layout.load_dataset_info(root)
    shards = info.shards["train"]
    first_end = int(load_document_ends(shards[0])[0])
    stretches, tokenizer = rehashing.whole_shards(shards), Tokenizer.load(root)
    parts = rehashing.iter_texts(stretches, info.dtype, tokenizer, decode_tokens=first_end)
    texts = [text.decode() for part, _ in parts for text in part]
    assert texts == read_documents(root, "train") and len(texts[0]) == first_end - 1


def test_no_more_is_decoded_at_once_than_a_block(tmp_path: Path) -> None:
    """However long the text of a token is: ids do not tell the number of bytes."""
    root = make_dataset(tmp_path, make_documents(20), val_fraction=0.0, tokens_per_shard=3000)
    info = layout.load_dataset_info(root)
    shards = list(info.shards["train"])
    expected = read_documents(root, "train")
    sizes = [len(text.encode()) for text in expected]
    limit = sorted(sizes)[len(sizes) // 2]  # half of the documents are longer
    tokenizer = Tokenizer.load(root)
    longest = max(map(len, tokenizer.vocabulary.values()))
    for cut_long in (True, False):
        stretches = rehashing.whole_shards(shards)
        found = rehashing.iter_texts(
            stretches, info.dtype, tokenizer, block_bytes=limit, cut_long=cut_long
        )
        parts = list(found)
        assert max(sum(map(len, texts)) for texts, _ in parts) <= limit + longest
        assert sum(count for _, count in parts) == sum(shard.num_tokens for shard in shards)
        texts = [text.decode() for part, _ in parts for text in part]
        if cut_long:
            assert "".join(texts) == "".join(expected) and len(texts) > len(expected)
        else:
            kept = [text if len(text.encode()) <= limit else "" for text in expected]
            assert texts == kept


def test_characters_that_the_tokenizer_does_not_have_are_counted(tmp_path: Path) -> None:
    """By prepare with a tokenizer of other text, with both engines, and by append."""
    Tokenizer.from_characters("abcdefghijklmnopqrstuvwxyz \n").save(tmp_path / "tok")
    text = "a first line of plain letters\nThe Second, with 5 others\n"
    unknown = sum(letter not in "abcdefghijklmnopqrstuvwxyz \n" for letter in text)
    told = f"{unknown} characters of the kept text are unknown to the tokenizer: <unk>"
    corpus = write_corpus(tmp_path / "a.txt", [text, "nothing but letters in this one"])
    for engine in ("threads", "files"):
        result = prepare_dataset(
            input_files=[corpus], out_dir=tmp_path / engine, tokenization=str(tmp_path / "tok"),
            engine=engine, num_workers=1,
        )  # fmt: skip
        assert result.report["unknown_characters"] == unknown
        assert told in describe_preparation(result)
        assert result.info.metadata["cleaning"]["unknown_characters"] == unknown
    more = write_corpus(tmp_path / "b.txt", ["more of what was said, and some \u00e9 \u00e8"])
    added = append(tmp_path / "threads", more)
    assert added.report["unknown_characters"] == 3
    assert "3 characters of the kept text are unknown" in describe_append(added)
    again = append_to_dataset(
        dataset_dir=tmp_path / "threads",
        input_files=[write_corpus(tmp_path / "c.txt", ["plain letters again"])],
    )
    assert "unknown_characters" not in again.report


def test_a_file_moves_also_to_another_disk_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 9000)
    plain = os.rename

    def across(self: Path, other: Path) -> None:
        if self == source:
            raise OSError(errno.EXDEV, "another disk")
        plain(self, other)

    monkeypatch.setattr(Path, "replace", across)
    grown._move(source, target)
    assert target.read_bytes() == bytes(range(256)) * 9000
    assert not source.exists()
    monkeypatch.undo()
    grown._move(source, target)  # before a kill
    target.unlink()
    with pytest.raises(FileNotFoundError):
        grown._move(source, target)
    source.write_text("x")
    with pytest.raises(OSError, match="Directory"):
        grown._move(source, tmp_path)


@pytest.mark.parametrize("engine", ["threads", "files"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"vocab_size": 50_258}, "vocab_size is 50258, tokenizer.json has 50257"),
        ({"end_of_text_id": 220}, "end_of_text_id is 220, no special token's"),
        ({"documents": 7}, "files of document ends differ: train/shard_00000"),
        ({"settings": {"lowercase": True}}, "settings or split are not those that lowtide wrote"),
        ({"split": {"val_fraction": 0.2}}, "settings or split are not those that lowtide wrote"),
    ],
)
def test_metadata_that_was_edited_is_not_grown(
    tmp_path: Path, engine: str, change: dict[str, Any], told: str
) -> None:
    """Only `verify` noticed; the new metadata had what was false in the old, and sums of it."""
    root = make_dataset(tmp_path, make_documents(120), tokenization="gpt2")
    new = write_corpus(tmp_path / "new.txt", make_documents(40, seed=1))
    metadata = json.loads((root / METADATA_NAME).read_text())
    if "documents" in change:
        metadata["shards"]["train"][0].update(change)
    for name in change.keys() & {"settings", "split"}:
        change = {name: {**metadata[name], **change[name]}}
    (root / METADATA_NAME).write_text(json.dumps({**metadata, **change}))
    assert verify_dataset(dataset_dir=root).problems
    before = snapshot(root)
    with pytest.raises(DataError, match=told) as caught:
        append(root, new, engine=engine)
    assert "lowtide verify" in str(caught.value.next_step)
    assert {name: data for name, data in snapshot(root).items() if ".work/" not in name} == before
