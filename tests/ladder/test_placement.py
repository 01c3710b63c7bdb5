"""Every rung of a GPU moves the same bytes: a device with a memory of its own, played by a CPU.

Copies beside the computing happen as late as they may (late_streams.py), files are real.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowtide.ladder import placement
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.network import PackedGPT
from lowtide.model.config import GPTConfig
from lowtide.training.distributed import ProcessGroup
from lowtide.training.offloading import RUNGS
from lowtide.training.settings import train_settings
from lowtide.training.state import RunState

sys.path.insert(0, str(Path(__file__).parent))
from late_streams import use_late_streams

CONFIG = GPTConfig(vocab_size=96, context_length=16, num_layers=3, width=32, num_heads=2)


def _train(rung: str, folder: Path, *, apart: bool, **options: Any) -> dict[str, np.ndarray]:
    """Take three steps, the second of which is skipped; return losses, weights and moments."""
    model = PackedGPT(CONFIG, seed=3)
    model.settle = functools.partial(model.settle, apart=apart)  # type: ignore[method-assign]
    settings = train_settings(
        offload=rung, batch_size=2, gradient_accumulation_steps=2, seq_len=16, learning_rate=1e-2,
        offload_dir=folder if rung.startswith("disk") else None, **options,
    )  # fmt: skip
    state, group = RunState(micro_batch=2), ProcessGroup(0, 1, torch.device("cpu"))
    engine = LadderEngine(model, settings, state, group, rows=4, note=print)
    generator = torch.Generator().manual_seed(1)
    found: dict[str, np.ndarray] = {}
    for step in range(3):
        ids = torch.randint(CONFIG.vocab_size, (4, 17), generator=generator)
        loss = engine.compute(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        engine.update(loss if step != 1 else loss * torch.nan, 1.0)
        found[f"loss {step}"] = loss.numpy()
        state.step += 1
    engine.wait()
    for name, value in {**engine.weights(), **engine.moments()}.items():
        read = value.read() if hasattr(value, "read") else value
        found[name] = read.detach().clone().numpy()
    assert model.placement is not None
    model.placement.close()
    assert not list(folder.iterdir())
    return found


@pytest.mark.parametrize("options", [
    {"use_mixed_precision": True, "optimizer": "adamw"},
    {"use_mixed_precision": True, "optimizer": "muon"},
    {"optimizer": "adamw"},
    {"optimizer": "muon"},
])  # fmt: skip
def test_wherever_states_live_they_are_moved_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    wanted = _train("packed", tmp_path, apart=False, **options)
    assert any(not np.array_equal(wanted["loss 0"], wanted[f"loss {n}"]) for n in (1, 2))
    use_late_streams(monkeypatch)
    for rung in RUNGS[2:]:
        found = _train(rung, tmp_path, apart=True, **options)
        assert list(found) == list(wanted)
        for name, value in found.items():
            assert np.array_equal(value, wanted[name]), (rung, name)


@pytest.mark.parametrize(
    ("name", "small", "large"), [("embedding_rate", 3.0, 1.0), ("momentum", 0.9, 0.95)]
)
def test_a_small_model_has_a_rate_for_its_embedding_and_less_momentum(
    tmp_path: Path, name: str, small: float, large: float
) -> None:
    options: dict[str, Any] = {"optimizer": "muon", "target_params": 1_000_000}
    chosen = _train("packed", tmp_path, apart=False, **options)
    for value, is_same in ((small, True), (large, False)):
        given = _train("packed", tmp_path, apart=False, **options, **{name: value})
        same = {key: np.array_equal(value, given[key]) for key, value in chosen.items()}
        assert same["loss 0"] and all(same.values()) is is_same


def test_everything_in_a_file_leaves_two_blocks_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_late_streams(monkeypatch)
    deep = CONFIG.replace(num_layers=9)
    model = PackedGPT(deep, seed=3)
    cpu = torch.device("cpu")
    model.settle("disk-all", cpu, in_float32=False, scratch_dir=tmp_path, apart=True)
    assert model.placement is not None
    for home, size in ((model.placement._weights, 2), (model.placement._gradients, 2)):
        block = model.units[-1].size * size
        memory = [*home._staging, *home._on_device]  # type: ignore[attr-defined]
        sizes = [getattr(part, "bytes", part).numel() for part in memory]
        assert len(sizes) == 4 and max(sizes) < block + 4096
    model.placement.close()


def test_a_part_is_as_long_as_its_borders_are_apart() -> None:
    assert placement._length(slice(0, 7)) == 7
    assert placement._length(slice(30, 37)) == 7


def test_what_each_rung_keeps_where() -> None:
    def homes(rung: Any, *, on_gpu: bool) -> str:
        found = placement._homes(rung, on_gpu=on_gpu)
        return " ".join(found[kind] or "device" for kind in ("gradients", "states", "weights"))

    assert {rung: homes(rung, on_gpu=True) for rung in RUNGS[1:]} == {
        "packed": "device device device",
        "gradients": "host device device",
        "optimizer": "host host device",
        "layers": "host host host",
        "disk": "host file host",
        "disk-all": "file file file",
    }
    assert homes("disk", on_gpu=False) == homes("disk-all", on_gpu=False) == "file file file"
    assert homes("packed", on_gpu=False) == "device device device"


def test_all_homes_and_the_gpu_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    home = SimpleNamespace(
        wait=lambda: calls.append("wait"), close=lambda: calls.append("close"),
        drop_all=lambda: calls.append("drop"),
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "synchronize", calls.append)
    for device in (torch.device("cpu"), torch.device("cuda")):
        some: Any = SimpleNamespace(device=device, _homes=[home, home])
        placement.Placement.wait(some)
        placement.Placement.drop_all(some)
        placement.Placement.close(some)
    each = ["wait", "wait", "drop", "drop", "close", "close"]
    assert calls == [*each, torch.device("cuda"), *each]


def test_the_next_records_are_on_their_way_while_one_is_moved() -> None:
    calls: list[Any] = []

    def note(name: str) -> Any:
        return lambda key: calls.append((name, key)) or f"{name} {key}"

    states = SimpleNamespace(get=note("get"), begin=note("begin"), put=note("put"))
    unit: Any = SimpleNamespace(name="u", chunks=lambda: [slice(0, 4), slice(4, 6)])
    some: Any = SimpleNamespace(_states=states)
    later = iter([("u", "states", 4)])
    found = []
    for part, record in placement.Placement._iter_records(some, unit, later, "states"):
        found.append((part, record))
        calls.append("moved")
    first, second = ("u", "states", 0), ("u", "states", 4)
    assert found == [(slice(0, 4), f"get {first}"), (slice(4, 6), f"get {second}")]
    assert calls == [
        ("get", first), ("begin", second), "moved", ("put", first),
        ("get", second), "moved", ("put", second),
    ]  # fmt: skip


@pytest.mark.parametrize(("locked", "all_locked"), [
    ([True, True], True), ([True, False], False), ([False, False], False),
])  # fmt: skip
def test_all_of_the_host_memory_counts(locked: list[bool], all_locked: bool) -> None:
    some: Any = SimpleNamespace(_homes=[SimpleNamespace(is_locked=one) for one in locked])
    assert placement.Placement.is_locked.fget(some) is all_locked  # type: ignore[attr-defined]


@pytest.mark.parametrize("rung", RUNGS[1:])
@pytest.mark.parametrize("apart", [False, True])
def test_inputs_of_blocks_are_on_the_host_where_something_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Any, apart: bool
) -> None:
    use_late_streams(monkeypatch)
    model = PackedGPT(CONFIG, seed=3)
    cpu = torch.device("cpu")
    model.settle(rung, cpu, in_float32=False, scratch_dir=tmp_path, apart=apart)
    assert model.placement is not None
    assert model.placement.host_inputs is (apart and rung != "packed")
    model.placement.close()
