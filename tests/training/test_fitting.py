"""What a device holds is asked only where a limit is known."""

from __future__ import annotations

import types

from lowtide.model.moduleconfig import ModuleConfig
from lowtide.training.fitting import rows_on_device
from lowtide.training.settings import train_settings


def test_a_device_without_a_limit_takes_any_rows(make_trainer):
    trainer = make_trainer(batch_size=8)
    settings = trainer.settings
    assert rows_on_device(trainer.model, settings, on_cpu=True, host_bytes=1) is None
    assert rows_on_device(trainer.model, settings, on_cpu=False, host_bytes=1) is None
    limited = train_settings(vram="800MiB", batch_size=8, seq_len=16)
    rows = rows_on_device(trainer.model, limited, on_cpu=False, host_bytes=1)
    assert rows is not None and rows <= 8
    module = types.SimpleNamespace(config=ModuleConfig("Net", 9, 16, 10, 10, 2))
    assert rows_on_device(module, limited, on_cpu=False, host_bytes=1) is None
