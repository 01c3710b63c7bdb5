"""AdamW with torch's fused kernel, and a base class that avoids importing torch's compiler.

In:      gradients
Out:     new weights; a skipped step changes nothing, without a wait for the device
Memory:  8 bytes a parameter, 12 if decay draws it to its initial values

Methods of torch's optimizers import torch's compiler on their first call, only to exclude
themselves from it: 140 MiB and 1.5 s, in runs that compile nothing. Ours are never compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowtide.training.sharedrows import SharedRows

__all__ = ["TO_FIRST", "AdamW", "EagerOptimizer"]

TO_FIRST = "to_first"
_FIRST = "first"
_torch: Any = torch  # the operations on lists of tensors have names of private functions


class EagerOptimizer(torch.optim.Optimizer):
    """torch's optimizer with its plain methods, without the wrappers that import the compiler."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """torch's fused AdamW: the same kernel, state and numbers.

    `shared` has the tables, by `id`, whose rows also take shared steps (sharedrows.py). Parameters
    of a group with `to_first` decay towards their values before the first step, not to zero.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        shared: dict[int, SharedRows] | None = None,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=1e-8, fused=True)
        self._shared = shared or {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        divisor: Tensor | None = getattr(self, "grad_scale", None)
        if divisor is not None:  # the kernels want that in float32 for parameters of any type
            divisor = divisor.float()
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [self._state_of(parameter) for parameter in parameters]
            for parameter, state in zip(parameters, states, strict=True):
                if group.get(TO_FIRST) and _FIRST not in state:
                    state[_FIRST] = parameter.clone()
                if (shared := self._shared.get(id(parameter))) is not None:
                    shared.step(parameter, state, group, divisor=divisor, skip=skip)
            decay = group["weight_decay"]
            if group.get(TO_FIRST):
                share = group["lr"] * decay * (1.0 if skip is None else 1.0 - skip)
                for parameter, state in zip(parameters, states, strict=True):
                    parameter.lerp_(state[_FIRST], share)
                decay = 0.0
            steps = [state["step"] for state in states]
            _torch._foreach_add_(steps, 1)
            _torch._fused_adamw_(
                parameters,
                [p.grad for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                amsgrad=False,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=decay,
                eps=group["eps"],
                maximize=False,
                grad_scale=divisor,
                found_inf=skip,
            )
            if skip is not None:  # a skipped step is not counted
                _torch._foreach_sub_(steps, [skip] * len(steps))

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state
