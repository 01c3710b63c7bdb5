"""Every file in configs/ is a valid config whose shape has the parameters its name says."""

import json

import pytest

from lowtide.model.config import padded_vocab_size
from lowtide.model.sizing import count_parameters
from lowtide.settings import build_settings
from lowtide.training.choosing import model_config
from lowtide.training.settings import TrainSettings

FOLDER = TrainSettings.configs_dir
FILES = sorted(FOLDER.rglob("*.json"))
SIZES = {"1M": 1, "10M": 10, "50M": 50, "150M": 150, "350M": 350, "750M": 750, "1.5B": 1500}


def test_the_configs_the_guides_name_are_there():
    names = {path.stem for path in FILES}
    assert {"150M", "150M_1024", "750M_1024_domain_adapt", "small_char"} <= names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_config_is_valid_and_has_the_size_of_its_name(path):
    settings = build_settings(TrainSettings, {"config_file": path})
    assert json.loads(path.read_text())["name"] == path.stem
    if "domain_adapt" in path.stem or path.stem == "small_char":
        return  # its shape is the base model's, or its vocabulary the text's
    vocab_size = 4096 if path.stem == "1M" else padded_vocab_size(50257)
    count = count_parameters(model_config(settings.model, vocab_size))
    expected = 124.4 if "124M" in path.stem else SIZES[path.stem.split("_")[0]]
    assert count / 1e6 == pytest.approx(expected, rel=0.05)
