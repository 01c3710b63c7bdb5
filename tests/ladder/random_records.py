"""What every home of records must do: hand back what was put, in any order."""

from __future__ import annotations

import random
from typing import Any

import torch


def write_records(home: Any, sizes: dict[str, int]) -> dict[str, int]:
    """Fill each record with a number of its own; the numbers by their keys."""
    numbers = {key: 10 * number for number, key in enumerate(sizes)}
    for key, number in numbers.items():
        home.write(key, torch.full((sizes[key],), number, dtype=torch.uint8))
    return numbers


def use_in_any_order(home: Any, sizes: dict[str, int], num_uses: int) -> None:
    """Take records that `write_records` wrote, change some of them, and compare every time."""
    expected = {key: 10 * number for number, key in enumerate(sizes)}
    dice = random.Random(4)
    keys = [dice.choice(list(sizes)) for _ in range(num_uses)]
    for now, then in zip(keys, [*keys[1:], next(iter(sizes))], strict=True):
        record = home.get(now)
        assert record.tolist() == [expected[now]] * sizes[now]
        if then != now:
            home.begin(then)  # ahead, while this one is used
        if dice.random() < 0.6:
            record += 1
            expected[now] = (expected[now] + 1) % 256
            home.put(now)
        else:
            home.drop(now)
    home.drop_all()
    for key, value in expected.items():
        assert home.read(key).tolist() == [value] * sizes[key]
