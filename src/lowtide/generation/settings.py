"""The settings of `lowtide generate`, and the presets; no torch here, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lowtide.gpus import has_accelerator
from lowtide.packages import choose_backend, first_missing
from lowtide.quickclasses import dataclass
from lowtide.settings import require

__all__ = [
    "BATCH_SIZE",
    "LARGEST_LOGIT",
    "MOST_TEXTS",
    "PRESETS",
    "WRITING_NAMES",
    "GenerateSettings",
    "SamplingSettings",
    "WritingSettings",
]

BATCH_SIZE = 8
"""Texts written at once: reading the weights takes longer than computing so many rows."""
MOST_TEXTS = 1024
LARGEST_LOGIT = 1e30
"""Larger logits are clipped to this, which stays finite with any temperature and penalty."""

WRITING_NAMES = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "preset", "stop"),
    *("seed", "batch_size"),
)
"""The settings that decide how text is written; the others name model, prompts and memory."""

Preset = Literal["default", "chat", "creative", "factual", "code", "deterministic"]


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen."""

    temperature: float = 0.8
    """0 takes the likeliest token; 1 samples from the model's probabilities; more: more random."""
    top_k: int = 50
    """Choose among the k likeliest tokens; 0 for all."""
    top_p: float = 0.95
    """Choose among the likeliest tokens that together have this probability; 1: all, 0: one."""
    repetition_penalty: float = 1.1
    """Make tokens that already occurred less likely; 1 for no penalty."""

    def __post_init__(self) -> None:
        warm = 0 <= self.temperature <= 1000
        require(warm, "temperature", self.temperature, "from 0 to 1,000")
        require(self.top_k >= 0, "top_k", self.top_k, "0 or more")
        require(0 <= self.top_p <= 1, "top_p", self.top_p, "from 0 to 1")
        penalty = self.repetition_penalty
        some = 0.001 <= penalty <= 1000
        require(some, "repetition_penalty", penalty, "from 0.001 to 1,000")


@dataclass(frozen=True)
class WritingSettings:
    """How a backend writes texts."""

    context: int
    """Tokens that the network reads; a longer text keeps the newer half when it is full."""
    num_samples: int = 1
    """Texts for each prompt."""
    max_new_tokens: int = 100
    sampling: SamplingSettings = SamplingSettings()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """Of the first sample of a prompt; further ones use seed + 1, seed + 2 and so on."""
    begin: int | None = None
    """The id before every prompt."""
    batch_size: int = BATCH_SIZE
    """Texts written at once."""


PRESETS: dict[str, SamplingSettings] = {
    "default": SamplingSettings(),
    "chat": SamplingSettings(0.7, 50, 0.9, 1.1),
    "creative": SamplingSettings(1.0, 0, 0.95, 1.05),
    "factual": SamplingSettings(0.3, 20, 0.8, 1.1),
    "code": SamplingSettings(0.2, 40, 0.9, 1.0),
    "deterministic": SamplingSettings(0.0, 0, 1.0, 1.0),
}


@dataclass(frozen=True)
class GenerateSettings:
    """Which model continues what, and how."""

    model_name: str
    """Run to use (its name or folder), or the folder of a published model."""
    prompt: str = ""
    """Text to continue."""
    prompt_file: Path | None = None
    """File with the prompt, of any size; with --each-line every line is a prompt."""
    each_line: bool = False
    """Continue every line of --prompt-file separately."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    best: bool = False
    """Use the run's best weights instead of the last."""
    max_new_tokens: int = 100
    """Tokens to generate; beyond the model's context, the context slides along."""
    preset: Preset = "default"
    """Values for the four flags below; each flag overrides its value."""
    temperature: float | None = None
    """0 takes the likeliest token; 1 samples from the model's probabilities (0.8)."""
    top_k: int | None = None
    """Choose among the k likeliest tokens; 0 for all (50)."""
    top_p: float | None = None
    """Choose among the likeliest tokens that together have this probability (0.95)."""
    repetition_penalty: float | None = None
    """Make tokens that already occurred less likely; 1 for no penalty (1.1)."""
    stop: tuple[str, ...] = ()
    """Stop at any of these texts; the end-of-text token always stops."""
    num_samples: int = 1
    """Continuations per prompt."""
    batch_size: int = BATCH_SIZE
    """Texts generated at once, fewer if the budget requires it; each comes out as it would
    alone."""
    seed: int | None = None
    """Random seed: the same seed gives the same text; random if not given. Further samples use
    seed + 1, seed + 2 and so on."""
    backend: Literal["auto", "native", "torch", "jax"] = "auto"
    """auto takes native code on a CPU, else torch, or jax if torch is not installed."""
    device: str = "auto"
    """cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto."""
    memory: str | None = None
    """Budget of resident memory, such as 2GiB; default: half of the available memory."""

    def __post_init__(self) -> None:
        require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1")
        require(self.seed is None or self.seed >= 0, "seed", self.seed, "0 or more")
        require(self.num_samples >= 1, "num_samples", self.num_samples, "at least 1")
        few = 1 <= self.batch_size <= MOST_TEXTS
        require(few, "batch_size", self.batch_size, f"from 1 to {MOST_TEXTS:,}")
        alone = not (self.prompt and self.prompt_file)
        require(alone, "prompt_file", str(self.prompt_file), "no --prompt beside it")
        require(self.prompt_file is not None or not self.each_line, "each_line", True,
                 "--prompt-file beside it")  # fmt: skip
        empty = "is a variable of the shell empty? the end-of-text token always stops"
        require(all(self.stop), "stop", "", "a text that is not empty", next_step=empty)
        self.sampling()

    def chosen_backend(self) -> str:
        """The requested backend; with auto the one that fits the device and is installed."""
        if self.backend == "native" or (
            self.backend == "auto" and (self.device == "cpu" or self._finds_cpu())
        ):
            return "native"
        return choose_backend(self.backend, "generating")

    def _finds_cpu(self) -> bool:
        """True if `auto` is the CPU: there is no GPU or TPU, or no package that could use it."""
        has_framework = None in (first_missing("torch"), first_missing("jax"))
        return self.device == "auto" and not (has_framework and has_accelerator())

    def sampling(self) -> SamplingSettings:
        """The preset's values, replaced by those that were given."""
        preset = PRESETS[self.preset]
        names = ("temperature", "top_k", "top_p", "repetition_penalty")
        given = {name: getattr(self, name) for name in names}
        return SamplingSettings(
            **{n: getattr(preset, n) if value is None else value for n, value in given.items()}
        )
