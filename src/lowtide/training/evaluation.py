"""Loss and bits per byte on datasets, always on the same windows; and forgetting, made visible.

In:      a network, datasets by name
Out:     EvalResult per dataset; a warning with what to do when another dataset's loss rises
Memory:  less than a training step: the same rows, no gradients, logits in chunks
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowtide.errors import DataError
from lowtide.generation.decoding import generate_text
from lowtide.loader.windows import TokenDataset
from lowtide.model.companions import require_vocabulary
from lowtide.model.config import GPTConfig, find_model_dir, load_config
from lowtide.model.devices import device_memory, pick_device
from lowtide.model.inference import budget_of, fit_rows, usual_tokens
from lowtide.model.weights import load_model
from lowtide.progress import Progress, run_metrics_path
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training.distributed import ProcessGroup
from lowtide.training.likelihood import (
    TaskResult,
    TaskSize,
    answer_questions,
    measure_questions,
)
from lowtide.training.settings import EVAL_BATCH_ROWS, EvaluateSettings, TrainSettings
from lowtide.training.stepping import Stepper
from lowtide.training.tasks import iter_questions

__all__ = [
    "EvalResult",
    "ForgettingWatch",
    "RunEvaluator",
    "evaluate",
    "evaluate_loss",
    "token_byte_counts",
]


@dataclass(frozen=True)
class EvalResult:
    """How well a model predicts a dataset."""

    loss: float
    """Mean loss in nats per token."""
    bits_per_byte: float | None
    """Bits to write one byte of the text, which compares across tokenizers; None without one."""
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """e to the loss."""
        return math.exp(min(self.loss, 700.0))


def token_byte_counts(tokenizer: Tokenizer) -> Tensor:
    """Return the bytes of every token; special tokens are no text and count nothing."""
    counts = torch.tensor([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)])
    for token in tokenizer.special_tokens.values():
        counts[token] = 0
    return counts


def evaluation_windows(
    num_windows: int, wanted: int | None, *, first: int = 0, count: int | None = None
) -> np.ndarray[Any, Any]:
    """Choose windows evenly over a dataset: always the same, from all of it.

    With `count` only so many of them, from number `first` on: all of a large dataset's are many.
    """
    total = num_windows if wanted is None else min(wanted, num_windows)
    places = np.arange(first, total if count is None else min(first + count, total))
    return places if total == num_windows else places * num_windows // total


@torch.no_grad()
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
    total_windows = len(dataset) if num_windows is None else min(num_windows, len(dataset))
    precise = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(3, dtype=precise, device=device)  # nats, tokens, bytes
    was_training = isinstance(network, nn.Module) and network.training
    if isinstance(network, nn.Module):
        network.eval()
    counts = None if byte_counts is None else byte_counts.to(device)
    starts = range(0, total_windows, batch_size)
    # Every process runs as many batches, so that none waits for another (FSDP gathers in forward).
    for turn in range(-(-len(starts) // world_size)):
        mine = turn * world_size + rank
        counted = mine < len(starts)
        first = starts[mine if counted else 0]
        windows = evaluation_windows(len(dataset), num_windows, first=first, count=batch_size)
        inputs, targets = dataset.get_batch(windows)
        ids = torch.from_numpy(inputs).to(device)
        wanted_ids = torch.from_numpy(targets).to(device)
        with autocast(), _uncompiled() if len(ids) < batch_size else contextlib.nullcontext():
            loss = network(ids, wanted_ids)
        if counted:
            num_bytes = 0 if counts is None else counts[wanted_ids].sum()
            sums += torch.stack(
                [loss.to(precise) * ids.numel(), *_pair(sums, ids.numel(), num_bytes)]
            )
        on_windows(len(inputs))
    if isinstance(network, nn.Module):
        network.train(was_training)
    nats, tokens, num_bytes = total(sums).tolist()
    bits = None if num_bytes == 0 else nats / math.log(2) / num_bytes
    return EvalResult(nats / tokens, bits, round(tokens))


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


class RunEvaluator:
    """Evaluates a network in training on every dataset of its run; each process takes its share."""

    def __init__(
        self,
        stepper: Stepper,
        settings: TrainSettings,
        group: ProcessGroup,
        *,
        rows: int,
        datasets: Mapping[str, TokenDataset],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._stepper, self._settings, self._group, self._rows = stepper, settings, group, rows
        self._datasets, self._tokenizer = datasets, tokenizer
        self._byte_counts = None if tokenizer is None else token_byte_counts(tokenizer)

    def evaluate_all(self) -> dict[str, EvalResult]:
        """Return a result per dataset."""
        return {name: self.evaluate_one(dataset) for name, dataset in self._datasets.items()}

    def evaluate_one(self, dataset: TokenDataset) -> EvalResult:
        """Return the loss of the weights as they are, in the run's precision."""
        group, stepper = self._group, self._stepper
        return evaluate_loss(
            stepper.forward,
            dataset,
            device=group.device,
            batch_size=max(1, min(stepper.state.micro_batch, self._rows)),
            num_windows=self._settings.eval_iters * EVAL_BATCH_ROWS,
            byte_counts=self._byte_counts,
            autocast=stepper.autocast,
            rank=group.rank,
            world_size=group.world_size,
            total=lambda sums: group.mean(sums) * group.world_size,
        )

    def sample(self) -> str:
        """Write a little text with the weights as they are; its dice are its own."""
        settings = self._settings
        is_divided = self._group.world_size > 1 and settings.parallel == "fsdp"
        if not settings.sample_tokens or self._tokenizer is None or is_divided:
            return ""
        text = generate_text(
            self._stepper.model,
            self._tokenizer,
            settings.sample_prompt,
            max_new_tokens=settings.sample_tokens,
            seed=settings.seed,
        )
        return text if isinstance(text, str) else text[0]


