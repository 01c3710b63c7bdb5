"""Losses of windows with a JAX network, summed on the host in float64; scores of texts.

In:      a tree of weights, windows of ids, texts as ids
Out:     nats, tokens and bytes; the likelihood of each text's last ids
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
from lowtide.jaxtraining.loading import NETWORKS
from lowtide.jaxtraining.network import Form, hidden_states, loss_of, output_matrix
from lowtide.jaxtraining.trees import JaxGPT, Tree
from lowtide.model.inference import filled_tokens
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.tokenizer import Tokenizer
from lowtide.training.likelihood import Score, Scorer, TextIds
from lowtide.training.results import token_bytes

__all__ = ["EVALUATOR", "LossSums", "score_rows"]

Array = Any

_PENDING = 64
"""Losses that stay on the device before they are read together, to avoid a wait for each."""


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
        pending: int = _PENDING,
    ) -> None:
        self._pending = pending
        # Independent of the run's training options, so one compiled function serves all
        # evaluations.
        self._params, self._form = params, dataclasses.replace(form, dropout=0.0, again=False)
        self._group = group
        devices = len(group.own_devices)
        self._rows = -(-batch_size // devices) * devices
        self._counts = None if tokenizer is None else token_bytes(tokenizer)
        self._losses: list[tuple[Array, int]] = []
        self._nats, self._tokens, self._bytes = 0.0, 0, 0

    def add(self, inputs: Any, targets: Any, *, counted: bool) -> None:
        """Add the loss of some windows; a smaller batch is padded with rows of weight 0.

        Each of several processes has its own windows, and the loss is that of all of them.
        """
        rows, tokens = inputs.shape
        size = self._rows * tokens
        weights = np.zeros(self._rows, np.float32)
        weights[: rows if counted else 0] = 1 / size
        batch = [
            np.pad(part.astype(np.int32), ((0, self._rows - rows), (0, 0)))
            for part in (inputs, targets)
        ]
        arrays = [self._group.place_rows(part, axis=0) for part in (*batch, weights)]
        loss = _loss(self._params, *arrays, form=self._form)
        if counted or self._group.world_size > 1:
            self._losses.append((loss, size))
            if len(self._losses) == self._pending:
                self._collect()
        if counted:
            self._tokens += inputs.size
            self._bytes += 0 if self._counts is None else int(self._counts[targets].sum())

    def _collect(self) -> None:
        for loss, size in self._losses:
            self._nats += float(loss) * size
        self._losses.clear()

    def totals(self) -> tuple[float, float, float]:
        """Return nats, tokens and bytes, over all processes."""
        self._collect()
        tokens, num_bytes = self._group.total([self._tokens, self._bytes])
        return self._nats, float(tokens), float(num_bytes)


_hidden = functools.partial(jax.jit, static_argnames=("form",))(hidden_states)


@jax.jit
def _score(states: Array, matrix: Array, targets: Array) -> tuple[Array, Array]:
    """The logarithm of each target's likelihood, and whether it is the likeliest."""
    logits = jnp.einsum("td,vd->tv", states, matrix).astype(jnp.float32)
    logs = jax.nn.log_softmax(logits, axis=-1)
    found = jnp.take_along_axis(logs, targets[:, None], axis=1)[:, 0]
    return found, logs.argmax(axis=-1) == targets


def score_rows(model: JaxGPT, texts: list[TextIds], *, batch_size: int) -> list[Score]:
    """Score the last ids of each text; rows and lengths are padded, so that few shapes compile."""
    form = Form(model.config.replace(dropout=0.0))
    longest = max(len(ids) for ids, _ in texts) - 1
    length = filled_tokens(longest, model.config.context_length)
    batch = np.zeros((batch_size, length), np.int32)
    for number, (ids, _) in enumerate(texts):
        batch[number, : len(ids) - 1] = ids[:-1]
    hidden = _hidden(model.params, jnp.array(batch), form=form)
    matrix = output_matrix(model.params)
    step = min(loss_chunk_tokens(model.config.vocab_size, on_gpu=False), batch.shape[1])
    scores: list[Score] = []
    for number, (ids, count) in enumerate(texts):
        states = np.asarray(hidden[number, len(ids) - 1 - count : len(ids) - 1])
        total, greedy = 0.0, True
        for first in range(0, count, step):
            some = min(step, count - first)
            targets = np.zeros(step, np.int32)
            targets[:some] = ids[len(ids) - count + first :][:some]
            part = np.zeros((step, states.shape[1]), states.dtype)
            part[:some] = states[first : first + some]
            logs, likeliest = _score(part, matrix, targets)
            total += float(np.asarray(logs, np.float64)[:some].sum())
            greedy = greedy and bool(np.asarray(likeliest)[:some].all())
        scores.append(Score(total, greedy))
    return scores


class _JaxEvaluator:
    """Losses and scores of networks of JAX; the methods are documented in Evaluator."""

    networks = NETWORKS
    load_in_turns = None

    def sums(
        self, model: JaxGPT, place: JaxGroup, tokenizer: Tokenizer, *, batch_size: int
    ) -> LossSums:
        chunk = loss_chunk_tokens(model.config.vocab_size, on_gpu=not place.on_cpu)
        form = Form(model.config.replace(dropout=0.0), chunk_tokens=chunk)
        return LossSums(model.params, form, place, tokenizer=tokenizer, batch_size=batch_size)

    def scorer(self, model: JaxGPT, place: JaxGroup, *, batch_size: int) -> Scorer:
        return functools.partial(score_rows, model, batch_size=batch_size)


EVALUATOR = _JaxEvaluator()
