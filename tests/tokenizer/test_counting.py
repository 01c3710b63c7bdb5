"""Counting is exact for any number of threads, any window, any table, and after any stop."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus.contents import ContentLog
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.errors import BudgetError, DataError
from lowtide.memory import smallest_budget
from lowtide.progress import Progress
from lowtide.tokenizer import counting, reference
from lowtide.tokenizer.counting import (
    CountCheckpoints,
    CountingNeeds,
    InputPlace,
    count_pieces,
    held_bytes,
)
from lowtide.tokenizer.learning import planned_bytes
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern
from lowtide.tokenizer.stretches import Stretch

MakeText = Callable[[int, int], bytes]
PLENTY = 64 << 20
_FOLDERS = itertools.count()  # a new name by looking at hundreds of others takes milliseconds
DIGITS_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")  # numbers spelled as one word


def make_counter(
    folder: Path,
    *,
    pattern: str = "gpt2",
    specials: list[str] | None = None,
    num_threads: int = 2,
    table_bytes: int = PLENTY,
    window_bytes: int = 1 << 16,
) -> _native.PieceCounter:
    return _native.PieceCounter(
        pattern,
        [special.encode() for special in specials or []],
        num_threads=num_threads,
        table_bytes=table_bytes,
        window_bytes=window_bytes,
        spill_dir=str(folder),
    )


def drained(counter: _native.PieceCounter) -> Counter[bytes]:
    items = counter.drain()
    counts = Counter(dict(items))
    assert len(counts) == len(items), "a piece was given twice"
    assert counter.distinct == len(items)
    return counts


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_counts_as_the_reference(
    pattern: Pattern,
    data: st.DataObject,
    nasty_bytes: st.SearchStrategy[bytes],
    specials: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    texts = data.draw(st.lists(nasty_bytes, max_size=3))
    num_threads = data.draw(st.integers(1, 4))
    folder = tmp_path_factory.getbasetemp() / f"spill{next(_FOLDERS)}"
    folder.mkdir()
    counter = make_counter(
        folder,
        pattern=pattern,
        specials=specials,
        num_threads=num_threads,
        table_bytes=data.draw(st.sampled_from([0, 1 << 12, 1 << 20])),
        window_bytes=data.draw(st.sampled_from([1, 7, 64, 1 << 16])),
    )
    counter.count_texts(texts)
    expected = reference.count_pieces(texts, pattern=pattern, specials=specials)
    assert counter.pieces_done == expected.total()
    assert counter.bytes_done == sum(map(len, texts))
    assert drained(counter) == expected


@pytest.mark.parametrize("window_bytes", [1, 100, 4096, 1 << 20])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_files_of_any_window_and_thread_count(
    tmp_path: Path, make_text: MakeText, specials: list[str], window_bytes: int, num_threads: int
) -> None:
    text = make_text(5, 60_000)
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    counter = make_counter(
        tmp_path, specials=specials, num_threads=num_threads, window_bytes=window_bytes
    )
    assert counter.count_file(str(path), 0, len(text), len(text)) == len(text)
    assert drained(counter) == reference.count_pieces([text], pattern="gpt2", specials=specials)


def test_a_file_counted_in_parts(tmp_path: Path, make_text: MakeText, specials: list[str]) -> None:
    text = make_text(6, 40_000)
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    counter = make_counter(tmp_path, specials=specials, window_bytes=50)
    place = 0
    while place < len(text):
        reached = counter.count_file(str(path), place, min(place + 999, len(text)), len(text))
        assert reached > place
        place = reached
    assert drained(counter) == reference.count_pieces([text], pattern="gpt2", specials=specials)


def test_tables_too_small_spill_and_lose_nothing(tmp_path: Path) -> None:
    letters = [f" {number:x}".translate(DIGITS_AS_LETTERS) for number in range(60_000)]
    words = [*letters, *(f" {'long' * 5}{word[1:]}" for word in letters[:3000])]
    text = ("".join(words) * 2).encode()
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    plain, spilled = make_counter(tmp_path), make_counter(tmp_path, table_bytes=1 << 19)
    for counter in (plain, spilled):
        counter.count_file(str(path), 0, len(text), len(text))
    assert plain.spilled_runs == 0
    assert spilled.spilled_runs > 64
    assert drained(spilled) == drained(plain)


def test_more_runs_than_files_may_be_open(tmp_path: Path) -> None:
    """A run file per shard and flush: thousands, and a process may have 1024 files open."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    counter = make_counter(tmp_path, num_threads=1)
    rounds = 300
    for round_number in range(rounds):
        counter.count_texts([b" both" + f" only{round_number}".encode()])
        counter.checkpoint()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        counts = drained(counter)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert counts[b" both"] == rounds
    assert counts[b" only"] == rounds
    assert counts[b"7"] == 1


