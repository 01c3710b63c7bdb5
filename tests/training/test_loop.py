"""The loop: learning, exact resume, accumulation, guards, precision, evaluation, signals."""

import contextlib
import json
import math
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.flatsettings import setting_values
from lowtide.loader.batches import BatchLoader
from lowtide.loader.datachecks import FINISH_SECONDS
from lowtide.loader.windows import TokenDataset
from lowtide.model.checksums import record_files
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.sizing import flops_per_token
from lowtide.progress import Phase
from lowtide.training import loop as loop_module
from lowtide.training import stepping
from lowtide.training import trainer as trainers
from lowtide.training.callbacks import Callbacks, CheckpointEvent, StepEvent
from lowtide.training.distributed import ProcessGroup, open_process_group
from lowtide.training.loop import Loop
from lowtide.training.saving import CheckpointSaver
from lowtide.training.settings import train_settings
from lowtide.training.state import RunState
from lowtide.training.steps import Steps
from lowtide.training.trainer import Trainer

from .conftest import VOCAB, kept_steps, write_tokens


def rows(trainer, event="step"):
    lines = trainer.run.metrics_path.read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.get("event") == event]


def losses(trainer):
    return [(row["step"], row["loss"]) for row in rows(trainer)]


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def break_after(trainer, calls):
    """Let the trainer fail in the forward pass number `calls`, as a kill would end it."""
    forward, seen = trainer.model.forward, []

    def breaking(*arguments):
        if torch.is_grad_enabled():
            seen.append(1)
            if len(seen) > calls:
                raise ConnectionAbortedError("killed")
        return forward(*arguments)

    trainer.model.forward = breaking


def test_progress_says_what_is_done_between_steps(make_trainer, monkeypatch):
    told = []
    doing = property(lambda _: "", lambda _, text: told.append(text))
    monkeypatch.setattr(Phase, "doing", doing, raising=False)
    asked = []
    monkeypatch.setattr(Steps, "agree_on_time", lambda self: asked.append(self.state.step))
    make_trainer(max_iters=2, eval_interval=2, eval_iters=1, log_interval=1).fit()
    assert {1, 2} <= set(asked)  # before each row of the log
    evaluations = [text for text in told if text.startswith("evaluating val: ")]
    assert evaluations[0].startswith("evaluating val: 0 of ")
    words = evaluations[-1].split()
    assert words[2] == words[4] and words[5] == "windows"
    assert told[-2:] == ["saving", ""]


def test_the_loss_falls(make_trainer):
    result = make_trainer(max_iters=60, eval_interval=20).fit()
    assert result.stopped == "finished"
    assert result.steps == 60
    assert result.best_val_loss < 2.5 < math.log(VOCAB)
    assert result.skipped_steps == 0


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "muon", "config": {"dropout": 0.2}},
        {"optimizer": "adamw", "gradient_accumulation_steps": 2},
        {"optimizer": "adamw", "use_8bit_optimizer": True, "config": {"width": 64}},
        {"use_mixed_precision": True, "precision": "fp16"},
        {"config": {"layout": "gpt2"}, "log_interval": 3},
        {"config": {"layout": "tide"}, "order": "shifted", "batch_size": 64},
        {"eval_interval": 4},
        {"save_in_background": True},
    ],
    ids=[
        "muon-dropout",
        "adamw-accumulation",
        "8bit",
        "fp16",
        "gpt2",
        "tide-shifted",
        "eval-after-save",
        "background",
    ],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(make_trainer, options):
    if options.get("use_8bit_optimizer"):
        pytest.importorskip("bitsandbytes")
    whole = make_trainer("whole", **options)
    whole.fit()
    killed = make_trainer("killed", **options)
    break_after(killed, 6 * options.get("gradient_accumulation_steps", 1))
    with pytest.raises(ConnectionAbortedError):
        killed.fit()
    again = make_trainer("killed", **options)
    assert again.fit().steps == 12
    assert losses(again) == losses(whole)
    evaluations = [row["val_loss"] for row in rows(again, "eval")]
    assert evaluations == [row["val_loss"] for row in rows(whole, "eval")]
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(again)[name]), name


def test_a_finished_run_says_so_and_changes_nothing(make_trainer):
    make_trainer().fit()
    notes = []
    again = make_trainer()
    again._notify = notes.append
    before = again.run.step_dirs()[-1].stat().st_mtime_ns
    assert again.fit().steps == 12
    assert any("this run is finished: 12 steps" in note for note in notes)
    assert again.run.step_dirs()[-1].stat().st_mtime_ns == before


