"""The sample: the passages of the smallest hashes, however blocks came, and what is held out."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide import _native
from lowtide.classifier import examples
from lowtide.classifier.examples import GOOD, OTHER, Sampler, _hold_out, choose_examples
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.reading import ReadingSettings, TextBlock
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import Segment
from lowtide.errors import DataError


def make_block(number: int, input_index: int, texts: list[str]) -> Any:
    data = "\0".join(texts).encode()
    block = TextBlock(0, number, "text", data, (Segment(input_index, 0, 0, len(data)),))
    reading = ReadingSettings(separator=b"\0")
    return clean_block(block, reading, CleaningSettings(dedup=False, filter=False), paths={})


def make_blocks() -> list[Any]:
    dice = random.Random(3)
    texts = [f"text number {n} says {dice.random()}" for n in range(600)]
    blocks = [make_block(n, 0, texts[40 * n : 40 * n + 40]) for n in range(5)]
    return blocks + [make_block(n, 1, texts[40 * n : 40 * n + 80]) for n in range(5, 14)]


def sample(
    folder: Path, blocks: list[Any], order: list[int], most: int, **more: int
) -> dict[str, int]:
    sampler = Sampler(folder, num_good=1, max_examples=most)
    paths = [folder / f"{number:07d}.block" for number in range(len(blocks))]
    for number in order:
        sampler.take(number, paths[number], None, blocks[number])  # type: ignore[arg-type]
    again = Sampler(folder, num_good=1, max_examples=most)
    for number in order[::-1]:
        again.pass_by(number, SimpleNamespace(path=paths[number]))  # type: ignore[arg-type]
    assert again.limits == sampler.limits
    files = [sampler.path(path) for path in paths]
    examples = choose_examples(files, sampler.limits, max_examples=most, seed=0, **more)
    found = {}
    for row in range(len(examples.labels)):
        data = files[examples.files[row]].read_bytes()
        begin = int(examples.offsets[row])
        text = data[begin : begin + int(examples.sizes[row])].decode()
        found[text] = int(examples.labels[row])
    return found


def test_the_sample_does_not_depend_on_the_order(tmp_path: Path) -> None:
    blocks = make_blocks()
    orders = [list(range(14)), list(range(14))[::-1], random.Random(1).sample(range(14), 14)]
    found = [sample(tmp_path / str(n), blocks, order, 50) for n, order in enumerate(orders)]
    assert found[0] == found[1] == found[2]
    assert list(found[0].values()).count(GOOD) == 50
    assert 40 <= list(found[0].values()).count(OTHER) <= 50
    assert all(text.startswith("text number ") for text in found[0])
    whole = sample(tmp_path / "whole", blocks, orders[0], 5000)
    assert set(found[0]) <= set(whole)
    assert list(whole.values()).count(GOOD) == 200
    assert list(whole.values()).count(OTHER) == 400  # those of the last good block are good


def test_blocks_of_which_little_is_taken_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus has millions of them, and the sample takes a passage of few."""
    blocks = [*make_blocks(), make_block(14, 1, ["", ""])]
    expected = sample(tmp_path / "a", blocks, list(range(15)), 500)
    whole, joined = examples._join, list[int]()

    def join(parts: Any) -> Any:
        joined.append(len(parts))
        assert all(len(part.table) for part in parts)
        return whole(parts)

    monkeypatch.setattr(examples, "_join", join)
    assert sample(tmp_path / "b", blocks, list(range(15)), 500, most_parts=3) == expected
    assert max(joined) == 4 and len(joined) > 3


def test_blocks_that_cannot_be_in_the_sample_are_not_kept(tmp_path: Path) -> None:
    blocks = make_blocks()
    sample(tmp_path, blocks, list(range(14)), 20)
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert max(sizes[2:5]) < sizes[0] / 2