def test_a_checkpoint_is_where_another_counter_goes_on(tmp_path: Path, make_text: MakeText) -> None:
    parts = [make_text(seed, 5_000) for seed in range(4)]
    expected = reference.count_pieces(parts, pattern="gpt2", specials=[])
    runs: list[str] = []
    for part in parts:
        counter = make_counter(tmp_path, table_bytes=1 << 16)
        counter.adopt(runs)
        counter.count_texts([part])
        runs = counter.checkpoint()
        assert len(set(runs)) == len(runs)
    final = make_counter(tmp_path)
    final.adopt(runs)
    assert drained(final) == expected


def test_a_checkpoint_changes_nothing(tmp_path: Path, make_text: MakeText) -> None:
    text = make_text(7, 20_000)
    counter = make_counter(tmp_path)
    for part in (text, text):
        counter.count_texts([part])
        counter.checkpoint()
    counter.count_texts([text])
    assert drained(counter) == Counter(
        {
            piece: 3 * count
            for piece, count in reference.count_pieces([text], pattern="gpt2", specials=[]).items()
        }
    )


def test_counts_have_64_bits(tmp_path: Path) -> None:
    """Runs add up beyond 32 bits."""
    run = tmp_path / "counts_00_00000000.run"
    entry = (3).to_bytes(4, "little") + (3 << 31).to_bytes(8, "little") + b"abc"
    run.write_bytes(entry)
    other = tmp_path / "counts_00_00000001.run"
    other.write_bytes(entry)
    counter = make_counter(tmp_path)
    counter.adopt([str(run), str(other)])
    assert counter.drain() == [(b"abc", 6 << 31)]


def test_damaged_runs_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "counts_00_00000000.run"
    run.write_bytes((3).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"ab")
    counter = make_counter(tmp_path)
    counter.adopt([str(run)])
    with pytest.raises(OSError, match="Bad message") as caught:
        counter.drain()
    assert caught.value.filename == str(run)
    with pytest.raises(OSError, match="Bad message"):
        counter.adopt([str(tmp_path / "other.run")])


def test_an_unwritable_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    counter = make_counter(tmp_path / "nowhere")
    counter.count_texts([b"some text"])
    with pytest.raises(OSError, match="No such file") as caught:
        counter.checkpoint()
    assert str(tmp_path / "nowhere") in caught.value.filename


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        make_counter(tmp_path).count_file(str(tmp_path / "gone.txt"), 0, 10, 10)
    assert caught.value.filename == str(tmp_path / "gone.txt")


def test_empty_special_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        make_counter(tmp_path, specials=["<|endoftext|>", ""])


# The job over files, with its checkpoints


class KilledError(Exception):
    """Stands for a kill."""


def run_job(
    folder: Path,
    paths: list[Path],
    *,
    key: str = "key",
    stop_after: int | None = None,
    hashes: list[str | None] | None = None,
    notes: io.StringIO | None = None,
    **limits: float,
) -> Counter[bytes]:
    """Count files as training does; `stop_after` checkpoints it dies. `hashes` get the contents."""
    saves = itertools.count()

    class Checkpoints(CountCheckpoints):
        def save(self, place: InputPlace, counter: _native.PieceCounter) -> None:
            super().save(place, counter)
            if stop_after is not None and next(saves) >= stop_after:
                raise KilledError

    sizes = CountingLimits(**{"batch_bytes": 1 << 12, **limits})  # type: ignore[arg-type]
    counter = make_counter(folder, specials=["<|endoftext|>"], table_bytes=1 << 20)
    inputs, checkpoints = expand_inputs(paths), Checkpoints(folder, key)
    checkpoints.contents = ContentLog(inputs, part_bytes=sizes.hash_part_bytes)
    with (
        contextlib.closing(checkpoints.contents) as contents,
        Progress("count", stream=notes) as progress,
    ):
        count_pieces(
            counter,
            inputs,
            needs=CountingNeeds(inputs, ["<|endoftext|>"]),
            options=ReadingSettings(block_bytes=1 << 12),
            checkpoints=checkpoints,
            progress=progress,
            limits=sizes,
        )
        if hashes is not None:
            hashes += contents.finish()
    return drained(counter)


