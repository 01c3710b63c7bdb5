"""Kernels of what tokens share, by Triton's interpreter: the steps that the plain code takes."""

import importlib.util
import itertools
import textwrap

import numpy as np
import pytest
import torch

from lowtide.training import sharedrows
from lowtide.training.partkernels import has_part_kernels, list_on_gpu
from lowtide.training.sharedrows import SharedRows
from lowtide.training.spelling import Spelling, find_spelling

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


def test_the_kernels_are_for_gpus_with_triton(monkeypatch):
    for spec, has in (("there", True), (None, False)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert has_part_kernels(GPU) is has
        assert not has_part_kernels(CPU) and not has_part_kernels(torch.device("mps"))


def test_lists_of_more_than_a_stretch_are_cut():
    lengths = [2, 4, 5, 3, 8, 9]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    none, numbers = np.zeros(0, np.int32), np.arange(ends[-1], dtype=np.int32)
    lists = list_on_gpu(
        Spelling(none, none, numbers, ends, none.astype(np.float32)), CPU, stretch=4
    )
    stretches = list(zip(lists.begins.tolist(), lists.ends.tolist(), strict=True))
    of_lists = [[], [], [(6, 10), (10, 11)], [], [(14, 18), (18, 22)]]
    of_lists.append([(22, 26), (26, 30), (30, 31)])
    firsts = lists.firsts.tolist()
    assert [stretches[a:b] for a, b in itertools.pairwise(firsts)] == of_lists
    assert firsts[-1] == len(stretches)
    assert lists.token_ends.tolist() == ends.tolist()
    assert {tensor.dtype for tensor in (lists.begins, lists.ends, lists.firsts)} == {torch.int32}


# Lists shorter than the rows of a block, as long and longer; parts of one stretch and of several;
# tokens without a part. Widths that fill their last block, miss it by one, and hang over by one.
# The table and the moments are the middle of larger tensors: what lies around is not written.
STEPS = textwrap.dedent(
    """
    import sys, torch
    from lowtide.training.partkernels import PartBlocks, list_on_gpu, step_rows
    from lowtide.training.sharedrows import SharedRows
    from lowtide.training.spelling import find_spelling

    WORDS = [b"nation", b" Nation", b"nations", b"", b"motion", b" emotion", b"", b" mo", b"\\x00"]
    CPU, BETAS = torch.device("cpu"), (0.9, 0.95)

    def framed(rows, width):
        around = torch.full((rows + 2, width), 50.0)
        return around, around[1:-1]

    def take_steps(width, stretch, blocks, divided, seed=4):
        torch.manual_seed(seed)
        spelling = find_spelling(WORDS, len(WORDS))
        assert (spelling.scales == 0).any()
        lists, plain = list_on_gpu(spelling, CPU, stretch=stretch), SharedRows(spelling, 0.7, CPU)
        assert (len(lists.begins) > 2) is (stretch < 128)
        table = torch.nn.Parameter(torch.randn(len(WORDS), width))
        frames = [framed(len(WORDS), width), *(framed(spelling.num_parts, width) for _ in "12")]
        (_, moved), (_, first), (_, second) = frames
        moved.copy_(table.detach()), first.zero_(), second.zero_()
        count, state = torch.zeros(()), {}
        for number in range(4):
            gradient = 3 * torch.randn(len(WORDS), width)
            divisor = torch.tensor(8.0) if divided else None
            skip = torch.tensor(float(number in (0, 2))) if divided else None
            if divided and skip:
                gradient.fill_(torch.nan)
                divisor.fill_(torch.inf)
            lr = 0.01 * (number + 1)
            table.grad = gradient.clone()
            group = {"lr": lr, "betas": BETAS, "eps": 1e-4}
            with torch.no_grad():
                plain.step(table, state, group, divisor=divisor, skip=skip)
            before = [tensor.clone() for tensor in (moved, first, second, count)]
            step_rows(
                moved, gradient.T.contiguous().T, lists, first=first, second=second, count=count,
                rate=0.7 * lr, betas=BETAS, eps=1e-4, divisor=divisor, skip=skip, blocks=blocks,
            )
            after = (moved, first, second, count)
            if divided and skip:
                assert all(map(torch.equal, before, after))
            expected = (table, state["shared_avg"], state["shared_avg_sq"], state["shared_step"])
            for one, other in zip(after, expected, strict=True):
                torch.testing.assert_close(one, other.detach(), rtol=1e-5, atol=1e-6)
        assert count == (2 if divided else 4)
        for around, _ in frames:
            assert (around[0] == 50).all() and (around[-1] == 50).all()
        return torch.cat([moved, first, second])

    for width, stretch, blocks, divided in (
        (16, 128, PartBlocks(columns=16, rows=4), False),
        (17, 3, PartBlocks(columns=16, rows=2), True),
        (15, 2, PartBlocks(columns=16, rows=8), False),
        (6, 128, PartBlocks(), True),
    ):
        found = take_steps(width, stretch, blocks, divided)
    assert torch.equal(found, take_steps(6, 128, PartBlocks(), True))
    """
)

# As a run takes them: AdamW has the kernels' steps where a device has them. Also a beta of 0, which
# has no logarithm.
CHOSEN = textwrap.dedent(
    """
    import torch
    from lowtide.training import sharedrows
    from lowtide.training.adamw import AdamW
    from lowtide.training.sharedrows import SharedRows
    from lowtide.training.spelling import find_spelling

    WORDS = [b"nation", b" Nation", b"nations", b"", b" motion"]

    def take_steps(by_kernels, betas):
        asked = []
        sharedrows.has_part_kernels = lambda device: asked.append(device.type) or by_kernels
        torch.manual_seed(2)
        shared = SharedRows(find_spelling(WORDS, len(WORDS)), 0.5, torch.device("cpu"))
        table = torch.nn.Parameter(torch.randn(len(WORDS), 3))
        optimizer = AdamW([{"params": [table]}], lr=0.1, betas=betas, shared={id(table): shared})
        for _ in range(3):
            table.grad = torch.randn(table.shape)
            optimizer.step()
        assert asked == ["cpu"] and hasattr(shared, "_parts") is not by_kernels
        return table.detach()

    for betas in ((0.9, 0.95), (0.0, 0.999)):
        torch.testing.assert_close(
            take_steps(True, betas), take_steps(False, betas), rtol=1e-4, atol=1e-5
        )
    """
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_steps_by_the_kernels_are_the_plain_steps(start_forks):
    codes, printed = start_forks((STEPS, [], {}), (CHOSEN, [], {}))()
    assert codes == [0, 0], printed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("width", [768, 100, 33])
def test_a_gpu_takes_the_plain_steps_and_the_same_ones_again(width, monkeypatch):
    words = [b"nation", b" Nation", b"", *(b" word%d" % number for number in range(700))]
    spelling, device = find_spelling(words, len(words)), torch.device("cuda")

    def take_steps(by_kernels):
        monkeypatch.setattr(sharedrows, "has_part_kernels", lambda device: by_kernels)
        torch.manual_seed(0)
        shared, state = SharedRows(spelling, 1.0, device), {}
        table = torch.nn.Parameter(torch.randn(len(words), width, device=device))
        for number in range(4):
            table.grad = torch.randn_like(table)
            skip = torch.tensor(float(number == 1), device=device)
            if number == 1:
                table.grad.fill_(torch.nan)
            with torch.no_grad():
                shared.step(
                    table,
                    state,
                    {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8},
                    divisor=torch.tensor(2.0, device=device),
                    skip=skip,
                )
        return table.detach()

    found = take_steps(True)
    torch.testing.assert_close(found, take_steps(False), rtol=1e-4, atol=1e-4)
    assert torch.equal(found, take_steps(True))
