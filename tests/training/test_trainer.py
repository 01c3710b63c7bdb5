"""What a trainer does in which order and with what, by stand-ins that note the calls."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.loader.batches import BatchLoader
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.tokenizer import Tokenizer
from lowtide.training import trainer as module
from lowtide.training.settings import train_settings
from lowtide.training.state import RunState
from lowtide.training.trainer import Trainer

from .conftest import VOCAB


class Calls(list):
    """A list of calls, and functions that add to it."""

    def note(self, name: str, result: Any = None) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            self.append((name, *given, *([options] if options else [])))
            return result

        return call

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def make_group(calls: Calls, *, is_first: bool = True, on_cpu: bool = True, size: int = 1) -> Any:
    return SimpleNamespace(
        is_first=is_first, on_cpu=on_cpu, world_size=size, saves_beside=True,
        wait=calls.note("wait"), least=lambda rows: calls.note("least")(rows) or rows,
    )  # fmt: skip


def test_what_a_step_cannot_use_is_refused_before_it(token_file, tmp_path):
    data = TokenDataset(token_file, split="train", seq_len=16)
    options = {"data": data, "checkpoints_dir": tmp_path, "device": "cpu"}
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    large = Tokenizer.from_characters(map(chr, range(65, 66 + VOCAB)))
    with pytest.raises(UsageError, match=rf"has {large.vocab_size} ids, .* {VOCAB} rows"):
        Trainer(model, tokenizer=large, model_name="large", sample_tokens=0, **options).fit()
    lbfgs = torch.optim.LBFGS(model.parameters())
    with pytest.raises(UsageError, match="LBFGS computes the loss several times"):
        Trainer(model, optimizer=lbfgs, model_name="lbfgs", **options).fit()


def test_options_follow_the_model_the_data_and_the_optimizer(token_file, tmp_path, monkeypatch):
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    data = TokenDataset(token_file, split="train", seq_len=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    plain = Trainer(model, data=data)
    assert plain.settings.model.seq_len == 16 and not plain.goes_on
    assert plain.settings == train_settings(seq_len=16, backend="torch")
    given = Trainer(model, data=data, optimizer=optimizer)
    assert given._given_optimizer is optimizer
    assert given.settings.learning.learning_rate == 0.25
    assert given.settings.learning.optimizer == plain.settings.learning.optimizer
    own = Trainer(model, data=data, optimizer=optimizer, learning_rate=0.5)
    assert own.settings.learning.learning_rate == 0.5
    named = Trainer(model, data=data, optimizer="adamw")
    assert named._given_optimizer is None and named.settings.learning.optimizer == "adamw"
    loader = BatchLoader(data, batch_size=3)
    other = Trainer(model, data=loader, eval_data={"a": loader, "b": data}, val_data=data)
    assert other.settings.batch.batch_size == 3
    assert other.eval_data["a"] is data and other.eval_data["b"] is data
    assert list(other._held_out()) == ["val", "eval_a", "eval_b"]
    assert plain._held_out() == {}
    assert Trainer(model, data=loader, batch_size=5).settings.batch.batch_size == 5
    monkeypatch.setattr(model, "backend", "jax", raising=False)
    assert Trainer(model, data=data).settings.computing.backend == "jax"


@pytest.mark.parametrize(("options", "message"), [
    ({"dropout": 0.5}, "dropout is 0.5, the model that was given has 0.0"),
    ({"n_layer": 3}, "num_layers is 3, the model that was given has 1"),
    ({"layout": "tide"}, "layout is tide, the model that was given has qwen3"),
    ({"tie_weights": False}, "tie_weights is False, the model that was given has True"),
    ({"target_params": 30_000}, "target_params is for a model that is yet to be made"),
    ({"zero_init": True}, "zero_init is for a model that is yet to be made"),
    ({"first_embedding": "cooccurrence"}, "first_embedding is for a model that is yet to be made"),
])  # fmt: skip
def test_options_a_given_model_cannot_follow_are_refused(token_file, options, message):
    data = TokenDataset(token_file, split="train", seq_len=16)
    with pytest.raises(UsageError, match=message):
        Trainer(GPT(GPTConfig(VOCAB, 16, 1, 32, 2)), data=data, **options)


@pytest.mark.parametrize(("options", "advice"), [
    ({"dataset_dir": "data/mine"}, "TokenDataset"),
    ({"stride": 8}, "TokenDataset"),
    ({"dtype": "uint32"}, "TokenDataset"),
    ({"val_fraction": 0.3}, "TokenDataset"),
    ({"val_data_path": "val.npy"}, "val_data"),
    ({"eval_dataset_dir": ("a=b",)}, "eval_data"),
    ({"replay_dataset_dir": "data/general"}, "a Mixture"),
    ({"replay_fraction": 0.2}, "a Mixture"),
])  # fmt: skip
def test_options_given_data_cannot_follow_are_refused(token_file, options, advice):
    data = TokenDataset(token_file, split="train", seq_len=16)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    name = next(iter(options))
    with pytest.raises(UsageError, match=f"{name} is for data that is yet to be opened") as refused:
        Trainer(model, data=data, **options)
    assert f"(give {advice}" in refused.value.next_step


def test_values_of_another_kind_are_refused(token_file, tmp_path):
    data = TokenDataset(token_file, split="train", seq_len=16)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    with pytest.raises(UsageError, match="eval_data is of type list, expected a dict"):
        Trainer(model, data=data, eval_data=[data])
    with pytest.raises(UsageError, match="tokenizer is of type int"):
        Trainer(model, data=data, tokenizer=3)
    Tokenizer.from_characters("abc").save(tmp_path)
    assert Trainer(model, data=data, tokenizer=tmp_path).tokenizer.kind == "char"


def test_an_optimizer_of_another_model_is_refused(token_file, tmp_path):
    """Its steps would leave the model as it is."""
    data = TokenDataset(token_file, split="train", seq_len=16)
    model, other = (GPT(GPTConfig(VOCAB, 16, 1, 32, 2)) for _ in range(2))
    options = {"data": data, "checkpoints_dir": tmp_path, "max_iters": 1, "batch_size": 2}
    wrong = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="has no parameter of this model"):
        Trainer(model, optimizer=wrong, **options).fit()
    own = torch.optim.SGD([model.embedding.weight], lr=0.1)  # the rest is frozen
    assert Trainer(model, optimizer=own, **options).fit().steps == 1


def test_the_order_is_of_datasets_alone(token_file):
    data = TokenDataset(token_file, split="train", seq_len=16)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    assert Trainer(model, data=data, order="random").settings.data.order == "random"
    assert Trainer(model, data=data, check_data=False, val_fraction=0.1).val_data is None
    with pytest.raises(UsageError, match="order is for data that is yet to be opened"):
        Trainer(model, data=BatchLoader(data, batch_size=3), order="random")


def test_options_a_given_model_has_are_taken(token_file):
    data = TokenDataset(token_file, split="train", seq_len=16)
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2, dropout=0.25))
    same: Any = {"dropout": 0.25, "width": 32, "layout": "qwen3", "first_embedding": "random"}
    assert Trainer(model, data=data, **same, target_params=None).settings.model.dropout == 0.25
    preset: Any = {"preset": "small-data"}  # its shape is for models that are made of it
    assert Trainer(model, data=data, **preset).settings.learning.beta2 == 0.99


def test_another_backend_than_the_networks_is_refused(token_file):
    data = TokenDataset(token_file, split="train", seq_len=16)
    config = GPTConfig(VOCAB, 16, 1, 32, 2)
    theirs: Any = SimpleNamespace(config=config, backend="jax")
    for model, other in ((GPT(config), "jax"), (theirs, "torch")):
        options: Any = {"backend": other}
        with pytest.raises(UsageError, match=f"backend is '{other}', and the network that was"):
            Trainer(model, data=data, **options)


@pytest.mark.parametrize(("options", "goes_on"), [
    ({}, False), ({"resume": True}, True), ({"resume": False}, False), ({"settings": 1}, True),
])  # fmt: skip
def test_whose_weights_are_meant(token_file, options, goes_on):
    if "settings" in options:
        options = {"settings": train_settings(seq_len=16)}
    data = TokenDataset(token_file, split="train", seq_len=16)
    trainer = Trainer(GPT(GPTConfig(VOCAB, 16, 1, 32, 2)), data=data, **options)
    assert trainer.goes_on is goes_on
    assert not trainer._has_fitted and not trainer._is_divided and trainer.program is None


@pytest.mark.parametrize("is_first", [False, True])
def test_only_the_first_process_says_something(monkeypatch, capsys, is_first):
    monkeypatch.setattr(module.ranks, "is_first", lambda: is_first)
    module._to_stderr("said")
    assert capsys.readouterr().err == "said\n" * is_first


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["new", "named", "again", "resumed"])
def test_a_run_is_begun_or_gone_on_with(
    make_trainer, monkeypatch, calls, is_first, overwrite, kind
):
    """With the tokenizer checked, the settings of before, and weights that are the run's own."""
    trainer = make_trainer(overwrite=overwrite, **({"resume": True} if kind != "new" else {}))
    trainer.goes_on = kind == "resumed" or kind == "named"
    trainer.tokenizer = Tokenizer.from_characters("ab")
    is_there = kind in ("again", "resumed")
    newest = "newest" if is_there else None
    root = trainer.run.root
    root.mkdir(parents=True)
    trainer.tokenizer.save(root)
    trainer.run = SimpleNamespace(
        root=root, clear=calls.note("clear"), find_whole=calls.note("find", newest),
        load_numbers=lambda: "numbers",
    )  # fmt: skip
    before = trainer.settings
    for name, result in {
        "require_same_settings": None, "require_same_data": None, "require_own_run": None,
        "require_same_checkpoint": None, "require_same_model": None, "optimizer_of": "muon",
        "continued_settings": "continued", "require_own_tokenizer": None,
        "weights_fingerprint": "print",
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, calls.note(name, result))
    group = make_group(calls, is_first=is_first)
    found = trainer._claim(group)
    data = {"data": trainer.data, "val": trainer.val_data}
    say = trainer._tell
    expected = [("require_same_settings", group, before), ("require_same_data", group, data)]
    if is_first:
        expected += [("require_own_run", root), *[("clear",)] * overwrite]
        expected += [("find", say, {"set_aside": True})]
    expected += [("wait",), ("find", say), ("require_same_checkpoint", group, root, newest)]
    if kind == "new":
        assert calls == [*expected, ("weights_fingerprint", trainer.model)]
        assert found == {"weights": "print"}
        return
    assert found == {}
    if kind == "named":
        assert calls == expected
        return
    expected += [("require_same_model", trainer.run, trainer.model)] * (kind == "again")
    expected += [("optimizer_of", "numbers")]
    expected += [("continued_settings", root, before, {"optimizer": "muon", "note": say})]
    assert calls[:-1] == expected
    name, own, other, folder = calls[-1]
    assert (name, own, folder) == ("require_own_tokenizer", trainer.tokenizer, root)
    assert other.fingerprint == own.fingerprint
    assert trainer.settings == "continued"


