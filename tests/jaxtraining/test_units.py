"""Parts of the JAX backend by themselves, each checked by a function of units.py or its like."""

import json
import re

import pytest

from .conftest import HERE, run_jax

TEXT = "".join((HERE / name).read_text() for name in ("units.py", "surroundings.py"))
CHECKS = re.findall(r"^def (check_\w+)", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def answers(compiled):
    pytest.importorskip("jax")
    return json.loads(run_jax("units.py", compiled=compiled))


@pytest.mark.parametrize("name", CHECKS)
def test_it_is_as_it_should_be(name, answers):
    assert answers[name] == ""