def test_a_longer_run_goes_on(make_trainer):
    make_trainer().fit()
    assert make_trainer(max_iters=14).fit().steps == 14


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_accumulated_gradients_equal_the_large_batch(make_trainer, optimizer):
    large = make_trainer("large", batch_size=8, optimizer=optimizer)
    large.fit()
    small = make_trainer("small", batch_size=2, gradient_accumulation_steps=4, optimizer=optimizer)
    small.fit()
    for (_, one), (_, other) in zip(losses(large), losses(small), strict=True):
        assert one == pytest.approx(other, abs=2e-5)


def test_bad_steps_change_nothing_and_are_counted(make_trainer):
    trainer = make_trainer(max_iters=4, optimizer="muon", eval_interval=100)
    forward, calls, seen = trainer.model.forward, [], []

    def sometimes_nan(*arguments):
        loss = forward(*arguments)
        if torch.is_grad_enabled():
            calls.append(1)
            seen.append(weights(trainer))
            return loss * float("nan") if len(calls) == 2 else loss
        return loss

    trainer.model.forward = sometimes_nan
    result = trainer.fit()
    assert result.skipped_steps == 1
    assert [row["skipped_steps"] for row in rows(trainer)] == [0, 1, 1, 1]
    for name in seen[1]:
        assert torch.equal(seen[1][name], seen[2][name]), name
    assert not torch.equal(seen[2]["embedding.weight"], seen[3]["embedding.weight"])
    assert math.isfinite(result.loss)


def test_many_bad_steps_in_a_row_stop_with_advice(make_trainer):
    trainer = make_trainer(max_bad_steps=3)
    forward = trainer.model.forward
    trainer.model.forward = lambda *arguments: forward(*arguments) * float("nan")
    with pytest.raises(LowtideError, match=r"3 steps in a row(.|\n)*lower --learning-rate"):
        trainer.fit()


@pytest.mark.parametrize("most", [1, 3, 5])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("log_interval", [1, 4, 100])
def test_a_run_ends_at_the_last_of_so_many_bad_steps(most, first, log_interval):
    """Not when the next row is written; nor were they missed where a good step came before it."""
    world = World(max_bad_steps=most, log_interval=log_interval, num_steps=30)
    in_a_row = 0
    world.counters.bad_in_a_row = SimpleNamespace(item=lambda: in_a_row)
    take = world.steps.train_step

    def train_step():
        nonlocal in_a_row
        loss = take()
        in_a_row = in_a_row + 1 if first <= world.state.step < first + most else 0
        return loss

    world.steps.train_step = train_step
    with pytest.raises(LowtideError, match=f"{most} steps in a row"):
        world.train()
    assert world.state.step == first + most - 1


def test_devices_are_not_waited_for_while_no_step_is_bad():
    world = World(max_bad_steps=20, log_interval=10, num_steps=40)
    reads = []
    world.counters.bad_in_a_row = SimpleNamespace(item=lambda: reads.append(world.state.step) or 0)
    world.train()
    assert reads == [1, 10, 20, 30, 40]


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_step(make_trainer):
    plain = make_trainer("plain", batch_size=8)
    plain.fit()
    notes = []
    short = make_trainer("short", batch_size=8)
    short._notify = notes.append
    forward = short.model.forward

    def limited(inputs, targets=None):
        if torch.is_grad_enabled() and inputs.shape[0] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(inputs, targets)

    short.model.forward = limited
    ready = kept_steps(short)
    short.fit()
    assert ready[0].state.micro_batch == 2
    assert sum("out of memory" in note for note in notes) == 2
    assert "4 per step; a step still sees 8 rows" in "\n".join(notes)
    for (_, one), (_, other) in zip(losses(plain), losses(short), strict=True):
        assert one == pytest.approx(other, abs=2e-5)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_mixed_precision_is_used_and_learns(make_trainer, precision, dtype):
    trainer = make_trainer(use_mixed_precision=True, precision=precision, max_iters=40)
    seen = set()
    layer = trainer.model.blocks[0].mlp.down
    layer.register_forward_hook(lambda *call: seen.add(call[2].dtype))
    ready = kept_steps(trainer)
    result = trainer.fit()
    assert seen == {dtype}
    assert result.loss < 3.2
    assert ready[0].engine.scale.value.item() == (65536.0 if precision == "fp16" else 1.0)


