"""The training loop: from step to step; evaluation, logging, checkpoints, exact resume.

In:      a network, a dataset to train on, datasets to evaluate on
Out:     the run's folder (checkpoints), metrics.jsonl, progress on stderr
Memory:  weights, gradients, moments, activations of one micro-batch, one chunk of logits; the data
         counts for a few batches, whatever its size
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowtide import ranks
from lowtide.answers import tell
from lowtide.errors import LowtideError, UsageError
from lowtide.loader.batches import BatchLoader, SampleSource
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.windows import TokenDataset
from lowtide.memory import default_budget_bytes, parse_size
from lowtide.model.program import Program, program_here
from lowtide.model.sizing import count_parameters, flops_per_token
from lowtide.progress import Phase, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training.backends import Group, Model, open_backend
from lowtide.training.batches import BatchSource, open_batches
from lowtide.training.checkpoints import Checkpoint, RunFolder, readable_numbers
from lowtide.training.diagnostics import Diagnostics
from lowtide.training.footprint import fit_micro_batch
from lowtide.training.identity import optimizer_of, require_same_model, weights_fingerprint
from lowtide.training.reports import (
    MetricSinks,
    Pace,
    describe_coverage,
    describe_evaluation,
    describe_overfitting,
    evaluation_row,
)
from lowtide.training.results import EvalResult, ForgettingWatch, RunEvaluator
from lowtide.training.resuming import (
    change_settings,
    continued_settings,
    require_own_tokenizer,
    run_exists,
    write_settings,
)
from lowtide.training.saving import CheckpointSaver
from lowtide.training.schedule import RunLength, total_steps
from lowtide.training.settings import TrainSettings
from lowtide.training.signals import StopSignals
from lowtide.training.state import RunState

__all__ = ["TrainResult", "Trainer"]


def _to_stderr(text: str) -> None:
    if ranks.is_first():
        tell(text)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    steps: int
    loss: float
    """Training loss of the last logged steps."""
    val_loss: float | None
    """Validation loss at the end."""
    best_val_loss: float | None
    skipped_steps: int
    stopped: str
    """finished, time, or forgetting."""


class Trainer:
    """Trains a network; the same object from Python and behind `lowtide train`.

    `Trainer(model, data=dataset, eval_data={"general": other}, max_iters=1000).fit()`

    `data` is a TokenDataset or a Mixture, a BatchLoader or StreamingDataLoader, or any iterator of
    batches that has state_dict, load_state_dict and close; `eval_data` names TokenDatasets (or
    BatchLoaders over them). Options are the fields of TrainSettings; `optimizer` may be a
    torch optimizer too, whose learning rates are then the peaks.
    """

    def __init__(
        self,
        model: Model,
        *,
        data: SampleSource | StreamingDataLoader | BatchSource,
        val_data: TokenDataset | None = None,
        eval_data: Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        settings: TrainSettings | None = None,
        notify: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("seq_len", model.config.context_length)
        given = options.get("optimizer")
        self._given_optimizer = given if hasattr(given, "param_groups") else None
        if given is not None and self._given_optimizer is not None:
            del options["optimizer"]
            options.setdefault("learning_rate", float(given.param_groups[0]["lr"]))
        options.setdefault("backend", getattr(model, "backend", "torch"))
        if isinstance(data, BatchLoader | StreamingDataLoader):  # their rows are one step's
            options.setdefault("batch_size", data.batch_size)
        self.settings = settings or build_settings(TrainSettings, options)
        self.backend = open_backend(self.settings.computing.backend)
        self.model = model
        self.data = data
        self.val_data = val_data
        self.eval_data: dict[str, Any] = {
            name: other.dataset if isinstance(other, BatchLoader) else other
            for name, other in (eval_data or {}).items()
        }
        self.tokenizer = tokenizer
        self._budget = 0
        # As measured before the data was opened: what that holds is counted by itself.
        self.program: Program | None = None
        self.run = RunFolder(self.settings.run.folder, keep=self.settings.saving.keep_checkpoints)
        self.state = RunState(micro_batch=self.settings.batch.batch_size)
        self._notify = notify
        self._note: Callable[[str], None] = notify or _to_stderr
        # Whether the run's own weights are meant, whatever the model holds.
        self.goes_on = settings is not None or options.get("resume") is True
        self._identity: dict[str, str] = {}
        self.where = Diagnostics(watch=False)
        self._started = time.monotonic()
        self._has_warned = False

    # -- the story ---------------------------------------------------------------------------

    def fit(self) -> TrainResult:
        """Train until the end, or go on with a run that was stopped."""
        settings = self.settings
        self._budget = (
            parse_size(settings.machine.memory)
            if settings.machine.memory
            else default_budget_bytes()
        )
        with (
            self.backend.open_group(settings.machine.device) as group,
            contextlib.ExitStack() as stack,
        ):
            stack.enter_context(self.run.locked(wanted=group.is_first))
            self._claim(group)
            settings = self.settings
            self.prepare(group)
            progress = stack.enter_context(
                Progress(
                    "train",
                    budget_bytes=self._budget,
                    device_memory=self.backend.device_memory(group),
                    **({} if group.is_first else {"stream": None}),
                )
            )
            self._note = self._notify or progress.note
            self._sinks = stack.enter_context(MetricSinks(settings, progress, group.is_first))
            self.where = stack.enter_context(Diagnostics(watch=settings.output.debug))
            self._signals = stack.enter_context(StopSignals(self._tell))
            stack.callback(self.feed.close)
            background = settings.saving.save_in_background
            if background is None:
                background = group.saves_beside
            self._saver = stack.enter_context(
                CheckpointSaver(
                    self.run,
                    background=background,
                    rename=self.backend.portable,
                    snapshot=self.backend.make_snapshot,
                )
            )
            self._fit_into_budget()
            self._resume()
            progress.metrics_path = self.run.metrics_path if group.is_first else None
            if self._is_over():
                return self._result()
            config = self.model.config
            for line in describe_coverage(settings, config, self.length.steps, self.data):
                self._note(line)
            for line in self.stepper.notes:
                self._note(line)
            phase = stack.enter_context(
                progress.phase(
                    "training", total=self.length.steps, unit="steps", start=self.state.step
                )
            )
            self._train(phase)
        return self._result()

    def _is_over(self) -> bool:
        """Return whether a run that was taken up again has nothing left to do, and say so."""
        state = self.state
        if state.stopped == "forgetting" and self.settings.evaluation.stop_on_forgetting:
            self._note(
                f"this run was stopped at step {state.step} because the model was forgetting; "
                "--no-stop-on-forgetting goes on with it"
            )
            return True
        if state.step > 0 and self._finished():
            self._note(
                f"this run is finished: {state.step} steps; a larger --max-iters, --epochs or "
                "--max-hours goes on with it"
            )
            state.stopped = "finished"
            return True
        state.stopped = None
        return False

    def _train(self, phase: Phase) -> None:
        settings, state = self.settings, self.state
        self._started = time.monotonic() - state.elapsed_seconds
        flops = flops_per_token(self.model.config, settings.model.seq_len)
        self._pace = Pace(settings.tokens_per_step, flops, step=state.step)
        while not self._finished():
            if state.step % settings.evaluation.eval_interval == 0:
                self._evaluate(phase)
                if state.stopped:
                    break
            self.train_step()
            phase.update(state.step)
            if state.step % settings.output.log_interval == 0 or self._finished():
                self._log(phase)
                if self._group.any(self._signals.asked):
                    self._save()
                    raise KeyboardInterrupt
            elif self._signals.asked and self._group.world_size == 1:
                self._save()
                raise KeyboardInterrupt
            if state.step % settings.saving.save_interval == 0 and not self._finished():
                self._save()
        if not state.stopped:
            time_is_up = self.length.time_is_up(state.elapsed_seconds)
            state.stopped = "time" if time_is_up else "finished"
        self._evaluate(phase)
        phase.doing = "saving"
        self._save()
        phase.doing = ""

    def train_step(self) -> None:
        """One optimizer update on one batch; nothing here waits for the device."""
        state = self.state
        self.where.stage("waiting for data", state.step)
        inputs, targets = next(self.feed)
        self.where.stage("computing", state.step)
        loss = self.stepper.compute(inputs, targets, share_done=self._share_done())
        self.where.stage("updating", state.step)
        norm, skip = self.stepper.update(loss, self._learning_rate_factor())
        self.counters.add(loss, norm, skip)
        state.step += 1
        if self._group.world_size == 1:  # else when a row is logged: all must see the same time
            state.elapsed_seconds = time.monotonic() - self._started

    # -- evaluation, logging, saving ------------------------------------------------------------

    def _evaluate(self, phase: Phase) -> None:
        """Evaluate on every dataset, once per step; keep the best weights, watch for forgetting."""
        state = self.state
        if state.evaluated_step == state.step:
            return
        self.where.stage("evaluating", state.step)
        results = self.evaluator.evaluate_all(functools.partial(setattr, phase, "doing"))
        state.evaluated_step = state.step
        phase.doing = "writing a sample"
        sample = self.evaluator.sample() if self._group.is_first else ""
        phase.doing = ""
        if not results and not sample:
            return
        row = evaluation_row(state.step, results)
        if results:
            self._note(describe_evaluation(state.step, results))
        warning = self.watch.check({n: r.loss for n, r in results.items() if n != "val"})
        if warning:
            row["forgetting"] = True
            self._note(warning)
        if sample:
            row["sample"] = sample
            self._note(f"sample: {sample!r}")
        self._sinks.write(row)
        if "val" in results:
            self._warn_of_overfitting(results["val"].loss)
            self._keep_best(results["val"])
        if self.settings.evaluation.stop_on_forgetting and self.watch.times_in_a_row >= 2:
            state.stopped = "forgetting"

    def _warn_of_overfitting(self, val_loss: float) -> None:
        """Say it once: the next evaluation would say the same."""
        if self._has_warned:
            return
        train_loss = self.state.last_loss
        warning = describe_overfitting(
            self.settings, epoch=self._feed_epoch(), train_loss=train_loss, val_loss=val_loss
        )
        if warning is not None:
            self._has_warned = True
            self._note(warning)

    def _keep_best(self, result: EvalResult) -> None:
        state = self.state
        state.last_val_loss = result.loss
        best = math.inf if state.best_val_loss is None else state.best_val_loss
        if not result.loss < best:  # nor is what is not a number
            return
        state.best_val_loss = result.loss
        weights = self.stepper.weights()
        if self._group.is_first:
            numbers = {"step": state.step, "val_loss": result.loss}
            self.where.stage("saving the best weights", state.step)
            config = self.model.config
            self._saver.save_best(weights, config, numbers)
            if self.tokenizer is not None:
                self.run.save_tokenizer(self.tokenizer, config, best=True)

    def _log(self, phase: Phase) -> None:
        """Read the counters (the one place that waits for the device) and write a row."""
        state, counters = self.state, self.counters
        self.where.stage("reading counters", state.step)
        if self._group.world_size > 1:
            state.elapsed_seconds = self._group.first_says(time.monotonic() - self._started)
        state.last_loss = counters.mean_loss(self._group)
        rate = self.stepper.learning_rate * self._learning_rate_factor()
        row = self._pace.row(state, counters, learning_rate=rate)
        if (peak := self.stepper.device_peak_bytes()) is not None:
            row["device_peak_bytes"] = peak
        self._sinks.write(row)
        phase.update(state.step, loss=state.last_loss, **{"tokens/s": row["tokens_per_second"]})
        counters.next_row()
        in_a_row = int(counters.bad_in_a_row.item())
        if in_a_row >= self.settings.learning.max_bad_steps:
            raise LowtideError(
                f"{in_a_row} steps in a row had a loss or gradient that is not finite "
                f"({row['skipped_steps']} in all); none of them changed the weights",
                path=self.run.root,
                next_step="lower --learning-rate, lengthen --warmup, or use --precision bf16",
            )

    def _save(self) -> None:
        state = self.state
        self.where.stage("saving a checkpoint", state.step)
        weights = self.stepper.weights()
        tensors = self.stepper.moments()
        numbers = {
            "state": dict(vars(state)),
            "data": self.feed.state_dict(),
            "counters": self.counters.state_dict(),
            "forgetting": self.watch.state_dict(),
            "world_size": self._group.world_size,
            **self.stepper.numbers(),
        }
        if self._group.is_first:
            config = self.model.config
            checkpoint = Checkpoint(state.step, weights, tensors, numbers)
            self._saver.save(checkpoint, config, wait=state.stopped is not None)
        self._group.wait()

    # -- start and resume -------------------------------------------------------------------------

    def _claim(self, group: Group) -> None:
        """Find out whether this begins the run or goes on with it, and refuse what is neither."""
        run, settings = self.run, self.settings
        if group.is_first:
            if settings.run.overwrite:
                run.clear()
            run.find_whole(self._tell, set_aside=True)
        group.wait()
        if run.find_whole(self._tell) is None:
            self._identity = {} if self.goes_on else {"weights": weights_fingerprint(self.model)}
            return
        if not settings.run.resume:
            raise run_exists(run.root)
        if not self.goes_on:
            require_same_model(run, self.model)
        known = None if self._given_optimizer else optimizer_of(run.load_numbers())
        self.settings = continued_settings(run.root, settings, optimizer=known)
        own = run.root / "tokenizer.json"
        if self.tokenizer is not None and own.is_file():
            require_own_tokenizer(self.tokenizer, Tokenizer.load(run.root), run.root)

    def prepare(self, group: Group) -> None:
        """Bring the model to its device and make everything the loop uses."""
        settings, config = self.settings, self.model.config
        self._group = group
        self._rows, rest = divmod(settings.batch.rows_per_step, group.world_size)
        if rest:
            raise UsageError(
                f"{settings.batch.rows_per_step} rows a step cannot be shared by "
                f"{group.world_size} processes",
                next_step="make batch size times accumulation a multiple of the processes",
            )
        self.state.micro_batch = min(settings.batch.batch_size, self._rows)
        # Before it is divided, while its tensors are whole.
        self.run.load_weights(functools.partial(self.backend.load_weights, self.model))
        steps = total_steps(
            settings.length,
            count_parameters(config),
            self.data,
            rows_per_step=settings.batch.rows_per_step,
            tokens_per_step=settings.tokens_per_step,
        )
        by_epochs = steps is None and settings.length.epochs is not None
        follows = by_epochs and isinstance(self.data, StreamingDataLoader)
        self.length = RunLength(
            settings.length,
            settings.learning,
            steps,
            follows_share=follows and self.data.estimated_windows is not None,  # pyright: ignore[reportAttributeAccessIssue]
        )
        self.stepper = self.backend.make_engine(
            self.model,
            settings,
            self.state,
            group,
            rows=self._rows,
            given=self._given_optimizer,
            note=self._tell,
        )
        self.counters = self.backend.make_counters(group)
        self.watch = ForgettingWatch(
            settings.evaluation.forgetting_tolerance, learning_rate=self.stepper.learning_rate
        )
        self.evaluator = RunEvaluator(
            self.stepper,
            settings,
            group,
            rows=self._rows,
            datasets=self._eval_sets(),
            tokenizer=self.tokenizer,
        )
        source = open_batches(self.data, settings, group, rows=self._rows)
        self.feed = self.backend.make_feed(source, group, config)

    def _fit_into_budget(self) -> None:
        """Choose micro-batches that keep the budget; on a GPU its own memory is the limit."""
        settings = self.settings
        if not self._group.on_cpu:
            return
        held = self.backend.held_bytes(self.model)
        program = self.program or program_here(
            held, device=settings.machine.device, backend=settings.computing.backend
        )
        # A stream that the settings name is counted by them.
        given = self.data if settings.data.dataset_id is None else None
        rows = fit_micro_batch(
            self.model.config,
            settings,
            self._budget,
            program=program,
            is_running=True,
            data_bytes=given.memory_bytes if isinstance(given, StreamingDataLoader) else 0,
        )
        if rows < self.state.micro_batch:
            self.state.micro_batch = rows
            self._note(
                f"micro-batches of {rows} rows keep the budget; a step still sees "
                f"{settings.batch.rows_per_step} rows"
            )

    def _resume(self) -> None:
        """Start the run's folder, or take everything back from its newest checkpoint."""
        if self._group.is_first:
            self.run.create()
        self._group.wait()
        if not self.run.exists():
            if self._group.is_first:
                self._write_identity()
            return
        numbers = self.run.load_numbers()
        with readable_numbers(self.run.newest_dir()):
            folder = self.stepper.load_state(self.run, numbers)
            self.feed.load_state_dict(numbers["data"])
            self.counters.load_state_dict(numbers["counters"])
            self.watch.load_state_dict(numbers["forgetting"])
            micro = min(self.state.micro_batch, numbers["state"]["micro_batch"])
            self.state = self.stepper.state = RunState(**numbers["state"])
            self.state.micro_batch = micro
        if self._group.is_first:
            change_settings(self.run.root, self.settings, step=self.state.step, note=self._tell)
            self.run.forget_metrics_after(self.state.step, self.state.evaluated_step)
        self._note(f"going on from step {self.state.step} ({folder})")

    def _write_identity(self) -> None:
        write_settings(self.run.root, self.settings, identity=self._identity)
        if self.tokenizer is not None:
            self.run.save_tokenizer(self.tokenizer, self.model.config)

    def _eval_sets(self) -> dict[str, TokenDataset]:
        named = {f"eval_{name}": dataset for name, dataset in self.eval_data.items()}
        return {**({"val": self.val_data} if self.val_data is not None else {}), **named}

    # -- small answers ----------------------------------------------------------------------------

    def _finished(self) -> bool:
        return self.length.is_over(
            self.state.step, self.state.elapsed_seconds, epoch=self._feed_epoch
        )

    def _feed_epoch(self) -> float:
        state = self.feed.state_dict()
        if isinstance(self.data, StreamingDataLoader):
            return self.data.epochs_done(state)
        return float(state.get("epoch", 0))

    def _learning_rate_factor(self) -> float:
        return self.length.learning_rate_factor(
            self.state.step, self.state.elapsed_seconds, epoch=self._feed_epoch
        )

    def _share_done(self) -> float:
        return self.length.share_done(
            self.state.step, self.state.elapsed_seconds, epoch=self._feed_epoch
        )

    def _tell(self, text: str) -> None:
        self._note(text)  # looked up when there is something to tell: progress comes after prepare

    def _result(self) -> TrainResult:
        state = self.state
        return TrainResult(
            steps=state.step,
            loss=state.last_loss,
            val_loss=state.last_val_loss,
            best_val_loss=state.best_val_loss,
            skipped_steps=int(self.counters.bad.item()),
            stopped=state.stopped or "finished",
        )
