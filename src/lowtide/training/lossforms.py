"""The form of the training loss at a share of a run, by its settings; for both engines of torch.

In:      LearningSettings, the finished share of a run
Out:     LossForm (model/targets.py), which networks compute
"""

from __future__ import annotations

from lowtide.model.targets import LossForm, ahead_weights, opening_cap
from lowtide.training.learningsettings import LearningSettings

__all__ = ["loss_form"]


def loss_form(learning: LearningSettings, share_done: float) -> LossForm:
    """The form of the loss at a share of a run.

    >>> loss_form(LearningSettings(ahead_weight=0.4, early_cap=15.0), 0.5)
    LossForm(ahead=(0.1,), cap=0.0, confidence=1.0)
    """
    return LossForm(
        ahead_weights(learning.ahead_weight, share_done),
        opening_cap(learning.early_cap, share_done),
        learning.confidence,
    )
