"""A model as one GGUF file, which llama.cpp runs.

    "GGUF", version 3, number of tensors, number of pairs
    pairs      key, type, value: the shape of the network and the whole tokenizer
    tensors    name, sizes (the fastest first), type, offset in the data
    data       each tensor at a multiple of 32

In:      a folder with safetensors, and its tokenizer
Out:     the file, atomically; notes on what llama.cpp does differently
Memory:  the tokenizer, and half a million numbers of a tensor at a time; no torch
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowtide.errors import UsageError
from lowtide.files import atomic_path, checksum_file
from lowtide.model.checksums import record_checksums
from lowtide.model.config import GPTConfig
from lowtide.model.ggufvocabulary import describe_vocabulary
from lowtide.model.heldfiles import unchanged
from lowtide.model.quantization import BLOCK, quantize_q4_0, quantize_q8_0
from lowtide.model.rope import RopeScaling, frequencies, table_factor
from lowtide.model.tensorfiles import (
    find_tensors,
    from_float32,
    read_exactly,
    to_float32,
)
from lowtide.model.tensorheaders import ITEM_BYTES, StoredTensor
from lowtide.model.tensors import HEAD, ModelTensor, iter_tensors
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["GgufFile", "GgufType", "describe_gguf", "write_gguf"]

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]

_VERSION, _ALIGNMENT, _PIECE_NUMBERS = 3, 32, 1 << 19
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
# By type: its number among tensors and among files, numbers and bytes of a block.
_TYPES: dict[str, tuple[int, int, int, int]] = {
    "f32": (0, 0, 1, 4),
    "f16": (1, 1, 1, 2),
    "bf16": (30, 32, 1, 2),
    "q8_0": (8, 7, BLOCK, 34),
    "q4_0": (2, 2, BLOCK, 18),
}
_ENCODERS: dict[str, Callable[[npt.NDArray[np.float32]], bytes]] = {
    "f32": lambda numbers: from_float32(numbers, "F32"),
    "f16": lambda numbers: from_float32(numbers, "F16"),
    "bf16": lambda numbers: from_float32(numbers, "BF16"),
    "q8_0": quantize_q8_0,
    "q4_0": quantize_q4_0,
}


@dataclass(frozen=True)
class _Row:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """In the order of the data: the fastest last."""
    kind: str
    stored: StoredTensor | None
    """None: `numbers` has them."""
    numbers: tuple[float, ...] = ()
    transposed: bool = False
    permuted_heads: int = 0
    """Heads whose halves are interleaved into pairs; 0: none."""

    @property
    def num_bytes(self) -> int:
        _, _, block, size = _TYPES[self.kind]
        return math.prod(self.shape) // block * size


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file without its tensor data."""

    pairs: dict[str, Any]
    rows: list[_Row]
    notes: tuple[str, ...]
    """Notes on what llama.cpp does differently."""

    @property
    def num_bytes(self) -> int:
        """The size of the tensor data."""
        return sum(row.num_bytes for row in self.rows)


def describe_gguf(
    folder: Path,
    *,
    tokenizer: Tokenizer,
    tokenizer_dir: Path,
    config: GPTConfig,
    kind: GgufType,
    name: str,
) -> GgufFile:
    """Describe the file's content; models that GGUF or llama.cpp do not support are refused."""
    _require_known(config, folder)
    vocabulary = describe_vocabulary(tokenizer, config, tokenizer_dir)
    notes = list(vocabulary.notes)
    if config.window_layers and config.sliding_window < config.context_length:
        notes.append(
            f"llama.cpp has no windows in {config.family.gguf} models: texts of more than "
            f"{config.sliding_window:,} tokens differ"
        )
    pairs = {**_shape_pairs(config, kind, name), **vocabulary.pairs}
    return GgufFile(pairs, _rows(config, find_tensors(folder, config), kind), tuple(notes))


def write_gguf(
    path: Path,
    contents: GgufFile,
    *,
    on_bytes: Callable[[int], None] = lambda count: None,
    piece_numbers: int = _PIECE_NUMBERS,
) -> None:
    """Write a file, atomically, its checksum first; `on_bytes` is told how many more are there."""
    with atomic_path(path) as partial:
        stored = [row.stored for row in contents.rows if row.stored is not None]
        with partial.open("r+b") as file, unchanged(stored):
            file.write(_header(contents.pairs, contents.rows))
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            for row in contents.rows:
                for piece in _iter_blocks(row, piece_numbers):
                    data = _ENCODERS[row.kind](piece)
                    file.write(data)
                    on_bytes(len(data))
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
        record_checksums(path.parent, {path.name: checksum_file(partial)})


