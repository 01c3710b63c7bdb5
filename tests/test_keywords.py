"""Calls of public functions: with settings, with keywords, by position, silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import tyro

from lowtide.answers import is_quiet, shown_as
from lowtide.errors import UsageError
from lowtide.keywords import takes_keywords
from lowtide.progress import Progress


@dataclass(frozen=True)
class Settings:
    folder: Annotated[Path, tyro.conf.Positional]
    rows: int = 1


@takes_keywords(Settings)
def show(settings: Settings) -> tuple[Path, int, bool]:
    """Return what was given."""
    return settings.folder, settings.rows, is_quiet()


@takes_keywords(Settings)
def iterate(settings: Settings) -> Iterator[bool]:
    """Yield for every row whether it is quiet."""
    for _ in range(settings.rows):
        yield is_quiet()


def test_the_same_call_in_every_way(tmp_path: Path) -> None:
    wanted = (Path("a"), 2, False)
    (tmp_path / "c.json").write_text('{"rows": 2}')
    assert show(Settings(Path("a"), 2)) == wanted
    assert show("a", rows=2) == wanted
    assert show(folder="a", rows=2.0) == wanted
    assert show(None, folder="a", rows=2) == wanted
    assert show("a", config_file=tmp_path / "c.json") == wanted


def test_mistakes_in_calls() -> None:
    with pytest.raises(TypeError, match=r"show\(\) takes Settings or folder by position, and 2"):
        show("a", "b")
    with pytest.raises(TypeError, match="two values for 'folder'"):
        show("a", folder="b")
    with pytest.raises(UsageError, match="settings or keywords, not both"):
        show(Settings(Path("a")), rows=3)
    with pytest.raises(UsageError, match="did you mean rows"):
        show("a", row=3)
    with pytest.raises(UsageError, match="missing setting: folder"):
        show()


def test_progress_false_is_quiet_for_this_call_only() -> None:
    assert show("a", progress=False)[2] and not show("a")[2]
    with shown_as(as_json=False, quiet=True):
        assert show("a")[2]


def test_while_it_is_iterated_others_are_not_silenced() -> None:
    found = iterate("a", rows=2, progress=False)
    assert next(found) and not is_quiet() and next(found)
    assert list(found) == []
    assert list(iterate("a", rows=1)) == [False]


def test_a_mistake_is_refused_when_it_is_called_not_when_it_is_iterated() -> None:
    with pytest.raises(UsageError, match="missing"):
        iterate()


def test_the_peak_of_a_call_begins_with_it() -> None:
    """What is held before the first line of progress is a part of it."""

    @takes_keywords(Settings)
    def hold(settings: Settings) -> int:
        held = b"x" * (settings.rows << 20)
        del held
        with Progress("hold") as progress:
            return progress.peak_bytes

    little, much = (hold(Path("a"), rows=rows, progress=False) for rows in (1, 96))
    assert much - little > 64 << 20


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((Settings(Path("a")), 1), {}, "show takes settings or keywords, not both"),
        ((Settings(Path("a")),), {"rows": 2}, "show takes settings or keywords, not both"),
        ((None, 1), {}, "show takes settings or keywords, not both"),
        (("a", 2), {}, "show() takes Settings or folder by position, and 2 were given"),
        (("a",), {"folder": "b"}, "show() got two values for 'folder'"),
    ],
)
def test_mistakes_in_calls_word_by_word(given: Any, options: Any, message: str) -> None:
    with pytest.raises((UsageError, TypeError)) as caught:
        show(*given, **options)
    assert str(caught.value).splitlines()[0] == message


def test_none_stands_for_settings_with_keywords() -> None:
    assert show(None, folder="a", rows=3) == (Path("a"), 3, False)
    assert show("a") == (Path("a"), 1, False)
