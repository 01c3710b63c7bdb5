"""The same shape trained with other packages' offloading: speed and memory beside --offload.

Our network, compiled block by block with activation checkpointing, in the loops that each package's
own examples show: FSDP2 with weights, gradients and AdamW on the host; torchao's optimizer on the
host; bitsandbytes' paged 8-bit AdamW. The last two round weights to bfloat16 after every step.
`none` is the same network with all of it on the GPU, in float32 and with its activations kept. Run
gpu_offload.py with the same numbers in the same hour, and compare the rows.

FSDP2 moves all weights in float32 to the GPU twice and all gradients back for every micro-batch,
sums them on the host, and steps there: many seconds per step. Each step is printed as it ends, and
after --seconds no further one starts. With --sync-last gradients stay on the GPU, 4 bytes per
parameter, and are moved once per step.

    python benchmarks/offload_peers.py fsdp2 --params 3e8 --rows 4 --parts 8 --seconds 60
    python benchmarks/gpu_offload.py --vram 0 --params 3e8 --offload optimizer --rows 4 --parts 8
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_offload import CONTEXT, VOCAB, add_run_flags, batch, keep_row
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters, shape_for_parameters

Step = Callable[[], None]


def with_fsdp2(model: GPT, rate: float, *, compiled: bool) -> tuple[nn.Module, Step]:
    """Weights and moments in float32 on the host, where AdamW's update is computed."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    tables = model.tables(CONTEXT)
    model.cpu()
    model.cos, model.sin = tables  # tensors that are not parameters stay on the GPU
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("cuda:nccl,cpu:gloo")
    how: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=True),
    }
    for block in model.blocks:
        if compiled:  # inside of the hooks that move its weights, which no graph can contain
            block.forward = torch.compile(block.forward, dynamic=False)
        fully_shard(block, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    return model, _clipped_step(model, optimizer)


def with_torchao(model: GPT, rate: float, *, compiled: bool) -> tuple[nn.Module, Step]:
    """Weights in bfloat16 on the GPU, moments and update on the host; gradients are not clipped."""
    model = _in_bfloat16(model, compiled=compiled)
    torchao: Any = importlib.import_module("torchao.optim")
    optimizer = torchao.CPUOffloadOptimizer(
        model.parameters(), torch.optim.AdamW, lr=rate, fused=True
    )

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def with_bitsandbytes(model: GPT, rate: float, *, compiled: bool) -> tuple[nn.Module, Step]:
    """Weights in bfloat16 on the GPU, 8-bit moments in memory that the driver moves."""
    model = _in_bfloat16(model, compiled=compiled)
    bitsandbytes: Any = importlib.import_module("bitsandbytes.optim")
    optimizer = bitsandbytes.PagedAdamW8bit(model.parameters(), lr=rate)
    return model, _clipped_step(model, optimizer)


def with_none(model: GPT, rate: float, *, compiled: bool) -> tuple[nn.Module, Step]:
    """No offloading and no savings: float32 on the GPU, activations kept."""
    model.activation_checkpointing = False
    if compiled:
        model.compile_blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    return model, _clipped_step(model, optimizer)


def _clipped_step(model: GPT, optimizer: Any) -> Step:
    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _in_bfloat16(model: GPT, *, compiled: bool) -> GPT:
    if compiled:
        model.compile_blocks()
    return model.bfloat16()


PEERS = {
    "fsdp2": with_fsdp2,
    "torchao": with_torchao,
    "bitsandbytes": with_bitsandbytes,
    "none": with_none,
}
PACKAGES = {"torchao": "torchao", "bitsandbytes": "bitsandbytes"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run some steps; return losses, times and peaks."""
    config = shape_for_parameters(options.params, vocab_size=VOCAB, context_length=CONTEXT)
    torch.manual_seed(1)
    with torch.device("cuda"):  # faster to draw there
        model = GPT(config)
    model.activation_checkpointing = True
    model.loss_chunk_tokens = 4096
    began = time.perf_counter()
    trained, update = PEERS[options.peer](model, options.learning_rate, compiled=options.compile)
    trained.train()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses: list[float] = []
    computing: list[float] = []
    updating: list[float] = []
    for step in range(options.steps):
        if time.perf_counter() - began > options.seconds and len(losses) > 1:
            break
        inputs, targets = batch(options.data, options.rows * options.parts, step)
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(_compute(trained, inputs, targets, options))
        torch.cuda.synchronize()
        computing.append(time.perf_counter() - start)
        update()
        torch.cuda.synchronize()
        updating.append(time.perf_counter() - start - computing[-1])
        print(f"step {step}: {computing[-1]:.2f} s, update {updating[-1]:.2f} s", flush=True)
    # The first step compiles, and allocates on the host; the second is a plain one if there are no
    # more.
    first = 2 if len(losses) > 2 else len(losses) - 1
    seconds = statistics.median(map(sum, zip(computing[first:], updating[first:], strict=True)))
    return {
        "peer": options.peer,
        "params": count_parameters(config),
        "rows": options.rows,
        "parts": options.parts,
        "compile": options.compile,
        "sync_last": options.sync_last,
        "losses": losses,
        "compute_seconds": round(statistics.median(computing[first:]), 3),
        "update_seconds": round(statistics.median(updating[first:]), 3),
        "tokens_per_second": round(options.rows * options.parts * CONTEXT / seconds),
        "device_peak_bytes": torch.cuda.max_memory_allocated(),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _compute(
    trained: nn.Module, inputs: Tensor, targets: Tensor, options: argparse.Namespace
) -> float:
    """Gradients of a step, micro-batch by micro-batch; its loss."""
    total = torch.zeros((), device="cuda")
    for number, (ids, wanted) in enumerate(
        zip(inputs.split(options.rows), targets.split(options.rows), strict=True), 1
    ):
        if options.sync_last:
            trained.set_requires_gradient_sync(number == options.parts)  # type: ignore[operator]
        with torch.autocast("cuda", torch.bfloat16):
            loss = trained(ids, wanted) / options.parts
        loss.backward()
        total += loss.detach()
    return round(total.item(), 3)


def main() -> None:
    """Measure one peer and store its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    add_run_flags(parser, steps=7)
    parser.add_argument("--seconds", type=float, default=80, help="begin no step after these")
    parser.add_argument("--sync-last", action="store_true", help="FSDP2: gradients on the GPU")
    options = parser.parse_args()
    package = PACKAGES.get(options.peer, "torch")
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed here: left out")
        return
    keep_row(measure(options), options.out)


if __name__ == "__main__":
    main()
