"""Checkpoints: whole or not there, kept in number, refused when the disk is full."""

import errno
import json
import shutil

import pytest
import torch

from lowtide import files
from lowtide.errors import BudgetError, DataError
from lowtide.model.config import GPTConfig
from lowtide.training import checkpoints
from lowtide.training.checkpoints import Checkpoint, RunFolder

CONFIG = GPTConfig(10, 8, 1, 8, 1)


def checkpoint(step):
    weights = {"a": torch.full((4, 4), float(step))}
    return Checkpoint(step, weights, {"moments": [torch.arange(3) + step]}, {"data": {"n": step}})


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run", keep=2)
    folder.create()
    return folder


def test_the_newest_comes_back_and_old_ones_go(run):
    for step in (5, 10, 15):
        run.save(checkpoint(step), CONFIG)
    assert [path.name for path in run.step_dirs()] == ["step_00000010", "step_00000015"]
    folder, tensors, numbers = run.load()
    assert folder.name == "step_00000015"
    assert torch.equal(tensors["moments"][0], torch.arange(3) + 15)
    assert numbers["data"] == {"n": 15}


def test_a_failed_save_leaves_the_last_one(run, monkeypatch):
    run.save(checkpoint(5), CONFIG)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints.torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.save(checkpoint(10), CONFIG)
    assert [path.name for path in run.step_dirs()] == ["step_00000005"]
    assert not list((run.root / "steps").glob(".*"))


def test_a_disk_that_is_too_full_is_noticed_before_writing(run, monkeypatch):
    run.save(checkpoint(5), CONFIG)
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: 10)
    with pytest.raises(BudgetError, match=r"10 B free; the last one is untouched"):
        run.save(checkpoint(10), CONFIG)
    assert len(run.step_dirs()) == 1


def test_what_a_kill_left_half_written_is_removed_and_not_taken(run):
    run.save(checkpoint(5), CONFIG)
    half = files.partial_path(run.root / "steps" / "step_00000010")
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert run.load()[0].name == "step_00000005"
    run.create()
    assert not half.exists()


def test_a_damaged_state_names_the_file_and_the_way_out(run):
    run.save(checkpoint(5), CONFIG)
    (run.step_dirs()[0] / "state.pt").write_bytes(b"not a state")
    with pytest.raises(DataError, match=r"cannot be read(.|\n)*remove "):
        run.load()


@pytest.mark.parametrize("content", [None, b'{"model_ty'])
def test_a_shape_that_cannot_be_read_names_the_way_out(run, content):
    run.save(checkpoint(5), CONFIG)
    assert run.load_config() == CONFIG
    path = run.step_dirs()[0] / "config.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        run.load_config()
    assert f"remove {path.parent}" in caught.value.next_step


def test_metrics_after_the_checkpoint_are_dropped(run):
    rows = [
        {"event": "step", "step": 1},
        {"event": "eval", "step": 2},
        {"event": "step", "step": 2},
        {"event": "step", "step": 3},
        {"event": "eval", "step": 3},
        {"event": "step", "step": 4},
        {"phase": "training", "done": 4},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st'
    run.metrics_path.write_text(text)
    run.forget_metrics_after(3, 2)
    left = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert left == [rows[0], rows[1], rows[2], rows[3], rows[6]]


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "state.json"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_damaged_checkpoint_says_how_to_go_on(make_trainer, name, damage):
    make_trainer(max_iters=8).fit()
    run = make_trainer().run
    path = run.step_dirs()[-1] / name
    content = path.read_bytes()
    path.unlink()  # weights have a second name, which must not be hurt
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError) as caught:
        make_trainer(max_iters=12).fit()
    assert f"remove {path.parent}" in caught.value.next_step
    shutil.rmtree(path.parent)
    assert make_trainer(max_iters=12).fit().steps == 12
