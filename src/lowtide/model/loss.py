"""Output matrix and cross entropy in one function, in chunks of tokens, to never hold all logits.

In:      the final hidden states [N, D], the output matrix [V, D], targets [N] or [N, K]
Out:     the mean loss; gradients are computed with it
Memory:  logits of `chunk_tokens` tokens; a gradient of the hidden states and one of the matrix
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowtide.model import rowkernels
from lowtide.model.float8 import Float8Head, fits_float8
from lowtide.model.kernels import fused_loss_and_error, has_fused_loss
from lowtide.model.products import has_quick_products, multiply, quick_multiply
from lowtide.model.targets import plain_loss_and_error

__all__ = ["PlainHead", "chunked_cross_entropy"]


def _loss_and_error(
    logits: Tensor, wanted: Tensor, *, cap: float, ahead: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of logits [N, V], and their gradient."""
    if has_fused_loss(logits):
        return fused_loss_and_error(logits, wanted, cap=cap, ahead=ahead)
    if rowkernels.can_fuse(logits) and not cap and not ahead:
        return rowkernels.loss_and_error(logits, wanted)
    total, error = plain_loss_and_error(logits.float(), wanted, cap=cap, ahead=ahead)
    return total, error.to(logits.dtype)


class PlainHead:
    """An output matrix in the precision of the hidden states."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._matrix = weight.to(dtype)

    def loss(self, states: Tensor, wanted: Tensor, *, cap: float) -> Tensor:
        """Return the loss of some rows."""
        logits = multiply(states, self._matrix.t())
        return _loss_and_error(logits, wanted, cap=cap, ahead=())[0]

    def chunk(
        self, states: Tensor, wanted: Tensor, total: Tensor, *, cap: float, ahead: tuple[float, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of some rows and their gradient; add the matrix's to `total`."""
        logits = multiply(states, self._matrix.t())
        loss, error = _loss_and_error(logits, wanted, cap=cap, ahead=ahead)
        if has_quick_products(states, total):
            quick_multiply(error.t(), states, total, adds=True)
        elif states.dtype == torch.float32:
            total.addmm_(error.t(), states)
        else:
            total += error.t() @ states
        return loss, multiply(error, self._matrix)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Linear layer and cross entropy in chunks of tokens; gradients are computed with the loss.

    The gradients are computed while a chunk's logits exist, so the backward pass needs neither them
    nor a second matrix product for them. They are kept unscaled (softmax minus one-hot) because
    dividing by the number of tokens first would underflow in float16.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_tokens: int,
        float8: bool,
        cap: float,
        ahead: tuple[float, ...],
        confidence: float,
    ) -> Tensor:
        num_tokens = hidden.shape[0]
        chunks = [
            slice(start, start + chunk_tokens) for start in range(0, num_tokens, chunk_tokens)
        ]
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            head = PlainHead(weight, hidden.dtype)
            for part in chunks:
                total += head.loss(hidden[part], targets[part], cap=cap)
            return total / num_tokens
        float8 = float8 and fits_float8(min(num_tokens, chunk_tokens), weight)
        float8 = float8 and fits_float8(num_tokens % chunk_tokens, weight)
        head = Float8Head(weight) if float8 else PlainHead(weight, hidden.dtype)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for part in chunks:
            states = hidden[part] if confidence == 1 else hidden[part] / confidence
            loss, gradient = head.chunk(
                states, targets[part], weight_gradient, cap=cap, ahead=ahead
            )
            hidden_gradient[part] = gradient if confidence == 1 else gradient / confidence
            total += loss
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.num_tokens = num_tokens
        return total / num_tokens

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = gradient / ctx.num_tokens
        return (
            (hidden_gradient.float() * scale).to(hidden_gradient.dtype),
            weight_gradient * scale,
            *(None,) * 6,
        )


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk_tokens: int,
    *,
    float8: bool = False,
    cap: float = 0.0,
    ahead: tuple[float, ...] = (),
    confidence: float = 1.0,
) -> Tensor:
    """Return the mean cross entropy of `hidden @ weight.T` [N, V] without ever holding all of it.

    With `float8`, a pass with gradients uses float8 products if their sides allow it. Logits are
    softly capped to -cap to cap. With weights `ahead`, targets are [N, 2] or [N, 3]: the gradient
    is that of all of them, the loss that of the first. A pass with gradients divides logits by
    `confidence`.
    """
    wanted = targets if targets.ndim == 2 else targets[:, None]
    if not torch.is_grad_enabled():  # a function is told what its inputs require, wherever it runs
        hidden, weight = hidden.detach(), weight.detach()
    return _compute(hidden, weight, wanted, chunk_tokens, float8, cap, ahead, confidence)


_compute: Callable[..., Tensor] = _ChunkedCrossEntropy.apply  # pyright: ignore[reportAssignmentType]


def keep_loss_out_of_graphs() -> None:
    """Exclude the loss from compiled graphs: a loop over chunks has nothing to fuse."""
    global _compute
    _compute = torch.compiler.disable(_ChunkedCrossEntropy.apply)  # pyright: ignore[reportAssignmentType]
