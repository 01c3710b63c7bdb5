"""Loss of a torch network on datasets, summed on its device.

In:      a network, datasets by name
Out:     EvalResult per dataset
Memory:  less than a training step: the same rows, no gradients, logits in chunks
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.loader.windows import TokenDataset
from lowtide.model.gpt import GPT
from lowtide.model.weights import NETWORKS, load_in_turns
from lowtide.tokenizer import Tokenizer
from lowtide.training.likelihood import Score, Scorer, TextIds
from lowtide.training.results import (
    EvalResult,
    evaluate_windows,
    token_bytes,
)

__all__ = [
    "EVALUATOR",
    "LossSums",
    "evaluate_loss",
    "score_rows",
    "token_byte_counts",
]


def token_byte_counts(tokenizer: Tokenizer) -> Tensor:
    """Return the bytes of every token; special tokens are not text and have none."""
    return torch.from_numpy(token_bytes(tokenizer))


class LossSums:
    """Losses of a network, summed on its device until the end."""

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
        """Add the loss of some windows; not `counted`: only computed, to match other processes."""
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
    """Set a network to evaluation mode, and restore its mode afterwards."""
    was_training = isinstance(network, nn.Module) and network.training
    if isinstance(network, nn.Module):
        network.eval()
    try:
        yield
    finally:
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
    """Do not compile for the shape of a last, smaller batch.

    If torch's compiler is not imported, nothing is compiled, and it is not imported here either.
    """
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _pair(like: Tensor, tokens: int, num_bytes: Tensor | int) -> tuple[Tensor, Tensor]:
    return (
        torch.full((), tokens, dtype=like.dtype, device=like.device),
        torch.as_tensor(num_bytes, dtype=like.dtype, device=like.device),
    )


@torch.inference_mode()
def score_rows(model: GPT, texts: list[TextIds]) -> list[Score]:
    """Score the last ids of each text, all texts at once."""
    length = max(len(ids) for ids, _ in texts) - 1
    batch = torch.zeros(len(texts), length, dtype=torch.long)
    for number, (ids, _) in enumerate(texts):
        batch[number, : len(ids) - 1] = torch.tensor(ids[:-1])
    hidden = model.hidden(batch.to(model.device))
    scores: list[Score] = []
    for number, (ids, count) in enumerate(texts):
        wanted = torch.tensor(ids[-count:], device=model.device)
        states = hidden[number, len(ids) - 1 - count : len(ids) - 1]
        total, greedy = 0.0, True
        for part, targets in zip(
            states.split(model.loss_chunk_tokens),
            wanted.split(model.loss_chunk_tokens),
            strict=True,
        ):
            logs = model.logits(part).float().log_softmax(-1)
            total += logs.gather(1, targets[:, None]).double().sum().item()
            greedy = greedy and bool((logs.argmax(-1) == targets).all())
        scores.append(Score(total, greedy))
    return scores


class _TorchEvaluator:
    """Losses and answers of torch's networks; the methods are documented in Evaluator."""

    networks = NETWORKS

    def load_in_turns(self, folder: Path) -> GPT:
        return load_in_turns(folder)

    def sums(
        self, model: GPT, place: torch.device, tokenizer: Tokenizer, *, batch_size: int
    ) -> LossSums:
        counts = token_byte_counts(tokenizer)
        return LossSums(model, device=place, batch_size=batch_size, byte_counts=counts)

    def scorer(self, model: GPT, place: torch.device, *, batch_size: int) -> Scorer:
        return functools.partial(score_rows, model)


EVALUATOR = _TorchEvaluator()
