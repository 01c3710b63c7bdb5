"""First weights without torch: the words and the normal numbers of torch's generator, in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowtide.model.config import GPTConfig
from lowtide.model.firstweights import Draws, iter_first_weights, parameter_shapes
from lowtide.model.gpt import GPT


def torch_draws(seed: int, counts: list[int], std: float) -> list[np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.empty(n).normal_(0, std, generator=generator).numpy() for n in counts]


@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 40, 2], [15, 16, 17, 1], [5, 4, 64, 7, 33]])
@pytest.mark.parametrize("seed", [1, 2**32 + 7])
def test_numbers_are_torchs_few_or_many(counts: list[int], seed: int) -> None:
    draws = Draws(seed)
    for count, wanted in zip(counts, torch_draws(seed, counts, 0.3), strict=True):
        np.testing.assert_allclose(draws.normal(count, 0.3), wanted, atol=2e-7)


@pytest.mark.parametrize("counts", [[7, 30, 16], [1, 100, 20], [48, 49, 97], [96, 15, 31]])
def test_parts_and_what_is_passed_over_change_nothing(counts: list[int]) -> None:
    """Numbers are drawn a part at a time; what is passed over is as many words as were drawn."""
    *passed, wanted = torch_draws(5, counts, 1.0)
    draws, skipping = Draws(5, step=48), Draws(5, step=48)
    for count, row in zip(counts, passed, strict=False):
        np.testing.assert_allclose(draws.normal(count, 1.0), row, atol=1e-6)
        skipping.skip_normal(count)
    for one in (draws, skipping):
        np.testing.assert_allclose(one.normal(counts[-1], 1.0), wanted, atol=1e-6)


@pytest.mark.parametrize("counts", [[1000], [7, 800, 33], [624, 625, 17]])
def test_any_number_of_threads_draws_the_same_bits(counts: list[int]) -> None:
    alone = Draws(4, step=32, num_workers=1)
    wanted = [alone.normal(count, 0.5) for count in counts]
    for num_workers in (2, 5):
        draws = Draws(4, step=32, num_workers=num_workers)
        for count, row in zip(counts, wanted, strict=True):
            assert np.array_equal(draws.normal(count, 0.5), row)


def test_words_are_passed_over_one_by_one() -> None:
    for count in (0, 15, 16, 40):
        draws, generator = Draws(3, step=16), torch.Generator().manual_seed(3)
        draws.skip(count)
        torch.empty(count).uniform_(generator=generator)
        wanted = torch.empty(20).normal_(generator=generator).numpy()
        np.testing.assert_allclose(draws.normal(20, 1.0), wanted, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "gpt2", "width": 6, "context_length": 2},  # positions: fewer than sixteen
        {"tie_weights": False},
        {"num_heads": 2, "num_kv_heads": 1, "width": 16},
    ],
)
def test_a_network_begins_as_torchs(changes: dict[str, object]) -> None:
    known = {"vocab_size": 19, "context_length": 3, "num_layers": 2, "width": 12, "num_heads": 1}
    config = GPTConfig(**{**known, **changes})  # type: ignore[arg-type]
    torch.manual_seed(11)
    wanted = {name: value.detach().numpy() for name, value in GPT(config).named_parameters()}
    found = dict(iter_first_weights(config, 11))
    assert {name: value.shape for name, value in wanted.items()} == parameter_shapes(config)
    assert list(found) == list(wanted) and all(v.dtype == np.float32 for v in found.values())
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], atol=2e-8, err_msg=name)
    zero = dict(iter_first_weights(config, 11, zero_init=True))
    for name, value in zero.items():
        if name.endswith(("attention.output.weight", "mlp.down.weight")):
            assert not value.any() and value.shape == found[name].shape
        else:
            assert np.array_equal(value, found[name])
