"""Texts wait for their turn whole and in order, with little of them in memory."""

import random
import tracemalloc

from lowtide.generation import heldtexts
from lowtide.generation.heldtexts import HeldTexts


def test_texts_come_back_whole_from_memory_and_file():
    dice = random.Random(5)
    wanted = dict.fromkeys(range(6), "")
    with HeldTexts(most_bytes=40) as held:
        for _ in range(400):
            number = dice.randrange(6)
            piece = dice.choice(["tide ", "é", "\n", "潮", "😀" * 9, "\ud800"])
            wanted[number] += piece
            held.add(number, piece)
            assert held._num_bytes <= 40
            if dice.random() < 0.02:  # it is its turn before its end
                assert "".join(held.pop(number)) == wanted[number]
                wanted[number] = ""
        for number in (3, 0, 5, 1, 2, 4):
            assert "".join(held.pop(number)) == wanted[number]
        assert held._num_bytes == 0 and not held._places and "".join(held.pop(9)) == ""


def test_no_file_is_made_for_short_texts(monkeypatch):
    monkeypatch.setattr(heldtexts, "scratch_file", lambda: 1 / 0)
    with HeldTexts(most_bytes=5) as held:
        held.add(0, "abc")
        held.add(7, "de")
        assert list(held.pop(7)) == ["de"] and list(held.pop(0)) == ["abc"]


def test_memory_does_not_grow_with_the_texts():
    tracemalloc.start()
    with HeldTexts(most_bytes=1 << 14) as held:
        for turn in range(100_000):
            held.add(turn % 7, "tide ")
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 17 and now < 1 << 17
        assert sum(len("".join(held.pop(number))) for number in range(7)) == 500_000
