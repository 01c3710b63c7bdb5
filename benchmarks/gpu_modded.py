"""modded-nanogpt without its downloads: import its train_gpt.py on one GPU, write its tokens.

In:      a checkout (train_gpt.py, triton_kernels.py, dc_triton_kernels.py), tokens
Out:     its module up to the warm-up, with model and optimizer; shards that it can read

Model, kernels, optimizer, loader and schedule are the peer's. Imports and requests that fail on a
machine without a network are replaced here:

    flash-attention 3   the flash-attention 2 that comes with torch, with documents and windows;
                        `check_attention` compares it with a plain form
    tiktoken            the same vocabulary, given by the caller: tiktoken would download it
    process group       one that sends nothing, for one process
    CUDA headers        those of torch's packages too, for a kernel that it compiles at import

gpu_peers.py trains it for a given time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import site
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"
from torch import Tensor

SEPARATOR = 50256
SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER = 20240520, 1, 256
REPEATS = 200
EVAL_ROOM = 65536  # tokens of its longest evaluation; its rotary table is twice as long
END_OF_DEFINITIONS = "#            Warmup kernels            #"

Tokens = npt.NDArray[Any]


# Attention over documents, with a window.


def plain_weights(q: Tensor, k: Tensor, ends: Tensor, window: int, scale: float) -> Tensor:
    """Attention weights [H, T, T] within documents, to at most `window` tokens back."""
    place = torch.arange(len(q), device=q.device)
    document = torch.searchsorted(ends.long(), place, right=True)
    back = place[:, None] - place[None, :]
    seen = (document[:, None] == document[None, :]) & (back >= 0) & (back <= window)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def plain_gradients(weights: Tensor, error: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float):
    """Gradients of q, k and v in plain code."""
    error_v = torch.einsum("hqk,qhd->khd", weights, error.float())
    slope = torch.einsum("qhd,khd->hqk", error.float(), v.float())
    slope = scale * weights * (slope - (weights * slope).sum(-1, keepdim=True))
    error_q = torch.einsum("hqk,khd->qhd", slope, k.float())
    error_k = torch.einsum("hqk,qhd->khd", slope, q.float())
    return tuple(part.to(q.dtype).contiguous() for part in (error_q, error_k, error_v))


@torch.library.custom_op(
    "gpu_modded::attend",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor ends, int longest, int window, float scale)"
    " -> (Tensor, Tensor)",
)
def attend(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int, scale: float):
    """The same by torch's flash-attention, and the logarithms needed for its backward pass."""
    if not q.is_cuda:
        weights = plain_weights(q, k, ends, window, scale)
        out = torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)
        return out.contiguous(), q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32)
    out, logs, *_ = torch.ops.aten._flash_attention_forward(
        *(q, k, v, ends, ends, longest, longest, 0.0, False, False),
        scale=scale,
        window_size_left=window,
        window_size_right=0,
    )
    return out.contiguous(), logs.contiguous()


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int, scale: float):
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op(
    "gpu_modded::attend_backward",
    mutates_args=(),
    schema="(Tensor error, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logs, Tensor ends,"
    " int longest, int window, float scale) -> (Tensor, Tensor, Tensor)",
)
def attend_backward(
    error: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    ends: Tensor,
    longest: int,
    window: int,
    scale: float,
):
    """Gradients of q, k and v."""
    if not q.is_cuda:
        return plain_gradients(plain_weights(q, k, ends, window, scale), error, q, k, v, scale)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads = torch.ops.aten._flash_attention_backward(
        *(error.contiguous(), q, k, v, out, logs, ends, ends, longest, longest, 0.0, False),
        *(no_dropout, torch.empty(0, device=q.device)),
        scale=scale,
        window_size_left=window,
        window_size_right=0,
    )
    return tuple(grad.contiguous() for grad in grads)


@attend_backward.register_fake
def _(error: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ends, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, ends)