@pytest.fixture
def corpus(tmp_path: Path, make_text: MakeText) -> list[Path]:
    """A large and two small text files, a compressed one, and rows."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [make_text(3 * seed, 15_000) for seed in range(5)]
    names = ["a.txt", "b.txt", "c.txt", "d.txt.gz", "e.jsonl"]
    for name, text in zip(names, texts, strict=True):
        data = text
        if name.endswith(".gz"):
            data = gzip.compress(text)
        if name.endswith(".jsonl"):
            rows = [text[i : i + 700].decode("utf-8", "ignore") for i in range(0, len(text), 700)]
            data = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
        (folder / name).write_bytes(data)
    return [folder / name for name in names]


def test_a_stopped_job_goes_on_and_ends_the_same(tmp_path: Path, corpus: list[Path]) -> None:
    limits = {"checkpoint_seconds": -1.0, "round_bytes": 7000, "small_file_bytes": 15_010}
    (tmp_path / "whole").mkdir()
    expected = run_job(tmp_path / "whole", corpus, **limits)
    work = tmp_path / "work"
    work.mkdir()
    stops = 0
    while True:
        try:
            counts = run_job(work, corpus, stop_after=1, **limits)
            break
        except KilledError:
            stops += 1
            (work / "counts_00_99999999.run").write_bytes(b"half a run")  # left by the kill
            assert stops < 100
    assert stops > 5
    assert counts == expected


def test_counts_that_are_not_as_they_were_written_are_made_anew(
    tmp_path: Path, corpus: list[Path]
) -> None:
    """One bit of a run file, between two starts."""
    limits = {"checkpoint_seconds": -1.0, "round_bytes": 7000}
    (tmp_path / "whole").mkdir()
    expected = run_job(tmp_path / "whole", corpus, **limits)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(KilledError):
        run_job(work, corpus, stop_after=2, **limits)
    run = sorted(work.glob("*.run"))[0]
    data = bytearray(run.read_bytes())
    data[-1] ^= 4
    run.write_bytes(data)
    notes = io.StringIO()
    assert run_job(work, corpus, notes=notes, **limits) == expected
    assert f"{run.name} is not as it was written: counting begins anew" in notes.getvalue()


def test_going_on_says_from_where(tmp_path: Path, corpus: list[Path]) -> None:
    limits = {"checkpoint_seconds": -1.0, "round_bytes": 4000, "small_file_bytes": 100}
    with pytest.raises(KilledError):
        run_job(tmp_path, corpus, stop_after=4, **limits)
    state = json.loads((tmp_path / "counting.json").read_bytes())
    sizes = [path.stat().st_size for path in corpus]
    assert state["offset"] > 0 and state["input_index"] == 2
    notes = io.StringIO()
    run_job(tmp_path, corpus, notes=notes, **limits)
    share = 100 * (sum(sizes[:2]) + state["offset"]) / sum(sizes)
    assert 10 < share < 90 and f"going on at {share:.0f} % of the text" in notes.getvalue()


@pytest.mark.parametrize(
    ("change", "part_bytes"),
    [
        ("touch", 1000),
        ("touch", 4000),
        ("touch", 1 << 20),
        ("content", 1000),
        ("content", 1 << 20),
        ("first content", 4000),
    ],
)
def test_files_touched_between_two_runs_go_on_and_changed_ones_do_not(
    tmp_path: Path,
    corpus: list[Path],
    part_bytes: int,
    change: str,
) -> None:
    """The first file is plain and large: it is stopped inside."""
    limits = {"round_bytes": 7000, "small_file_bytes": 1000, "hash_part_bytes": part_bytes}
    often = {**limits, "checkpoint_seconds": -1.0}
    whole = tmp_path / "whole"
    whole.mkdir()
    wanted_index = 1 if change == "first content" else 0
    for stop_after in range(20):
        work = tmp_path / f"work{stop_after}"
        work.mkdir()
        with pytest.raises(KilledError):
            run_job(work, corpus, stop_after=stop_after, **often)
        place = json.loads((work / "counting.json").read_text())
        if place["input_index"] == wanted_index and place["offset"] > 0:
            break
    else:
        raise AssertionError("never stopped inside the file")
    for path in corpus[:3]:
        os.utime(path, (1, 1))
    if change != "touch":
        data = corpus[0].read_bytes()
        corpus[0].write_bytes(data[:2000][::-1] + data[2000:])
    notes, found, wanted = io.StringIO(), list[str | None](), list[str | None]()
    counts = run_job(work, corpus, hashes=found, notes=notes, **often)
    assert counts == run_job(whole, corpus, hashes=wanted, **limits)
    assert found == wanted and None not in found
    assert ("counting begins anew" in notes.getvalue()) == (change != "touch")
    assert ("going on at" in notes.getvalue()) == (change == "touch")


def test_another_key_starts_afresh(tmp_path: Path, corpus: list[Path]) -> None:
    with pytest.raises(KilledError):
        run_job(tmp_path, corpus, stop_after=1, checkpoint_seconds=-1.0)
    assert list(tmp_path.glob("*.run"))
    assert run_job(tmp_path, corpus[:1], key="other") == reference.count_pieces(
        [corpus[0].read_bytes()], pattern="gpt2", specials=["<|endoftext|>"]
    )


def test_no_text_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match="no text"):
        run_job(tmp_path, [tmp_path / "empty.txt"])


def test_a_stretch_that_rounds_cannot_learn_from_is_named_with_what_full_speed_takes() -> None:
    assert held_bytes(Stretch(100_000)) == held_bytes(Stretch(256 << 10)) == 0
    assert held_bytes(Stretch((256 << 10) + 1)) == planned_bytes((256 << 10) + 1, 1)
    assert held_bytes(Stretch(1 << 20)) >= planned_bytes(1 << 20, 1)
    assert held_bytes(Stretch(3 << 20)) == 64 << 20  # in which rounds are quick
    assert held_bytes(Stretch(20 << 20)) < planned_bytes(20 << 20, 1)


def test_a_stretch_beyond_what_the_smallest_tables_hold_takes_so_much_of_them() -> None:
    """An eighth of the tables holds it, and 2 MiB; of a stream twice; the tables are 3/4."""
    for size in (5 << 20, 6 << 20, 20 << 20):
        whole = (size + (2 << 20)) * 8 * 4 // 3
        assert held_bytes(Stretch(size)) == whole
    for size in (3 << 20, 6 << 20):  # rounds alone decide
        assert held_bytes(Stretch(size, in_stream=True)) == 64 << 20
    for size in ((6 << 20) + 1, 20 << 20):
        whole = 2 * (size + (2 << 20)) * 8 * 4 // 3
        assert held_bytes(Stretch(size, in_stream=True)) == whole


@pytest.mark.parametrize(("size", "small"), [(99, True), (100, True), (101, False)])
def test_files_up_to_a_size_are_counted_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, small: bool
) -> None:
    read: list[Path] = []

    def note_path(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    monkeypatch.setattr(counting, "read_whole", note_path)
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_bytes(b"low tide " * 20)
        os.truncate(path, size)
    work = tmp_path / "work"
    work.mkdir()
    assert run_job(work, paths, small_file_bytes=100)
    assert read == (paths if small else [])


# What the counter is given, call by call


class NotingCounter:
    """Counts nothing, and notes what it is asked to count."""

    largest_window = 60

    def __init__(self, ends: list[int] | None = None) -> None:
        self.calls: list[Any] = []
        self.bytes_done = 1000
        self.pieces_done = 7
        self._ends = ends or []

    def count_texts(self, texts: list[bytes]) -> None:
        self.calls.append(texts)

    def count_file(self, path: str, offset: int, stop: int, size: int) -> int:
        self.calls.append((Path(path).name, offset, stop, size))
        if self._ends:
            return self._ends.pop(0)
        raise ValueError("123 bytes without a place to cut")


class NotingContents:
    """A log of contents that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def reach(self, index: int, offset: int = 0) -> None:
        self.told.append((index, offset))

    def add(self, texts: list[bytes]) -> None:
        self.told.append(texts)


