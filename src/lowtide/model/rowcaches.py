"""Several texts continued at once: a cache whose rows have lengths of their own, and its steps.

In:      a GPT; ids of a prompt for one row, or the next id of each of several rows
Out:     logits of the token after them
Memory:  keys and values [rows, K, capacity, E] of each layer; logits of the rows of a step

On a CPU a step is one native call (native/model/decoder.cpp), and what it computes for a row is the
same to the bit whatever rows are beside it. Elsewhere the tokens of all rows go through the network
as if they were one row of tokens, which differ only in where their attention looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide import _native
from lowtide.model.blocks import KVCache
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.inference import PROMPT_PART
from lowtide.model.tide import num_gate_inputs

__all__ = ["RowCache", "Steps"]

_ROUND = 64  # positions by which a cache grows
_HEAD_NORMS = ("none", "head", "whole")
_PARTS = (
    *("attention_norm.weight", "attention_norm.bias", "mlp_norm.weight", "mlp_norm.bias"),
    *("attention.query_key_value.weight", "attention.query_key_value.bias"),
    *("attention.output.weight", "attention.output.bias"),
    *("mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"),
    *("attention.query_norm.weight", "attention.key_norm.weight"),
    *("mix", "attention.head_gate.weight", "attention.head_gate.bias"),
    *("attention.start_values.weight", "attention.value_gate.weight", "attention.value_gate.bias"),
)  # in the order of DecoderLayer


class RowCache:
    """Keys and values of texts that are written at once, each of a length of its own."""

    def __init__(self, config: GPTConfig, num_rows: int, device: Any, dtype: torch.dtype) -> None:
        self.config = config
        self.capacity = 0
        self.lengths = [0] * num_rows
        shape = (num_rows, config.num_kv_heads, 0, config.head_dim)
        layers = range(config.num_layers)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]

    def reserve(self, positions: int) -> None:
        """Make room for rows of so many tokens, a layer at a time."""
        if positions <= self.capacity:
            return
        rounded = -(-positions // _ROUND) * _ROUND
        self.capacity = min(rounded, max(self.config.context_length, positions))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                # Zeros: what is behind a row's end gets no weight, but may not be NaN.
                new = old.new_zeros((*old.shape[:2], self.capacity, old.shape[3]))
                new[:, :, : old.shape[2]] = old
                tensors[layer] = new

    def row(self, slot: int) -> KVCache:
        """Return a row as a cache of its own, over the same memory."""
        keys, values = ([t[slot : slot + 1] for t in part] for part in (self.keys, self.values))
        return KVCache.over(keys, values, self.lengths[slot])

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a row begin as another one does."""
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[target, :, :length] = tensor[source, :, :length]
        self.lengths[target] = length


class StepCache:
    """One new token of each of several rows, handed through the network as one row of tokens."""

    def __init__(self, cache: RowCache, slots: Sequence[int]) -> None:
        self.cache, device = cache, cache.keys[0].device
        lengths = [cache.lengths[slot] for slot in slots]
        self.end = max(lengths) + 1
        self.slots = torch.tensor(slots, device=device)
        self.positions = torch.tensor(lengths, device=device)
        self.is_all = list(slots) == list(range(len(cache.lengths)))

    def places(self, tokens: int) -> tuple[Tensor, int]:
        """Return the tokens' positions, and where the last one ends."""
        return self.positions, self.end

    def advance(self, tokens: int) -> None:
        """Leave lengths to whoever made the step."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int, *, grouped: bool
    ) -> Tensor:
        """Return what the heads [1, H, rows, E] find, each token in its own row."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.slots, :, self.positions] = key[0].transpose(0, 1)
        values[self.slots, :, self.positions] = value[0].transpose(0, 1)
        keys, values = keys[:, :, : self.end], values[:, :, : self.end]
        if not self.is_all:
            keys, values = keys[self.slots], values[self.slots]
        places = torch.arange(self.end, device=query.device)
        own = self.positions[:, None]
        mask = places <= own
        if window:
            mask &= places > own - window
        found = F.scaled_dot_product_attention(
            query[0].transpose(0, 1)[:, :, None],
            keys,
            values,
            attn_mask=mask[:, None, None],
            enable_gqa=grouped,
        )
        return found[:, :, 0].transpose(0, 1)[None]


