"""An existing dataset: accepted as the same, or rejected with the differences."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import appendable, existing
from lowtide.dataset.existing import PrepareResult, is_tokenizer_of, refuse_strangers, require_same
from lowtide.errors import DataError, UsageError


def settings_of(root: Path, **changes: Any) -> Any:
    usual = {"out_dir": root, "dedup": False, "input_files": ("a",), "tokenization": "gpt2"}
    return SimpleNamespace(**(usual | changes), memory=None)


@pytest.mark.parametrize(
    ("work", "has_append", "removed"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
@pytest.mark.parametrize("reading", [None, "reading"])
def test_the_same_dataset_is_looked_at_and_what_a_kill_left_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: bool, has_append: bool, removed: bool,
    reading: Any,
) -> None:  # fmt: skip
    calls: list[Any] = []
    info: Any = SimpleNamespace(metadata={"cleaning": {"c": 1}, "notices": ["n"]})
    monkeypatch.setattr(existing, "load_any_info", lambda root: info)
    monkeypatch.setattr(existing, "_find_difference", lambda *given: None)
    monkeypatch.setattr(existing, "require_whole", lambda info: calls.append("whole"))
    monkeypatch.setattr(existing, "has_plan", lambda root, *, verb: has_append and verb == "append")
    monkeypatch.setattr(existing, "remove_work", lambda root: calls.append("removed"))
    if work:
        (tmp_path / ".work").mkdir()
    found = require_same(settings_of(tmp_path), reading)
    assert found == PrepareResult(info, {"c": 1}, ["n"], 0.0, 0, 0, was_there=True)
    assert calls == [*(["whole"] if reading is None else []), *(["removed"] if removed else [])]
    monkeypatch.setattr(existing, "_find_difference", lambda *given: "it is another")
    with pytest.raises(UsageError, match="a finished dataset here already, and it is another"):
        require_same(settings_of(tmp_path), reading)


@pytest.mark.parametrize(
    ("metadata", "difference"),
    [
        ({}, "nothing says what it was made of"),
        ({"settings": {}}, "nothing says what it was made of"),
        ({"settings": "x", "sources": []}, "nothing says what it was made of"),
        ({"settings": {"seed": 2}, "sources": []}, "it was made with --seed 2, now it is 1"),
        ({"settings": {"seed": 1}, "sources": [1, 2]}, "rows [1, 2]"),
        (
            {"settings": {"seed": 1}, "sources": [1, 2, 3, 4],
             "appended": [{"input_files": ["x"]}, {"input_files": ["y", "z"]}]},
            "rows [1]",
        ),
    ],
)  # fmt: skip
def test_how_a_dataset_differs(
    monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], difference: str
) -> None:
    monkeypatch.setattr(existing, "plan_settings", lambda settings: {"seed": 1})
    monkeypatch.setattr(existing, "expand_inputs", lambda files: "all")
    monkeypatch.setattr(existing, "drop_copies", lambda inputs, reading, *, on_notice: "fewer")
    monkeypatch.setattr(
        existing, "find_other_source", lambda inputs, rows, reading: f"rows {rows}"
        if (inputs, reading) == ("fewer", "reading") else "other inputs"
    )  # fmt: skip
    reading: Any = "reading"
    settings = settings_of(Path("out"), dedup=True)
    assert existing._find_difference(settings, metadata, reading) == difference


def test_a_dry_run_has_no_dataset() -> None:
    with pytest.raises(UsageError, match="a dry run makes no dataset"):
        PrepareResult(None, {}, [], 0.0, 0, 0).info  # noqa: B018
    info: Any = "info"
    assert PrepareResult(info, {}, [], 0.0, 0, 0).info == "info"


def test_files_of_nobody_are_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    refuse_strangers(settings)
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(UsageError, match=r"tokenizer\.json is here already"):
        refuse_strangers(settings)
    refuse_strangers(settings_of(tmp_path, tokenization=str(tmp_path)))  # the tokenizer to be used
    refuse_strangers(settings_of(tmp_path, tokenization=str(tmp_path / "tokenizer.json")))
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "mine.bin").touch()
    with pytest.raises(UsageError, match=r"mine\.bin is here already, but no dataset"):
        refuse_strangers(settings)
    (tmp_path / ".work").mkdir()
    refuse_strangers(settings)  # of work that is resumed
    assert is_tokenizer_of(None, tmp_path) is False
    assert is_tokenizer_of("gpt2", tmp_path) is False


@pytest.mark.parametrize(
    ("events", "facts", "gone"),
    [
        (1, {"num_appended": 1}, True),  # it had not written its metadata
        (2, {"num_appended": 1}, False),
        (1, None, False),
    ],
)
def test_an_append_that_is_given_up_takes_its_shards_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int, facts: Any, gone: bool
) -> None:
    metadata = {"appended": [{}] * events, "seen": [{}, {}]}
    monkeypatch.setattr(appendable, "read_facts", lambda root, *, verb: facts)
    monkeypatch.setattr(appendable.layout, "read_metadata", lambda root: metadata)
    notes = tmp_path / ".work" / "shards"
    (tmp_path / "train").mkdir()
    notes.mkdir(parents=True)
    (notes / "0.shard").touch()
    header = {"file": "train/new.bin"}
    monkeypatch.setattr(appendable, "open_work_file", lambda note: SimpleNamespace(header=header))
    names = appendable.log_names(1 + events)
    made = [
        tmp_path / "train" / "new.bin", tmp_path / "train" / "new.docs",
        appendable.seen_path(tmp_path, 2), *(tmp_path / name for name in names),
    ]  # fmt: skip
    kept = [
        tmp_path / "train" / "mine.bin", appendable.seen_path(tmp_path, 1),
        *(tmp_path / name for name in appendable.log_names(events)),
    ]  # fmt: skip
    for path in (*made, *kept):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    appendable.give_up(tmp_path)
    assert [path.exists() for path in made] == [not gone] * len(made)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize(
    ("facts", "events", "half", "removed"),
    [
        ({"num_appended": 0}, 1, False, True), ({"num_appended": 1}, 1, False, False),
        (None, 1, False, False), (None, 1, True, True),
    ],
)  # fmt: skip
def test_work_of_an_append_that_is_over_is_removed(
    monkeypatch: pytest.MonkeyPatch, facts: Any, events: int, half: bool, removed: bool
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(appendable, "read_facts", lambda root, *, verb: facts)
    monkeypatch.setattr(
        appendable.layout, "read_metadata", lambda root: {"appended": [{}] * events}
    )
    monkeypatch.setattr(appendable, "is_half_removed", lambda root: half)
    monkeypatch.setattr(appendable, "remove_work", calls.append)
    appendable.finish_cleaning_up(Path("root"))
    assert calls == ([Path("root")] if removed else [])


@pytest.mark.parametrize(
    ("there", "sums", "expected"),
    [
        (True, {"stored": "x"}, "stored"),
        (True, {"stored": "y", "typed": "x"}, "typed"),
        (False, {"typed": "x"}, "typed"),
        (True, {"stored": "y", "typed": "y"}, "is there with other content"),
        (False, {"typed": "y"}, "is not there"),
        (False, None, "is not there"),
    ],
)
def test_items_are_found_where_they_were_or_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, sums: Any, expected: str
) -> None:
    stored = (str(tmp_path / "stored"),)
    if there:
        Path(stored[0]).touch()
    known = {"decontamination": {"files": stored}, "settings": {"decontaminate_checksum": "x"}}
    info: Any = SimpleNamespace(root=Path("root"), metadata=known)

    def find(names: Any) -> tuple[str, ...]:
        if sums is None:
            raise DataError("no such file")
        return ("typed",)

    monkeypatch.setattr(appendable, "find_item_files", find)
    monkeypatch.setattr(appendable, "checksum_items", lambda names: sums[Path(names[0]).name])
    if expected in ("stored", "typed"):
        found = appendable._find_items(info, ("name",))
        assert Path(found[0]).name == expected
    else:
        with pytest.raises(UsageError) as caught:
            appendable._find_items(info, ("name",))
        assert caught.value.message == (
            f"the dataset was made with --decontaminate name: {stored[0]} {expected}"
        )
    assert appendable._find_items(info, ()) == ()


@pytest.mark.parametrize("dedup", [True, False])
def test_new_inputs_are_numbered_after_the_old(
    monkeypatch: pytest.MonkeyPatch, dedup: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        appendable, "drop_copies", lambda inputs, reading, *, on_notice: f"{inputs} once"
    )
    monkeypatch.setattr(
        appendable, "drop_known",
        lambda inputs, rows, reading, *, first_index, on_notice: asked.append(
            (inputs, rows, first_index)
        ),
    )  # fmt: skip
    info: Any = SimpleNamespace(metadata={"sources": ["row"], "input_files": ["a", "b"]})
    given: Any = ("all", SimpleNamespace(dedup=dedup), "reading", lambda text: None)
    appendable.find_new(info, *given)
    appendable.find_new(SimpleNamespace(metadata={}), *given)  # type: ignore[arg-type]
    inputs = "all once" if dedup else "all"
    assert asked == [(inputs, ["row"], 2), (inputs, [], 0)]