def run_noting(
    paths: list[Path], counter: Any, place: InputPlace | None = None, **more: Any
) -> tuple[list[tuple[int, int]], list[float], list[Any]]:
    """Places, bytes that are done at each of them, and what the log of contents heard."""
    inputs = expand_inputs(paths)
    limits = CountingLimits(batch_bytes=20, round_bytes=100, small_file_bytes=50)
    options = ReadingSettings(block_bytes=40, **more)
    contents: Any = NotingContents()
    needs = CountingNeeds(inputs, ["<|x|>"])
    job = counting._Job(counter, inputs, [b"<|x|>"], options, limits, needs, contents)
    starts = list(itertools.accumulate((row.size_bytes for row in inputs), initial=0))
    meter = counting._Meter(counter, 0)
    reached, done = [], []
    for at in job.run(place or InputPlace(), meter, starts):
        reached.append((at.input_index, at.offset))
        done.append(meter()[0])
    return reached, done, contents.told


def test_small_files_are_counted_together_up_to_a_batch(tmp_path: Path) -> None:
    """Each counts 64 bytes more than its letters: of 20 bytes a batch, one file."""
    for name, text in (("a", b"one"), ("b", b""), ("c", b"three")):
        (tmp_path / f"{name}.txt").write_bytes(text)
    counter = NotingCounter()
    reached, done, told = run_noting([tmp_path], counter)
    assert counter.calls == [[b"one"], [b""], [b"three"]]
    assert reached == [(1, 0), (2, 0), (3, 0)] and done == [3, 3, 8]
    assert told == [[b"one"], [b""], [b"three"]]


