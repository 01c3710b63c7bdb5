"""Weights of a network as one dictionary of arrays, with layers stacked; and under file names.

In:      parameters by our names (blocks.3.mlp.down.weight), or a folder with safetensors
Out:     a tree: blocks.*.mlp.down.weight [L, …] for all layers, the others as they are
Memory:  one set of weights; a layer is cut out of its stack as a view
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lowtide.checksumrecords import verify_folder
from lowtide.errors import DataError, UsageError
from lowtide.model.arrayfiles import iter_weights
from lowtide.model.checksums import find_intact
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.firstweights import iter_first_weights
from lowtide.model.tensorfiles import require_weights
from lowtide.model.tensors import iter_tensors

__all__ = [
    "LAYERS",
    "JaxGPT",
    "Tree",
    "iter_named",
    "load_on",
    "stacked_name",
    "stacked_shapes",
]

LAYERS = "blocks.*."
"""What the names of stacked parameters begin with."""

Array = np.ndarray[Any, Any]
Tree = dict[str, Any]


def stacked_name(name: str) -> tuple[str, int | None]:
    """Return the name of a parameter's stack, and its layer in it; None for those without layers.

    >>> stacked_name("blocks.3.mlp.down.weight")
    ('blocks.*.mlp.down.weight', 3)
    """
    if not name.startswith("blocks."):
        return name, None
    _, layer, rest = name.split(".", 2)
    return LAYERS + rest, int(layer)


def stacked_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tree of a network."""
    whole: dict[str, tuple[int, ...]] = {}
    for part in iter_tensors(config):
        shape = part.shape[::-1] if part.transposed else part.shape
        rows = whole.get(part.ours, (0,))[0]
        whole[part.ours] = (rows + shape[0], *shape[1:])
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in whole.items():
        stack, layer = stacked_name(name)
        shapes[stack] = shape if layer is None else (config.num_layers, *shape)
    return shapes


def iter_named(tree: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield (our name, array on the host) of every parameter, layer by layer."""
    for name, value in tree.items():
        whole = _on_host(value)
        if not name.startswith(LAYERS):
            yield name, whole
            continue
        for layer in range(len(whole)):
            yield name.replace("*", str(layer), 1), whole[layer]


def _on_host(value: Any) -> Array:
    """A NumPy array; a sharded one is gathered, and all processes must call it."""
    places: Any = getattr(value, "sharding", None)
    if places is not None and not (value.is_fully_addressable or value.is_fully_replicated):
        value = _gathering(places.mesh)(value)
    return np.asarray(value)


@functools.cache
def _gathering(mesh: Any) -> Any:
    return jax.jit(_itself, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _itself(value: Any) -> Any:
    return value


def _require_known(config: GPTConfig) -> None:
    if config.family.rereads_embedding:
        raise UsageError(
            f"the layout is {config.layout}, which is there with torch only",
            next_step="give --backend torch",
        )


class JaxGPT:
    """A decoder-only language model as a tree of arrays; the network is a function (network.py).

    >>> model = JaxGPT(GPTConfig(100, 16, num_layers=2, width=16, num_heads=2))
    >>> model.params["blocks.*.mlp.down.weight"].shape
    (2, 16, 48)
    """

    backend = "jax"

    def __init__(self, config: GPTConfig, *, seed: int = 1337, zero_init: bool = False) -> None:
        _require_known(config)
        self.config = config
        self.params: Tree = {}
        shapes = stacked_shapes(config)
        for name, value in iter_first_weights(config, seed, zero_init=zero_init):
            self._place(shapes, name, slice(None), value)

    @classmethod
    def load(cls, folder: str | Path, config: GPTConfig) -> JaxGPT:
        """Read a network with the weights of a folder."""
        _require_known(config)
        model = cls.__new__(cls)
        model.config, model.params = config, {}
        model.load_weights(Path(folder), verify=False)
        return model

    def set_embedding(self, rows: Array) -> None:
        """Set the rows of the embedding."""
        self._place(stacked_shapes(self.config), "embedding.weight", slice(None), rows)

    def load_weights(self, folder: Path, *, verify: bool = True) -> None:
        """Copy the weights of a folder, part by part."""
        if verify:
            verify_folder(folder)
        self.params = {}
        shapes = stacked_shapes(self.config)
        for name, rows, value in iter_weights(folder, self.config):
            self._place(shapes, name, rows, value, folder)

    def _place(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        name: str,
        rows: slice,
        value: Array,
        folder: Path | None = None,
    ) -> None:
        stack, layer = stacked_name(name)
        if stack not in self.params:
            self.params[stack] = np.empty(shapes[stack], np.float32)
        target = self.params[stack] if layer is None else self.params[stack][layer]
        if target[rows].shape != value.shape:
            raise DataError(
                f"{name} is {value.shape}, config.json says {target[rows].shape}", path=folder
            )
        target[rows] = value

    def here(self) -> JaxGPT:
        """The same network on the first device of this process, which has a copy of all weights."""
        model = JaxGPT.__new__(JaxGPT)
        model.config = self.config
        model.params = {name: value.addressable_data(0) for name, value in self.params.items()}
        return model

    def state_dict(self) -> dict[str, Array]:
        """The weights under our names, on the host; views, if they are there already."""
        return dict(iter_named(self.params))

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights."""
        return 4 * sum(math.prod(shape) for shape in stacked_shapes(self.config).values())


def load_on(folder: Path, device: Any) -> JaxGPT:
    """Load a network from the folder of a run or of a published model onto a device.

    Damaged weights are reported, and the newest undamaged checkpoint is loaded.
    """
    folder = find_intact(folder)
    config = load_config(folder)
    require_weights(folder, config)
    model = JaxGPT.load(folder, config)
    for name in list(model.params):  # one by one, so that each is freed before the next is copied
        model.params[name] = jax.device_put(model.params[name], device)
    return model
