"""Settings that change when a run goes on: applied, refused or free, never ignored."""

import json
import os
import subprocess
import sys

import pytest
import torch

from lowtide.errors import DataError, UsageError
from lowtide.filenames import LOCK_NAME
from lowtide.files import hold_lock
from lowtide.flatsettings import setting_fields, setting_values
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters
from lowtide.training import resuming
from lowtide.training.resuming import (
    RESUME_RULES,
    change_settings,
    continued_settings,
    is_run,
    require_own_run,
)
from lowtide.training.schedule import default_learning_rate
from lowtide.training.settings import TrainSettings, train_settings
from lowtide.training.start import train
from lowtide.training.steps import Steps
from lowtide.training.trainer import Trainer

from .conftest import VOCAB, kept_steps, write_tokens

SHAPE = GPTConfig(VOCAB, 16, 1, 32, 2)
RATE = default_learning_rate(count_parameters(SHAPE), "muon", adapting=False)


def rows(trainer):
    lines = trainer.run.metrics_path.read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.get("event") == "step"]


def settings_of(trainer):
    return json.loads((trainer.run.root / "settings.json").read_text())


def test_every_setting_has_a_rule():
    assert set(RESUME_RULES) == set(setting_fields(TrainSettings))


def test_a_run_is_gone_on_with_whose_settings_have_a_second_name(tmp_path):
    (tmp_path / "settings.json").write_text('{"text_column": "body"}')
    assert continued_settings(tmp_path, train_settings(text_field="body")).data.text_field == "body"
    with pytest.raises(UsageError, match="text_field is story, this run has body"):
        continued_settings(tmp_path, train_settings(text_field="story"))


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ({"dataset_dir": "d"}, {"dataset_dir": "moved"}, True),
        ({"input_file": "a.txt"}, {"train_data_path": "a.npy"}, True),
        ({"dataset_dir": "d"}, {"train_data_path": "d.bin"}, True),
        ({}, {"dataset_id": "a.txt"}, True),  # a Trainer is given its data
        ({"dataset_id": "a.txt"}, {}, True),
        ({"dataset_dir": "d"}, {"dataset_id": "a.txt"}, False),
        ({"dataset_id": "a.txt"}, {"input_file": "a.txt"}, False),
        ({"dataset_dir": "d"}, {"input_file": "a.txt"}, False),
    ],
)
def test_another_kind_of_data_is_named_before_any_is_made(before, now, is_same, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"model_name": "m", **before}))
    if is_same:
        continued_settings(tmp_path, train_settings(**now))
        return
    (name,), (other,) = now, before
    said = f"{name} is {now[name]}, this run began with {other} {before[other]}"
    with pytest.raises(UsageError, match=said):
        continued_settings(tmp_path, train_settings(**now))


@pytest.fixture
def notes():
    return []


def test_a_new_learning_rate_is_applied_and_announced(make_trainer, notes):
    make_trainer(max_iters=4, schedule="constant", warmup=0).fit()
    again = make_trainer(
        max_iters=6, schedule="constant", warmup=0, learning_rate=1e-4, notify=notes.append
    )
    ready = kept_steps(again)
    again.fit()
    assert [row["learning_rate"] for row in rows(again)] == pytest.approx([3e-3] * 4 + [1e-4] * 2)
    assert ready[0].engine.optimizers.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4)
    told = next(note for note in notes if note.startswith("changed from step 4 on"))
    assert "max_iters 4 -> 6" in told and "learning_rate 0.003 -> 0.0001" in told
    kept = settings_of(again)
    assert kept["max_iters"] == 6 and kept["learning_rate"] == 1e-4
    assert kept["history"][0]["step"] == 4
    assert kept["history"][0]["changed"]["max_iters"] == {"from": 4, "to": 6}


