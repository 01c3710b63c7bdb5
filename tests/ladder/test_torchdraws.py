"""First weights to torch's own bits, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowtide.ladder.torchdraws import TorchDraws
from lowtide.model.config import GPTConfig
from lowtide.model.firstweights import iter_first_weights
from lowtide.model.gpt import GPT


@pytest.mark.parametrize("num_workers", [1, 2, 7])
@pytest.mark.parametrize("counts", [[1, 1, 40], [700, 3, 2, 16], [15, 623, 17, 5], [4, 2500, 33]])
def test_numbers_are_torchs_to_the_bit(counts: list[int], num_workers: int) -> None:
    generator = torch.Generator().manual_seed(9)
    draws = TorchDraws(9, step=32, num_workers=num_workers)
    for count in counts:
        wanted = torch.empty(count).normal_(0, 0.3, generator=generator)
        assert np.array_equal(draws.normal(count, 0.3), wanted.numpy())


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("count", [0, 5, 16, 40, 623, 624, 625, 5000])
def test_what_is_passed_over_leaves_the_bits_behind_it(count: int, num_workers: int) -> None:
    generator = torch.Generator().manual_seed(2**40 + 3)
    draws = TorchDraws(2**40 + 3, step=48, num_workers=num_workers)
    draws.skip(count)
    torch.empty(count).uniform_(generator=generator)
    draws.skip_normal(100)
    torch.empty(100).normal_(generator=generator)
    wanted = torch.empty(1001).normal_(generator=generator)
    assert np.array_equal(draws.normal(1001, 1.0), wanted.numpy())


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "gpt2", "width": 6, "context_length": 2},  # positions: fewer than sixteen
        {"tie_weights": False},
        {"num_heads": 2, "num_kv_heads": 1, "width": 16},
    ],
)
def test_a_network_begins_as_torchs_to_the_bit(changes: dict[str, object]) -> None:
    known = {"vocab_size": 19, "context_length": 3, "num_layers": 2, "width": 12, "num_heads": 1}
    config = GPTConfig(**{**known, **changes})  # type: ignore[arg-type]
    torch.manual_seed(11)
    wanted = {name: value.detach().numpy() for name, value in GPT(config).named_parameters()}
    found = dict(iter_first_weights(config, 11, draws=TorchDraws(11, step=16, num_workers=3)))
    assert list(found) == list(wanted)
    for name, value in found.items():
        assert np.array_equal(value, wanted[name]), name
