"""`lowtide evaluate`: losses on datasets and answers to questions, computed by torch or by JAX.

In:      EvaluateSettings
Out:     EvalResult per dataset, TaskResult per file of questions
Memory:  the network (on a CPU with little memory its tables and one block), some rows at once,
         logits in chunks

Neither backend is imported here: only the one in use has to be installed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lowtide.counts import counted
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.filenames import SETTINGS_NAME
from lowtide.files import read_json
from lowtide.keywords import takes_keywords
from lowtide.loader.datachecks import FINISH_SECONDS, DataCheck
from lowtide.loader.windows import TokenDataset
from lowtide.model.companions import companions_dir, require_vocabulary
from lowtide.model.config import GPTConfig, find_model_dir, find_weights_dir, load_config
from lowtide.model.inference import budget_of, fit_rows, in_turns_bytes, usual_tokens
from lowtide.model.networks import Networks
from lowtide.model.program import program_here
from lowtide.notebooks import ResultDict
from lowtide.packages import naming_missing_packages
from lowtide.progress import Progress, run_metrics_path
from lowtide.quickclasses import dataclass
from lowtide.stores.extents import buffer_bytes
from lowtide.stores.urls import is_store_url
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.needs import vocabulary_bytes
from lowtide.training.likelihood import (
    Scorer,
    TaskResult,
    TaskSize,
    answer_questions,
    measure_questions,
)
from lowtide.training.questions import held_text_bytes, iter_questions, longest_line
from lowtide.training.results import (
    EvalResult,
    EvalSums,
    evaluate_windows,
    require_same_tokenizer,
)
from lowtide.training.settinggroups import DataSettings
from lowtide.training.settings import EVAL_BATCH_ROWS, EvaluateSettings
from lowtide.waiting import sleep_while_waiting

__all__ = ["Evaluator", "evaluate", "fetched_bytes"]

_MODULES = {"torch": "lowtide.training.evaluation", "jax": "lowtide.jaxtraining.evaluation"}


class Evaluator(Protocol):
    """The operations that a backend implements for this command."""

    networks: Networks

    @property
    def load_in_turns(self) -> Callable[[Path], Any] | None:
        """A loader of networks that read each block when it is computed; None if unsupported."""
        ...

    def sums(self, model: Any, place: Any, tokenizer: Tokenizer, *, batch_size: int) -> EvalSums:
        """Losses of windows, summed on the device."""
        ...

    def scorer(self, model: Any, place: Any, *, batch_size: int) -> Scorer:
        """A function that scores the last ids of some texts, at most `batch_size` at once."""
        ...


def _open_evaluator(settings: EvaluateSettings) -> Evaluator:
    with naming_missing_packages("evaluating"):
        return importlib.import_module(_MODULES[settings.chosen_backend()]).EVALUATOR


@dataclass(frozen=True)
class _Task:
    """A file of questions, and its batch size."""

    path: Path
    size: TaskSize
    rows: int


@dataclass(frozen=True)
class _Loaded:
    """A model on its device, and its evaluator."""

    evaluator: Evaluator
    network: Any
    place: Any
    tokenizer: Tokenizer


@takes_keywords(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> dict[str, EvalResult | TaskResult]:
    """Evaluate a model on datasets; return a result per name."""
    sleep_while_waiting()
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    evaluator = _open_evaluator(settings)
    place = evaluator.networks.open(settings.device)
    with Progress(
        "evaluate",
        budget_bytes=budget_of(settings.memory),
        metrics_path=run_metrics_path(run_dir),
        device_memory=evaluator.networks.device_memory(place),
    ) as progress:
        folder = find_weights_dir(run_dir, best=settings.best)
        return _evaluate_all(settings, folder, evaluator, place, progress)


def _evaluate_all(
    settings: EvaluateSettings, folder: Path, evaluator: Evaluator, place: Any, progress: Progress
) -> dict[str, EvalResult | TaskResult]:
    config = load_config(folder)
    named = settings.tokenization or companions_dir(folder)
    fit = _Fitter(settings, config, evaluator, place, progress, vocabulary_bytes(named))
    tokenizer = Tokenizer.load(named)
    require_vocabulary(tokenizer, config, folder)
    if settings.dataset_dir and (settings.seq_len or 0) > config.context_length:
        raise UsageError(
            f"{settings.seq_len} tokens do not fit a context of {config.context_length}",
            next_step=f"give --seq-len {config.context_length} or less, or leave it out",
        )
    tasks = _measure_tasks(settings, tokenizer, config, fit)
    rows, seq_len = settings.batch_size, settings.seq_len or usual_tokens(config)
    if settings.dataset_dir:
        rows = fit(rows, seq_len, fetched_bytes(settings))
        if rows < settings.batch_size:
            progress.note(f"{counted(rows, 'row')} at once keep the budget")
    model = _Loaded(evaluator, fit.load(folder, place), place, tokenizer)
    results: dict[str, EvalResult | TaskResult] = ResultDict()
    share = _val_fraction(folder)
    for name, path in settings.datasets().items():
        dataset = TokenDataset(
            path,
            split=settings.split,
            seq_len=seq_len,
            dtype=settings.dtype,
            val_fraction=share,
            vocab_size=tokenizer.vocab_size,
            eval_only=settings.split == "val" and Path(path).is_dir(),
        )
        require_same_tokenizer(dataset, tokenizer, f"model {settings.model_name}")
        results[name] = _evaluate_dataset(settings, name, dataset, model, rows, progress)
    for name, task in tasks.items():
        results[name] = _answer_task(name, task, model, progress)
    return results


def _val_fraction(folder: Path) -> float:
    """The share of a single file that the run kept for validation; the usual one if it kept none.

    With another share, text that the run was trained on would be evaluated, or not all of the rest.
    """
    path = companions_dir(folder) / SETTINGS_NAME
    if folder.name == "best" and not path.is_file():  # a run may have that name, too
        path = folder.parent / SETTINGS_NAME
    saved = read_json(path) if path.is_file() else {}
    share = saved.get("val_fraction") if isinstance(saved, dict) else None
    return share if isinstance(share, float) and 0 < share < 1 else DataSettings.val_fraction


def _evaluate_dataset(
    settings: EvaluateSettings,
    name: str,
    dataset: TokenDataset,
    model: _Loaded,
    rows: int,
    progress: Progress,
) -> EvalResult:
    """The loss of windows, while their files are verified by checksum."""
    wanted = settings.eval_iters and settings.eval_iters * EVAL_BATCH_ROWS
    num_windows = min(wanted or len(dataset), len(dataset))
    with (
        progress.phase(name, total=num_windows, unit="windows") as phase,
        DataCheck([dataset], wanted=settings.check_data) as check,
    ):
        check.start()
        result = evaluate_windows(
            model.evaluator.sums(model.network, model.place, model.tokenizer, batch_size=rows),
            dataset,
            batch_size=rows,
            num_windows=wanted,
            on_windows=phase.advance,
        )
        if (rest := check.finish(FINISH_SECONDS)) is not None:
            progress.note(rest)
        check.require_whole()
    return result


def _answer_task(name: str, task: _Task, model: _Loaded, progress: Progress) -> TaskResult:
    """The results on a file of questions, which are also written to the metrics."""
    with progress.phase(name, total=task.size.questions, unit="questions") as phase:
        result = answer_questions(
            model.evaluator.scorer(model.network, model.place, batch_size=task.rows),
            model.tokenizer,
            iter_questions(task.path),
            rows=task.rows,
            max_tokens=task.size.tokens,
            on_questions=phase.advance,
        )
    progress.write_metrics({"event": "task", "task": name, **dataclasses.asdict(result)})
    return result


def fetched_bytes(settings: EvaluateSettings) -> int:
    """Memory for reading datasets from an object store; 0 without any."""
    return buffer_bytes() if any(map(is_store_url, settings.datasets().values())) else 0


class _Fitter:
    """Finds how many rows fit the budget, and whether all weights do at once.

    The program's memory is measured first, before weights and tokenizer are loaded, which are
    counted separately.
    """

    def __init__(
        self,
        settings: EvaluateSettings,
        config: GPTConfig,
        evaluator: Evaluator,
        place: Any,
        progress: Progress,
        tokenizer_bytes: int,
    ) -> None:
        self._config, self._evaluator, self._progress = config, evaluator, progress
        self._load_in_turns: Callable[[Path], Any] | None = None
        self._options: dict[str, Any] | None = None  # stays None on a GPU, which has its own memory
        if evaluator.networks.is_cpu(place):
            backend = settings.chosen_backend()
            program = program_here(0, device=settings.device, backend=backend)
            self._options = {"program": program, "is_running": True, "backend": backend}
            self._options["tokenizer_bytes"] = tokenizer_bytes

    def __call__(self, rows: int, tokens: int, other_bytes: int) -> int:
        """The rows of `tokens` tokens that fit besides other bytes, at most `rows`."""
        if self._options is None:
            return rows
        budget = self._progress.budget_bytes or 0
        options: dict[str, Any] = {**self._options, "tokens": tokens, "text_bytes": other_bytes}
        if self._load_in_turns is None:
            try:
                return fit_rows(self._config, rows, budget, **options)
            except BudgetError:
                if self._evaluator.load_in_turns is None:
                    raise
        options["weight_bytes"] = in_turns_bytes(self._config)
        fitting = fit_rows(self._config, rows, budget, **options)
        if self._load_in_turns is None:
            self._progress.note("the budget does not hold all weights: blocks are read in turns")
            self._load_in_turns = self._evaluator.load_in_turns
        return fitting

    def load(self, folder: Path, place: Any) -> Any:
        """The network, loaded whole or block by block, as the rows need it."""
        if self._load_in_turns is not None:
            return self._load_in_turns(folder)
        return self._evaluator.networks.load(folder, place)


def _measure_tasks(
    settings: EvaluateSettings, tokenizer: Tokenizer, config: GPTConfig, fit: _Fitter
) -> dict[str, _Task]:
    """Scan all questions, and choose how many choices are computed at once.

    The largest of all files is measured first, so that an error names a budget for all of them.
    """
    longest = min(settings.seq_len or config.context_length, config.context_length)
    held = {
        name: held_text_bytes(longest_line(path)) for name, path in settings.task_files().items()
    }
    if any(held.values()):  # before it is read; so long a text fills the context
        fit(1, longest, max(held.values()))
    sizes: dict[str, TaskSize] = {}
    for name, path in settings.task_files().items():
        sizes[name] = measure_questions(
            tokenizer, iter_questions(path), max_tokens=longest, path=path
        )
        if sizes[name].questions == 0:
            raise DataError("there are no questions in it", path=path)
    if sizes:
        rows_of_data = [settings.seq_len or usual_tokens(config)] if settings.dataset_dir else []
        most = max([*rows_of_data, *(size.tokens for size in sizes.values())])
        fit(1, most, max(*held.values(), fetched_bytes(settings)))
    return {
        name: _Task(path, sizes[name], fit(settings.batch_size, sizes[name].tokens, held[name]))
        for name, path in settings.task_files().items()
    }
