"""The training loop: steps, evaluation, logging, checkpoints.

In:      Steps; the progress, saver, metrics and callbacks of a run
Out:     the run's folder (checkpoints), metrics.jsonl, notes
Memory:  weights, gradients, moments, activations of one micro-batch, one chunk of logits; the data
         counts for a few batches, whatever its size
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NoReturn

from lowtide.errors import LowtideError
from lowtide.loader.datachecks import FINISH_SECONDS, DataCheck
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.sizing import flops_per_token
from lowtide.progress import Phase
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.callbacks import Callbacks, CheckpointEvent, EvaluationEvent, StepEvent
from lowtide.training.checkpoints import Checkpoint, RunFolder
from lowtide.training.diagnostics import Diagnostics
from lowtide.training.results import EvalResult, ForgettingWatch, RunEvaluator
from lowtide.training.runmetrics import (
    MetricSinks,
    Pace,
    describe_evaluation,
    describe_overfitting,
    evaluation_row,
)
from lowtide.training.saving import CheckpointSaver
from lowtide.training.settings import TrainSettings
from lowtide.training.signals import StopSignals
from lowtide.training.steps import Steps

__all__ = ["Loop"]


class _Stopped(Exception):  # noqa: N818 - not an error
    """Ends an evaluation after a signal to stop."""


@dataclass
class Loop:
    """A run in progress, with everything the loop uses, created before it starts."""

    settings: TrainSettings
    config: GPTConfig | ModuleConfig
    steps: Steps
    evaluator: RunEvaluator
    watch: ForgettingWatch
    run: RunFolder
    tokenizer: Tokenizer | None
    saver: CheckpointSaver
    sinks: MetricSinks
    signals: StopSignals
    where: Diagnostics
    note: Callable[[str], None]
    callbacks: Callbacks
    check: DataCheck
    has_warned: bool = False
    """Whether the warning about overfitting was shown, which is shown once."""
    pace: Pace = field(init=False)
    """Made when training begins."""
    bad_step: int = 0
    """The first step after which there may be as many bad steps in a row as end the run."""

    def why_over(self) -> str | None:
        """Why a resumed run has nothing left to do; None if it has."""
        state = self.steps.state
        if self._has_forgotten():
            return (
                f"this run was stopped at step {state.step} because the model was forgetting; "
                "--no-stop-on-forgetting goes on with it"
            )
        if state.step > 0 and self.steps.are_over() and self._has_last_evaluation():
            return (
                f"this run is finished: {state.step} steps; a larger --max-iters, --epochs or "
                "--max-hours goes on with it"
            )
        return None

    def is_over(self) -> bool:
        """True if a resumed run has nothing left to do, which is reported."""
        state, reason = self.steps.state, self.why_over()
        if reason is None:
            state.stopped = None
            return False
        self.note(reason)
        if not self._has_forgotten():
            state.stopped = "finished"
        return True

    def _has_forgotten(self) -> bool:
        wanted = self.settings.evaluation.stop_on_forgetting
        return wanted and self.steps.state.stopped == "forgetting"

    def train(self, phase: Phase) -> None:
        """Train until the end of the run, or until a signal to stop."""
        settings, steps, state = self.settings, self.steps, self.steps.state
        steps.start_clock()
        self.check.start()
        flops = flops_per_token(self.config, settings.model.seq_len)
        self.pace = Pace(settings.tokens_per_step, flops, step=state.step)
        while not steps.are_over():
            if state.step % settings.evaluation.eval_interval == 0:
                self._evaluate(phase)
                if state.stopped:
                    break
            loss = steps.train_step()
            phase.update(state.step)
            self._tell_of_step(loss)
            is_logged = state.step % settings.output.log_interval == 0
            if is_logged or steps.are_over() or self._has_many_bad():
                self._log(phase)
                if steps.group.any(self._is_called()):
                    self._stop_early()
            elif self._is_called() and steps.group.world_size == 1:
                self._stop_early()
            if state.step % settings.saving.save_interval == 0 and not steps.are_over():
                self._save()
        if not state.stopped:
            time_is_up = steps.length.time_is_up(state.elapsed_seconds)
            state.stopped = "time" if time_is_up else "finished"
        self._evaluate(phase)
        phase.doing = "comparing checksums"
        if (rest := self.check.finish(FINISH_SECONDS)) is not None:
            self.note(rest)
        self.check.require_whole(steps.group)
        phase.doing = "saving"
        self._save()
        phase.doing = ""

    def _has_many_bad(self) -> bool:
        """True after as many bad steps in a row as end the run; the device is only waited for when
        there can be."""
        return self.steps.state.step >= self.bad_step and self._count_bad() >= self._most_bad

    @property
    def _most_bad(self) -> int:
        return self.settings.learning.max_bad_steps

    def _count_bad(self) -> int:
        """The bad steps in a row until now."""
        count = int(self.steps.counters.bad_in_a_row.item())
        self.bad_step = self.steps.state.step + self._most_bad - count
        return count

    def _is_called(self) -> bool:
        """True after a signal to stop, or if the data is damaged."""
        return self.signals.asked or self.check.problem is not None

    def _stop_early(self) -> NoReturn:
        """Save and stop; after reading damaged data, weights are not saved."""
        self.check.require_whole(self.steps.group)
        self._save()
        raise KeyboardInterrupt

    def _has_last_evaluation(self) -> bool:
        """False if the run was stopped between its last step and the evaluation after it."""
        state = self.steps.state
        return state.stopped is not None or state.evaluated_step == state.step

    def _measure(self, phase: Phase) -> dict[str, EvalResult]:
        """The loss on every dataset; a signal to stop does not wait for it."""
        try:
            with self.pace.aside("evaluation"):
                return self.evaluator.evaluate_all(functools.partial(self._show_windows, phase))
        except _Stopped:
            phase.doing = ""
            self.steps.state.stopped = None  # an evaluation after the last step is still to come
            self._stop_early()

    def _show_windows(self, phase: Phase, line: str) -> None:
        """Show the progress of an evaluation, or end it; several processes evaluate to the end."""
        phase.doing = line
        if self.signals.asked and self.steps.group.world_size == 1:
            raise _Stopped

    def _evaluate(self, phase: Phase) -> None:
        """Evaluate on every dataset, once per step; keep the best weights, watch for forgetting."""
        state = self.steps.state
        if state.evaluated_step == state.step:
            return
        self.where.stage("evaluating", state.step)
        results = self._measure(phase)
        state.evaluated_step = state.step
        phase.doing = "writing a sample"
        with self.pace.aside("sample"):
            sample = self.evaluator.sample() if self.steps.group.is_first else ""
        phase.doing = ""
        if not self.steps.group.any(bool(results or sample)):  # only the first has a sample
            return
        row = evaluation_row(state.step, results)
        if results:
            self._forget_other_data()
            self.note(describe_evaluation(state.step, results))
        warning = self.watch.check({n: r.loss for n, r in results.items() if n != "val"})
        if warning:
            row["forgetting"] = True
            self.note(warning)
        if sample:
            row["sample"] = sample
            self.note(f"sample: {sample!r}")
        self.sinks.write(row)
        if "val" in results:
            self._warn_of_overfitting(results["val"].loss)
            with self.pace.aside("saving"):
                self._keep_best(results["val"])
        if self.settings.evaluation.stop_on_forgetting and self.watch.times_in_a_row >= 2:
            state.stopped = "forgetting"
        if self._asks_to_stop(results, sample) and not state.stopped:
            state.stopped = "callback"

    def _forget_other_data(self) -> None:
        """Forget losses of data that was replaced since, or of other windows."""
        state, now = self.steps.state, self.evaluator.identities()
        before, state.measured_on = state.measured_on, now
        others = [name for name, value in now.items() if before.get(name, value) != value]
        for name in others:
            self.watch.first.pop(name, None)
            if name == "val":
                state.best_val_loss = None
        if others:
            self.note(
                f"measured on other windows than before: {', '.join(others)}; what is best, and "
                "what it began with, is found anew"
            )

    def _tell_of_step(self, loss: Any) -> None:
        if self.callbacks.on_step is None:
            return
        state, rate = self.steps.state, self.steps.last_rate
        self.callbacks.on_step(StepEvent(state.step, loss, rate, state.elapsed_seconds))

    def _asks_to_stop(self, results: Mapping[str, EvalResult], sample: str) -> bool:
        """Call the evaluation callback; all processes end if it returns True in one of them."""
        if self.callbacks.on_evaluation is None:
            return False
        event = EvaluationEvent(self.steps.state.step, results, sample)
        return self.steps.group.any(bool(self.callbacks.on_evaluation(event)))

    def _warn_of_overfitting(self, val_loss: float) -> None:
        """Warn once: the next evaluation would give the same warning."""
        if self.has_warned:
            return
        train_loss = self.steps.state.last_loss
        warning = describe_overfitting(
            self.settings, epoch=self.steps.epoch(), train_loss=train_loss, val_loss=val_loss
        )
        if warning is not None:
            self.has_warned = True
            self.note(warning)

    def _keep_best(self, result: EvalResult) -> None:
        state = self.steps.state
        state.last_val_loss = result.loss
        best = math.inf if state.best_val_loss is None else state.best_val_loss
        if not result.loss < best:  # written so that NaN is never the best
            return
        state.best_val_loss = result.loss
        weights = self.steps.engine.weights()
        if self.steps.group.is_first:
            numbers = {"step": state.step, "val_loss": result.loss}
            self.where.stage("saving the best weights", state.step)
            self.saver.save_best(weights, self.config, numbers)
            if self.tokenizer is not None:
                self.run.save_tokenizer(self.tokenizer, self.config, best=True)

    def _log(self, phase: Phase) -> None:
        """Read the counters (few other places wait for the device) and write a row."""
        state, counters = self.steps.state, self.steps.counters
        self.where.stage("reading counters", state.step)
        self.steps.agree_on_time()
        state.last_loss = counters.mean_loss(self.steps.group)
        row = self.pace.row(state, counters, learning_rate=self.steps.last_rate)
        if (peak := self.steps.engine.device_peak_bytes()) is not None:
            row["device_peak_bytes"] = peak
        self.sinks.write(row)
        phase.update(state.step, loss=state.last_loss, **{"tokens/s": row["tokens_per_second"]})
        counters.next_row()
        in_a_row = self._count_bad()
        if in_a_row >= self._most_bad:
            raise LowtideError(
                f"{in_a_row} steps in a row had a loss or gradient that is not finite "
                f"({row['skipped_steps']} in all); none of them changed the weights",
                path=self.run.root,
                next_step="lower --learning-rate, lengthen --warmup, or use --precision bf16",
            )

    def _save(self) -> None:
        with self.pace.aside("saving"):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        state = self.steps.state
        self.where.stage("saving a checkpoint", state.step)
        weights = self.steps.engine.weights()
        tensors = self.steps.engine.moments()
        numbers = {**self.steps.numbers(), "forgetting": self.watch.state_dict()}
        if self.steps.group.is_first:
            checkpoint = Checkpoint(state.step, weights, tensors, numbers)
            tell = self.callbacks.on_checkpoint
            self.saver.save(checkpoint, self.config, wait=state.stopped is not None or bool(tell))
            if tell is not None:
                tell(CheckpointEvent(state.step, self.run.newest_dir()))
        self.steps.group.wait()
