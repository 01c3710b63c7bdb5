"""The same shape trained with other people's offloading: speed and memory beside --offload.

Our network, compiled block by block with activation checkpointing, in the loops that each package's
own examples show: FSDP2 with weights, gradients and AdamW on the host; torchao's optimizer on the
host; bitsandbytes' paged 8-bit AdamW. The last two round weights to bfloat16 after every step. Run
gpu_offload.py with the same numbers in the same hour, and compare the rows.

    python benchmarks/offload_peers.py fsdp2 --params 1e9 --rows 4 --parts 8
    python benchmarks/gpu_offload.py --vram 0 --params 1e9 --offload optimizer --rows 4 --parts 8
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpu_offload import CONTEXT, VOCAB, add_run_flags, batch, keep_row
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters, shape_for_parameters

Step = Callable[[], None]


def with_fsdp2(model: GPT, rate: float) -> tuple[nn.Module, Step]:
    """Weights and moments in float32 on the host, where AdamW's update is computed."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    tables = model.tables(CONTEXT)
    model.cpu()
    model.cos, model.sin = tables  # what is no parameter stays on the GPU
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("cuda:nccl,cpu:gloo")
    how: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=True),
    }
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def with_torchao(model: GPT, rate: float) -> tuple[nn.Module, Step]:
    """Weights in bfloat16 on the GPU, moments and update on the host; gradients are not clipped."""
    model = model.bfloat16()
    torchao: Any = importlib.import_module("torchao.optim")
    optimizer = torchao.CPUOffloadOptimizer(
        model.parameters(), torch.optim.AdamW, lr=rate, fused=True
    )

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def with_bitsandbytes(model: GPT, rate: float) -> tuple[nn.Module, Step]:
    """Weights in bfloat16 on the GPU, 8-bit moments in memory that the driver moves."""
    model = model.bfloat16()
    bitsandbytes: Any = importlib.import_module("bitsandbytes.optim")
    optimizer = bitsandbytes.PagedAdamW8bit(model.parameters(), lr=rate)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


PEERS = {"fsdp2": with_fsdp2, "torchao": with_torchao, "bitsandbytes": with_bitsandbytes}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take some steps; return losses, times and peaks."""
    config = shape_for_parameters(options.params, vocab_size=VOCAB, context_length=CONTEXT)
    torch.manual_seed(1)
    with torch.device("cuda"):  # quicker to draw there
        model = GPT(config)
    model.activation_checkpointing = True
    model.loss_chunk_tokens = 4096
    trained, update = PEERS[options.peer](model, options.learning_rate)
    if options.compile:
        model.compile_blocks()
    trained.train()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for step in range(options.steps):
        inputs, targets = batch(options.data, options.rows * options.parts, step)
        torch.cuda.synchronize()
        start = time.perf_counter()
        total = 0.0
        for ids, wanted in zip(
            inputs.split(options.rows), targets.split(options.rows), strict=True
        ):
            with torch.autocast("cuda", torch.bfloat16):
                loss = trained(ids, wanted) / options.parts
            loss.backward()
            total += loss.detach()
        update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(round(float(total), 3))
    return {
        "peer": options.peer,
        "params": count_parameters(config),
        "rows": options.rows,
        "parts": options.parts,
        "compile": options.compile,
        "losses": losses,
        "tokens_per_second": round(
            options.rows * options.parts * CONTEXT / statistics.median(seconds[2:])
        ),
        "device_peak_bytes": torch.cuda.max_memory_allocated(),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Measure one peer and keep its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    add_run_flags(parser, steps=7)
    options = parser.parse_args()
    keep_row(measure(options), options.out)


if __name__ == "__main__":
    main()
