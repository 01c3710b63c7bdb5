"""The guide's `mv`: shards moved into another dataset still name their origin."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.dataset import layout
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.conversion import convert_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.tokenfiles.shards import shard_name, shard_number
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, read_tokens, write_corpus

_TOKENS = 1500


def prepare(root: Path, seed: int, **options: Any) -> Path:
    text = write_corpus(root.with_name(f"{root.name}.txt"), make_documents(150, seed=seed))
    options = {"tokenization": "char", "tokens_per_shard": _TOKENS, **options}
    prepare_dataset(input_files=[text], out_dir=root, **options)
    return root


def move(source: Path, target: Path) -> None:
    """The guide's `mv source/SPLIT/*.bin target/SPLIT/`."""
    for split in layout.SPLITS:
        for path in sorted((source / split).glob("*.bin")):
            path.replace(target / split / path.name)


def count(root: Path) -> dict[str, int]:
    info = layout.load_dataset_info(root)
    return {split: info.num_tokens(split) for split in layout.SPLITS}


def use_old_names(root: Path) -> None:
    """Name a dataset's shards as earlier versions, and the guide, name them."""
    path = root / METADATA_NAME
    metadata = json.loads(path.read_text())
    for split, rows in metadata["shards"].items():
        for row in rows:
            number = shard_number(row["file"])
            assert number is not None
            name = shard_name(number)
            for suffix in (".bin", ".docs"):
                (root / row["file"]).with_suffix(suffix).rename(
                    (root / split / name).with_suffix(suffix)
                )
            row["file"] = f"{split}/{name}"
    path.write_text(json.dumps(metadata))


def test_no_shard_of_one_dataset_has_the_name_of_anothers(tmp_path: Path) -> None:
    first = prepare(tmp_path / "a", 0)
    second = prepare(tmp_path / "b", 1, tokenization=str(first))
    before = [count(first), count(second)]
    move(second, first)
    assert count(first) == {split: before[0][split] + before[1][split] for split in layout.SPLITS}
    assert layout.load_dataset_info(first).describe_moved_in() is None
    assert not verify_dataset(dataset_dir=first).problems


@pytest.mark.parametrize("with_ends", [True, False])
def test_text_is_added_to_a_dataset_with_moved_in_shards(tmp_path: Path, with_ends: bool) -> None:
    """append lists these shards in the metadata, without checksums: verify said that they differ
    from it, and the same append again that ends are missing which never were there."""
    first = prepare(tmp_path / "a", 0)
    second = prepare(tmp_path / "b", 1, tokenization=str(first))
    for path in second.rglob("*.docs") if with_ends else ():
        path.replace(first / path.relative_to(second))
    num_moved = len(list(second.rglob("*.bin")))
    move(second, first)
    more = write_corpus(tmp_path / "more.txt", make_documents(60, seed=2))
    assert append_to_dataset(dataset_dir=first, input_files=[more]).added_shards
    assert not append_to_dataset(dataset_dir=first, input_files=[more]).added_shards
    result = verify_dataset(dataset_dir=first)
    assert (result.problems, result.num_strangers, result.num_unnamed) == ([], num_moved, 0)
    moved = first / layout.load_dataset_info(first).moved_in[0]
    moved.write_bytes(b"\xff\xff" + moved.read_bytes()[2:])
    problems = verify_dataset(dataset_dir=first).problems
    assert any("vocabulary ends at" in problem for problem in problems)


def test_two_additions_to_copies_of_a_dataset_do_not_collide(tmp_path: Path) -> None:
    first = prepare(tmp_path / "a", 0)
    second = tmp_path / "b"
    shutil.copytree(first, second)
    for root, seed in ((first, 1), (second, 2)):
        more = write_corpus(tmp_path / f"{seed}.txt", make_documents(60, seed=seed))
        append_to_dataset(dataset_dir=root, input_files=[more])
    added = [{path.name for path in (root / "train").glob("*.bin")} for root in (first, second)]
    kept = added[0] & added[1]
    assert kept and added[0] - kept and added[1] - kept


def test_imports_do_not_collide(tmp_path: Path) -> None:
    names: list[set[str]] = []
    for seed in (0, 1):
        root = prepare(tmp_path / f"d{seed}", seed)
        flat, back = tmp_path / f"flat{seed}", tmp_path / f"back{seed}"
        convert_dataset(in_path=root, out_path=flat, to="nanogpt")
        convert_dataset(
            in_path=flat, out_path=back, source_kind="nanogpt", tokenizer=str(tmp_path / "d0")
        )
        names.append({path.name for path in back.rglob("*.bin")})
    assert names[0] and not names[0] & names[1]


def test_a_shard_of_another_tokenizer_is_refused_by_its_name(tmp_path: Path) -> None:
    first = prepare(tmp_path / "a", 0)
    text = write_corpus(tmp_path / "c.txt", ["abcdefgh " * 30])
    options: Any = {"tokenization": "char", "val_fraction": 0.0, "filter": False}
    prepare_dataset(input_files=[text], out_dir=tmp_path / "c", **options)
    move(tmp_path / "c", first)
    with pytest.raises(DataError, match="made with another tokenizer") as caught:
        layout.load_dataset_info(first)
    assert caught.value.path is not None and caught.value.next_step is not None
    problems = verify_dataset(dataset_dir=first).problems
    assert any("made with another tokenizer" in problem for problem in problems)


def test_a_shard_with_a_name_of_the_guide_is_used_with_a_notice(tmp_path: Path) -> None:
    first = prepare(tmp_path / "a", 0)
    second = prepare(tmp_path / "b", 1, tokenization=str(first))
    path = next((second / "train").glob("*.bin"))
    path.rename(first / "train" / "shard_00077.bin")
    info = layout.load_dataset_info(first)
    assert info.moved_in == ["train/shard_00077.bin"]
    assert "nothing says which tokenizer" in (info.describe_moved_in() or "")


def test_datasets_with_earlier_names_load_and_grow(tmp_path: Path) -> None:
    root = prepare(tmp_path / "a", 0)
    other = prepare(tmp_path / "b", 0)
    use_old_names(root)
    info = layout.load_dataset_info(root)
    assert info.fingerprint == layout.load_dataset_info(other).fingerprint, "a run can go on"
    assert not verify_dataset(dataset_dir=root).problems
    before = read_tokens(info, "train").tolist()
    more = write_corpus(tmp_path / "more.txt", make_documents(60, seed=5))
    result = append_to_dataset(dataset_dir=root, input_files=[more])
    assert result.added_shards and result.info.describe_moved_in() is None
    assert read_tokens(result.info, "train").tolist()[: len(before)] == before
    numbers = [shard_number(s.path) for rows in result.info.shards.values() for s in rows]
    assert sorted(n for n in numbers if n is not None) == list(range(len(numbers)))
    assert not verify_dataset(dataset_dir=root).problems


def test_names_depend_on_content_and_not_on_where_it_lies(tmp_path: Path) -> None:
    names: list[set[str]] = []
    for folder, processes in (("here", 1), ("there", 2)):
        (tmp_path / folder).mkdir()
        root = prepare(tmp_path / folder / "a", 0, processes=processes)
        names.append({str(path.relative_to(root)) for path in root.rglob("*.bin")})
    assert names[0] == names[1]