class ForgettingWatch:
    """Remembers each other dataset's loss before training, and says when it has risen too far."""

    def __init__(self, tolerance: float, *, learning_rate: float = 3e-4) -> None:
        self.tolerance = tolerance
        self.learning_rate = learning_rate
        self.first: dict[str, float] = {}
        self.times_in_a_row = 0

    def check(self, losses: Mapping[str, float]) -> str | None:
        """Take the losses of an evaluation; give a warning, or None when all is well."""
        risen: list[str] = []
        for name, loss in losses.items():
            before = self.first.setdefault(name, loss)
            if loss > before + self.tolerance:
                risen.append(f"{name} {before:.2f} -> {loss:.2f}")
        self.times_in_a_row = self.times_in_a_row + 1 if risen else 0
        if not risen:
            return None
        return (
            f"warning: the model is forgetting: {', '.join(risen)}. What helps: a lower "
            f"--learning-rate ({self.learning_rate / 4:.2g} instead of {self.learning_rate:.2g}), "
            "fewer steps, a longer --warmup, or --replay-dataset-dir with general data"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what was remembered."""
        return {"first": self.first, "times_in_a_row": self.times_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.first = dict(state["first"])
        self.times_in_a_row = int(state["times_in_a_row"])


@dataclass(frozen=True)
class _Task:
    """A file of questions, and how it is computed."""

    path: Path
    size: TaskSize
    rows: int


def evaluate(
    settings: EvaluateSettings | None = None, /, **options: Any
) -> dict[str, EvalResult | TaskResult]:
    """Evaluate a model on datasets; give a result per name."""
    settings = settings or build_settings(EvaluateSettings, options)
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
        rows = fit_rows(config, rows, progress.budget_bytes or 0, tokens=tokens)
        if rows < settings.batch_size:
            progress.note(f"{rows} rows at once keep the budget")
    model = load_model(folder, device=device)
    counts = token_byte_counts(tokenizer)
    results: dict[str, EvalResult | TaskResult] = {}
    for entry in settings.dataset_dir:
        name, equals, path = entry.partition("=")
        name, path = (name, path) if equals else (Path(entry).name, entry)
        dataset = TokenDataset(
            path,
            split=settings.split,
            sequence_length=settings.seq_len or usual_tokens(model.config),
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
        size = measure_questions(tokenizer, iter_questions(path), max_tokens=longest)
        rows = settings.batch_size
        if size.questions == 0:
            raise DataError("there are no questions in it", path=path)
        if device.type == "cpu":
            rows = fit_rows(config, rows, progress.budget_bytes or 0, tokens=size.tokens)
        tasks[name] = _Task(path, size, rows)
    return tasks


def require_same_tokenizer(dataset: TokenDataset, tokenizer: Tokenizer, owner: str) -> None:
    """Refuse a dataset whose ids mean other text than the tokenizer's."""
    theirs = dataset.tokenizer_fingerprint
    if theirs is not None and theirs != tokenizer.fingerprint:
        raise DataError(
            f"the dataset was made with another tokenizer ({theirs[:12]}) than {owner} "
            f"({tokenizer.name}, {tokenizer.fingerprint[:12]}): the same ids mean other text",
            path=dataset.source.path,
            next_step="lowtide prepare … --tokenization RUN_FOLDER makes a dataset that fits",
        )
