"""What workers remove is theirs: inputs and outputs are never in the work folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.dataset.preparation import prepare_dataset
from lowtide.engine import storefolders
from lowtide.engine.records import Records
from lowtide.engine.separation import require_separate
from lowtide.errors import UsageError
from lowtide.stores import paths
from lowtide.stores.paths import StorePath
from lowtide.tokenizer.training import train_tokenizer

from ..stores.memorystore import MemoryStore

TEXT = "a few words to learn from, one after the other\n" * 30


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("work/out", True), ("work/new/*.txt", True), ("work/hash/a[1].txt", True),
        ("work", False), ("work.txt", False), ("./work/../work/a", True), ("works/a", False),
        ("link/a", True), ("work/../a", False), ("~/a", False), ("s3://bucket/work/a", False),
    ],
)  # fmt: skip
def test_paths_in_a_work_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("work").mkdir()
    Path("link").symlink_to("work")
    if not refused:
        assert require_separate(Path("work"), ["a.txt", path]) is None
        return
    with pytest.raises(UsageError, match="this is in the work folder work, whose contents are"):
        require_separate(Path("work"), ["a.txt", path])


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("s3://bucket/job/out", True), ("s3:/bucket/job/new/*.jsonl", True),
        ("s3://bucket/job", False), ("s3://bucket/jobs/a", False), ("bucket/job/out", False),
    ],
)  # fmt: skip
def test_objects_under_the_prefix_of_work_are_refused(path: str, refused: bool) -> None:
    work = StorePath("s3://bucket/job/")
    if not refused:
        assert require_separate(work, [path]) is None
        return
    with pytest.raises(UsageError, match="in the work folder s3://bucket/job,") as caught:
        require_separate(work, [path])
    assert str(caught.value.path).startswith("s3://bucket/job/")


@pytest.mark.parametrize("name", ["new/a.txt", "hash/a.txt", "scratch/old/a.txt", "leases", "out"])
def test_folders_of_our_names_with_files_of_others_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "work" / name
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    records = Records(tmp_path / "work")
    with pytest.raises(UsageError, match="is here, which no worker made"):
        records.refuse_strangers(["hash", "new"])


def test_what_slow_workers_leave_is_ours(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for name in (
        "hash/count", "hash/hash-0000012.done", "hash/hash-0000012.out", "new/train", "new/val",
        "leases/near-sign-0000001.lease", "failures/hash-0000001-2", "losses/hash-0000001-ab01",
        "scratch/0123456789abcdef", "near-sign/near-sign-0000001.out",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert records.refuse_strangers(["hash", "new", "near-sign"]) is None


@pytest.mark.parametrize(
    "key", ["out/a.txt", "out/mine/train/a.bin", "new/a.txt", "probe/1", "out"]
)
def test_prefixes_of_our_names_with_objects_of_others_are_refused(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    store = MemoryStore(**{f"job/{key}": b"text", "job/out/hash/hash-0000001-0ab1.out": b""})
    monkeypatch.setattr(storefolders, "open_store", lambda url: store)
    monkeypatch.setattr(paths, "open_store", lambda url: store)
    records = Records(StorePath("s3://bucket/job"))
    with pytest.raises(UsageError, match="is here, which no worker made"):
        records.refuse_strangers(["hash", "new"])
    del store.contents[f"job/{key}"]
    records.refuse_strangers(["hash", "new"])


def test_nothing_of_the_users_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = Path("work/new/a.txt")
    text.parent.mkdir(parents=True)
    text.write_text(TEXT)
    work = Path("work")
    for inputs, out in (("work/new", "data"), ("work/new/a.txt", "data"), ("work", "data")):
        with pytest.raises(UsageError):
            prepare_dataset(
                input_files=[inputs], out_dir=out, engine="files", work_dir=work,
                tokenization="char", memory="1GiB",
            )  # fmt: skip
        with pytest.raises(UsageError):
            train_tokenizer(
                input=[inputs], out_dir=Path(out), engine="files", work_dir=work, vocab_size=260
            )
    text.rename("a.txt")
    text.parent.rmdir()
    with pytest.raises(UsageError, match="in the work folder"):
        prepare_dataset(
            input_files=["a.txt"], out_dir="work/scratch", engine="files", work_dir=work,
            tokenization="char", memory="1GiB",
        )  # fmt: skip
    with pytest.raises(UsageError, match="in the work folder"):
        train_tokenizer(
            input=["a.txt"], out_dir=Path("work/learn"), engine="files", work_dir=work,
            vocab_size=260,
        )  # fmt: skip
    assert Path("a.txt").read_text() == TEXT and not list(work.iterdir())
