"""`lowtide generate`: prompts and their continuations, computed by native code, torch or JAX.

In:      GenerateSettings
Out:     pieces of text to print
Memory:  the network (in native code with little memory its tables and one layer), a cache of keys
         and values, finished texts that are printed after an earlier one

No backend is imported here: only the one in use has to be installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lowtide.counts import counted
from lowtide.errors import BudgetError
from lowtide.generation.heldtexts import HeldTexts
from lowtide.generation.prompts import Prompt, count_prompts, iter_prompts, longest_prompt
from lowtide.generation.settings import GenerateSettings, WritingSettings
from lowtide.generation.textstreams import note_unknown
from lowtide.keywords import takes_keywords
from lowtide.model.companions import companions_dir, require_vocabulary
from lowtide.model.config import GPTConfig, find_model_dir, find_weights_dir, load_config
from lowtide.model.decoderweights import held_bytes, load_decoder_in_turns, turns_bytes
from lowtide.model.inference import budget_of, fit_context, fit_rows
from lowtide.model.networks import Networks
from lowtide.model.program import Program, program_here
from lowtide.model.templates import begin_token, read_sections
from lowtide.packages import naming_missing_packages
from lowtide.progress import Phase, Progress, run_metrics_path
from lowtide.quickclasses import dataclass
from lowtide.standardstreams import is_terminal
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.needs import vocabulary_bytes
from lowtide.waiting import sleep_while_waiting

__all__ = ["Writer", "generate"]

_MODULES = {
    "native": "lowtide.generation.nativewriting",
    "torch": "lowtide.generation.decoding",
    "jax": "lowtide.jaxtraining.generation",
}


class Writer(Protocol):
    """The operations that a backend implements for this command."""

    networks: Networks

    @property
    def most_rows(self) -> int:
        """The most texts that it writes at once."""
        ...

    def stream(
        self, model: Any, tokenizer: Tokenizer, prompts: Iterable[Prompt], options: WritingSettings
    ) -> Iterator[tuple[int, str]]:
        """Yield (number of the text, piece); an empty piece follows the last one of each text."""
        ...


def _open_writer(settings: GenerateSettings) -> Writer:
    with naming_missing_packages("generating"):
        return importlib.import_module(_MODULES[settings.chosen_backend()]).WRITER


@takes_keywords(GenerateSettings)
def generate(settings: GenerateSettings) -> Iterator[str]:
    """Yield pieces of text to print: each prompt, then its continuation as it is generated."""
    sleep_while_waiting()
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    folder = find_weights_dir(run_dir, best=settings.best)
    writer = _open_writer(settings)
    place = writer.networks.open(settings.device)
    num_prompts = count_prompts(settings)
    # On a terminal the text itself shows the progress; a bar would be printed between its words.
    stream = None if is_terminal(sys.stdout) else "stderr"
    with Progress(
        "generate",
        budget_bytes=budget_of(settings.memory),
        metrics_path=run_metrics_path(run_dir),
        device_memory=writer.networks.device_memory(place),
        stream=stream,
    ) as progress:
        program = program_here(0, device=settings.device, backend=settings.chosen_backend())
        beside = companions_dir(folder)
        tokenizer = Tokenizer.load(beside)
        config = load_config(run_dir)
        require_vocabulary(tokenizer, config, folder)
        begin = begin_token(read_sections(tokenizer, beside))
        total = num_prompts * settings.num_samples
        room = _Room(config.context_length, min(settings.batch_size, total, writer.most_rows))
        if writer.networks.is_cpu(place):
            room = _fit_budget(settings, room, config, folder, program, progress)
        model = (
            load_decoder_in_turns(folder) if room.in_turns else writer.networks.load(folder, place)
        )
        with progress.phase("generate", total=total, unit="texts") as phase:
            pieces = writer.stream(
                model,
                tokenizer,
                _told(tokenizer, iter_prompts(settings)),
                WritingSettings(
                    context=room.context,
                    num_samples=settings.num_samples,
                    max_new_tokens=settings.max_new_tokens,
                    sampling=settings.sampling(),
                    stop=settings.stop,
                    seed=settings.seed,
                    begin=begin,
                    batch_size=max(1, room.rows),
                ),
            )
            yield from _in_order(pieces, iter_prompts(settings), settings.num_samples, phase)


@dataclass(frozen=True)
class _Room:
    """The tokens of a text, and the number of texts written at once."""

    context: int
    rows: int
    in_turns: bool = False
    """True if each layer is read when it is computed, because the budget does not hold all."""


def _fit_budget(
    settings: GenerateSettings,
    room: _Room,
    config: GPTConfig,
    folder: Path,
    program: Program,
    progress: Progress,
) -> _Room:
    """Reduce the room to what fits the budget of a CPU, and print what was reduced."""
    backend, budget = settings.chosen_backend(), progress.budget_bytes or 0
    tokens = min(room.context, longest_prompt(settings) + settings.max_new_tokens)
    options: dict[str, Any] = {"program": program, "backend": backend}
    options["tokenizer_bytes"] = vocabulary_bytes(companions_dir(folder))
    options["weight_bytes"] = held_bytes(folder, config) if backend == "native" else 0
    in_turns = False
    try:
        context = fit_context(config, budget, wanted=tokens, **options)
    except BudgetError:
        if backend != "native":
            raise
        options["weight_bytes"], in_turns = turns_bytes(folder, config), True
        context = fit_context(config, budget, wanted=tokens, **options)
        progress.note("the budget does not hold all weights: layers are read for every token")
    if context < room.context:
        progress.note(f"{context:,} tokens of {room.context:,} keep the budget")
    if room.rows <= 1:
        return _Room(context, room.rows, in_turns)
    options |= {"tokens": min(context, tokens), "is_running": True, "generates": True}
    rows = fit_rows(config, room.rows, budget, **options)
    if rows < room.rows:
        progress.note(f"the budget has room for {counted(rows, 'text')} at once")
    return _Room(context, rows, in_turns)


def _told(tokenizer: Tokenizer, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    for prompt in prompts:
        note_unknown(tokenizer, prompt)
        yield prompt


def _in_order(
    pieces: Iterator[tuple[int, str]], prompts: Iterator[Prompt], num_samples: int, phase: Phase
) -> Iterator[str]:
    """Yield prompts and texts in order; pieces of later texts are held until it is their turn."""
    over: set[int] = set()
    number = 0
    with HeldTexts() as held:
        for position, prompt in enumerate(prompts):
            for sample in range(num_samples):
                if num_samples > 1:
                    yield f"--- {position + 1}.{sample + 1}\n"
                yield from prompt.iter_text()
                yield from held.pop(number)
                while number not in over:
                    found, text = next(pieces)
                    if not text:
                        over.add(found)
                    elif found == number:
                        yield text
                    else:
                        held.add(found, text)
                over.remove(number)
                yield "\n"
                phase.advance()
                number += 1
