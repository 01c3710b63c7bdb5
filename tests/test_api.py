"""The public names: all there, each loaded only when it is used."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

import lowtide


@pytest.mark.parametrize("name", lowtide.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lowtide, name) is not None
    assert name in dir(lowtide)


def test_help_is_a_table_of_contents_and_loads_nothing_heavy() -> None:
    program = (
        "import sys, lowtide; help(lowtide); print('torch' in sys.modules, 'GPT' in dir(lowtide))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    contents, _, rest = done.stdout.partition("PACKAGE CONTENTS")
    for name in lowtide._HOMES:
        assert re.search(rf"\b{name}\b", contents), name
    assert "FUNCTIONS" not in rest and "CLASSES" not in rest
    assert rest.endswith("False True\n")


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
