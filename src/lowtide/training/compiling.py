"""Compile a run's network, or raise an error at once if that is not possible.

In:      the model, and the (wrapped) network
Out:     the network to call instead
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import UsageError
from lowtide.model.gpt import GPT
from lowtide.model.graphs import describe_to_compiler
from lowtide.training.distributed import ProcessGroup
from lowtide.training.modules import WrappedModule

__all__ = ["compile_network"]


def compile_network(
    model: GPT | WrappedModule, network: nn.Module, group: ProcessGroup, *, whole: bool
) -> Callable[..., Tensor]:
    """Compile one block for all, all blocks as one graph, or everything (several processes)."""
    if group.device.type == "cpu":
        _require_compiler()
    describe_to_compiler()
    if group.world_size > 1:
        return torch.compile(network, dynamic=False)
    model.compile_blocks(whole=whole)
    return network


def _require_compiler() -> None:
    """Report a missing C++ compiler (for CPU kernels) now instead of half a minute later."""
    builder: Any = importlib.import_module("torch._inductor.cpp_builder")
    try:
        builder.get_cpp_compiler()
    except Exception as error:
        raise UsageError(
            f"--compile needs a C++ compiler on a CPU, and there is none ({type(error).__name__})",
            next_step="install g++ or clang++ (or name it in CXX), or leave --compile out",
        ) from None
