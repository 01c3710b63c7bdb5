"""The data module: under Lightning's trainer where it is installed, and by its hooks where not."""

import importlib
import sys
import types

import numpy as np
import pytest
import torch

from lowtide.loader import datamodule

OPTIONS = {"batch_size": 4, "max_length": 8, "num_workers": 0, "seed": 3}


@pytest.fixture
def train_path(tmp_path):
    np.save(tmp_path / "train.npy", (np.arange(2000) % 50).astype(np.uint16))
    return tmp_path / "train.npy"


@pytest.fixture
def with_lightning(monkeypatch):
    """A package that looks like Lightning, with the hooks its trainer calls."""
    calls = []

    class LightningDataModule:
        def __init__(self):
            self.trainer = None
            calls.append("init")

        def prepare_data(self):
            calls.append("prepare_data")

        def teardown(self, stage):
            calls.append(f"teardown {stage}")

        def on_exception(self, exception):
            calls.append("on_exception")

    package, module = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    module.LightningDataModule = LightningDataModule
    package.pytorch = module
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    importlib.reload(datamodule)
    yield LightningDataModule, calls
    monkeypatch.undo()
    importlib.reload(datamodule)


def test_with_lightning_it_is_one_of_its_modules(with_lightning, train_path):
    base, calls = with_lightning
    module = datamodule.LocalDataModule(train_path, **OPTIONS)
    assert isinstance(module, base)
    assert module.trainer is None
    module.prepare_data()
    module.setup("fit")
    inputs, _ = next(iter(module.train_dataloader()))
    module.on_exception(KeyboardInterrupt())
    module.teardown("fit")
    assert inputs.shape == (4, 8)
    assert calls == ["init", "prepare_data", "on_exception", "teardown fit"]


def test_without_lightning_the_hooks_are_there_too(monkeypatch, train_path):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    importlib.reload(datamodule)
    module = datamodule.LocalDataModule(train_path, **OPTIONS)
    module.prepare_data()
    module.setup("fit")
    module.on_exception(KeyboardInterrupt())
    module.teardown("fit")
    assert next(iter(module.val_dataloader()))[0].shape == (4, 8)
    monkeypatch.undo()
    importlib.reload(datamodule)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightnings_trainer_takes_it(train_path, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from lowtide.loader.torchloaders import LocalDataModule

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(50, 50)
            self.losses = []

        def training_step(self, batch, index):
            inputs, targets = batch
            loss = torch.nn.functional.cross_entropy(
                self.table(inputs).flatten(0, 1), targets.flatten()
            )
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.log("val", self.training_step(batch, index))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, limit_train_batches=20, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, datamodule=LocalDataModule(train_path, **OPTIONS))
    assert trainer.global_step == 20
    assert model.losses[-1] < model.losses[0]
