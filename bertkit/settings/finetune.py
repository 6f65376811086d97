"""Settings of tables and labelled rows: columns, what all runs on labelled rows share, fine-tuning and compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option
from bertkit.settings.training import SCHEDULES, PassSettings


@dataclass(frozen=True, kw_only=True)
class TextSettings(Common):
    """Columns of a table with one text per row."""

    text: str = option("text", "Name (or number) of the text column.")
    encoding: str = option("utf-8", "Encoding of the files.")


@dataclass(frozen=True, kw_only=True)
class PairSettings(TextSettings):
    """Columns of a table whose rows may have two texts."""

    text_b: str = option("text_b", "Name (or number) of the second text's column.")


@dataclass(frozen=True, kw_only=True)
class TableSettings(PairSettings):
    """Columns of a table of labelled rows."""

    label: str = option("label", "Name (or number) of the label column.")
    label_separator: str = option(
        "", "Separator of the labels in one cell of a multi-label file; by default , ; | and lists are recognised."
    )


TASKS: dict[str, tuple[str, str]] = {  # name → (module, class)
    "classify": ("bertkit.tasks.classify", "Classify"),
    "pair": ("bertkit.tasks.classify", "Pair"),
    "regress": ("bertkit.tasks.regress", "Regress"),
    "tag": ("bertkit.tasks.tag", "Tag"),
    "answer": ("bertkit.tasks.answer", "Answer"),
    "choose": ("bertkit.tasks.choose", "Choose"),
    "embed": ("bertkit.tasks.embed", "Embed"),
}


@dataclass(frozen=True, kw_only=True)
class SupervisedSettings(TableSettings, PassSettings):
    """Options of every run on labelled rows. Zero means: chosen from the data and the model, and reported."""

    task: str = option("", "What is learned from the rows.", hidden=True)
    train: Path = option(help="Training rows.")
    dev: Path | None = option(None, "Validation rows (default: a tenth of --train is held out).")
    test: Path | None = option(None, "Labelled rows for one final evaluation.")
    model: str = option("auto", "Embedded name, folder, or hub name; auto: the embedded model of the texts' language.")
    out: Path = option(Path("runs/finetune"), "The run folder.")
    batch: int = option(32, "Examples per step.", at_least=1)
    lr: float = option(0.0, "Peak learning rate.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Warm-up, as a fraction of all steps.", at_least=0, at_most=1)
    schedule: str = option("linear", "Learning-rate schedule.", choices=SCHEDULES)
    decay: float = option(0.01, "Weight decay.", at_least=0)
    clip: float = option(1.0, "Maximum gradient norm (0: no clipping).", at_least=0)
    dropout: float = option(
        -1.0, "Dropout in encoder and head; -1: as in the model's config.", at_least=-1, at_most=0.99
    )
    layer_decay: float = option(
        1.0, "Multiply the learning rate by this factor from each layer to the one below.", at_least=0, at_most=1
    )
    reinit: int = option(0, "Re-initialise this many top layers.", at_least=0)
    freeze: bool = option(False, "Train only the head, on frozen features.")
    max_tokens: int = option(0, "Window size; 0: the model's limit, at most 512.", at_least=0)
    on_long: str = option(
        "window", "Longer texts: read in windows, truncate, or refuse.", choices=("window", "truncate", "error")
    )
    overlap: int = option(64, "Tokens that neighbouring windows share.", at_least=0)
    evals: int = option(0, "Number of evaluations; 0: one per pass, at least 5 and at most 20.", at_least=0)
    patience: int = option(0, "Stop after this many evaluations without a better score; 0: never.", at_least=0)
    held_out: float = option(0.1, "Fraction of --train held out when there is no --dev.", at_least=0, at_most=0.5)
    split_seed: int = option(
        -1, "Seed of the held-out split, the same for all --seeds; -1: same as --seed.", at_least=-1, at_most=2**32 - 1
    )
    abstain: float = option(
        0.0, "Abstain below a score chosen so that the remaining answers reach this accuracy.", at_least=0, at_most=1
    )
    resume: bool = option(False, "Continue the run in --out.")
    allow_changed_settings: bool = option(
        False, "Resume with different settings from those the run started with.", aliases=("--other-settings",)
    )
    overwrite: bool = option(False, "Replace the finished or unfinished run in --out.")
    save_minutes: float = option(5.0, "Save at least this often.", at_least=0)
    lang: str = option("en", "Language of the report.", choices=("en", "zh"))
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", hidden=True, at_least=1)


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(SupervisedSettings):
    """Options of `bertkit finetune`."""

    task: str = option(help=f"One of {', '.join(TASKS)}.", argument=True, choices=TASKS)
    train: Path = option(help="Labelled training rows.")
    dev: Path | None = option(None, "Labelled validation rows (default: a tenth of --train is held out).")
    labels: str = option("", "All label names in order, comma-separated (default: those of --train, sorted).")
    multi_label: bool = option(False, "A text may have several labels: a|b, a;b or a,b in one cell, or a list.")
    class_weights: bool = option(False, "Give rare labels more weight (classify, pair, tag).")
    word: str = option("first", "How the pieces of a word are combined (tag).", choices=("first", "mean", "max"))
    crf: bool | None = option(
        None,
        "Choose the tags of a sentence jointly with a CRF (tag); default: where the tags are BIO, BMES or similar.",
    )
    teacher: str = option("", "A model whose sentence vectors are learned from unlabelled texts (embed).")
    rank: bool = option(
        False, "Learn to rerank passages of a search: pairs that belong together, or labels 0 and 1 (pair)."
    )
    symmetric: bool = option(
        False,
        "The texts of a pair have no order (paraphrase, similarity): read both ways, and average (pair, regress).",
    )
    negatives: Path | None = option(
        None, "An index: each pair also learns from the best-ranked wrong passage there (embed, pair --rank)."
    )
    matryoshka: str = option(
        "", "Also train the first numbers of each vector, comma-separated widths, e.g. 64,128 (embed)."
    )
    language: float = option(
        0.0, "With a causal model: weight of an extra language-modelling loss; GPT used 0.5.", at_least=0
    )
    merge: str = option("", "How the windows of a long text are combined.", choices=("", "max", "mean"))
    seeds: int = option(1, "Train this many times with different seeds and report mean and spread.", at_least=1)
    folds: int = option(0, "Also cross-validate over this many folds; finds suspicious labels.", at_least=0)
    baseline: bool = option(True, "Also score a cheap baseline on the same rows (all tasks but answer).")
    search: bool = option(False, "Search learning rate, batch and layer decay within --minutes.")


# ---- Those of compare.

COMPARED_TASKS = ("classify", "pair", "regress", "tag")  # those for which there are contenders


@dataclass(frozen=True, kw_only=True)
class CompareSettings(TableSettings):
    """Options of `bertkit compare`."""

    task: str = option(
        help=f"One of {', '.join(COMPARED_TASKS)}, or search.", argument=True, choices=(*COMPARED_TASKS, "search")
    )
    train: Path = option(help="Labelled training rows; for search, the documents.")
    dev: Path | None = option(None, "Labelled rows to score on (default: a fifth of --train is held out).")
    test: Path | None = option(
        None,
        "Labelled rows to score on instead; --dev is then used for model selection only. For search: the queries, with "
        "their relevant ids or texts.",
    )
    out: Path = option(Path("runs/compare"), "The output folder for the report, the figures and every model.")
    contenders: str = option("", "Contenders to run, comma-separated (default: all that fit the task).")
    models: str = option("auto", "Encoders to fine-tune, comma-separated names or folders; auto: as in finetune.")
    vectors: Path | None = option(
        None, "Existing word vectors (in word2vec's formats) to use instead of training new ones."
    )
    lm: Path | None = option(None, "A language model for ULMFiT and similar contenders (from `bertkit learn lstm`).")
    elmo: Path | None = option(None, "An ELMo model (from `bertkit learn elmo`).")
    gpt: str = option("", "A causal model to fine-tune (from `bertkit pretrain --preset gpt-mini`).")
    rerank: str = option("", "For search: models that reorder the best passages, comma-separated.")
    minutes: float = option(10.0, "Time budget for all contenders, cheapest first; 0: no limit.", at_least=0)
    seeds: int = option(1, "Train each contender this many times.", at_least=1)
    curve: bool = option(True, "Also train on a quarter and a half of the rows.")
    rows: int = option(0, "Maximum number of training rows; 0: all.", at_least=0)
    max_test_rows: int = option(0, "Maximum number of rows to score; 0: all.", at_least=0, aliases=("--judged",))
    lang: str = option("en", "Language of the report.", choices=("en", "zh"))
