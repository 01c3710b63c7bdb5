"""Learning goes through examples in batches at a falling rate, and a pass that is done is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from lowtide.classifier import learning
from lowtide.classifier.examplefiles import Chunk, gather_examples, iter_chunks
from lowtide.classifier.examples import Examples
from lowtide.classifier.learning import Learning, count_words, learn
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file
from lowtide.errors import DataError


def make_examples(folder: Path, texts: list[bytes], held_out: list[bool]) -> Examples:
    """Texts of two files one after the other, in an order of their own."""
    folder.mkdir(exist_ok=True)
    paths = [folder / "a", folder / "b"]
    files = np.array([number % 2 for number in range(len(texts))], np.int32)
    offsets, contents = [], [b"xx", b"yyy"]
    for file, text in zip(files, texts, strict=True):
        offsets.append(len(contents[file]))
        contents[file] += text
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return Examples(
        paths, files, np.array(offsets, np.int64), np.array(list(map(len, texts)), np.int64),
        np.array([number % 3 == 0 for number in range(len(texts))], np.uint8),
        np.array([(7 * number) % len(texts) for number in range(len(texts))], np.uint64),
        np.array(held_out), in_both=0,
    )  # fmt: skip


def texts_of(paths: list[Path]) -> list[tuple[bytes, int]]:
    return [
        (chunk.text_of(place), int(chunk.labels[place]))
        for chunk in iter_chunks(paths)
        for place in range(len(chunk))
    ]


def test_examples_are_gathered_in_their_order(tmp_path: Path) -> None:
    """Files of 256; what is there is not written again; those to learn from and to test apart."""
    texts = [f"text {number}".encode() for number in range(611)]
    held_out = [number % 6 == 5 for number in range(611)]
    examples = make_examples(tmp_path / "texts", texts, held_out)
    found: dict[bool, list[Path]] = {}
    for held in (False, True):
        told: list[int] = []
        found[held] = gather_examples(
            examples, tmp_path / "deep" / "out", held_out=held, on_done=told.append
        )
        chosen = [number for number in range(611) if held_out[number] == held]
        chosen.sort(key=lambda number: (7 * number) % 611)
        assert texts_of(found[held]) == [(texts[n], int(n % 3 == 0)) for n in chosen]
        assert told == ([101] if held else [256, 254])
    assert [path.name for path in found[False]] == [
        "train-000000.gathered", "train-000001.gathered",
    ]  # fmt: skip
    assert [path.name for path in found[True]] == ["test-000000.gathered"]
    times = [path.stat().st_mtime_ns for path in found[False]]
    (tmp_path / "texts" / "a").write_bytes(b"")
    again = gather_examples(
        examples, tmp_path / "deep" / "out", held_out=False, on_done=lambda _: None
    )
    assert [path.stat().st_mtime_ns for path in again] == times
    again[0].unlink()
    with pytest.raises(DataError, match="a work file ends too early") as caught:
        gather_examples(examples, tmp_path / "deep" / "out", held_out=False, on_done=lambda _: None)
    assert caught.value.path == tmp_path / "texts" / "a"


def test_a_part_of_a_chunk_has_its_own_texts() -> None:
    text = np.frombuffer(b"onetwothreefour", np.uint8)
    chunk = Chunk(text, np.array([3, 6, 11, 15], np.uint64), np.array([0, 1, 1, 0], np.uint8))
    for begin in range(4):
        for end in range(begin + 1, 5):
            part = chunk.part(begin, end)
            words = [part.text_of(place) for place in range(len(part))]
            assert words == [b"one", b"two", b"three", b"four"][begin:end]
            assert part.text.tobytes() == b"".join(words)
            assert part.labels.tolist() == [0, 1, 1, 0][begin:end]


@pytest.mark.parametrize(
    ("total", "size"),
    [(25_600, 256), (25_599, 128), (12_800, 128), (12_799, 64), (3200, 32), (1600, 16), (1, 16)],
)
def test_a_pass_has_a_hundred_batches_at_least(total: int, size: int) -> None:
    assert Learning(1, 1, 1, (total - 1, 1), Path()).batch_examples == size
    assert Learning(1, 1, 1, (1, total - 1), Path()).batch_examples == size


def test_both_classes_weigh_the_same() -> None:
    assert Learning(1, 1, 1, (30, 10), Path()).weights == (40 / 60, 40 / 20)
    assert Learning(1, 1, 1, (10, 10), Path()).weights == (1.0, 1.0)


class Trainer:
    """Notes what it is given; its rows say how many steps they have seen."""

    made: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *given: Any) -> None:
        self.made.append(given)
        self.steps: list[tuple[Any, ...]] = []
        self.seen = np.zeros(1, np.float32)

    @property
    def rows(self) -> memoryview:
        return memoryview((self.seen + 1).tobytes())

    @property
    def sums(self) -> memoryview:
        return memoryview((self.seen + 2).tobytes())

    def step(
        self, text: Any, ends: Any, labels: Any, weights: Any, rate: float, workers: int
    ) -> float:
        words = bytes(text).decode().split()
        self.steps.append(
            (len(ends), words[0], labels.tolist()[0], weights, round(rate, 6), workers)
        )
        self.seen += 1
        return 3.0 * len(ends)

    def restore(self, rows: Any, sums: Any) -> None:
        assert sums.tolist() == [rows[0] + 1]
        self.seen = rows - 1


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], Learning]:
    """40 examples: three batches of 16, 16 and 8 in each of two passes."""
    monkeypatch.setattr(learning._native, "ClassifierTrainer", Trainer)
    Trainer.made.clear()
    texts = [f"w{number} ".encode() for number in range(40)]
    examples = make_examples(tmp_path / "texts", texts, [False] * 40)
    paths = gather_examples(examples, tmp_path / "out", held_out=False, on_done=lambda _: None)
    return paths, Learning(2, 3, 1000, (26, 14), tmp_path / "out")


def test_every_pass_takes_all_examples_at_a_rate_that_falls(
    learned: tuple[list[Path], Learning],
) -> None:
    paths, how = learned
    told: list[tuple[int, float]] = []
    words: Any = SimpleNamespace()
    trainer: Any = learn(
        how, words, paths, num_workers=4, on_done=lambda count, loss: told.append((count, loss))
    )
    assert Trainer.made == [(words, 1000, 3, 2, 1e-9)]
    order = sorted(range(40), key=lambda number: (7 * number) % 40)
    first = [(order[at], order[at] % 3 == 0) for at in (0, 16, 32)]
    weights = (40 / 52, 40 / 28)
    rates = [round(5.0 * (1 - step / 6), 6) for step in range(6)]
    assert trainer.steps == [
        (count, f"w{number}", int(good), weights, rate, 4)
        for (count, (number, good)), rate in zip(
            [*zip((16, 16, 8), first, strict=True)] * 2, rates, strict=True
        )
    ]
    assert told == [(0, 0.0), (16, 3.0), (16, 3.0), (8, 3.0), (16, 3.0), (16, 3.0), (8, 3.0)]
    kept = [path.name for path in how.folder.iterdir() if path.name.startswith("rows")]
    assert kept == ["rows-000002.gathered"]
    work = open_work_file(how.state_path(2))
    assert np.frombuffer(work.read("rows"), np.float32).tolist() == [7.0]
    assert np.frombuffer(work.read("sums"), np.float32).tolist() == [8.0]


def test_a_pass_that_was_done_is_not_repeated(learned: tuple[list[Path], Learning]) -> None:
    paths, how = learned
    words: Any = None

    class Killed(BaseException):
        pass

    def die(count: int, loss: float) -> None:
        calls.append((count, loss))
        if len(calls) == 6:  # in the second pass
            raise Killed

    calls: list[tuple[int, float]] = []
    with pytest.raises(Killed):
        learn(how, words, paths, num_workers=1, on_done=die)
    assert how.state_path(1).exists()
    told: list[int] = []
    trainer: Any = learn(how, words, paths, num_workers=1, on_done=lambda n, _: told.append(n))
    assert told == [40, 16, 16, 8]
    assert [step[4] for step in trainer.steps] == [round(5 * (1 - s / 6), 6) for s in (3, 4, 5)]
    assert trainer.seen.tolist() == [6.0]
    told.clear()
    trainer = learn(how, words, paths, num_workers=1, on_done=lambda n, _: told.append(n))
    assert told == [80] and trainer.steps == [] and trainer.seen.tolist() == [6.0]


def test_words_are_counted_in_as_many_partitions_as_tables_need(
    learned: tuple[list[Path], Learning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many each time, each over all examples; the most frequent of all are chosen."""
    paths, _ = learned
    made: list[tuple[int, int, int]] = []

    class Counter:
        def __init__(self, partition: int, partitions: int, table_bytes: int) -> None:
            made.append((partition, partitions, table_bytes))
            self.about = (partition, partitions)
            self.texts = 0

        def add(self, text: Any, ends: Any) -> bool:
            self.texts += len(ends)
            return self.about[1] >= 8

        def list(self, min_count: int) -> list[Any]:
            return [(*self.about, self.texts, min_count)]

    def choose(lists: list[list[Any]], max_words: int) -> list[Any]:
        return [*(row for rows in lists for row in rows), max_words]

    monkeypatch.setattr(learning._native, "WordCounter", Counter)
    monkeypatch.setattr(learning._native, "choose_words", choose)
    with WorkerPool(2) as pool:
        found: Any = count_words(paths, pool, min_count=3, max_words=50, table_bytes=99)
    rows = [row for row in found if isinstance(row, tuple)]
    assert rows == [(partition, 8, 40, 3) for partition in range(8)]
    assert found.count(50) == 8 + 7  # of each, and of two together
    assert {size for *_, size in made} == {99}
    assert {partitions for _, partitions, _ in made} == {2, 4, 8}