def test_both_losses_are_logged_and_forgetting_is_announced(make_trainer, tmp_path):
    general = write_tokens(tmp_path / "general.npy", seed=5, step=3)
    notes = []
    trainer = make_trainer(
        max_iters=40, eval_interval=10, learning_rate=1e-2, eval_files={"general": general}
    )
    trainer._notify = notes.append
    trainer.fit()
    text = "\n".join(notes)
    assert "step 10: val " in text
    assert " | eval_general " in text
    assert "warning: the model is forgetting: eval_general" in text
    assert "--learning-rate (0.0025 instead of 0.01)" in text
    last = rows(trainer, "eval")[-1]
    assert last["eval_general_loss"] > rows(trainer, "eval")[0]["eval_general_loss"]
    assert last["forgetting"] is True


def test_learning_by_heart_is_announced_once(make_trainer, tmp_path):
    notes = []
    trainer = make_trainer(max_iters=60, eval_interval=10, batch_size=32, learning_rate=1e-2)
    other = write_tokens(tmp_path / "other.npy", seed=5, step=3)
    trainer.val_data = TokenDataset(other, split="all", seq_len=16)
    trainer._notify = notes.append
    trainer.fit()
    said = [number for number, note in enumerate(notes) if "learned by heart" in note]
    assert len(said) == 1
    seen = [number for number, note in enumerate(notes) if note.startswith("step 10: val")]
    assert said[0] > seen[0]  # the first epoch has 11 steps


def test_forgetting_can_stop_the_run(make_trainer, tmp_path):
    general = write_tokens(tmp_path / "general.npy", seed=5, step=3)
    trainer = make_trainer(
        max_iters=200,
        eval_interval=10,
        learning_rate=1e-2,
        stop_on_forgetting=True,
        eval_files={"general": general},
    )
    result = trainer.fit()
    assert result.stopped == "forgetting"
    assert result.steps < 100
    notes = []
    trainer._notify = notes.append
    assert trainer.fit().steps == result.steps
    assert "--no-stop-on-forgetting goes on with it" in notes[-1]


def test_a_device_without_8_bit_floats_says_so_and_trains(make_trainer):
    options = {"use_mixed_precision": True, "max_iters": 2}
    notes = []
    trainer = make_trainer(float8_head=True, **options)
    trainer._notify = notes.append
    result = trainer.fit()
    assert any("cpu has no products of 8-bit floats: bfloat16 instead" in note for note in notes)
    assert result == make_trainer("plain", **options).fit()


def test_training_with_an_output_matrix_of_8_bits_learns(make_trainer, monkeypatch):
    monkeypatch.setattr(stepping, "has_float8", lambda device: True)  # computed in float32 there
    options = {"use_mixed_precision": True, "batch_size": 16, "config": {"vocab_size": 96}}
    near = make_trainer(float8_head=True, **options).fit()
    plain = make_trainer("plain", **options).fit()
    assert near.val_loss != plain.val_loss
    assert near.val_loss == pytest.approx(plain.val_loss, abs=0.02)


def test_epochs_and_hours_end_a_run(make_trainer):
    trainer = make_trainer(max_iters=None, epochs=0.1)
    assert trainer.fit().steps == math.ceil(0.1 * len(trainer.data) / 4)
    timed = make_trainer("timed", max_iters=None, max_hours=1e-9)
    assert timed.fit().stopped == "time"


def test_a_polite_signal_saves_and_the_run_goes_on(make_trainer):
    whole = make_trainer("whole")
    whole.fit()
    asked = make_trainer("asked")
    forward, calls = asked.model.forward, []

    def signalling(*arguments):
        if torch.is_grad_enabled():
            calls.append(1)
            if len(calls) == 7:
                os.kill(os.getpid(), signal.SIGTERM)
        return forward(*arguments)

    asked.model.forward = signalling
    with pytest.raises(KeyboardInterrupt):
        asked.fit()
    assert asked.run.step_dirs()[-1].name == "step_00000007"
    again = make_trainer("asked")
    again.fit()
    assert losses(again) == losses(whole)


