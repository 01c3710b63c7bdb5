"""Modules are called with tensors that come and go, and hold none of them afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lowtide.ladder import calling


class Noting(nn.Module):
    """A block that says which precision its parameters have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.ones(2))

    def forward(self, x: Any, cos: Any, sin: Any, cache: Any) -> Any:
        parts = (self.inner.weight, self.inner.bias, self.gain)
        return [str(part.dtype).removeprefix("torch.") for part in parts], cos, sin, cache


@pytest.mark.parametrize("casts", [False, True])
def test_biases_have_the_precision_of_what_is_computed(casts: bool) -> None:
    module = Noting()
    named = {
        "inner.weight": torch.zeros(2, 2), "inner.bias": torch.zeros(2), "gain": torch.zeros(2)
    }  # fmt: skip
    x = torch.zeros(1, 2, dtype=torch.bfloat16)
    found = calling.run_block(module, named, x, "cos", "sin", casts)  # type: ignore[arg-type]
    kinds = ["float32", "bfloat16", "bfloat16" if casts else "float32"]
    assert found == (kinds, "cos", "sin", None)
    assert [*module.parameters()] == []  # nothing is held


def test_nothing_is_held_after_a_call_that_failed() -> None:
    module = nn.Linear(2, 3)
    with pytest.raises(RuntimeError):
        calling.call_with(module, {"weight": torch.zeros(3, 5)}, torch.zeros(1, 2))
    assert module.weight is None and module.bias is not None


def test_under_the_compiler_it_is_torchs_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    module = nn.Linear(2, 1)
    named = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    assert calling.call_with(module, named, torch.ones(1, 2)).tolist() == [[2.0]]
    assert module.weight is not None


def test_gradients_follow_from_that_of_the_result() -> None:
    x, scale = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    found = calling.gradients_of(x * scale, [x, scale], torch.tensor([5.0, 7.0]))
    assert [one.tolist() for one in found] == [[15.0, 21.0], 19.0]
