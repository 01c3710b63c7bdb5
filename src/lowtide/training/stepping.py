"""A training step: micro-batches forward and backward, halved when out of memory; one update.

In:      a GPT on its device, one batch
Out:     new weights, and the step's loss, gradient norm and whether it was skipped, on the device
Memory:  gradients, moments, activations of one micro-batch, one chunk of logits
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lowtide.generation.decoding import generate_text
from lowtide.model.float8 import has_float8
from lowtide.model.gpt import GPT
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.model.weights import TensorFile
from lowtide.tokenizer import Tokenizer
from lowtide.training.averaging import WeightAverage
from lowtide.training.checkpoints import RunFolder
from lowtide.training.choosing import (
    adam_betas,
    choose_optimizer,
    embedding_rate,
    muon_momentum,
    peak_learning_rate,
)
from lowtide.training.compiling import compile_network
from lowtide.training.distributed import ProcessGroup, gradient_sync, whole_tensors, wrap_model
from lowtide.training.evaluation import LossSums, token_byte_counts, without_dropout
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.lossforms import loss_form
from lowtide.training.microbatches import halve_micro_batch
from lowtide.training.modules import WrappedModule
from lowtide.training.oldstates import load_moments
from lowtide.training.optimizers import (
    LossScale,
    OptimizerSet,
    build_optimizers,
    inner_matrices,
)
from lowtide.training.schedule import momentum_at
from lowtide.training.settings import TrainSettings
from lowtide.training.sharedrows import SharedRows
from lowtide.training.state import RunState
from lowtide.training.unusedsettings import refuse_unused_by

__all__ = ["Stepper"]

_REST = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# In order of preference: torch uses the first that supports a case.
_ATTENTION = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, *_REST],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, *_REST],
}


class Stepper:
    """The network, its optimizers, and their use in a step."""

    def __init__(
        self,
        model: GPT | WrappedModule,
        settings: TrainSettings,
        state: RunState,
        group: ProcessGroup,
        *,
        rows: int,
        given: torch.optim.Optimizer | None,
        note: Callable[[str], None],
        shared: SharedRows | None = None,
    ) -> None:
        self.model, self.state = model, state
        self._settings, self._group, self._rows, self._note = settings, group, rows, note
        computing, learning = settings.computing, settings.learning
        model.to(group.device)
        model.activation_checkpointing = computing.activation_checkpointing
        self.has_float8 = has_float8(group.device)
        model.use_float8(
            head=computing.float8_head and self.has_float8,
            blocks=computing.float8_blocks and self.has_float8,
        )
        model.loss_chunk_tokens = computing.loss_chunk_tokens or loss_chunk_tokens(
            model.config.vocab_size, on_gpu=group.device.type == "cuda"
        )
        self._network = wrap_model(model, group, parallel=settings.machine.parallel)
        over, self._share_done = learning.average_over, 0.0
        self._average = WeightAverage(model, over) if over > 0 else None
        own = model.module if isinstance(model, WrappedModule) else model
        optimizer = choose_optimizer(
            learning,
            model.config,
            settings.tokens_per_step,
            has_matrices=bool(inner_matrices(own)),
        )
        self.learning_rate = peak_learning_rate(settings, model.config, optimizer)
        refuse_unused_by(optimizer if given is None else given, settings)
        self.optimizers = (
            OptimizerSet([given], model=own, decay_power=_decay_power(learning))
            if given is not None
            else self._build_optimizers(own, optimizer, shared)
        )
        scaled = computing.use_mixed_precision and computing.precision == "fp16"
        self.scale = LossScale(group.device, enabled=scaled)
        self._counted: Tokenizer | None = None
        self._byte_counts: Tensor | None = None
        self.forward: Callable[[Tensor, Tensor], Tensor] = self._network
        if computing.compile:
            whole = computing.compile_whole
            self.forward = compile_network(model, self._network, group, whole=whole)
        self._network.train()

    @property
    def notes(self) -> list[str]:
        """Notices about settings that this device does not support."""
        computing = self._settings.computing
        if self.has_float8 or not (computing.float8_head or computing.float8_blocks):
            return []
        return [f"{self._group.device} has no products of 8-bit floats: bfloat16 instead"]

    def weights(self) -> dict[str, Tensor]:
        """The weights that a run saves, under our names, whole; all processes must ask."""
        if self._average is not None:
            return whole_tensors(self._average.averaged())
        return whole_tensors(dict(self.model.state_dict()))

    def moments(self) -> dict[str, Tensor]:
        """The optimizers' tensors by name, whole; all processes must ask.

        With them the weights as steps change them, where those that are saved are an average.
        """
        stepped = {} if self._average is None else self._average.stepped()
        return whole_tensors({**self.optimizers.moments(), **stepped})

    def numbers(self) -> dict[str, Any]:
        """The parts of the state that are not tensors."""
        return {
            "loss_scale": self.scale.state_dict(),
            "optimizers": self.optimizers.numbers(),
        }

    def load_state(self, run: RunFolder, numbers: dict[str, Any]) -> Path:
        """Restore moments and numbers; those of an old checkpoint are converted."""
        folder = load_moments(self.optimizers, run, numbers, self._group)
        if self._average is not None:
            self._average.load(run.load(TensorFile)[1])
        self.scale.load_state_dict(numbers["loss_scale"])
        return folder

    @contextlib.contextmanager
    def eval_sums(self, tokenizer: Tokenizer | None, *, batch_size: int) -> Generator[LossSums]:
        """Sums of losses with the current weights, in the run's precision."""
        group = self._group
        if tokenizer is not self._counted or self._byte_counts is None:
            self._counted = tokenizer
            self._byte_counts = None if tokenizer is None else token_byte_counts(tokenizer)
        with self._averaged(), without_dropout(self.forward):
            yield LossSums(
                self.forward,
                device=group.device,
                batch_size=batch_size,
                byte_counts=self._byte_counts,
                autocast=self.autocast,
                total=lambda sums: group.mean(sums) * group.world_size,
            )

    def sample(self, tokenizer: Tokenizer) -> str:
        """Continue the run's sample prompt; the run's own random numbers are not affected."""
        output, seed = self._settings.output, self._settings.learning.seed
        with self._averaged():
            if isinstance(self.model, WrappedModule):
                return self.model.sample(tokenizer, output, seed=seed)
            return generate_text(
                self.model,
                tokenizer,
                output.sample_prompt,
                max_new_tokens=output.sample_tokens,
                seed=seed,
            )

    def finish(self) -> None:
        """Leave the network with the weights that were saved."""
        if self._average is not None:
            self._average.exchange()

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._average is None else self._average.in_place()

    def device_peak_bytes(self) -> int | None:
        """Peak memory on a GPU; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self._group.device.type == "cuda" else None

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _build_optimizers(
        self, model: nn.Module, name: str, shared: SharedRows | None
    ) -> OptimizerSet:
        learning = self._settings.learning
        return build_optimizers(
            model,
            name=name,
            learning_rate=self.learning_rate,
            weight_decay=learning.weight_decay,
            betas=adam_betas(self._settings, self.model.config, name),
            use_8bit=learning.use_8bit_optimizer,
            momentum=muon_momentum(self._settings, self.model.config),
            cautious_decay=learning.cautious_decay and name == "muon",  # a preset may give it
            embedding_rate=embedding_rate(self._settings, self.model.config, name),
            embedding_decay=learning.embedding_decay,
            decays_to_first=learning.embedding_decay_to == "first",
            decay_power=_decay_power(learning),
            shared=shared,
        )

    def compute(self, inputs: Tensor, targets: Tensor, *, share_done: float = 0.0) -> Tensor:
        """Sum the gradients of all micro-batches, halved when memory runs out; return the loss.

        `share_done` is the finished share of the run; the form of the loss depends on it.
        """
        learning, self._share_done = self._settings.learning, share_done
        self.model.loss_form = loss_form(learning, share_done)
        if self.model.config.dropout > 0:
            # Random numbers are a function of the step: nothing to save, the same on any resume.
            key = (learning.seed, self.state.step, self._group.rank)
            torch.manual_seed(hash(key) & (2**63 - 1))
        while True:
            try:
                return self._forward_backward(inputs, targets)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
            # Outside the except block, so that the failed attempt's tensors are freed by now.
            self._halve_micro_batch()

    def update(self, loss: Tensor, learning_rate_factor: float) -> tuple[Tensor, Tensor]:
        """Take the step if all gradients are finite; return their norm, and 1 if skipped.

        Nothing here waits for the device.
        """
        learning = self._settings.learning
        momentum = muon_momentum(self._settings, self.model.config)
        warmup_steps = learning.momentum_warmup
        self.optimizers.set_factor(learning_rate_factor)
        self.optimizers.set_momentum(
            momentum_at(self.state.step, momentum=momentum, warmup_steps=warmup_steps)
        )
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = whole_tensors(torch.nn.utils.get_total_norm(gradients)) / self.scale.value
        skip = 1.0 - (norm.isfinite() & loss.isfinite()).float()
        divisor = self.scale.value
        if learning.grad_clip > 0:
            divisor = divisor * (norm / learning.grad_clip).clamp(min=1.0)
        self.optimizers.step(divisor=divisor, skip=skip)
        self.scale.update(skip)
        self.optimizers.zero_grad()
        if self._average is not None:
            self._average.add(self.state.step, self._share_done)
        return norm, skip

    def _forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        rows, micro = inputs.shape[0], self.state.micro_batch
        total = torch.zeros((), dtype=torch.float32, device=self._group.device)
        for start in range(0, rows, micro):
            part = slice(start, start + micro)
            share = min(micro, rows - start) / rows
            with gradient_sync(self._network, wanted=start + micro >= rows):
                with self.autocast():
                    loss = self.forward(inputs[part], targets[part])
                (loss * (share * self.scale.value)).backward()
            total += loss.detach() * share
        return total

    def _halve_micro_batch(self) -> None:
        self.optimizers.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        can_halve = self.state.micro_batch > 1 and self._group.world_size == 1
        halve_micro_batch(
            self.state, self._settings, rows=self._rows, can_halve=can_halve, note=self._note
        )

    def autocast(self) -> Any:
        """Return the context a forward pass runs in: its precision and its attention kernel."""
        computing, stack = self._settings.computing, contextlib.ExitStack()
        if computing.use_mixed_precision:
            dtype = torch.float16 if computing.precision == "fp16" else torch.bfloat16
            stack.enter_context(torch.autocast(self._group.device.type, dtype))
        if computing.attention != "auto":
            stack.enter_context(sdpa_kernel(_ATTENTION[computing.attention], set_priority=True))
        return stack


def _decay_power(learning: LearningSettings) -> float:
    return 0.5 if learning.decay_schedule == "root" else 1.0


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)