@pytest.mark.parametrize(("evaluation", "step"), [(0, 0), (1, 6), (2, 12)])
def test_a_signal_during_an_evaluation_does_not_wait_for_its_end(make_trainer, evaluation, step):
    whole = make_trainer("whole", eval_iters=8)
    expected = whole.fit()
    asked = make_trainer("asked", eval_iters=8)
    forward, calls = asked.model.forward, []
    batches = -(-len(asked.val_data) // 4)

    def signalling(*arguments):
        if not torch.is_grad_enabled() and len(arguments) == 2:
            calls.append(1)
            if len(calls) == evaluation * batches + 2:
                os.kill(os.getpid(), signal.SIGTERM)
        return forward(*arguments)

    asked.model.forward = signalling
    with pytest.raises(KeyboardInterrupt):
        asked.fit()
    assert len(calls) == evaluation * batches + 2  # the other batches were left out
    assert asked.model.training
    assert asked.run.step_dirs()[-1].name == f"step_{step:08d}"
    again = make_trainer("asked", eval_iters=8)
    assert again.fit() == expected
    assert losses(again) == losses(whole)
    evaluations = [[(r["step"], r["val_loss"]) for r in rows(t, "eval")] for t in (again, whole)]
    assert evaluations[0] == evaluations[1]


def test_the_last_checkpoints_and_the_best_are_kept(make_trainer):
    trainer = make_trainer(max_iters=20, save_interval=2, keep_checkpoints=3)
    result = trainer.fit()
    names = [folder.name for folder in trainer.run.step_dirs()]
    assert names == ["step_00000016", "step_00000018", "step_00000020"]
    best = json.loads((trainer.run.best_dir / "best.json").read_text())
    assert best["val_loss"] == result.best_val_loss
    newest = load_file(trainer.run.root / "model.safetensors")
    saved = load_file(trainer.run.step_dirs()[-1] / "model.safetensors")
    assert all(torch.equal(newest[name], saved[name]) for name in saved)


def test_changed_data_is_refused_on_resume(make_trainer, token_file):
    make_trainer(max_iters=4).fit()
    write_tokens(token_file, seed=9)
    with pytest.raises(LowtideError, match="changed since"):
        make_trainer(max_iters=8).fit()


def test_activation_checkpointing_gives_the_same_run(make_trainer):
    plain, saving = make_trainer("plain"), make_trainer("saving", activation_checkpointing=True)
    plain.fit()
    saving.fit()
    assert losses(plain) == losses(saving)


def test_settings_that_make_no_sense_are_refused(make_trainer):
    with pytest.raises(UsageError, match="batch_size is 0, expected at least 1"):
        make_trainer(batch_size=0)
    with pytest.raises(UsageError, match="did you mean learning_rate"):
        make_trainer(learning_rat=1)


def test_loaders_can_be_given_instead_of_datasets(make_trainer, token_file, tmp_path):
    plain = make_trainer("plain", batch_size=6, seed=5)
    plain.fit()
    data = TokenDataset(token_file, split="train", seq_len=16)
    general = TokenDataset(token_file, split="val", seq_len=16)
    torch.manual_seed(11)
    trainer = Trainer(
        GPT(plain.model.config),
        data=BatchLoader(data, batch_size=6, seed=5),
        val_data=general,
        eval_data={"general": BatchLoader(general, batch_size=6)},
        checkpoints_dir=tmp_path / "checkpoints",
        model_name="loaders",
        **{
            name: setting_values(plain.settings)[name]
            for name in (
                "max_iters",
                "learning_rate",
                "eval_interval",
                "eval_iters",
                "log_interval",
            )
        },
    )
    trainer.fit()
    assert losses(trainer) == losses(plain)
    last = rows(trainer, "eval")[-1]
    assert last["eval_general_loss"] == last["val_loss"]


def test_a_loss_that_is_no_number_is_never_the_best(make_trainer):
    trainer = make_trainer(max_iters=6, eval_interval=3)
    best = trainer.fit().best_val_loss
    trainer = make_trainer(max_iters=8, eval_interval=2)
    path = trainer.run.step_dirs()[-1] / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"].fill_(float("nan"))
    save_file(tensors, path, metadata={"format": "pt"})
    record_files(path.parent, [path.name])
    result = trainer.fit()
    assert result.best_val_loss == best and result.skipped_steps == 2


def test_out_of_memory_before_fit_is_told(make_trainer, capsys):
    """As in the trial of `lowtide plan`, which takes steps without a run."""
    trainer = make_trainer(batch_size=4)
    forward = trainer.model.forward

    def too_large(ids, targets=None):
        if len(ids) > 2:
            raise MemoryError
        return forward(ids, targets)

    trainer.model.forward = too_large
    with open_process_group("cpu") as group:
        ready = trainer.prepare(group)
        ready.train_step()
        ready.feed.close()
    assert "out of memory: micro-batches of 2 rows now" in capsys.readouterr().err


def test_all_processes_wait_for_what_the_first_one_writes(make_trainer, monkeypatch):
    order = []
    wait = ProcessGroup.wait

    def watched(self):
        order.append("wait")
        wait(self)

    trainer = make_trainer(max_iters=2, save_interval=1, eval_interval=10)
    save, create = CheckpointSaver.save, trainer.run.create
    monkeypatch.setattr(ProcessGroup, "wait", watched)
    monkeypatch.setattr(
        CheckpointSaver,
        "save",
        lambda self, *given, wait: order.append(("save", wait)) or save(self, *given, wait=wait),
    )
    monkeypatch.setattr(trainer.run, "create", lambda: order.append("create") or create())
    trainer.fit()
    # The last checkpoint is on the disk before anybody goes on.
    assert order == ["wait", "create", "wait", ("save", False), "wait", ("save", True), "wait"]


def test_what_a_run_comes_to(make_trainer):
    trainer = make_trainer(max_iters=3, eval_interval=2)
    result = trainer.fit()
    found = rows(trainer, "eval")
    assert [row["step"] for row in found] == [0, 2, 3]
    assert [row["step"] for row in rows(trainer)] == [1, 2, 3]
    assert (result.steps, result.skipped_steps, result.stopped) == (3, 0, "finished")
    assert result.loss == pytest.approx(rows(trainer)[-1]["loss"])
    assert result.val_loss == pytest.approx(found[-1]["val_loss"])
    assert result.best_val_loss == pytest.approx(min(row["val_loss"] for row in found))
    best = json.loads((trainer.run.best_dir / "best.json").read_text())
    assert best["val_loss"] == pytest.approx(result.best_val_loss)
    rates = [row["learning_rate"] for row in rows(trainer)]
    assert all(0 < rate <= 3e-3 for rate in rates)


def test_a_row_has_the_learning_rate_of_its_step(make_trainer):
    """That of the step to come was written, which is the final one in the last row."""
    told = []
    trainer = make_trainer(
        max_iters=6, warmup=2, learning_rate=0.01, log_interval=2, final_learning_rate=0.1,
        on_step=lambda event: told.append(event.learning_rate),
    )  # fmt: skip
    trainer.fit()
    halves = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    expected = [0.005, 0.01, *(0.01 * factor for factor in halves)]
    assert told == pytest.approx(expected)
    assert [row["learning_rate"] for row in rows(trainer)] == pytest.approx(expected[1::2])


def test_options_come_from_what_is_given(make_trainer, token_file, tmp_path):
    model = make_trainer("other").model
    data = TokenDataset(token_file, split="train", seq_len=16)
    options = {"checkpoints_dir": tmp_path, "device": "cpu"}
    trainer = Trainer(model, data=data, **options)
    assert trainer.settings.model.seq_len == 16 and trainer.goes_on is False
    assert trainer.run.keep == 2
    assert Trainer(model, data=data, resume=True, **options).goes_on is True
    assert Trainer(model, data=data, settings=trainer.settings).goes_on is True
    sgd = torch.optim.SGD(model.parameters(), lr=0.25)
    own = Trainer(model, data=data, optimizer=sgd, **options)
    assert own.settings.learning.learning_rate == 0.25 and own.settings.learning.optimizer == "auto"
    with BatchLoader(data, batch_size=6) as loader:
        by_loader = Trainer(model, data=loader, eval_data={"a": loader}, **options)
        assert by_loader.settings.batch.batch_size == 6
        assert by_loader.eval_data == {"a": data}


def test_rows_that_cannot_be_shared_are_refused(make_trainer):
    trainer = make_trainer(batch_size=3)
    with pytest.raises(UsageError, match="3 rows a step cannot be shared by 2 processes"):
        trainer.prepare(ProcessGroup(0, 2, torch.device("cpu")))


def test_notes_are_written_by_the_first_process_only(monkeypatch, capsys):
    trainers._to_stderr("one")
    monkeypatch.setenv("RANK", "1")
    trainers._to_stderr("two")
    assert capsys.readouterr().err == "one\n"


class World:
    """Everything a loop uses, as stand-ins that note what they are asked for."""

    def __init__(self, *, num_steps=5, is_first=True, world_size=1, results=(), **options):
        self.calls = []
        note = self.note
        intervals = {"log_interval": 2, "save_interval": 3, "eval_interval": 4}
        self.settings = train_settings(seq_len=16, batch_size=2, **{**intervals, **options})
        self.state = RunState(micro_batch=2)
        self.losses = {name: SimpleNamespace(loss=loss) for name, loss in dict(results).items()}
        self.group = SimpleNamespace(
            is_first=is_first, world_size=world_size, any=bool, wait=note("wait")
        )
        self.counters = SimpleNamespace(
            mean_loss=lambda group: 1.5, next_row=note("next row"), bad_in_a_row=torch.tensor(0)
        )
        engine = SimpleNamespace(
            learning_rate=0.5, weights=lambda: "weights", moments=lambda: "moments",
            device_peak_bytes=lambda: None,
        )  # fmt: skip
        self.steps = SimpleNamespace(
            state=self.state, group=self.group, counters=self.counters, engine=engine,
            start_clock=note("start clock"), train_step=self.train_step, last_rate=0.125,
            are_over=lambda: self.state.step >= num_steps, epoch=lambda: 0.0,
            length=SimpleNamespace(time_is_up=lambda seconds: False),
            agree_on_time=note("agree on time"),
            numbers=lambda: {"numbers": 1},
        )  # fmt: skip
        self.check = SimpleNamespace(
            start=note("start check"), finish=note("finish check"), problem=None,
            require_whole=note("whole"),
        )  # fmt: skip
        self.signals = SimpleNamespace(asked=False)
        self.phase = SimpleNamespace(doing="", update=note("update"))
        self.watch = SimpleNamespace(
            check=note("watch"), times_in_a_row=0, first={}, state_dict=lambda: "remembered"
        )
        self.loop = Loop(
            settings=self.settings, config=CONFIG, steps=self.steps, watch=self.watch,
            evaluator=SimpleNamespace(
                evaluate_all=self.evaluate, sample=lambda: "text", identities=lambda: {"val": "v"}
            ),
            run=SimpleNamespace(newest_dir=lambda: "newest", root="r", save_tokenizer=note("tok")),
            tokenizer=None,
            saver=SimpleNamespace(save=note("save"), save_best=note("best")),
            sinks=SimpleNamespace(write=note("row")),
            signals=self.signals, where=SimpleNamespace(stage=note("stage")), note=note("say"),
            callbacks=Callbacks(None, None, None), check=self.check,
        )  # fmt: skip
        self.loop.pace = SimpleNamespace(
            aside=lambda name: contextlib.nullcontext(),
            row=lambda state, counters, learning_rate: {
                "tokens_per_second": 9, "skipped_steps": 0, "rate": learning_rate
            },
        )  # fmt: skip

    def note(self, name):
        return lambda *given, **options: self.calls.append(
            (name, *given, *([options] if options else []))
        )

    def train_step(self):
        self.state.step += 1
        self.calls.append(("step", self.state.step))
        return f"loss {self.state.step}"

    def evaluate(self, tell):
        tell("evaluating")
        self.calls.append(("evaluate", self.state.step, self.phase.doing))
        return self.losses

    def train(self):
        """Names and steps of what training did."""
        pace = self.loop.pace

        def make(tokens, flops, *, step):
            assert (tokens, flops) == (32, flops_per_token(CONFIG, 16)) and step == self.state.step
            return pace

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_module, "Pace", make)
            self.loop.train(self.phase)
        return self.done()

    def done(self):
        kept = {"step", "evaluate", "save", "best", "next row", "start check", "start clock"}
        kept |= {"finish check", "whole"}
        return [" ".join(map(str, call[:2])) if call[0] in ("step", "evaluate") else call[0]
                for call in self.calls if call[0] in kept]  # fmt: skip