def _require_known(config: GPTConfig, folder: Path) -> None:
    """Refuse features that llama.cpp does not implement for the architecture."""
    family, name = config.family, config.layout
    problem = None
    if family.gguf is None:
        problem = f"llama.cpp knows no {name} models"
    elif config.attention_bias and not family.gguf_biases:
        problem = f"llama.cpp's {family.gguf} has no biases in attention"
    elif family.gguf_square_heads and config.head_dim * config.num_heads != config.width:
        problem = f"llama.cpp's {name} has heads of width / num_heads, these are {config.head_dim}"
    elif (other := _own_yarn(config.rope_scaling)) is not None:
        problem = f"llama.cpp has no {other} of its own for YaRN, and this model has one"
    if problem is not None:
        raise UsageError(problem, path=folder, next_step="export without --to gguf")


def _own_yarn(scaling: RopeScaling | None) -> str | None:
    """The part of YaRN that a model has otherwise than llama.cpp; files have no field for it that
    all of its versions read."""
    if scaling is None or scaling.rope_type != "yarn":
        return None
    usual = RopeScaling("yarn", scaling.factor, scaling.original_max_position_embeddings)
    for name in ("beta_fast", "beta_slow", "truncate"):
        if getattr(scaling, name) != getattr(usual, name):
            return name
    same = math.isclose(table_factor(scaling), table_factor(usual), rel_tol=1e-5)
    return None if same else "attention_factor"


def _shape_pairs(config: GPTConfig, kind: GgufType, name: str) -> dict[str, Any]:
    family = config.family
    arch = family.gguf
    pairs: dict[str, Any] = {
        "general.architecture": arch,
        "general.type": "model",
        "general.name": name,
        "general.file_type": _TYPES[kind][1],
        "general.quantization_version": 2,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.width,
        f"{arch}.block_count": config.num_layers,
        f"{arch}.feed_forward_length": config.mlp_width,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.vocab_size": config.vocab_size,
    }
    if family.learned_positions:
        return {**pairs, f"{arch}.attention.layer_norm_epsilon": float(config.norm_eps)}
    pairs |= {
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.norm_eps),
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.value_length": config.head_dim,
        f"{arch}.rope.dimension_count": config.head_dim,
        f"{arch}.rope.freq_base": float(config.rope_theta),
    }
    scaling = config.rope_scaling
    if scaling is not None and scaling.rope_type != "llama3":
        pairs[f"{arch}.rope.scaling.type"] = scaling.rope_type
        pairs[f"{arch}.rope.scaling.factor"] = float(scaling.factor)
        if scaling.rope_type == "yarn":
            context = scaling.original_max_position_embeddings
            pairs[f"{arch}.rope.scaling.original_context_length"] = context
    return pairs


def _rows(config: GPTConfig, found: dict[str, StoredTensor], kind: GgufType) -> list[_Row]:
    """The tensors of the file, in its order."""
    rows = [_row(config, tensor, found[tensor.name], kind) for tensor in iter_tensors(config)]
    if config.family.gguf_own_head and config.tie_weights:
        table = next(row for row in rows if row.name == "token_embd.weight")
        rows.append(_Row("output.weight", table.shape, table.kind, table.stored))
    scaling = config.rope_scaling
    if scaling is not None and scaling.rope_type == "llama3":
        plain = frequencies(config.head_dim, config.rope_theta, None)
        scaled = frequencies(config.head_dim, config.rope_theta, scaling)
        divisors = tuple(a / b for a, b in zip(plain, scaled, strict=True))
        rows.append(_Row("rope_freqs.weight", (len(divisors),), "f32", None, divisors))
    return rows


