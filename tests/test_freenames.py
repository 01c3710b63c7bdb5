"""What somebody else has under the names of an output is refused, and left as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.errors import UsageError
from lowtide.freenames import require_free_names, require_own_file

TRAIN = "--target-params 10000 --seq-len 16 --batch-size 2 --max-iters 1 --memory 4GiB --quiet"
MODEL = ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")
CASES = [
    ("train-tokenizer --input a.txt --vocab-size 280 --out-dir mine", "vocab.json"),
    ("train-tokenizer --input a.txt --vocab-size 280 --out-dir mine", "merges.txt"),
    ("prepare --input-files a.txt --tokenization tok --out-dir mine", "tokenizer.json"),
    (
        "prepare --input-files a.txt --tokenization tok --out-dir mine --engine files",
        "tokenizer.json",
    ),
    (
        "prepare --input-files a.txt --tokenization tok --out-dir mine --engine files",
        ".work/plan.json",
    ),
    ("convert bin mine --from nanogpt --to lowtide --tokenizer tok", "tokenizer.json"),
    ("convert bin mine --from nanogpt --to lowtide --tokenizer tok", ".work/plan.json"),
    ("pretokenize a.txt --tokenization tok --out-path mine/a.npy", "a.tokenizer/tokenizer.json"),
    ("demo --text a.txt --out-dir mine", "commands.sh"),
    ("compare-memory --what loading --tokens 1000 --picture mine/a.svg", "a.svg"),
    (f"train --dataset-dir data --model-name mine --checkpoints-dir . --slurm {TRAIN}",
     "train.slurm"),
    *(
        (f"train --dataset-dir data --model-name mine --checkpoints-dir . {TRAIN}{more}", name)
        for name in (*MODEL, "settings.json", "best/model.safetensors")
        for more in ("", " --overwrite")
    ),
    (
        f"train --input-file a.txt --model-name mine --checkpoints-dir . {TRAIN}",
        "data/dataset_metadata.json",
    ),
    *(
        ("export --model-name run --out-dir mine", name)
        for name in (*MODEL, "model.safetensors.index.json", "export.json")
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a tokenizer, a dataset, files of another program, and a run."""
    folder = tmp_path_factory.mktemp("world")
    lines = [f"the tide of day {number} is low\n" for number in range(300)]
    (folder / "a.txt").write_text("<|endoftext|>".join(lines))
    before = Path.cwd()
    os.chdir(folder)
    try:
        for line in (
            "train-tokenizer --input a.txt --vocab-size 280 --out-dir tok",
            "prepare --input-files a.txt --tokenization tok --out-dir data",
            "convert data bin --to nanogpt",
            f"train --dataset-dir data --model-name run {TRAIN}",
        ):
            assert cli.main(line.split()) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize(("line", "name"), CASES)
def test_what_is_somebody_elses_is_refused_and_stays(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in world.iterdir():
        (tmp_path / path.name).symlink_to(path)
    taken = tmp_path / "mine" / name
    taken.parent.mkdir(parents=True)
    taken.write_text('{"mine": 1}')
    assert cli.main(line.split()) in (1, 2)
    said = capsys.readouterr().err
    assert "next: " in said and "unexpected" not in said
    assert taken.read_text() == '{"mine": 1}'
    there = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert [path for path in there if not path.name.endswith("metrics.jsonl")] == [taken]


def test_overwriting_removes_nothing_that_is_no_run(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "project" / "data" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    line = f"train --dataset-dir {world / 'data'} --model-name project --checkpoints-dir . {TRAIN}"
    assert cli.main([*line.split(), "--overwrite"]) == 0
    assert notes.read_text() == "mine"


def test_a_dataset_may_lie_in_the_folder_of_its_tokenizer(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"train-tokenizer --input {world / 'a.txt'} --vocab-size 280 --out-dir tok"
    assert cli.main(line.split()) == 0
    own = (tmp_path / "tok" / "tokenizer.json").read_bytes()
    line = f"prepare --input-files {world / 'a.txt'} --tokenization tok --out-dir tok"
    assert cli.main(line.split()) == 0
    assert (tmp_path / "tok" / "tokenizer.json").read_bytes() == own


@pytest.mark.parametrize(
    "line",
    [
        "prepare --input-files a.txt --tokenization tok --out-dir mine --engine files",
        "convert bin mine --from nanogpt --to lowtide --tokenizer tok",
    ],
)
def test_a_folder_that_a_full_disk_left_without_a_plan_is_nobodys_work(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in world.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "mine" / ".work").mkdir(parents=True)
    assert cli.main(line.split()) == 0


def test_a_script_that_was_edited_stays_and_the_same_one_is_no_error(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"train --dataset-dir {world / 'data'} --model-name run --slurm {TRAIN}".split()
    script = tmp_path / "checkpoints" / "run" / "train.slurm"
    assert cli.main(words) == 0
    assert cli.main(words) == 0
    edited = script.read_text().replace("#SBATCH", "#SBATCH --account=mine\n#SBATCH", 1)
    script.write_text(edited)
    assert cli.main(words) == 2
    assert script.read_text() == edited


def test_a_text_whose_npy_was_removed_is_tokenized_with_another_tokenizer(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer beside it is lowtide's: the record that stayed says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes((world / "a.txt").read_bytes())
    assert cli.main(f"pretokenize a.txt --tokenization {world / 'tok'}".split()) == 0
    (tmp_path / "a.npy").unlink()
    assert cli.main(["pretokenize", "a.txt", "--tokenization", "char"]) == 0


def test_links_that_lead_nowhere_are_taken_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("nothing")
    require_free_names(tmp_path, ["other.json"], next_step="")
    with pytest.raises(UsageError, match=r"config\.json is here already") as caught:
        require_free_names(tmp_path, ["other.json", "config.json"], next_step="name another one")
    assert caught.value.path == tmp_path / "config.json"
    assert caught.value.next_step == "name another one, or move this file away"


def test_a_file_of_ours_is_known_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    require_own_file(path, "ours", what="page", next_step="")
    path.write_text("this is ours")
    require_own_file(path, "ours", what="page", next_step="")
    path.write_text("x" * 1025 + "ours")
    with pytest.raises(UsageError, match="not a page of lowtide"):
        require_own_file(path, "ours", what="page", next_step="name another --out")
