"""Copy the tensors of safetensors files into one, in another type, without holding any of them.

In:      a folder with safetensors under transformers' names, and the shape they must have
Out:     one safetensors file, byte for byte as the library writes it
Memory:  one piece of a tensor, read and converted; no torch
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from lowtide.errors import DataError
from lowtide.files import atomic_path, checksum_file, read_json
from lowtide.model.checksums import record_checksums
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import count_parameters
from lowtide.model.tide import added_tensors

__all__ = [
    "PIECE_BYTES",
    "copy_tensors",
    "header_bytes",
    "portable_shapes",
    "require_weights",
    "weight_files",
]

PIECE_BYTES = 24 << 20
"""What a piece takes at most: as it is read, as float32, and as it is written."""
_PIECE_NUMBERS = 1 << 20
_LARGEST_HEADER = 100 << 20
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_WHOLE_BYTES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class _Stored:
    """Where a tensor is."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the file."""


def portable_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's tensors, as transformers has them."""
    width, inner = config.width, config.mlp_width
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    vocabulary = (config.vocab_size, width)
    shapes: dict[str, tuple[int, ...]] = {}
    if config.layout == "gpt2":
        shapes["transformer.wte.weight"] = vocabulary
        shapes["transformer.wpe.weight"] = (config.context_length, width)
        rows = {"ln_1": (width,), "attn.c_attn": (width, query + 2 * key), "ln_2": (width,)}
        rows |= {"attn.c_proj": (query, width), "mlp.c_fc": (width, inner)}
        rows |= {"mlp.c_proj": (inner, width)}
        layers = {f"transformer.h.{number}.": rows for number in range(config.num_layers)}
        for place, parts in {"transformer.": {"ln_f": (width,)}, **layers}.items():
            for name, shape in parts.items():
                shapes[f"{place}{name}.weight"] = shape
                shapes[f"{place}{name}.bias"] = shape[-1:]
    else:
        shapes["model.embed_tokens.weight"] = vocabulary
        shapes["model.norm.weight"] = (width,)
        rows = {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
        rows |= {"self_attn.q_proj": (query, width), "self_attn.o_proj": (width, query)}
        rows |= {"self_attn.k_proj": (key, width), "self_attn.v_proj": (key, width)}
        rows |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
        rows |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)}
        rows |= {"mlp.down_proj": (width, inner)}
        for number in range(config.num_layers):
            for name, shape in rows.items():
                shapes[f"model.layers.{number}.{name}.weight"] = shape
            for tensor in added_tensors(config, number):
                shapes[f"model.layers.{number}.{tensor.portable_name}"] = tensor.shape
    if not config.tie_weights:
        shapes["lm_head.weight"] = vocabulary
    return shapes