def test_files_that_are_no_text_are_passed_by(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\0b")
    (tmp_path / "b.txt").write_bytes(b"\0" * 300)
    packed = gzip.compress(b"\0" * 300)
    (tmp_path / "c.txt.gz").write_bytes(packed)
    notices: list[str] = []
    counter = NotingCounter()
    reached, done, told = run_noting([tmp_path], counter, skip_bad=True, on_notice=notices.append)
    assert counter.calls == [[]]
    assert reached == [(1, 0), (2, 0), (3, 0)] and done == [3, 303, 303 + len(packed)]
    assert told == [[b"a\0b"], (2, 0), (3, 0)] and len(notices) == 3


def test_a_large_file_is_counted_in_rounds(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"some words " * 25)  # 275 bytes
    counter = NotingCounter([90, 190, 275])
    reached, done, told = run_noting([path], counter)
    assert counter.calls == [
        ("a.txt", 0, 100, 275), ("a.txt", 90, 190, 275), ("a.txt", 190, 275, 275),
    ]  # fmt: skip
    assert reached == [(0, 90), (0, 190), (0, 275), (1, 0)] and done == [90, 190, 275, 275]
    assert told == [(0, 90), (0, 190), (0, 275), (1, 0)]
    again = NotingCounter([275])
    assert run_noting([path], again, InputPlace(0, 190))[0] == [(0, 275), (1, 0)]
    assert again.calls == [("a.txt", 190, 275, 275)]
    with pytest.raises(BudgetError, match="there is no place to cut in 123 B of text"):
        run_noting([path], NotingCounter())


def test_the_meter_follows_the_counter_while_it_works() -> None:
    counter: Any = NotingCounter()
    meter = counting._Meter(counter, 40)
    assert meter() == (40, {"pieces": 7})
    meter.follow()
    counter.bytes_done += 25
    assert meter() == (65, {"pieces": 7})
    meter.settle(50)
    assert meter() == (50, {"pieces": 7})


def test_a_stream_is_counted_up_to_its_last_cut(tmp_path: Path) -> None:
    text = b"word another " * 9 + b"the end"
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text))
    counter = NotingCounter()
    reached, done, told = run_noting([path], counter)
    parts = [part for (part,) in counter.calls]
    assert b"".join(parts) == text and len(parts) > 3
    ends = list(itertools.accumulate(map(len, parts[:-1])))
    assert reached == [*((0, end) for end in ends), (1, 0)]
    assert all(len(part) >= 10 for part in parts[:-1])
    assert done[-1] == path.stat().st_size and sorted(done) == done
    assert told == [(1, 0)]
    for end in ends[:3]:
        again = NotingCounter()
        run_noting([path], again, InputPlace(0, end))
        assert b"".join(part for (part,) in again.calls) == text[end:]


