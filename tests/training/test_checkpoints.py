"""Checkpoints: whole or not there, kept in number, refused when the disk is full."""

import errno
import json
import os
import random
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lowtide.checksumrecords import verify_folder
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.loader.windows import TokenDataset
from lowtide.model.checksums import record_files, write_recorded_json
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import TensorFile, load_model, load_weights
from lowtide.tokenizer import Tokenizer
from lowtide.training import checkpoints
from lowtide.training.checkpoints import Checkpoint, RunFolder, readable_numbers
from lowtide.training.hostcopies import all_tensors
from lowtide.training.trainer import Trainer
from lowtide.unfinished import unused_name

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


def test_a_run_that_begins_again_logs_every_step_once(make_trainer):
    """Killed before its first checkpoint, its rows stayed, and came a second time."""
    trainer = make_trainer(max_iters=3)
    trainer.run.root.mkdir(parents=True)
    rows = [
        {"phase": "tokenize"},
        {"event": "eval", "step": 0, "val_loss": 9.0},
        {"event": "step", "step": 1, "loss": 9.0},
    ]
    trainer.run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer.fit()
    logged = [json.loads(line) for line in trainer.run.metrics_path.read_text().splitlines()]
    assert logged[0] == rows[0]
    assert [row["step"] for row in logged if row.get("event") == "step"] == [1, 2, 3]
    assert [row["step"] for row in logged if row.get("event") == "eval"] == [0, 3]


def test_the_newest_comes_back_and_old_ones_go(run):
    for step in (5, 10, 15):
        run.save(checkpoint(step), CONFIG)
    assert [path.name for path in run.step_dirs()] == ["step_00000010", "step_00000015"]
    folder, tensors, numbers = run.load(TensorFile)
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
    with monkeypatch.context() as full:
        full.setattr(checkpoints, "free_disk_bytes", lambda path: 10)
        with pytest.raises(BudgetError) as refused:
            run.save(checkpoint(5), CONFIG)
        assert refused.value.message.endswith("10 B free") and not run.exists()
    run.save(checkpoint(5), CONFIG)
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: 10)
    with pytest.raises(BudgetError, match=r"10 B free; the last one is untouched"):
        run.save(checkpoint(10), CONFIG)
    assert len(run.step_dirs()) == 1


def test_what_a_kill_left_half_written_is_removed_and_not_taken(run):
    run.save(checkpoint(5), CONFIG)
    half = unused_name(run.root / "steps" / "step_00000010", "partial")
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
        data=TokenDataset(path, split="train", seq_len=16),
        val_data=TokenDataset(path, split="val", seq_len=16),
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


def test_a_state_as_torch_wrote_it_is_read_once_and_written_anew(
    two_checkpoints, tmp_path, monkeypatch
):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    folder = RunFolder(tmp_path / "run").step_dirs()[-1]
    numbers = json.loads((folder / "state.json").read_text())
    trainer = make_small_trainer(tmp_path)
    engines, make = [], trainer.backend.make_engine
    with monkeypatch.context() as patch:
        patch.setattr(
            type(trainer.backend),
            "make_engine",
            lambda _, *given, **options: engines.append(make(*given, **options)) or engines[-1],
        )
        trainer.fit()  # finished: its optimizers hold what the checkpoint does
    states = [optimizer.state_dict() for optimizer in engines[0].optimizers.optimizers]
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


def test_two_checkpoints_are_kept_by_default_and_sizes_count_every_tensor(tmp_path):
    assert RunFolder(tmp_path).keep == 2
    assert checkpoint(1).num_bytes == 4 * 4 * 4 + 3 * 8


def test_a_folder_is_kept_for_one_and_may_be_entered_again(tmp_path):
    run, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with run.locked(), run.locked():
        assert run._is_locked
        with pytest.raises(UsageError), other.locked():
            pass
        with other.locked(wanted=False):
            assert not other._is_locked
    assert not run._is_locked
    with other.locked(), pytest.raises(UsageError), run.locked():
        pass