CONFIG = GPTConfig(32, 16, 1, 16, 1)


def test_what_a_loop_does_when():
    world = World()
    saved = []
    world.loop.saver.save = lambda *given, **options: saved.append(
        (given[0], given[1], options, world.phase.doing)
    )
    assert world.train() == [
        "start clock", "start check", "evaluate 0", "step 1", "step 2", "next row", "step 3",
        "step 4", "next row", "evaluate 4", "step 5", "next row", "evaluate 5", "finish check",
        "whole",
    ]  # fmt: skip
    assert ("whole", world.group) in world.calls
    assert ("finish check", FINISH_SECONDS) in world.calls
    assert [(one.step, one.weights, one.tensors) for one, *_ in saved] == [
        (3, "weights", "moments"), (5, "weights", "moments"),
    ]  # fmt: skip
    assert saved[0][0].numbers == {"numbers": 1, "forgetting": "remembered"}
    assert [(config, options) for _, config, options, _ in saved] == [
        (CONFIG, {"wait": False}), (CONFIG, {"wait": True}),
    ]  # fmt: skip
    assert [doing for *_, doing in saved] == ["", "saving"] and world.phase.doing == ""
    assert world.state.stopped == "finished" and world.state.last_loss == 1.5
    updates = [call[1:] for call in world.calls if call[0] == "update"]
    logged = {"loss": 1.5, "tokens/s": 9}
    assert updates == [(1,), (2,), (2, logged), (3,), (4,), (4, logged), (5,), (5, logged)]
    stages = [call[1:] for call in world.calls if call[0] == "stage"]
    assert stages[0] == ("evaluating", 0) and stages[-1] == ("saving a checkpoint", 5)


