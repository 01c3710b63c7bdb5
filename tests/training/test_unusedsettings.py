"""Settings that nothing reads are refused if somebody gave them, and let alone in presets."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.flatsettings import replace_settings, setting_fields
from lowtide.loader.windows import TokenDataset
from lowtide.training import unusedsettings
from lowtide.training.admission import admit
from lowtide.training.resuming import continued_settings, write_settings
from lowtide.training.settings import TrainSettings, train_settings
from lowtide.training.start import train
from lowtide.training.trainer import Trainer
from lowtide.training.unusedsettings import refuse_unread, refuse_unused_by

from .conftest import write_tokens

DATA = {"train_data_path": "a.npy"}
STREAM = {"dataset_id": "owner/name"}

# What is given, the setting that is named, and what makes it count.
UNUSED = [
    ({"decay_fraction": 0.3}, "decay_fraction", {"schedule": "linear-decay"}),
    ({"decay_fraction": 0.3, "schedule": "constant"}, "decay_fraction", None),
    ({"final_learning_rate": 0.5, "schedule": "constant"},
     "final_learning_rate", {"schedule": "cosine"}),
    ({"tokens_per_param": 5.0, "max_iters": 3}, "tokens_per_param", {"max_iters": None}),
    ({"tokens_per_param": 5.0, "epochs": 3.0}, "tokens_per_param", {"epochs": None}),
    ({"tokens_per_param": 5.0, "max_hours": 3.0}, "tokens_per_param", {"max_hours": None}),
    ({"momentum": 0.9, "optimizer": "adamw"}, "momentum", {"optimizer": "muon"}),
    ({"momentum_warmup": 9, "optimizer": "adamw"}, "momentum_warmup", {"optimizer": "muon"}),
    ({"cautious_decay": True, "optimizer": "adamw"}, "cautious_decay", {"optimizer": "muon"}),
    ({"cautious_decay": True, "weight_decay": 0.0}, "cautious_decay", {"weight_decay": 0.1}),
    ({"decay_schedule": "root", "weight_decay": 0.0}, "decay_schedule", {"embedding_decay": 0.1}),
    ({"embedding_decay_to": "first", "weight_decay": 0.0},
     "embedding_decay_to", {"embedding_decay": 1}),
    ({"embedding_decay_to": "first", "embedding_decay": 0.0},
     "embedding_decay_to", {"embedding_decay": None}),
    ({"early_cap": 15.0, "layout": "tide"}, "early_cap", {"layout": "qwen3"}),
    ({"vram": "8GiB", "device": "cpu"}, "vram", {"device": "cuda"}),
    ({"sample_prompt": "a", "sample_tokens": 0}, "sample_prompt", {"sample_tokens": 5}),
    ({"stop_on_forgetting": True}, "stop_on_forgetting", {"eval_dataset_dir": "d"}),
    ({"forgetting_tolerance": 0.5}, "forgetting_tolerance", {"eval_dataset_dir": "d"}),
    ({"replay_fraction": 0.5}, "replay_fraction", {"replay_dataset_dir": "d"}),
    ({"replay_dataset_dir": "d", **STREAM}, "replay_dataset_dir", {**DATA, "dataset_id": None}),
    ({"order": "random", **STREAM}, "order", {**DATA, "dataset_id": None}),
    ({"shuffle_buffer_size": 5, "use_streaming": False, **STREAM}, "shuffle_buffer_size",
     {"use_streaming": True}),
    ({"split": "test", "dataset_id": "notes/*.txt"}, "split", {"dataset_id": "owner/name"}),
    ({"val_fraction": 0.3, "dataset_dir": "d"}, "val_fraction", {**DATA, "dataset_dir": None}),
    ({"val_fraction": 0.3, "val_data_path": "b.npy", **DATA},
     "val_fraction", {"val_data_path": None}),
    ({"val_fraction": 0.3, "val_data_path": "b.npy", **STREAM},
     "val_fraction", {"val_data_path": None}),
    ({"dtype": "uint32", **STREAM}, "dtype", {"val_data_path": "b.bin"}),
    ({"cache_dir": "c", **DATA}, "cache_dir", {"eval_dataset_dir": "web=s3://bucket/d"}),
    ({"cache_size": "1GiB", "dataset_dir": "d"}, "cache_size", {"dataset_dir": "s3://bucket/d"}),
    ({"vocab_size": 300, "init_from_model": "base", "input_file": "a.txt"}, "vocab_size",
     {"init_from_model": None}),
    ({"zero_init": True, "init_from_model": "base"}, "zero_init", {"init_from_model": None}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "used"), UNUSED)
def test_what_nothing_reads_is_refused(tmp_path, given, name, used):
    places = {"checkpoints_dir": tmp_path / "runs"}
    settings = train_settings(**places, **given)
    for begin in (refuse_unread, admit, train):
        with pytest.raises(UsageError, match=rf"^{name} is .*, expected ") as caught:
            begin(settings)
        assert caught.value.next_step == "leave it out: without that it has no effect"
    if used is not None:
        refuse_unread(train_settings(**places, **{**given, **used}))
    default = setting_fields(TrainSettings)[name].default
    refuse_unread(train_settings(**{**given, name: default}))


def test_every_row_of_the_tables_is_tried():
    tables = ("_BESIDE_OTHERS", "_OF_MUON", "_OF_FORGETTING", "_OF_DATA")
    rows = {name for table in tables for name in getattr(unusedsettings, table)}
    assert rows == {name for _, name, _ in UNUSED}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"dataset_dir": "d", "max_examples": 5}, "--max-examples 5"),
        ({"dataset_dir": "d", "vocab_size": 300}, "--vocab-size 300"),
        ({"train_data_path": "a.npy", "text_field": "body"}, "--text-field body"),
        ({"train_data_path": "a.npy", "shuffle_buffer_size": 5}, "--shuffle-buffer-size 5"),
        ({"input_file": "a.txt", "split": "test"}, "--split test"),
        ({"input_file": "a.txt", "use_streaming": False}, "--no-use-streaming"),
        ({"input_file": "a.txt", "vocab_size": 300, "text_field": "body"}, None),
        ({"dataset_id": "owner/name", "vocab_size": 300, "max_examples": 5, "split": "a"}, None),
        ({"dataset_dir": "d", "max_examples": None, "split": "train"}, None),
        ({"max_examples": 5}, None),  # another error says that no data is given
    ],
)
def test_settings_of_text_are_refused_where_none_of_it_is_read(tmp_path, given, refused):
    settings = train_settings(checkpoints_dir=tmp_path, device="cpu", max_iters=1, **given)
    if refused is None:
        refuse_unread(settings)
        return
    for begin in (admit, train):
        with pytest.raises(UsageError, match=rf"^{refused} is for "):
            begin(settings)


def test_what_a_preset_gives_is_no_error():
    """Its momentum, cautious decay and decay fraction are for its own optimizer and schedule."""
    options = {"optimizer": "adamw", "schedule": "cosine", "dataset_dir": "d"}
    refuse_unread(train_settings(preset="small-data", **options))
    with pytest.raises(UsageError, match=r"^momentum_warmup is 9"):
        refuse_unread(train_settings(preset="small-data", momentum_warmup=9, **options))


def test_a_path_is_shown_as_it_was_given():
    with pytest.raises(UsageError, match=r"^cache_dir is 'c/d', expected data in an object store"):
        refuse_unread(train_settings(cache_dir="c/d", **DATA))


def test_a_config_file_of_the_users_counts_as_given_and_a_built_in_one_does_not(tmp_path):
    path = tmp_path / "own.json"
    path.write_text('{"decay_fraction": 0.3}')
    with pytest.raises(UsageError, match=r"^decay_fraction is 0.3"):
        refuse_unread(train_settings(config_file=path, **DATA))
    assert "width" in train_settings(config_file="small_char").supplied
    assert not train_settings(config_file="small_char", width=8).supplied & {"width"}
    assert not train_settings(config_file=path, preset="h100").supplied & {"decay_fraction"}


def test_types_of_prepared_data_are_its_own(tmp_path):
    (tmp_path / "dataset_metadata.json").write_text("{}")
    with pytest.raises(UsageError, match=r"^dtype is 'uint32'"):
        refuse_unread(train_settings(dataset_dir=tmp_path, dtype="uint32"))
    refuse_unread(train_settings(dataset_dir=tmp_path / "bare", dtype="uint32"))
    refuse_unread(train_settings(dataset_dir=tmp_path, val_data_path="b.bin", dtype="uint32"))


def test_what_a_run_has_decides_where_it_goes_on(tmp_path):
    (tmp_path / "settings.json").write_text(
        '{"schedule": "linear-decay", "eval_dataset_dir": ["d"], "weight_decay": 0.0}'
    )
    given = {"decay_fraction": 0.3, "stop_on_forgetting": True, **DATA}
    refuse_unread(continued_settings(tmp_path, train_settings(**given)))
    with pytest.raises(UsageError, match=r"^cautious_decay is True, expected a --weight-decay"):
        refuse_unread(continued_settings(tmp_path, train_settings(cautious_decay=True, **DATA)))


def test_the_command_of_a_run_goes_on_though_some_of_it_has_no_effect(tmp_path):
    """Earlier versions took these settings; the same command after an update was refused."""
    given = {"decay_fraction": 0.3, "momentum": 0.9, "sample_tokens": 0, "sample_prompt": "a"}
    given |= {"optimizer": "adamw", "dataset_dir": Path("d"), "val_fraction": 0.2}
    settings = train_settings(checkpoints_dir=tmp_path, model_name="run", **given)
    (tmp_path / "run").mkdir()
    write_settings(settings.run.folder, settings, identity={})
    going_on = continued_settings(settings.run.folder, settings)
    assert going_on == settings
    refuse_unread(going_on)
    refuse_unread(continued_settings(settings.run.folder, going_on))
    with pytest.raises(UsageError, match=r"^decay_fraction is 0.25"):
        changed = replace_settings(settings, decay_fraction=0.25)
        refuse_unread(continued_settings(settings.run.folder, changed))


def test_an_optimizer_that_is_chosen_by_itself_counts_too():
    refuse_unused_by("muon", train_settings(momentum=0.95))
    refuse_unused_by("adamw", train_settings())
    with pytest.raises(UsageError, match=r"^momentum is 0.95, expected --optimizer muon"):
        refuse_unused_by("adamw", train_settings(momentum=0.95))


def test_a_trainer_refuses_them_too(make_trainer, tmp_path):
    for options, name in (
        ({"decay_fraction": 0.3}, "decay_fraction"),
        ({"momentum": 0.9}, "momentum"),  # so few rows are AdamW's
        ({"forgetting_tolerance": 0.3}, "forgetting_tolerance"),
    ):
        trainer = make_trainer(**options)
        with pytest.raises(UsageError, match=rf"^{name} is 0"):
            trainer.fit()
        assert not trainer.run.metrics_path.exists()
    files = {"general": write_tokens(tmp_path / "c.npy", step=3)}
    make_trainer("ok", max_iters=1, eval_files=files, forgetting_tolerance=0.3).fit()


@pytest.mark.parametrize(
    "options",
    [{"weight_decay": 0.5}, {"beta1": 0.5}, {"learning_rate": 0.5}, {"embedding_rate": 2.0}],
)
def test_a_given_optimizer_has_its_own_rates(make_trainer, token_file, tmp_path, options):
    model = make_trainer().model

    def fit(**more):
        return Trainer(
            model,
            data=TokenDataset(token_file, split="train", seq_len=16),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            checkpoints_dir=tmp_path / "own",
            **{"batch_size": 4, "max_iters": 1, "device": "cpu", **more},
        ).fit()

    (name,) = options
    with pytest.raises(
        UsageError, match=rf"^{name} is .*, and the optimizer that was given has its"
    ):
        fit(**options)
    assert fit(learning_rate=0.1).steps == 1


def test_a_given_optimizer_goes_on_with_its_peak(make_trainer, token_file, tmp_path):
    """After a run its groups have the rate of the last step, and the next fit() was refused."""
    model = make_trainer().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def trainer(max_iters):
        return Trainer(
            model,
            data=TokenDataset(token_file, split="train", seq_len=16),
            optimizer=optimizer,
            checkpoints_dir=tmp_path / "own",
            batch_size=4,
            max_iters=max_iters,
            device="cpu",
            resume=True,
        )

    first = trainer(3)
    assert first.fit() == first.fit()
    assert optimizer.param_groups[0]["lr"] < 0.1
    longer = trainer(4)
    assert longer.settings.learning.learning_rate == 0.1
    assert longer.fit().steps == 4


def test_an_optimizer_is_known_by_its_groups():
    given = SimpleNamespace(param_groups=[{"lr": 0.1}])
    refuse_unused_by(given, train_settings(learning_rate=0.1, weight_decay=0.1))
    with pytest.raises(UsageError, match="give it to SimpleNamespace, or let optimizer be a name"):
        refuse_unused_by(given, train_settings(weight_decay=0.2))
