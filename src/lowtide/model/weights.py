"""Weights on disk: safetensors under transformers' names, so a run's folder is portable.

In:      GPT, or a folder with config.json and safetensors (ours, or of a Qwen3 or GPT-2 model)
Out:     the other one
Memory:  one tensor at a time when loading; when saving, the portable copies of the split matrices
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowtide.errors import DataError
from lowtide.files import atomic_path, checksum_file
from lowtide.model.checksums import find_intact, record_checksums, verify_folder
from lowtide.model.config import GPTConfig, find_model_dir, load_config
from lowtide.model.gpt import GPT
from lowtide.model.tensorfiles import header_bytes, require_weights, weight_files
from lowtide.model.tide import added_tensors

__all__ = [
    "TensorFile",
    "find_model_dir",
    "load_model",
    "load_weights",
    "portable_tensors",
    "save_weights",
]

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

# One portable tensor: its name, and how it is cut out of ours (rows, then a transpose).
_Part = tuple[str, slice | None, bool]


def _block_parts(config: GPTConfig, layer: int) -> dict[str, list[_Part]]:
    """Return for each of a block's parameters the portable tensors that make it up."""
    query = config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    if config.layout == "gpt2":
        there = f"transformer.h.{layer}."
        pairs = {
            "attention_norm": ("ln_1", False),
            "attention.query_key_value": ("attn.c_attn", True),
            "attention.output": ("attn.c_proj", True),
            "mlp_norm": ("ln_2", False),
            "mlp.up": ("mlp.c_fc", True),
            "mlp.down": ("mlp.c_proj", True),
        }
        parts: dict[str, list[_Part]] = {}
        for ours, (name, turned) in pairs.items():
            parts[f"{ours}.weight"] = [(f"{there}{name}.weight", None, turned)]
            parts[f"{ours}.bias"] = [(f"{there}{name}.bias", None, False)]
    else:
        there = f"model.layers.{layer}."
        parts = {
            "attention_norm.weight": [(f"{there}input_layernorm.weight", None, False)],
            "attention.query_key_value.weight": [
                (f"{there}self_attn.q_proj.weight", slice(0, query), False),
                (f"{there}self_attn.k_proj.weight", slice(query, query + key), False),
                (f"{there}self_attn.v_proj.weight", slice(query + key, query + 2 * key), False),
            ],
            "attention.query_norm.weight": [(f"{there}self_attn.q_norm.weight", None, False)],
            "attention.key_norm.weight": [(f"{there}self_attn.k_norm.weight", None, False)],
            "attention.output.weight": [(f"{there}self_attn.o_proj.weight", None, False)],
            "mlp_norm.weight": [(f"{there}post_attention_layernorm.weight", None, False)],
            "mlp.gate_up.weight": [
                (f"{there}mlp.gate_proj.weight", slice(0, config.mlp_width), False),
                (f"{there}mlp.up_proj.weight", slice(config.mlp_width, None), False),
            ],
            "mlp.down.weight": [(f"{there}mlp.down_proj.weight", None, False)],
        }
        for tensor in added_tensors(config, layer):
            parts[tensor.name] = [(f"{there}{tensor.portable_name}", None, False)]
    return {f"blocks.{layer}.{name}": value for name, value in parts.items()}


def _all_parts(config: GPTConfig) -> dict[str, list[_Part]]:
    parts: dict[str, list[_Part]] = {}
    if config.layout == "gpt2":
        parts["embedding.weight"] = [("transformer.wte.weight", None, False)]
        parts["positions.weight"] = [("transformer.wpe.weight", None, False)]
        parts["final_norm.weight"] = [("transformer.ln_f.weight", None, False)]
        parts["final_norm.bias"] = [("transformer.ln_f.bias", None, False)]
    else:
        parts["embedding.weight"] = [("model.embed_tokens.weight", None, False)]
        parts["final_norm.weight"] = [("model.norm.weight", None, False)]
    if not config.tie_weights:
        parts["head.weight"] = [("lm_head.weight", None, False)]
    for layer in range(config.num_layers):
        parts.update(_block_parts(config, layer))
    return parts