def test_a_run_that_may_not_go_on_is_refused_and_a_given_optimizer_is_not_named(
    make_trainer, monkeypatch, calls
):
    trainer = make_trainer(resume=False)
    run = SimpleNamespace(
        root=trainer.run.root, find_whole=lambda *given, **options: "newest",
        load_numbers=calls.note("numbers"),
    )  # fmt: skip
    for name in ("settings", "data", "checkpoint", "model"):
        monkeypatch.setattr(module, f"require_same_{name}", lambda *given: None)
    monkeypatch.setattr(module, "continued_settings", calls.note("continued"))
    trainer.run = run
    with pytest.raises(UsageError, match="--no-resume forbids"):
        trainer._claim(make_group(calls))
    trainer = make_trainer()
    trainer.run, trainer._given_optimizer = run, "given"
    settings = trainer.settings
    trainer._claim(make_group(calls))
    options = {"optimizer": None, "note": trainer._tell}
    assert calls[-1] == ("continued", run.root, settings, options)
    assert "numbers" not in calls.names


@pytest.mark.parametrize(
    ("on_cpu", "rows", "fits", "taken"),
    [
        (True, None, 4, 4), (True, 1, 2, 2), (True, None, 9, 4), (True, None, 1, 1),
        (False, None, 1, 4), (False, 3, 1, 3), (False, 7, 1, 4), (True, None, None, 4),
    ],
)  # fmt: skip
def test_micro_batches_keep_the_budget(make_trainer, monkeypatch, calls, on_cpu, rows, fits, taken):
    trainer, told = make_trainer(batch_size=6), []
    trainer._note, trainer.program = told.append, "program"
    monkeypatch.setattr(module, "rows_in_budget", calls.note("fit", fits))
    state = RunState(micro_batch=4)
    trainer._take_rows(state, make_group(calls, on_cpu=on_cpu), 77, rows)
    assert state.micro_batch == taken
    options = {"data": trainer.data, "program": "program", "budget_bytes": 77,
               "has_own_optimizer": False}  # fmt: skip
    asked = ("fit", trainer.backend, trainer.model, trainer.settings, options)
    assert calls == [asked] * on_cpu + [("least", taken)]
    noun = "1 row" if taken == 1 else f"{taken} rows"
    said = [f"micro-batches of {noun} keep the budget; a step still sees 6 rows"]
    assert told == (said if taken < 4 else [])
    trainer._given_optimizer = "given"
    trainer._take_rows(state, make_group(calls), 77, rows)
    assert calls[-2][-1] == {**options, "has_own_optimizer": True}


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("tokenizer", [None, "tokenizer"])
@pytest.mark.parametrize("over", [None, "this run is finished"])
def test_a_folder_is_begun_or_everything_is_taken_back(
    make_trainer, monkeypatch, calls, is_first, exists, tokenizer, over
):
    trainer, told = make_trainer(), []
    trainer._note, trainer.tokenizer = told.append, tokenizer
    trainer.run = SimpleNamespace(
        root="root", exists=lambda: exists, create=calls.note("create"),
        load_numbers=lambda: {"forgetting": "losses"}, newest_dir=lambda: "newest",
        save_tokenizer=calls.note("tokenizer"), forget_metrics_after=calls.note("forget"),
    )  # fmt: skip
    readable = contextlib.nullcontext()
    monkeypatch.setattr(module, "readable_numbers", calls.note("readable", readable))
    monkeypatch.setattr(module, "write_settings", calls.note("write"))
    monkeypatch.setattr(module, "change_settings", calls.note("change"))
    steps = SimpleNamespace(
        group=make_group(calls, is_first=is_first), load_numbers=calls.note("numbers"),
        engine=SimpleNamespace(load_state=calls.note("state", "folder")),
        state=SimpleNamespace(step=6, evaluated_step=4),
    )  # fmt: skip
    watch = SimpleNamespace(load_state_dict=calls.note("watch"))
    loop = SimpleNamespace(steps=steps, watch=watch, why_over=lambda: over)
    trainer._resume(loop, {"weights": "print"})
    expected = [("create",)] * is_first + [("wait",)]
    settings, config = trainer.settings, trainer.model.config
    if exists:
        numbers = {"forgetting": "losses"}
        expected += [
            ("readable", "newest"), ("state", trainer.run, numbers), ("watch", "losses"),
            ("numbers", numbers),
        ]  # fmt: skip
        if is_first:
            change = {"step": 6, "note": trainer._tell}
            # What no step follows is not noted down as what the run was made with.
            expected += [] if over else [("change", "root", settings, config, change)]
            expected += [("forget", 6, 4)]
        assert told == ["going on from step 6 (folder)"]
    elif is_first:
        expected += [("write", "root", settings, {"identity": {"weights": "print"}})]
        expected += [("tokenizer", "tokenizer", config)] if tokenizer else []
    assert calls == expected


