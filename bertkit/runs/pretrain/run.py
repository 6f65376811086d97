"""A pretraining run from start (or resume) to the finished folder; its evaluation, and its cost beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit import machine
from bertkit.checkpoint import folder as model_folder
from bertkit.checkpoint.locate import content_of_model
from bertkit.data.batch import batches_by_tokens
from bertkit.data.feed import Phase, PretrainingFeed, collate
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.model.heads import Model
from bertkit.notify import language, note, short_count
from bertkit.runs.pretrain.build import Components, build, make_feed, plan_of
from bertkit.settings.model import Config
from bertkit.settings.pretrain import PretrainSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.training import distributed as worlds
from bertkit.training.distributed import World
from bertkit.training.loop import Training, Trial, try_out
from bertkit.training.metrics_log import read_metrics
from bertkit.training.optimizer import named
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Run a pretraining from its settings. Returns the final scores."""
    machine.limit_onednn_cache(machine.TRAINING_KERNELS)
    threads = machine.set_up(settings.threads)
    world = worlds.join(machine.device_for(settings.device))
    try:
        built = build(settings, world)
        run = RunFolder(settings.out, world, resume=settings.resume)
        with run, Signals() as signals:
            return _Run(built, run, signals, world, threads).go()
    finally:
        worlds.leave()


class _Run(Run[dict[str, Any]]):
    unit = "tokens"

    def __init__(self, built: Components, run: RunFolder, signals: Signals, world: worlds.World, threads: int) -> None:
        self.built, self.threads = built, threads
        self.settings = s = built.settings
        budget = s.run_plan(s.batch_tokens)
        self.store_feed = make_feed(built, budget.steps or FIRST_GUESS, world)
        training = Training(built.objective, self.store_feed, budget.steps or FIRST_GUESS, s.loop, s.seed, world)
        text = built.store.facts["files"]["tokens.bin"]["sha256"]
        about = {"tokenizer": built.store.fingerprint, "model": _identity(built), "store": text}
        if s.teacher:
            about[f"teacher {s.teacher}"] = content_of_model(s.teacher)
        super().__init__(s, budget, training, run, signals, about, feed=self.store_feed)
        self.evaluation = self._evaluation()

    def _evaluation(self) -> Evaluation | None:
        """A pretraining's evaluation set; None if nothing is held out, or too little for this packing."""
        if not len(self.built.held_out):
            return None
        try:
            return Evaluation(self.built, self.world)
        except UserError as reason:
            if self.world.is_main:
                note(f"Evaluation is off, because the held-out documents are not enough: {reason}")
            return None

    def planned(self) -> None:
        """A pretraining's lengths and batches by fraction of the steps."""
        self.store_feed.plan = plan_of(self.built, self.training.steps)

    def introduce(self) -> str:
        """The message before a pretraining: the model, the text and the steps."""
        model, s = self.built.model, self.settings
        parameters = sum(p.numel() for p in self.built.objective.parameters())
        precision = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}[str(model.encoder.dtype)]
        return (
            f"{s.init or s.preset}: {short_count(parameters)} parameters, {precision}, {self.threads} threads"
            f"{f', {self.world.size} processes' if self.world.size > 1 else ''}; "
            f"{len(self.built.train_documents):,} documents, {len(self.built.held_out):,} held out; "
            f"{self.training.steps:,} steps of about {s.batch_tokens:,} tokens."
        )

    def evaluate(self) -> dict[str, float]:
        """A pretraining's loss and accuracy on the held-out documents."""
        return self.evaluation() if self.evaluation else {}

    def logged(self, row: dict[str, Any]) -> None:
        """Log a pretraining to TensorBoard, if requested."""
        if not self.settings.tensorboard:
            return
        if not hasattr(self, "board"):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("TensorBoard is not installed: pip install 'bertkit[tensorboard]'.") from None
            self.board = SummaryWriter(self.settings.out / "tensorboard")
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "step":
                self.board.add_scalar(name, value, row["step"])

    def finish(self) -> dict[str, Any]:
        """End a pretraining: write the model folder and the report."""
        seconds, result = self.run.elapsed(), self.result()
        weights = self.training.tensors()
        if not self.world.is_main:
            return result
        for name, folder in self.built.folders.items():
            folder.about["facts"] = {
                "trained": f"{self.training.done:,} steps, {self.tokens:,} tokens, {seconds / 3600:.2f} hours",
                **{key: f"{value:.4g}" for key, value in self.scores.items()},
            }
            folder.about |= {
                "labels": [], "preset": self.settings.preset, "result": result, "versions": machine.versions(),
                "data": {"store": {"file": self.built.store.folder.name, "sha256": self.about["store"]}},
            }  # fmt: skip
            target = self.settings.out / name
            final = self._with(folder, weights.get("average", weights["weights"]))
            write_folder(target, lambda path, f=final: model_folder.write_folder(path, f))  # type: ignore[misc]
        self._report(result)
        return result

    def _with(self, folder: model_folder.Folder, weights: dict[str, Tensor]) -> model_folder.Folder:
        """A pretraining's folder with a separate model that has these weights (averaged, or gathered from ranks)."""
        # ELECTRA's generator shares embeddings with the discriminator, under whose name they are trained.
        name_of = {id(parameter): name for name, parameter in named(self.training.objective).items()}
        parameters = folder.model.state_dict(keep_vars=True)
        pooler = folder.model.pooler is not None
        model = Model(folder.model.config, dict.fromkeys(folder.model.heads, 0), pooler=pooler)
        model.load_state_dict({key: weights[name_of[id(parameter)]] for key, parameter in parameters.items()})
        return replace(folder, model=model)

    def _report(self, result: dict[str, Any]) -> None:
        """Write the report of a pretraining run."""
        from bertkit.config import to_plain
        from bertkit.report.pretraining import pretraining_report

        timing = {row["step"]: row for row in read_metrics(self.run.path / "timing.jsonl")}
        rows = [row | timing.get(row["step"], {}) for row in read_metrics(self.run.path / "metrics.jsonl")]
        run = to_plain(self.settings) | {"about": result | {"machine": machine.describe(self.threads)}}
        atomic_write(self.run.path / "report.html", pretraining_report(run, rows, lang=language()))


