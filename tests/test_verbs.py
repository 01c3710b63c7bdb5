"""The verbs: each has help and examples that work, and imports nothing before it is used."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.verbs import VERBS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", sorted(VERBS))
def test_help_of_each_verb_works_without_torch(name: str) -> None:
    program = (
        f"import sys; from lowtide.cli import main; code = main(['{name}', '--help']);"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


@pytest.mark.parametrize("name", sorted(VERBS))
def test_examples_of_each_verb_are_understood(name: str) -> None:
    verb = VERBS[name]
    assert verb.examples
    for example in verb.examples:
        program, verb_name, *words = shlex.split(example)
        assert (program, verb_name) == ("lowtide", name)
        assert verb.parse(name, words)


@pytest.mark.parametrize("name", sorted(VERBS))
def test_no_settings_import_tyro_by_themselves(name: str) -> None:
    module = VERBS[name].settings.partition(":")[0]
    importlib.import_module(module)
    code = f"import sys, {module}; sys.exit('tyro.conf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