def copy_tensors(
    folder: Path,
    path: Path,
    *,
    config: GPTConfig,
    dtype: str,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> None:
    """Write all tensors of a model's folder to `path`, atomically, its checksum first.

    `on_bytes` is told how many more bytes are written.
    """
    require_weights(folder, config)
    stored = _find_tensors(folder)
    kind = _NAMES[dtype]
    wanted: dict[str, _Stored] = {}
    for name, shape in sorted(portable_shapes(config).items()):
        found = _find(stored, name, folder)
        if found.shape != shape:
            raise DataError(f"{name} is {found.shape}, config.json says {shape}", path=folder)
        wanted[name] = found
    with atomic_path(path) as partial:
        with partial.open("r+b") as file:
            file.write(header_bytes({name: (kind, row.shape) for name, row in wanted.items()}))
            for row in wanted.values():
                _copy(row, kind, file, on_bytes)
        record_checksums(path.parent, {path.name: checksum_file(partial)})


def _find(stored: Mapping[str, _Stored], name: str, folder: Path) -> _Stored:
    for known in (name, name.removeprefix("transformer."), name.removeprefix("model.")):
        if known in stored:
            return stored[known]
    raise DataError(f"the weights lack {name}", path=folder)


def weight_files(folder: Path) -> dict[str, Path] | Path:
    """The file of each tensor, where an index names them; else the one file there is.

    Files lie in the folder itself and are ordinary files: an index from elsewhere must not make us
    read other people's data, or wait for a pipe.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        path = folder / "model.safetensors"
        if not path.exists():
            raise DataError(
                "no model.safetensors here",
                path=folder,
                next_step="name the folder of a run, or of a model in transformers' format",
            )
        return _require_plain(path, folder)
    content: Any = read_json(index)
    names: Any = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise DataError("weight_map is missing, or does not name a file per tensor", path=index)
    for name in sorted(set(names.values())):
        if name in ("", ".", "..") or Path(name).name != name:
            raise DataError(f"the index names {name!r}, which is not in its folder", path=index)
        _require_plain(folder / name, index)
    return {tensor: folder / name for tensor, name in names.items()}


def _require_plain(path: Path, place: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path.name} is missing, or not a file", path=place)
    return path


def require_weights(folder: Path, config: GPTConfig) -> None:
    """Refuse a config.json whose network is larger than the files of its weights could hold.

    Compared before anything is allocated: a wrong number there must not take all memory.
    """
    files = weight_files(folder)
    paths = {files} if isinstance(files, Path) else set(files.values())
    stored = sum(path.stat().st_size for path in paths)
    count = count_parameters(config)
    if count > stored:
        raise DataError(
            f"config.json describes {count:,} parameters, the weights have {stored:,} bytes",
            path=folder,
            next_step="bring back the config.json that belongs to these weights",
        )


def _find_tensors(folder: Path) -> dict[str, _Stored]:
    """Find every tensor of a folder, in one file or in those that its index names."""
    files = weight_files(folder)
    found: dict[str, _Stored] = {}
    for path in [files] if isinstance(files, Path) else sorted(set(files.values())):
        found.update(_read_header(path))
    return found


def _read_header(path: Path) -> dict[str, _Stored]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _LARGEST_HEADER:
                raise ValueError(f"a header of {size} bytes")
            header: dict[str, Any] = json.loads(file.read(size))
        begin, end = 8 + size, path.stat().st_size
        rows = {
            name: _Stored(path, row["dtype"], tuple(row["shape"]), begin + row["data_offsets"][0])
            for name, row in header.items()
            if name != "__metadata__"
        }
        for name, row in rows.items():
            if row.kind not in _ITEM_BYTES:
                raise ValueError(f"{name} is of type {row.kind}, expected {', '.join(_ITEM_BYTES)}")
            if row.offset + math.prod(row.shape) * _ITEM_BYTES[row.kind] > end:
                raise ValueError(f"{name} ends beyond the file")
        return rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"not a readable safetensors file: {error}", path=path) from None


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The beginning of a safetensors file that holds tensors of this kind and shape, in order."""
    rows: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape) in tensors.items():
        end = offset + math.prod(shape) * (_ITEM_BYTES | _WHOLE_BYTES)[kind]
        rows[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _copy(row: _Stored, kind: str, out: IO[bytes], on_bytes: Callable[[int], None]) -> None:
    with row.path.open("rb", buffering=0) as file:
        file.seek(row.offset)
        for data in _iter_pieces(file, row):
            piece = data if row.kind == kind else _convert(data, row.kind, kind)
            out.write(piece)
            on_bytes(len(piece))


def _iter_pieces(file: BinaryIO, row: _Stored) -> Iterator[bytes]:
    item = _ITEM_BYTES[row.kind]
    left = math.prod(row.shape) * item
    while left:
        data = file.read(min(left, _PIECE_NUMBERS * item))
        if not data or len(data) % item:
            raise DataError("the file was cut short while it was read", path=row.path)
        left -= len(data)
        yield data


def _convert(data: bytes, kind: str, wanted: str) -> bytes:
    """Convert numbers as torch does: through float32, to the nearest, ties to even."""
    if kind == "BF16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = numbers.astype("<f4", copy=False)
        if wanted == "F16":
            return numbers.astype("<f2").tobytes()
    if wanted == "F32":
        return numbers.tobytes()
    bits = numbers.view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    rounded[np.isnan(numbers)] = 0x7FC0
    return rounded.astype("<u2").tobytes()
