"""A network computed by native code: the next token of several texts, or the tokens of a prompt.

In:      GPTConfig, weights as arrays; ids of a prompt for one row, or the next id of several rows
Out:     logits of the token after them
Memory:  weights in their own types, bfloat16 in two bytes; keys and values [rows, K, capacity, E]
         of each layer; some rows of the network's width for each of PROMPT_ROWS tokens

Sums are float32 for any type of weights. The result for a token is bit-identical with any other
rows and tokens in the batch, and on any number of threads; tokens of a prompt of LONG_PROMPT tokens
and more are computed by other kernels than those of shorter ones and of single steps. No torch:
native/model/decoder.cpp reads the arrays in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.memory import usable_cores
from lowtide.model.config import GPTConfig
from lowtide.model.rope import frequencies, table_factor
from lowtide.model.tide import num_gate_inputs

__all__ = ["PROMPT_ROWS", "Array", "ArrayCache", "DecoderNetwork", "DecoderSteps", "step_bytes"]

Array = np.ndarray[Any, Any]

PROMPT_ROWS = 256
"""Tokens of a prompt in one batch: enough that reading the weights costs little."""
LONG_PROMPT = 24
"""Tokens from which a prompt is read by products of many rows, which need more work to begin."""
_ROUND = 64  # positions by which a cache grows
_FIRST_POSITIONS = 1024  # of rotary tables
# Of a thread, as in decoder.cpp: numbers of a matrix converted to float32 at once, or the fewest of
# its rows in a product; memory to compute attention over a prompt.
_BLOCK_NUMBERS = 65536
_PRODUCT_OUTPUTS = 32
_MOST_ROOM_BYTES = 4 << 20
_HEAD_NORMS = ("none", "head", "whole")
_KINDS = {"float32": 0, "uint16": 1, "float16": 2}  # uint16: the bits of bfloat16
_PARTS = (
    *("attention_norm.weight", "attention_norm.bias", "mlp_norm.weight", "mlp_norm.bias"),
    *("attention.query_key_value.weight", "attention.query_key_value.bias"),
    *("attention.output.weight", "attention.output.bias"),
    *("mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"),
    *("attention.query_norm.weight", "attention.key_norm.weight"),
    *("mix", "attention.head_gate.weight", "attention.head_gate.bias"),
    *("attention.start_values.weight", "attention.value_gate.weight", "attention.value_gate.bias"),
)  # in the order of native/bindings/decoder.cpp


class DecoderNetwork:
    """Weights under the names of our parameters, and the native code over them.

    `before_layer` is called with the number of each layer before it is computed: if layers share
    their memory, it reads the layer's weights.
    """

    def __init__(
        self,
        config: GPTConfig,
        weights: Mapping[str, Array],
        *,
        num_workers: int | None = None,
        before_layer: Callable[[int], None] | None = None,
    ) -> None:
        self.config, self._before_layer = config, before_layer
        self._num_workers = num_workers or usable_cores()
        family = config.family
        self._weights = dict(weights)  # references, since native code uses their addresses
        sizes = (
            *(config.vocab_size, config.width, config.num_heads, config.num_kv_heads),
            *(config.head_dim, config.mlp_width, num_gate_inputs(config)),
            _HEAD_NORMS.index(family.query_key_norm),
            *(family.norm == "layer", family.norms_after, family.gated_mlp),
            bool(config.without_own_values),
        )
        layers = [
            [self._part(layer, name) for name in _PARTS] for layer in range(config.num_layers)
        ]
        self._decoder = _native.Decoder(
            sizes,
            config.norm_eps,
            config.cap,
            [[_address(part) for part in parts] for parts in layers],
            [[_kind(part) for part in parts] for parts in layers],
            [config.window_of(layer) for layer in range(config.num_layers)],
        )
        self._turns: tuple[Array, Array] | None = None

    def _part(self, layer: int, name: str) -> Array | None:
        if name.startswith("mlp.up.") and self.config.family.gated_mlp:
            name = name.replace("up", "gate_up")
        return self._weights.get(f"blocks.{layer}.{name}")

    def _tables(self, positions: int) -> tuple[list[Array | None], int]:
        """The rotary tables of a step, and how many positions they have."""
        find = self._weights.get
        head = find("embedding.weight" if self.config.tie_weights else "head.weight")
        found = [find("embedding.weight"), head, None]
        found += [find("final_norm.weight"), find("final_norm.bias")]
        if self.config.family.learned_positions:
            found[2] = find("positions.weight")
            return [*found, None, None], self.config.context_length
        if self._turns is None or len(self._turns[0]) < positions:
            longer = max(_FIRST_POSITIONS, 1 << (positions - 1).bit_length())
            self._turns = turn_tables(self.config, min(longer, self.config.context_length))
        return [*found, *self._turns], len(self._turns[0])

    def step(
        self,
        cache: ArrayCache,
        slots: Sequence[int],
        positions: Sequence[int],
        ids: Sequence[int],
        *,
        num_logits: int,
        is_prompt: bool = False,
    ) -> Array:
        """Read ids at their positions of the cache's rows; logits of the last `num_logits`.

        `is_prompt`: all are tokens of long prompts, see LONG_PROMPT.
        """
        tables, num_positions = self._tables(max(positions) + 1)
        logits = np.empty((num_logits, self.config.vocab_size), np.float32)
        self._decoder.step(
            [_address(table) for table in tables],
            [_kind(table) for table in tables[:2]],
            num_positions,
            [_address(keys) for keys in cache.keys],
            [_address(values) for values in cache.values],
            len(cache.lengths),
            cache.capacity,
            np.array(ids, np.int64),
            np.array(positions, np.int64),
            np.array(slots, np.int64),
            _address(logits),
            num_logits,
            is_prompt,
            self._num_workers,
            self._before_layer,
        )
        return logits


class ArrayCache:
    """Keys and values of several texts, each with its own length."""

    def __init__(self, config: GPTConfig, num_rows: int) -> None:
        self.config = config
        self.capacity = 0
        self.lengths = [0] * num_rows
        shape = (num_rows, config.num_kv_heads, 0, config.head_dim)
        self.keys = [np.zeros(shape, np.float32) for _ in range(config.num_layers)]
        self.values = [np.zeros(shape, np.float32) for _ in range(config.num_layers)]

    def reserve(self, positions: int) -> None:
        """Enlarge rows to so many tokens, one layer at a time."""
        if positions <= self.capacity:
            return
        rounded = -(-positions // _ROUND) * _ROUND
        self.capacity = min(rounded, max(self.config.context_length, positions))
        for arrays in (self.keys, self.values):
            for layer, old in enumerate(arrays):
                new = np.zeros((*old.shape[:2], self.capacity, old.shape[3]), np.float32)
                new[:, :, : old.shape[2]] = old
                arrays[layer] = new

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the beginning of a row to another row."""
        for arrays in (self.keys, self.values):
            for array in arrays:
                array[target, :, :length] = array[source, :, :length]
        self.lengths[target] = length


