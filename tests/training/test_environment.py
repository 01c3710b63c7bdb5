"""What a run says it was made with, and how it counts its time."""

from __future__ import annotations

import json
import platform
import sys
from types import SimpleNamespace

from lowtide.training import environment, runmetrics
from lowtide.training.environment import peak_flops
from lowtide.training.runmetrics import Pace


def test_a_run_writes_what_it_was_made_with(make_trainer, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/lowtide", "train", "--model-name", "a b"])
    trainer = make_trainer(max_iters=2)
    trainer.fit()
    rows = [json.loads(line) for line in trainer.run.metrics_path.read_text().splitlines()]
    (row,) = [row for row in rows if row.get("event") == "environment"]
    assert row["command"] == "lowtide train --model-name 'a b'"
    assert "cores" in row["hardware"] and row["versions"]["torch"] and "peak_flops" not in row
    assert row["num_parameters"] == sum(p.numel() for p in trainer.model.parameters())
    assert row["tokens_per_step"] == trainer.settings.tokens_per_step
    assert row["flops_per_token"] > 0


def test_the_processor_has_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "usable_cores", lambda: 3)
    found = []
    for text in (
        "processor\t: 0\nmodel name\t: Deep 9000 @ 2GHz\nmodel name\t: other\n",
        "\n",
        None,
    ):
        path = tmp_path / "cpuinfo"
        path.unlink(missing_ok=True) if text is None else path.write_text(text)
        monkeypatch.setattr(environment, "Path", lambda name, path=path: path)
        name, cores, memory = environment._describe_cpu().split(", ")
        assert cores == "3 cores" and memory[-3:] == "GiB"
        found.append(name)
    assert found == ["Deep 9000 @ 2GHz", platform.machine(), platform.machine()]


def test_a_device_is_named_by_the_backend_that_is_loaded(monkeypatch):
    on_gpu = []
    cuda = SimpleNamespace(is_available=lambda: bool(on_gpu), get_device_name=lambda: "Deep 9")
    device = SimpleNamespace(device_kind="TPU v9")
    jax = SimpleNamespace(devices=lambda: [device, "another"])

    def name(torch, jax):
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "jax", jax)
        return environment._device_name()

    torch = SimpleNamespace(cuda=cuda)
    assert [name(None, None), name(torch, None), name(torch, jax)] == ["", "", "TPU v9"]
    on_gpu.append(True)
    assert [name(torch, None), name(torch, jax), name(None, jax)] == ["Deep 9", "Deep 9", "TPU v9"]


def test_peaks_are_known_by_name():
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA H100 PCIe") < peak_flops("NVIDIA H100 80GB HBM3")


def test_speed_is_of_training_alone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(runmetrics.time, "monotonic", lambda: now[0])

    class One:
        def item(self):
            return 1.0

    class State:
        step, last_loss, elapsed_seconds, micro_batch = 10, 1.0, 7.0, 2

    class Counters:
        norm = bad = One()

    pace = Pace(100, 3.0, step=0)
    now[0] += 2
    with pace.aside("evaluation"):
        now[0] += 5
    with pace.aside("evaluation"):
        now[0] += 1
    now[0] += 2
    row = pace.row(State(), Counters(), learning_rate=0.1)
    assert row["tokens_per_second"] == 10 * 100 / 4 and row["evaluation_seconds"] == 6
    now[0] += 1
    State.step = 20
    row = pace.row(State(), Counters(), learning_rate=0.1)
    assert row["tokens_per_second"] == 1000 and "evaluation_seconds" not in row
