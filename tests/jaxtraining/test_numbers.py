"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'jaxtraining'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "jaxtraining.backend": {
        "_JaxBackend.new_model(zero_init)": False,
        "_JaxBackend.load_weights(verify)": True,
    },
    "jaxtraining.devices": {"JaxGroup.rank": 0, "JaxGroup.world_size": 1},
    "jaxtraining.eightbit": {"_BLOCK": 256, "_SMALLEST": 4_096, "_EXPONENTS": 7},
    "jaxtraining.engine": {"JaxEngine.compute(share_done)": 0.0},
    "jaxtraining.evaluation": {"_PENDING": 64, "LossSums.__init__(pending)": 64},
    "jaxtraining.generation": {"iter_tokens(max_new_tokens)": 100},
    "jaxtraining.network": {
        "_TRIED_TOKENS": 256,
        "_NEAR": 0.03,
        "Form.again": False,
        "Form.chunk_tokens": 1_073_741_824,
        "Form.dropout": 0.0,
        "Form.fused": False,
        "_attend(share)": 0.0,
    },
    "jaxtraining.optimizers": {
        "_EPS": 1e-08,
        "Rules.use_8bit": False,
        "Rules.weight_decay": 0.1,
        "Rules.betas": (0.9, 0.95),
        "Rules.cautious": False,
        "Rules.embedding_rate": 1.0,
        "Rules.grad_clip": 1.0,
        "Rules.half": False,
    },
    "jaxtraining.processes": {"_SHUTDOWN_SECONDS": 20},
    "jaxtraining.trees": {
        "JaxGPT.__init__(seed)": 1_337,
        "JaxGPT.__init__(zero_init)": False,
        "JaxGPT.load_weights(verify)": True,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("jaxtraining", NUMBERS) == {}
