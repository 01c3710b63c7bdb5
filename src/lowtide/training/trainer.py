"""Train a network with given data and settings: `Trainer(…).fit()`.

In:      a network, a dataset to train on, datasets to evaluate on
Out:     the run's folder, new or resumed; TrainResult
Memory:  as the loop takes it (loop.py)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lowtide import ranks
from lowtide.answers import tell
from lowtide.counts import counted
from lowtide.errors import UsageError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.loader.batches import BatchLoader, SampleSource
from lowtide.loader.datachecks import FINISH_SECONDS, DataCheck
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.program import Program
from lowtide.model.sizing import count_parameters
from lowtide.progress import Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.named import open_tokenizer
from lowtide.training import batchsources as sources
from lowtide.training.agreement import (
    require_same_checkpoint,
    require_same_data,
    require_same_settings,
)
from lowtide.training.backends import Engine, Group, Model, as_model, backend_of, follow_network
from lowtide.training.callbacks import Callbacks, CheckpointEvent, EvaluationEvent, StepEvent
from lowtide.training.checkpoints import RunFolder, readable_numbers
from lowtide.training.choosing import require_as_given
from lowtide.training.diagnostics import Diagnostics
from lowtide.training.environment import describe_environment
from lowtide.training.fitting import rows_in_budget, rows_of_process, rows_on_device
from lowtide.training.loop import Loop
from lowtide.training.results import EvalResult, ForgettingWatch, RunEvaluator, TrainResult
from lowtide.training.resuming import (
    change_settings,
    continued_settings,
    require_own_run,
    require_own_tokenizer,
    run_exists,
    write_settings,
)
from lowtide.training.rungs import host_budget_bytes
from lowtide.training.runidentity import optimizer_of, require_same_model, weights_fingerprint
from lowtide.training.runmetrics import MetricSinks, describe_coverage
from lowtide.training.saving import CheckpointSaver
from lowtide.training.schedule import RunLength, total_steps
from lowtide.training.settings import TrainSettings
from lowtide.training.signals import StopSignals
from lowtide.training.state import RunState
from lowtide.training.steps import Steps
from lowtide.training.unusedsettings import own_rate, refuse_both, refuse_unused

if TYPE_CHECKING:
    from torch.nn import Module

    from lowtide.keywordtypes import TrainKeywords

__all__ = ["Trainer"]


def _to_stderr(text: str) -> None:
    if ranks.is_first():
        tell(text)


class Trainer:
    """Trains a network; the Python interface, which `lowtide train` uses too.

    `Trainer(model, data=dataset, eval_data={"general": other}, max_iters=1000).fit()`

    `model` is a GPT, or any torch module that returns logits or a loss for ids (wrap_module says
    how it is called). `data` is a TokenDataset or a Mixture, a BatchLoader or StreamingDataLoader,
    or any iterator of batches that has state_dict, load_state_dict and close; `eval_data` names
    TokenDatasets (or BatchLoaders over them). `on_step`, `on_evaluation` and `on_checkpoint` are
    called with an event; the run ends if `on_evaluation` returns True. Options are the fields of
    TrainSettings; `optimizer` may be a torch optimizer too, whose rates are the peaks.
    """

    def __init__(
        self,
        model: Model | Module,
        *,
        data: SampleSource | StreamingDataLoader | sources.BatchSource,
        val_data: TokenDataset | None = None,
        eval_data: Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        settings: TrainSettings | None = None,
        notify: Callable[[str], None] | None = None,
        on_step: Callable[[StepEvent], object] | None = None,
        on_evaluation: Callable[[EvaluationEvent], object] | None = None,
        on_checkpoint: Callable[[CheckpointEvent], object] | None = None,
        **options: Unpack[TrainKeywords],
    ) -> None:
        sources.require_sources(data, val_data, eval_data)
        refuse_both(settings, options)
        tokenizer = None if tokenizer is None else open_tokenizer(tokenizer)
        seq_len = options.get("seq_len") or sources.row_length(settings and settings.model, data)
        vocab_size = None if tokenizer is None else tokenizer.vocab_size
        model = as_model(model, seq_len=seq_len, vocab_size=vocab_size)
        options.setdefault("seq_len", sources.row_length(None, data) or model.config.context_length)
        given: Any = options.get("optimizer")
        self._given_optimizer = given if hasattr(given, "param_groups") else None
        if given is not None and self._given_optimizer is not None:
            del options["optimizer"]
            options.setdefault("learning_rate", own_rate(given))
        follow_network(options, model)
        if isinstance(data, BatchLoader | StreamingDataLoader):  # their rows are one step's
            options.setdefault("batch_size", data.batch_size)
        self.settings = settings or build_settings(TrainSettings, options)
        if settings is None:
            require_as_given(options, self.settings, model.config)
            sources.refuse_data_options(options, self.settings, data)
        self.backend = backend_of(self.settings)
        self.model, self.data, self.val_data = model, data, val_data
        self.eval_data: dict[str, Any] = {
            name: other.dataset if isinstance(other, BatchLoader) else other
            for name, other in (eval_data or {}).items()
        }
        self.tokenizer = tokenizer
        self.program: Program | None = None  # measured before the data was opened
        self.run = RunFolder(self.settings.run.folder, keep=self.settings.saving.keep_checkpoints)
        self._notify = notify
        self._callbacks = Callbacks(on_step, on_evaluation, on_checkpoint)
        self._note: Callable[[str], None] = notify or _to_stderr
        self.goes_on = settings is not None or options.get("resume") is True  # the run's weights
        self._has_fitted = self._is_divided = False

    def fit(self) -> TrainResult:
        """Train until the end, or resume a run that was stopped."""
        with self.backend.open_group(self.settings.machine.device) as group, ExitStack() as stack:
            budget = host_budget_bytes(self.settings.machine, on_gpu=not group.on_cpu)
            stack.enter_context(self.run.locked(wanted=group.is_first))
            identity = self._claim(group)
            refuse_unused(self.settings, watches=bool(self.eval_data))
            where = Diagnostics(watch=self.settings.output.debug)
            rows = rows_on_device(  # before anything of it is allocated
                self.model, self.settings, on_cpu=group.on_cpu, host_bytes=budget
            )
            steps = self.prepare(group, where)
            self._has_fitted = True  # from here on the run is this model's
            progress = stack.enter_context(
                Progress(
                    "train",
                    budget_bytes=budget,
                    device_memory=self.backend.device_memory(group),
                    **({} if group.is_first else dict[str, Any](stream=None)),
                )
            )
            self._note = self._notify or progress.note
            loop = self._open_loop(steps, where, progress, stack)
            self._take_rows(steps.state, group, budget, rows)
            self._resume(loop, identity)
            progress.metrics_path = self.run.metrics_path if group.is_first else None
            if not loop.is_over():
                self._describe(steps)
                progress.write_metrics(
                    describe_environment(
                        self.model.config,
                        self.settings,
                        on_cpu=group.on_cpu,
                        world_size=group.world_size,
                    )
                )
                total, begun = steps.length.steps, steps.state.step
                phase = progress.phase("training", total=total, unit="steps", start=begun)
                loop.train(stack.enter_context(phase))
            elif group.is_first:
                self.run.complete(self._tell)
            steps.engine.finish()
            return TrainResult.of(steps.state, skipped_steps=int(steps.counters.bad.item()))

    def evaluate(self) -> dict[str, EvalResult]:
        """The loss on `val_data` ("val") and on `eval_data` ("eval_NAME"), without training.

        With the newest weights of the run that fit() would resume, if there is one, else with the
        model's own. The training data is not used.
        """
        with self.backend.open_group(self.settings.machine.device) as group:
            budget = host_budget_bytes(self.settings.machine, on_gpu=not group.on_cpu)
            rows = rows_on_device(self.model, self.settings, on_cpu=group.on_cpu, host_bytes=budget)
            require_same_settings(group, self.settings)
            require_same_data(group, self._held_out())
            run = self._run_to_evaluate()
            require_same_checkpoint(group, self.run.root, run and run.newest_dir())
            engine = self._make_engine(group, run)
            self._take_rows(engine.state, group, budget, rows)
            checked = self.settings.data.check_data
            with DataCheck(self._held_out().values(), wanted=checked) as check:
                check.start()
                results = self._evaluator(engine, group).evaluate_all()
                check.finish(FINISH_SECONDS)
                check.require_whole(group)
            return results

    def prepare(self, group: Group, where: Diagnostics | None = None) -> Steps:
        """Move the model to its device and create everything that steps need."""
        engine = self._make_engine(group, self.run)
        config, rows = self.model.config, rows_of_process(self.settings.batch, group)
        source = sources.open_batches(self.data, self.settings, group, rows=rows, config=config)
        return Steps(
            state=engine.state,
            engine=engine,
            feed=self.backend.make_feed(source, group, config),
            counters=self.backend.make_counters(group),
            length=self._length(),
            group=group,
            data=self.data,
            where=where or Diagnostics(watch=False),
        )

    def _make_engine(self, group: Group, run: RunFolder | None) -> Engine:
        """Bring the model to its device, with the weights of `run` where it has any."""
        settings = self.settings
        if self._is_divided:
            raise UsageError(
                "fsdp has divided this model among the processes of an earlier fit() or evaluate()",
                next_step="give a new model to another Trainer, which goes on with resume=True; "
                "what fit() evaluated last is TrainResult.val_loss",
            )
        sources.bound_ids(self.model.config, self.data, self._held_out(), self.tokenizer)
        rows = rows_of_process(settings.batch, group)
        state = RunState(micro_batch=min(settings.batch.batch_size, rows))
        if run is not None:  # before it is divided, while its tensors are whole
            run.load_weights(functools.partial(self.backend.load_weights, self.model))
        self._is_divided = group.world_size > 1 and settings.machine.parallel == "fsdp"
        return self.backend.make_engine(
            self.model,
            settings,
            state,
            group,
            rows=rows,
            given=self._given_optimizer,
            tokenizer=self.tokenizer,
            note=self._tell,
        )

    def _run_to_evaluate(self) -> RunFolder | None:
        """The run that fit() went on with, or would; None if it began or would begin one."""
        settings = self.settings.run
        if not self._has_fitted and (settings.overwrite or not settings.resume):
            return None
        # Not self.run, which remembers what it found: fit() looks again, and sets damage aside.
        run = RunFolder(self.run.root, keep=self.settings.saving.keep_checkpoints)
        if run.find_whole(self._tell) is None:
            return None
        if not self._has_fitted:
            if not self.goes_on:
                require_same_model(run, self.model)
            self._require_tokenizer(run)
        return run

    def _length(self) -> RunLength:
        settings, data = self.settings, self.data
        steps = total_steps(
            settings.length,
            count_parameters(self.model.config),
            data,
            rows_per_step=settings.batch.rows_per_step,
            tokens_per_step=settings.tokens_per_step,
        )
        by_epochs = steps is None and settings.length.epochs is not None
        is_sized = isinstance(data, StreamingDataLoader) and data.estimated_windows is not None
        return RunLength(
            settings.length, settings.learning, steps, follows_share=by_epochs and is_sized
        )

    def _open_loop(
        self,
        steps: Steps,
        where: Diagnostics,
        progress: Progress,
        stack: ExitStack,
    ) -> Loop:
        """Open what a run shows, keeps and watches; `stack` closes it."""
        settings, group = self.settings, steps.group
        sinks = stack.enter_context(MetricSinks(settings, progress, group.is_first))
        stack.enter_context(where)
        signals = stack.enter_context(StopSignals(self._tell))
        stack.callback(steps.feed.close)
        background = settings.saving.save_in_background
        data = [self.data, *self._held_out().values()]
        saver = stack.enter_context(
            CheckpointSaver(
                self.run,
                background=group.saves_beside if background is None else background,
                rename=self.backend.portable,
                snapshot=self.backend.make_snapshot,
            )
        )
        return Loop(
            settings=settings,
            config=self.model.config,
            steps=steps,
            evaluator=self._evaluator(steps.engine, group),
            watch=ForgettingWatch(
                settings.evaluation.forgetting_tolerance,
                learning_rate=steps.engine.learning_rate,
                replay=settings.replay,
            ),
            run=self.run,
            tokenizer=self.tokenizer,
            saver=saver,
            sinks=sinks,
            signals=signals,
            where=where,
            note=self._tell,
            callbacks=self._callbacks,
            check=stack.enter_context(DataCheck(data, wanted=settings.data.check_data)),
        )

    def _evaluator(self, engine: Engine, group: Group) -> RunEvaluator:
        return RunEvaluator(
            engine,
            self.settings,
            group,
            rows=rows_of_process(self.settings.batch, group),
            datasets=self._held_out(),
            tokenizer=self.tokenizer,
        )

    def _held_out(self) -> dict[str, Any]:
        named = {f"eval_{name}": dataset for name, dataset in self.eval_data.items()}
        return {**({"val": self.val_data} if self.val_data is not None else {}), **named}

    def _claim(self, group: Group) -> dict[str, str]:
        """The identity of a new run; refuses what neither begins this run nor goes on with it."""
        run, settings = self.run, self.settings
        require_same_settings(group, settings)  # before anything is removed
        require_same_data(group, {"data": self.data, **self._held_out()})
        if group.is_first:
            require_own_run(run.root)
            if settings.run.overwrite:
                run.clear()
            run.find_whole(self._tell, set_aside=True)
        group.wait()
        newest = run.find_whole(self._tell)
        require_same_checkpoint(group, run.root, newest)
        if newest is None:
            sources.require_row_length(settings.model, self.data)
            return {} if self.goes_on else {"weights": weights_fingerprint(self.model)}
        if not settings.run.resume:
            raise run_exists(run.root)
        if not self.goes_on:
            require_same_model(run, self.model)
        known = None if self._given_optimizer else optimizer_of(run.load_numbers())
        self.settings = continued_settings(run.root, settings, optimizer=known, note=self._tell)
        self._require_tokenizer(run)
        return {}

    def _require_tokenizer(self, run: RunFolder) -> None:
        own = run.root / TOKENIZER_NAME
        if self.tokenizer is not None and own.is_file():
            require_own_tokenizer(self.tokenizer, Tokenizer.load(run.root), run.root)

    def _take_rows(self, state: RunState, group: Group, budget: int, rows: int | None) -> None:
        """Reduce the micro-batch to what the device (`rows`) or the budget allows."""
        settings = self.settings
        if group.on_cpu:
            rows = rows_in_budget(
                self.backend,
                self.model,
                settings,
                data=self.data,
                program=self.program,
                budget_bytes=budget,
                has_own_optimizer=self._given_optimizer is not None,
            )
        # Processes synchronize: all have the same number of micro-batches.
        rows = group.least(state.micro_batch if rows is None else min(rows, state.micro_batch))
        if rows < state.micro_batch:
            state.micro_batch = rows
            self._tell(
                f"micro-batches of {counted(rows, 'row')} keep the budget; a step still sees "
                f"{settings.batch.rows_per_step} rows"
            )

    def _resume(self, loop: Loop, identity: Mapping[str, str]) -> None:
        """Create the run's folder, or restore everything from its newest checkpoint."""
        run, steps, config = self.run, loop.steps, self.model.config
        group = steps.group
        if group.is_first:
            run.create()
        group.wait()
        if not run.exists():
            if group.is_first:
                write_settings(run.root, self.settings, identity=identity)
                if self.tokenizer is not None:
                    run.save_tokenizer(self.tokenizer, config)
            return
        numbers = run.load_numbers()
        with readable_numbers(run.newest_dir()):
            folder = steps.engine.load_state(run, numbers)
            loop.watch.load_state_dict(numbers["forgetting"])
            steps.load_numbers(numbers)
        is_over = loop.why_over() is not None  # then no step has the settings given now
        if group.is_first and not is_over:
            change_settings(run.root, self.settings, config, step=steps.state.step, note=self._tell)
        if group.is_first:
            run.forget_metrics_after(steps.state.step, steps.state.evaluated_step)
        self._tell(f"going on from step {steps.state.step} ({folder})")

    def _describe(self, steps: Steps) -> None:
        lines = describe_coverage(self.settings, self.model.config, steps.length.steps, self.data)
        for line in (*lines, *steps.engine.notes):
            self._tell(line)

    def _tell(self, text: str) -> None:
        self._note(text)  # looked up on each call, since progress is created after prepare
