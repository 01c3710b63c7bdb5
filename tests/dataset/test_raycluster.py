"""A real Ray cluster of several nodes on this machine: the same bytes as with threads."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.raynodes import run_on_ray
from lowtide.tokenizer.training import train_tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, snapshot, write_corpus

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, about files that it leaves open
]

SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=5000)
NODE = {"num_cpus": 1, "memory": 1 << 30, "object_store_memory": 80 << 20}
GrowFunction = Callable[[int], None]


@pytest.fixture(scope="module")
def grow() -> Iterator[GrowFunction]:
    """Adds nodes to a cluster until it has enough; all of its processes end with the test.

    Its folder is not pytest's, because a socket's name has at most 107 bytes.
    """
    import ray
    from ray.cluster_utils import Cluster

    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="lt") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)  # also for a file that names the newest cluster
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # otherwise they would wait for all other tests
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # kills because of other tests
        cluster = Cluster()

        def grow(count: int) -> None:
            while len(cluster.list_all_nodes()) < count:
                cluster.add_node(**NODE)
            if not ray.is_initialized():
                ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

        yield grow
        ray.shutdown()
        cluster.shutdown()
        left = [child for child in psutil.Process().children(recursive=True) if child not in before]
        _, alive = psutil.wait_procs(left, timeout=30)
        assert alive == []


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    documents = make_documents(400)
    return write_corpus(tmp_path / "text.txt", documents + documents[50:90])


def make_dying_worker(settings: PrepareSettings, marker: Path) -> Callable[[], int]:
    """A worker that the system kills in its second task; later workers are not killed.

    Defined here, so that Ray sends its code: a node cannot import this file.
    """

    def work() -> int:
        from lowtide.dataset.staged import hashing, running

        run = hashing.HashStage.run

        def run_or_die(stage: Any, index: int) -> Any:
            if index == 2 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return run(stage, index)

        hashing.HashStage.run = run_or_die
        return running.prepare_shared(settings, sizes=SIZES).peak_bytes

    return work


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_workers_that_are_killed_change_no_byte(
    grow: GrowFunction, corpus: Path, tmp_path: Path, num_nodes: int
) -> None:
    grow(num_nodes)
    options: dict[str, Any] = {
        "input_files": (corpus,), "tokenization": "char", "tokens_per_shard": 2500,
        "block_bytes": 2048, "memory": "512MiB", "num_workers": 1,
    }  # fmt: skip
    notices: list[str] = []
    shared = PrepareSettings(out_dir=tmp_path / "ray", engine="files", **options)
    peak = run_on_ray(
        make_dying_worker(shared, tmp_path / "killed"), address=None, num_cpus=1,
        memory_bytes=512 << 20, on_poll=lambda: None, on_notice=notices.append,
    )  # fmt: skip
    options["memory"] = "4GiB"  # for this process with all of the cluster's
    prepare_dataset(PrepareSettings(out_dir=tmp_path / "threads", **options))
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "threads")
    assert [text.partition(" was lost (")[2] for text in notices] == [
        "WorkerCrashedError): others go on"
    ]
    assert 0 < peak < 512 << 20 and not (tmp_path / "ray.work").exists()


def test_every_verb_makes_what_it_makes_by_threads(
    grow: GrowFunction, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(2)
    more = write_corpus(tmp_path / "more.txt", make_documents(300, seed=1) + make_documents(40))
    for engine, memory in (("ray", "512MiB"), ("threads", "4GiB")):
        options: Any = {"engine": engine, "memory": memory}
        (tmp_path / engine).mkdir()
        monkeypatch.chdir(tmp_path / engine)
        trained = train_tokenizer(input=[corpus], out_dir="tok", vocab_size=400, **options)
        prepare_dataset(input_files=[corpus], out_dir="data", tokenization="tok", **options)
        added = append_to_dataset(dataset_dir="data", input_files=[more], **options)
        again = append_to_dataset(dataset_dir="data", input_files=[more], **options)
        assert not trained.was_there and added.added_tokens > 5000 and again.was_there
    found, expected = snapshot(tmp_path / "ray"), snapshot(tmp_path / "threads")
    assert found == expected and len(found) > 15
