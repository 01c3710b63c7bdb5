"""Models of lowtide in EleutherAI's evaluation suite, lm-evaluation-harness.

    python -m lowtide.lmeval run --model lowtide --model_args pretrained=checkpoints/mine --tasks …

In:      the suite's requests: texts to score, texts to continue
Out:     log-likelihoods as `evaluate --tasks` computes them, text as `generate` writes it
Memory:  the model, and as many rows at once as the budget holds (`memory=2GiB` among the
         arguments); what the suite loads besides is its own

Version 0.4.13 of the suite knows only its own models, so the launcher above registers lowtide's
and runs the suite's command.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lowtide.errors import LowtideError, warn
from lowtide.packages import import_package, require_package

if TYPE_CHECKING:
    from lowtide.model.gpt import GPT
    from lowtide.tokenizer import Tokenizer

__all__ = ["NAME", "Scorer", "main", "model_class"]

NAME = "lowtide"
_USUAL_ROWS = 8
_USUAL_TOKENS = 256  # of a text to generate, if the suite does not say


class Scorer:
    """A model that answers the requests of an evaluation suite; independent of the suite itself."""

    def __init__(
        self,
        pretrained: str,
        *,
        checkpoints_dir: str = "checkpoints",
        best: bool = False,
        device: str | None = None,
        batch_size: int | str = _USUAL_ROWS,
        memory: str | None = None,
        max_length: int | None = None,
    ) -> None:
        require_package("torch", "evaluating")
        from lowtide.model.companions import companions_dir, require_vocabulary
        from lowtide.model.config import find_model_dir, find_weights_dir, load_config
        from lowtide.model.devices import pick_device
        from lowtide.model.inference import budget_of, usual_tokens
        from lowtide.model.program import program_here
        from lowtide.model.weights import load_model
        from lowtide.tokenizer import Tokenizer
        from lowtide.tokenizer.needs import vocabulary_bytes

        run_dir = find_model_dir(pretrained, checkpoints_dir)
        folder = find_weights_dir(run_dir, best=best)
        self._program = program_here(0, device=device or "auto")  # without the tokenizer
        self._tokenizer_bytes = vocabulary_bytes(companions_dir(folder))
        self.tokenizer: Tokenizer = Tokenizer.load(companions_dir(folder))
        self.config = load_config(folder)
        require_vocabulary(self.tokenizer, self.config, folder)
        self.device = pick_device(device or "auto")
        context = self.config.context_length
        self.max_tokens = min(int(max_length or context), context)
        self.rows = int(batch_size) if str(batch_size).isdigit() else _USUAL_ROWS
        self._budget = budget_of(memory)
        self.fit(min(self.max_tokens, usual_tokens(self.config)))  # before anything is loaded
        self.model: GPT = load_model(folder, device=self.device)

    @property
    def prefix_id(self) -> int:
        """The id that is put before a text without a context."""
        return self.tokenizer.end_of_text_id or 0

    def fit(self, tokens: int, *, generates: bool = False) -> int:
        """Return how many rows of this many tokens are computed, or generated, at once."""
        from lowtide.generation.settings import MOST_TEXTS
        from lowtide.model.inference import fit_rows

        rows = min(self.rows, MOST_TEXTS) if generates else self.rows
        if self.device.type != "cpu":
            return rows
        return fit_rows(
            self.config,
            rows,
            self._budget,
            tokens=tokens,
            program=self._program,
            generates=generates,
            tokenizer_bytes=self._tokenizer_bytes,
        )

    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Return (log-likelihood, whether greedy) of each continuation after its context, in ids.

        A context that is too long is truncated at its beginning.
        """
        from lowtide.training.evaluation import score_rows
        from lowtide.training.likelihood import score_ids

        texts: list[tuple[list[int], int]] = []
        for context, continuation in pairs:
            ids = [*context, *continuation][-(self.max_tokens + 1) :]
            texts.append((ids, min(len(continuation), len(ids) - 1)))
        longest = max((len(ids) - 1 for ids, _ in texts), default=1)
        score = functools.partial(score_rows, self.model)
        scores = score_ids(score, texts, rows=self.fit(max(1, longest)))
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def write(self, prompts: Sequence[str], options: dict[str, Any]) -> list[str]:
        """Continue prompts, greedily unless the suite's options say otherwise."""
        from lowtide.generation.decoding import generate_text

        until = options.get("until") or []
        samples = bool(options.get("do_sample"))
        max_new_tokens = int(options.get("max_gen_toks", _USUAL_TOKENS))
        longest = max((len(prompt.encode("utf-8", "replace")) for prompt in prompts), default=0)
        tokens = min(self.config.context_length, longest + max_new_tokens)  # a byte each at most
        return generate_text(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=max_new_tokens,
            stop=tuple([until] if isinstance(until, str) else until),
            temperature=float(options.get("temperature", 1.0)) if samples else 0.0,
            top_k=int(options.get("top_k", 0)) if samples else 0,
            top_p=float(options.get("top_p", 1.0)) if samples else 1.0,
            repetition_penalty=1.0,
            batch_size=self.fit(max(1, tokens), generates=True),
            seed=0 if samples else None,
        )


@functools.cache
def model_class() -> type[Any]:
    """Create the suite's class for lowtide models, and register it as `lowtide`."""
    suite = import_package("lm_eval.api.model", "the evaluation suite")
    registry = import_package("lm_eval.api.registry", "the evaluation suite")
    utils = import_package("lm_eval.utils", "the evaluation suite")

    class LowtideLM(suite.TemplateLM):
        """Implements the suite's interface; all other methods are inherited."""

        def __init__(self, pretrained: str, **options: Any) -> None:
            super().__init__()
            known = ("checkpoints_dir", "best", "device", "batch_size", "memory", "max_length")
            given = {name: options[name] for name in known if options.get(name) is not None}
            self.scorer = Scorer(pretrained, **given)

        @property
        def eot_token_id(self) -> int:
            return self.scorer.prefix_id

        @property
        def max_length(self) -> int:
            return self.scorer.max_tokens

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
        ) -> list[int]:
            return self.scorer.tokenizer.encode(string, special="text").tolist()

        def _loglikelihood_tokens(
            self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
        ) -> list[tuple[float, bool]]:
            found = self.scorer.score([(context, rest) for _, context, rest in requests])
            for (texts, _, _), answer in zip(requests, found, strict=True):
                self.cache_hook.add_partial("loglikelihood", texts, answer)
            return found

        def loglikelihood_rolling(
            self, requests: list[Any], disable_tqdm: bool = False
        ) -> list[float]:
            return [self._score_whole(request.args[0]) for request in requests]

        def _score_whole(self, text: str) -> float:
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.eot_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [utils.make_disjoint_window(window) for window in windows]
            return sum(score for score, _ in self.scorer.score(pairs))

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return _in_groups([request.args for request in requests], self.scorer.write)

    return registry.register_model(NAME)(LowtideLM)


def _in_groups(
    requests: Iterable[tuple[str, dict[str, Any]]],
    write: Callable[[list[str], dict[str, Any]], list[str]],
) -> list[str]:
    """Generate together the texts that are requested with the same options."""
    texts: list[str] = []
    for _, group in itertools.groupby(requests, key=lambda request: sorted(request[1].items())):
        rows = list(group)
        texts += write([prompt for prompt, _ in rows], rows[0][1])
    return texts


def main() -> None:
    """Run the suite's own command with lowtide's models registered."""
    try:
        model_class()
        import_package("lm_eval.__main__", "the evaluation suite").cli_evaluate()
    except LowtideError as error:
        warn(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
