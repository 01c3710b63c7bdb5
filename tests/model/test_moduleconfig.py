"""The config of a torch module: what it writes is what it reads, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import DataError
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.sizing import count_parameters, flops_per_token

CONFIG = ModuleConfig("Net", 50, 16, num_parameters=1000, multiplying=600, width=8)


def test_it_is_read_as_it_was_written():
    fields = CONFIG.to_huggingface()
    assert ModuleConfig.read(fields, Path("config.json")) == CONFIG
    assert CONFIG.layout == "module"
    assert ModuleConfig.read({"model_type": "llama"}, Path("config.json")) is None
    with pytest.raises(DataError, match="does not describe a module"):
        ModuleConfig.read({**fields, "more": 1}, Path("config.json"))


def test_its_arithmetic_is_that_of_its_matrices():
    assert count_parameters(CONFIG) == 1000
    assert flops_per_token(CONFIG, 16) == 3600
