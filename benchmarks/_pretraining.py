"""Contestants of the pretraining benchmark: each trains a BERT on masked words and next sentences, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import made_up_lines, made_up_words

DROPOUT = 0.1
HIDDEN = 0.15
RATE = 1e-4
BASELINE = "transformers"


@dataclass(frozen=True)
class Case:
    """A model and its batch. steps: in one turn."""

    size: str
    depth: int
    width: int
    heads: int
    length: int
    batch: int
    rounds: int
    steps: int = 1
    vocabulary: int = 30522

    @property
    def name(self) -> str:
        return f"{self.size} {self.depth}×{self.width}, length {self.length}, batch {self.batch}"

    def flops(self, tokens: int, squares: int, places: int, texts: int) -> float:
        """What a step needs: 6 a weight and token (2 forward, 4 backward), for each weight the tokens that meet it.

        Every token meets the layers (12 width² each), hidden ones the word head (width² + width × vocabulary),
        one a text the summary (width²). Attention: two products of length × length × width a text and layer.
        squares: the sum of squared lengths.
        """
        layers = self.depth * 12 * self.width**2 * tokens
        attention = self.depth * 2 * self.width * squares
        head = (self.width**2 + self.width * self.vocabulary) * places
        return 6.0 * (layers + attention + head + self.width**2 * texts)


@dataclass
class Turn:
    """Steps taken: tokens that were trained on, seconds, and the floating-point operations they needed."""

    tokens: int
    seconds: float
    flops: float


Steps = Callable[[int], Turn]


def make_store(folder: Path, vocabulary: int, documents: int) -> None:
    """A store of made-up text, and the vocabulary of exactly so many pieces that it is cut with."""
    from bertkit.data.prepare.run import prepare
    from bertkit.text.tokenizer import Tokenizer

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = made_up_words(vocabulary - len(specials))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join([*specials, *words]) + "\n", "utf-8")
    # Short sentences fill their examples well, so that lengths are about those of the rival's full rows.
    lines = made_up_lines(words, documents * 120, length=6)
    texts = [" ".join(line.capitalize() for line in lines[n * 120 : (n + 1) * 120]) for n in range(documents)]
    (folder / "text.txt").write_text("\n\n".join(texts), "utf-8")
    prepare([folder / "text.txt"], Tokenizer.load(folder / "tokenizer"), folder / "store", workers=1)


def open_bertkit(case: Case, folder: Path, threads: int, precision: str) -> Steps:
    """bertkit's own loop; its data is made while it runs."""
    import numpy as np
    import torch

    from bertkit import machine
    from bertkit.data.feed import PretrainingFeed, phases
    from bertkit.data.store import Store
    from bertkit.model.heads import Model
    from bertkit.model.inference import choose
    from bertkit.objectives.masked import Masked
    from bertkit.settings.model import Config
    from bertkit.settings.training import LoopSettings, MaskSettings
    from bertkit.training.loop import Training

    machine.set_up(threads)
    torch.manual_seed(0)
    store = Store.open(folder / "store")
    config = Config(
        vocabulary=-(-case.vocabulary // 64) * 64, width=case.width, depth=case.depth, heads=case.heads,
        inner=4 * case.width, dropout=DROPOUT, attention_dropout=DROPOUT,
    )  # fmt: skip
    objective = Masked(Model(config, {"mlm": 0, "next_sentence": 2}))
    objective.set_precision(choose(precision))
    forever = 1_000_000
    feed = PretrainingFeed(
        store, np.arange(store.documents), packing="next-sentence", masking=MaskSettings(rate=HIDDEN), seed=0,
        plan=phases(forever, ((1.0, case.length),), case.batch * case.length),
    )  # fmt: skip
    needed: list[float] = []

    def counted(step: int) -> list[Any]:
        batches = PretrainingFeed.step(feed, step)
        squares = sum(length**2 for batch in batches for length in batch.lengths)
        places = sum(len(batch.extra["places"]) for batch in batches)
        texts = sum(batch.texts for batch in batches)
        needed.append(case.flops(sum(batch.tokens for batch in batches), squares, places, texts))
        return batches

    feed.step = counted  # type: ignore[method-assign]
    steps = iter(Training(objective, feed, forever, LoopSettings(lr=RATE, warmup=0.0)))

    def turn(count: int) -> Turn:
        first = len(needed) - 1 if needed else 0  # one step is always made ahead
        start = time.perf_counter()
        tokens = sum(next(steps).tokens for _ in range(count))
        return Turn(tokens, time.perf_counter() - start, sum(needed[first : first + count]))

    turn(4)  # its steps differ in shape, and the kernels of each shape are made once a run
    return turn


def open_transformers(case: Case, folder: Path, threads: int, bf16: bool) -> Steps:
    """BertForPreTraining in the usual loop: full rows ready in memory, logits everywhere, AdamW, clipping."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=case.vocabulary, hidden_size=case.width, num_hidden_layers=case.depth,
        num_attention_heads=case.heads, intermediate_size=4 * case.width, hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )  # fmt: skip
    config._attn_implementation = "sdpa"  # its default, written out
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    ready = iter(_rows(case))

    def step() -> int:
        given = next(ready)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return given["input_ids"].numel()

    places = round(HIDDEN * case.batch * case.length)
    once = case.flops(case.batch * case.length, case.batch * case.length**2, places, case.batch)

    def turn(count: int) -> Turn:
        start = time.perf_counter()
        tokens = sum(step() for _ in range(count))
        return Turn(tokens, time.perf_counter() - start, once * count)

    return turn


def _rows(case: Case, different: int = 8) -> Iterator[dict[str, Any]]:
    """Full rows of random pieces with 15 in 100 hidden, without end."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (case.batch, case.length)
    made = []
    for _ in range(different):
        ids = torch.randint(6, case.vocabulary, shape, generator=generator)
        hidden = torch.rand(shape, generator=generator) < HIDDEN
        segments = (torch.arange(case.length) >= case.length // 2).long().expand(shape)
        made.append(
            {
                "input_ids": torch.where(hidden, 4, ids), "token_type_ids": segments,
                "attention_mask": torch.ones(shape, dtype=torch.long), "labels": torch.where(hidden, ids, -100),
                "next_sentence_label": torch.randint(0, 2, (case.batch,), generator=generator),
            }
        )  # fmt: skip
    while True:
        yield from made


def open_peak(case: Case, folder: Path, threads: int) -> Callable[[int], float]:
    """The fastest product of this machine, as floating-point operations a second: a linear layer 4096×768×3072."""
    import torch

    torch.set_num_threads(threads)
    pairs = [
        (torch.randn(4096, 768).to(kind), torch.randn(3072, 768).to(kind)) for kind in (torch.bfloat16, torch.float32)
    ]

    def best(repeats: int = 3) -> float:
        fastest = 0.0
        for x, weight in pairs:
            for _ in range(repeats):
                start = time.perf_counter()
                torch.nn.functional.linear(x, weight)
                fastest = max(fastest, 2 * 4096 * 768 * 3072 / (time.perf_counter() - start))
        return fastest

    return best


def take(held: Callable[[int], Any], count: int) -> Any:
    """A worker's turn."""
    return held(count)


CONTESTANTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    BASELINE: (open_transformers, (False,)),
    "transformers bf16": (open_transformers, (True,)),
    "bertkit": (open_bertkit, ("auto",)),
    "bertkit fp32": (open_bertkit, ("fp32",)),
}
