"""Whole plans of described machines, word for word and number for number.

What the stages say of themselves is replaced by plain formulas, so that only planning is compared.
Where a plan is meant to change, `python tests/planning/test_scenarios.py` writes plans/ anew; the
difference is what users will see.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import resources
from lowtide.model.program import Program
from lowtide.planning import machine, needs
from lowtide.planning.plan import Plan, make_plan
from lowtide.planning.summary import describe_plan, plan_as_json
from lowtide.tokenizer import footprint as tokenizer_footprint
from lowtide.training import footprint as training_footprint

PLANS = Path(__file__).parent / "plans"
PROGRAM = Program(
    300 << 20,
    320 << 20,
    extra_bytes={"recompute": 140 << 20, "8bit": 40 << 20, "compile": 360 << 20},
)

SCENARIOS: dict[str, dict[str, Any]] = {
    "laptop": {"ram": "8GiB", "tokens": "500M", "size": "10M"},
    "nothing named": {"ram": "32GiB"},
    "one core": {"ram": "2GiB", "cores": 1, "tokens": "2M"},
    "gpu": {"ram": "16GiB", "vram": "12GiB", "tokens": "2B", "size": "350M"},
    "gpu alone": {"ram": "64GiB", "vram": "24GiB", "cores": 12, "tokens": "300M"},
    "small gpu": {
        "ram": "8GiB",
        "vram": "3GiB",
        "size": "120M",
        "batch_size": 16,
        "seq_len": 512,
        "vocab_size": 8000,
    },
    "ladder": {
        "ram": "24GiB",
        "vram": "8GiB",
        "disk": "200GB",
        "tokens": "10B",
        "size": "3B",
        "measure": False,
    },
    "tight": {"ram": "900MiB", "tokens": "20M", "size": "12M", "batch_size": 64},
    "shorter rows": {
        "ram": "660MiB",
        "tokens": "20M",
        "num_layers": 2,
        "width": 64,
        "num_heads": 2,
        "seq_len": 4096,
        "batch_size": 2,
    },
    "far too large": {"ram": "4GiB", "size": "1B", "tokens": "1B", "cores": 4},
    "hopeless": {"ram": "256MiB", "size": "50M", "tokens": "5M"},
    "tpu": {"tpu": True, "tokens": "5B"},
    "stream": {"ram": "16GiB", "dataset_id": "some/texts", "tokens": "100M"},
    "stream of gpt2": {"ram": "8GiB", "dataset_id": "some/texts", "tokenization": "gpt2"},
    "stream of files": {"ram": "8GiB", "dataset_id": "text.txt", "size": "10M"},
    "files for a model": {"ram": "8GiB", "input_files": ("text.txt",), "size": "10M"},
    "old layout": {
        "ram": "8GiB",
        "layout": "gpt2",
        "num_layers": 4,
        "width": 256,
        "num_heads": 4,
        "use_mixed_precision": True,
        "tokens_per_param": 5.0,
        "gradient_accumulation_steps": 2,
        "optimizer": "adamw",
        "use_8bit_optimizer": True,
        "name": "old",
        "tokens": "10M",
    },
    "characters": {"ram": "8GiB", "input_files": ("text.txt",), "tokenization": "char"},
    "files": {"ram": "8GiB", "input_files": ("text.txt", "more.txt"), "memory": "700MiB"},
    "tokens": {"ram": "8GiB", "dataset_dir": Path("ids.bin"), "size": "30M"},
    "config": {"ram": "8GiB", "config_file": Path("config.json"), "batch_size": 8, "tokens": "1M"},
}


def make_world(folder: Path) -> None:
    """The files that scenarios name."""
    (folder / "text.txt").write_text("a line of some words, and then some more\n" * 20_000)
    (folder / "more.txt").write_text("other words\n" * 1000)
    np.arange(100_000, dtype=np.uint16).tofile(folder / "ids.bin")
    config = {"num_layers": 3, "width": 96, "num_heads": 3, "batch_size": 4, "max_iters": 70}
    (folder / "config.json").write_text(json.dumps(config))


def replace_stages(patch: pytest.MonkeyPatch) -> None:
    """Put plain formulas in the place of what the stages say of themselves."""
    patch.setattr(training_footprint, "find_program", lambda **parts: PROGRAM)
    patch.setattr(
        tokenizer_footprint,
        "planned_peak_bytes",
        lambda text, *, vocab_size, num_workers, distinct_bytes: (
            text // 5 + 100 * vocab_size + (num_workers << 20) + (distinct_bytes or 0)
        ),
    )
    patch.setattr(needs, "smallest_budget_bytes", lambda cores: (50 + cores) << 20)
    patch.setattr(
        resources,
        "planned_bytes",
        lambda text, *, num_workers, budget_bytes, line_bytes, vocab_size: int(
            text / 10 + (num_workers << 21) + budget_bytes // 100 + line_bytes + vocab_size
        ),
    )
    patch.setattr(resources, "smallest_budget_bytes", lambda: 70 << 20)
    patch.setattr(
        resources,
        "planned_table_bytes",
        lambda *, num_workers, budget_bytes: budget_bytes // 8 + num_workers,
    )
    patch.setattr(
        resources,
        "planned_disk_bytes",
        lambda text, *, one_pass_bytes, bytes_per_token, token_bytes, near_copies, keeps_text: int(
            text * token_bytes / bytes_per_token + one_pass_bytes + near_copies * text
        ),
    )
    patch.setattr(
        "lowtide.planning.plandata.estimate_distinct_bytes", lambda inputs, text: text // 50
    )
    patch.setattr(machine, "free_disk_bytes", lambda path: 500 << 30)


def render(plan: Plan) -> str:
    """A plan as people read it, and every exact number of it."""
    shown = plan.chosen or plan.asked
    exact = {
        "asked": dataclasses.astuple(plan.asked.footprint),
        "shown": dataclasses.astuple(shown.footprint),
        "options": shown.options,
        "changes": shown.changes,
        "verdict": [plan.fits, plan.asked.fits, plan.asked_fits, plan.named_batch],
        "machine": dataclasses.astuple(plan.machine),
        "vram budget": plan.machine.vram_budget_bytes,
        "data": dataclasses.astuple(plan.data),
        "needs": [dataclasses.astuple(need)[1:5] for need in plan.needs],
        "compute": dataclasses.astuple(plan.compute),
        "ways": [way.memory_bytes for way in plan.ways],
    }
    rows = [f"{name}: {json.dumps(value, default=str)}" for name, value in exact.items()]
    return "\n".join([describe_plan(plan), "", *rows]) + "\n"


def find_file(name: str) -> Path:
    return PLANS / f"{name.replace(' ', '_')}.txt"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    replace_stages(monkeypatch)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.usefixtures("world")
def test_a_plan_is_word_for_word_what_it_was(name: str) -> None:
    plan = make_plan(**SCENARIOS[name])
    assert render(plan).splitlines() == find_file(name).read_text().splitlines()
    answer = json.loads(json.dumps(plan_as_json(plan)))
    assert list(answer) == [
        "fits", "machine", "data", "model", "stages", "training", "changes", "compute", "loading",
        "speed", "disk_bytes_per_step", "commands",
    ]  # fmt: skip
    shown = plan.chosen or plan.asked
    assert answer["fits"] is plan.fits
    assert answer["model"]["parameters"] == plan.compute.parameters
    assert answer["training"]["device_bytes"] == shown.footprint.device_bytes
    assert answer["training"]["total_bytes"] == shown.footprint.total_bytes
    assert answer["compute"]["epochs"] == plan.compute.epochs
    assert answer["changes"] == list(shown.changes) and answer["commands"] == plan.commands


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        make_world(Path(folder))
        os.chdir(folder)
        replace_stages(patch)
        for scenario, given in SCENARIOS.items():
            find_file(scenario).write_text(render(make_plan(**given)))
