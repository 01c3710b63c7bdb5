"""Before a run: what each stage needs, whether it fits, what to change, how long it takes.

data, model, machine --> needs (each stage's own planned_bytes) --> fits, or the nearest that does
                                                               \\-> commands to copy

No formula of a stage is repeated here, and torch is never imported; a trial of a few steps runs in
a process of its own.

The modules, in reading order:

request     settings, machine, plandata
search      plan, choices, needs, compute, speed, trial
result      summary, commands
comparison  comparison (lowtide compare-memory), picture
"""

from __future__ import annotations

from lowtide.planning.plan import Plan, make_plan
from lowtide.planning.settings import PlanSettings

__all__ = ["Plan", "PlanSettings", "make_plan"]
