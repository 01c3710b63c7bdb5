"""What attention takes for each thread is planned where nothing else was there before."""

from __future__ import annotations

import pytest

from lowtide import _native
from lowtide.memory import usable_cores
from lowtide.model.attentionrooms import computing_threads, further_rooms_bytes
from lowtide.model.config import GPTConfig
from lowtide.model.inference import planned_bytes as running_bytes
from lowtide.model.program import Program
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings

CONFIG = GPTConfig(200, 2048, 1, 512, 8, num_kv_heads=4)
PROGRAM = Program(300 << 20, 320 << 20)


def room(is_backward: bool, *, tokens: int = 2048) -> int:
    return _native.attention_room_bytes((1, tokens, tokens, 8, 4, 64, 0), is_backward)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 14 * room(True)),  # a thread for each head of keys and values, two are in the formulas
        ({"rows": 1}, max(2 * room(True), 6 * room(False))),
        ({"cpu_threads": 4}, 2 * room(True)),
        ({"cpu_threads": 1}, 0),
        ({"trains": False}, 30 * room(False)),
        ({"logits_bytes": 14 * room(True) - 7}, 7),
        ({"logits_bytes": 1 << 30}, 0),
        ({"tokens": 8192}, 0),  # torch's
        ({"half": True}, 0),
    ],
    ids=str,
)
def test_rooms_are_those_of_threads_beyond_the_second(changes, expected):
    given = {"rows": 4, "tokens": 2048, "trains": True, "logits_bytes": 0, "cpu_threads": 64}
    assert further_rooms_bytes(CONFIG, **{**given, **changes}) == expected
    assert expected == 0 or expected < 1 << 27


def test_torch_computes_attention_with_dropout():
    given = {"rows": 4, "tokens": 2048, "logits_bytes": 0, "cpu_threads": 64}
    config = CONFIG.replace(layout="gpt2", num_kv_heads=8, dropout=0.1)
    assert further_rooms_bytes(config, trains=True, **given) == 0
    assert further_rooms_bytes(config, trains=False, **given) > 0


@pytest.mark.parametrize(
    ("given", "expected"), [("7", 7), ("12,2", 12), ("", None), ("0", None), ("many", None)]
)
def test_threads_are_those_of_openmp_or_the_cores(monkeypatch, given, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert computing_threads() == (expected or usable_cores())


@pytest.mark.parametrize("offload", ["none", "packed"])
def test_a_training_plan_counts_the_rooms(offload):
    settings = train_settings(batch_size=4, seq_len=2048, offload=offload)
    few, many = (
        planned_bytes(CONFIG, settings, program=PROGRAM, cpu_threads=threads).activations
        for threads in (2, 64)
    )
    logits = 4 * 200 * 4 * 2048
    assert many - few == 14 * room(True) - logits


def test_an_evaluation_counts_the_rooms(monkeypatch):
    needs = []
    for threads in ("2", "64"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        needs.append(running_bytes(CONFIG, rows=4, tokens=2048, program=PROGRAM).working)
    logits = 3 * 4 * 200 * 4 * 2048
    assert needs[1] - needs[0] == 30 * room(False) - logits
