"""Packed weights and moments: what they hold, what a step does, and that all ways give its bits."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Any

import pytest
import torch

from lowtide.ladder import kernels, packing
from lowtide.ladder.packing import (
    BLOCK,
    Chunk,
    MuonNumbers,
    StepNumbers,
    chunk_bytes,
    momentum_bytes,
    move_weights,
    pack_weights,
    take_momentum,
    take_step,
    unpack_weights,
    view_chunk,
    view_momentum,
)

SIZE = 40 * BLOCK


def _numbers(
    *, goes: float = 1.0, factor: float = 1.0, seed: int = 7, lr: float = 1e-3
) -> StepNumbers:
    scalars = torch.tensor([factor, goes, lr / 0.1, 1 / 0.05**0.5, 1 - lr * 0.1])
    return StepNumbers(0.9, 0.95, 1e-8, seed, scalars)


def _packed(values: torch.Tensor) -> tuple[torch.Tensor, Chunk, torch.Tensor]:
    weights = torch.empty(values.numel(), dtype=torch.bfloat16)
    memory = torch.zeros(chunk_bytes(values.numel()), dtype=torch.uint8)
    chunk = view_chunk(memory, values.numel())
    pack_weights(values, weights, chunk.low_bits)
    return weights, chunk, memory


def test_weights_keep_24_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31 - 1, (SIZE,), generator=generator, dtype=torch.int64)
    values = (bits.to(torch.int32) & ~0xFF).view(torch.float32)
    values = torch.where(values.isfinite(), values, torch.ones(()))
    weights, chunk, _ = _packed(values)
    assert torch.equal(
        unpack_weights(weights, chunk.low_bits, torch.empty(SIZE)).view(torch.int32),
        values.view(torch.int32),
    )


def test_other_devices_unpack_the_same_numbers() -> None:
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(5))
    weights, chunk, _ = _packed(values)
    wanted, found = unpack_weights(weights, chunk.low_bits, values.clone()), torch.zeros(SIZE)
    assert packing._unpack_by_torch(weights, chunk.low_bits, found, piece=1000) is found
    assert torch.equal(found, wanted)


def test_weights_are_rounded_to_the_nearest() -> None:
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(2))
    weights, chunk, _ = _packed(values)
    back = unpack_weights(weights, chunk.low_bits, torch.empty(SIZE))
    assert ((back - values).abs() <= values.abs() * 2.0**-16).all()
    assert ((weights.float() - values).abs() <= values.abs() * 2.0**-8).all()
    again = _packed(back)
    assert torch.equal(again[0], weights)
    assert torch.equal(again[1].low_bits, chunk.low_bits)


def test_a_step_is_that_of_adamw() -> None:
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(SIZE, generator=generator) * 0.02
    weights, chunk, _ = _packed(start)
    plain = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([plain], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, 9):
        gradient = (torch.randn(SIZE, generator=generator) * 0.01).bfloat16()
        plain.grad = gradient.float()
        optimizer.step()
        corrections = 1 - 0.9**step, (1 - 0.95**step) ** 0.5
        scalars = torch.tensor([1.0, 1.0, 1e-3 / corrections[0], 1 / corrections[1], 1 - 1e-4])
        take_step(weights, chunk, gradient, StepNumbers(0.9, 0.95, 1e-8, step, scalars), position=0)
    moved = unpack_weights(weights, chunk.low_bits, torch.empty(SIZE)) - start
    wanted = plain.detach() - start
    assert (moved - wanted).norm() < 0.02 * wanted.norm()


def test_chance_is_fair_and_follows_step_and_place() -> None:
    # A decay too small for the last bit: only by chance does it show.
    start = torch.full((SIZE,), 1.0)
    scalars = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0 - 2.0**-19])
    weights, chunk, _ = _packed(start)
    gradient = torch.zeros(SIZE, dtype=torch.bfloat16)
    for step in range(64):
        seed = step * 2654435761 & 0xFFFFFFFF
        take_step(weights, chunk, gradient, StepNumbers(0.9, 0.95, 1e-8, seed, scalars), position=0)
    back = unpack_weights(weights, chunk.low_bits, torch.empty(SIZE))
    assert (1 - back).mean().item() == pytest.approx(64 * 2.0**-19, rel=0.05)
    assert back.unique().numel() > 3
    first, second = _packed(start), _packed(start)
    take_step(first[0], first[1], gradient, StepNumbers(0.9, 0.95, 1e-8, 5, scalars), position=0)
    take_step(
        second[0], second[1], gradient, StepNumbers(0.9, 0.95, 1e-8, 5, scalars), position=BLOCK
    )
    assert not torch.equal(first[2], second[2])
    assert torch.equal(first[1].low_bits[BLOCK:], second[1].low_bits[:-BLOCK])


def test_a_skipped_step_changes_no_byte() -> None:
    weights, chunk, memory = _packed(torch.randn(SIZE, generator=torch.Generator().manual_seed(4)))
    before = weights.clone(), memory.clone()
    gradient = torch.full((SIZE,), torch.nan, dtype=torch.bfloat16)
    take_step(weights, chunk, gradient, _numbers(goes=0.0), position=0)
    assert torch.equal(before[0].view(torch.int16), weights.view(torch.int16))
    assert torch.equal(before[1], memory)


def test_no_second_moment_is_zero_beside_a_gradient() -> None:
    weights, chunk, _ = _packed(torch.zeros(BLOCK))
    gradient = torch.full((BLOCK,), 1e-12)
    gradient[0] = 1.0
    take_step(weights, chunk, gradient.bfloat16(), _numbers(), position=0)
    assert (chunk.second > 0).all()
    assert chunk.second[0] == 255


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_cuts_change_nothing(threads: int) -> None:
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(5))
    gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(6)).bfloat16()
    whole, cut = _packed(values), _packed(values)
    take_step(whole[0], whole[1], gradient, _numbers(), position=12345)
    was = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for start in range(0, SIZE, 8 * BLOCK):
            part, blocks = (
                slice(start, start + 8 * BLOCK),
                slice(start // BLOCK, start // BLOCK + 8),
            )
            piece = Chunk(
                cut[1].low_bits[part], cut[1].first[part], cut[1].second[part],
                cut[1].first_scales[blocks], cut[1].second_scales[blocks],
            )  # fmt: skip
            take_step(cut[0][part], piece, gradient[part], _numbers(), position=12345 + start)
    finally:
        torch.set_num_threads(was)
    assert torch.equal(whole[0], cut[0])
    assert torch.equal(whole[2], cut[2])


def test_muons_momentum_and_steps_are_those_of_float32() -> None:
    """Within what eight bits of the momentum and 24 of the weights leave of them."""
    generator = torch.Generator().manual_seed(10)
    values = torch.randn(SIZE, generator=generator) * 0.02
    weights, chunk, _ = _packed(values)
    codes, scales = view_momentum(torch.zeros(momentum_bytes(SIZE), dtype=torch.uint8), SIZE)
    numbers = MuonNumbers(0.9, True, 1, torch.tensor([0.5, 1.0, 0.01, 0.8]))
    mean = torch.zeros(SIZE)
    for _ in range(5):
        gradient = torch.randn(SIZE, generator=generator).bfloat16()
        g = gradient.float() * 0.5
        mean = 0.9 * mean + 0.1 * g
        take_momentum(codes, scales, gradient, numbers)
        assert torch.allclose(gradient.float(), 0.1 * g + 0.9 * mean, atol=0.004)
    move_weights(weights, chunk.low_bits, gradient, numbers, position=0)
    step = gradient.float()
    left = torch.where(values * step >= 0, 0.8, 1.0)
    found = unpack_weights(weights, chunk.low_bits, torch.empty(SIZE))
    assert torch.allclose(found, values * left - 0.01 * step, rtol=2**-14, atol=2e-7)
    assert (left == 1.0).any() and (left < 1.0).any()


def compare_with_kernel(device: str) -> None:
    """Three steps by the kernel and by native code, on gradients large, tiny and zero."""
    generator = torch.Generator().manual_seed(8)
    for scale in (1.0, 1e-6, 1e-20, 0.0):
        values = torch.randn(SIZE, generator=generator) * 0.02
        native = _packed(values)
        weights, memory = native[0].to(device, copy=True), native[2].to(device, copy=True)
        for step in range(3):
            gradient = torch.randn(SIZE, generator=generator) * scale
            gradient[: 2 * BLOCK] = 0
            seed, gradient = 0x9ABCDEF0 + step, gradient.bfloat16()
            numbers = _numbers(factor=0.7, seed=seed)
            take_step(native[0], native[1], gradient, numbers, position=2**32 - 1000)
            there = dataclasses.replace(numbers, scalars=numbers.scalars.to(device))
            kernels.adamw_on_gpu(
                weights,
                view_chunk(memory, SIZE),
                gradient.to(device),
                there,
                position=2**32 - 1000,
            )
            assert torch.equal(native[0].view(torch.int16), weights.view(torch.int16).cpu())
            assert torch.equal(native[2], memory.cpu())


def compare_muon_with_kernel(device: str) -> None:
    """The same for Muon's two sweeps; the second of three steps is skipped."""
    generator = torch.Generator().manual_seed(9)
    weights, chunk, _ = _packed(torch.randn(SIZE, generator=generator) * 0.02)
    codes, scales = view_momentum(torch.zeros(momentum_bytes(SIZE), dtype=torch.uint8), SIZE)
    native = [weights, chunk.low_bits, codes, scales]
    there = [tensor.to(device, copy=True) for tensor in native]
    for step, scale in enumerate((1.0, 1e-6, 1e-3)):
        goes = float(step != 1)
        scalars = torch.tensor([0.7, goes, 0.01, 0.98])
        gradient = (torch.randn(SIZE, generator=generator) * scale).bfloat16()
        gradient[: 2 * BLOCK] = 0
        numbers = MuonNumbers(0.9, step == 0, 0x9ABCDEF0 + step, scalars)
        other = dataclasses.replace(numbers, scalars=scalars.to(device))
        moved = gradient.to(device, copy=True)
        take_momentum(native[2], native[3], gradient, numbers)
        kernels.momentum_on_gpu(there[2], there[3], moved, other.scalars, 0.9)
        if goes:
            assert torch.equal(gradient.view(torch.int16), moved.view(torch.int16).cpu())
        assert moved.isfinite().all()
        move_weights(native[0], native[1], gradient, numbers, position=2**32 - 1000)
        kernels.move_on_gpu(there[0], there[1], moved, other, position=2**32 - 1000)
        for one, two in zip(native, there, strict=True):
            assert torch.equal(one.view(torch.uint8), two.view(torch.uint8).cpu())


