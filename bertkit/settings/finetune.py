"""Every number of a fine-tuning run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option

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
class FinetuneSettings(Common):
    """What `finetune` needs. Zero means: chosen by the data and the model, and told."""

    task: str = option(help=f"One of {', '.join(TASKS)}.", argument=True, choices=TASKS)
    train: Path = option(help="Labelled rows to learn from.")
    dev: Path | None = option(None, "Labelled rows to choose by; without it a tenth of --train is held out.")
    test: Path | None = option(None, "Labelled rows for one final evaluation.")
    model: str = option("auto", "Embedded name, folder, or hub name; auto: the embedded model of the texts' language.")
    out: Path = option(Path("runs/finetune"), "The run's folder.")
    text: str = option("text", "Name (or number) of the text column.")
    text_b: str = option("text_b", "Name (or number) of the second text's column.")
    label: str = option("label", "Name (or number) of the label column.")
    labels: str = option("", "All label names in order, with commas; without it those of --train, sorted.")
    encoding: str = option("utf-8", "Encoding of the files.")
    multi_label: bool = option(False, "A text may have several labels.")
    epochs: float = option(0.0, "Passes over the training rows.", at_least=0)
    steps: int = option(0, "Steps instead of passes.", at_least=0)
    minutes: float = option(0.0, "Time budget instead of passes; with --epochs, the most it may take.", at_least=0)
    batch: int = option(32, "Examples a step.", at_least=1)
    lr: float = option(0.0, "Peak learning rate.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Share of the steps in which the rate rises.", at_least=0, at_most=1)
    schedule: str = option("linear", "How the rate falls.", choices=("linear", "cosine", "trapezoid", "constant"))
    decay: float = option(0.01, "Weight decay.", at_least=0)
    clip: float = option(1.0, "Longest gradient.", at_least=0)
    dropout: float = option(
        -1.0, "Dropout in encoder and head; -1: as the model's config has it.", at_least=-1, at_most=0.99
    )
    layer_decay: float = option(1.0, "Each layer below learns at this share of the one above.", at_least=0, at_most=1)
    reinit: int = option(0, "Re-initialise this many top layers.", at_least=0)
    freeze: bool = option(False, "Train the head alone on frozen features.")
    class_weights: bool = option(False, "Rare labels weigh more (classify, pair, tag).")
    word: str = option("first", "Which of a word's pieces speak for it (tag).", choices=("first", "mean", "max"))
    crf: bool = option(False, "Choose the tags of a sentence together, by which tag follows which (tag).")
    teacher: str = option("", "A model whose sentence vectors are learnt, from texts without labels (embed).")
    language: float = option(
        0.0, "With a causal model: weight of guessing each next piece too; GPT took 0.5.", at_least=0
    )
    merge: str = option("", "How windows of a long text agree.", choices=("", "max", "mean"))
    max_tokens: int = option(0, "Window size; 0: what the model sees, at most 512.", at_least=0)
    on_long: str = option("window", "Longer texts: windows, cut, or refuse.", choices=("window", "truncate", "error"))
    overlap: int = option(64, "Tokens that neighbouring windows share.", at_least=0)
    evals: int = option(0, "Evaluations a run; 0: once a pass, at least 5 and at most 20.", at_least=0)
    patience: int = option(0, "Stop after this many evaluations without a better score; 0: never.", at_least=0)
    held_out: float = option(0.1, "Share of --train held out when there is no --dev.", at_least=0, at_most=0.5)
    split_seed: int = option(
        -1, "Seed of which rows are held out, the same for all --seeds; -1: as --seed.", at_least=-1, at_most=2**32 - 1
    )
    seeds: int = option(1, "Train this many times with different seeds and tell mean and spread.", at_least=1)
    folds: int = option(
        0, "Cross-validate over this many parts instead of one split; finds suspicious labels.", at_least=0
    )
    search: bool = option(False, "Search learning rate, batch and layer decay within --minutes.")
    abstain: float = option(
        0.0, "Choose the score below which to abstain so that this accuracy is kept.", at_least=0, at_most=1
    )
    resume: bool = option(False, "Continue the run in --out.")
    allow_changed_settings: bool = option(
        False, "Resume with other settings than the run was begun with.", aliases=("--other-settings",)
    )
    overwrite: bool = option(False, "Replace the finished or begun run in --out.")
    save_minutes: float = option(5.0, "Save at least this often.", at_least=0)
    lang: str = option("en", "Language of the report.", choices=("en", "zh"))
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", hidden=True, at_least=1)
