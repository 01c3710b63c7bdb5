"""torch as the backend of a run: devices and processes, networks, and the engine of each run.

In:      shapes, settings, folders with weights
Out:     BACKEND, which the training loop calls (backends.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.devices import cap_device_memory, device_memory, pick_device
from lowtide.model.gpt import GPT
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.weights import load_weights, portable_tensors
from lowtide.tokenizer import Tokenizer
from lowtide.training.batchsources import BatchSource
from lowtide.training.counters import Counters
from lowtide.training.distributed import ProcessGroup, open_process_group
from lowtide.training.feeding import Feed
from lowtide.training.hostcopies import HostCopy
from lowtide.training.modules import WrappedModule, refuse_options
from lowtide.training.settings import TrainSettings
from lowtide.training.sharedrows import SharedRows
from lowtide.training.spelling import find_spelling
from lowtide.training.state import RunState
from lowtide.training.stepping import Stepper

__all__ = ["BACKEND"]


class _TorchBackend:
    """Networks of torch; the methods are documented in Backend."""

    def device_kind(self, device: str) -> str:
        return pick_device(device).type

    def open_group(self, device: str) -> AbstractContextManager[ProcessGroup]:
        return open_process_group(device)

    def device_memory(self, group: ProcessGroup) -> Callable[[], tuple[int, int]] | None:
        return device_memory(group.device)

    def new_model(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> GPT:
        torch.manual_seed(seed)
        model = GPT(config)
        if zero_init:
            model.zero_outputs()
        return model

    def set_embedding(self, model: GPT, rows: np.ndarray[Any, Any]) -> None:
        with torch.no_grad():
            model.embedding.weight.copy_(torch.from_numpy(rows))

    def load_weights(
        self, model: GPT | WrappedModule, folder: Path, *, verify: bool = True
    ) -> None:
        if isinstance(model, WrappedModule):
            model.load_weights(folder, verify=verify)
            return
        load_weights(model, folder, verify=verify)

    def held_bytes(self, model: nn.Module) -> int:
        return sum(p.numel() * p.element_size() for p in model.parameters())

    def make_engine(
        self,
        model: GPT | WrappedModule,
        settings: TrainSettings,
        state: RunState,
        group: ProcessGroup,
        *,
        rows: int,
        given: torch.optim.Optimizer | None,
        note: Callable[[str], None],
        tokenizer: Tokenizer | None = None,
    ) -> Stepper:
        if isinstance(model, WrappedModule):
            refuse_options(settings)
        if given is not None and settings.learning.embedding_decay_to == "first":
            raise UsageError(
                "embedding_decay_to is 'first', which needs an optimizer of lowtide",
                next_step="leave embedding_decay_to out, or leave the optimizer out",
            )
        if given is not None:
            _require_own(given, model)
        cap_device_memory(group.device, settings.machine.vram)
        return Stepper(
            model,
            settings,
            state,
            group,
            rows=rows,
            given=given,
            shared=_find_shared(settings.learning.spelling_rate, model, tokenizer, group, given),
            note=note,
        )

    def make_counters(self, group: ProcessGroup) -> Counters:
        return Counters.zeros(group.device)

    def make_feed(self, source: BatchSource, group: ProcessGroup, config: Any) -> Feed:
        return Feed(source, group.device)

    def make_snapshot(self) -> HostCopy:
        return HostCopy()

    def portable(
        self, weights: Mapping[str, Any], config: GPTConfig | ModuleConfig
    ) -> dict[str, Any]:
        if isinstance(config, ModuleConfig):
            return {
                name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()
            }
        return portable_tensors(weights, config)


def _require_own(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer of another model: this one would not change."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "LBFGS computes the loss several times a step, which only a loop of your own can do",
            next_step="give another optimizer, such as torch.optim.AdamW(model.parameters())",
        )
    theirs = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if theirs.isdisjoint(map(id, model.parameters())):
        raise UsageError(
            "the optimizer that was given has no parameter of this model",
            next_step=f"make it of this model: {type(optimizer).__name__}(model.parameters(), …)",
        )


def _find_shared(
    rate: float,
    model: GPT | WrappedModule,
    tokenizer: Tokenizer | None,
    group: ProcessGroup,
    given: torch.optim.Optimizer | None,
) -> SharedRows | None:
    """The common parts of tokens, for a run with --spelling-rate."""
    if rate == 0:
        return None
    if given is not None or tokenizer is None:
        missing = "an optimizer of lowtide" if given is not None else "a tokenizer"
        raise UsageError(
            f"spelling_rate is {rate}, which needs {missing}",
            next_step="leave spelling_rate out, or "
            + ("leave the optimizer out" if given is not None else "give Trainer the tokenizer"),
        )
    special = set(tokenizer.special_tokens.values())
    tokens = [
        b"" if id in special else tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)
    ]
    spelling = find_spelling(tokens, model.config.vocab_size)
    return SharedRows(spelling, rate, group.device)


BACKEND = _TorchBackend()