def _identity(built: Components) -> str:
    """A pretrained model's numbers as one line: a resumed run must have the same."""
    return repr(built.model.config)


NAMES = {
    "words": "mlm",
    "states": "match",
    "next": "lm",
    "next_sentence": "next_sentence",
    "order": "order",
    "replaced": "replaced",
}


class Evaluation:
    """Evaluation during pretraining: fixed held-out examples, 15 % of their tokens masked, the same every time.

    Nothing is masked if the next piece is predicted.
    """

    def __init__(self, built: Components, world: World) -> None:
        self.built, self.world = built, world
        s = built.settings
        length = s.eval_length or s.length_plan[0][1]
        self.rate = 0.15 if s.hiding.rate else 0.0
        masking = replace(s.hiding, rate=self.rate, rate_end=0.0, copies=1)
        self.feed = PretrainingFeed(
            built.store, built.held_out, packing=s.packing, masking=masking, plan=[Phase(0, 1, length, 1)],
            seed=s.seed + 1, short_prob=0.0, micro_tokens=s.micro_tokens,
        )  # fmt: skip
        count = min(len(self.feed.packing(length)), max(1, s.eval_tokens // length))
        order = torch.randperm(len(self.feed.packing(length)), generator=torch.Generator().manual_seed(s.seed))
        examples = [(length, int(n)) for n in order[:count]]
        # A rank without examples evaluates one with weight 0: all ranks must have the same terms to add up.
        # Ranks with sharded weights must compute in lockstep, so each of them evaluates everything.
        share = examples if s.shard else examples[world.rank :: world.size]
        self.examples, self.weight = share or examples[:1], float(bool(share))

    def __call__(self) -> dict[str, float]:
        """Losses, perplexity and accuracies over the set."""
        objective = self.built.objective.eval()
        rows = [self.feed.masked(length, number, 0, self.rate) for length, number in self.examples]
        sums: dict[str, float] = {}
        for part, picked in enumerate(batches_by_tokens([len(row[0].ids) for row in rows], 8192)):
            batch = collate([rows[i] for i in picked], self.built.words_teacher).to(self.world.device)
            for masks in objective.dropout_masks():
                masks.seed(self.built.settings.seed, 0, 0, part)
            for name, value in objective.judge(batch).items():
                sums[name] = sums.get(name, 0.0) + self.weight * value
            for name, number in objective.counts(batch).items():
                sums[f"{name}:count"] = sums.get(f"{name}:count", 0.0) + self.weight * number
        sums = sums if self.built.settings.shard else self.world.sums(sums)
        scores: dict[str, float] = {}
        for name in [key for key in sums if ":" not in key]:
            count = max(1.0, sums[f"{name}:count"])
            metric = NAMES[name]
            scores[f"{metric}_loss"] = sums[name] / count
            if f"{name}:right" in sums:
                scores[f"{metric}_accuracy"] = sums[f"{name}:right"] / count
            if metric in ("mlm", "lm"):
                scores["perplexity"] = math.exp(min(50.0, scores[f"{metric}_loss"]))
        if self.built.settings.minimal_pairs and self.world.is_main:
            scores["minimal_pairs"] = self._minimal_pairs()
        objective.train()
        return scores

    def _minimal_pairs(self, most: int = 50) -> float:
        """The fraction of minimal pairs whose good sentence the model being pretrained prefers, `most` of each file."""
        from bertkit.data.readers import read_minimal_pairs
        from bertkit.inference.scoring import score

        model = self.built.folders.get("generator", self.built.folders[""]).model
        scorer = Scorer(model, model.config, self.built.store.tokenizer, self.world.device)
        counts: dict[Any, int] = {}
        pairs = []
        for pair in read_minimal_pairs(Path(self.built.settings.minimal_pairs)):
            counts[pair.group] = counts.get(pair.group, 0) + 1
            if counts[pair.group] <= most:
                pairs.append(pair)
        good = score(scorer, [pair.good for pair in pairs])  # type: ignore[arg-type]
        bad = score(scorer, [pair.bad for pair in pairs])  # type: ignore[arg-type]
        return sum(g > b for g, b in zip(good, bad)) / max(1, len(pairs))


@dataclass
class Scorer:
    """The parts of a predictor that scoring texts needs, for a model still in pretraining."""

    model: Model
    config: Config
    tokenizer: Tokenizer
    device: str


def measure_step(built: Components, world: World, seconds: float = 20.0) -> Trial:
    """Time and memory of a step of this pretraining run, from a few seconds of real steps; the run is untouched."""
    s = built.settings
    return try_out(
        Training(built.objective, make_feed(built, FIRST_GUESS, world), FIRST_GUESS, s.loop, s.seed, world), seconds
    )


def estimate_cost(built: Components, world: World, seconds: float = 20.0) -> dict[str, Any]:
    """The cost of the configured pretraining run (`pretrain --plan`): time, memory, passes over the text, warnings."""
    s = built.settings
    cost = measure_step(built, world, seconds)
    feed = make_feed(built, 1000, world)
    length = s.length_plan[0][1]
    examples = len(feed.packing(length))
    rows = feed.plan[0].rows
    steps_per_epoch = max(1, math.ceil(examples / rows))
    steps = s.steps or (s.tokens // s.batch_tokens if s.tokens else 0)
    steps = steps or (int(s.minutes * 60 / cost.seconds_per_step) if s.minutes else steps_per_epoch)
    tokens = int(steps * cost.tokens_per_step)
    store_tokens = built.store.tokens
    parameters = sum(p.numel() for p in built.objective.parameters())
    low, high = expected_loss(parameters, tokens)
    warnings = []
    if tokens > 40 * store_tokens:
        warnings.append(
            f"The text would be read {tokens / store_tokens:.0f} times; beyond about 40 passes little is learned. "
            "Add text, or train for less time."
        )
    if parameters > 2 * store_tokens:
        warnings.append(
            f"The model has {short_count(parameters)} parameters for {short_count(store_tokens)} tokens of text: "
            "a smaller preset will learn as much in less time."
        )
    if tokens < 4 * parameters:
        warnings.append(
            f"{short_count(tokens)} tokens are few for {short_count(parameters)} parameters: "
            "use a smaller preset, or train longer."
        )
    return {
        "preset": s.preset, "parameters": parameters,
        "tokens_per_second": round(cost.tokens_per_step / cost.seconds_per_step, 1),
        "seconds_per_step": round(cost.seconds_per_step, 4), "steps": steps,
        "seconds": round(steps * cost.seconds_per_step, 1), "tokens": tokens,
        "store_tokens": store_tokens, "epochs": round(steps / steps_per_epoch, 2),
        "seconds_per_epoch": round(steps_per_epoch * cost.seconds_per_step, 1),
        "memory_gb": round(machine.peak_memory() / 2**30, 2),
        "expected_loss": [round(low, 1), round(high, 1)], "warnings": warnings,
    }  # fmt: skip


def expected_loss(parameters: int, tokens: int) -> tuple[float, float]:
    """A rough range of the final masked-word loss for English with a 12k–30k vocabulary.

    Fitted by eye to small runs on mixed Wikipedia and book text: about 6.3 before a million tokens, 5.5 after
    ten, 3.8 after a hundred, 3.0 after a billion; a smaller model ends higher.
    """
    middle = 6.4 - 1.05 * max(0.0, math.log10(max(tokens, 1) / 3e6)) ** 0.9
    middle -= 0.15 * math.log10(max(parameters, 1) / 10e6)
    return max(1.5, middle - 0.5), min(7.5, middle + 0.5)
