"""Presets: found by name, beaten by config files and flags; the one for a big GPU is whole."""

import json

import pytest

from lowtide.errors import UsageError
from lowtide.model.sizing import count_parameters
from lowtide.settings import build_settings
from lowtide.training.choosing import model_config
from lowtide.training.settings import TrainSettings
from lowtide.verbs import VERBS


def parse(words):
    return VERBS["train"].parse("train", words)


def test_every_preset_has_its_name_and_is_valid():
    files = sorted(TrainSettings.presets_dir.glob("*.json"))
    assert files
    for path in files:
        assert json.loads(path.read_text())["name"] == path.stem
        build_settings(TrainSettings, {"preset": path.stem})


def test_the_preset_for_a_big_gpu_has_the_parameters_of_gpt2():
    settings = build_settings(TrainSettings, {"preset": "h100"})
    assert count_parameters(model_config(settings.model, 50304)) == pytest.approx(124e6, rel=0.01)
    assert settings.tokens_per_step == 65536


def test_flags_beat_config_files_and_those_beat_presets(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"learning_rate": 0.5, "seed": 3}')
    words = ["--preset", "h100", "--config-file", str(config), "--seed", "4"]
    settings = parse(words)
    assert (
        settings.learning.seed,
        settings.learning.learning_rate,
        settings.learning.optimizer,
    ) == (4, 0.5, "muon")
    assert parse(["--preset=h100"]).learning.learning_rate == 0.002
    assert build_settings(TrainSettings, {"preset": "h100", "seed": 9}).learning.seed == 9


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean h100"):
        parse(["--preset", "h10"])
    with pytest.raises(UsageError, match="needs a value"):
        parse(["--preset"])
