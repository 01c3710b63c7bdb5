"""Losses of windows with a network of JAX, added up on the host in float64.

In:      a tree of weights, windows of ids
Out:     nats, tokens and bytes
Memory:  the activations of one layer for a batch of windows, one chunk of logits
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowtide.jaxtraining.devices import JaxGroup
from lowtide.jaxtraining.network import Form, loss_of
from lowtide.jaxtraining.trees import Tree
from lowtide.tokenizer import Tokenizer
from lowtide.training.results import token_bytes

__all__ = ["LossSums"]

Array = Any


@functools.partial(jax.jit, static_argnames=("form",))
def _loss(params: Tree, ids: Array, targets: Array, weights: Array, *, form: Form) -> Array:
    return loss_of(params, ids, targets, weights, None, form)


class LossSums:
    """Losses of a network's weights, one compiled shape for all batches."""

    def __init__(
        self,
        params: Tree,
        form: Form,
        group: JaxGroup,
        *,
        tokenizer: Tokenizer | None,
        batch_size: int,
    ) -> None:
        # Whatever the run does in training: one compiled function serves all evaluations.
        self._params, self._form = params, dataclasses.replace(form, dropout=0.0, again=False)
        self._group = group
        self._rows = -(-batch_size // len(group.devices)) * len(group.devices)
        self._counts = None if tokenizer is None else token_bytes(tokenizer)
        self._losses: list[tuple[Array, int]] = []
        self._tokens = self._bytes = 0

    def add(self, inputs: Any, targets: Any, *, counted: bool) -> None:
        """Compute the loss of some windows; a smaller batch is filled with rows of no weight."""
        rows, size = inputs.shape[0], inputs.size
        weights = np.zeros(self._rows, np.float32)
        weights[:rows] = 1 / size
        places = self._group.rows_sharding(0)
        batch = [
            np.pad(part.astype(np.int32), ((0, self._rows - rows), (0, 0)))
            for part in (inputs, targets)
        ]
        arrays = [jax.device_put(jnp.array(part), places) for part in (*batch, weights)]
        loss = _loss(self._params, *arrays, form=self._form)
        if counted:
            self._losses.append((loss, size))
            self._tokens += size
            self._bytes += 0 if self._counts is None else int(self._counts[targets].sum())

    def totals(self) -> tuple[float, float, float]:
        """Return nats, tokens and bytes."""
        nats = sum(float(loss) * size for loss, size in self._losses)
        return nats, float(self._tokens), float(self._bytes)
