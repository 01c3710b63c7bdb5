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
    unlocked = []
    monkeypatch.setattr(homes, "unlock_pages", lambda array: unlocked.append("unlock"))
    monkeypatch.setattr(torch, "zeros", lambda *size, device: cleared.append(device))
    memory = homes.HostMemory(100, lock=lock)
    assert memory.is_locked is locked and memory.bytes.numel() == 100
    assert cleared == (["cuda"] if lock and on_gpu and not locked else [])
    memory.close()
    memory.close()
    assert unlocked == ["unlock"] * locked  # once


def test_a_home_that_is_closed_has_written_all_and_holds_nothing(
    home: HostHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {key: memory.bytes for key, memory in home._memory.items()}
    closed: list[object] = []
    monkeypatch.setattr(homes.HostMemory, "close", lambda self: closed.append(self))
    memories = list(home._memory.values())
    home.room("a").fill_(9)
    home.put("a")
    home.begin("b")
    home.close()
    assert kept["a"].tolist() == [9] * 8
    assert closed == memories and not home._memory and not home._slots


def test_records_on_the_device_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    home = homes.DeviceHome(SIZES, CPU)
    write_records(home, SIZES)
    use_in_any_order(home, SIZES, 20)
    home.close()
    assert not vars(home)["_records"] and not vars(home)["_memory"]


def test_slots_are_taken_in_turn() -> None:
    ring = homes.Ring(2)
    assert [ring.take("a"), ring.take("b")] == [0, 1]
    del ring.held["a"], ring.held["b"]
    assert [ring.take("c"), ring.take("d")] == [0, 1] and ring.held == {"c": 0, "d": 1}


def test_no_record_at_all_takes_a_page() -> None:
    assert homes.HostMemory(0).bytes.numel() == 0
    assert homes.HostMemory(3).bytes.tolist() == [0, 0, 0]


def test_records_of_a_cpu_lie_in_mappings_of_their_own() -> None:
    home = homes.DeviceHome(SIZES, CPU)
    places = [memory.bytes.data_ptr() for memory in home._memory]
    assert [home.get(key).data_ptr() for key in SIZES] == places
    other = homes.DeviceHome({"a": 4}, torch.device("meta"))
    assert not other._memory and other.get("a").device.type == "meta"
