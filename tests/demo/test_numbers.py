"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'demo'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "demo.running": {"_GRACE_SECONDS": 5.0, "_wait_after_interrupt(grace_seconds)": 5.0},
    "demo.stages": {
        "_SEQUENCE_LENGTH": 128,
        "_BATCH_SIZE": 16,
        "_MODEL_FLAGS": {"--num-layers": 4, "--width": 128, "--num-heads": 4},
        "_NEW_TOKENS": 160,
        "DemoSettings.vocab_size": 2_048,
        "DemoSettings.max_iters": 400,
        "plan_stages(model_flags)": {"--num-layers": 4, "--width": 128, "--num-heads": 4},
    },
    "demo.text": {"_ENOUGH_FILES": 50},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("demo", NUMBERS) == {}