@pytest.mark.parametrize(
    ("options", "has_fitted", "goes_on", "there", "found"),
    [
        ({}, False, False, "newest", True),
        ({}, False, False, None, False),
        ({"overwrite": True}, False, False, "newest", False),
        ({"resume": False}, False, False, "newest", False),
        ({"overwrite": True}, True, False, "newest", True),
        ({}, False, True, "newest", True),
    ],
)
def test_which_run_is_evaluated(
    make_trainer, monkeypatch, calls, options, has_fitted, goes_on, there, found
):
    trainer = make_trainer(keep_checkpoints=5, **options)
    trainer._has_fitted, trainer.goes_on = has_fitted, goes_on
    run = SimpleNamespace(find_whole=calls.note("find", there))
    monkeypatch.setattr(module, "RunFolder", calls.note("open", run))
    monkeypatch.setattr(module, "require_same_model", calls.note("model"))
    monkeypatch.setattr(trainer, "_require_tokenizer", calls.note("tokenizer"))
    assert trainer._run_to_evaluate() is (run if found else None)
    looks = has_fitted or not options
    expected = [("open", trainer.run.root, {"keep": 5}), ("find", trainer._tell)] * looks
    if looks and there and not has_fitted:
        expected += [("model", run, trainer.model)] * (not goes_on) + [("tokenizer", run)]
    assert calls == expected