def _backward(ctx: Any, error: Tensor, _: Any) -> tuple[Any, ...]:
    grads = attend_backward(error, *ctx.saved_tensors, *ctx.numbers)
    return *grads, None, None, None, None


attend.register_autograd(_backward, setup_context=_keep)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    softmax_scale: float,
    window_size: tuple[int, int],
) -> Tensor:
    """What the peer calls, by its name; no document is longer than all tokens together."""
    assert causal and window_size[1] == 0
    longest = min(max_seqlen_q, q.shape[0])
    return attend(q, k, v, cu_seqlens_q, longest, window_size[0], softmax_scale)[0]


def check_attention(device: str) -> None:
    """Compare with autograd on documents longer and shorter than a window, and empty ones."""
    torch.manual_seed(0)
    make = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
    packed, error = make(640, 9, 128, requires_grad=True), make(640, 3, 128)
    ends = torch.tensor([0, 37, 300, 301, 640, 640, 640], dtype=torch.int32, device=device)
    for window in (128, 2560):
        q, k, v = packed.chunk(3, dim=1)
        weights = plain_weights(q, k, ends, window, 0.1)
        plain = torch.einsum("hqk,khd->qhd", weights, v.float()).bfloat16()
        fast = attend(q, k, v, ends, 640, window, 0.1)[0]
        grads = [torch.autograd.grad(out, packed, error)[0] for out in (plain, fast)]
        for wanted, found in ((plain, fast), grads):
            off = float(((found - wanted).float().norm() / wanted.float().norm()).detach())
            if not off < 0.02:
                raise RuntimeError(f"torch's attention is {off:.1%} off, with a window of {window}")


# Modules that the peer imports.


def stand_in(name: str, **members: Any) -> ModuleType:
    """A module with these members, and a spec, which other modules check."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    return module


def install_stand_ins(vocabulary: dict[int, bytes]) -> None:
    """Install replacements for modules that the peer imports and this machine lacks."""
    attention = stand_in("flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    package = SimpleNamespace(flash_attn_interface=attention)
    ranks = {text: id for id, text in vocabulary.items() if id != SEPARATOR}
    encoding = SimpleNamespace(_mergeable_ranks=ranks)
    sys.modules["kernels"] = stand_in("kernels", get_kernel=lambda *_, **__: package)
    sys.modules["tiktoken"] = stand_in("tiktoken", get_encoding=lambda _: encoding)
    compile_kernel = torch.cuda._compile_kernel

    def with_found_headers(*args: Any, cuda_include_dirs: Any = (), **options: Any) -> Any:
        """The peer uses one folder of CUDA headers; torch's packages contain them as well."""
        places = [Path(place) for place in cuda_include_dirs]
        for packages in site.getsitepackages():
            places += [path.parent for path in Path(packages).glob("nvidia/*/include/cuda_bf16.h")]
        found = [str(place) for place in places if (place / "cuda_bf16.h").is_file()]
        return compile_kernel(*args, cuda_include_dirs=found, **options)

    torch.cuda._compile_kernel = with_found_headers  # type: ignore[assignment]


