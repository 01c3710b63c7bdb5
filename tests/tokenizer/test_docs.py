"""What docs/tokenizer.md shows works as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tokenizer.md"


def test_commands_and_examples_run_in_order(tmp_path: Path) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    (tmp_path / "notes.txt").write_text((library / "argparse.py").read_text(), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"sh", "python"}
    for kind, block in blocks:
        command = ["sh", "-e", "-c"] if kind == "sh" else [sys.executable, "-W", "error", "-c"]
        done = subprocess.run(
            [*command, block],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "tok" / "small" / "tokenizer.json").exists()


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link
