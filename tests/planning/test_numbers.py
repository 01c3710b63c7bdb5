"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'planning'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "planning.choices": {
        "_HALVING_COST": {"cpu": 0.01, "gpu": 0.05},
        "_EIGHT_BIT_COST": 0.08,
        "_CHECKPOINTING_COST": 0.33,
        "_SHORTER_ROWS_COST": 10.0,
        "_FEWER_ROWS_COST": 0.2,
        "_STEP_HALVINGS": 4,
        "_OFFLOAD_COST": {
            "packed": 0.45,
            "gradients": 0.5,
            "optimizer": 0.6,
            "layers": 1.2,
            "disk": 4.0,
            "disk-all": 8.0,
        },
        "_SMALLEST_ROWS": 64,
        "_CPU_TOKENS": 16_384,
        "_CPU_MICRO_TOKENS": 4_096,
        "_GPU_TOKENS": 131_072,
        "_MANY_STEPS": 100,
        "_TPU_ROWS": 128,
        "_TPU_ROW_TOKENS": 128,
        "_SHUFFLE_BUFFERS": ((8, 5_000), (16, 10_000), (float("inf"), 50_000)),
        "_TPU_SHUFFLE_BUFFER": 100_000,
        "find_fitting(named_batch)": True,
    },
    "planning.commands": {"_MIB": 1_048_576},
    "planning.comparison": {"_VOCABULARY": 4_096, "_NUM_BATCHES": 50},
    "planning.compute": {
        "_TOKENS_PER_PARAM": 20.0,
        "_A": 482.01,
        "_ALPHA": 0.3478,
        "_B": 2085.43,
        "_BETA": 0.3658,
        "_GOOD_EPOCHS": 4.0,
        "_MOST_EPOCHS": 16.0,
        "_FRESH_EPOCHS": 2.0,
        "_CORE_FLOPS": 20000000000.0,
        "_GPU_FLOPS": 30000000000000.0,
        "_DAY_SECONDS": 86_400,
        "_SMALLEST_SIZE": 1_000_000,
    },
    "planning.machine": {
        "_RAM_SHARE": 0.75,
        "_VRAM_SHARE": 0.92,
        "_USUAL_CORES": {8: 4, 16: 8, 32: 16},
        "Machine.is_tpu": False,
    },
    "planning.needs": {
        "_INT64_BYTES": 8,
        "_LIST_BYTES": 40,
        "_SHUFFLE_BUFFER": 10_000,
        "_LOADING_PROGRAM_BYTES": 30_408_704,
        "stage_needs(near_copies)": False,
    },
    "planning.picture": {
        "_ROW": 26,
        "_HEAD": 30,
        "_LABEL": 230,
        "_BAR": 400,
        "_VALUE": 90,
        "_TOP": 36,
    },
    "planning.plandata": {
        "_SAMPLE_BYTES": 1_048_576,
        "_TRAIN_SHARE": 0.9,
        "_GPT2_VOCABULARY": 50_257,
        "_VOCABULARIES": ((8, 8_000), (16, 16_000), (float("inf"), 32_000)),
        "_SMALLEST_VOCABULARY": 500,
        "DataFacts.streams": False,
    },
    "planning.settings": {
        "_SMALLEST_VOCABULARY": 257,
        "_SMALLEST_MACHINE": 33_554_432,
        "PlanSettings.near_dedup": 0.0,
        "PlanSettings.use_mixed_precision": False,
        "PlanSettings.use_8bit_optimizer": False,
        "PlanSettings.activation_checkpointing": False,
        "PlanSettings.tpu": False,
        "PlanSettings.measure": True,
    },
    "planning.speed": {
        "_USUAL_FLOPS": 30000000000000.0,
        "_USUAL_LINK": 20000000000.0,
        "_USUAL_DISK": 2000000000.0,
        "_TRAINING_SHARE": 0.4,
        "_TIMEOUT_SECONDS": 90,
        "_FREE": 0.1,
        "_COMPUTED_AGAIN": 1.3333333333333333,
        "Rates.is_disk_assumed": False,
    },
    "planning.summary": {"_YEAR_SECONDS": 31_536_000},
    "planning.trial": {"_TIMEOUT_SECONDS": 90, "run_trial(seconds)": 8.0},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("planning", NUMBERS) == {}
