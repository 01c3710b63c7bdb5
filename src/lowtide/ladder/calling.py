"""Call a module with given tensors as parameters, and backpropagate a given gradient.

In:      a module's outline, its parameters by name, its arguments
Out:     the module's result; gradients of its inputs
Memory:  none of its own

torch's own ways to do both import sympy, which takes 45 MiB: a lot for a small budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["call_with", "gradients_of", "run_block"]


def run_block(
    block: nn.Module,
    named: dict[str, Tensor],
    x: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    casts: bool,
) -> Tensor:
    named = {
        n: v.to(x.dtype) if v.ndim < 2 and (casts or n.endswith("bias")) else v
        for n, v in named.items()
    }
    return call_with(block, named, x, cos, sin, None)


def call_with(module: nn.Module, named: dict[str, Tensor], *arguments: Any) -> Tensor:
    """Call a module with these tensors as its parameters.

    torch's own way imports sympy (45 MiB), so it is only used under its compiler, which has it
    anyway.
    """
    if torch.compiler.is_compiling():
        from torch.func import functional_call

        return functional_call(module, named, arguments)
    for name, value in named.items():
        path, _, leaf = name.rpartition(".")
        module.get_submodule(path)._parameters[leaf] = value  # pyright: ignore[reportArgumentType, reportPrivateUsage]
    try:
        return module(*arguments)
    finally:
        for name in named:
            path, _, leaf = name.rpartition(".")
            module.get_submodule(path)._parameters[leaf] = None  # pyright: ignore[reportPrivateUsage]


class _Handed(torch.autograd.Function):
    """A scalar whose backward pass returns a given gradient.

    torch.autograd.grad takes such gradients too, but compares their shapes with sympy (45 MiB).
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(gradient)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0], None


def gradients_of(y: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradients of `inputs`, given the gradient of y."""
    return torch.autograd.grad(_Handed.apply(y, gradient), inputs)  # pyright: ignore[reportArgumentType, reportReturnType]
