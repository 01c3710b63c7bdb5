"""Loss of a torch network on datasets: the sums on its device, and `lowtide evaluate`.

In:      a network, datasets by name
Out:     EvalResult per dataset
Memory:  less than a training step: the same rows, no gradients, logits in chunks
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.counts import counted
from lowtide.errors import DataError
from lowtide.keywords import takes_keywords
from lowtide.loader.windows import TokenDataset
from lowtide.model.companions import require_vocabulary
from lowtide.model.config import GPTConfig, find_model_dir, load_config
from lowtide.model.devices import device_memory, pick_device
from lowtide.model.inference import budget_of, fit_rows, usual_tokens
from lowtide.model.weights import load_model
from lowtide.notebooks import ResultDict
from lowtide.progress import Progress, run_metrics_path
from lowtide.stores.extents import buffer_bytes
from lowtide.stores.urls import is_store_url
from lowtide.tokenizer import Tokenizer
from lowtide.training.likelihood import (
    TaskResult,
    TaskSize,
    answer_questions,
    measure_questions,
)
from lowtide.training.results import (
    EvalResult,
    ForgettingWatch,
    RunEvaluator,
    evaluate_windows,
    evaluation_windows,
    require_same_tokenizer,
    token_bytes,
)
from lowtide.training.settings import EVAL_BATCH_ROWS, EvaluateSettings
from lowtide.training.tasks import held_text_bytes, iter_questions, longest_line

__all__ = [
    "EvalResult",
    "ForgettingWatch",
    "LossSums",
    "RunEvaluator",
    "evaluate",
    "evaluate_loss",
    "evaluation_windows",
    "require_same_tokenizer",
    "token_byte_counts",
]


def token_byte_counts(tokenizer: Tokenizer) -> Tensor:
    """Return the bytes of every token; special tokens are no text and count nothing."""
    return torch.from_numpy(token_bytes(tokenizer))


class LossSums:
    """Losses of a network, added up on its device until the end."""

    def __init__(
        self,
        network: nn.Module | Callable[[Tensor, Tensor], Tensor],
        *,
        device: torch.device,
        batch_size: int,
        byte_counts: Tensor | None = None,
        autocast: Callable[[], Any] = contextlib.nullcontext,
        total: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> None:
        self._network, self._device, self._batch_size = network, device, batch_size
        self._autocast, self._total = autocast, total
        self._precise = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(3, dtype=self._precise, device=device)  # nats, tokens, bytes
        self._counts = None if byte_counts is None else byte_counts.to(device)

    @torch.no_grad()
    def add(self, inputs: Any, targets: Any, *, counted: bool) -> None:
        """Compute the loss of some windows; without `counted` only because others do."""
        ids = torch.from_numpy(inputs).to(self._device)
        wanted_ids = torch.from_numpy(targets).to(self._device)
        is_short = len(ids) < self._batch_size
        with self._autocast(), _uncompiled() if is_short else contextlib.nullcontext():
            loss = self._network(ids, wanted_ids)
        if counted:
            num_bytes = 0 if self._counts is None else self._counts[wanted_ids].sum()
            self._sums += torch.stack(
                [
                    loss.to(self._precise) * ids.numel(),
                    *_pair(self._sums, ids.numel(), num_bytes),
                ]
            )

    def totals(self) -> tuple[float, float, float]:
        """Return nats, tokens and bytes, over all processes."""
        nats, tokens, num_bytes = self._total(self._sums).tolist()
        return nats, tokens, num_bytes


@contextlib.contextmanager
def without_dropout(network: Any) -> Generator[None]:
    """Evaluate a network, and let it go on as it was."""
    was_training = isinstance(network, nn.Module) and network.training
    if isinstance(network, nn.Module):
        network.eval()
    yield
    if isinstance(network, nn.Module):
        network.train(was_training)


def evaluate_loss(
    network: nn.Module | Callable[[Tensor, Tensor], Tensor],
    dataset: TokenDataset,
    *,
    device: torch.device,
    batch_size: int,
    num_windows: int | None = None,
    byte_counts: Tensor | None = None,
    autocast: Callable[[], Any] = contextlib.nullcontext,
    rank: int = 0,
    world_size: int = 1,
    total: Callable[[Tensor], Tensor] = lambda value: value,
    on_windows: Callable[[int], None] = lambda count: None,
) -> EvalResult:
    """Return the mean loss over evenly spaced windows; sums stay on the device until the end.

    With several processes each takes every `world_size`-th batch, and `total` adds up.
    """
    sums = LossSums(
        network,
        device=device,
        batch_size=batch_size,
        byte_counts=byte_counts,
        autocast=autocast,
        total=total,
    )
    with without_dropout(network):
        return evaluate_windows(
            sums,
            dataset,
            batch_size=batch_size,
            num_windows=num_windows,
            rank=rank,
            world_size=world_size,
            on_windows=on_windows,
        )


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """A last, smaller batch is not worth compiling the network for another shape.

    Where nothing has imported torch's compiler, nothing is compiled, and it stays away.
    """
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _pair(like: Tensor, tokens: int, num_bytes: Tensor | int) -> tuple[Tensor, Tensor]:
    return (
        torch.full((), tokens, dtype=like.dtype, device=like.device),
        torch.as_tensor(num_bytes, dtype=like.dtype, device=like.device),
    )


@dataclass(frozen=True)
class _Task:
    """A file of questions, and how it is computed."""

    path: Path
    size: TaskSize
    rows: int


@takes_keywords(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> dict[str, EvalResult | TaskResult]:
    """Evaluate a model on datasets; return a result per name."""
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    device = pick_device(settings.device)
    with Progress(
        "evaluate",
        budget_bytes=budget_of(settings.memory),
        metrics_path=run_metrics_path(run_dir),
        device_memory=device_memory(device),
    ) as progress:
        folder = run_dir / "best" if settings.best else run_dir
        return _evaluate_all(settings, folder, device, progress)


def _evaluate_all(
    settings: EvaluateSettings, folder: Path, device: torch.device, progress: Progress
) -> dict[str, EvalResult | TaskResult]:
    tokenizer = Tokenizer.load(settings.tokenization or folder)
    rows, config = settings.batch_size, load_config(folder)
    require_vocabulary(tokenizer, config, folder)
    tasks = _measure_tasks(settings, tokenizer, config, device, progress)
    if device.type == "cpu" and settings.dataset_dir:
        tokens = settings.seq_len or usual_tokens(config)
        fetched = buffer_bytes() if any(map(is_store_url, settings.dataset_dir)) else 0
        rows = fit_rows(config, rows, (progress.budget_bytes or 0) - fetched, tokens=tokens)
        if rows < settings.batch_size:
            progress.note(f"{counted(rows, 'row')} at once keep the budget")
    model = load_model(folder, device=device)
    counts = token_byte_counts(tokenizer)
    results: dict[str, EvalResult | TaskResult] = ResultDict()
    for entry in settings.dataset_dir:
        name, equals, path = entry.partition("=")
        name, path = (name, path) if equals else (Path(entry).name, entry)
        dataset = TokenDataset(
            path,
            split=settings.split,
            seq_len=settings.seq_len or usual_tokens(model.config),
            dtype=settings.dtype,
            vocab_size=tokenizer.vocab_size,
            eval_only=settings.split == "val" and Path(path).is_dir(),
        )
        require_same_tokenizer(dataset, tokenizer, f"model {settings.model_name}")
        wanted = settings.eval_iters and settings.eval_iters * EVAL_BATCH_ROWS
        num_windows = min(wanted or len(dataset), len(dataset))
        with progress.phase(name, total=num_windows, unit="windows") as phase:
            results[name] = evaluate_loss(
                model,
                dataset,
                device=device,
                batch_size=rows,
                num_windows=wanted,
                byte_counts=counts,
                on_windows=phase.advance,
            )
    for name, task in tasks.items():
        with progress.phase(name, total=task.size.questions, unit="questions") as phase:
            result = answer_questions(
                model,
                tokenizer,
                iter_questions(task.path),
                rows=task.rows,
                max_tokens=task.size.tokens,
                on_questions=phase.advance,
            )
        row = {"event": "task", "task": name, **dataclasses.asdict(result)}
        progress.write_metrics(row)
        results[name] = result
    return results


def _measure_tasks(
    settings: EvaluateSettings,
    tokenizer: Tokenizer,
    config: GPTConfig,
    device: torch.device,
    progress: Progress,
) -> dict[str, _Task]:
    """Look through all questions, and choose how many choices are computed at once."""
    tasks: dict[str, _Task] = {}
    longest = min(settings.seq_len or config.context_length, config.context_length)
    for name, path in settings.task_files().items():
        held, budget = held_text_bytes(longest_line(path)), progress.budget_bytes or 0
        if held and device.type == "cpu":  # before it is read; so long a text fills the context
            fit_rows(config, 1, budget, tokens=longest, text_bytes=held)
        size = measure_questions(tokenizer, iter_questions(path), max_tokens=longest)
        rows = settings.batch_size
        if size.questions == 0:
            raise DataError("there are no questions in it", path=path)
        if device.type == "cpu":
            rows = fit_rows(config, rows, budget, tokens=size.tokens, text_bytes=held)
        tasks[name] = _Task(path, size, rows)
    return tasks