def _row(config: GPTConfig, tensor: ModelTensor, stored: StoredTensor, kind: GgufType) -> _Row:
    shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
    name, part = _gguf_name(config, tensor.name)
    wanted: str = kind
    if len(shape) == 1 or name == "position_embd.weight":
        wanted = "f32"
    elif shape[-1] % _TYPES[kind][2]:
        wanted = "f16"  # rows are not a whole number of blocks
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(part, 0)
    return _Row(
        name,
        shape,
        wanted,
        stored,
        transposed=tensor.transposed,
        permuted_heads=heads if config.family.gguf_permuted else 0,
    )


def _gguf_name(config: GPTConfig, name: str) -> tuple[str, str]:
    """llama.cpp's name of a tensor, and the part of a layer it belongs to."""
    family = config.family
    place, _, end = name.rpartition(".")
    ends = {
        family.embedding: "token_embd",
        family.positions: "position_embd",
        family.final_norm: "output_norm",
        HEAD.removesuffix(".weight"): "output",
    }
    if place in ends:
        return f"{ends[place]}.{end}", ends[place]
    layer, _, inner = place.removeprefix(family.layers).partition(".")
    part = family.gguf_names[inner]
    return f"blk.{layer}.{part}.{end}", part


def _iter_blocks(row: _Row, piece_numbers: int) -> Iterator[npt.NDArray[np.float32]]:
    """The numbers of a tensor in llama.cpp's layout, some whole rows at a time."""
    if row.stored is None:
        yield np.array(row.numbers, np.float32)
        return
    if row.transposed:
        yield from _iter_columns(row.stored, piece_numbers)
        return
    columns = math.prod(row.shape[1:])
    group = row.shape[0] // row.permuted_heads if row.permuted_heads else 1
    groups = max(1, piece_numbers // (group * columns))
    item, total = ITEM_BYTES[row.stored.kind], row.shape[0] // group
    with row.stored.path.open("rb", buffering=0) as file:
        file.seek(row.stored.offset)
        for first in range(0, total, groups):
            count = min(groups, total - first)
            data = bytearray(count * group * columns * item)
            read_exactly(file, data, row.stored)
            numbers = to_float32(data, row.stored.kind)
            if row.permuted_heads:
                halves = numbers.reshape(count, 2, group // 2, columns)
                numbers = np.ascontiguousarray(halves.swapaxes(1, 2))
            yield numbers.reshape(-1)


def _iter_columns(stored: StoredTensor, piece_numbers: int) -> Iterator[npt.NDArray[np.float32]]:
    """The columns of a stored matrix as rows; each is gathered from all of the tensor's rows."""
    rows, columns = stored.shape
    item = ITEM_BYTES[stored.kind]
    step = max(1, piece_numbers // max(1, rows))
    with stored.path.open("rb", buffering=0) as file:
        for first in range(0, columns, step):
            count = min(step, columns - first)
            data = bytearray(rows * count * item)
            view = memoryview(data)
            for number in range(rows):
                file.seek(stored.offset + (number * columns + first) * item, os.SEEK_SET)
                part = view[number * count * item : (number + 1) * count * item]
                read_exactly(file, part, stored)
            numbers = to_float32(data, stored.kind).reshape(rows, count)
            yield np.ascontiguousarray(numbers.T).reshape(-1)


def _header(pairs: dict[str, Any], rows: list[_Row]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(rows), len(pairs))]
    for key, value in pairs.items():
        kind = _kind_of(value)
        parts += [_text(key), struct.pack("<i", kind), _value(value, kind)]
    offset = 0
    for row in rows:
        sizes = row.shape[::-1]
        parts += [_text(row.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(struct.pack("<iQ", _TYPES[row.kind][0], offset))
        offset += -(-row.num_bytes // _ALIGNMENT) * _ALIGNMENT
    return b"".join(parts)


def _kind_of(value: Any) -> int:
    if isinstance(value, list):
        return _ARRAY
    return {str: _STRING, bool: _BOOL, int: _U32, float: _F32}[type(value)]


def _value(value: Any, kind: int) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        inner = _kind_of(value[0]) if value else _STRING
        inner = _I32 if inner == _U32 else inner
        head = struct.pack("<iQ", inner, len(value))
        if inner == _STRING:
            return head + b"".join(map(_text, value))
        return head + np.array(value, {_I32: "<i4", _F32: "<f4"}[inner]).tobytes()
    return struct.pack({_BOOL: "<?", _U32: "<I", _I32: "<i", _F32: "<f"}[kind], value)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