class DecoderSteps:
    """A network that writes up to `num_rows` texts at once."""

    def __init__(
        self, network: DecoderNetwork, num_rows: int, *, prompt_rows: int = PROMPT_ROWS
    ) -> None:
        self.network = network
        self.prompt_rows = prompt_rows
        self.cache = ArrayCache(network.config, num_rows)

    def read(self, prompts: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Start rows with these ids each; return logits [V] of the token after them.

        Tokens of several prompts form one batch, so that weights are read once for short ones too.
        """
        self.cache.reserve(max(map(len, prompts.values())))
        logits: dict[int, Array] = {}
        for is_long in (False, True):
            # By a prompt's own length, so that its logits do not depend on the others.
            some = {s: ids for s, ids in prompts.items() if (len(ids) >= LONG_PROMPT) == is_long}
            logits.update(self._read(some, is_long=is_long))
        for slot, ids in prompts.items():
            self.cache.lengths[slot] = len(ids)
        return logits

    def _read(self, prompts: Mapping[int, Sequence[int]], *, is_long: bool) -> dict[int, Array]:
        places = ((slot, position) for slot, ids in prompts.items() for position in range(len(ids)))
        logits: dict[int, Array] = {}
        while part := list(itertools.islice(places, self.prompt_rows)):
            # The last token of each prompt comes after all others: logits are computed for these.
            part.sort(key=lambda place: place[1] + 1 == len(prompts[place[0]]))
            ends = [slot for slot, position in part if position + 1 == len(prompts[slot])]
            rows = self.network.step(
                self.cache,
                [slot for slot, _ in part],
                [position for _, position in part],
                [prompts[slot][position] for slot, position in part],
                num_logits=len(ends),
                is_prompt=is_long,
            )
            logits.update(zip(ends, rows, strict=True))
        return logits

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Array:
        """Add one id to each of these rows; logits [rows, V] of the tokens after them."""
        positions = [self.cache.lengths[slot] for slot in slots]
        logits = self.network.step(self.cache, slots, positions, ids, num_logits=len(ids))
        for slot in slots:
            self.cache.lengths[slot] += 1
        return logits


def step_bytes(config: GPTConfig, *, rows: int, tokens: int) -> int:
    """Memory to read prompts and write `rows` texts of `tokens` tokens, besides their cache."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    found = max(config.num_heads * config.head_dim, config.width)
    of_row = 4 * config.width + heads + 2 * found + 2 * config.mlp_width + 2 * config.num_heads
    at_once = max(rows, min(rows * tokens, PROMPT_ROWS))
    turns = 3 * min(max(_FIRST_POSITIONS, 2 * tokens), config.context_length) * config.head_dim
    side = max(config.mlp_width, config.width, found)
    widened, attention = max(_BLOCK_NUMBERS, 4 * side), 0
    if tokens >= LONG_PROMPT:  # and as a product reads it
        widened = max(_BLOCK_NUMBERS, _PRODUCT_OUTPUTS * side) + _BLOCK_NUMBERS
        sizes = (1, 1, tokens, config.num_heads, config.num_kv_heads, config.head_dim, 0)
        attention = min(_native.attention_room_bytes(sizes, False), _MOST_ROOM_BYTES)
    numbers = at_once * of_row + turns + usable_cores() * widened + rows * config.vocab_size
    return 4 * numbers + usable_cores() * attention


def turn_tables(config: GPTConfig, positions: int) -> tuple[Array, Array]:
    """Cosines and sines [positions, E / 2] of the rotary angles of queries and keys."""
    turns = np.array(frequencies(config.head_dim, config.rope_theta, config.rope_scaling))
    if config.family.float32_turns and config.rope_scaling is None:
        exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
        turns = np.float32(config.rope_theta) ** -exponents
    places = np.arange(positions, dtype=np.float32)
    angles = np.outer(places, turns.astype(np.float32))
    factor = np.float32(table_factor(config.rope_scaling))
    return np.cos(angles) * factor, np.sin(angles) * factor


def _address(array: Array | None) -> int:
    return 0 if array is None else array.ctypes.data


def _kind(array: Array | None) -> int:
    """The native code's number for the type of an array, which must be contiguous."""
    if array is None:
        return 0
    assert array.flags.c_contiguous
    return _KINDS[array.dtype.name]
