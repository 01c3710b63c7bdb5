"""Workers agree on a plan, also while another one ends the work and removes its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lowtide import files
from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.engine.plans import commit_plan, read_plan
from lowtide.engine.records import PLAN_NAME, Records
from lowtide.errors import LowtideError, UsageError

PLAN = {"verb": "prepare", "version": "1", "settings": {"seed": 1}}
KEPT = {**PLAN, "output_format": OUTPUT_FORMAT}


def test_the_first_plan_is_kept_and_another_one_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path / "work")
    commit_plan(PLAN, records)
    commit_plan(PLAN, records)
    assert read_plan(records) == KEPT
    with pytest.raises(UsageError, match="another plan"):
        commit_plan({**PLAN, "version": "2"}, records)


@pytest.mark.parametrize("before", [PLAN, {**PLAN, "output_format": "LTTASK00"}])
def test_work_with_files_of_another_format_is_refused_as_such(
    tmp_path: Path, before: dict[str, object]
) -> None:
    """Earlier versions said nothing of the format; their files are whole, but not of use."""
    records = Records(tmp_path / "work")
    records.create(PLAN_NAME, files.json_bytes(before))
    with pytest.raises(UsageError, match="begun by another version") as caught:
        commit_plan(PLAN, records)
    assert "remove this folder" in str(caught.value.next_step)


class _Leaving(Records):
    """A folder that another worker removes a number of times, just after a look at it."""

    times = 0

    def create(self, name: str, data: bytes) -> bool:
        if self.times == 0:
            return super().create(name, data)
        self.times -= 1
        super().create(name, data)
        shutil.rmtree(self.folder)
        return False


def test_a_folder_that_goes_in_between_is_made_anew(tmp_path: Path) -> None:
    records = _Leaving(tmp_path / "work")
    records.times = 3
    commit_plan(PLAN, records)
    assert read_plan(records) == KEPT


def test_a_folder_that_never_stays_is_an_error(tmp_path: Path) -> None:
    records = _Leaving(tmp_path / "work")
    records.times = 1000
    with pytest.raises(LowtideError, match="was removed again and again"):
        commit_plan(PLAN, records)