def _guarded(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy in the middle of a larger tensor, and all of that."""
    around = torch.full((values.numel() + 16 * BLOCK,), 77, dtype=values.dtype, device=device)
    middle = around[8 * BLOCK : -8 * BLOCK]
    return middle.copy_(values), around


def compare_at_edges(device: str) -> None:
    """Rows that do not fill the last program: what lies around them is neither read nor written."""
    size = 13 * BLOCK
    generator = torch.Generator().manual_seed(11)
    weights, chunk, _ = _packed(torch.randn(size, generator=generator) * 0.02)
    codes, scales = view_momentum(torch.zeros(momentum_bytes(size), dtype=torch.uint8), size)
    parts = [getattr(chunk, one.name) for one in dataclasses.fields(chunk)]
    native = [weights, *parts, codes, scales]
    pairs = [_guarded(tensor, device) for tensor in native]
    there = [pair[0] for pair in pairs]
    for goes in (1.0, 0.0, 1.0):
        gradient = torch.randn(size, generator=generator)
        gradient[1:BLOCK] *= 1e-12  # beside a large one: no second moment of them is zero
        gradient = gradient.bfloat16()
        adamw = _numbers(goes=goes)
        muon = MuonNumbers(0.9, False, 3, torch.tensor([0.7, goes, 0.01, 0.98]))
        moved, around = _guarded(gradient, device)
        pairs.append((moved, around))
        take_step(weights, chunk, gradient, adamw, position=5)
        on_device = dataclasses.replace(adamw, scalars=adamw.scalars.to(device))
        kernels.adamw_on_gpu(there[0], Chunk(*there[1:6]), moved, on_device, position=5)
        take_momentum(codes, scales, gradient, muon)
        other = dataclasses.replace(muon, scalars=muon.scalars.to(device))
        kernels.momentum_on_gpu(there[6], there[7], moved, other.scalars, 0.9)
        move_weights(weights, chunk.low_bits, gradient, muon, position=5)
        kernels.move_on_gpu(there[0], there[1], moved, other, position=5)
        for one, two in zip(native, there, strict=True):
            assert torch.equal(one.view(torch.uint8), two.cpu().view(torch.uint8))
        for _, whole in pairs:
            assert (whole[: 8 * BLOCK] == 77).all() and (whole[-8 * BLOCK :] == 77).all()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_gives_the_same_bytes(start_forks: Any) -> None:
    """On a CPU, by Triton's interpreter, which must be chosen before Triton is imported."""
    script = (
        f"import runpy; found = runpy.run_path({__file__!r}); "
        "found['compare_with_kernel']('cpu'); found['compare_muon_with_kernel']('cpu'); "
        "found['compare_at_edges']('cpu')"
    )
    codes, printed = start_forks((script, [], {}))()
    assert codes == [0], printed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_gpu_gives_the_same_bytes() -> None:
    compare_with_kernel("cuda")
    compare_muon_with_kernel("cuda")
    compare_at_edges("cuda")


def test_a_gpu_has_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(packing, "has_kernel", lambda tensor: True)
    for name in ("adamw_on_gpu", "momentum_on_gpu", "move_on_gpu"):
        note = functools.partial(
            lambda name, *given, **more: asked.append((name, given, more)), name
        )
        monkeypatch.setattr(packing, name, note)
    numbers: Any = MuonNumbers(0.9, False, 7, "scalars")  # pyright: ignore
    some: Any = ("weights", "chunk", "gradients", "numbers")
    take_step(*some, position=5)
    take_momentum("codes", "scales", "gradients", numbers)  # pyright: ignore
    move_weights("weights", "low_bits", "steps", numbers, position=6)  # pyright: ignore
    assert asked == [
        ("adamw_on_gpu", some, {"position": 5}),
        ("momentum_on_gpu", ("codes", "scales", "gradients", "scalars", 0.9), {}),
        ("move_on_gpu", ("weights", "low_bits", "steps", numbers), {"position": 6}),
    ]


def test_a_skipped_step_leaves_finite_numbers_to_be_made_orthogonal() -> None:
    codes, scales = view_momentum(torch.full((momentum_bytes(SIZE),), 3, dtype=torch.uint8), SIZE)
    before = codes.clone(), scales.clone()
    gradient = torch.full((SIZE,), torch.nan, dtype=torch.bfloat16)
    take_momentum(codes, scales, gradient, MuonNumbers(0.9, False, 3, torch.zeros(4)))
    assert not gradient.any()
    assert torch.equal(codes, before[0]) and torch.equal(scales, before[1])


def test_numbers_of_32_bits_are_given_to_kernels_with_a_sign() -> None:
    found = [kernels._signed(n) for n in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5)]
    assert found == [0, 1, 2**31 - 1, -(2**31), -1, 0, 5]


