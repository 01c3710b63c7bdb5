"""The table of verbs: what runs each, and where its settings are.

In:      a verb's name and the words after it
Out:     its settings, and the Answer of its function, which cli prints

To add a verb: a function in textverbs.py or modelverbs.py that takes the verb's settings, imports
its stage inside itself (so that other verbs start fast), calls it and returns the result as an
Answer; the first line of its docstring is its line in `lowtide --help`, the other lines are
examples in its own help. Then a row in VERBS, in the order of the stages. Help for the flags comes
from the docstrings of the settings' fields.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lowtide import modelverbs, textverbs
from lowtide.answers import Answer, answer
from lowtide.arguments import parse_settings
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from lowtide.completion import CompletionSettings

__all__ = ["VERBS", "Verb"]


@dataclass(frozen=True)
class Verb:
    """One verb: what runs it, and where its settings are (`module:Class`, imported on use)."""

    run: Callable[[Any], Answer | None]
    settings: str

    @property
    def summary(self) -> str:
        """The first line of the function's docstring, without its full stop (empty under -OO)."""
        return (self.run.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @property
    def examples(self) -> list[str]:
        """The other lines of the docstring: example commands."""
        return [line.strip() for line in (self.run.__doc__ or "").splitlines()[1:] if line.strip()]

    def parse(self, name: str, words: list[str]) -> Any:
        """Parse the words after a verb's name into its settings."""
        return parse_settings(
            self.settings_class(),
            words,
            program=f"lowtide {name}",
            summary=self.summary,
            examples=self.examples,
        )

    def settings_class(self) -> type[Any]:
        """The class of the verb's settings."""
        module_name, class_name = self.settings.split(":")
        return getattr(importlib.import_module(module_name), class_name)


def _completion(settings: CompletionSettings) -> Answer:
    """Print a script that lets a shell complete verbs and flags.

    lowtide completion bash
    """
    from lowtide.completion import shell_completion

    script = shell_completion(settings)
    return answer(script, shell=settings.shell, script=script)


VERBS: dict[str, Verb] = {
    "train-tokenizer": Verb(
        textverbs.run_train_tokenizer, "lowtide.tokenizer.settings:TokenizerTrainingSettings"
    ),
    "compare-memory": Verb(
        modelverbs.run_compare_memory, "lowtide.planning.comparison:CompareSettings"
    ),
    "train-classifier": Verb(
        textverbs.run_train_classifier, "lowtide.classifier.settings:ClassifierSettings"
    ),
    "prepare": Verb(textverbs.run_prepare, "lowtide.dataset.settings:PrepareSettings"),
    "pretokenize": Verb(textverbs.run_pretokenize, "lowtide.dataset.settings:PretokenizeSettings"),
    "append": Verb(textverbs.run_append, "lowtide.dataset.settings:AppendSettings"),
    "verify": Verb(textverbs.run_verify, "lowtide.dataset.settings:VerifySettings"),
    "inspect": Verb(textverbs.run_inspect, "lowtide.dataset.settings:InspectSettings"),
    "convert": Verb(textverbs.run_convert, "lowtide.dataset.settings:ConvertSettings"),
    "plan": Verb(modelverbs.run_plan, "lowtide.planning.settings:PlanSettings"),
    "train": Verb(modelverbs.run_train, "lowtide.training.settings:TrainSettings"),
    "evaluate": Verb(modelverbs.run_evaluate, "lowtide.training.settings:EvaluateSettings"),
    "generate": Verb(modelverbs.run_generate, "lowtide.generation.settings:GenerateSettings"),
    "export": Verb(modelverbs.run_export, "lowtide.model.export:ExportSettings"),
    "report": Verb(modelverbs.run_report, "lowtide.reporting.settings:ReportSettings"),
    "demo": Verb(modelverbs.run_demo, "lowtide.demo.stages:DemoSettings"),
    "completion": Verb(_completion, "lowtide.completion:CompletionSettings"),
}
