"""Copy the tensors of safetensors files into one file, in another type, piece by piece.

In:      a folder with safetensors under transformers' names, and the shape they must have
Out:     one safetensors file, byte for byte as the library writes it
Memory:  one piece of a tensor, read and converted; no torch
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.errors import DataError
from lowtide.filenames import WEIGHTS_INDEX_NAME, WEIGHTS_NAME
from lowtide.files import atomic_path, checksum_file, read_json
from lowtide.model.checksums import record_checksums
from lowtide.model.config import GPTConfig
from lowtide.model.heldfiles import unchanged
from lowtide.model.sizing import count_parameters
from lowtide.model.tensorheaders import ITEM_BYTES, StoredTensor, header_bytes, read_header
from lowtide.model.tensors import HEAD, iter_tensors
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "NAMES",
    "PIECE_BYTES",
    "PIECE_NUMBERS",
    "TableRows",
    "copy_tensors",
    "find_tensors",
    "from_float32",
    "iter_pieces",
    "read_exactly",
    "require_weights",
    "stored_dtype",
    "to_float32",
    "weight_files",
]

PIECE_BYTES = 24 << 20
"""The largest memory of a piece: as read, as float32, and as written."""
PIECE_NUMBERS = 1 << 20
_BUFFERS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Tensors in old files that are not weights."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")
_POINTER = b"version https://git-lfs"  # the text that Git stores in place of a large file
_OTHER_CONFIG = "bring back the config.json and the weights as they belong together"
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class TableRows:
    """New rows for a table: their count, and a function from the stored tensor to their bytes."""

    num_rows: int
    pieces: Callable[[StoredTensor, str], Iterator[bytes]]


def copy_tensors(
    folder: Path,
    path: Path,
    *,
    config: GPTConfig,
    dtype: str | None,
    tables: Mapping[str, TableRows] | None = None,
    on_bytes: Callable[[int], None] = lambda count: None,
    piece_numbers: int = PIECE_NUMBERS,
) -> None:
    """Write all tensors of a model's folder to `path`, atomically, its checksum first.

    Without a type each is copied byte for byte. Those in `tables` get other rows. `on_bytes` is
    called with the number of bytes written since its last call.
    """
    require_weights(folder, config)
    wanted = find_tensors(folder, config)
    changed = tables or {}
    kinds = {name: NAMES[dtype] if dtype else row.kind for name, row in wanted.items()}
    shapes = {
        name: (changed[name].num_rows, *row.shape[1:]) if name in changed else row.shape
        for name, row in wanted.items()
    }
    # As the library orders them: wide numbers first, then by name.
    order = sorted(wanted, key=lambda name: (-ITEM_BYTES[kinds[name]], name))
    with atomic_path(path) as partial:
        with partial.open("r+b") as file, unchanged(wanted.values()):
            file.write(header_bytes({name: (kinds[name], shapes[name]) for name in order}))
            for name in order:
                row, kind = wanted[name], kinds[name]
                pieces = (
                    changed[name].pieces(row, kind)
                    if name in changed
                    else iter_pieces(row, kind, piece_numbers=piece_numbers)
                )
                for piece in pieces:
                    file.write(piece)
                    on_bytes(len(piece))
        record_checksums(path.parent, {path.name: checksum_file(partial)})


def find_tensors(folder: Path, config: GPTConfig) -> dict[str, StoredTensor]:
    """Find the tensors of a network in a folder; a set that does not match the config is refused.

    Every name and shape is compared. Of additional tensors only the buffers of old files are
    ignored: a bias that is not in the config would change the model's results.
    """
    stored = _read_headers(folder)
    found: dict[str, StoredTensor] = {}
    for tensor in iter_tensors(config):
        row = stored.pop(_known_as(tensor.name, stored, folder))
        if row.shape != tensor.shape:
            raise DataError(
                f"{tensor.name} is {row.shape}, config.json says {tensor.shape}",
                path=row.path,
                next_step=_OTHER_CONFIG,
            )
        if row.kind not in ITEM_BYTES:
            raise DataError(
                f"{tensor.name} is of type {row.kind}, expected {', '.join(ITEM_BYTES)}",
                path=row.path,
                next_step="take weights that are not quantized",
            )
        found[tensor.name] = row
    if config.tie_weights and HEAD in stored:
        _require_equal(found[f"{config.family.embedding}.weight"], stored.pop(HEAD), folder)
    strange = sorted(name for name in stored if not name.endswith(_BUFFERS))
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise DataError(
            f"the weights have {strange[0]}{more}, which the network of config.json has not",
            path=folder,
            next_step=_OTHER_CONFIG,
        )
    return found


def stored_dtype(folder: Path, config: GPTConfig) -> str:
    """The type that most numbers of a folder's weights have, as config.json names it."""
    counts: Counter[str] = Counter()
    for row in find_tensors(folder, config).values():
        counts[row.kind] += math.prod(row.shape)
    kind = counts.most_common(1)[0][0]
    return next((name for name, known in NAMES.items() if known == kind), "float32")


