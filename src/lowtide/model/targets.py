"""What training adds to the cross entropy of next tokens: later targets, caps, and a scale.

In:      logits [N, V], targets [B, T]
Out:     targets [N, K] with those of the next positions beside them; the loss and its gradient
Memory:  float32 logits are overwritten; capped ones are copied once

Predicting the token after the next from the same logits, with a decreasing weight, teaches the
hidden states to look ahead; the reported loss is that of the next token alone. A soft cap in the
beginning keeps logits small while the embedding still changes quickly. Logits that are larger in
training than afterwards make the finished network less sure of what it predicts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lowtide.quickclasses import dataclass

__all__ = [
    "LossForm",
    "ahead_weights",
    "cap_logits",
    "opening_cap",
    "plain_loss_and_error",
    "targets_ahead",
]

# The weights of the second and third target reach zero at these shares of a run.
_SECOND_ENDS, _THIRD_ENDS = 2 / 3, 1 / 3
# An early cap opens between these shares of a run, until it is this many times as large.
_CAP_OPENS, _CAP_ENDS, _CAP_GROWS = 0.1, 0.4, 8.0


@dataclass(frozen=True)
class LossForm:
    """How the loss in training differs from the cross entropy of next tokens."""

    ahead: tuple[float, ...] = ()
    """Weights of the tokens after the next one."""
    cap: float = 0.0
    """Soft cap of logits where the layout has none; 0 is none."""
    confidence: float = 1.0
    """Size of logits after training, as a share of those in training."""


def ahead_weights(weight: float, share_done: float) -> tuple[float, ...]:
    """The weights of the tokens after the next one; none when the last third of a run begins.

    >>> [ahead_weights(0.5, share) for share in (0, 1 / 6, 1 / 3, 0.5, 2 / 3)]
    [(0.5, 0.25), (0.375, 0.125), (0.25,), (0.125,), ()]
    """
    second = weight * (1 - share_done / _SECOND_ENDS)
    third = weight / 2 * (1 - share_done / _THIRD_ENDS)
    return tuple(value for value in (second, third) if value > 0)


def opening_cap(first: float, share_done: float) -> float:
    """The soft cap of logits at a share of a run that begins with the cap `first`; 0 is none.

    >>> [round(opening_cap(15.0, share), 1) for share in (0, 0.1, 0.2, 0.3, 0.39, 0.4)]
    [15.0, 15.0, 30.0, 60.0, 112.0, 0.0]
    """
    if share_done >= _CAP_ENDS:
        return 0.0
    opened = max(0.0, (share_done - _CAP_OPENS) / (_CAP_ENDS - _CAP_OPENS))
    return first * _CAP_GROWS**opened


def targets_ahead(targets: Tensor, count: int) -> Tensor:
    """Targets [B, T] as [B * T, 1 + count], each with those after it; -1 beyond a row's end."""
    shifted = [F.pad(targets[:, by:], (0, by), value=-1) for by in range(count + 1)]
    return torch.stack(shifted, dim=-1).flatten(0, 1)


def cap_logits(logits: Tensor, cap: float) -> Tensor:
    """Cap logits softly to -cap to cap; 0 leaves them unchanged."""
    return cap * torch.tanh(logits / cap) if cap > 0 else logits


def plain_loss_and_error(
    logits: Tensor, wanted: Tensor, *, cap: float = 0.0, ahead: tuple[float, ...] = ()
) -> tuple[Tensor, Tensor]:
    """The sum of the first targets' losses, and the gradient of all, which overwrites logits."""
    values, slope = logits, None
    if cap > 0:
        bent = logits.div_(cap).tanh_()
        values, slope = cap * bent, bent.square_().neg_().add_(1)
    log_total = values.logsumexp(dim=-1, keepdim=True)
    total = (log_total - values.gather(-1, wanted[:, :1])).sum()
    error = values.sub_(log_total).exp_()
    weights = error.new_tensor((1.0, *ahead)) * (wanted >= 0)
    if ahead:
        error *= weights.sum(dim=-1, keepdim=True)
    error.scatter_add_(-1, wanted.clamp(min=0), -weights)
    return total, error if slope is None else error.mul_(slope)