def test_weight_decay_and_betas_are_those_given_now(make_trainer):
    make_trainer(max_iters=4).fit()
    again = make_trainer(max_iters=5, weight_decay=0.7, beta1=0.5)
    ready = kept_steps(again)
    again.fit()
    group = ready[0].engine.optimizers.optimizers[0].param_groups[0]
    assert group["weight_decay"] == 0.7 and group["betas"][0] == 0.5


def test_another_optimizer_is_refused_and_auto_is_the_one_the_run_has(make_trainer):
    make_trainer(max_iters=4, optimizer="muon").fit()
    with pytest.raises(UsageError, match="optimizer is adamw, this run has muon") as caught:
        make_trainer(max_iters=6, optimizer="adamw").fit()
    assert "--overwrite" in caught.value.next_step
    # By itself it would be AdamW with so few rows.
    assert make_trainer(max_iters=6, optimizer="auto").fit().steps == 6


def test_what_is_left_out_is_the_runs(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    (root / "settings.json").write_text(
        json.dumps({"init_from_model": "base", "target_params": 300000, "num_layers": None})
    )
    kept = continued_settings(root, train_settings(num_layers=2))
    assert (kept.run.init_from_model, kept.model.target_params, kept.model.num_layers) == (
        "base",
        300000,
        2,
    )
    with pytest.raises(UsageError, match="target_params is 400000, this run has 300000"):
        continued_settings(root, train_settings(target_params=400000))
    with pytest.raises(UsageError, match="init_from_model is other, this run has base"):
        continued_settings(root, train_settings(init_from_model="other"))


def test_what_is_left_out_is_the_runs_where_it_has_a_default_too(tmp_path):
    run = {"layout": "tide", "seed": 7, "average_over": 0.1, "order": "shifted", "seq_len": 32}
    (tmp_path / "settings.json").write_text(json.dumps(run))
    kept = setting_values(continued_settings(tmp_path, train_settings(max_iters=9, seed=7)))
    assert {name: kept[name] for name in run} == run
    for name, value in (("layout", "qwen3"), ("seed", 1337), ("average_over", 0.0)):
        with pytest.raises(UsageError, match=f"{name} is {value}, this run has {run[name]}"):
            continued_settings(tmp_path, train_settings(**{name: value}))


def test_what_applies_is_the_runs_too_where_it_is_left_out(tmp_path):
    """A run went on with defaults in place of its own rate, batch, decay and schedule."""
    run = {
        "learning_rate": 0.01, "batch_size": 8, "weight_decay": 0.5, "dropout": 0.2,
        "schedule": "linear-decay", "decay_fraction": 0.8, "grad_clip": 0.0, "beta1": 0.8,
        "eval_dataset_dir": ("general=d",), "stop_on_forgetting": True, "max_iters": 9,
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(run))
    kept = setting_values(continued_settings(tmp_path, train_settings(momentum=0.9)))
    assert {name: kept[name] for name in run} == run and kept["momentum"] == 0.9
    now = setting_values(continued_settings(tmp_path, train_settings(batch_size=32, dropout=0.0)))
    assert (now["batch_size"], now["dropout"], now["beta1"]) == (32, 0.0, 0.8)
    # All of a TrainSettings that is made directly is given.
    direct = setting_values(continued_settings(tmp_path, TrainSettings()))
    assert (direct["batch_size"], direct["max_iters"]) == (32, None)


@pytest.mark.parametrize(
    ("before", "now", "length"),
    [
        ({"max_iters": 9}, {}, (9, None, None)),
        ({"max_iters": 9}, {"epochs": 2.0}, (None, 2.0, None)),
        ({"epochs": 2.0, "max_hours": 1.0}, {"max_iters": 9}, (9, None, None)),
        ({"epochs": 2.0, "max_hours": 1.0}, {}, (None, 2.0, 1.0)),
        ({"max_iters": 9}, {"tokens_per_param": 5.0}, (None, None, None)),
    ],
)
def test_a_length_that_is_given_replaces_all_of_the_runs(tmp_path, before, now, length):
    (tmp_path / "settings.json").write_text(json.dumps(before))
    kept = continued_settings(tmp_path, train_settings(**now)).length
    assert (kept.max_iters, kept.epochs, kept.max_hours) == length


@pytest.mark.parametrize(
    ("now", "precision"),
    [
        ({}, "fp16"),
        ({"use_mixed_precision": True}, "fp16"),
        ({"use_mixed_precision": False}, None),
        ({"precision": "bf16", "use_mixed_precision": True}, "bf16"),
    ],
)
def test_half_precision_is_switched_off_with_its_format(tmp_path, now, precision):
    before = {"use_mixed_precision": True, "precision": "fp16"}
    (tmp_path / "settings.json").write_text(json.dumps(before))
    kept = continued_settings(tmp_path, train_settings(**now)).computing
    assert (kept.precision, kept.use_mixed_precision) == (precision, precision is not None)


@pytest.mark.parametrize("hours", [None, 1.5, 3.0])
def test_a_preset_gives_no_length_to_a_run_that_has_its_own(tmp_path, hours):
    """With a length by hand the preset's time limit was applied, and decided the rates."""
    (tmp_path / "settings.json").write_text(json.dumps({"max_iters": 4, "max_hours": hours}))
    given = train_settings(preset="small-data", max_iters=6)
    assert given.length.max_hours == 1.5
    kept = continued_settings(tmp_path, given).length
    assert (kept.max_iters, kept.max_hours) == (6, hours)
    alone = continued_settings(tmp_path, train_settings(max_iters=6)).length
    assert (alone.max_iters, alone.max_hours) == (6, None)


def test_a_preset_of_another_version_changes_no_run(tmp_path):
    """Its values are for new runs; with a flag they are applied, or refused."""
    run = {"learning_rate": 0.5, "embedding_rate": 3.0, "width": 64, "seed": 7, "compile": False}
    (tmp_path / "settings.json").write_text(json.dumps(run))
    notes = []
    given = train_settings(preset="h100", warmup=9)
    kept = continued_settings(tmp_path, given, note=notes.append)
    values = setting_values(kept)
    assert values["learning_rate"] == 0.5 and values["width"] == 64 and values["warmup"] == 9
    assert values["compile"]  # how numbers are computed is as given now
    assert values["batch_size"] == 64  # which this run does not know
    assert notes == [
        "the run keeps its own values where the preset has others: "
        "width 64 (not 768), learning_rate 0.5 (not 0.002)"
    ]
    assert continued_settings(tmp_path, kept, note=notes.append) == kept and len(notes) == 1
    applied = train_settings(preset="h100", learning_rate=0.002)
    assert continued_settings(tmp_path, applied).learning.learning_rate == 0.002
    with pytest.raises(UsageError, match="width is 768, this run has 64"):
        continued_settings(tmp_path, train_settings(preset="h100", width=768))
    own = tmp_path / "own.json"
    own.write_text('{"learning_rate": 0.1}')  # the user's own counts as given
    assert (
        continued_settings(tmp_path, train_settings(config_file=own)).learning.learning_rate == 0.1
    )
    built_in = train_settings(config_file="150M")
    assert continued_settings(tmp_path, built_in).learning.learning_rate == 0.5


def test_runs_keep_what_newer_versions_would_choose_otherwise(tmp_path):
    def kept(before, **now):
        (tmp_path / "settings.json").write_text(json.dumps({"model_name": "run", **before}))
        learning = continued_settings(tmp_path, train_settings(**now)).learning
        return (
            learning.embedding_rate, learning.first_embedding, learning.beta2, learning.momentum
        )  # fmt: skip

    older = {"embedding_rate": 1.0, "first_embedding": "random", "beta2": 0.95, "momentum": 0.95}
    assert kept(older, target_params=1000000) == (1.0, "random", 0.95, 0.95)
    assert kept({}, target_params=1000000) == (1.0, "auto", None, None)
    newer = {
        "embedding_rate": None, "first_embedding": "cooccurrence", "beta2": None, "momentum": None
    }  # fmt: skip
    assert kept(newer) == (None, "cooccurrence", None, None)
    given = {"embedding_rate": 2.0, "beta2": 0.9, "momentum": 0.8}
    assert kept(older, **given) == (2.0, "random", 0.9, 0.8)
    with pytest.raises(UsageError, match="first_embedding is cooccurrence, this run has random"):
        kept(older, first_embedding="cooccurrence")


def test_a_rate_of_the_embedding_that_is_given_later_is_announced(tmp_path):
    said = []
    (tmp_path / "settings.json").write_text('{"embedding_rate": null, "optimizer": "auto"}')
    given = train_settings(embedding_rate=2.0, optimizer="muon")
    change_settings(tmp_path, given, SHAPE, step=3, note=said.append)
    assert said == ["changed from step 3 on: embedding_rate None -> 2.0"]


def test_a_precision_written_out_is_no_change(tmp_path):
    """bf16 is what is taken where none is named, and what settings.json of older runs has."""
    said = []
    for before, now in (("bf16", None), (None, "bf16"), ("bf16", "fp16")):
        (tmp_path / "settings.json").write_text(json.dumps({"precision": before}))
        settings = train_settings(use_mixed_precision=True, precision=now)
        change_settings(tmp_path, settings, SHAPE, step=3, note=said.append)
    assert said == ["changed from step 3 on: precision bf16 -> fp16"]


@pytest.mark.parametrize("content", ["[1]", '{"batch_size": "many"}', '{"history": 3}', "{"])
def test_damaged_settings_are_an_error_with_a_way_out(make_trainer, content):
    make_trainer(max_iters=2).fit()
    trainer = make_trainer(max_iters=4)
    path = trainer.run.root / "settings.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        trainer.fit()
    assert caught.value.path == path
    path.unlink()
    assert make_trainer(max_iters=4).fit().steps == 4


def test_a_bad_byte_in_the_metrics_does_not_stop_a_run(make_trainer):
    make_trainer(max_iters=4).fit()
    trainer = make_trainer(max_iters=6)
    path = trainer.run.metrics_path
    good = path.read_bytes()
    path.write_bytes(b'{"step": "\xff"}\n[1]\n{"step": "a"}\n' + b"[" * 100_000 + b"\n" + good)
    assert trainer.fit().steps == 6
    assert [row["step"] for row in rows(trainer)] == [1, 2, 3, 4, 5, 6]


def fit_fresh(tmp_path, seed, **options):
    path = tmp_path / "tokens.npy"
    if not path.exists():
        write_tokens(path, count=2000)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    trainer = Trainer(
        model,
        data=TokenDataset(path, split="train", seq_len=16),
        checkpoints_dir=tmp_path / "checkpoints",
        **{"batch_size": 4, "max_iters": 3, "device": "cpu", **options},
    )
    return model, trainer.fit()


def test_a_fresh_model_is_not_given_an_old_result(tmp_path):
    first, _ = fit_fresh(tmp_path, 1)
    with pytest.raises(UsageError, match="a model that began with other weights") as caught:
        fit_fresh(tmp_path, 2)
    for choice in ("resume=True", "model_name=", "overwrite=True"):
        assert choice in caught.value.next_step
    same, _ = fit_fresh(tmp_path, 1)  # the same script again
    went_on, result = fit_fresh(tmp_path, 2, resume=True, max_iters=4)
    assert result.steps == 4
    assert torch.equal(first.embedding.weight, same.embedding.weight)
    assert not torch.equal(first.embedding.weight, went_on.embedding.weight)
    other, result = fit_fresh(tmp_path, 2, overwrite=True)
    assert result.steps == 3
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
    with pytest.raises(UsageError, match="--no-resume forbids"):
        fit_fresh(tmp_path, 2, resume=False)


def test_a_model_that_was_just_trained_goes_on(tmp_path):
    model, _ = fit_fresh(tmp_path, 1)
    options = {"batch_size": 4, "device": "cpu", "checkpoints_dir": tmp_path / "checkpoints"}
    data = TokenDataset(tmp_path / "tokens.npy", split="train", seq_len=16)
    assert Trainer(model, data=data, max_iters=5, **options).fit().steps == 5


def test_a_model_of_another_shape_is_refused(tmp_path):
    fit_fresh(tmp_path, 1)
    options = {"batch_size": 4, "device": "cpu", "checkpoints_dir": tmp_path / "checkpoints"}
    data = TokenDataset(tmp_path / "tokens.npy", split="train", seq_len=16)
    with pytest.raises(UsageError, match="a model of another shape"):
        Trainer(GPT(GPTConfig(VOCAB, 16, 1, 16, 2)), data=data, **options).fit()


def test_other_data_under_the_same_name_is_refused(make_trainer, token_file):
    make_trainer(max_iters=4).fit()
    write_tokens(token_file, seed=5)
    with pytest.raises(DataError, match="the data, or how it is cut into windows, changed"):
        make_trainer(max_iters=4).fit()


def test_a_run_is_locked_from_start_to_end(make_trainer, monkeypatch):
    trainer = make_trainer(max_iters=2)
    trainer.run.root.mkdir(parents=True)
    code = (
        "import sys, fcntl, os\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "try:\n    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError:\n    print('locked')\n"
    )
    seen = []
    step = Steps.train_step

    def look(*arguments):
        command = [sys.executable, "-c", code, str(trainer.run.root / LOCK_NAME)]
        seen.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return step(*arguments)

    monkeypatch.setattr(Steps, "train_step", look)
    trainer.fit()
    assert seen == ["locked\n"] * 2
    with hold_lock(trainer.run.root):  # free again
        pass


def test_the_loser_of_two_starts_is_refused_and_changes_nothing(make_trainer, tmp_path):
    make_trainer(max_iters=2).fit()
    second = make_trainer(max_iters=4)
    before = sorted(path.name for path in second.run.root.rglob("*"))
    with hold_lock(second.run.root), pytest.raises(UsageError, match=str(os.getpid())):
        second.fit()
    assert sorted(path.name for path in second.run.root.rglob("*")) == before
    with pytest.raises(DataError):
        train(input_file=tmp_path / "nothing.txt", model_name="x", checkpoints_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_losses_of_other_data_are_not_compared(make_trainer, tmp_path, capsys):
    """The best weights, and forgetting, are by the same windows or found anew."""
    other = TokenDataset(write_tokens(tmp_path / "b.npy", step=5), split="val", seq_len=16)
    files = {"general": write_tokens(tmp_path / "c.npy", step=3)}
    trainer = make_trainer(max_iters=6, eval_files=files)
    best = trainer.fit().best_val_loss
    again = make_trainer(max_iters=8, eval_interval=8, resume=True, eval_files=files)
    again.val_data = other
    write_tokens(files["general"], step=11)
    again.eval_data = {"general": TokenDataset(files["general"], split="val", seq_len=16)}
    steps = kept_steps(again)
    result = again.fit()
    assert "other windows than before: val, eval_general;" in capsys.readouterr().err
    assert result.best_val_loss == result.val_loss > best  # harder data, so no better than before
    assert again.run.root.joinpath("best", "config.json").exists()
    assert json.loads((again.run.root / "best" / "best.json").read_text())["step"] == 8
    assert len(steps[0].state.measured_on) == 2
    # Going on with the same data says nothing.
    third = make_trainer(max_iters=10, eval_interval=10, resume=True, eval_files=files)
    third.val_data, third.eval_data = other, again.eval_data
    third.fit()
    assert "other windows" not in capsys.readouterr().err
    more = make_trainer(max_iters=12, eval_iters=3, resume=True, eval_files=files)
    more.val_data, more.eval_data = other, again.eval_data
    more.fit()
    assert "other windows than before: val, eval_general;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"optimizer": "auto"}, {"optimizer": "muon"}, {}),  # what the run had chosen by itself
        ({"optimizer": "adamw"}, {"optimizer": "muon"}, {"optimizer": ("adamw", "muon")}),
        ({"precision": None}, {"precision": "bf16"}, {}),
        ({"precision": "bf16"}, {}, {}),
        ({"precision": "fp16"}, {}, {"precision": ("fp16", None)}),
        ({"max_iters": 4}, {"max_iters": 4}, {}),
        ({"max_iters": 4}, {"max_iters": 5}, {"max_iters": (4, 5)}),
        ({"gone": 4}, {}, {}),
        # What a setting means where it is left out.
        ({"beta2": None}, {"beta2": 0.95}, {}),
        ({"beta2": 0.95}, {}, {}),
        ({"beta2": None}, {"beta2": 0.9}, {"beta2": (None, 0.9)}),
        ({"momentum": None}, {"momentum": 0.95}, {}),
        ({"momentum": 0.95}, {}, {}),
        ({"momentum": None}, {"momentum": 0.9}, {"momentum": (None, 0.9)}),
        ({"embedding_rate": None}, {"embedding_rate": 1.0}, {}),
        ({"embedding_decay": None, "weight_decay": 0.1}, {"embedding_decay": 0.1}, {}),
        (
            {"embedding_decay": None, "weight_decay": 0.1},
            {"embedding_decay": 0.2, "weight_decay": 0.2},
            {"weight_decay": (0.1, 0.2), "embedding_decay": (None, 0.2)},
        ),
        ({"learning_rate": None}, {"learning_rate": RATE}, {}),
        ({"learning_rate": RATE}, {}, {}),
        ({"learning_rate": None}, {"learning_rate": 2 * RATE}, {"learning_rate": (None, 2 * RATE)}),
    ],
)
def test_what_counts_as_a_change(tmp_path, before, now, changed):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(before))
    said = []
    settings = train_settings(use_mixed_precision=True, **now)
    change_settings(tmp_path, settings, SHAPE, step=3, note=said.append)
    kept = json.loads(path.read_text())
    named = {name: {"from": old, "to": new} for name, (old, new) in changed.items()}
    if not changed:
        assert kept == before and said == []
        return
    assert kept["history"] == [{"step": 3, "changed": named}]
    applied = [f"{name} {old} -> {new}" for name, (old, new) in changed.items()
               if RESUME_RULES[name] == "applied"]  # fmt: skip
    assert said == ([f"changed from step 3 on: {', '.join(applied)}"] if applied else [])