def test_files_that_are_not_compared_yet_are_told_while_that_is_shown():
    world, shown = World(num_steps=1), []

    def finish(seconds):
        shown.append(world.phase.doing)
        return "two files are left"

    world.check.finish = finish
    world.train()
    assert shown == ["comparing checksums"] and ("say", "two files are left") in world.calls


@pytest.mark.parametrize(("is_up", "stopped"), [(False, "finished"), (True, "time")])
def test_why_a_run_ended(is_up, stopped):
    world = World(num_steps=1)
    world.steps.length.time_is_up = lambda seconds: is_up
    world.train()
    assert world.state.stopped == stopped


@pytest.mark.parametrize(
    ("world_size", "asked_at", "damaged", "saved_at"),
    [(1, 1, False, 1), (2, 1, False, 2), (1, 2, False, 2), (1, 1, True, None), (2, 1, True, None)],
)
def test_a_signal_or_damage_ends_a_run_where_all_processes_look(
    world_size, asked_at, damaged, saved_at
):
    world = World(world_size=world_size, eval_interval=9)
    step = world.steps.train_step

    def train_step():
        found = step()
        if world.state.step == asked_at:
            world.signals.asked = not damaged
            world.check.problem = "damage" if damaged else None
        return found

    def whole(group):
        world.calls.append(("whole", group))
        if damaged:
            raise DataError("damage")

    world.steps.train_step, world.check.require_whole = train_step, whole
    with pytest.raises(DataError if damaged else KeyboardInterrupt):
        world.train()
    saves = [call[1].step for call in world.calls if call[0] == "save"]
    assert saves == ([] if damaged else [saved_at])
    assert world.done()[-1] == ("whole" if damaged else "save")


