"""Which backend a command takes, and what is said of one that is not there."""

import pytest

from lowtide import packages
from lowtide.generation import settings
from lowtide.generation.settings import GenerateSettings
from lowtide.packages import MissingPackageError, choose_backend
from lowtide.training.settings import EvaluateSettings


@pytest.mark.parametrize(
    ("installed", "asked", "chosen"),
    [
        ({"torch", "jax"}, "auto", "torch"),
        ({"torch"}, "auto", "torch"),
        ({"jax"}, "auto", "jax"),
        ({"torch", "jax"}, "jax", "jax"),
        ({"torch", "jax"}, "torch", "torch"),
    ],
)
def test_auto_takes_what_is_installed(monkeypatch, installed, asked, chosen):
    monkeypatch.setattr(packages, "has_package", lambda name: name in installed)
    monkeypatch.setattr(settings, "has_package", lambda name: name in installed)
    monkeypatch.setattr(settings, "has_accelerator", lambda: True)
    assert choose_backend(asked, "generating") == chosen
    assert GenerateSettings(model_name="m", backend=asked).chosen_backend() == chosen
    options = {"model_name": "m", "dataset_dir": ("d",)}
    assert EvaluateSettings(**options, backend=asked).chosen_backend() == chosen


@pytest.mark.parametrize(
    ("installed", "asked", "needed"),
    [(set(), "auto", "torch"), ({"torch"}, "jax", "jax"), ({"jax"}, "torch", "torch")],
)
def test_what_is_missing_is_named_with_its_command(monkeypatch, installed, asked, needed):
    monkeypatch.setattr(packages, "has_package", lambda name: name in installed)
    with pytest.raises(MissingPackageError, match=f"needs the package {needed}") as caught:
        choose_backend(asked, "generating")
    assert caught.value.next_step == f'pip install "lowtide[{needed}]"'


@pytest.mark.parametrize(
    ("installed", "has_gpu", "device", "asked", "chosen"),
    [
        ({"torch", "jax"}, False, "auto", "auto", "native"),
        ({"torch"}, True, "cpu", "auto", "native"),
        ({"torch"}, True, "cuda", "auto", "torch"),
        ({"torch"}, False, "cuda", "auto", "torch"),  # which says that there is none
        (set(), True, "auto", "auto", "native"),
        ({"torch"}, True, "auto", "native", "native"),
        ({"torch"}, False, "cpu", "torch", "torch"),
    ],
)
def test_native_code_writes_on_a_cpu(monkeypatch, installed, has_gpu, device, asked, chosen):
    monkeypatch.setattr(packages, "has_package", lambda name: name in installed)
    monkeypatch.setattr(settings, "has_package", lambda name: name in installed)
    monkeypatch.setattr(settings, "has_accelerator", lambda: has_gpu)
    given = GenerateSettings(model_name="m", backend=asked, device=device)
    assert given.chosen_backend() == chosen
