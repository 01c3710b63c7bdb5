"""The commands and examples of the pages on planning run as they are written."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["fit-a-small-machine.md", "memory-model.md", "troubleshooting.md"]


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_and_examples_run_in_order(page, tmp_path):
    library = Path(sysconfig.get_paths()["stdlib"])
    (tmp_path / "notes.txt").write_text((library / "argparse.py").read_text(), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for kind, block in blocks:
        command = ["sh", "-e", "-c"] if kind == "sh" else [sys.executable, "-W", "error", "-c"]
        done = subprocess.run(
            [*command, block],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", (DOCS / page).read_text("utf-8")):
        assert (DOCS / link).exists(), link


def test_flags_that_are_advised_exist():
    """Every flag that troubleshooting names is a field of some verb's settings."""
    from dataclasses import fields

    from lowtide.dataset.settings import PrepareSettings
    from lowtide.planning.settings import PlanSettings
    from lowtide.tokenizer.training import TokenizerTrainingSettings
    from lowtide.training.settings import TrainSettings

    kinds = (TrainSettings, PrepareSettings, PlanSettings, TokenizerTrainingSettings)
    known = {field.name for kind in kinds for field in fields(kind)} | {"debug", "what", "picture"}
    for page in PAGES:
        for flag in re.findall(r"`[^`]*?--([a-z][a-z0-9-]+)", (DOCS / page).read_text("utf-8")):
            name = flag.replace("-", "_").removeprefix("no_")
            assert name in known, f"{page}: --{flag}"
