"""Figures on the pages are those of the code that they are about."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus.parquetpages import ColumnPages
from lowtide.corpus.textblocks import BLOCK_BYTES, ReadingSettings
from lowtide.dataset import resources
from lowtide.loader.footprint import planned_bytes as stream_bytes
from lowtide.memory import format_size
from lowtide.model.inference import TOKEN_BYTES
from lowtide.planning.choices import usual_shuffle_buffer
from lowtide.planning.machine import find_machine
from lowtide.planning.plan import make_plan
from lowtide.planning.settings import PlanSettings
from lowtide.stores.extents import buffer_bytes
from lowtide.tokenizer.footprint import planned_peak_bytes
from lowtide.training.muonnumbers import STACK_BYTES

DOCS = Path(__file__).resolve().parents[2] / "docs"
MIB = 1 << 20


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def find(text: str, pattern: str) -> list[float]:
    """The numbers of the only place where a page says this."""
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, found)
    numbers = found[0] if isinstance(found[0], tuple) else (found[0],)
    return [float(number.replace(",", "")) for number in numbers]


def tokenizer_peak(*, pieces: int = 0, tokens: int = 0, workers: int = 0) -> int:
    return planned_peak_bytes(0, vocab_size=tokens, num_workers=workers, distinct_bytes=pieces)


def test_the_memory_of_training_a_tokenizer() -> None:
    text = page("memory-model.md")
    program, each, thread = find(
        text, r"is (\d+) MiB for the program[\s\S]*?\| counting and merging \| ([\d.]+) bytes \| "
        r"([\d.]+) MiB for each thread",
    )  # fmt: skip
    assert tokenizer_peak(workers=200) == pytest.approx((program + 200 * thread) * MIB, rel=1e-3)
    many = 10**6  # threads, beside which counting takes more than writing
    counted = tokenizer_peak(pieces=10**9, workers=many) - tokenizer_peak(workers=many)
    assert counted == pytest.approx(each * 10**9, rel=1e-3)
    piece, token, more, also = find(
        text, r"\| writing the files \| (\d+) bytes \| (\d+) bytes for each token of the "
        r"vocabulary, (\d) MiB more, (\d) MiB for each thread",
    )  # fmt: skip
    written = tokenizer_peak(tokens=10**9, pieces=10**9, workers=3)
    assert written == pytest.approx((token + piece) * 10**9, rel=1e-2)
    assert tokenizer_peak() == (program + more) * MIB
    assert tokenizer_peak(tokens=10**6, workers=10) - tokenizer_peak(tokens=10**6) == (
        pytest.approx(10 * also * MIB, rel=0.05)
    )
    (power,) = find(text, r"grow with the ([\d.]+)th power of the text")
    grown = [planned_peak_bytes(size, vocab_size=0, num_workers=0) for size in (10**12, 10**15)]
    assert grown[1] / grown[0] == pytest.approx(1000**power, rel=0.02)


def prepare_peak(text_bytes: int, workers: int, vocab_size: int = 0) -> int:
    return resources.planned_bytes(
        text_bytes, num_workers=workers, budget_bytes=1 << 44, vocab_size=vocab_size
    )


def test_the_memory_and_disk_of_preparing() -> None:
    text = page("memory-model.md")
    program, token, first, later = find(
        text,
        r"- (\d+) MiB for the program, and (\d+) bytes for each token of the vocabulary;\n"
        r"- (\d+) MiB for the first worker and (\d+) for each more",
    )
    line, chars = find(text, r"up to (\d+) bytes for each line of (\d+) characters and more")
    assert prepare_peak(0, 1) == program * MIB
    assert prepare_peak(0, 1, 1000) == program * MIB + 1000 * token
    lines = BLOCK_BYTES // resources.LINE_BYTES * resources.TABLE_ROW_BYTES
    assert prepare_peak(BLOCK_BYTES, 1) == (program + first) * MIB + lines
    peaks = [prepare_peak(BLOCK_BYTES * 100, workers) for workers in (1, 4, 5)]
    assert [peaks[1] - peaks[0], peaks[2] - peaks[1]] == [3 * later * MIB, later * MIB]
    assert line == resources.TABLE_ROW_BYTES
    assert resources.PrepareSettings.min_dedup_chars == chars
    (near,) = find(text, r"and about ([\d.]+) of its size again \(`NEAR_DISK_SHARE`\)")
    assert near == resources.NEAR_DISK_SHARE


def test_what_one_pass_holds() -> None:
    text = page("prepare.md")
    line, memory, lines = find(
        text, r"It takes (\d+) bytes for each line of 20 characters or more\. With "
        r"`--memory (\d+)MiB` and two workers there is room for ([\d.]+) million lines",
    )  # fmt: skip
    room = resources.planned_table_bytes(num_workers=2, budget_bytes=int(memory) * MIB)
    assert line == resources.TABLE_ROW_BYTES
    assert lines * 1e6 == pytest.approx(room / line, rel=0.01)


def test_what_readers_and_training_hold() -> None:
    text = page("memory-model.md")
    (large,) = find(text, r"\| parquet \| pages of up to (\d+) MiB")
    usual = ReadingSettings().large_page_bytes
    assert large * MIB == usual
    pages = ColumnPages(1, usual + 1, 1, 1, streamed_bytes=1, large_page_bytes=usual)
    assert pages.is_streamed and not replace(pages, unpacked_bytes=usual).is_streamed
    (stack,) = find(text, r"six times a stack of equal shapes \(at most (\d+) MiB\)")
    assert stack * MIB == STACK_BYTES
    (token,) = find(text, r"\| tokenizer \| (\d+) bytes for each token of the vocabulary")
    assert token == TOKEN_BYTES
    stream, window = find(
        text, r"for a stream also (\d+) MiB for a block of text and two encoders, (\d+) bytes for "
        r"each token of the shuffle buffer",
    )  # fmt: skip
    held = [stream_bytes(seq_len=1000, shuffle_buffer_size=size) for size in (0, 10_000)]
    assert held[1] - held[0] == pytest.approx(window * 10_000 * 1000, rel=0.01)
    assert held[0] == pytest.approx(stream * MIB, rel=0.01)
    (client,) = find(text, r"for an object store (\d+) MiB for its client")
    assert client * MIB == buffer_bytes()


MACHINES = page("fit-a-small-machine.md")
ROWS = re.findall(r"^\| .*?\(`plan (.*?)`\) \|(.*)\|$", MACHINES, re.MULTILINE)


@pytest.mark.parametrize(("flags", "cells"), ROWS, ids=[flags for flags, _ in ROWS])
def test_settings_by_hardware(flags: str, cells: str) -> None:
    words = flags.split()
    named = {word[2:]: value for word, value in zip(words, [*words[1:], ""], strict=True)
             if word.startswith("--")}  # fmt: skip
    options: dict[str, Any] = {name: value or True for name, value in named.items()}
    plan = make_plan(**options, measure=False, progress=False)
    vocabulary, cores, model, rows, memory, takes = (cell.strip() for cell in cells.split("|"))
    chosen = plan.chosen
    assert chosen is not None
    batch, size = chosen.settings.batch, chosen.options["target_params"]
    assert f"{plan.data.vocab_size:,}" == vocabulary and str(plan.machine.cores) == cores
    assert f"{size / 1e6:.2g}M".replace("1.5e+02", "150") == model.partition(",")[0]
    assert rows == (
        f"{batch.batch_size} x {batch.gradient_accumulation_steps} of "
        f"{chosen.settings.model.seq_len} tokens"
    )
    assert format_size(plan.machine.budget_bytes).replace(".0", "") == memory
    # Of torch for CPUs 2.13: what is installed here may take more.
    footprint = replace(chosen.footprint, program=261 * MIB)
    on_device = footprint.device_bytes if plan.machine.has_gpu else footprint.total_bytes
    assert format_size(on_device) == takes.partition(" on ")[0]


def test_windows_that_a_stream_mixes() -> None:
    small, middle, large, tpu = find(
        MACHINES,
        r"is ([\d,]+) windows on 8 GiB, ([\d,]+) on 16, ([\d,]+) beyond, ([\d,]+) with `--tpu`",
    )
    described: list[dict[str, Any]] = [{"ram": "8GiB"}, {"ram": "16GiB"}, {"ram": "32GiB"}]
    described.append({"tpu": True})
    machines = [find_machine(PlanSettings(**given)) for given in described]
    assert [usual_shuffle_buffer(machine) for machine in machines] == [small, middle, large, tpu]