def test_all_that_a_run_writes_is_cleared_and_nothing_else(run):
    run.save(checkpoint(5), CONFIG)
    run.find_whole(lambda text: None)
    run.save_best(checkpoint(5).weights, CONFIG, {"step": 5})
    Tokenizer.from_characters("ab").save(run.root)
    for name in ("settings.json", "metrics.jsonl", "notes.txt"):
        (run.root / name).write_text("{}")
    (run.root / "data").mkdir()
    written = {path.name for path in run.root.iterdir()}
    assert written >= {
        "steps", "best", "data", "model.safetensors", "config.json", "checksums.json",
        "tokenizer.json", "settings.json", "metrics.jsonl",
    }  # fmt: skip
    run.clear()
    left = {path.name for path in run.root.iterdir()}
    assert left <= {"notes.txt", "vocab.json", "merges.txt"} and "notes.txt" in left
    assert run.find_whole(lambda text: None) is None
    run.clear()  # nothing there is no error


def test_the_first_of_several_damaged_checkpoints_is_named(run):
    for step in (5, 10):
        run.save(checkpoint(step), CONFIG)
        (run.step_dirs()[-1] / "state.json").write_text(f"{step}")
    with pytest.raises(DataError) as caught:
        run.find_whole(lambda text: None)
    assert caught.value.path.parent.name == "step_00000010"
    assert f"remove {run.root / 'steps'}" in caught.value.next_step


def test_damaged_checkpoints_are_only_renamed_where_that_is_asked_for(run):
    for step in (5, 10):
        run.save(checkpoint(step), CONFIG)
    (run.step_dirs()[-1] / "state.json").write_text("?")
    notes = []
    assert run.find_whole(notes.append).name == "step_00000005"
    assert [path.name for path in run.step_dirs()] == ["step_00000005", "step_00000010"]
    assert len(notes) == 1 and "step_00000010 is not used" in notes[0]
    assert run.newest_dir().name == "step_00000005"
    again = RunFolder(run.root)
    aside = run.root / "steps" / "damaged_step_00000010"
    aside.mkdir()  # of an earlier time
    (aside / "old").touch()
    assert again.find_whole(notes.append, set_aside=True).name == "step_00000005"
    assert not (aside / "old").exists() and (aside / "state.json").exists()
    again.save(checkpoint(15), CONFIG)
    assert again.newest_dir().name == "step_00000015"


def test_the_same_step_again_brings_only_new_numbers(run):
    folder = run.save(checkpoint(5), CONFIG)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    other = Checkpoint(5, {"a": torch.zeros(1)}, {}, {"data": {"n": 99}})
    assert run.save(other, CONFIG) == folder
    assert run.load_numbers() == {"step": 5, "data": {"n": 99}}
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert run.find_whole(lambda text: None) == folder


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_older_ones_go(
    run, monkeypatch
):
    calls = []

    def watch(module, name):
        original = getattr(module, name)

        def call(path, *rest, **more):
            calls.append((name, str(path).rpartition("/")[2]))
            return original(path, *rest, **more)

        monkeypatch.setattr(module, name, call)

    for name in ("save_weights", "write_json", "record_files", "sync_directory"):
        watch(checkpoints, name)
    watch(checkpoints.shutil, "rmtree")
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, to: calls.append(("replace", to.name)) or replace(self, to)
    )
    for step in (1, 2):
        run.save(checkpoint(step), CONFIG)
    calls.clear()
    run.save(checkpoint(3), CONFIG)
    names = [call for call in calls if call[0] != "rmtree" or "partial" not in call[1]]
    begin = names.index(("replace", "step_00000003"))
    assert [call[0] for call in names[:begin] if call[0] in ("save_weights", "record_files")] == [
        "save_weights",
        "save_weights",
        "record_files",
    ]
    assert names[begin + 1] == ("sync_directory", "steps")
    assert names[-1] == ("rmtree", "step_00000001")


def test_space_is_asked_for_with_a_mebibyte_to_spare(run, monkeypatch):
    needed = checkpoint(1).num_bytes + (1 << 20)
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: needed - 1)
    with pytest.raises(BudgetError):
        run.save(checkpoint(1), CONFIG)
    monkeypatch.setattr(checkpoints, "free_disk_bytes", lambda path: needed)
    run.save(checkpoint(1), CONFIG)


def test_weights_of_a_checkpoint_found_whole_are_not_compared_again(two_checkpoints):
    seen = []

    def load(folder, *, verify):
        seen.append(verify)

    run = RunFolder(two_checkpoints / "run")
    run.load_weights(load)
    run.find_whole(lambda text: None)
    run.load_weights(load)
    assert seen == [True, False]
    RunFolder(two_checkpoints / "none").load_weights(load)
    assert len(seen) == 2


