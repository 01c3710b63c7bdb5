"""Generate several texts at once: a cache whose rows have different lengths, and its steps.

In:      a GPT; ids of a prompt for one row, or the next id of each of several rows
Out:     logits of the token after them
Memory:  keys and values [rows, K, capacity, E] of each layer; logits of the rows of a step

On a CPU native code reads and writes (decoder.py), over the weights of the torch network.
Elsewhere the tokens of all rows go through the network as one row of tokens, except in attention,
where each uses its own row of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowtide.model.blocks import KVCache
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import DecoderNetwork, DecoderSteps
from lowtide.model.gpt import GPT
from lowtide.model.inference import PROMPT_PART

__all__ = ["RowCache", "TensorSteps", "open_steps"]

_ROUND = 64  # positions by which a cache grows


def open_steps(model: Any, num_rows: int) -> TensorSteps | DecoderSteps:
    """Steps of up to `num_rows` texts, by native code where the weights are float32 on a CPU."""
    weights = dict(model.named_parameters()) if isinstance(model, GPT) else {}
    if not weights or any(not w.is_cpu or w.dtype != torch.float32 for w in weights.values()):
        return TensorSteps(model, num_rows)
    arrays = {name: weight.detach().contiguous().numpy() for name, weight in weights.items()}
    network = DecoderNetwork(model.config, arrays, num_workers=torch.get_num_threads())
    return DecoderSteps(network, num_rows)


class RowCache:
    """Keys and values of several texts, each with its own length."""

    def __init__(self, config: GPTConfig, num_rows: int, device: Any, dtype: torch.dtype) -> None:
        self.config = config
        self.capacity = 0
        self.lengths = [0] * num_rows
        shape = (num_rows, config.num_kv_heads, 0, config.head_dim)
        layers = range(config.num_layers)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]

    def reserve(self, positions: int) -> None:
        """Enlarge rows to so many tokens, one layer at a time."""
        if positions <= self.capacity:
            return
        rounded = -(-positions // _ROUND) * _ROUND
        self.capacity = min(rounded, max(self.config.context_length, positions))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                # Zeros: values after a row's end get no weight, but must not be NaN.
                new = old.new_zeros((*old.shape[:2], self.capacity, old.shape[3]))
                new[:, :, : old.shape[2]] = old
                tensors[layer] = new

    def row(self, slot: int) -> KVCache:
        """Return a row as a separate cache over the same memory."""
        keys, values = ([t[slot : slot + 1] for t in part] for part in (self.keys, self.values))
        return KVCache.over(keys, values, self.lengths[slot])

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the beginning of a row to another row."""
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[target, :, :length] = tensor[source, :, :length]
        self.lengths[target] = length


class StepCache:
    """One new token of each of several rows, passed through the network as one row of tokens."""

    def __init__(self, cache: RowCache, slots: Sequence[int]) -> None:
        self.cache, device = cache, cache.keys[0].device
        lengths = [cache.lengths[slot] for slot in slots]
        self.end = max(lengths) + 1
        self.slots = torch.tensor(slots, device=device)
        self.positions = torch.tensor(lengths, device=device)
        self.is_all = list(slots) == list(range(len(cache.lengths)))

    def places(self, tokens: int) -> tuple[Tensor, int]:
        """Return the tokens' positions, and the end of the last one."""
        return self.positions, self.end

    def advance(self, tokens: int) -> None:
        """Do nothing: the caller of the step updates the lengths."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int, *, grouped: bool
    ) -> Tensor:
        """Return the outputs of heads [1, H, rows, E], each token attending to its own row."""
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


class TensorSteps:
    """A torch network that writes up to `num_rows` texts at once."""

    def __init__(self, model: GPT, num_rows: int) -> None:
        self.model = model
        weight = model.embedding.weight
        self.cache = RowCache(model.config, num_rows, weight.device, weight.dtype)

    @torch.inference_mode()
    def read(self, prompts: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Begin rows anew, each with these ids; logits [V] of the token after them."""
        return {slot: self._read(slot, ids) for slot, ids in prompts.items()}

    def _read(self, slot: int, ids: Sequence[int]) -> Tensor:
        self.cache.lengths[slot] = 0
        row = self.cache.row(slot)
        parts = torch.tensor([ids], device=self.model.device).split(PROMPT_PART, dim=1)
        for part in parts[:-1]:
            self.model.hidden(part, row)
        logits = self.model.next_logits(parts[-1], row)
        self.cache.lengths[slot] = len(ids)
        return logits[0]

    @torch.inference_mode()
    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Add one id to each of these rows; logits [rows, V] of the tokens after them."""
        step = StepCache(self.cache, slots)
        logits = self.model.row_logits(torch.tensor(ids, device=self.model.device), step)
        for slot in slots:
            self.cache.lengths[slot] += 1
        return logits
