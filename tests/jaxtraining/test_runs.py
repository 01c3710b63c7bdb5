"""Runs of JAX: stopped and continued, by itself and by torch, and what they leave behind."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from . import torchruns
from .cases import speak


def losses(folder, name):
    rows = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if row.get("event") == "step"}


def val_losses(folder, name):
    rows = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["val_loss"] for row in rows if row.get("event") == "eval"}


def newest(folder, name, file):
    return sorted((folder / name / "steps").iterdir())[-1] / file


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    ("name", "whole", "steps"), [("parts", "whole", 12), ("pair", "pair-whole", 6)]
)
def test_a_run_that_was_stopped_or_killed_ends_with_the_same_bytes(folder, name, whole, steps):
    """`parts` was stopped, `pair` killed in both of its processes."""
    for file in ("model.safetensors", "state.safetensors"):
        assert newest(folder, name, file).read_bytes() == newest(folder, whole, file).read_bytes()
    assert losses(folder, name) == losses(folder, whole)
    assert len(losses(folder, name)) == steps


def test_two_processes_have_the_losses_of_one(found, folder):
    (first, out, errors), (second, other, _) = found["pair"]
    assert (first, second) == (0, 0), errors[-3000:]
    assert out == other and len(out.splitlines()) == 1  # all know how it ended, and say no more
    assert "going on from step 2" in errors
    assert "2 devices (cpu) of 2 processes: rows divided, weights divided" in errors
    for of in (losses, val_losses):
        alone = of(folder, "one")
        for name, steps in (("pair", 6), ("pair-divided", 4)):
            pair = of(folder, name)
            assert list(pair) == [step for step in alone if step <= steps]
            assert max(abs(pair[step] - alone[step]) for step in pair) < 5e-6
    ours, wanted = (load_file(newest(folder, n, "model.safetensors")) for n in ("pair", "one"))
    for name, value in wanted.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-4, err_msg=name)


def test_settings_of_several_processes_are_whole(found):
    only, without, own, count, address, torchrun, alone, none = found["half_given"]
    assert only == (
        "JAX_COORDINATOR_ADDRESS is set, JAX_NUM_PROCESSES and JAX_PROCESS_ID are not | "
        "set all three in every process, or none to train in one process"
    )
    assert "JAX_NUM_PROCESSES and JAX_PROCESS_ID are set, JAX_COORDINATOR_ADDRESS is not" in without
    assert "JAX_PROCESS_ID is '2' and JAX_NUM_PROCESSES '2'" in own
    assert "JAX_NUM_PROCESSES 'two'" in count
    assert "'127.0.0.1', expected HOST:PORT" in address
    assert "torchrun has started 2 processes" in torchrun and "JAX_PROCESS_ID" in torchrun
    assert alone is none is False


@pytest.mark.usefixtures("found")
def test_losses_are_those_of_torchs_loop(folder):
    ours, torchs = losses(folder, "whole"), losses(folder, "alone")
    assert list(ours) == list(torchs)
    assert max(abs(ours[step] - torchs[step]) for step in ours) < 1e-4
    ours, torchs = val_losses(folder, "whole"), val_losses(folder, "alone")
    assert list(ours) == list(torchs) == [0, 4, 8, 12]
    assert max(abs(ours[step] - torchs[step]) for step in ours) < 1e-4


@pytest.mark.usefixtures("found")
def test_files_have_the_same_names_kinds_and_shapes(folder):
    for mine, other in (("whole", "alone"), ("torch8", "alone8")):
        for file in ("model.safetensors", "state.safetensors"):
            ours, torchs = (
                load_file(newest(folder, mine, file)),
                load_file(newest(folder, other, file)),
            )
            assert {n: (a.dtype, a.shape) for n, a in ours.items()} == {
                n: (a.dtype, a.shape) for n, a in torchs.items()
            }
    for file in ("state.json", "config.json"):
        ours, torchs = (json.loads(newest(folder, n, file).read_text()) for n in ("whole", "alone"))
        assert set(ours) == set(torchs)


@pytest.mark.usefixtures("found")
def test_jax_goes_on_with_a_run_of_torch(folder):
    for mine, other, bound in (("torch", "alone", 1e-4), ("torch8", "alone8", 1e-3)):
        ours, torchs = losses(folder, mine), losses(folder, other)
        assert len(ours) == 12
        assert max(abs(ours[step] - torchs[step]) for step in ours) < bound


@pytest.mark.usefixtures("found")
def test_torch_goes_on_with_a_run_of_jax(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "copy")  # others look at the runs as they are
    torchruns.make_trainer(folder, "parts", max_iters=16).fit()
    torchruns.make_trainer(folder, "alone", max_iters=16).fit()
    eight = {"optimizer": "auto", "use_8bit_optimizer": True}
    torchruns.make_trainer(folder, "jax8", max_iters=12, **eight).fit()
    for mine, other, bound in (("parts", "alone", 1e-4), ("jax8", "alone8", 1e-3)):
        ours, torchs = losses(folder, mine), losses(folder, other)
        assert list(ours) == list(torchs)
        assert max(abs(ours[step] - torchs[step]) for step in ours) < bound


def test_commands_say_with_jax_what_they_say_with_torch(found, folder, capsys):
    wanted = speak(folder, "torch")  # past the context, too
    assert found["speak"]["text"] == wanted["text"]
    assert wanted["text"].count("--- ") == 6
    assert "41 tokens do not fit a context of 40" in wanted["text"]
    assert found["speak"].keys() == wanted.keys() == {"text", "ids", "questions", "last"}
    for name in ("ids", "questions", "last"):
        ours, torchs = found["speak"][name], wanted[name]
        there = {key: value for key, value in torchs.items() if value is not None}
        assert {key: ours[key] for key in there} == pytest.approx(there, rel=1e-5), name
        assert [key for key in ours if ours[key] is None] == [k for k in torchs if k not in there]


def test_torch_is_not_imported(found, folder):
    assert found["torch_imported"] is False
    if importlib.util.find_spec("tensorboard") is not None:  # nor for its files
        assert any((folder / "one" / "tensorboard").iterdir())
    assert np.isfinite(found["whole"]).all()


def test_a_device_that_is_not_there_is_named(found):
    tpu, xla = found["missing_devices"]
    assert "tpu" in tpu and "finds no such device here" in tpu
    assert "xla" in xla and "expected auto, cpu" in xla


def test_a_counted_embedding_takes_the_place_of_the_random_one(found):
    assert found["counted"] == ["embedding.weight"]