@pytest.mark.parametrize(("is_cuda", "spec", "has"), [
    (True, "there", True), (True, None, False), (False, "there", False),
])  # fmt: skip
def test_kernels_are_for_gpus_that_triton_knows(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, spec: str | None, has: bool
) -> None:
    class Placed(torch.Tensor):
        pass

    Placed.is_cuda = is_cuda  # type: ignore[misc]
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: spec)
    assert kernels.has_kernel(torch.zeros(1).as_subclass(Placed)) is has


@pytest.mark.parametrize(("rows", "programs"), [(1, 1), (8, 1), (9, 2), (16, 2), (1025, 129)])
def test_programs_of_kernels_cover_all_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, programs: int
) -> None:
    grids: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            grids.append(grid)
            return lambda *given, **options: grids.append((given[-1], options))

    monkeypatch.setattr(kernels, "_kernel", lambda function: Kernel())
    size = rows * BLOCK
    weights, chunk, _ = _packed(torch.zeros(size))
    gradient = torch.zeros(size, dtype=torch.bfloat16)
    kernels.adamw_on_gpu(weights, chunk, gradient, _numbers(), position=0)
    kernels.momentum_on_gpu(chunk.first, chunk.first_scales, gradient, torch.zeros(4), 0.9)
    numbers = MuonNumbers(0.9, True, 3, torch.zeros(4))
    kernels.move_on_gpu(weights, chunk.low_bits, gradient, numbers, position=0)
    plain = {"num_warps": 4, "enable_fp_fusion": False}
    assert grids == [
        (programs,), (rows, {"ROWS": 8, **plain}), (programs,), (rows, {"ROWS": 8, **plain}),
        (programs,), (size, {"CAUTIOUS": True, "SIZE": 1024, **plain}),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [BLOCK, 3 * BLOCK])
def test_what_a_chunk_takes_and_where_its_parts_lie(count: int) -> None:
    assert chunk_bytes(count) == 3 * count + 8 * (count // BLOCK)
    assert chunk_bytes(count, with_low_bits=False) == 2 * count + 8 * (count // BLOCK)
    assert momentum_bytes(count) == count + 4 * (count // BLOCK)
    memory = torch.zeros(chunk_bytes(count), dtype=torch.uint8)
    chunk = view_chunk(memory, count)
    parts = [chunk.first_scales, chunk.second_scales, chunk.first, chunk.second, chunk.low_bits]
    for number, part in enumerate(parts, 1):
        part.view(torch.uint8).fill_(number)
    sizes = [count // BLOCK * 4] * 2 + [count] * 3
    expected = [n for n, size in enumerate(sizes, 1) for _ in range(size)]
    assert memory.tolist() == expected
    low_bits = torch.zeros(count, dtype=torch.int8)
    apart = view_chunk(memory[: chunk_bytes(count, with_low_bits=False)], count, low_bits=low_bits)
    assert apart.low_bits is low_bits and apart.second.numel() == count
