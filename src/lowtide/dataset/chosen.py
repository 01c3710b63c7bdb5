"""Find the inputs of a preparation, divide the budget for them, and drop identical files.

In:      PrepareSettings
Out:     FoundInputs with the shares of the budget; then the inputs to read, each content once
Memory:  the list of inputs
"""

from __future__ import annotations

from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.ranking import require_rereadable
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.usersteps import STEP_NOTICE
from lowtide.dataset.identity import drop_copies
from lowtide.dataset.resources import Inputs, Shares, plan_shares
from lowtide.dataset.rulesample import require_some_kept
from lowtide.dataset.settings import PrepareSettings
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass

__all__ = ["FoundInputs", "choose_inputs", "find_inputs"]


@dataclass(frozen=True)
class FoundInputs:
    """The inputs of the settings, and how the budget is divided for them."""

    inputs: InputList
    budget: MemoryBudget
    shares: Shares
    notices: list[str]


def find_inputs(settings: PrepareSettings) -> FoundInputs:
    """Find the inputs and divide the budget; raise errors for what cannot be prepared."""
    notices: list[str] = []
    inputs = expand_inputs(settings.input_files, on_notice=notices.append)
    if settings.keep_top is not None:
        require_rereadable(inputs)
    if settings.step:
        notices.append(STEP_NOTICE)
    needs = Inputs.of(inputs, settings)  # before the budget: its imports count as program
    budget = MemoryBudget.from_setting(settings.memory)
    return FoundInputs(inputs, budget, plan_shares(settings, budget, needs), notices)


def choose_inputs(
    found: FoundInputs, settings: PrepareSettings, progress: Progress
) -> tuple[InputList, ReadingSettings]:
    """The inputs to read, and how; rules that would remove everything are refused."""
    for notice in found.notices:
        progress.note(notice)
    reading = found.shares.reading(settings, found.budget.total_bytes)
    inputs = found.inputs
    if settings.dedup:
        inputs = drop_copies(inputs, reading, on_notice=progress.note)
    require_some_kept(settings, inputs, reading, on_notice=progress.note)
    return inputs, reading
