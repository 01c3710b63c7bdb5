"""The commands of a plan, whole, for every way that data, model and machine are given."""

import json
from pathlib import Path

import pytest

from lowtide.planning.choices import Choice
from lowtide.planning.commands import write_commands
from lowtide.planning.compute import ComputePlan
from lowtide.planning.machine import Machine
from lowtide.planning.plandata import DataFacts
from lowtide.planning.settings import PlanSettings

MIB, GIB = 1 << 20, 1 << 30
SHARED = "--processes 3 --memory 4GiB"
END = "--max-iters 700 --memory 4GiB --model-name run"


def commands(
    options: dict[str, object] | None = None,
    *,
    budget_bytes: int = 4 * GIB,
    is_tpu: bool = False,
    learns: bool = False,
    dataset: Path | None = None,
    streams: bool = False,
    **settings: object,
) -> list[str]:
    """The command lines for these train options, this data, machine and settings."""
    choice = Choice(options or {}, *[None] * 2, None, (), True)  # type: ignore[arg-type]
    machine = Machine(8 * GIB, budget_bytes, 3, None, 0, None, False, is_tpu)
    data = DataFacts("", 512, None, None, learns, 4.0, dataset_dir=dataset, streams=streams)
    compute = ComputePlan(1, 1, 1, 1, 700, None, 1.0, None)
    given = PlanSettings(name="run", **settings)  # type: ignore[arg-type]
    return write_commands(given, data, choice, machine, compute)


def test_from_text_to_a_model() -> None:
    tokenizer, prepare, train = commands({"width": 64}, learns=True, input_files=("a b", "c"))
    files = "'a b' c"
    assert tokenizer == (
        f"lowtide train-tokenizer --input {files} --vocab-size 512 {SHARED} --out-dir tok/run"
    )
    assert prepare == (
        f"lowtide prepare --input-files {files} --tokenization tok/run {SHARED} --out-dir data/run"
    )
    assert train == f"lowtide train --dataset-dir data/run --width 64 {END}"


def test_the_field_of_rows_is_named_in_both_commands_that_read_them() -> None:
    learn, prepare, train = commands(learns=True, input_files=("a.jsonl",), text_field="body")
    assert "--input a.jsonl --text-field body " in learn
    assert "--input-files a.jsonl --text-field body " in prepare
    assert "text-field" not in train


def test_a_tokenizer_that_is_named_is_not_learned() -> None:
    prepare, train = commands(tokenization="gpt2", near_dedup=0.5)
    assert prepare == (
        f"lowtide prepare --input-files text.txt --tokenization gpt2 {SHARED} --near-dedup 0.5 "
        "--out-dir data/run"
    )
    assert train == f"lowtide train --dataset-dir data/run {END}"
    assert "near" not in commands(tokenization="gpt2")[0]
    judged = commands(tokenization="gpt2", decontaminate=("a.jsonl", "b c.jsonl"))[0]
    assert " --decontaminate a.jsonl 'b c.jsonl' " in judged


@pytest.mark.parametrize(
    ("budget", "written"),
    [
        (4 * GIB, "4GiB"),
        (GIB, "1GiB"),
        (3 * GIB, "3GiB"),
        (3 * GIB + 1, "3072MiB"),
        (5 * MIB - 1, "4MiB"),
        (512 * MIB, "512MiB"),
    ],
)
def test_a_budget_is_written_as_the_largest_unit_that_keeps_it(budget: int, written: str) -> None:
    assert all(f"--memory {written} " in line for line in commands(budget_bytes=budget))


@pytest.mark.parametrize("name", ["folder", "tokens.npy"])
def test_data_that_is_there_is_trained_on(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "tokens.npy").touch()
    flag = {"folder": "--dataset-dir", "tokens.npy": "--train-data-path"}[name]
    assert commands(dataset=tmp_path / name, learns=True) == [
        f"lowtide train {flag} {tmp_path / name} {END}"
    ]


def test_text_that_is_streamed_needs_one_command() -> None:
    assert commands({"dataset_id": "a/b"}, streams=True, learns=True) == [
        f"lowtide train --dataset-id a/b {END}"
    ]


def train(options: dict[str, object], **rest: object) -> str:
    """What the training command says between its data and its end."""
    line = commands(options, dataset=Path("d"), **rest)[-1]  # type: ignore[arg-type]
    begin, end = "lowtide train --dataset-dir d ", END
    assert line.startswith(begin)
    return line.removeprefix(begin).removesuffix(end).strip()


def test_defaults_are_left_out() -> None:
    assert train({"tokens_per_param": 20, "compile": False, "width": 8}) == "--width 8"
    assert train({"gradient_accumulation_steps": 1}) == ""
    assert train({"gradient_accumulation_steps": 2}) == "--gradient-accumulation-steps 2"
    assert train({"compile": True}) == "--compile"


def test_a_config_file_says_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"width": 64, "batch_size": 8, "gradient_accumulation_steps": 4}))
    options = {"width": 64, "batch_size": 2, "gradient_accumulation_steps": 1, "seed": 3}
    assert train(options, config_file=file) == (
        f"--config-file {file} --batch-size 2 --gradient-accumulation-steps 1 --seed 3"
    )


def test_a_tpu_is_trained_by_jax() -> None:
    line = commands({"compile": True}, is_tpu=True)[-1]
    assert "--compile" not in line
    assert line.endswith(
        "--max-iters 700 --backend jax --device tpu --memory 4GiB --model-name run"
    )


def test_the_gpus_memory_is_said_where_something_is_kept_out_of_it() -> None:
    vram = {"vram": "8GiB"}
    line = commands({"offload": "layers"}, **vram)[-1]  # type: ignore[arg-type]
    assert line.endswith("--offload layers --max-iters 700 --vram 8GiB --memory 4GiB "
                         "--model-name run")  # fmt: skip
    assert "--vram" not in commands({"offload": "none"}, **vram)[-1]  # type: ignore[arg-type]
    assert "--vram" not in commands({}, **vram)[-1]  # type: ignore[arg-type]
    assert "--vram" not in commands({"offload": "layers"})[-1]
