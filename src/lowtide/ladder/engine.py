"""One run of a packed network: gradients block by block, a step chunk by chunk.

In:      a PackedGPT, one batch
Out:     new weights, and the step's loss, gradient norm and whether it was skipped
Memory:  as its rung says (placement.py, executor.py)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowtide.errors import UsageError
from lowtide.generation.prompts import Prompt
from lowtide.generation.sampling import continue_ids
from lowtide.generation.textstreams import encode_prompt
from lowtide.ladder.exactsums import ExactSums
from lowtide.ladder.executor import Executor
from lowtide.ladder.network import PackedGPT
from lowtide.ladder.packing import MuonNumbers, StepNumbers, take_step
from lowtide.ladder.placement import Placement, Rung
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.tokenizer import Tokenizer
from lowtide.training.checkpoints import RunFolder
from lowtide.training.choosing import (
    adam_betas,
    choose_optimizer,
    embedding_rate,
    muon_momentum,
    peak_learning_rate,
)
from lowtide.training.distributed import ProcessGroup
from lowtide.training.evaluation import LossSums, token_byte_counts
from lowtide.training.lossforms import loss_form
from lowtide.training.microbatches import halve_micro_batch
from lowtide.training.offloading import GPU_CHUNK_TOKENS
from lowtide.training.schedule import momentum_at
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState
from lowtide.training.unusedsettings import refuse_unused_by

__all__ = ["LadderEngine"]

_KINDS = {"adamw": ["PackedAdamW"], "muon": ["PackedAdamW", "PackedMuon"]}
_EPS = 1e-8


class LadderEngine:
    """One run's network and optimizer, on any rung."""

    def __init__(
        self,
        model: PackedGPT,
        settings: TrainSettings,
        state: RunState,
        group: ProcessGroup,
        *,
        rows: int,
        note: Callable[[str], None],
    ) -> None:
        self.model, self.state = model, state
        self._settings, self._group, self._rows, self._note = settings, group, rows, note
        self._exact = ExactSums(group.device, note)
        half = settings.computing.use_mixed_precision
        optimizer = choose_optimizer(settings.learning, model.config, settings.tokens_per_step)
        refuse_unused_by(optimizer, settings)
        self._kinds = _KINDS[optimizer]
        rung: Rung = settings.machine.offload  # pyright: ignore[reportAssignmentType]
        model.settle(
            rung,
            group.device,
            in_float32=not half,
            muon=optimizer == "muon",
            scratch_dir=settings.machine.offload_dir or settings.run.folder,
        )
        assert model.placement is not None and model.smalls is not None
        self._placement: Placement = model.placement
        self._smalls = model.smalls
        self.learning_rate = peak_learning_rate(settings, model.config, optimizer)
        self._embedding_rate = embedding_rate(settings, model.config, optimizer)
        self._betas = adam_betas(settings, model.config, optimizer)
        self._momentum = muon_momentum(settings, model.config)
        self._executor = Executor(
            model.outline,
            self._placement,
            self._smalls,
            dtype=torch.bfloat16 if half else torch.float32,
            chunk_tokens=settings.computing.loss_chunk_tokens
            or (
                loss_chunk_tokens(model.config.vocab_size, on_gpu=False)
                if group.on_cpu
                else GPU_CHUNK_TOKENS
            ),
            compiled=settings.computing.compile,
        )
        model.outline.train()
        self._steps = torch.zeros((), dtype=torch.float64, device=group.device)
        self._norm = torch.zeros((), device=group.device)
        self._counts: Tensor | None = None

    # -- a step ------------------------------------------------------------------------------

    def compute(self, inputs: Any, targets: Any, *, share_done: float = 0.0) -> Tensor:
        """Compute the gradients of a batch, in halves when memory runs out; return the loss."""
        learning = self._settings.learning
        self._executor.loss_form = loss_form(learning, share_done)
        key = (learning.seed, self.state.step)
        while True:
            try:
                with self._exact():
                    loss, self._norm = self._executor.compute(
                        inputs, targets, rows=self.state.micro_batch, key=key
                    )
                return loss
            except torch.OutOfMemoryError:
                is_full = True
            except RuntimeError as error:
                if not self._exact.gives_up(error):
                    raise
                is_full = False
            self._placement.drop_all()
            if not is_full:
                continue
            if self._group.device.type == "cuda":
                torch.cuda.empty_cache()
            halve_micro_batch(
                self.state,
                self._settings,
                rows=self._rows,
                can_halve=self.state.micro_batch > 1,
                note=self._note,
            )

    @torch.no_grad()
    def update(self, loss: Tensor, learning_rate_factor: float) -> tuple[Tensor, Tensor]:
        """Take the step if all gradients are finite; return their norm, and 1 if it was skipped."""
        settings, norm = self._settings, self._norm
        goes = (norm.isfinite() & loss.isfinite()).double()
        self._steps += goes
        factor = torch.ones((), dtype=torch.float64, device=norm.device)
        if settings.learning.grad_clip > 0:
            factor = (settings.learning.grad_clip / norm.double()).clamp(max=1.0)
        rate = self.learning_rate * learning_rate_factor
        tables = self._numbers(
            factor,
            goes,
            rate * self._embedding_rate,
            settings.learning.weight_decay
            if settings.learning.embedding_decay is None
            else settings.learning.embedding_decay,
        )
        blocks = self._numbers(factor, goes, rate, settings.learning.weight_decay)
        matrices = self._muon_numbers(factor, goes, rate)
        for moving in self._placement.iter_moving():
            if self._placement.is_muons(moving.unit):
                assert self.model.muon is not None
                self.model.muon.move(moving, matrices)
                continue
            numbers = tables if moving.unit.layer is None else blocks
            for part, chunk in moving.iter_chunks():
                position = moving.unit.position + part.start
                weights, gradients = moving.weights[part], moving.gradients[part]
                take_step(weights, chunk, gradients, numbers, position=position)
        self._move_smalls(self._numbers(factor, goes, rate, 0.0))
        return norm, (1 - goes).float()

    def _muon_numbers(self, factor: Tensor, goes: Tensor, rate: float) -> MuonNumbers:
        learning = self._settings.learning
        momentum = momentum_at(
            self.state.step, momentum=self._momentum, warmup_steps=learning.momentum_warmup
        )
        kept = 1 - rate * learning.weight_decay
        numbers = [factor, goes, torch.full_like(factor, rate), torch.full_like(factor, kept)]
        scalars = torch.stack(numbers).float()
        return MuonNumbers(momentum, learning.cautious_decay, self._seed(), scalars)

    def _seed(self) -> int:
        """A seed for the step, of 32 bits."""
        return hash((self._settings.learning.seed, self.state.step)) & 0xFFFFFFFF

    def _numbers(self, factor: Tensor, goes: Tensor, rate: float, decay: float) -> StepNumbers:
        # If the first step is skipped, the bias corrections are those of one step: harmless.
        steps = self._steps.clamp(min=1.0)
        first, second = (1 - torch.pow(beta, steps) for beta in self._betas)
        kept = torch.full_like(factor, 1 - rate * decay)
        scalars = torch.stack([factor, goes, rate / first, second.rsqrt(), kept]).float()
        return StepNumbers(*self._betas, _EPS, self._seed(), scalars)

    def _move_smalls(self, numbers: StepNumbers) -> None:
        smalls = self._smalls
        factor, goes, step_size, root_factor, _ = numbers.scalars.unbind()
        gradient = torch.where(goes > 0, smalls.gradients * factor, 0.0)
        first = smalls.first + (gradient - smalls.first) * (1 - numbers.beta1)
        second = numbers.beta2 * smalls.second + (1 - numbers.beta2) * gradient.square()
        moved = smalls.values - step_size * first / (second.sqrt() * root_factor + numbers.eps)
        for place, value in (
            (smalls.first, first),
            (smalls.second, second),
            (smalls.values, moved),
        ):
            place.copy_(torch.where(goes > 0, value, place))

    # -- called by the loop --------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        """Notices about settings that this device does not support."""
        found: list[str] = []
        rung = self._settings.machine.offload
        if self._group.on_cpu and rung in ("gradients", "optimizer", "layers"):
            found.append(f"--offload {rung} is packed on a CPU, which has one memory")
        if self._group.on_cpu and rung == "disk-all":
            found.append("--offload disk-all is disk on a CPU, which has one memory")
        if not self._placement.is_locked:
            found.append("the system page-locks no more memory: copies to the GPU are slower")
        return found

    def weights(self) -> dict[str, Any]:
        """The weights under our names; each is read when the file is written."""
        return self.model.state_dict()

    def moments(self) -> dict[str, Any]:
        """The optimizer's tensors by name; each is read when the file is written."""
        return self.model.moments()

    def numbers(self) -> dict[str, Any]:
        """The parts of the state that are not tensors."""
        return {
            "loss_scale": {"value": 1.0, "good_steps": 0.0},
            "optimizers": [
                {"kind": kind, "values": {"": {"steps": self._steps.item()}}}
                for kind in self._kinds
            ],
        }

    def load_state(self, run: RunFolder, numbers: dict[str, Any]) -> Path:
        """Restore the moments of the newest checkpoint, written on any rung."""
        rows = numbers["optimizers"]
        kinds = [row["kind"] for row in rows]
        if kinds != self._kinds:
            raise UsageError(
                f"the run has moments of {' and '.join(kinds)}, --offload keeps "
                f"{' and '.join(self._kinds)}",
                path=run.root,
                next_step="leave out --offload, or start another run from its weights: "
                "--init-from-model",
            )
        folder, tensors, _ = run.load()
        self.model.load_moments(tensors)
        self._steps.fill_(rows[0]["values"][""]["steps"])
        return folder

    @contextlib.contextmanager
    def eval_sums(self, tokenizer: Tokenizer | None, *, batch_size: int) -> Generator[LossSums]:
        """Sums of losses with the current weights, in the run's precision."""
        if self._counts is None and tokenizer is not None:
            self._counts = token_byte_counts(tokenizer)
        self.model.outline.eval()
        yield LossSums(
            self._executor.loss,
            device=self._group.device,
            batch_size=batch_size,
            byte_counts=self._counts,
        )
        self.model.outline.train()

    def sample(self, tokenizer: Tokenizer) -> str:
        """Continue the run's sample prompt."""
        output, context = self._settings.output, self.model.config.context_length
        self.model.outline.eval()
        ids = continue_ids(
            self._executor.next_logits,
            encode_prompt(tokenizer, Prompt(output.sample_prompt), context),
            tokenizer,
            max_new_tokens=output.sample_tokens,
            context=context,
            seed=self._settings.learning.seed,
            device=self._group.device,
        )
        self.model.outline.train()
        return tokenizer.decode(ids)

    def device_peak_bytes(self) -> int | None:
        """Peak memory on a GPU; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self._group.device.type == "cuda" else None

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        self._placement.wait()

    def finish(self) -> None:
        """Do nothing: the network's weights are already the saved ones."""