class Steps:
    """A model that writes up to `num_rows` texts at once."""

    def __init__(self, model: GPT, num_rows: int) -> None:
        self.model = model
        weight = model.embedding.weight
        self.cache = RowCache(model.config, num_rows, weight.device, weight.dtype)
        self._native = _NativeStep(model) if _NativeStep.takes(model) else None

    def read(self, slot: int, ids: Sequence[int]) -> Tensor:
        """Begin a row anew with these ids, a part at a time; logits [V] of the token after them."""
        self.cache.lengths[slot] = 0
        row = self.cache.row(slot)
        parts = torch.tensor([ids], device=self.model.device).split(PROMPT_PART, dim=1)
        for part in parts[:-1]:
            self.model.hidden(part, row)
        logits = self.model.next_logits(parts[-1], row)
        self.cache.lengths[slot] = len(ids)
        return logits[0]

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Add one id to each of these rows; logits [rows, V] of the tokens after them."""
        if self._native is not None:
            logits = self._native.step(self.cache, slots, ids)
        else:
            step = StepCache(self.cache, slots)
            logits = self.model.row_logits(torch.tensor(ids, device=self.model.device), step)
        for slot in slots:
            self.cache.lengths[slot] += 1
        return logits


class _NativeStep:
    """The same network in native code, over the same weights."""

    def __init__(self, model: GPT) -> None:
        self.model, config = model, model.config
        family = config.family
        sizes = (
            *(config.vocab_size, config.width, config.num_heads, config.num_kv_heads),
            *(config.head_dim, config.mlp_width, num_gate_inputs(config)),
            _HEAD_NORMS.index(family.query_key_norm),
            *(family.norm == "layer", family.norms_after, family.gated_mlp),
        )
        self._held = [dict(block.named_parameters()) for block in model.blocks]
        layers = [[_address(_part(held, name)) for name in _PARTS] for held in self._held]
        windows = [config.window_of(layer) for layer in range(config.num_layers)]
        self._decoder = _native.Decoder(sizes, config.norm_eps, config.cap, layers, windows)

    @staticmethod
    def takes(model: nn.Module) -> bool:
        """Return whether the network is one that the native code computes, where it computes."""
        return isinstance(model, GPT) and all(
            p.is_cpu and p.dtype == torch.float32 and p.is_contiguous() for p in model.parameters()
        )

    def step(self, cache: RowCache, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        model, config = self.model, self.model.config
        positions = np.array([cache.lengths[slot] for slot in slots], np.int64)
        norm = dict(model.final_norm.named_parameters())
        tables: list[Tensor | None] = [
            *(model.embedding.weight, None, norm["weight"], norm.get("bias")),
            *(model.output_weight, None, None),
        ]
        if config.family.learned_positions:
            tables[1], num_positions = model.positions.weight, config.context_length
        else:
            tables[5:] = model.tables(int(positions.max()) + 1)
            num_positions = model.get_buffer("cos").shape[0]
        logits = torch.empty(len(ids), config.vocab_size)
        self._decoder.step(
            [_address(table) for table in tables],
            num_positions,
            [_address(t) for t in cache.keys],
            [_address(t) for t in cache.values],
            len(cache.lengths),
            cache.capacity,
            np.array(ids, np.int64),
            positions,
            np.array(slots, np.int64),
            logits.data_ptr(),
            torch.get_num_threads(),
        )
        return logits


def _part(parameters: dict[str, nn.Parameter], name: str) -> Tensor | None:
    if name.startswith("mlp.up.") and name not in parameters:
        name = name.replace("up", "gate_up")
    return parameters.get(name)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