@pytest.mark.parametrize("is_first", [False, True])
def test_an_evaluation_is_told_written_and_kept(is_first):
    world = World(is_first=is_first, results={"val": 1.0, "eval_web": 2.0})
    world.watch.check = lambda losses: world.calls.append(("watch", losses)) or "a warning"
    world.loop.tokenizer = "tokenizer"
    world.state.step = 8
    world.state.measured_on = {"val": "another"}
    world.state.best_val_loss = 0.5
    world.watch.first = {"val": 1, "eval_web": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "evaluation_row", lambda step, results: {"step": step})
        patch.setattr(loop_module, "describe_evaluation", lambda step, results: f"at {step}")
        world.loop._evaluate(world.phase)
        world.loop._evaluate(world.phase)  # once a step
    assert [call for call in world.calls if call[0] == "evaluate"] == [
        ("evaluate", 8, "evaluating")
    ]
    said = [call[1] for call in world.calls if call[0] == "say"]
    assert said == [
        "measured on other windows than before: val; what is best, and what it began with, is "
        "found anew",
        "at 8", "a warning", *(["sample: 'text'"] if is_first else []),
    ]  # fmt: skip
    assert ("watch", {"eval_web": 2.0}) in world.calls
    row = {"step": 8, "forgetting": True, **({"sample": "text"} if is_first else {})}
    assert ("row", row) in world.calls
    assert world.watch.first == {"eval_web": 2} and world.state.measured_on == {"val": "v"}
    assert world.state.best_val_loss == world.state.last_val_loss == 1.0
    best = [call for call in world.calls if call[0] in ("best", "tok")]
    numbers = {"step": 8, "val_loss": 1.0}
    expected = [("best", "weights", CONFIG, numbers), ("tok", "tokenizer", CONFIG, {"best": True})]
    assert best == (expected if is_first else [])
    assert world.phase.doing == ""


def test_the_best_is_below_all_before():
    world = World()
    for loss, best in ((2.0, 2.0), (2.0, 2.0), (math.nan, 2.0), (1.5, 1.5), (1.6, 1.5)):
        world.loop._keep_best(SimpleNamespace(loss=loss))
        assert world.state.best_val_loss == best
        assert world.state.last_val_loss == loss or math.isnan(loss)
    assert world.done() == ["best", "best"]


