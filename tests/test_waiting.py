"""Threads that wait sleep, in a script too: who imports torch first decides how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, lowtide
calls = {
    "train": lambda: lowtide.train(dataset_dir="none", model_name="none", slurm=True),
    "evaluate": lambda: lowtide.evaluate(model_name="none", dataset_dir=["none"]),
    "generate": lambda: next(lowtide.generate(model_name="none", prompt="a")),
}
try:
    calls[sys.argv[1]]()
except lowtide.LowtideError:
    print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
"""


@pytest.mark.parametrize("given", [None, "active"])
@pytest.mark.parametrize("function", ["train", "evaluate", "generate"])
def test_functions_choose_before_torch_is_loaded(function: str, given: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, function],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [given or "passive", "False"]
