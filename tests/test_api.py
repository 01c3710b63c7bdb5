"""The public names: all there, each loaded only when it is used."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide


@pytest.mark.parametrize("name", lowtide.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lowtide, name) is not None
    assert name in dir(lowtide)


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(Path(lowtide.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names}
    assert seen == lowtide._HOMES


def test_only_the_public_network_trains_itself() -> None:
    from lowtide.model import gpt

    assert hasattr(lowtide.GPT, "fit") and not hasattr(gpt.GPT, "fit")
    assert issubclass(lowtide.GPT, gpt.GPT)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = lowtide.nonsense


def test_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, lowtide; "
        "print([n for n in ('torch', 'numpy', 'pyarrow', 'rich', 'tyro') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_version_is_the_packages() -> None:
    assert lowtide.__version__ == importlib.metadata.version("lowtide")