@pytest.mark.parametrize(
    ("wanted", "in_a_row", "answers", "stopped"),
    [
        (True, 1, None, None), (True, 2, None, "forgetting"), (False, 2, None, None),
        (True, 2, True, "forgetting"), (True, 1, True, "callback"), (True, 1, False, None),
    ],
)  # fmt: skip
def test_what_ends_a_run_early(wanted, in_a_row, answers, stopped):
    world = World(results={"val": 1.0}, stop_on_forgetting=wanted)
    world.watch.times_in_a_row = in_a_row
    events = []

    def on_evaluation(event):
        events.append(event)
        return answers

    if answers is not None:
        world.loop.callbacks = Callbacks(None, on_evaluation, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "evaluation_row", lambda step, results: {})
        patch.setattr(loop_module, "describe_evaluation", lambda step, results: "")
        world.train()
    steps = [call for call in world.calls if call[0] == "step"]
    assert len(steps) == (5 if stopped is None else 0)
    assert world.state.stopped == (stopped or "finished")
    seen = [(event.step, event.results, event.sample) for event in events]
    assert seen[:1] == ([(0, world.losses, "text")] if answers is not None else [])


def test_what_callbacks_are_told():
    world = World(num_steps=3)
    told = []
    world.loop.callbacks = Callbacks(told.append, None, told.append)
    world.state.elapsed_seconds = 7.0
    world.train()
    steps = [one for one in told if isinstance(one, StepEvent)]
    assert [(one.step, one.loss, one.learning_rate, one.elapsed_seconds) for one in steps] == [
        (n, f"loss {n}", 0.125, 7.0) for n in (1, 2, 3)
    ]
    ends = [(one.step, one.path) for one in told if isinstance(one, CheckpointEvent)]
    assert ends == [(3, "newest")]
    waits = [call[-1] for call in world.calls if call[0] == "save"]
    assert waits == [{"wait": True}] and ("wait",) in world.calls


@pytest.mark.parametrize(("bad", "most", "ends"), [(2, 3, False), (3, 3, True), (4, 3, True)])
def test_bad_steps_in_a_row_end_a_run(bad, most, ends):
    world = World(max_bad_steps=most)
    world.counters.bad_in_a_row = torch.tensor(bad)
    world.steps.engine.device_peak_bytes = lambda: 99
    refused = pytest.raises(LowtideError, match=f"{bad} steps in a row had a loss or gradient")
    with refused if ends else contextlib.nullcontext():
        world.loop._log(world.phase)
    row = {"tokens_per_second": 9, "skipped_steps": 0, "rate": 0.125, "device_peak_bytes": 99}
    assert world.calls == [
        ("stage", "reading counters", 0), ("agree on time",), ("row", row),
        ("update", 0, {"loss": 1.5, "tokens/s": 9}), ("next row",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stopped", "wanted", "step", "is_over", "said"),
    [
        ("forgetting", True, 3, False, "this run was stopped at step 3 because the model was forg"),
        ("forgetting", False, 3, False, None),
        ("forgetting", False, 5, True, "this run is finished: 5 steps; a larger --max-iters"),
        ("time", True, 5, True, "this run is finished: 5 steps"),
        (None, True, 0, True, None),
        ("finished", True, 3, False, None),
    ],
)
def test_whether_a_run_has_something_left_to_do(stopped, wanted, step, is_over, said):
    world = World(stop_on_forgetting=wanted)
    world.state.stopped, world.state.step = stopped, step
    world.steps.are_over = lambda: is_over
    assert world.loop.is_over() is (said is not None)
    notes = [call[1] for call in world.calls]
    assert len(notes) == (said is not None) and all(note.startswith(said) for note in notes)
    finished = said is not None and said.startswith("this run is finished")
    kept = "forgetting" if said and not finished else None
    assert world.state.stopped == ("finished" if finished else kept)


def test_learning_by_heart_is_said_once_with_the_numbers(monkeypatch):
    asked = []

    def describe(settings, **options):
        asked.append(options)
        return "by heart" if len(asked) > 1 else None

    monkeypatch.setattr(loop_module, "describe_overfitting", describe)
    world = World()
    world.state.last_loss = 0.5
    for loss in (1.0, 2.0, 3.0):
        world.loop._warn_of_overfitting(loss)
    wanted = {"epoch": 0.0, "train_loss": 0.5}
    assert asked == [{**wanted, "val_loss": 1.0}, {**wanted, "val_loss": 2.0}]
    assert world.calls == [("say", "by heart")]