def load_peer(checkout: Path, folder: Path, *, accumulation: int) -> Any:
    """Import the peer's definitions: model, optimizer, schedule, ready to step."""
    text, found, _ = (checkout / "train_gpt.py").read_text().partition(END_OF_DEFINITIONS)
    if not found:
        raise RuntimeError(f"{checkout}/train_gpt.py has no warm-up: another version of the peer?")
    changes = (
        ('backend="cuda:nccl,cpu:gloo", device_id=device', _ONE_PROCESS, 1),
        ("grad_accum_steps = 8 // world_size", f"grad_accum_steps = {accumulation}", 1),
        ("val_batch_size: int = 4 * 64 * 1024 * 8", _room(accumulation), 1),
        (" * 2048 * 8, window_sizes", f" * 2048 * {accumulation}, window_sizes", 4),
    )
    for old, new, times in changes:
        if text.count(old) != times:
            raise RuntimeError(
                f"{checkout}/train_gpt.py has {old!r} {text.count(old)} times, expected {times}: "
                "another version of the peer?"
            )
        text = text.replace(old, new)
    path = folder / "modded_nanogpt.py"
    path.write_text(text)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DATA_PATH": str(folder)}
    sys.path.insert(0, str(checkout.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    peer = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    arguments, sys.argv = sys.argv, [str(checkout.resolve() / "train_gpt.py")]
    with contextlib.chdir(folder):  # it writes a log into the current folder
        spec.loader.exec_module(peer)
    sys.argv = arguments
    # It evaluates before it trains, which creates a global tensor of its kernels; within the
    # compiled backward pass torch raises an error for that.
    sys.modules["triton_kernels"]._get_dummy_f32(peer.device)
    return peer


_ONE_PROCESS = 'backend="fake", store=dist.HashStore(), rank=0, world_size=1'


def _room(accumulation: int) -> str:
    return f"val_batch_size: int = {EVAL_ROOM * accumulation}"


# Tokens as the peer reads them.


def cut_documents(tokens: Tokens, longest: int) -> Tokens:
    """Begin a document with the first token, and another after every `longest` tokens of one.

    >>> cut_documents(np.array([7, 8, 50256, 1, 2, 3, 4, 5]), 3).tolist()
    [50256, 7, 8, 50256, 1, 2, 50256, 3, 4, 50256, 5]
    """
    if tokens[0] != SEPARATOR:
        tokens = np.insert(tokens, 0, SEPARATOR)
    if not longest:
        return tokens
    starts = np.flatnonzero(tokens == SEPARATOR)
    ends = np.append(starts[1:], len(tokens))
    places = [
        np.arange(start + longest, end, longest - 1)
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.insert(tokens, np.concatenate(places), SEPARATOR)


def write_shards(tokens: Tokens, folder: Path) -> None:
    """Write one shard and list it often enough for all epochs."""
    shards = folder / "data" / "fineweb10B"
    shards.mkdir(parents=True)
    header = np.zeros(SHARD_HEADER, dtype=np.int32)
    header[:3] = SHARD_MAGIC, SHARD_VERSION, len(tokens)
    first = shards / "fineweb_train_000.bin"
    first.write_bytes(header.tobytes() + tokens.astype(np.uint16).tobytes())
    for number in range(1, REPEATS):
        (shards / f"fineweb_train_{number:03}.bin").symlink_to(first.name)


def most_documents(tokens: Tokens, batch_tokens: int, longest: int) -> int:
    """The largest number of documents of at most `longest` tokens that begin in a batch."""
    starts = np.flatnonzero(tokens == SEPARATOR)
    lengths = np.minimum(np.diff(starts, append=len(tokens)), longest)
    ends = np.cumsum(lengths)
    last = np.searchsorted(ends, ends - lengths + batch_tokens + 1)
    return int((last - np.arange(len(ends))).max()) + 1


def make_room(peer: Any, tokens: Tokens) -> None:
    """Let batches have as many documents as this text needs."""
    for stage in peer.TRAINING_STAGES:
        batch_tokens = stage.batch_size // peer.grad_accum_steps
        needed = most_documents(tokens, batch_tokens, stage.train_max_seq_len) + 1
        room = peer.TRAIN_MAX_NUM_DOCS.get(batch_tokens, 0)
        peer.TRAIN_MAX_NUM_DOCS[batch_tokens] = max(room, -(-needed // 32) * 32)


def window_documents(inputs: Tokens) -> Tokens:
    """Where documents begin in each window and where the last ends, padded with its length."""
    rows = [np.flatnonzero(row[1:] == SEPARATOR) + 1 for row in inputs]
    ends = np.full((len(rows), max(map(len, rows)) + 2), inputs.shape[1], dtype=np.int32)
    ends[:, 0] = 0
    for row, places in zip(ends, rows, strict=True):
        row[1 : len(places) + 1] = places
    return ends
