"""What --offload takes, counted by hand for one small network."""

from __future__ import annotations

import pytest

from lowtide.model.config import GPTConfig
from lowtide.training.offloading import STACK_NUMBERS, offload_bytes, step_traffic
from lowtide.training.settings import train_settings

CONFIG = GPTConfig(
    vocab_size=1000, context_length=32, num_layers=3, width=64, num_heads=2, mlp_width=192,
    layout="llama",
)  # fmt: skip
TABLES = 1000 * 64  # tied
BLOCK = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64
BLOCKS = 3 * BLOCK + 64  # and the last norm
STEP = 4 * 32  # tokens
SCALE = 4 / 128


def settings(rung: str, optimizer: str, half: bool = True):
    return train_settings(
        offload=rung, optimizer=optimizer, use_mixed_precision=half, batch_size=4, seq_len=32
    )


def states(optimizer: str, half: bool = True) -> int:
    rest, moment = int(half), 1 + SCALE
    of_blocks = 2 * moment if optimizer == "adamw" else moment
    return int((rest + of_blocks) * BLOCKS + (rest + 2 * moment) * TABLES)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("half", [True, False])
def test_bytes_that_cross_in_a_step(optimizer: str, half: bool) -> None:
    number, moved = 2 if half else 4, states(optimizer, half)
    weights, gradients = (2 if half else 3) * BLOCKS, 2 * BLOCKS
    inputs = 3 * STEP * 64 * number
    expected = {
        "packed": (0, 0, 0, 0, 0, 0),
        "gradients": (0, gradients, inputs, gradients, 0, 0),
        "optimizer": (0, gradients, inputs, gradients + moved, moved, 0),
        "layers": (2 * weights, gradients, inputs, gradients + moved + weights, moved + weights, 0),
    }
    expected["disk"] = (*expected["layers"][:5], moved)
    for rung, row in expected.items():
        found = step_traffic(CONFIG, settings(rung, optimizer, half))
        assert found.disk_read == found.disk_written
        assert row == (
            found.weights_in, found.gradients_out, found.inputs, found.update_in, found.update_out,
            found.disk_read,
        ), rung  # fmt: skip


def test_what_muon_makes_orthogonal_is_counted() -> None:
    on_cpu = offload_bytes(CONFIG, settings("packed", "muon"), rows=1, on_gpu=False)
    on_gpu = offload_bytes(CONFIG, settings("packed", "muon"), rows=1, on_gpu=True)
    numbers = 3 * (2 * 64 * 192) + 3 * 64**2  # a stack of two, its like and what comes of it
    assert (on_cpu.update, on_gpu.update) == (4 * numbers, 2 * numbers)
    assert offload_bytes(CONFIG, settings("packed", "adamw"), rows=1, on_gpu=True).update == 0
    wide = CONFIG.replace(width=8192, mlp_width=24576, num_heads=64)
    assert STACK_NUMBERS < 8192 * 24576  # one such matrix is more than a stack
    found = offload_bytes(wide, settings("packed", "muon"), rows=1, on_gpu=True)
    assert found.update == 2 * (3 * 8192 * 24576 + 3 * 8192**2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_has_weights_in_float32_and_packed_moments(optimizer: str) -> None:
    whole = TABLES + BLOCKS // 3 * 3
    found = offload_bytes(CONFIG, settings("layers", optimizer), rows=1, on_gpu=True)
    moments = states(optimizer) - (TABLES + BLOCKS)
    assert found.checkpoint == pytest.approx(4 * whole + moments, abs=3 * 64)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_layers_with_a_window_take_the_heads_of_one_more(on_gpu: bool) -> None:
    """A published model with windows was refused: `window_layers is (0, 1, 2)`."""
    given = settings("packed", "adamw", half=False)
    plain = offload_bytes(CONFIG.replace(layout="mistral"), given, rows=4, on_gpu=on_gpu)
    windows = CONFIG.replace(layout="mistral", sliding_window=8)
    found = offload_bytes(windows, given, rows=4, on_gpu=on_gpu)
    assert 0 <= found.activations - plain.activations <= 2 * 4 * STEP * 64
