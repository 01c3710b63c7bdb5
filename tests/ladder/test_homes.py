"""Records in host memory while nothing overtakes anything: streams that do their work late."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from lowtide.ladder import homes
from lowtide.ladder.homes import HostHome

sys.path.insert(0, str(Path(__file__).parent))
from late_streams import use_late_streams
from random_records import use_in_any_order, write_records

CPU = torch.device("cpu")
SIZES = {"a": 8, "b": 5, "c": 8, "d": 3}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> HostHome:
    use_late_streams(monkeypatch)
    home = HostHome(SIZES, CPU, slots=2)
    write_records(home, SIZES)
    return home


def test_records_are_read_as_they_were_put_in_any_order(home: HostHome) -> None:
    use_in_any_order(home, SIZES, 200)


def test_a_room_waits_for_what_leaves_it(home: HostHome) -> None:
    for value, key in enumerate("abcd", 1):
        home.room(key).fill_(value)
        home.put(key)
    home.wait()
    assert {key: home.read(key).tolist() for key in SIZES} == {
        key: [value] * size for value, (key, size) in enumerate(SIZES.items(), 1)
    }


def test_more_records_in_use_than_slots_are_a_fault_of_ours(home: HostHome) -> None:
    home.begin("a")
    home.begin("b")
    home.begin("a")  # which it has
    with pytest.raises(AssertionError, match="more records in use than slots"):
        home.begin("c")
    home.drop_all()
    assert home.get("c").tolist() == [20] * 8


@pytest.mark.parametrize(("lock", "on_gpu", "locked"), [
    (True, True, True), (True, True, False), (True, False, False), (False, True, False),
])  # fmt: skip
def test_host_memory_is_locked_where_a_gpu_reads_it(monkeypatch, lock, on_gpu, locked):
    """Where locking failed, the error that stays on the device is cleared, and only there."""
    cleared = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(homes, "lock_pages", lambda array: locked)
    monkeypatch.setattr(homes, "unlock_pages", lambda array: None)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: cleared.append(device))
    memory = homes.HostMemory(100, lock=lock)
    assert memory.is_locked is locked and memory.bytes.numel() == 100
    assert cleared == (["cuda"] if lock and on_gpu and not locked else [])
    memory.close()
