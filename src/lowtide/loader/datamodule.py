"""Both loaders as a data module, for Lightning's Trainer and compatible trainers.

In:      pre-tokenized files or a prepared dataset
Out:     train_dataloader, val_dataloader, and a state that resumes after any batch
Memory:  as the loaders: a few batches

Lightning's trainer calls hooks that only its own class has, so if Lightning is installed the
module is a LightningDataModule. Only this file imports Lightning, when LocalDataModule is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lowtide.loader.torchloaders import TokenDataLoader, create_dataloaders

__all__ = ["LocalDataModule"]

PathLike = str | os.PathLike[str]
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same library under two names


class _Hooks:
    """Hooks that trainers call besides the loaders; all do nothing."""

    def prepare_data(self) -> None:
        """Called once on each machine, before `setup`."""

    def teardown(self, stage: str) -> None:
        """Called at the end of a stage."""

    def on_exception(self, exception: BaseException) -> None:
        """Called when the trainer stops on an error."""


def _data_module_class() -> type[Any]:
    """Lightning's class, from a package that is already imported or can be; else our own."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).LightningDataModule
        except ImportError:
            continue
    return _Hooks


if TYPE_CHECKING:
    _Base = _Hooks
else:
    _Base = _data_module_class()


class LocalDataModule(_Base):
    """Both loaders with the interface of data modules; created once, at first use.

    With Lightning installed it is a LightningDataModule: `trainer.fit(model, datamodule=module)`.
    """

    def __init__(
        self, train_data_path: PathLike, val_data_path: PathLike | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._paths = (train_data_path, val_data_path)
        self._options = options
        self._loaders: tuple[TokenDataLoader, TokenDataLoader] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Open the data; raises errors for wrong paths and settings."""
        if self._loaders is None:
            self._loaders = create_dataloaders(*self._paths, **self._options)

    def _opened(self) -> tuple[TokenDataLoader, TokenDataLoader]:
        self.setup()
        assert self._loaders is not None
        return self._loaders

    def train_dataloader(self) -> TokenDataLoader:
        """The shuffled loader of the training tokens."""
        return self._opened()[0]

    def val_dataloader(self) -> TokenDataLoader:
        """The sequential loader of the validation tokens."""
        return self._opened()[1]

    def state_dict(self) -> dict[str, Any]:
        """The state of the training loader."""
        return self.train_dataloader().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume training where `state` was taken."""
        self.train_dataloader().load_state_dict(state)
