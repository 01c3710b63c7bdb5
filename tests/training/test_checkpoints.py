"""Checkpoints: whole or not there, kept in number, refused when the disk is full."""

import errno
import json
import random
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lowtide import files
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.loader.windows import TokenDataset
from lowtide.model.checksums import record_files
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_model, load_weights
from lowtide.training import checkpoints
from lowtide.training.checkpoints import Checkpoint, RunFolder
from lowtide.training.loop import Trainer

from .conftest import VOCAB, write_tokens

CONFIG = GPTConfig(10, 8, 1, 8, 1)


def checkpoint(step):
    weights = {"a": torch.full((4, 4), float(step))}
    return Checkpoint(step, weights, {"moments.a.m": torch.arange(3) + step}, {"data": {"n": step}})


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
    assert torch.equal(tensors["moments.a.m"], torch.arange(3) + 15)
    assert numbers["data"] == {"n": 15}


def test_a_failed_save_leaves_the_last_one(run, monkeypatch):
    run.save(checkpoint(5), CONFIG)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "record_files", full)
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


FILES = ["model.safetensors", "state.safetensors", "state.json", "config.json", "checksums.json"]


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A run with checkpoints of steps 4 and 8, to be copied and damaged."""
    root = tmp_path_factory.mktemp("damaged")
    make_small_trainer(root).fit()
    return root


def make_small_trainer(root, **options):
    torch.manual_seed(11)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    path = root / "tokens.npy"
    if not path.exists():
        write_tokens(path, count=2000)
    return Trainer(
        model,
        data=TokenDataset(path, split="train", sequence_length=16),
        val_data=TokenDataset(path, split="val", sequence_length=16),
        model_name="run",
        checkpoints_dir=root,
        **{"batch_size": 4, "max_iters": 8, "save_interval": 4, "eval_iters": 2, "device": "cpu",
           "log_interval": 1, "eval_interval": 8, "optimizer": "muon", **options},
    )  # fmt: skip


def damage(path, how, random):
    content = bytearray(path.read_bytes())
    path.unlink()  # weights have a second name, which must not be hurt
    if how == "cut":
        del content[len(content) // 2 :]
    if how == "bit":
        place = random.randrange(len(content))
        content[place] ^= 1 << random.randrange(8)
    if how != "gone":
        path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["gone", "cut", "bit"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    two_checkpoints, tmp_path, name, how
):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    run = RunFolder(tmp_path / "run")
    newest = run.step_dirs()[-1]
    assert newest.name == "step_00000008"
    damage(newest / name, how, random.Random(name + how))
    notes = []
    trainer = make_small_trainer(tmp_path, max_iters=10, notify=notes.append)
    if name == "checksums.json" and how == "bit":
        return  # a flip may hit a blank; those that matter are below
    assert trainer.fit().steps == 10
    assert any("step_00000008 is not used" in note and name in note for note in notes)
    assert any("going on from step 4" in note for note in notes)
    assert [path.name for path in run.step_dirs()] == ["step_00000008", "step_00000010"]
    assert (tmp_path / "run" / "steps" / "damaged_step_00000008").is_dir()


def test_no_flipped_bit_of_a_checkpoint_is_used(two_checkpoints, tmp_path):
    """Of 200 flips each leaves the same numbers behind, or is noticed; nothing in between."""
    shutil.copytree(two_checkpoints / "run", tmp_path / "run")
    dice = random.Random(3)
    run = RunFolder(tmp_path / "run")
    folder = run.step_dirs()[-1]
    unnoticed = []
    for _ in range(200):
        path = folder / dice.choice(FILES)
        before = path.read_bytes()
        content = bytearray(before)
        place, bit = dice.randrange(len(content)), 1 << dice.randrange(8)
        content[place] ^= bit
        path.write_bytes(content)
        found = RunFolder(tmp_path / "run").find_whole(lambda note: None)
        if found == folder:
            unnoticed.append((path.name, content[place : place + 1]))
        path.write_bytes(before)
    # Only the record itself may be changed without a word, where blanks turn into blanks.
    assert {name for name, _ in unnoticed} <= {"checksums.json"}
    assert len(unnoticed) <= 4


def test_no_checkpoint_that_is_whole_is_an_error_with_a_way_out(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    run = RunFolder(tmp_path / "run")
    for folder in run.step_dirs():
        (folder / "state.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="damaged") as caught:
        make_small_trainer(tmp_path).fit()
    assert f"remove {run.root / 'steps'}" in caught.value.next_step
    assert len(run.step_dirs()) == 2


def test_states_have_portable_names_and_need_no_torch(two_checkpoints):
    folder = RunFolder(two_checkpoints / "run").step_dirs()[-1]
    with safe_open(folder / "state.safetensors", framework="np") as file:
        names = set(file.keys())
    assert "moments.embedding.weight.exp_avg" in names
    assert "moments.blocks.0.mlp.down.weight.momentum" in names
    numbers = json.loads((folder / "state.json").read_text())
    assert [row["kind"] for row in numbers["optimizers"]] == ["AdamW", "Muon"]
    assert not list(folder.glob("*.pt"))


def test_a_state_as_torch_wrote_it_is_read_once_and_written_anew(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path / "run").step_dirs()[-1]
    numbers = json.loads((folder / "state.json").read_text())
    trainer = make_small_trainer(tmp_path)
    trainer.fit()  # finished: its optimizers hold what the checkpoint does
    states = [optimizer.state_dict() for optimizer in trainer.stepper.optimizers.optimizers]
    expected = load_file(folder / "state.safetensors")
    torch.save({"optimizers": states}, folder / "state.pt")
    del numbers["optimizers"]
    (folder / "state.json").write_text(json.dumps(numbers))
    for name in ("state.safetensors", "checksums.json"):
        (folder / name).unlink()
    assert make_small_trainer(tmp_path).fit().steps == 8
    assert not (folder / "state.pt").exists()
    again = load_file(folder / "state.safetensors")
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())
    assert RunFolder(tmp_path / "run").find_whole(pytest.fail) == folder
    assert make_small_trainer(tmp_path, max_iters=9).fit().steps == 9


def test_a_pickle_is_not_run(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path / "run").step_dirs()[-1]
    torch.save({"optimizers": Surprise(tmp_path / "run-by-pickle")}, folder / "state.pt")
    (folder / "checksums.json").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        make_small_trainer(tmp_path).fit()
    assert not (tmp_path / "run-by-pickle").exists()


class Surprise:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_damaged_weights_are_named_where_models_are_used(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "run"
    damage(run / "model.safetensors", "bit", random.Random(1))
    notes = []
    model = load_model(run, note=notes.append)
    assert "model.safetensors is damaged" in notes[0] and "step_00000008" in notes[0]
    whole = load_model(RunFolder(run).step_dirs()[-1])
    assert torch.equal(model.embedding.weight, whole.embedding.weight)
    damage(run / "best" / "model.safetensors", "bit", random.Random(1))
    with pytest.raises(DataError, match=r"model.safetensors is damaged"):
        load_model(run / "best")
    with pytest.raises(DataError, match=r"model.safetensors is damaged"):
        load_weights(model, run)


@pytest.mark.parametrize("field", ["data", "counters", "state", "optimizers", "loss_scale"])
@pytest.mark.parametrize("value", [None, 3, [], {"no": 1}])
def test_numbers_of_another_kind_name_the_file(two_checkpoints, tmp_path, field, value):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path / "run").step_dirs()[-1]
    path = folder / "state.json"
    numbers = json.loads(path.read_text())
    if value is None:
        del numbers[field]
    else:
        numbers[field] = value
    path.write_text(json.dumps(numbers))
    record_files(folder, ["state.json"])  # as a program that writes such files would
    with pytest.raises((DataError, UsageError)) as caught:
        make_small_trainer(tmp_path).fit()
    assert caught.value.next_step or "loader state of version" in caught.value.message
