"""The same command again checks its result: no damaged dataset passes as finished."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide import append_to_dataset, prepare_dataset
from lowtide.dataset import existing, finished, layout
from lowtide.dataset.conversion import convert_dataset
from lowtide.errors import DataError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with appended text, its conversion, and the import of that."""
    root = tmp_path_factory.mktemp("made")
    items = root / "items.jsonl"
    write_corpus(root / "a.txt", make_documents(30))
    write_corpus(root / "b.txt", make_documents(20, seed=1))
    items.write_text('{"question": "' + " ".join(make_documents(1)[0].split()[:12]) + '"}\n')
    for verb in COMMANDS.values():
        run(verb, root)
    return root


def run(verb: Callable[[], bool], root: Path) -> bool:
    """Run a command in a folder, whose copies have the same relative names."""
    with contextlib.chdir(root):
        return verb()


def _prepare() -> bool:
    given = {"input_files": ["a.txt"], "tokenization": "char", "num_workers": 1}
    return prepare_dataset(**given, out_dir="data").was_there


def _judge() -> bool:
    given = {"input_files": ["a.txt"], "tokenization": "char", "num_workers": 1}
    items = {"near_dedup": 0.8, "decontaminate": ["items.jsonl"]}
    return prepare_dataset(**given, **items, out_dir="judged").was_there


def _append() -> bool:
    files = ["b.txt"]
    return append_to_dataset(dataset_dir="data", input_files=files, num_workers=1).was_there


def _convert() -> bool:
    return convert_dataset(in_path="data", out_path="ids", to="nanogpt").was_there


def _import() -> bool:
    tokenizer = "data"
    return convert_dataset(in_path="ids", out_path="back", tokenizer=tokenizer).was_there


COMMANDS: dict[str, Callable[[], bool]] = {
    "prepare": _prepare,
    "judge": _judge,
    "append": _append,
    "convert": _convert,
    "import": _import,
}


@pytest.mark.parametrize(
    ("folder", "verbs"),
    [("data", ["prepare", "append"]), ("judged", ["judge"]), ("back", ["import"])],
)
def test_a_dataset_that_is_not_whole_is_named(
    folder: str, verbs: list[str], made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)  # with their times
    assert all(run(COMMANDS[verb], tmp_path) for verb in verbs)
    root = tmp_path / folder
    own = {"metrics.jsonl", "dataset_metadata.json"}
    paths = [path for path in root.rglob("*") if path.is_file() and path.name not in own]
    assert {".bin", ".docs", ".json"} <= {path.suffix for path in paths}
    for path in paths:
        data = path.read_bytes()
        for damaged in (data[: len(data) // 2], None) if data else ():
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            for verb in verbs:
                with pytest.raises(DataError) as caught:
                    run(COMMANDS[verb], tmp_path)
                assert path.name in str(caught.value) and caught.value.next_step, (path, verb)
            path.write_bytes(data)
    assert all(run(COMMANDS[verb], tmp_path) for verb in verbs)


def test_workers_do_not_look_again_at_what_they_made(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of many would read the logs, and the size of every file."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    looks: list[Path] = []
    monkeypatch.setattr(existing, "require_whole", lambda info: looks.append(info.root))
    given = {"input_files": ["a.txt"], "tokenization": "char", "num_workers": 1}
    with contextlib.chdir(tmp_path):
        assert not prepare_dataset(**given, out_dir="shared", engine="files").was_there
        assert looks == []
        assert prepare_dataset(**given, out_dir="shared", engine="files").was_there
        assert looks == [Path("shared")]


def test_damaged_files_of_a_conversion_are_written_anew(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "ids" / "train.bin"
    whole = path.read_bytes()
    for damaged in (whole[:-2], whole[:50] + bytes([whole[50] ^ 8]) + whole[51:], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert not run(COMMANDS["convert"], tmp_path)
        assert path.read_bytes() == whole
        told = capsys.readouterr().err
        assert ("train.bin is damaged: it is written anew" in told) == (damaged is not None)
        assert run(COMMANDS["convert"], tmp_path)


def test_a_tokenizer_that_is_named_where_it_lies_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("out")
    assert existing.is_tokenizer_of("out", root)
    assert existing.is_tokenizer_of(str(tmp_path / "out" / "tokenizer.json"), root)
    for other in (None, "other", "out/other.json", "gpt2"):
        assert existing.is_tokenizer_of(other, root) is False


def test_a_tokenizer_that_is_not_the_one_of_the_ids_is_a_problem(made: Path) -> None:
    root = made / "data"
    metadata = layout.load_dataset_info(root).metadata
    assert finished.check_tokenizer(root, metadata) == []
    size, print_ = metadata["vocab_size"], metadata["tokenizer_fingerprint"]
    other = {**metadata, "vocab_size": size + 1, "tokenizer_fingerprint": "other"}
    assert finished.check_tokenizer(root, other) == [
        f"tokenizer.json: fingerprint {print_}, the ids were made with other",
        f"tokenizer.json: vocabulary {size}, dataset_metadata.json says {size + 1}",
    ]
