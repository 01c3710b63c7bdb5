"""Someone with a small machine asks for a plan, copies its commands, and they keep what it said."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from lowtide.planning import make_plan


def test_the_commands_of_a_plan_stay_within_it(tmp_path):
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((library / f"{name}.py").read_text() for name in ("argparse", "typing", "ast"))
    (tmp_path / "notes.txt").write_text(text, encoding="utf-8")
    plan = make_plan(
        input_files=[str(tmp_path / "notes.txt")],
        ram="2GiB",
        cores=2,
        size="1M",
        vocab_size=1000,
        seq_len=128,
        name="small",
    )
    assert plan.fits
    commands = [
        line.replace(f"--max-iters {plan.compute.steps}", "--max-iters 2") for line in plan.commands
    ]
    assert commands[-1] != plan.commands[-1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "keep the budget" not in done.stderr  # no micro-batch had to be cut
    said = {need.stage: need for need in plan.needs}
    rows = (tmp_path / "checkpoints" / "small" / "metrics.jsonl").read_text().splitlines()
    peak = json.loads(rows[-1])["peak_memory_bytes"]
    assert peak <= said["train"].least_bytes <= plan.machine.budget_bytes
    rows = (tmp_path / "tok" / "small" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["peak_memory_bytes"] <= said["train-tokenizer"].least_bytes
