"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import lowtide

# __main__ would run the command line.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(lowtide.__path__, "lowtide.")
    if not module.name.endswith(("__main__", "._native"))
)


@pytest.mark.parametrize("name", ["lowtide", *MODULES])
def test_examples(name: str) -> None:
    results = doctest.testmod(
        importlib.import_module(name),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert results.failed == 0
