"""What blocks were given comes back, from the device or from the host, once and in any size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from lowtide.ladder.blockinputs import HostInputs, Inputs

sys.path.insert(0, str(Path(__file__).parent))
from late_streams import use_late_streams


def given(step: int, number: int, micro: int) -> torch.Tensor:
    rows = 3 if micro == 0 else 2
    return torch.arange(rows * 4.0).view(rows, 4) + 1000 * step + 100 * number + 10 * micro


@pytest.mark.parametrize("kind", [Inputs, HostInputs])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_every_block_gets_back_what_it_was_given(
    kind: type[Inputs], micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_late_streams(monkeypatch)
    inputs = kind()
    for step in range(2):  # the second one in the first one's memory
        for number in range(3):
            for micro in range(micro_batches):
                x = given(step, number, micro)
                inputs.keep((number, micro), x)
        for number in reversed(range(3)):
            for micro in range(micro_batches):
                assert inputs.get((number, micro)).equal(given(step, number, micro))
        with pytest.raises(KeyError):
            inputs.get((0, 0))  # once
        inputs.clear()


def test_the_next_one_is_on_its_way_while_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    use_late_streams(monkeypatch)
    inputs = HostInputs()
    keys = [(number, micro) for number in range(2) for micro in range(2)]
    for key in keys:
        inputs.keep(key, given(0, *key))
    inputs.get((1, 0))
    assert list(inputs._ahead) == [(1, 1)]
    inputs.get((1, 1))
    assert list(inputs._ahead) == [(0, 0)]
    inputs.clear()
    assert not inputs._ahead


def test_memory_on_the_device_is_held_for_two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    use_late_streams(monkeypatch)
    inputs = HostInputs()
    for number in range(5):
        inputs.keep((number, 0), given(0, number, 0))
        newest = [given(0, n, 0) for n in range(max(0, number - 1), number + 1)]
        held = [x for _, x in inputs._leaving]
        assert len(held) == len(newest)
        assert all(one.equal(other) for one, other in zip(held, newest, strict=True))


def test_another_size_takes_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    use_late_streams(monkeypatch)
    inputs = HostInputs()
    for rows in (4, 2, 8):
        x = torch.arange(rows * 4.0).view(rows, 4)
        inputs.keep((0, 0), x)
        assert inputs.get((0, 0)).equal(x)
        assert inputs._memory[0, 0].bytes.numel() == rows * 16


def test_what_leaves_has_left_before_anything_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    use_late_streams(monkeypatch)
    inputs = HostInputs()
    for number in range(2):
        inputs.keep((number, 0), given(0, number, 0))
    assert len(inputs._leaving) == 2
    inputs.get((1, 0))
    assert not inputs._leaving
    inputs.clear()
    assert not inputs._shapes and not inputs._ahead


def test_what_is_cleared_has_left_first(monkeypatch: pytest.MonkeyPatch) -> None:
    use_late_streams(monkeypatch)
    inputs = HostInputs()
    for number in range(2):
        inputs.keep((number, 0), given(0, number, 0))
    inputs.clear()
    assert not inputs._leaving and not inputs._shapes
    there = [inputs._memory[number, 0].bytes.view(torch.float32) for number in range(2)]
    assert [part.tolist() for part in there] == [
        given(0, number, 0).flatten().tolist() for number in range(2)
    ]


def test_small_inputs_share_allocations_on_a_cpu() -> None:
    inputs, given = Inputs(), {}
    for number in range(40):
        x = torch.randn(1, 101, 300, dtype=torch.bfloat16 if number > 30 else torch.float32)
        given[number, 0] = x.clone()
        inputs.keep((number, 0), x)
        x.zero_()  # its memory is used again
    kept = [inputs._kept[key] for key in given]
    assert len({x.untyped_storage().data_ptr() for x in kept}) <= 4
    assert all(x.data_ptr() % 32 == 0 for x in kept)
    for key in reversed(given):
        assert torch.equal(inputs.get(key), given[key])
    large = torch.randn(1, 1024, 1024)
    inputs.keep((0, 0), large)
    assert inputs.get((0, 0)).data_ptr() == large.data_ptr()
    inputs.clear()
    assert inputs._slab.numel() == 0
