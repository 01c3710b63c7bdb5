"""Comparisons measure what they say, and refuse what they cannot."""

import importlib.util
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from lowtide.errors import LowtideError, UsageError
from lowtide.loader.batches import BatchLoader
from lowtide.planning import comparison
from lowtide.planning.comparison import CompareSettings, Pair, compare_memory, describe_pairs


def test_loading_and_its_picture(tmp_path):
    picture = tmp_path / "memory.svg"
    settings = CompareSettings(what=("loading",), tokens="1M", picture=picture)
    (pair,) = compare_memory(settings)
    assert pair.ordinary_bytes > pair.sparing_bytes + 30_000_000  # 48 bytes of a million tokens
    assert "loading 1,000,000 tokens" in describe_pairs([pair])
    root = ElementTree.fromstring(picture.read_text())
    assert sum(element.tag.endswith("rect") for element in root.iter()) == 2


def test_what_is_compared():
    has_8bit = importlib.util.find_spec("bitsandbytes") is not None
    assert ("optimizer" in CompareSettings().pairs) == has_8bit
    assert CompareSettings(input=("a.txt",)).pairs == ("tokenizer",)
    with pytest.raises(UsageError, match="no input files"):
        CompareSettings(what=("tokenizer",))
    with pytest.raises(UsageError, match="size is"):
        CompareSettings(size="big")


def test_both_sides_differ_by_what_is_compared(monkeypatch):
    asked = []
    monkeypatch.setattr(
        comparison, "_training_peak", lambda settings, options: asked.append(options) or len(asked)
    )
    settings = CompareSettings(size="3M")
    pair = comparison._compare_optimizers(settings)
    assert (pair.ordinary_bytes, pair.sparing_bytes) == (1, 2)
    short = {"seq_len": 64, "batch_size": 1, "optimizer": "adamw"}
    assert asked == [short, {**short, "use_8bit_optimizer": True}]
    pair = comparison._compare_checkpointing(settings)
    assert (pair.ordinary_bytes, pair.sparing_bytes) == (3, 4)
    long = {"seq_len": 256, "batch_size": 8, "optimizer": "adamw"}
    assert asked[2:] == [long, {**long, "activation_checkpointing": True}]


def test_pairs_are_a_table_with_what_is_spared():
    pairs = [
        Pair("a", "plain", 4 << 20, "sparing", 1 << 20),
        Pair("b", "plain", 1 << 20, "other", 2 << 20, details="more of b"),
        Pair("c", "plain", 1 << 20, "same", 1 << 20),
        Pair("d", "plain", 1 << 20, "none", 0),
    ]
    assert describe_pairs(pairs).splitlines() == [
        "what  way      peak memory",
        "a     plain        4.0 MiB",
        "      sparing      1.0 MiB  75 % less",
        "b     plain        1.0 MiB",
        "      other        2.0 MiB  100 % more",
        "c     plain        1.0 MiB",
        "      same         1.0 MiB  0 % less",
        "d     plain        1.0 MiB",
        "      none             0 B  100 % less",
        "more of b",
    ]


def test_a_picture_of_somebody_else_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(comparison, "_run", lambda *given: measured.append(given))
    picture = tmp_path / "mine.svg"
    picture.write_text("<svg>mine</svg>")
    settings = CompareSettings(what=("loading",), tokens="1k", picture=picture)
    with pytest.raises(UsageError) as caught:
        compare_memory(settings)
    assert caught.value.next_step == "name another --picture"
    assert measured == [] and picture.read_text() == "<svg>mine</svg>"


def test_what_is_asked_of_the_processes_that_measure(tmp_path, monkeypatch):
    asked = []

    def run(words, request):
        asked.append((words, request and json.loads(request)))
        if words[1] == "lowtide.planning.comparison":
            ids = np.fromfile(words[3], "<u2")
            assert len(ids) == (1 << 20) + 5 and ids.min() >= 0 and ids.max() < 4096
        return {"peak_bytes": 100 + len(asked)}

    monkeypatch.setattr(comparison, "_run", run)
    settings = CompareSettings(what=("loading",), tokens=(1 << 20) + 5, size="1M")
    (pair,) = compare_memory(settings)
    assert pair == Pair(
        "loading 1,048,581 tokens", "list and int64 array in memory", 101, "lowtide's loader", 102
    )
    assert [words[:3] for words, _ in asked] == [
        ["-m", "lowtide.planning.comparison", way] for way in ("memory", "shards")
    ]
    asked.clear()
    assert comparison._training_peak(settings, {"seq_len": 64, "batch_size": 1}) == 101
    ((words, request),) = asked
    assert words == ["-m", "lowtide.training.trial"]
    config = request.pop("config")
    assert (config["vocab_size"], config["context_length"]) == (4096, 64)
    assert request == {
        "settings": {"seq_len": 64, "batch_size": 1, "device": "cpu"}, "seconds": 0,
        "all_rows": True,
    }  # fmt: skip


def test_tokens_of_a_dataset_are_taken_where_they_are(tmp_path, monkeypatch):
    np.arange(300, dtype="<u2").tofile(tmp_path / "ids.bin")
    places = []
    monkeypatch.setattr(
        comparison, "_run", lambda words, request: places.append(words[3]) or {"peak_bytes": 1}
    )
    settings = CompareSettings(what=("loading",), dataset_dir=tmp_path / "ids.bin")
    (pair,) = compare_memory(settings)
    assert pair.what == "loading 300 tokens"
    assert places == [str(tmp_path / "ids.bin")] * 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(7)", "a measurement failed: 7"),
        ("raise ValueError('first\\nlast')", "a measurement failed: last"),
    ],
)
def test_a_measurement_that_fails_is_told_by_its_last_line(code, message):
    with pytest.raises(LowtideError) as caught:
        comparison._run(["-c", code], "")
    assert caught.value.message == message


def test_what_is_measured_reads_all_tokens_or_batches(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ids.bin"
    np.arange(256 * 70 + 1, dtype="<u2").tofile(path)
    arrays, stacked = [], []
    real_array, real_stack = np.array, np.stack
    monkeypatch.setattr(
        comparison.np, "array", lambda ids, dtype: arrays.append(ids) or real_array(ids, dtype)
    )
    monkeypatch.setattr(
        comparison.np, "stack", lambda rows: stacked.append(rows) or real_stack(rows)
    )
    comparison._load_everything(path)
    assert arrays[0] == list(range(256 * 70))
    assert len(stacked) == 50
    assert {(len(rows), *{len(row) for row in rows}) for rows in stacked} == {(32, 256)}
    firsts = {int(row[0]) for rows in stacked for row in rows}
    assert len(firsts) > 1000 and max(firsts) < 256 * 69
    taken = []
    real_next = BatchLoader.__next__
    monkeypatch.setattr(BatchLoader, "__next__", lambda self: taken.append(self) or real_next(self))
    comparison._work("shards", str(path))
    assert len(taken) == 50
    assert taken[0].batch_size == 32
    assert json.loads(capsys.readouterr().out)["peak_bytes"] > 1 << 20
