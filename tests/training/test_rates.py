"""What a GPU's probe copies and computes, and how it divides by the clock: with stand-ins."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.training import rates


class Memory:
    """A tensor that notes what happens to it, and on which stream."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name, self.calls = name, calls

    def copy_(self, other: Memory, *, non_blocking: bool) -> None:
        self.calls.append((Stand.stream, f"{other.name} to {self.name}", non_blocking))


class Stand:
    """Torch, as far as the probe uses it; a product takes 2 ms, a copy each way 5 ms."""

    stream = 0
    bfloat16, uint8 = "bfloat16", "uint8"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.sizes: list[Any] = []
        self.now = self.waiting = 0.0
        self.num_streams = 0
        self.cuda = SimpleNamespace(
            Stream=self.make_stream, stream=self.use, synchronize=self.synchronize
        )

    def make_stream(self, device: str) -> int:
        assert device == "the cuda"
        self.num_streams += 1
        return self.num_streams

    @contextlib.contextmanager
    def use(self, stream: int) -> Iterator[None]:
        Stand.stream = stream
        yield
        Stand.stream = 0
        self.waiting += 0.0025

    def synchronize(self) -> None:
        self.now += self.waiting
        self.waiting = 0.0

    def device(self, name: str) -> str:
        return f"the {name}"

    def empty(self, size: int, *, dtype: str, device: str = "", pin_memory: bool = False) -> Memory:
        assert (device == "the cuda") != pin_memory  # the host's is locked, the GPU's its own
        self.sizes.append((size, dtype))
        return Memory("there" if device else "here", self.calls)

    def randn(self, *size: int, device: str, dtype: str) -> str:
        self.sizes.append((*size, dtype))
        return device

    def randn_like(self, other: str) -> str:
        return other

    empty_like = randn_like

    def mm(self, left: str, right: str, *, out: str) -> None:
        assert left == right == out == "the cuda"
        self.calls.append("mm")
        self.waiting += 0.002

    def perf_counter(self) -> float:
        return self.now


def test_the_clock_is_read_when_the_gpu_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    monkeypatch.setattr(rates, "torch", stand)
    monkeypatch.setattr(rates, "time", stand)
    found = rates.measure_rates()
    assert found == {
        "link_bytes": pytest.approx((128 << 20) / 0.005),
        "flops": pytest.approx(2 * 8192**3 / 0.002),
    }
    assert stand.sizes == [(128 << 20, "uint8")] * 4 + [(8192, 8192, "bfloat16")]
    outward, inward = (1, "there to here", True), (2, "here to there", True)
    num_copies, num_products = 1 + 20 * 8, 1 + 50 * 8  # until 0.8 seconds are over, eight a time
    assert stand.calls == [outward, inward] * num_copies + ["mm"] * num_products


def test_as_a_program_it_asks_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise LookupError(name)

    monkeypatch.setattr(rates.torch, "device", refuse)
    monkeypatch.setattr(rates.torch.cuda, "is_available", lambda: True)
    with pytest.raises(LookupError, match="cuda"):
        runpy.run_path(rates.__file__, run_name="__main__")
    monkeypatch.setattr(rates.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="error: no GPU"):
        runpy.run_path(rates.__file__, run_name="__main__")
