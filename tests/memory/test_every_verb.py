"""Every verb that takes --memory is held to it by a test here: ten times the input, no more memory.

A verb stands in one of the tables below; its tests compare the kernel's peaks, with less slack than
half of what was added, and show that a stage which holds its input is found out.
"""

from __future__ import annotations

from lowtide.flatsettings import setting_fields
from lowtide.verbs import VERBS

from . import test_convert, test_models, test_text_verbs

# The stages of a demo are the verbs above, on text of one size.
_OF_OTHERS = {"demo"}
_MEASURED = {*test_convert.VERBS, *test_models.CASES, *test_text_verbs.VERBS}
_OWN_TESTS = {
    "compare-memory": test_text_verbs.test_ten_times_the_text_compared,
    "prepare --step": test_text_verbs.test_ten_times_the_text_through_a_step_takes_no_more,
}


def test_every_verb_with_a_budget_is_measured() -> None:
    taking = {
        name for name, verb in VERBS.items() if "memory" in setting_fields(verb.settings_class())
    }
    assert len(taking) >= 16 and "train" in taking
    assert taking - _MEASURED - set(_OWN_TESTS) == _OF_OTHERS
