"""Pretokenizing: the ids of the whole file, in any format, in a valid .npy."""

from __future__ import annotations

import gzip
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.corpus.reading import ReadingSettings, expand_inputs
from lowtide.dataset import npywriting, pretokenization, pretokenizingplan
from lowtide.dataset.pretokenization import pretokenize_file, pretokenize_files
from lowtide.dataset.summary import describe_pretokenization
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.journal import Journal
from lowtide.memory import MemoryBudget
from lowtide.publishing import PublishGroup
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, make_documents, snapshot, write_corpus


def test_the_ids_of_the_whole_file(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    result = pretokenize_file(file=path)
    found = np.load(tmp_path / "a.npy", mmap_mode="r")
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert found.dtype == np.uint16 and found.tolist() == expected.tolist()
    assert result.num_tokens == len(expected)
    assert f"{len(expected):,} tokens" in describe_pretokenization(result)
    assert sorted(item.name for item in tmp_path.iterdir()) == [
        ".a.npy.metrics.jsonl",
        "a.npy",
        "a.npy.json",
        "a.txt",
    ]


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("low tide")
    pretokenize_file(file=tmp_path / "a.txt", out_path=tmp_path / "new" / "ids" / "a.npy")
    assert np.load(tmp_path / "new" / "ids" / "a.npy").tolist() == [9319, 20013]


def take_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = partial(pretokenization.PlainFile, step_bytes=5000, window_bytes=1000)
    monkeypatch.setattr(pretokenization, "PlainFile", plain)


def interrupt_after_three_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Begin a file in small steps; where each ended, in this run and the following ones."""
    take_small_steps(monkeypatch)
    real = Journal.write
    steps: list[int] = []

    def stop_after_three(journal: Journal, notes: dict[str, Any]) -> None:
        real(journal, notes)
        steps.append(notes["position"])
        if len(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "write", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        pretokenize_file(file=path)
    return steps


@pytest.mark.parametrize("folder", [".", "/", "made", "made/.."])
def test_a_folder_is_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(UsageError, match="--out-path is a folder") as wrong:
        pretokenize_file(file="a.txt", out_path=folder)
    assert wrong.value.next_step == f"--out-path {Path(folder, 'a.npy')}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "made"]


def test_a_text_is_not_its_own_output(tmp_path: Path) -> None:
    """The advice was to remove it."""
    text = tmp_path / "a.txt"
    text.write_text("some text")
    (tmp_path / "link.npy").symlink_to(text)
    for name in ("link.npy", "a.txt"):
        with pytest.raises(UsageError, match="--out-path is the text itself"):
            pretokenize_file(file=text, out_path=tmp_path / name)
    assert text.read_text() == "some text"


def test_interrupted_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    steps = interrupt_after_three_steps(path, monkeypatch)
    assert not (tmp_path / "a.npy").exists()
    pretokenize_file(file=path)
    assert len(steps) == len(set(steps)) and steps == sorted(steps), "something was done twice"
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()


@pytest.mark.parametrize("damage", ["ids", "cut", "text"])
def test_ids_that_are_not_as_they_were_written_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """A flipped bit in the finished part, a power cut, another text of the same size and time.

    The journal has the checksums of the ids and of their text.
    """
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    steps = interrupt_after_three_steps(path, monkeypatch)
    changed = path if damage == "text" else next(tmp_path.glob(".a.npy.*.unfinished"))
    status, data = changed.stat(), bytearray(changed.read_bytes())
    data[200] ^= 1
    changed.write_bytes(data[:300] if damage == "cut" else data)
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    pretokenize_file(file=path)
    expected = Tokenizer.load("gpt2").encode(path.read_bytes().decode(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()
    assert "the work begins anew" in capsys.readouterr().err
    assert steps[3] == steps[0] and not list(tmp_path.glob(".*unfinished*"))


def leave_notes(folder: Path, *, identity: list[Any], name: str) -> None:
    """The files that a killed command left for a.npy."""
    journal = Journal(folder / ".a.npy.unfinished.json", verb="pretokenize", version=2)
    place = {"position": 100, "count": 9, "ids": "", "text": ""}
    journal.write({"identity": identity, "name": name, **place})


def test_changed_file_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    name = f".a.npy.{'0' * 16}.unfinished"
    (tmp_path / name).write_bytes(b"x" * 999)
    leave_notes(tmp_path, identity=[1, 2, 3], name=name)
    pretokenize_file(file=path)
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()
    assert not list(tmp_path.glob(".*unfinished*"))


def test_a_planted_link_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in (".a.npy.partial", f".a.npy.{'0' * 16}.unfinished", f".a.npy.{'1' * 16}.partial"):
        (tmp_path / name).symlink_to(victim)
    status = path.stat()
    identity = [status.st_size, status.st_mtime_ns, Tokenizer.load("gpt2").fingerprint]
    name = f".a.npy.{'0' * 16}.unfinished"
    leave_notes(tmp_path, identity=identity, name=name)
    pretokenize_file(file=path)
    assert victim.read_bytes() == b"precious"
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()


@pytest.mark.parametrize("tokenization", ["gpt2", "char"])
def test_a_second_command_at_the_same_time_is_refused_and_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tokenization: str,
) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    real = npywriting._write_header
    refused: list[str] = []

    def interfere(*arguments: Any) -> None:
        with pytest.raises(UsageError, match="another lowtide command is at work") as caught:
            pretokenize_file(file=path, tokenization="char")
        refused.append(caught.value.message)
        real(*arguments)

    monkeypatch.setattr(npywriting, "_write_header", interfere)
    pretokenize_file(file=path, tokenization=tokenization)
    assert len(refused) == 1 and f"process {os.getpid()} " in refused[0]
    tokenizer = Tokenizer.load("gpt2" if tokenization == "gpt2" else tmp_path / "a.tokenizer")
    expected = tokenizer.encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()
    told = capsys.readouterr().err  # reading the ids back is shown, after the encoding
    assert told.index("encode ") < told.index("checksum ")


@pytest.mark.parametrize("tokenization", ["gpt2", "char"])
@pytest.mark.parametrize("change", ["grown", "cut", "other bytes", "gone"])
def test_a_text_that_changes_under_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenization: str, change: str
) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    data = path.read_bytes()
    real = npywriting._write_header

    def change_text(*arguments: Any) -> None:
        texts = {"grown": data + b"x", "cut": data[:-9], "other bytes": data[::-1], "gone": b""}
        path.write_bytes(texts[change])
        if change == "gone":
            path.unlink()
        real(*arguments)

    monkeypatch.setattr(npywriting, "_write_header", change_text)
    with pytest.raises(DataError, match="was changed while it was read") as caught:
        pretokenize_file(file=path, tokenization=tokenization)
    assert caught.value.path == path
    assert not (tmp_path / "a.npy").exists()
    monkeypatch.undo()
    path.write_bytes(data)
    pretokenize_file(file=path, tokenization=tokenization)
    assert np.load(tmp_path / "a.npy").size


def test_the_bytes_of_a_compressed_file_are_not_its_texts(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "a.txt", make_documents(50))
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    for path, plain in ((text, True), (packed, False)):
        assert [pretokenize_file(file=path).is_plain for _ in range(2)] == [plain, plain]


@pytest.mark.parametrize("tokenization", ["gpt2", "char"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\x7fELF\2\0\0 binary", "binary file: byte 5"), ("text".encode("utf-16"), "UTF-16")],
)
def test_what_is_no_text_is_refused(
    tmp_path: Path, tokenization: str, suffix: str, data: bytes, message: str
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with pytest.raises(DataError, match=f"this looks like .*{message}") as caught:
        pretokenize_file(file=path, tokenization=tokenization)
    assert caught.value.path == path
    assert not (tmp_path / "a.npy").exists()


def test_a_text_that_changes_between_its_ids_and_its_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the ids of one text would have the checksum of the other."""
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    real = npywriting._Digest.advance_file

    def change_first(digest: Any, source: Path, position: int) -> None:
        source.write_bytes(source.read_bytes()[::-1])
        real(digest, source, position)

    monkeypatch.setattr(npywriting._Digest, "advance_file", change_first)
    with pytest.raises(DataError, match="changed while it was read"):
        pretokenize_file(file=path)
    assert not (tmp_path / "a.npy").exists()


def test_a_text_that_was_only_touched_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    real = npywriting._write_header

    def touch(*arguments: Any) -> None:
        os.utime(path, ns=(1, 1))
        real(*arguments)

    monkeypatch.setattr(npywriting, "_write_header", touch)
    assert pretokenize_file(file=path).num_tokens


def test_the_same_command_again_touches_nothing(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    made = pretokenize_file(file=path, tokenization="char")
    before = snapshot(tmp_path)
    os.utime(path, ns=(1, 1))
    again = pretokenize_file(file=path, tokenization="char")
    assert again.was_there and again.num_tokens == made.num_tokens
    assert "nothing was touched" in describe_pretokenization(again)
    assert snapshot(tmp_path) == before


def test_other_settings_or_another_text_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    pretokenize_file(file=path, tokenization="char")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="made with tokenizer char, now it is gpt2"):
        pretokenize_file(file=path)
    with pytest.raises(UsageError, match="made with --encoding utf-8, now it is latin-1"):
        pretokenize_file(file=path, tokenization="char", encoding="latin-1")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    os.utime(path, ns=(1, 1))
    with pytest.raises(UsageError, match="other text of the same size"):
        pretokenize_file(file=path, tokenization="char")
    path.write_bytes(data + b"more")
    with pytest.raises(UsageError, match=f"has {len(data) + 4} bytes, it had {len(data)}"):
        pretokenize_file(file=path, tokenization="char")
    path.write_bytes(data)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl"])
def test_documents_end_with_end_of_text(tmp_path: Path, name: str) -> None:
    documents = make_documents(30)
    data = SEPARATOR.join(documents).encode()
    if name == "a.jsonl":
        data = "\n".join(json.dumps({"text": text}) for text in documents).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    pretokenize_file(file=tmp_path / name)
    text = Tokenizer.load("gpt2").decode(np.load(tmp_path / "a.npy"))
    # Rows are whole documents; a text contains only what is between them.
    end = SEPARATOR if name == "a.jsonl" else ""
    assert text == SEPARATOR.join(documents) + end


def test_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ein Übel für alle\n")
    pretokenize_file(file=path, tokenization="char")
    tokenizer = Tokenizer.load(tmp_path / "a.tokenizer")
    assert tokenizer.decode(np.load(tmp_path / "a.npy")) == "ein Übel für alle\n"


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert pretokenize_file(file=tmp_path / "a.txt").num_tokens == 0
    assert np.load(tmp_path / "a.npy").shape == (0,)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.npy").write_bytes(b"precious")
    with pytest.raises(UsageError, match="nothing says what it was made of"):
        pretokenize_file(file=tmp_path / "a.txt")
    assert (tmp_path / "a.npy").read_bytes() == b"precious"
    with pytest.raises(DataError, match="no such file"):
        pretokenize_file(file=tmp_path / "none.txt")


@pytest.mark.parametrize("end", ["", SEPARATOR, "\n", SEPARATOR * 2])
def test_compressed_and_other_encodings_give_the_ids_of_the_plain_file(
    tmp_path: Path, end: str
) -> None:
    text = SEPARATOR.join([*make_documents(5)[:3], "", "Übung am Ende"]).replace("水", "") + end
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.txt").write_bytes(text.encode("latin-1"))
    for name, encoding in (("a.txt", "utf-8"), ("b.txt.gz", "utf-8"), ("c.txt", "latin-1")):
        pretokenize_file(file=tmp_path / name, encoding=encoding)
    expected = np.load(tmp_path / "a.npy").tolist()
    assert np.load(tmp_path / "b.npy").tolist() == expected
    assert np.load(tmp_path / "c.npy").tolist() == expected


def test_each_of_several_files_has_its_npy(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    results = pretokenize_files(file=[tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [result.path.name for result in results] == ["a.npy", "b.npy"]
    text = Tokenizer.load("gpt2").decode(np.load(tmp_path / "b.npy"))
    assert text == "text of b.txt"
    assert [result.was_there for result in pretokenize_files(file=tmp_path)] == [True, True]
    with pytest.raises(UsageError, match="--out-path is one file"):
        pretokenize_files(file=tmp_path, out_path=tmp_path / "c.npy")
    (tmp_path / "a.md").write_text("another one")
    with pytest.raises(UsageError, match=r"a\.md and a\.txt would have the same"):
        pretokenize_files(file=tmp_path)


def test_rows_without_text_are_skipped_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "low tide"}\n{"id": 1}\n{"text": "low"}\n')
    with pytest.raises(DataError, match="its fields: 'id'"):
        pretokenize_file(file=tmp_path / "a.jsonl")
    pretokenize_file(file=tmp_path / "a.jsonl", skip_bad_inputs=True)
    assert np.load(tmp_path / "a.npy").tolist() == [9319, 20013, 50256, 9319, 50256]


def test_ids_are_on_the_disk_before_the_note_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves a hole that the next run would take for ids."""
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    take_small_steps(monkeypatch)
    events: list[str] = []
    sync, write = os.fsync, Journal.write

    def traced_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def traced_write(journal: Journal, notes: dict[str, Any]) -> None:
        events.append("note")
        write(journal, notes)

    monkeypatch.setattr(os, "fsync", traced_sync)
    monkeypatch.setattr(Journal, "write", traced_write)
    pretokenize_file(file=path)
    notes = [place for place, event in enumerate(events) if event == "note"]
    assert len(notes) > 3
    ids = {events[place - 1] for place in notes}
    assert len(ids) == 1 and ids.pop().startswith(".a.npy."), events


def test_a_tokenizer_is_loaded_once_and_a_later_file_needs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    real = Tokenizer.load

    def load(source: str | Path) -> Tokenizer:
        loaded.append(str(source))
        return real(source)

    monkeypatch.setattr(pretokenization.Tokenizer, "load", load)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"some words in file {number}")
    with pytest.raises(BudgetError) as refused:
        pretokenize_files(file=[tmp_path], memory="1MiB")
    smallest = str(refused.value).rsplit("--memory ", 1)[1]
    loaded.clear()
    results = pretokenize_files(file=[tmp_path], memory=smallest)
    assert len(results) == 3 and len(loaded) == 1
    assert pretokenize_files(file=[tmp_path], memory=smallest)[0].was_there and len(loaded) == 2


def test_a_damaged_npy_is_not_finished(tmp_path: Path) -> None:
    """The same command again compares its results: ids, record and tokenizer."""
    (tmp_path / "a.txt").write_text("the tide is low, the water leaves the sand")
    given = {"file": [tmp_path / "a.txt"], "tokenization": "char"}
    out = pretokenize_file(**given).path
    for path in (out, tmp_path / "a.tokenizer" / "tokenizer.json"):
        whole = path.read_bytes()
        flipped = whole[:-9] + bytes([whole[-9] ^ 2]) + whole[-8:] if path == out else whole[:9]
        for damaged in (whole[:-5], whole + b"}", flipped):
            path.write_bytes(damaged)
            with pytest.raises(DataError):
                pretokenize_file(**given)
        path.write_bytes(whole)
        assert pretokenize_file(**given).was_there


def test_workers_get_what_reading_leaves_of_the_budget() -> None:
    worker, slack = pretokenizingplan.WORKER_BYTES, pretokenizingplan.SLACK_BYTES
    shared: Any = SimpleNamespace(most_workers=8)
    for spare, workers in ((0, 3), (worker - 1, 3), (-1, 2)):
        budget = MemoryBudget(10 * worker + slack + 3 * worker + spare, used_bytes=0)
        found = pretokenizingplan.plan_workers(shared, Any, budget, stream_bytes=10 * worker)
        assert found == workers
        assert budget.remaining_bytes == (3 - workers) * worker + spare


def test_rows_are_encoded_by_as_many_workers_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a cache of pieces: one for each core would exceed the budget."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "low tide"}\n')
    asked: list[Any] = []
    encode = Tokenizer.encode_batch

    def noting(self: Tokenizer, texts: Any, **given: Any) -> Any:
        asked.append(given["num_workers"])
        return encode(self, texts, **given)

    monkeypatch.setattr(Tokenizer, "encode_batch", noting)
    for workers in (1, 3):
        out = tmp_path / f"{workers}.npy"
        given: Any = {"out_path": out, "memory": "1GiB", "num_workers": workers}
        pretokenize_file(file=rows, tokenization="gpt2", **given)
    assert asked == [1, 3]


def test_a_refusal_says_how_much_of_the_text_it_has_not_looked_at(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt.gz").write_bytes(b"no gzip at all..")
    with pytest.raises(BudgetError, match=r"48 B of the input were not looked at"):
        pretokenize_files(file=[tmp_path], tokenization="char", memory="1MiB")


def test_batches_of_tiny_texts_are_small(tmp_path: Path) -> None:
    """A text needs its objects and those of its ids, however short it is."""
    path = tmp_path / "tiny.jsonl"
    path.write_text('{"text": "a"}\n' * 30_000)
    (source,) = expand_inputs([path])
    sizes = [len(texts) for texts, _ in npywriting.iter_batches(source, ReadingSettings())]
    assert sum(sizes) == 30_000
    assert max(sizes) <= npywriting._BATCH_BYTES // npywriting._TEXT_BYTES


def test_small_files_are_published_in_groups_and_an_interrupted_group_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(70):
        (tmp_path / f"{number:02}.txt").write_text(f"low tide, number {number}")
    (tmp_path / "a.jsonl").write_text('{"text": "low tide"}\n')
    real = PublishGroup.publish
    groups: list[int] = []

    def cut_off(group: PublishGroup) -> None:
        groups.append(group.num_waiting)
        if len(groups) > 1:
            raise RuntimeError("the power is cut")
        real(group)

    monkeypatch.setattr(PublishGroup, "publish", cut_off)
    with pytest.raises(RuntimeError, match="power"):
        pretokenize_files(file=[tmp_path])
    assert groups == [64, 7]
    there = {path.name for path in tmp_path.glob("*.npy")}
    assert len(there) == 64 and {f"{name}.json" for name in there} == {
        path.name for path in tmp_path.glob("*.npy.json")
    }
    monkeypatch.setattr(PublishGroup, "publish", real)
    results = pretokenize_files(file=[tmp_path])
    assert [row.was_there for row in results] == [True] * 64 + [False] * 7
    assert np.load(tmp_path / "69.npy").size and np.load(tmp_path / "a.npy").size
    hidden = {path.name for path in tmp_path.glob(".*")}
    assert all(name.endswith(".metrics.jsonl") for name in hidden), hidden


@pytest.mark.parametrize(("free", "fits"), [(1000, True), (999, False)])
def test_ids_have_room_on_the_disk_or_are_refused(
    monkeypatch: pytest.MonkeyPatch, free: int, fits: bool
) -> None:
    """Half as many ids as bytes, which is more than any text has."""
    asked: list[Path] = []
    monkeypatch.setattr(
        pretokenization.files, "free_disk_bytes", lambda path: asked.append(path) or free
    )
    for size, kind in ((1001, "<u2"), (500, "<i4")):
        source: Any = SimpleNamespace(size_bytes=size)
        given: Any = (source, Path("out") / "a.npy", np.dtype(kind))
        if fits:
            pretokenization._check_disk(*given)
        else:
            with pytest.raises(DataError, match="the ids may need 1000 B of disk, 999 B are free"):
                pretokenization._check_disk(*given)
    assert asked == [Path("out")] * 2


def test_a_tokenizer_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "a.npy"
    folder = pretokenization.tokenizer_dir(out)
    mine, other = Tokenizer.from_characters("ab"), Tokenizer.from_characters("abc")
    pretokenization._require_free_place(out, mine)  # nothing exists
    folder.mkdir()
    pretokenization._require_free_place(out, mine)
    mine.save(folder)
    pretokenization._require_free_place(out, mine)  # killed just before the record was written
    with pytest.raises(UsageError, match="choose another --out-path"):
        pretokenization._require_free_place(out, other)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="choose another --out-path"):
        pretokenization._require_free_place(out, mine)
    pretokenization.record_path(out).write_text("{}")
    pretokenization._require_free_place(out, other)  # it belongs to an earlier .npy


@pytest.mark.parametrize(
    ("known", "now", "same"),
    [("char", "char", True), ("char", "gpt2", False), ("gpt2", "char", False), ("a", "b", True)],
)
def test_tokenizers_are_the_same_by_name_or_fingerprint(known: str, now: str, same: bool) -> None:
    record: Any = SimpleNamespace(tokenization=known, tokenizer_fingerprint="f")
    shared: Any = SimpleNamespace(
        settings=SimpleNamespace(tokenization=now), named_tokenizer=SimpleNamespace(fingerprint="f")
    )
    words = f"it was made with tokenizer {known}, now it is {now}"
    assert pretokenization._tokenizer_difference(record, shared) == (None if same else words)
    shared.named_tokenizer.fingerprint = "g"
    found = pretokenization._tokenizer_difference(record, shared)
    assert found == (None if same and "char" in (known, now) else words)


@pytest.mark.parametrize(
    ("sizes", "full_at", "expected"),
    [
        ([5, 5, 5], 99, [3]),
        ([5, 5, 5], 2, [2, 1]),  # a full group is published
        ([5, (1 << 20) + 1, 5], 99, [2, 1]),  # and a large file at once
        ([5, 1 << 20, 5], 99, [3]),
    ],
)
def test_results_come_when_their_group_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], full_at: int,
    expected: list[int],
) -> None:  # fmt: skip
    sources = [
        SimpleNamespace(path=tmp_path / f"{number}.txt", size_bytes=size)
        for number, size in enumerate(sizes)
    ]
    published: list[int] = []

    class Group:
        waiting = 0

        def __enter__(self) -> Group:
            return self

        def __exit__(self, *details: object) -> None:
            if self.waiting:
                published.append(self.waiting)

        @property
        def is_full(self) -> bool:
            return self.waiting >= full_at

        @property
        def num_waiting(self) -> int:
            return self.waiting

        def publish(self) -> None:
            published.append(self.waiting)
            self.waiting = 0

    def encode(shared: Any, source: Any, out: Path, group: Group) -> str:
        group.waiting += 1
        return out.name

    monkeypatch.setattr(pretokenization, "expand_inputs", lambda given: sources)
    monkeypatch.setattr(pretokenization, "PublishGroup", Group)
    monkeypatch.setattr(pretokenization, "_pretokenize", encode)
    settings: Any = SimpleNamespace(file=(), out_path=None)
    assert list(pretokenization.iter_pretokenized(settings)) == ["0.npy", "1.npy", "2.npy"]
    assert published == expected
