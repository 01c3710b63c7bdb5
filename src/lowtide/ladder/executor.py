"""A step with one block on the device at a time: a loop over micro-batches in one over layers.

In:      ids and targets of a step; weights, wherever they are stored (placement.py)
Out:     the loss; gradients of every unit, rounded to bfloat16 once, where the rung keeps them
Memory:  one block's weights, gradient sum and recomputed activations; the inputs of all blocks for
         all tokens of the step (2 * layers * tokens * width bytes), on the device or the host; a
         chunk of logits; the tables with their gradient sums in float32

Each block's weights are fetched twice a step, however many micro-batches there are. Forward, every
micro-batch passes a block before the next block is fetched, and only its input is kept; backward,
the block is computed again. Sums over micro-batches are in float32; their norm is taken of the
rounded gradients, unit by unit in one order, so that every rung computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.ladder.blockinputs import HostInputs, Inputs
from lowtide.ladder.calling import call_with, gradients_of, run_block
from lowtide.ladder.placement import Placement
from lowtide.ladder.smalls import Smalls
from lowtide.ladder.units import Unit
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT, rotary_tables
from lowtide.model.loss import PlainHead, chunked_cross_entropy
from lowtide.model.targets import LossForm, cap_logits, targets_ahead

__all__ = ["Executor"]

_SAMPLED_LENGTH = 64
"""Rows are padded to a multiple of so many tokens when text is generated."""


class Executor:
    """Computes losses and gradients of a network whose blocks are fetched one at a time."""

    def __init__(
        self,
        outline: GPT,
        placement: Placement,
        smalls: Smalls,
        *,
        dtype: torch.dtype,
        chunk_tokens: int,
        compiled: bool = False,
    ) -> None:
        self.config: GPTConfig = outline.config
        self._outline, self._placement, self._smalls = outline, placement, smalls
        self._dtype, self._chunk_tokens = dtype, chunk_tokens
        self._blocks = [u for u in placement.units.values() if u.layer is not None]
        # Blocks differ only in weights and attention windows: one of each kind is compiled.
        kinds = {self.config.window_of(n): block for n, block in enumerate(outline.blocks)}
        self._kinds = [kinds[self.config.window_of(n)] for n in range(self.config.num_layers)]
        self._own_smalls = smalls.by_owner()
        self._inputs: Inputs = HostInputs() if placement.host_inputs else Inputs()
        self._tables: tuple[Tensor, Tensor] | None = None
        self._run: Callable[..., Tensor] = run_block
        if compiled:
            self._run = torch.compile(run_block, dynamic=False)
        self.loss_form = LossForm()

    # -- pieces of the network -------------------------------------------------------------------

    def _angles(self, tokens: int) -> tuple[Tensor | None, Tensor | None]:
        if self.config.family.learned_positions:
            return None, None
        if self._tables is None or self._tables[0].shape[0] < tokens:
            cos, sin = rotary_tables(self.config, tokens)
            device = self._placement.device
            self._tables = cos.to(device, self._dtype), sin.to(device, self._dtype)
        return self._tables[0][:tokens], self._tables[1][:tokens]

    def _embed(self, ids: Sequence[Tensor], key: Any = ()) -> list[Tensor]:
        with self._placement.weights(self._placement.units["embedding"]) as tables:
            xs = [nn.functional.embedding(part, tables["embedding.weight"]) for part in ids]
        if self.config.family.learned_positions:
            with self._placement.weights(self._placement.units["positions"]) as tables:
                xs = [x + tables["positions.weight"][: x.shape[1]] for x in xs]
        return self._drop_first(xs, key)

    def _drop_first(self, xs: list[Tensor], key: Any) -> list[Tensor]:
        """Dropout of the embeddings, as in GPT-2; the same mask for values and gradients."""
        dropout = self.config.dropout if self._outline.training else 0.0
        if dropout == 0 or not self.config.family.learned_positions:
            return xs
        dropped: list[Tensor] = []
        for k, x in enumerate(xs):
            self._seed((*key, k, -1))
            dropped.append(nn.functional.dropout(x, dropout))
        return dropped

    def _call(
        self, unit: Unit, weights: dict[str, Tensor], smalls: dict[str, Tensor], x: Tensor
    ) -> Tensor:
        assert unit.layer is not None
        prefix = f"{unit.name}."
        named = {n.removeprefix(prefix): v for n, v in (weights | smalls).items()}
        return self._run(self._kinds[unit.layer], named, x, *self._angles(x.shape[1]), self._casts)

    @property
    def _casts(self) -> bool:
        """True if gains must have the type of the activations, as in a layer norm."""
        return self.config.family.norm == "layer"

    def _seed(self, key: Any) -> None:
        if self.config.dropout > 0 and self._outline.training:
            torch.manual_seed(hash(key) & (2**63 - 1))

    # -- without gradients -----------------------------------------------------------------------

    @torch.no_grad()
    def hidden(self, ids: Tensor) -> Tensor:
        """The final hidden states [B, T, D], normalized."""
        x = self._embed([ids])[0]
        for number, unit in enumerate(self._blocks):
            with self._placement.weights(unit) as weights:
                if number + 1 < len(self._blocks):
                    self._placement.begin(self._blocks[number + 1])
                x = self._call(unit, weights, self._own_smalls[unit.name], x)
        return self._final_norm(x, self._own_smalls["final_norm"])

    def _final_norm(self, x: Tensor, smalls: dict[str, Tensor]) -> Tensor:
        named = {n.removeprefix("final_norm."): v for n, v in smalls.items()}
        if self._casts:
            named = {n: v.to(x.dtype) for n, v in named.items()}
        return call_with(self._outline.final_norm, named, x)

    @torch.no_grad()
    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some rows, in nats per token."""
        x = self.hidden(ids)
        with self._placement.weights(self._head) as tables:
            return chunked_cross_entropy(
                x.flatten(0, 1),
                tables[self._head.matrices[0].name],
                targets.flatten(),
                self._chunk_tokens,
                cap=self.config.cap,
            )

    @torch.no_grad()
    def next_logits(self, ids: Tensor) -> Tensor:
        """The logits [B, V] of the token after the last one.

        Rows are padded at the end (no earlier token sees that) to a few lengths: in bfloat16 a CPU
        caches code for every shape, 170 MiB after a sample of 64 tokens (width 256).
        """
        length = ids.shape[1]
        filled = min(-(-length // _SAMPLED_LENGTH) * _SAMPLED_LENGTH, self.config.context_length)
        x = self.hidden(nn.functional.pad(ids, (0, filled - length)))[:, length - 1]
        with self._placement.weights(self._head) as tables:
            logits = nn.functional.linear(x, tables[self._head.matrices[0].name])
        return cap_logits(logits.float(), self.config.cap)

    @property
    def _head(self) -> Unit:
        return self._placement.units["embedding" if self.config.tie_weights else "head"]

    # -- a step ----------------------------------------------------------------------------------

    def compute(
        self, ids: Tensor, targets: Tensor, *, rows: int, key: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of a step, `rows` rows at a time; return the loss and their norm.

        `key`, the micro-batch and the block seed the dropout.
        """
        parts = [slice(start, start + rows) for start in range(0, ids.shape[0], rows)]
        self._smalls.gradients.zero_()
        squares: list[Tensor] = []
        try:
            xs = self._forward([ids[part] for part in parts], key)
            loss, table, others = self._head_backward(
                xs, [targets[part] for part in parts], squares
            )
            self._backward(others, key, squares)
        finally:
            self._inputs.clear()
        others = self._drop_first(others, key)
        self._table_backward([ids[part] for part in parts], others, table, squares)
        squares.append(self._smalls.gradients.double().square().sum())
        return loss, torch.stack(squares).sum().sqrt().float()

    @torch.no_grad()
    def _forward(self, ids: Sequence[Tensor], key: Any) -> list[Tensor]:
        xs = self._embed(ids, key)
        for number, unit in enumerate(self._blocks):
            with self._placement.weights(unit) as weights:
                if number + 1 < len(self._blocks):
                    self._placement.begin(self._blocks[number + 1])
                smalls = self._own_smalls[unit.name]
                for k, x in enumerate(xs):
                    self._inputs.keep((number, k), x)
                    self._seed((*key, k, number))
                    xs[k] = self._call(unit, weights, smalls, x)
        return xs

    def _head_backward(
        self, xs: list[Tensor], targets: Sequence[Tensor], squares: list[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Loss, gradient sum of the output matrix, and gradients of the last block's outputs."""
        count = sum(part.numel() for part in targets)
        head, device = self._head, self._placement.device
        total = torch.zeros((), device=device)
        sums = torch.zeros(head.size, device=device)
        matrix_sum = sums[head.matrices[0].where].view(head.matrices[0].shape)
        smalls = _leaves(self._own_smalls["final_norm"])
        own = self._smalls.named(self._smalls.gradients)
        with self._placement.weights(head) as tables:
            for k, wanted in enumerate(targets):
                x = xs[k].requires_grad_()
                normed = self._final_norm(x, smalls)
                loss, error = self._loss_and_error(
                    normed.detach().flatten(0, 1), wanted, tables[head.matrices[0].name], matrix_sum
                )
                total += loss
                error = (error.float() / count).to(self._dtype).view_as(normed)
                found = gradients_of(normed, [x, *smalls.values()], error)
                xs[k] = found[0]
                for name, gradient in zip(smalls, found[1:], strict=True):
                    own[name] += gradient
        matrix_sum /= count
        if not self.config.tie_weights:
            self._keep_gradient(head, sums, squares)
            sums = torch.empty(0, device=device)
        return total / count, sums, xs

    @torch.no_grad()
    def _loss_and_error(
        self, states: Tensor, targets: Tensor, matrix: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        head = PlainHead(matrix, states.dtype)
        form = self.loss_form
        wanted = targets_ahead(targets, len(form.ahead)) if form.ahead else targets.flatten()
        wanted = wanted if wanted.ndim == 2 else wanted[:, None]
        error = torch.empty_like(states)
        loss = torch.zeros((), device=states.device)
        for start in range(0, len(states), self._chunk_tokens):
            part = slice(start, start + self._chunk_tokens)
            own, gradient = head.chunk(
                states[part] / form.confidence,
                wanted[part],
                total,
                cap=self.config.cap or form.cap,
                ahead=form.ahead,
            )
            error[part] = gradient / form.confidence
            loss += own
        return loss, error

    def _backward(self, others: list[Tensor], key: Any, squares: list[Tensor]) -> None:
        """From the last block to the first; `others` become the gradients of the blocks' inputs."""
        own = self._smalls.named(self._smalls.gradients)
        for number in reversed(range(len(self._blocks))):
            unit = self._blocks[number]
            with self._placement.weights(unit) as weights:
                if number > 0:
                    self._placement.begin(self._blocks[number - 1])
                weights, smalls = _leaves(weights), _leaves(self._own_smalls[unit.name])
                sums = _Sums(unit, wide=len(others) > 1, dtype=self._dtype)
                for k, gradient in enumerate(others):
                    x = self._inputs.get((number, k)).requires_grad_()
                    self._seed((*key, k, number))
                    y = self._call(unit, weights, smalls, x)
                    found = gradients_of(y, [x, *weights.values(), *smalls.values()], gradient)
                    del y, x
                    others[k] = found[0]
                    sums.add(dict(zip(weights, found[1:], strict=False)))
                    for name, part in zip(smalls, found[1 + len(weights) :], strict=True):
                        own[name] += part
                    del found
            self._keep_gradient(unit, sums.flat, squares)

    @torch.no_grad()
    def _keep_gradient(self, unit: Unit, flat: Tensor, squares: list[Tensor]) -> None:
        """Round a unit's gradient, add its square to the norm, and store it for the step."""
        with self._placement.gradient_room(unit) as room:
            room.copy_(flat)
            norm = torch.linalg.vector_norm(room, dtype=torch.float32)
            squares.append(norm.double().square())

    @torch.no_grad()
    def _table_backward(
        self, ids: Sequence[Tensor], others: list[Tensor], sums: Tensor, squares: list[Tensor]
    ) -> None:
        unit = self._placement.units["embedding"]
        if sums.numel() == 0:
            sums = torch.zeros(unit.size, device=self._placement.device)
        table = sums[unit.matrices[0].where].view(unit.matrices[0].shape)
        for part, gradient in zip(ids, others, strict=True):
            _add_rows(table, part.flatten(), gradient.flatten(0, 1).float())
        self._keep_gradient(unit, sums, squares)
        if self.config.family.learned_positions:
            unit = self._placement.units["positions"]
            sums = torch.zeros(unit.size, device=self._placement.device)
            table = sums[unit.matrices[0].where].view(unit.matrices[0].shape)
            for gradient in others:
                table[: gradient.shape[1]] += gradient.float().sum(dim=0)
            self._keep_gradient(unit, sums, squares)


def _leaves(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as leaves that require gradients."""
    return {name: value.detach().requires_grad_() for name, value in named.items()}


def _add_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values to rows of a table, with repeated rows, always in the same order.

    torch has two ways to do it: one has no fixed order on a GPU, the other none on a CPU.
    """
    if table.is_cuda:
        table.index_put_((rows,), values, accumulate=True)
    else:
        table.index_add_(0, rows, values)


class _Sums:
    """The gradients of a unit, summed over micro-batches, in float32 if there are several."""

    def __init__(self, unit: Unit, *, wide: bool, dtype: torch.dtype) -> None:
        self._unit, self._dtype = unit, torch.float32 if wide else dtype
        self.flat = torch.empty(0)

    def add(self, gradients: dict[str, Tensor]) -> None:
        """Add the gradients of a micro-batch."""
        if self.flat.numel() == 0:
            device = next(iter(gradients.values())).device
            self.flat = torch.zeros(self._unit.size, dtype=self._dtype, device=device)
        for matrix in self._unit.matrices:
            self.flat[matrix.where] += gradients[matrix.name].flatten()