@pytest.mark.parametrize(("size", "held"), [(20, True), (30, True), (60, False)])
def test_a_stream_without_a_cut_is_held_up_to_half_a_window(
    tmp_path: Path, size: int, held: bool
) -> None:
    """Of 60 bytes a window; it is looked at for each batch of 20."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x" * size))
    counter = NotingCounter()
    if held:
        run_noting([path], counter)
        assert counter.calls == [[b"x" * size]]
    else:
        with pytest.raises(BudgetError, match="there is no place to cut in 60 B of text"):
            run_noting([path], counter)


def test_rows_are_counted_block_by_block(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(12))
    path = tmp_path / "a.jsonl"
    path.write_text(rows)
    counter = NotingCounter()
    reached, done, told = run_noting([path], counter)
    texts = [text for call in counter.calls for text in call]
    assert texts == [f"row {number}".encode() for number in range(12)]
    blocks = len(counter.calls)
    assert blocks > 3
    assert reached == [*((0, number) for number in range(1, blocks + 1)), (1, 0)]
    assert done[-1] == done[-2] == len(rows) and sorted(done) == done and done[0] < len(rows)
    assert told == [(1, 0)]
    again = NotingCounter()
    found = run_noting([path], again, InputPlace(0, 2))[0]
    assert again.calls == counter.calls[2:] and found == reached[2:]


def test_all_inputs_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n')
    inputs = expand_inputs([tmp_path])
    counter: Any = NotingCounter()
    counting.count_inputs(
        counter, inputs, ReadingSettings(), needs=CountingNeeds(inputs, ["<|x|>"]),
        limits=CountingLimits(),
    )  # fmt: skip
    assert counter.calls == [[b"one"], [b"two"]]


@pytest.mark.parametrize(
    ("stretch", "limit", "needed"),
    [
        (Stretch(100, repeats=True, text_bytes=100), None, 4 * 11 * 100),
        (Stretch(100, repeats=True, text_bytes=100), 16, planned_bytes(100, 0)),
        (Stretch(100, repeats=True, text_bytes=10**6), 16, 80 * 100),
        (Stretch(100, repeats=True, text_bytes=10**6), None, 80 * 100),
        (Stretch(1 << 20, repeats=True, text_bytes=1 << 20), 16, planned_bytes(1 << 20, 1)),
        (Stretch(1 << 20, repeats=True, text_bytes=1 << 20), None, 4 * 11 << 20),
    ],
)
def test_what_a_stretch_takes_that_repeats_itself(
    stretch: Stretch, limit: int | None, needed: int
) -> None:
    assert held_bytes(stretch, limit) == needed


def test_a_refusal_names_the_larger_of_both_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    (source,) = inputs = expand_inputs([tmp_path])
    needs = CountingNeeds(inputs, [], other_bytes=100 << 20)
    for found, size in (((20 << 20), (5 << 20)), ((5 << 20), (20 << 20))):
        stretch = Stretch(found, unseen_bytes=712_000)
        monkeypatch.setattr(CountingNeeds, "find_stretch", lambda *_, one=stretch: one)
        error = counting.refuse_stretch(size, source, ReadingSettings(), needs)
        assert (
            error.message == "there is no place to cut in 20.0 MiB of text, which are held at once"
        )
        least = smallest_budget((100 << 20) + held_bytes(Stretch(20 << 20)))
        assert error.next_step is not None and error.next_step.startswith(least)
        assert "695.3 KiB" in error.next_step and error.path == source.path


def test_a_checkpoint_has_the_sums_of_all_runs(tmp_path: Path) -> None:
    """Bytes and pieces before it was interrupted, and since."""
    counter: Any = NotingCounter()
    (tmp_path / "0.run").write_bytes(b"counts")
    counter.checkpoint = lambda: [str(tmp_path / "0.run")]
    checkpoints = CountCheckpoints(tmp_path, "key")
    checkpoints.bytes_before, checkpoints.pieces_before = 500, 30
    checkpoints.save(InputPlace(2, 77), counter)
    adopted: list[list[str]] = []
    other: Any = NotingCounter()
    other.adopt = adopted.append
    (tmp_path / "1.run").write_bytes(b"of a run that was not kept")
    again = CountCheckpoints(tmp_path, "key")
    assert again.restore(other) == InputPlace(2, 77)
    assert (again.bytes_before, again.pieces_before) == (1500, 37)
    assert adopted == [[str(tmp_path / "0.run")]]
    assert not (tmp_path / "1.run").exists()


def test_inputs_begin_one_after_the_other(tmp_path: Path) -> None:
    for name, size in (("a", 3), ("b", 0), ("c", 7)):
        (tmp_path / f"{name}.txt").write_bytes(b"x" * size)
    assert list(counting._starts_of(expand_inputs([tmp_path]))) == [0, 3, 3, 10]
    assert list(counting._starts_of([])) == [0]
