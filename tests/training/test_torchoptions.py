"""Options that only torch has, and those that JAX has too: every one is in one of two tables."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.flatsettings import setting_values
from lowtide.training.settings import train_settings
from lowtide.training.torchoptions import _TORCH_ONLY

# What each of them does with JAX is what it does with torch, or it is about data, files and steps,
# which both share. A new option belongs here, or into the table of what only torch has.
_BOTH = """
    dataset_dir cache_dir cache_size input_file train_data_path val_data_path dataset_id text_field
    split use_streaming shuffle_buffer_size max_examples vocab_size tokenization dtype val_fraction
    stride order check_data model_name checkpoints_dir init_from_model add_tokens resume overwrite
    target_params num_layers width num_heads num_kv_heads mlp_width tie_weights dropout seq_len
    max_iters epochs max_hours tokens_per_param batch_size gradient_accumulation_steps
    use_8bit_optimizer learning_rate schedule warmup final_learning_rate decay_fraction weight_decay
    cautious_decay embedding_rate embedding_decay beta1 beta2 momentum momentum_warmup zero_init
    first_embedding grad_clip max_bad_steps seed use_mixed_precision activation_checkpointing
    backend loss_chunk_tokens parallel num_workers memory eval_dataset_dir eval_interval eval_iters
    forgetting_tolerance stop_on_forgetting replay_dataset_dir replay_fraction save_interval
    keep_checkpoints save_in_background log_interval sample_tokens sample_prompt tensorboard wandb
    debug
"""
BOTH = set(_BOTH.split())
OFFLOADED = {"offload", "offload_dir"}  # refused with JAX by the other table

GIVEN: dict[str, dict[str, Any]] = {
    "layout": {"layout": "tide"},
    "compile": {"compile": True},
    "compile_whole": {"compile": True, "compile_whole": True},
    "attention": {"attention": "flash"},
    "float8_head": {"float8_head": True, "use_mixed_precision": True},
    "float8_blocks": {"float8_blocks": True, "use_mixed_precision": True},
    "precision": {"precision": "fp16", "use_mixed_precision": True},
    "device": {"device": "mps"},
    "slurm": {"slurm": True},
    "ahead_weight": {"ahead_weight": 0.1},
    "early_cap": {"early_cap": 15.0},
    "confidence": {"confidence": 0.9},
    "average_over": {"average_over": 0.1},
    "spelling_rate": {"spelling_rate": 0.5},
    "embedding_decay_to": {"embedding_decay_to": "first"},
    "decay_schedule": {"decay_schedule": "root"},
    "vram": {"vram": "8GiB"},
}


def test_every_option_is_in_a_table() -> None:
    named = BOTH | set(_TORCH_ONLY) | OFFLOADED
    assert named == set(setting_values(train_settings()))
    assert not BOTH & set(_TORCH_ONLY)


def test_every_row_of_the_table_is_tried() -> None:
    no_values = {name for name, refused in _TORCH_ONLY.items() if not refused}
    assert set(GIVEN) | no_values == set(_TORCH_ONLY)


@pytest.mark.parametrize("name", GIVEN)
def test_what_only_torch_has_is_refused_and_named(name: str) -> None:
    train_settings(**GIVEN[name])
    with pytest.raises(UsageError, match=f"{flag_name(name)}.*only torch has") as caught:
        train_settings(backend="jax", **GIVEN[name])
    step = caught.value.next_step or ""
    assert step.startswith("leave it out") and step.endswith(", or give --backend torch")
    assert f"--no-{name.replace('_', '-')}" in step or GIVEN[name][name] is not True


def test_several_are_named_at_once() -> None:
    with pytest.raises(UsageError, match="--compile, --vram 8GiB: only torch has them"):
        train_settings(backend="jax", compile=True, vram="8GiB")


def test_the_way_out_of_what_a_preset_gives_is_named() -> None:
    """`leave it out` is no answer to somebody who did not give it."""
    for options, flags in (
        ({"backend": "jax"}, "--no-compile --no-compile-whole --attention auto --no-float8-head"),
        ({"offload": "packed"}, "--no-compile-whole --attention auto --no-float8-head"),
    ):
        with pytest.raises(UsageError) as caught:
            train_settings(preset="h100", **options)
        assert f"leave it out ({flags} --no-float8-blocks" in str(caught.value)


@pytest.mark.parametrize("offload", ["auto", "packed"])
def test_jax_does_not_offload(offload: str) -> None:
    with pytest.raises(UsageError, match=f"--backend jax: not with --offload {offload}"):
        train_settings(backend="jax", offload=offload)
