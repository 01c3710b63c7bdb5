"""Which process this is, as torchrun says it, or who starts several of JAX."""

from __future__ import annotations

import pytest

from lowtide import ranks


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ranks.JAX_NAMES):
        monkeypatch.delenv(name, raising=False)
    assert not ranks.is_launched() and ranks.is_first()
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size()) == (0, 0, 1)


def test_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "HOME": "/"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert ranks.is_launched() and not ranks.is_first()
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size()) == (5, 1, 8)
    assert ranks.alone(given) == {"HOME": "/"}


def test_one_of_several_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("10.0.0.1:29400", "4", "3")
    given: dict[str, str] = dict(zip(ranks.JAX_NAMES, values, strict=True))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert ranks.is_launched() and not ranks.by_torchrun() and not ranks.is_first()
    assert (ranks.rank(), ranks.world_size()) == (3, 4)
    assert ranks.alone(given) == {}
    monkeypatch.setenv("RANK", "0")  # torchrun knows better
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ranks.by_torchrun() and (ranks.rank(), ranks.world_size()) == (0, 2)


def test_what_is_no_number_is_left_to_who_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    monkeypatch.setenv("JAX_PROCESS_ID", "-1")
    assert ranks.is_launched() and (ranks.rank(), ranks.world_size()) == (0, 1)


@pytest.mark.parametrize(
    ("given", "launched", "numbers"),
    [
        ({"RANK": "2"}, True, (2, 0, 1)),
        ({"WORLD_SIZE": "3"}, True, (0, 0, 3)),
        ({"LOCAL_RANK": "4"}, False, (0, 4, 1)),
        ({"RANK": "2", "JAX_PROCESS_ID": "7", "JAX_NUM_PROCESSES": "9"}, True, (2, 0, 1)),
        ({"JAX_PROCESS_ID": "7"}, False, (7, 0, 1)),
    ],
)
def test_any_of_the_names_is_enough(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    launched: bool,
    numbers: tuple[int, int, int],
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ranks.JAX_NAMES):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert ranks.is_launched() is launched
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size()) == numbers
    assert ranks.is_first() is (numbers[0] == 0)
    assert ranks.by_torchrun() is ("RANK" in given or "WORLD_SIZE" in given)