def test_a_folder_with_files_of_a_runs_names_is_not_written_over(tmp_path):
    folder = tmp_path / "mine"
    require_own_run(folder)  # not there
    folder.mkdir()
    (folder / "notes.txt").write_text("")
    require_own_run(folder)
    for name in ("config.json", "best", "data/dataset_metadata.json"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        with pytest.raises(UsageError) as refused:
            require_own_run(folder)
        assert refused.value.next_step == "choose another --model-name, or move this file away"
        (folder / "settings.json").write_text('{"model_name": "mine"}')
        assert is_run(folder)
        require_own_run(folder)
        (folder / "settings.json").write_text("{}")
        assert not is_run(folder)
        (folder / "settings.json").unlink()
        path.unlink()
    (folder / "steps" / "step_00000004").mkdir(parents=True)
    assert is_run(folder)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b'{"step": 3}', True),
        (b'{"step": 4}', False),
        (b'{"event": "eval", "step": 2}', True),
        (b'{"event": "eval", "step": 3}', False),
        (b'{"phase": "training"}', True),
        (b"[1]", False),
        (b'{"step": "three"}', False),
        (b"{", False),
    ],
)
def test_rows_of_the_log_up_to_the_checkpoint(line, kept):
    assert resuming._is_kept(line, 3, 2) is kept