def test_best_weights_and_tokenizers_are_recorded_beside_each_other(run):
    run.save_best(checkpoint(5).weights, CONFIG, {"step": 5, "val_loss": 1.5})
    run.save_best(checkpoint(6).weights, CONFIG, {"step": 6, "val_loss": 1.0})
    run.save_tokenizer(Tokenizer.from_characters("ab"), CONFIG, best=True)
    assert json.loads((run.best_dir / "best.json").read_text()) == {"step": 6, "val_loss": 1.0}
    recorded = json.loads((run.best_dir / "checksums.json").read_text())
    files_there = {"model.safetensors", "config.json", "best.json", "tokenizer.json"}
    assert set(recorded.get("files", recorded)) >= files_there
    assert not (run.root / "tokenizer.json").exists()
    run.save_tokenizer(Tokenizer.from_characters("ab"), CONFIG)
    assert (run.root / "tokenizer.json").exists()


@pytest.mark.parametrize(("exists", "has_all", "writes"), [
    (False, False, True), (False, True, True), (True, False, True), (True, True, False),
])  # fmt: skip
def test_a_run_that_goes_on_keeps_the_tokenizer_it_has(run, monkeypatch, exists, has_all, writes):
    written = []
    monkeypatch.setattr(RunFolder, "exists", lambda self: exists)
    monkeypatch.setattr(
        checkpoints, "write_companions",
        lambda folder, *given, source: written.append((folder, *given, source)),
    )  # fmt: skip
    names = ("tokenizer.json", "tokenizer_config.json")
    for name in names[: 2 if has_all else 1]:
        (run.root / name).write_text("{}")
    run.source_dir = run.root / "source"
    run.save_tokenizer("tokenizer", CONFIG)
    assert written == [(run.root, "tokenizer", CONFIG, run.source_dir)] * writes
    (run.root / "checksums.json").unlink(missing_ok=True)
    record_files(run.root, names[:1])
    (run.root / names[0]).write_text("damaged")
    written.clear()
    run.save_tokenizer("tokenizer", CONFIG)
    assert len(written) == 1
    run.save_tokenizer("tokenizer", CONFIG, best=True)
    assert written[1] == (run.best_dir, "tokenizer", CONFIG, run.root)


def test_a_copy_serves_where_there_are_no_links(run, monkeypatch):
    def refuse(*paths):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(checkpoints.os, "link", refuse)
    run.save(checkpoint(5), CONFIG)
    newest = run.step_dirs()[-1]
    for name in ("model.safetensors", "config.json"):
        assert (run.root / name).read_bytes() == (newest / name).read_bytes()


@pytest.mark.parametrize("links", [True, False])
def test_nothing_is_written_through_a_link_that_somebody_put_there(
    run, monkeypatch, tmp_path, links
):
    """Names of unfinished files were known beforehand once."""
    if not links:
        monkeypatch.setattr(checkpoints.os, "link", Mock(side_effect=OSError(errno.EPERM, "no")))
    precious, folder = tmp_path / "precious.txt", tmp_path / "folder"
    precious.write_text("mine")
    folder.mkdir()
    (folder / "file").write_text("mine")
    run.create()
    steps = run.root / "steps"
    (steps / ".step_00000005.partial").symlink_to(folder)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (run.root / f".{name}.partial").symlink_to(precious)
    run.save(checkpoint(5), CONFIG)
    run.create()
    assert run.load()[0].name == "step_00000005"
    assert precious.read_text() == "mine" and [p.name for p in folder.iterdir()] == ["file"]


def test_links_are_made_where_they_can_be(run):
    unused_name(run.root / "model.safetensors", "partial").write_bytes(b"left by a kill")
    folder = run.save(checkpoint(5), CONFIG)
    assert (run.root / "model.safetensors").samefile(folder / "model.safetensors")


def test_tensors_of_any_structure_in_order():
    one, two, three = (torch.full((1,), float(i)) for i in range(3))
    found = all_tensors({"a": one, "b": [two, (three, "no tensor")], "c": 5})
    assert [tensor.item() for tensor in found] == [0, 1, 2]


def test_no_log_is_no_error(run):
    run.forget_metrics_after(3, 2)
    assert not run.metrics_path.exists()
    os.mkfifo(run.metrics_path)  # which would be waited for
    run.forget_metrics_after(3, 2)


