"""Sums in one order: on for a GPU's gradients alone, given back as found, up where refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch.utils import deterministic

from lowtide.ladder.exactsums import ExactSums

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def mode_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(found)


def _mode() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
def test_the_mode_is_strict_inside_and_as_it_was_afterwards(before: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    exact = ExactSums(GPU, note=pytest.fail)
    with exact():
        assert _mode() == (True, False, False)
    assert _mode() == (*before, True)
    with pytest.raises(KeyError), exact():
        raise KeyError
    assert _mode() == (*before, True)


def test_cublas_is_asked_to_be_exact_unless_somebody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    ExactSums(GPU, note=pytest.fail)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    ExactSums(GPU, note=pytest.fail)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_cpu_needs_nothing() -> None:
    exact = ExactSums(torch.device("cpu"), note=pytest.fail)
    before = _mode()
    with exact():
        assert _mode() == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert not exact.gives_up(RuntimeError("no deterministic implementation"))


def test_what_the_mode_refuses_ends_it_and_is_said_once() -> None:
    said: list[str] = []
    exact = ExactSums(GPU, note=said.append)
    assert not exact.gives_up(RuntimeError("a wrong shape"))
    error = RuntimeError("cumsum has no deterministic implementation\nand more")
    assert exact.gives_up(error)
    assert not exact.gives_up(error)  # it is off: whatever this is, it is another fault
    assert said == [
        "sums are not in one order from here on: runs may differ in their last bits "
        "(cumsum has no deterministic implementation)"
    ]
    before = _mode()
    with exact():
        assert _mode() == before
