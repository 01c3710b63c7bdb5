"""Both splits of a dataset in one object, and training by one call, as introductory guides do it.

In:      a GPTConfig, a Tokenizer, a dataset's folder
Out:     batches of either split; `model.fit(data_loader=…)`
Memory:  a batch; datasets are read window by window
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor

from lowtide.aliases import takes_second_names
from lowtide.errors import UsageError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.settings import require_counts
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.named import open_tokenizer
from lowtide.training.results import TrainResult, require_same_tokenizer
from lowtide.training.trainer import Trainer

if TYPE_CHECKING:
    from lowtide.keywordtypes import TrainKeywords

__all__ = ["GPTDataLoader", "fit"]


class GPTDataLoader:
    """The training and the validation split of a dataset; with `eval_only` the latter alone.

    `GPTDataLoader(config, tokenizer, dataset_dir="data/domain").get_batch("train")`
    """

    @takes_second_names
    def __init__(
        self,
        config: GPTConfig,
        tokenizer: Tokenizer | str | Path | None = None,
        *,
        dataset_dir: str | Path,
        eval_only: bool = False,
        batch_size: int = 32,
        seed: int = 1337,
    ) -> None:
        given: Any = config
        if not hasattr(given, "context_length"):
            raise UsageError(f"config is of type {type(given).__name__}, expected a GPTConfig")
        require_counts(batch_size=batch_size)
        require_counts(least=None, seed=seed)
        self.batch_size, self.seed = batch_size, seed
        length = config.context_length
        self.val = TokenDataset(dataset_dir, split="val", seq_len=length, eval_only=eval_only)
        self.train = None if eval_only else TokenDataset(dataset_dir, split="train", seq_len=length)
        has_own = (Path(dataset_dir) / TOKENIZER_NAME).is_file()
        named = tokenizer if tokenizer is not None or not has_own else dataset_dir
        self.tokenizer = None if named is None else open_tokenizer(named)
        if self.tokenizer is not None:
            require_same_tokenizer(self.val, self.tokenizer, "this loader")
        self._batches: dict[str, BatchLoader] = {}

    def get_batch(self, split: Literal["train", "val"] = "train") -> tuple[Tensor, Tensor]:
        """Return the next (inputs, targets) of a split, shuffled, without end."""
        if split not in ("train", "val"):
            raise UsageError(f"split is {split!r}, expected train or val")
        if split not in self._batches:
            dataset = self.train if split == "train" else self.val
            if dataset is None:
                raise UsageError("this loader is for evaluation only: it has no train split")
            self._batches[split] = BatchLoader(
                dataset, batch_size=self.batch_size, seed=self.seed, prefetch_batches=0
            )
        inputs, targets = next(self._batches[split])
        return torch.from_numpy(inputs).long(), torch.from_numpy(targets).long()


def fit(
    model: GPT,
    data_loader: Any,
    *,
    eval_data_loaders: Mapping[str, Any] | None = None,
    **options: Unpack[TrainKeywords],
) -> TrainResult:
    """Train `model` with a Trainer; a GPTDataLoader is replaced by the datasets it holds."""
    others = {
        name: other.val if isinstance(other, GPTDataLoader) else other
        for name, other in (eval_data_loaders or {}).items()
    }
    if not isinstance(data_loader, GPTDataLoader):
        return Trainer(model, data=data_loader, eval_data=others, **options).fit()
    if data_loader.train is None:
        raise UsageError("a loader for evaluation only has nothing to train on")
    options.setdefault("batch_size", data_loader.batch_size)
    options.setdefault("seed", data_loader.seed)
    return Trainer(
        model,
        data=data_loader.train,
        val_data=data_loader.val,
        eval_data=others,
        tokenizer=data_loader.tokenizer,
        **options,
    ).fit()
