"""A pretraining run from start (or resume) to the finished folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from bertkit import machine
from bertkit.checkpoint import folder as model_folder
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.model.heads import Model
from bertkit.notify import language, note
from bertkit.runs.pretrain.build import Components, build, make_feed, plan_of
from bertkit.runs.pretrain.evaluate import Evaluation
from bertkit.settings.pretrain import PretrainSettings
from bertkit.training import distributed as worlds
from bertkit.training.distributed import whole
from bertkit.training.loop import Training
from bertkit.training.metrics_log import read_metrics
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Run the pretraining. Returns the final scores."""
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
        super().__init__(s, budget, training, run, signals, about, feed=self.store_feed)
        self.evaluation = self._evaluation()

    def _evaluation(self) -> Evaluation | None:
        """The evaluation set; None if nothing is held out, or too little for this packing."""
        if not len(self.built.held_out):
            return None
        try:
            return Evaluation(self.built, self.world)
        except UserError as reason:
            if self.world.is_main:
                note(f"Evaluation is off, because the held-out documents are not enough: {reason}")
            return None

    def planned(self) -> None:
        """Lengths and batches by fraction of the steps."""
        self.store_feed.plan = plan_of(self.built, self.training.steps)

    def introduce(self) -> str:
        """Report the model, the text and the steps."""
        model, s = self.built.model, self.settings
        parameters = sum(p.numel() for p in self.built.objective.parameters())
        precision = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}[str(model.encoder.dtype)]
        return (
            f"{s.init or s.preset}: {parameters / 1e6:.1f}M parameters, {precision}, {self.threads} threads"
            f"{f', {self.world.size} processes' if self.world.size > 1 else ''}; "
            f"{len(self.built.train_documents):,} documents, {len(self.built.held_out):,} held out; "
            f"{self.training.steps:,} steps of about {s.batch_tokens:,} tokens."
        )

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out documents."""
        return self.evaluation() if self.evaluation else {}

    def logged(self, row: dict[str, Any]) -> None:
        """Log to TensorBoard, if requested."""
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
        """Write the model folder and the report."""
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
        """The folder with a separate model that has these weights (averaged, or gathered from all ranks)."""
        prefix = "generator." if folder is self.built.folders.get("generator") else "model."
        state = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        shared = {k: v for k, v in folder.model.state_dict().items() if k not in state}  # tied to the other model
        pooler = folder.model.pooler is not None
        model = Model(folder.model.config, dict.fromkeys(folder.model.heads, 0), pooler=pooler)
        model.load_state_dict({**{k: whole(v) for k, v in shared.items()}, **state})
        return replace(folder, model=model)

    def _report(self, result: dict[str, Any]) -> None:
        from bertkit.config import to_plain
        from bertkit.report.pretraining import pretraining_report

        timing = {row["step"]: row for row in read_metrics(self.run.path / "timing.jsonl")}
        rows = [row | timing.get(row["step"], {}) for row in read_metrics(self.run.path / "metrics.jsonl")]
        run = to_plain(self.settings) | {"about": result | {"machine": machine.describe(self.threads)}}
        atomic_write(self.run.path / "report.html", pretraining_report(run, rows, lang=language()))


def _identity(built: Components) -> str:
    """The model's numbers as one line: a resumed run must have the same."""
    return repr(built.model.config)
