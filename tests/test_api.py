"""The public names: all there, each loaded only when it is used."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import lowtide


@pytest.mark.parametrize("name", lowtide.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lowtide, name) is not None
    assert name in dir(lowtide)


def test_names_and_homes_are_the_same_list() -> None:
    assert sorted([*lowtide._HOMES, "__version__"]) == sorted(lowtide.__all__)


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
