"""Parts of the states, by their borders; what is in them is tested by the engine as a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.ladder import places
from lowtide.training.offloading import RUNGS


def test_a_part_is_as_long_as_its_borders_are_apart() -> None:
    assert places._length(slice(0, 7)) == 7
    assert places._length(slice(30, 37)) == 7


def test_what_each_rung_keeps_where() -> None:
    def homes(rung: Any, *, on_gpu: bool) -> str:
        found = places._homes(rung, on_gpu=on_gpu)
        return " ".join(found[kind] or "device" for kind in ("gradients", "states", "weights"))

    assert {rung: homes(rung, on_gpu=True) for rung in RUNGS[1:]} == {
        "packed": "device device device",
        "gradients": "host device device",
        "optimizer": "host host device",
        "layers": "host host host",
        "disk": "host file host",
    }
    assert homes("disk", on_gpu=False) == "file file file"
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
        places.Places.wait(some)
        places.Places.drop_all(some)
        places.Places.close(some)
    each = ["wait", "wait", "drop", "drop", "close", "close"]
    assert calls == [*each, torch.device("cuda"), *each]