def _known_as(name: str, stored: Mapping[str, StoredTensor], folder: Path) -> str:
    """The name of a tensor in these files, some of which omit the prefix."""
    for known in (name, name.removeprefix("transformer."), name.removeprefix("model.")):
        if known in stored:
            return known
    raise DataError(f"the weights lack {name}", path=folder, next_step=_OTHER_CONFIG)


def _require_equal(table: StoredTensor, head: StoredTensor, folder: Path) -> None:
    """Refuse a stored output matrix that differs from the embedding it is tied to."""
    pairs: Iterator[tuple[bytes, bytes]] = iter(())
    same = head.shape == table.shape and head.kind == table.kind
    if same:
        pairs = zip(iter_pieces(table, table.kind), iter_pieces(head, head.kind), strict=True)
    if not same or any(left != right for left, right in pairs):
        raise DataError(
            f"tie_word_embeddings is true, but {HEAD} and the embedding are both stored, and "
            "differ",
            path=folder,
            next_step="set tie_word_embeddings to false in config.json if both are meant; else "
            f"remove {HEAD} from the weights",
        )


def weight_files(folder: Path) -> dict[str, Path] | Path:
    """The file of each tensor, if there is an index; else the single file.

    Files must be regular files in the folder itself, so that a downloaded index cannot make us read
    other data, or block on a pipe.
    """
    index = folder / WEIGHTS_INDEX_NAME
    if not index.exists():
        path = folder / WEIGHTS_NAME
        if not path.exists():
            _refuse_pickles(folder)
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


def _refuse_pickles(folder: Path) -> None:
    """Raise an error for pickled weights: why they are not read, and how to convert them."""
    pickles = sorted(path for path in folder.glob("*") if path.name.endswith(_PICKLES))
    if pickles:
        raise DataError(
            f"{pickles[0].name} is a pickle, which can run any program when it is read; lowtide "
            "reads safetensors",
            path=pickles[0],
            next_step='where you trust it: python -c "from transformers import '
            f"AutoModelForCausalLM as M; M.from_pretrained({str(folder)!r})"
            f'.save_pretrained({str(folder) + "-safe"!r})"   and copy the tokenizer beside it',
        )


def _require_plain(path: Path, place: Path) -> Path:
    if not path.is_file():
        raise DataError(
            f"{path.name} is missing, or not a file",
            path=place,
            next_step="bring this file back from where the model came from",
        )
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise DataError(
                f"{path.name} is Git's pointer to the weights, not the weights",
                path=path,
                next_step="git lfs pull   in the folder that was cloned",
            )
    return path


def require_weights(folder: Path, config: GPTConfig) -> None:
    """Refuse a config.json whose network is larger than its files of weights could hold.

    This is checked before anything is allocated, so that a wrong number cannot take all memory.
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


def _read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Find every tensor of a folder, in one file or in those that its index names."""
    files = weight_files(folder)
    if isinstance(files, Path):
        return read_header(files)
    headers = {path: read_header(path) for path in sorted(set(files.values()))}
    for name, path in files.items():
        if name not in headers[path]:
            raise DataError(
                f"the index says {name} is in {path.name}, which does not have it",
                path=path,
                next_step="bring this file back from where the model came from",
            )
    return {name: headers[path][name] for name, path in files.items()}


def iter_pieces(
    row: StoredTensor, kind: str, *, piece_numbers: int = PIECE_NUMBERS
) -> Iterator[bytes]:
    """The numbers of a tensor in another type, a piece at a time."""
    item = ITEM_BYTES[row.kind]
    left = row.num_bytes
    with row.path.open("rb", buffering=0) as file:
        file.seek(row.offset)
        while left:
            data = bytearray(min(left, piece_numbers * item))
            read_exactly(file, data, row)
            left -= len(data)
            yield bytes(data) if row.kind == kind else _convert(data, row.kind, kind)


def read_exactly(file: RawIOBase, data: bytearray | memoryview, row: StoredTensor) -> None:
    """Fill `data` from a file; a file that ends early is an error."""
    view = memoryview(data)
    while view:
        count = file.readinto(view)
        if not count:
            raise DataError("the file was cut short while it was read", path=row.path)
        view = view[count:]


def to_float32(data: bytes | bytearray, kind: str) -> npt.NDArray[np.float32]:
    """Stored numbers as float32."""
    if kind == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    numbers = np.frombuffer(data, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype("<f4", copy=False)


def _convert(data: bytes | bytearray, kind: str, wanted: str) -> bytes:
    """Convert numbers as torch does: through float32, to the nearest, ties to even."""
    return from_float32(to_float32(data, kind), wanted)


def from_float32(numbers: npt.NDArray[np.float32], wanted: str) -> bytes:
    """The bytes of numbers in another type: to the nearest, ties to even."""
    if wanted == "F32":
        return numbers.tobytes()
    if wanted == "F16":
        with np.errstate(over="ignore", invalid="ignore"):
            return numbers.astype("<f2").tobytes()
    bits = numbers.view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    rounded[np.isnan(numbers)] = 0x7FC0
    return rounded.astype("<u2").tobytes()