def test_long_documents_are_cut_at_lines(tmp_path: Path) -> None:
    lines = [f"line {number} of a document that is long enough" for number in range(900)]
    cleaned = make_block(0, 0, ["\n".join(lines)])
    rows, text = _native.pick_passages(
        cleaned.text, cleaned.documents, 1, examples.PASSAGE_BYTES, 0, (1 << 64) - 1
    )
    table = np.frombuffer(rows, np.dtype(examples._ROW_FIELDS))
    assert len(table) > 4
    assert int(table["size"].max()) <= examples.PASSAGE_BYTES
    assert int(table["size"].min()) > examples.PASSAGE_BYTES // 3
    ends = np.cumsum(table["size"].astype(np.int64))
    passages = [
        bytes(text[end - size : end]) for end, size in zip(ends, table["size"], strict=True)
    ]
    assert b"\n".join(passages).decode().split("\n") == lines
    assert len(set(table["group"].tolist())) == 1 + (len(table) - 1) // 8


def test_rows_of_equal_texts_are_not_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that a corpus repeats is in the memory once, however often it comes."""
    held = []
    join = examples._join
    monkeypatch.setattr(
        examples,
        "_join",
        lambda parts: held.append(sum(len(p.table) for p in parts)) or join(parts),
    )
    blocks = [make_block(0, 0, [f"good {n}" for n in range(20)])]
    blocks += [make_block(n, 1, ["the same page"] * 50 + [f"other {n}"]) for n in range(1, 40)]
    found = sample(tmp_path, blocks, list(range(40)), 60)
    assert list(found.values()).count(OTHER) == 40
    assert max(held) <= 3 * 60 + 51


@pytest.mark.parametrize(("count", "groups"), [(100, 30), (100, 1), (12, 2), (1000, 1000)])
def test_whole_stretches_are_held_out(count: int, groups: int) -> None:
    dice = np.random.default_rng(count)
    group = dice.integers(0, groups, count).astype(np.uint64)
    order = dice.integers(0, 1 << 60, count).astype(np.uint64)
    held = _hold_out(group, order)
    assert count // 10 <= len(held) <= count // 2
    inside = set(group[held].tolist())
    rest = set(np.delete(group, held).tolist())
    assert not (inside & rest) or groups == 1 or len(held) == max(count // 10, 1)


def test_no_passages_make_no_classifier() -> None:
    with pytest.raises(DataError, match="--good has 0 different passages"):
        choose_examples([], (0, 0), max_examples=5, seed=1)


def mixed(value: int) -> int:
    """The end of splitmix64, which turns neighbours into unlike numbers."""
    whole = (1 << 64) - 1
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & whole
    value = (value ^ value >> 27) * 0x94D049BB133111EB & whole
    return value ^ value >> 31


def test_hashes_are_mixed_into_an_order() -> None:
    values = [
        0,
        1,
        2,
        1 << 40,
        (1 << 64) - 1,
        *(random.Random(2).getrandbits(64) for _ in range(9)),
    ]
    found = examples._mix(np.array(values, np.uint64))
    assert found.tolist() == list(map(mixed, values))


def hold_out(groups: list[int], order: list[int], most: int = 20_000) -> list[int]:
    """By hand: groups one after the other until a tenth is there."""
    places = sorted(range(len(groups)), key=lambda place: (groups[place], order[place]))
    wanted = min(max(len(groups) // 10, 1), most)
    whole = sum(group <= groups[places[wanted - 1]] for group in groups)
    return places[: whole if whole <= len(groups) / 2 else wanted]


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [1, 1],
        [5, 5],
        [6, 4],
        [4, 6],
        [1] * 19,
        [1] * 20,
        [3, 7, 10],
        [10, 10],
        [11, 9],
        [2] * 30,
    ],
    ids=str,
)
def test_what_is_held_out_is_what_counting_by_hand_gives(sizes: list[int]) -> None:
    dice = random.Random(len(sizes))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    dice.shuffle(groups)
    order = [dice.getrandbits(60) for _ in groups]
    found = _hold_out(np.array(groups, np.uint64), np.array(order, np.uint64))
    assert found.tolist() == hold_out(groups, order)


def test_no_more_are_held_out_than_figures_need() -> None:
    numbers = np.arange(300_000, dtype=np.uint64)
    assert len(_hold_out(numbers, numbers)) == 20_000
    assert len(_hold_out(numbers[:200_010], numbers[:200_010])) == 20_000
    assert len(_hold_out(numbers[:199_990], numbers[:199_990])) == 19_999


def test_the_order_is_that_of_the_seed(tmp_path: Path) -> None:
    """Of each class a tenth is held out, by groups in a mixed order; texts in one by their hash."""
    blocks = make_blocks()
    sampler = Sampler(tmp_path, num_good=1, max_examples=500)
    paths = [tmp_path / f"{number:07d}.block" for number in range(len(blocks))]
    rows = []
    for number, block in enumerate(blocks):
        assert sampler.take(number, paths[number], None, block)  # type: ignore[arg-type]
        work = examples.open_work_file(sampler.path(paths[number]))
        rows += np.frombuffer(work.read("rows"), np.dtype(examples._ROW_FIELDS)).tolist()
    by_hash = {(row[0], row[3]): row for row in rows[::-1]}
    files = [sampler.path(path) for path in paths]
    for seed in (0, 7):
        chosen = choose_examples(files, sampler.limits, max_examples=500, seed=seed)
        good = {key for key, label in by_hash if label == GOOD}
        known = [
            row for key, row in reversed(by_hash.items())
            if key[1] == GOOD or key[0] not in good
        ]  # fmt: skip
        assert chosen.in_both == len(by_hash) - len(known)
        assert sorted(chosen.order.tolist()) == sorted(mixed(row[0] ^ seed) for row in known)
        for label in (OTHER, GOOD):
            of = [row for row in known if row[3] == label]
            order = [mixed(row[0] ^ seed) for row in of]
            held = {order[place] for place in hold_out([mixed(row[1]) for row in of], order)}
            places = (chosen.labels == label) & chosen.held_out
            assert set(chosen.order[places].tolist()) == held
            assert chosen.count(label, held_out=True) == len(held)
            assert chosen.count(label, held_out=False) == len(of) - len(held)


def rows_of(hashes: list[int], label: int) -> memoryview:
    rows = np.zeros(len(hashes), np.dtype(examples._ROW_FIELDS))
    rows["hash"], rows["label"] = hashes, label
    return memoryview(rows.tobytes())


def test_the_limit_falls_once_there_are_twice_as_many(tmp_path: Path) -> None:
    whole = (1 << 64) - 1
    sampler = Sampler(tmp_path / "deep" / "er", num_good=1, max_examples=4)
    sampler._count(rows_of([9, 8, 7, 6, 5, 4, 3, 2], GOOD))
    assert sampler._limits == [whole, whole]  # 4 too many are let be
    sampler._count(rows_of([10], GOOD))
    assert sampler._limits == [whole, 5]
    sampler._count(rows_of([1, 1, 1], OTHER))
    assert sampler.limits == (whole, 5)
    sampler._count(rows_of([20, 21, 22], OTHER))
    assert sampler.limits == (22, 5)
    sampler._count(rows_of([4, 1], GOOD))
    assert sampler.limits == (22, 4)
    same = Sampler(tmp_path, num_good=1, max_examples=4)
    same._count(rows_of([3] * 9, OTHER))
    assert same.limits == (whole, whole)  # one text, however often


@pytest.mark.parametrize("label", [GOOD, OTHER])
def test_ten_passages_of_a_class_are_enough(label: int) -> None:
    def labels(few: int) -> Any:
        return np.array([label] * few + [1 - label] * 10, np.uint8)

    name = ("--other", "--good")[label]
    examples._require_classes(labels(10), 0)
    with pytest.raises(DataError) as caught:
        examples._require_classes(labels(9), 1234)
    more = "; 1,234 more are among those of --good" if label == OTHER else ""
    assert caught.value.message == (
        f"{name} has 9 different passages (after cleaning, equal texts counted once{more}), "
        "a classifier needs 10 at least"
    )
    assert caught.value.next_step == f"name more files with {name}, or other ones"
    with pytest.raises(DataError, match=r"equal texts counted once\), a classifier"):
        examples._require_classes(labels(1), 0)


@pytest.mark.parametrize(("count", "limit"), [(3, None), (4, None), (5, 40), (6, 40)])
def test_a_limit_is_told_as_soon_as_there_is_one_too_many(
    tmp_path: Path, count: int, limit: int | None
) -> None:
    sampler = Sampler(tmp_path, num_good=1, max_examples=4)
    sampler._count(rows_of([10 * number for number in range(1, count + 1)], GOOD))
    whole = (1 << 64) - 1
    assert sampler.limits == (whole, whole if limit is None else limit)