def test_numbers_that_are_no_object_are_refused(run):
    folder = run.save(checkpoint(5), CONFIG)
    (folder / "state.json").write_text("[]")
    with pytest.raises(DataError, match=r"state\.json holds no object") as caught:
        run.load_numbers()
    assert f"remove {folder}" in caught.value.next_step


@pytest.mark.parametrize("error", [KeyError("data"), TypeError("data is None")])
def test_a_wrong_number_names_its_file(tmp_path, error):
    with pytest.raises(DataError) as caught, readable_numbers(tmp_path):
        raise error
    assert caught.value.path == tmp_path / "state.json"
    what = "data is missing" if isinstance(error, KeyError) else "data is None"
    assert caught.value.message == f"state.json is not what a run writes: {what}"


def test_a_finished_run_has_the_weights_of_its_last_checkpoint(two_checkpoints, tmp_path, capsys):
    """A kill between the last checkpoint and its second name, or a lost file, is made good."""
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "run"
    wanted = (run / "steps" / "step_00000008" / "model.safetensors").read_bytes()
    for left in ((run / "steps" / "step_00000004" / "model.safetensors").read_bytes(), None):
        (run / "model.safetensors").unlink()
        if left is not None:
            (run / "model.safetensors").write_bytes(left)
        assert make_small_trainer(tmp_path).fit().stopped == "finished"
        assert (run / "model.safetensors").read_bytes() == wanted
        assert "weights of step_00000008 are written to" in capsys.readouterr().err
    (run / "best" / "model.safetensors").unlink()
    make_small_trainer(tmp_path).fit()
    said = capsys.readouterr().err
    assert "warning: model.safetensors is missing; checksums.json names it" in said
    assert "are written to" not in said


BROKEN_RECORDS = ["", "{broken", "[]", '{"version": 9, "files": {}}']


@pytest.mark.parametrize("broken", BROKEN_RECORDS)
@pytest.mark.parametrize("steps", [8, 10])
def test_a_damaged_record_beside_whole_checkpoints_is_written_anew(
    two_checkpoints, tmp_path, capsys, broken, steps
):
    """Of a run's folder, and of its best weights; both stopped a run that could go on."""
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    root, best = (tmp_path / "run" / part for part in ("", "best"))
    tokenizer = Tokenizer.from_characters("".join(map(chr, range(97, 95 + VOCAB))))
    tokenizer.save(root)
    for folder in (root, best):
        (folder / "checksums.json").write_text(broken)
    with pytest.raises(DataError, match=r"checksums\.json is damaged") as caught:
        load_model(root)
    assert caught.value.path == root / "checksums.json" and "lowtide train" in str(caught.value)
    options = {"max_iters": steps, "tokenizer": tokenizer, "eval_interval": 9}
    if steps > 8:  # each evaluation is the best so far
        numbers = root / "steps" / "step_00000008" / "state.json"
        values = json.loads(numbers.read_text())
        write_recorded_json(numbers, {**values, "best_val_loss": 99.0})
    assert make_small_trainer(tmp_path, **options).fit().steps == steps
    said = capsys.readouterr().err
    assert "warning: checksums.json is damaged" in said
    assert f"({root / 'checksums.json'}); it is written anew" in said
    record = json.loads((root / "checksums.json").read_text())["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= record.keys()
    verify_folder(root)
    if steps > 8:
        verify_folder(best)
    else:  # nothing was written there
        with pytest.raises(DataError, match="without being compared"):
            load_model(best)


def test_an_old_checkpoint_stays_one_until_all_of_it_is_written_anew(run, monkeypatch):
    """A kill on the way: without checksums it is still read as torch wrote it."""
    folder = run.save(checkpoint(3), CONFIG)
    for name in ("checksums.json", "state.safetensors"):
        (folder / name).unlink()
    torch.save({}, folder / "state.pt")
    assert run.is_old()
    seen = []

    def look(path, value):
        seen.append((path.name, (folder / "state.safetensors").is_file(), run.is_old()))

    monkeypatch.setattr(checkpoints, "write_json", look)
    run.renew({"moments.a.m": torch.arange(3)}, {"optimizers": []})
    assert seen[0] == ("state.json", True, True)
    assert not run.is_old() and not (folder / "state.pt").exists()