def portable_tensors(
    state: Mapping[str, Tensor], config: GPTConfig, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return a model's state dict under transformers' names, contiguous and on the CPU."""
    tensors: dict[str, Tensor] = {}
    for ours, parts in _all_parts(config).items():
        whole = state[ours].detach().to("cpu", dtype)
        for name, rows, turned in parts:
            piece = whole if rows is None else whole[rows]
            tensors[name] = (piece.t() if turned else piece).contiguous()
    return tensors


def save_weights(path: str | Path, tensors: Mapping[str, Tensor], *, record: bool = True) -> None:
    """Write tensors to one safetensors file, atomically, and its checksum beside it.

    Without `record` the checksum is left to the caller, who writes several files at once.
    """
    path = Path(path)
    with atomic_path(path) as partial:
        with partial.open("r+b", buffering=0) as file:
            _write_tensors(file, tensors)
        if record:
            record_checksums(path.parent, {path.name: checksum_file(partial)})


def _write_tensors(file: FileIO, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file out of the tensors' own memory; the library copies all of it first.

    The order is the library's, so that the bytes are too: wide numbers first, then by name.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    rows = {name: (_KINDS[tensors[name].dtype], tuple(tensors[name].shape)) for name in order}
    _write_all(file, header_bytes(rows))
    for name in order:
        flat = tensors[name].detach().to("cpu").contiguous().flatten()
        _write_all(file, flat.view(torch.uint8).numpy().data)


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:  # one call writes 2 GiB at most
        left = left[file.write(left) :]


def load_weights(model: GPT, folder: str | Path, *, verify: bool = True) -> None:
    """Copy the weights of a folder into `model`, tensor by tensor, whatever device it is on."""
    if verify:
        verify_folder(folder)
    files = _tensor_files(Path(folder))
    state = model.state_dict()
    for ours, parts in _all_parts(model.config).items():
        target = state[ours]
        for name, rows, turned in parts:
            tensor = _read_tensor(files, name, Path(folder))
            place = target if rows is None else target[rows]
            tensor = tensor.t() if turned else tensor
            if tensor.shape != place.shape:
                raise DataError(
                    f"{name} is {tuple(tensor.shape)}, config.json says {tuple(place.shape)}",
                    path=folder,
                )
            place.copy_(tensor)


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file each tensor of a folder is in."""
    files = weight_files(folder)
    if isinstance(files, Path):
        return dict.fromkeys(_open(files, lambda file: list(file.keys())), files)
    return files


def _read_tensor(files: Mapping[str, Path], name: str, folder: Path) -> Tensor:
    for known in (name, name.removeprefix("transformer."), name.removeprefix("model.")):
        if known in files:
            return _open(files[known], lambda file, known=known: file.get_tensor(known))
    raise DataError(f"the weights lack {name}", path=folder)


@contextlib.contextmanager
def _named_in_utf8(path: Path) -> Generator[str]:
    """A name of `path` that safetensors takes: its own, or that of an open descriptor."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        with path.open("rb", buffering=0) as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield name


def _open(path: Path, use: Callable[[Any], Any]) -> Any:
    try:
        with _named_in_utf8(path) as name, safe_open(name, framework="pt") as file:
            return use(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"not a readable safetensors file: {error}", path=path) from None


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file by name, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] = _open(path, lambda file: list(file.keys()))

    def __getitem__(self, name: str) -> Tensor:
        return _open(self._path, lambda file: file.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_model(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    note: Callable[[str], None] | None = None,
) -> GPT:
    """Load a network from the folder of a run or of a transformers model.

    Weights that are not what the run wrote are named by `note` (stderr if not given), and the
    newest checkpoint that is whole is taken.
    """
    folder = find_intact(folder, note=note)
    config = load_config(folder)
    require_weights(folder, config)
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device=device)
    model.reset_buffers()
    load_weights(model, folder, verify=False)
    return model.eval()
