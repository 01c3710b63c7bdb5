"""The form of the training loss, by its settings and the share of the run that is done."""

from __future__ import annotations

import pytest

from lowtide.model.targets import LossForm
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.lossforms import loss_form


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, LossForm((0.5, 0.25), 15.0, 0.9)),
        (1 / 6, LossForm((0.375, 0.125), pytest.approx(15 * 8 ** (2 / 9)), 0.9)),
        (0.5, LossForm((0.125,), 0.0, 0.9)),
        (1.0, LossForm((), 0.0, 0.9)),
    ],
)
def test_each_setting_is_part_of_the_form(share: float, expected: LossForm) -> None:
    settings = LearningSettings(ahead_weight=0.5, early_cap=15.0, confidence=0.9)
    found = loss_form(settings, share)
    assert found.ahead == pytest.approx(expected.ahead)
    assert (found.cap, found.confidence) == (expected.cap, expected.confidence)


def test_without_settings_the_loss_has_no_form() -> None:
    assert loss_form(LearningSettings(), 0.2) == LossForm()