@pytest.mark.parametrize(
    ("size", "parallel", "divided"),
    [(1, "fsdp", False), (2, "ddp", False), (2, "fsdp", True)],
)
def test_an_engine_is_made_with_the_weights_of_the_run(
    make_trainer, monkeypatch, calls, size, parallel, divided
):
    trainer = make_trainer(batch_size=6, parallel=parallel)
    backend = SimpleNamespace(
        load_weights=calls.note("load"), make_engine=calls.note("engine", "made")
    )
    trainer.backend, trainer._given_optimizer = backend, "given"
    monkeypatch.setattr(module, "rows_of_process", lambda batch, group: 6 // group.world_size)
    group = make_group(calls, size=size)
    run = SimpleNamespace(load_weights=lambda load: load("folder"))
    assert trainer._make_engine(group, None) == "made" and trainer._is_divided is divided
    trainer._is_divided = False
    assert trainer._make_engine(group, run) == "made"
    state = RunState(micro_batch=6 // size)
    options = {"rows": 6 // size, "given": "given", "tokenizer": None, "note": trainer._tell}
    engine = ("engine", trainer.model, trainer.settings, state, group, options)
    assert calls == [engine, ("load", trainer.model, "folder"), engine]
    if divided:
        with pytest.raises(UsageError, match="fsdp has divided this model"):
            trainer._make_engine(group, None)


@pytest.mark.parametrize("on_cpu", [False, True])
def test_what_is_evaluated_without_training(make_trainer, monkeypatch, calls, on_cpu):
    trainer = make_trainer(check_data=on_cpu)
    group = make_group(calls, on_cpu=on_cpu)
    trainer.backend = SimpleNamespace(open_group=lambda device: contextlib.nullcontext(group))
    check = SimpleNamespace(
        start=calls.note("start"), finish=calls.note("finish"), require_whole=calls.note("whole")
    )
    for name, result in {
        "host_budget_bytes": 77, "rows_on_device": 3, "require_same_settings": None,
        "require_same_data": None, "require_same_checkpoint": None,
        "DataCheck": contextlib.nullcontext(check),
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, calls.note(name, result))
    run = SimpleNamespace(newest_dir=lambda: "newest")
    engine = SimpleNamespace(state="state")
    for name, result in {
        "_run_to_evaluate": run, "_make_engine": engine, "_take_rows": None,
        "_evaluator": SimpleNamespace(evaluate_all=lambda: "results"),
    }.items():  # fmt: skip
        monkeypatch.setattr(trainer, name, calls.note(name, result))
    assert trainer.evaluate() == "results"
    settings, held = trainer.settings, trainer._held_out()
    devices = {"on_cpu": on_cpu, "host_bytes": 77}
    name, checked, options = calls.pop(8)
    assert (name, list(checked)) == ("DataCheck", list(held.values()))
    assert options == {"wanted": on_cpu}
    assert calls == [
        ("host_budget_bytes", settings.machine, {"on_gpu": not on_cpu}),
        ("rows_on_device", trainer.model, settings, devices),
        ("require_same_settings", group, settings), ("require_same_data", group, held),
        ("_run_to_evaluate",), ("require_same_checkpoint", group, trainer.run.root, "newest"),
        ("_make_engine", group, run), ("_take_rows", "state", group, 77, 3), ("start",),
        ("_evaluator", engine, group), ("finish", module.FINISH_SECONDS), ("whole", group),
    ]  # fmt: skip


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_over", [False, True])
def test_a_run_is_prepared_trained_and_ended(make_trainer, monkeypatch, calls, is_first, is_over):
    trainer = make_trainer(debug=True)
    group = make_group(calls, is_first=is_first, on_cpu=False)
    trainer.backend = SimpleNamespace(
        open_group=lambda device: contextlib.nullcontext(group),
        device_memory=lambda group: "memory",
    )
    trainer.run = SimpleNamespace(
        locked=lambda wanted: calls.note("locked", contextlib.nullcontext())(wanted),
        complete=calls.note("complete"), metrics_path="metrics",
    )  # fmt: skip
    progress = SimpleNamespace(
        note=calls.note("note"), write_metrics=calls.note("metrics"), metrics_path=None,
        phase=calls.note("phase", contextlib.nullcontext("phase")),
    )  # fmt: skip
    steps = SimpleNamespace(
        state=SimpleNamespace(step=2), length=SimpleNamespace(steps=12),
        engine=SimpleNamespace(finish=calls.note("finish"), notes=["note of the engine"]),
        counters=SimpleNamespace(bad=torch.tensor(3)), group=group,
    )  # fmt: skip
    loop = SimpleNamespace(is_over=lambda: is_over, train=calls.note("train"))
    for name, result in {
        "host_budget_bytes": 77, "rows_on_device": 3, "Diagnostics": "where",
        "Progress": contextlib.nullcontext(progress), "describe_environment": "environment",
        "TrainResult": SimpleNamespace(of=calls.note("result", "result")),
    }.items():  # fmt: skip
        stand_in = result if name == "TrainResult" else calls.note(name, result)
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(module, "describe_coverage", lambda *given: ["coverage"])
    for name, result in {"_claim": "identity", "prepare": steps, "_take_rows": None,
                         "_resume": None, "_open_loop": loop}.items():  # fmt: skip
        monkeypatch.setattr(trainer, name, calls.note(name, result))
    assert trainer.fit() == "result" and trainer._has_fitted
    settings = trainer.settings
    quiet = {} if is_first else {"stream": None}
    stack = next(call for call in calls if call[0] == "_open_loop")[4]
    head = [
        ("host_budget_bytes", settings.machine, {"on_gpu": True}), ("locked", is_first),
        ("_claim", group), ("Diagnostics", {"watch": True}),
        ("rows_on_device", trainer.model, settings, {"on_cpu": False, "host_bytes": 77}),
        ("prepare", group, "where"),
        ("Progress", "train", {"budget_bytes": 77, "device_memory": "memory", **quiet}),
        ("_open_loop", steps, "where", progress, stack), ("_take_rows", steps.state, group, 77, 3),
        ("_resume", loop, "identity"),
    ]  # fmt: skip
    described = {"on_cpu": False, "world_size": 1}
    training = [
        ("note", "coverage"), ("note", "note of the engine"),
        ("describe_environment", trainer.model.config, settings, described),
        ("metrics", "environment"),
        ("phase", "training", {"total": 12, "unit": "steps", "start": 2}), ("train", "phase"),
    ]  # fmt: skip
    over = [("complete", trainer._tell)] * is_first
    end = [("finish",), ("result", steps.state, {"skipped_steps": 3})]
    assert calls == [*head, *(over if is_over else training), *end]
    assert progress.metrics_path == ("metrics" if is_first else None)


@pytest.mark.parametrize(
    ("epochs", "steps", "windows", "follows"),
    [
        (2.0, None, 90, True),
        (2.0, 40, 90, False),
        (None, None, 90, False),
        (2.0, None, None, False),
    ],
)
def test_the_length_of_a_stream_follows_its_share(
    make_trainer, monkeypatch, epochs, steps, windows, follows
):
    trainer = make_trainer(max_iters=None, epochs=epochs, batch_size=4, grad_accum_steps=2)
    stream = object.__new__(StreamingDataLoader)
    monkeypatch.setattr(StreamingDataLoader, "estimated_windows", windows)
    trainer.data = stream
    calls = Calls()
    monkeypatch.setattr(module, "total_steps", calls.note("total", steps))
    monkeypatch.setattr(module, "count_parameters", lambda config: 1234)
    found = trainer._length()
    settings = trainer.settings
    options = {"rows_per_step": 8, "tokens_per_step": 128}
    assert calls == [("total", settings.length, 1234, stream, options)]
    assert found.steps == steps and found.follows_share is follows


def test_settings_and_keywords_are_not_given_together(token_file):
    """The keywords were ignored: a run had the steps of its settings."""
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    data = TokenDataset(token_file, split="train", seq_len=16)
    with pytest.raises(UsageError, match="settings or keywords, not both: max_iters"):
        Trainer(model, data=data, settings=train_settings(seq_len=16), max_iters=7)


@pytest.mark.parametrize("name", ["on_step", "on_evaluation", "on_checkpoint"])
def test_callbacks_can_be_called(token_file, name):
    model = GPT(GPTConfig(VOCAB, 16, 1, 32, 2))
    data = TokenDataset(token_file, split="train", seq_len=16)
    with pytest.raises(UsageError, match=f"{name} is 5, expected a function of an event"):
        Trainer(model, data=data, **{name: 5})
