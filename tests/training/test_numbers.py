"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'training'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "training.adamw": {"EagerOptimizer.zero_grad(set_to_none)": True},
    "training.admission": {"refuse_hopeless(is_running)": False},
    "training.backends": {
        "Engine.compute(share_done)": 0.0,
        "Backend.new_model(zero_init)": False,
        "Backend.load_weights(verify)": True,
    },
    "training.checkpoints": {
        "RunFolder.__init__(keep)": 2,
        "RunFolder.locked(wanted)": True,
        "RunFolder.find_whole(set_aside)": False,
        "RunFolder.save_tokenizer(best)": False,
    },
    "training.diagnostics": {"_SHOWN_STEPS": 3, "Diagnostics.__init__(stall_seconds)": 120.0},
    "training.evaluation": {"evaluate_loss(rank)": 0, "evaluate_loss(world_size)": 1},
    "training.footprint": {
        "_CUDA_PROGRAM_BYTES": 2_147_483_648,
        "_MARGIN": 1.1,
        "_HOLES_BYTES": 16_777_216,
        "_LEAST_SPARE_BYTES": 41_943_040,
        "planned_bytes(on_gpu)": False,
        "planned_bytes(data_bytes)": 0,
        "fit_micro_batch(is_running)": False,
        "fit_micro_batch(data_bytes)": 0,
    },
    "training.heldout": {
        "_KEPT_BYTES": 2_097_152,
        "_SCAN_BYTES": 33_554_432,
        "_FEWEST_DOCUMENTS": 100,
    },
    "training.hostcopies": {"_ALIGNMENT": 64},
    "training.likelihood": {"_GROUP": 256, "_GROUP_CHARACTERS": 1_048_576},
    "training.loaders": {
        "GPTDataLoader.__init__(eval_only)": False,
        "GPTDataLoader.__init__(batch_size)": 32,
        "GPTDataLoader.__init__(seed)": 1_337,
    },
    "training.muon": {"Muon.__init__(cautious)": False},
    "training.muonnumbers": {
        "STACK_BYTES": 268_435_456,
        "ROW_MEMORY": 0.95,
        "POLAR_EXPRESS": (
            (8.15655, -22.48329, 15.87877),
            (4.04293, -2.80892, 0.50002),
            (3.89167, -2.77248, 0.50606),
            (3.28575, -2.36813, 0.46449),
            (2.34654, -1.70978, 0.42324),
        ),
        "NORM_MARGIN": 1.02,
    },
    "training.optimizers": {
        "_SMALLEST_8BIT": 4_096,
        "build_optimizers(betas)": (0.9, 0.95),
        "build_optimizers(use_8bit)": False,
        "build_optimizers(momentum)": 0.95,
        "build_optimizers(cautious_decay)": False,
        "build_optimizers(embedding_rate)": 1.0,
        "LossScale.__init__(initial)": 65536.0,
    },
    "training.probe": {"_VOCABULARY": 62},
    "training.reports": {"_OVERFITTING_GAP": 0.3},
    "training.results": {
        "evaluation_windows(first)": 0,
        "evaluate_windows(rank)": 0,
        "evaluate_windows(world_size)": 1,
        "ForgettingWatch.__init__(learning_rate)": 0.0003,
    },
    "training.schedule": {
        "_MOST_WARMUP_STEPS": 100,
        "learning_rate_factor(decay_fraction)": 0.4,
        "learning_rate_factor(elapsed_fraction)": 0.0,
    },
    "training.settings": {"EVAL_BATCH_ROWS": 32},
    "training.slurm": {
        "write_slurm_script(cores)": 8,
        "write_slurm_script(notice_seconds)": 180,
        "write_slurm_script(port)": 29_400,
    },
    "training.stepping": {"Stepper.compute(share_done)": 0.0},
    "training.tasks": {"_LARGEST_LINE": 16_777_216},
    "training.texts": {"_HEAD_BYTES": 33_554_432, "_LARGE_BYTES": 67_108_864},
    "training.torchbackend": {
        "_TorchBackend.new_model(zero_init)": False,
        "_TorchBackend.load_weights(verify)": True,
    },
    "training.torchoptions": {
        "_TORCH_ONLY": {
            "layout": ("tide",),
            "compile": (True,),
            "compile_whole": (True,),
            "attention": ("cudnn", "flash"),
            "float8_head": (True,),
            "float8_blocks": (True,),
            "precision": ("fp16",),
            "device": ("mps",),
            "tensorboard": (True,),
            "slurm": (True,),
        }
    },
    "training.trial": {
        "_CORE_FLOPS": 10000000000.0,
        "_FEWEST_TOKENS": 256,
        "_NUM_IDS": 262_144,
        "time_steps(all_rows)": False,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("training", NUMBERS) == {}
