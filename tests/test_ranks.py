"""Which process this is, as torchrun says it."""

from __future__ import annotations

import pytest

from lowtide import ranks


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
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
