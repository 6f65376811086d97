"""Settings of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import option
from bertkit.settings.finetune import TableSettings

TASK_NAMES = ("classify", "pair", "regress", "tag")  # those for which there are contenders


@dataclass(frozen=True, kw_only=True)
class CompareSettings(TableSettings):
    """Options of `bertkit compare`."""

    task: str = option(
        help=f"One of {', '.join(TASK_NAMES)}, or search.", argument=True, choices=(*TASK_NAMES, "search")
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
