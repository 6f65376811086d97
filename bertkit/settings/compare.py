"""Every number of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option

TASK_NAMES = ("classify", "pair", "regress", "tag")  # those for which there are contenders


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Common):
    """What `compare` needs."""

    task: str = option(help=f"One of {', '.join(TASK_NAMES)}.", argument=True, choices=TASK_NAMES)
    train: Path = option(help="Labelled rows to learn from.")
    dev: Path | None = option(None, "Labelled rows to score on; without it a fifth of --train is held out.")
    test: Path | None = option(None, "Labelled rows to score on instead; --dev then only chooses.")
    out: Path = option(Path("runs/compare"), "Where the report, the figures and every model go.")
    contenders: str = option("", "Which ones, with commas; without it all that fit.")
    models: str = option("auto", "Encoders to fine-tune, with commas: names, folders; auto: as in finetune.")
    vectors: Path | None = option(None, "Word vectors made elsewhere (word2vec's formats) instead of own ones.")
    lm: Path | None = option(None, "A language model for ULMFiT and its kin (bertkit learn lstm).")
    elmo: Path | None = option(None, "An ELMo (bertkit learn elmo).")
    gpt: str = option("", "A causal model to fine-tune (bertkit pretrain --preset gpt-mini).")
    minutes: float = option(10.0, "Time for all of it, cheapest first; 0: no limit.", at_least=0)
    seeds: int = option(1, "Train each contender this many times.", at_least=1)
    curve: bool = option(True, "Learn from a quarter and a half of the rows too.")
    rows: int = option(0, "At most this many training rows; 0: all.", at_least=0)
    max_test_rows: int = option(0, "Score at most this many rows; 0: all.", at_least=0, aliases=("--judged",))
    text: str = option("text", "Name (or number) of the text column.")
    text_b: str = option("text_b", "Name (or number) of the second text's column.")
    label: str = option("label", "Name (or number) of the label column.")
    encoding: str = option("utf-8", "Encoding of the files.")
    lang: str = option("en", "Language of the report.", choices=("en", "zh"))
