"""Choose the next token from logits: penalty, temperature, top-k, top-p, a seeded draw.

In:      logits [B, V], the ids so far [B, T]
Out:     ids [B]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowtide.generation.recentids import RecentIds
from lowtide.generation.settings import LARGEST_LOGIT, SamplingSettings
from lowtide.generation.textstreams import ends, not_text
from lowtide.tokenizer import Tokenizer

__all__ = ["TensorChooser", "choose_tokens", "continue_ids", "filter_logits"]


class TensorChooser:
    """Chooses the tokens of one text; the penalty is for its newest ids."""

    def __init__(
        self,
        ids: Sequence[int],
        size: int,
        seed: int | None,
        sampling: SamplingSettings,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        seen = torch.full((1, size), ids[0], dtype=torch.long, device=device)
        seen[0, : len(ids)] = torch.tensor(ids)
        self.recent = RecentIds(seen, count=len(ids))
        self._sampling, self._vocab_size = sampling, vocab_size
        self._generator = torch.Generator(device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def choose(self, logits: Tensor, banned: Sequence[int]) -> int:
        """The next token after logits [V]; never one of `banned`, nor one beyond the vocabulary."""
        token = choose_tokens(
            logits[None],
            self.recent.ids,
            self._sampling,
            vocab_size=self._vocab_size,
            banned=banned,
            generator=self._generator,
        )
        self.recent.add(token[0])
        return int(token)


def continue_ids(
    next_logits: Callable[[Tensor], Tensor | None],
    ids: Sequence[int],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    context: int,
    seed: int,
    device: torch.device,
) -> list[int]:
    """The ids after `ids`, for networks without a cache: all of the context is read for each.

    `next_logits` is called with ids [1, T]; a text ends if it returns None, or with end-of-text.
    """
    generator = torch.Generator(device).manual_seed(seed)
    new: list[int] = []
    for _ in range(max_new_tokens):
        seen = torch.tensor([[*ids, *new][-context:]], device=device)
        logits = next_logits(seen)
        if logits is None:
            break
        token = choose_tokens(
            logits,
            seen,
            SamplingSettings(),
            vocab_size=tokenizer.vocab_size,
            banned=not_text(tokenizer),
            generator=generator,
        )
        if int(token) in ends(tokenizer):
            break
        new.append(int(token))
    return new


def choose_tokens(
    logits: Tensor,
    seen: Tensor,
    settings: SamplingSettings,
    *,
    vocab_size: int,
    banned: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return one id per row, never one beyond the tokenizer's `vocab_size` nor one of `banned`."""
    # A model that diverged has NaN or infinite logits: then all such tokens are equally likely,
    # which is better than an error. A copy is made, because other rows may ban other tokens.
    logits = logits.float()[:, :vocab_size].nan_to_num().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    if banned:
        logits[:, list(banned)] = -torch.inf
    if settings.repetition_penalty != 1.0:
        logits = _penalize(logits, seen, settings.repetition_penalty)
    if settings.temperature < 1e-4:  # dividing by less would overflow
        return logits.argmax(dim=-1)
    logits = logits / settings.temperature
    places = None
    if 0 < settings.top_k < logits.shape[-1]:
        # Softmax and sorting of a large vocabulary would take longer than a small network does.
        logits, places = logits.topk(settings.top_k, dim=-1)
    shares = filter_logits(logits, settings).softmax(dim=-1)
    drawn = torch.multinomial(shares, 1, generator=generator)
    return (drawn if places is None else places.gather(-1, drawn)).squeeze(-1)


def _penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of `seen` ids (Keskar et al., 2019)."""
    seen = seen.clamp(max=logits.shape[-1] - 1)
    picked = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(picked > 0, picked / penalty, picked * penalty))


def filter_logits(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Logits with minus infinity for tokens that top-k and top-p exclude, never the likeliest."""
    if 0 < settings.top_k < logits.shape[-1]:
        smallest = logits.topk(settings.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if settings.top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=True)
        shares = ordered.softmax(dim=-1)
        left_out = shares.cumsum(dim=-1) - shares >= settings.top_p
        left_out[:, 0] = False
        logits = logits.masked_fill(left_out.scatter(-1, places, left_out), -torch.inf)
    return logits
