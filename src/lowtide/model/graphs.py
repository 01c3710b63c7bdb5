"""Register custom operations with torch's compiler, just before something is compiled.

In:      nothing
Out:     functions that become one node of a graph, or a graph break

This is not done by decorators, because they import the compiler, which takes 140 MiB and 1.5 s in
every command that runs a model, and most commands compile nothing.
"""

from __future__ import annotations

import functools

import torch

from lowtide.model import float8_linear, loss, rotation

__all__ = ["describe_to_compiler"]


@functools.cache
def describe_to_compiler() -> None:
    """Register the operations with the compiler, once, before torch.compile is called."""
    # One node of the graph: if torch 2.11 compiles activation checkpointing, it keeps tensors from
    # inside an autograd function instead of recomputing them.
    torch.compiler.allow_in_graph(float8_linear.multiply_normed)
    torch.compiler.allow_in_graph(rotation.norm_and_rotate)
    loss.keep_loss_out_of_graphs()
