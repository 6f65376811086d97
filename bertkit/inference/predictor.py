"""A loaded model that answers, shared by the command line, the server and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit import machine
from bertkit.checkpoint.folder import Folder, OnnxFolder, onnx_file, read_folder, read_onnx
from bertkit.checkpoint.locate import locate
from bertkit.checkpoint.weights import has_weights
from bertkit.config import ENGINES
from bertkit.data.readers.frames import is_frame, note_file_name, texts_of
from bertkit.data.windows import Row, Rows, Windows, encode_rows
from bertkit.errors import UserError, suggest
from bertkit.inference import Answers
from bertkit.model import layer_choice
from bertkit.model.engine import AGAIN, Engine, Wanted
from bertkit.model.pooling import Pooling, check_mode, pooled_windows, unit
from bertkit.notify import note
from bertkit.settings.model import is_trained
from bertkit.tasks import TASKS, make, task_classes
from bertkit.tasks.base import Reading, Task, check_labels, validated
from bertkit.tasks.batches import outputs_of
from bertkit.text.checks import BadRow, by_line

if TYPE_CHECKING:
    from bertkit.data.batch import Batch
    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model
    from bertkit.model.inference import TorchEngine

AT_ONCE_POOLED = ("mean", "cls", "max")  # for a whole batch; other modes are pooled text by text
NOT_FINITE = (
    "cannot be predicted: the model's outputs are not finite; its weights are damaged, or its training failed. "
    "Copy or download the weights again, or train the model again."
)
AT_ONCE = 1024  # texts that commands read, sort and compute together: bounds memory for any length of input


class Predictor:
    """A model and its tokenizer, ready to answer."""

    def __init__(self, folder: Folder | OnnxFolder, precision: str = "auto", device: str = "auto") -> None:
        self.folder = folder
        self.source: Path | None = None  # the folder it was read from
        self.tokenizer = folder.tokenizer
        self.pooling = folder.pooling or Pooling()
        if isinstance(folder, OnnxFolder):
            if device not in ("auto", "cpu"):
                raise UserError(f"device is {device!r}; ONNX files run on the CPU only. Leave it out.")
            self.engine: Engine = folder.engine
            self.encoder_parameters = self.engine.parameters
        else:
            # counted before the weights get their new layout
            self.encoder_parameters = sum(p.numel() for p in folder.model.encoder.parameters())
            from bertkit.model.inference import torch_engine

            stored_as_int8 = folder.about.get("weights") == "int8"
            self.engine = torch_engine(folder.model, precision, device, int8=stored_as_int8)
        self.config = self.engine.config
        self.steady = False  # whether a text's numbers are the same in any batch, at some cost; servers switch it on
        self.result: dict[str, Any] = {}  # the result of fine-tuning, right after it

    @classmethod
    def load(
        cls,
        name: str | Path,
        precision: str = "auto",
        device: str = "auto",
        verify: bool = True,
        engine: str = "auto",
    ) -> Predictor:
        """Open a model by embedded name, folder or hub name. verify: compare its files with its manifest first.

        engine: torch, onnx (onnxruntime) or openvino; auto is torch, or onnx where torch or the weights are missing.
        """
        source = locate(name)
        engine = chosen_engine(source, engine)
        if engine == "torch":
            predictor = cls(read_folder(source, verify=verify), precision, device)
        else:
            if precision == "bf16":
                raise UserError("precision is 'bf16'; ONNX files run in fp32 or int8. Leave it out.")
            predictor = cls(read_onnx(source, runtime=engine, precision=precision, verify=verify), device=device)
        predictor.source = source
        return predictor

    def __repr__(self) -> str:
        """Name, task and labels (or that it is only pretrained), layers, size and precision."""
        fine_tuned = self.about.get("task") in TASKS or any(
            task.head in self.engine.outputs for task in task_classes().values()
        )
        pretrained = f"pretrained {'left-to-right model' if self.config.causal else 'encoder'}, "
        task = (
            f"{self.task.name}, " if fine_tuned else f"{pretrained}{self.config.depth} layers × {self.config.width}, "
        )
        labels = self.task.labels if fine_tuned and self.task.labelled_by_name else ()
        named = ", ".join(labels[:6]) + (f" … ({len(labels)})" if len(labels) > 6 else "")
        labelled = f"labels {named}, " if labels else ""
        return f"<bertkit model {self.folder.name!r}: {task}{labelled}{self.engine.size}, {self.computed_by}>"

    @property
    def precision(self) -> str:
        """What a predictor computes in: fp32, bf16 or int8."""
        return self.engine.precision

    @property
    def device(self) -> str:
        """Where a predictor computes."""
        return self.engine.device

    @property
    def computed_by(self) -> str:
        """The predictor's precision, device, and its engine where it is not torch, for notes."""
        return f"{self.precision} on {self.device}" + (f", {self.engine.name}" if self.engine.name != "torch" else "")

    @property
    def parameters(self) -> int:
        """The number of the predictor's weights; 0 if the engine does not know it."""
        return self.engine.parameters

    @property
    def _torch(self) -> TorchEngine:
        """The model's PyTorch engine, or an error where another engine runs it."""
        if self.engine.name != "torch":
            raise UserError(
                f"{self.folder.name} is open in {self.engine.name}, which only computes answers; this looks inside the "
                "model. Use a folder with model.safetensors and --engine torch."
            )
        return self.engine  # type: ignore[return-value]

    @property
    def model(self) -> Model:
        """The predictor's PyTorch model itself, for those who look inside."""
        return self._torch.model

    def as_written(self) -> Folder:
        """The predictor's folder, read again: weights prepared for inference cannot be saved."""
        if self.source is None:
            raise UserError("This model has no folder. Save it before preparing it for inference.")
        return read_folder(self.source)

    def run(
        self, rows: Sequence[Row], use: Callable[[Encoded], Sequence[Any]], *, layers: bool = False, maps: bool = False
    ) -> list[Any]:
        """The predictor encodes rows with PyTorch; `use` returns one answer per row of its batch, in that order."""
        return self._torch.encode(rows, use, layers=layers, maps=maps, steady=self.steady)

    def _pack(self, rows: Sequence[Row]) -> Batch:
        return self._torch.pack(rows, steady=self.steady)

    def embed(
        self,
        texts: str | Sequence[str],
        layers: str | Sequence[int] = "last",
        pool: str = "",
        on_long: str = "window",
        normalize: bool | None = None,
        prompt: str | None = None,
        prompt_text: str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors of texts: float32 (n, width); with pool "none" a list of (tokens, width).

        pool: a mode of sentence-transformers (mean, cls, max …), several joined by +, or none. By default, it,
        `normalize` and the layers after the pooling follow the folder's sentence-transformers files, else it is the
        unscaled mean. prompt: the name of one of the folder's prompts ("" for none; by default the folder's default),
        put before every text; prompt_text: a prompt in words.
        """
        before = self.pooling.prompt(prompt, prompt_text)
        return self.vectors(self._encoded(texts, on_long, before), layers, pool, normalize)

    def embed_tokens(
        self,
        texts: str | Sequence[str],
        layers: str | Sequence[int] = "last",
        on_long: str = "window",
        normalize: bool = False,
        prompt_text: str | None = None,
    ) -> list[dict[str, Any]]:
        """The vectors of every token, with what they stand for: per text {tokens, offsets, vectors}.

        offsets: [start, end) of each token in the text; [0, 0) for those of a prompt before it. A text read in
        windows has no special tokens here. prompt_text: as in `embed`.
        """
        prompt = self.pooling.prompt(text=prompt_text)
        encoded = self._encoded(texts, on_long, prompt, keep=True)
        vectors = self.vectors(encoded, layers, "none", normalize)
        answers = []
        for text, rows in zip(encoded, vectors):
            parts = [row.encoding.picked(range(*(row.core if len(text.rows) > 1 else (0, len(row.ids)))))
                     for row in text.rows if row.encoding is not None]  # fmt: skip
            answers.append({
                "tokens": [self.tokenizer.id_to_token(piece) or "" for part in parts for piece in part.ids],
                "offsets": [[max(0, at - len(prompt)) for at in span] for part in parts for span in part.offsets],
                "vectors": rows,
            })  # fmt: skip
        return answers

    def _encoded(self, texts: str | Sequence[str], on_long: str, prompt: str, *, keep: bool = False) -> list[Rows]:
        """Texts as rows to be embedded; truncated tokens are reported."""
        texts = texts_of(texts)
        windows = Windows(self.vector_limit, on_long)
        encoded = self.encode_texts(texts, [prompt] * len(texts), windows, keep=keep)
        if cut := sum(text.cut for text in encoded):
            note(f"{cut} tokens were truncated from texts longer than {windows.limit} tokens.")
        return encoded

    @property
    def vector_limit(self) -> int:
        """The most tokens a predictor reads in one row: the model's limit, or where sentence-transformers truncates."""
        return min(self.config.max_tokens, self.pooling.max_tokens or self.config.max_tokens)

    @property
    def width(self) -> int:
        """The width of this predictor's vector of a text."""
        return self.pooling.width(self.config.width)

    def encode_texts(
        self, texts: Sequence[str], prompts: Sequence[str], windows: Windows, *, keep: bool = False
    ) -> list[Rows]:
        """The predictor's rows of texts, each with its prompt before it ("" for none)."""
        together = [prompt + text for prompt, text in zip(prompts, texts, strict=True)] if any(prompts) else texts
        encoded = encode_rows(self.tokenizer, together, None, windows, keep=keep)
        if not self.pooling.include_prompt:
            lengths = {prompt: self.tokenizer.prompt_tokens(prompt) for prompt in set(prompts)}
            for rows, prompt in zip(encoded, prompts):
                rows.skip = lengths[prompt]
        return encoded

    def vectors(
        self,
        encoded_texts: Sequence[Rows],
        layers: str | Sequence[int] = "last",
        pool: str = "",
        normalize: bool | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Like `embed`, for texts that are already encoded."""
        whole = not pool  # the vector that the folder was made for, through the layers after the pooling
        if whole:
            self.pooling.check()
        pool = pool or self.pooling.mode
        normalize = self.pooling.normalize and pool != "none" if normalize is None else normalize
        check_mode(pool, ("none",))
        choice = layer_choice.choose(layers, self.config.depth)
        if whole and self.pooling.steps and not choice.only_last:
            raise UserError(
                f"This model's vectors go through {' and '.join(map(str, self.pooling.steps))}, made for its last "
                f"layer. Leave --layers {layers} out; or, for the encoder's own vectors, add --pool {pool}."
            )
        rows = [row for text in encoded_texts for row in text.rows]
        unsplit = len(rows) == len(encoded_texts) and (
            pool == "none" or (pool in AT_ONCE_POOLED and not any(text.skip for text in encoded_texts))
        )
        wanted = Wanted(pool=pool if unsplit else "none", layers=choice)
        # Without special tokens, an empty text has no tokens: its vector is zero.
        wide = choice.width(self.config.width)
        empty = np.zeros(wide if unsplit and pool != "none" else (int(pool != "none"), wide), np.float32)
        answers = iter(self.engine.run([row for row in rows if row.ids], wanted, steady=self.steady))
        vectors = [next(answers) if row.ids else empty for row in rows]
        if not unsplit:
            vectors = _merge(encoded_texts, vectors, pool)
        if pool == "none":
            return [unit(tokens) for tokens in vectors] if normalize else vectors
        if not vectors:
            final = self.width if whole and self.pooling.steps else wide * len(pool.split("+"))
            return np.zeros((0, final), np.float32)
        stacked = np.stack(vectors)
        if whole:
            return self.pooling.finish(stacked, normalize)
        return unit(stacked) if normalize else stacked

    def fill(self, text: str, top: int = 5, joint: str = "") -> list[Any]:
        """Predictions for every mask of a text: per mask, a list of {token, score, id, text}, best first.

        joint: guess all masks together (independent, left-to-right or beam; see fill.fill_jointly). Then the
        answer is one list of {tokens, ids, score, scores, text}, best first; score is the joint probability.
        """
        from bertkit.inference.fill import fill

        return fill(self, text, top, joint)

    def choose(self, text: str, choices: Sequence[str]) -> dict[str, Any]:
        """Predict the likeliest continuation of a text, without fine-tuning: {choice, scores, likelihoods}."""
        from bertkit.inference.scoring import choose

        return choose(self, text, list(choices))

    def follows(self, a: str | Sequence[str], b: str | Sequence[str]) -> Any:
        """Whether b follows a: {"next": probability}; ALBERT: {"order": …}, that a comes first. Lists give a list."""
        from bertkit.inference.scoring import follows

        answers = follows(self, [a] if isinstance(a, str) else list(a), [b] if isinstance(b, str) else list(b))
        return answers[0] if isinstance(a, str) else answers

    def score(self, texts: str | Sequence[str], words: bool = False) -> list[float]:
        """Log-likelihood of each text: every piece predicted from all others (or from the left, for a causal model).

        `words`: when a piece is masked, the later pieces of its word are masked too, which keeps a long
        rare word from being counted as likely because its own pieces give it away.
        """
        from bertkit.inference.scoring import score

        self.needs("mlm", "score texts")
        return score(self, texts_of(texts), words)

    @cached_property
    def task(self) -> Task:
        """The task this model was fine-tuned for, as its bertkit.json (or its class) says."""
        about = self.about
        name, options = about.get("task"), dict(about.get("options", {}))
        if name not in TASKS:
            name, options = self._guessed_task()
        task = make(name, labels=tuple(about.get("labels") or self.folder.labels), options=options)
        task.merge = about.get("merge", task.merge)
        task.pooling = self.pooling if task.makes_vectors else None
        if task.labelled_by_name and task.head in self.engine.outputs:
            check_labels(task.labels, self.engine.outputs[task.head], f"{self.folder.name}/bertkit.json")
        return task

    def _guessed_task(self) -> tuple[str, dict[str, Any]]:
        """Task and options of a folder that bertkit did not fine-tune, by its head and its config.json."""
        folder = self.folder
        guesses = (
            (kind, options)
            for head in self.engine.heads
            for kind in task_classes().values()
            if (options := kind.guessed(head, folder.labels, folder.raw_config)) is not None
        )
        kind, options = next(guesses, (None, {}))
        if kind is None:
            raise UserError("This model has not been fine-tuned, so it cannot predict. Run `bertkit finetune` first.")
        if kind.labelled_by_name and all(re.fullmatch(r"LABEL_\d+", label) for label in folder.labels):
            note(
                f"{folder.name} has no label names, so {folder.labels[0]} … are used: add id2label to its config.json."
            )
        return kind.name, options

    @cached_property
    def about(self) -> dict[str, Any]:
        """The task of bertkit.json, with every value checked for its type."""
        return validated(self.folder.about, f"{self.folder.name}/bertkit.json")

    def windows(self, on_long: str = "") -> Windows:
        """How long a predictor reads texts: as in training, unless overridden."""
        saved = self.about.get("windows", {})
        limit = min(int(saved.get("limit", self.pooling.max_tokens or 512)), self.config.max_tokens)
        return Windows(limit, on_long or saved.get("on_long", "window"), int(saved.get("overlap", 64)))

    def predict(self, inputs: Any, on_long: str = "", **columns: str) -> list[dict[str, Any]]:
        """Predictions for texts (or pairs, word lists, questions, choices: what the task takes), in order.

        inputs: a text, a list of texts or dicts, or a table: a pandas or polars DataFrame, a `datasets.Dataset`, whose
        columns are found as those of a file are; columns: their names where these differ (text="body").
        """
        if is_frame(inputs):
            return Answers(
                self.predict_examples(self.task.from_frame(inputs, Reading(**columns)), on_long, file="input")
            )
        if isinstance(inputs, str):
            note_file_name(inputs)
        single = isinstance(inputs, (str, dict))
        return Answers(self._predict(self.task.from_inputs([inputs] if single else list(inputs)), on_long))

    def predict_examples(self, examples: Sequence[Any], on_long: str = "", file: str = "") -> list[dict[str, Any]]:
        """Predictions for a reader's examples; errors name the line (of `file`)."""
        with by_line([getattr(example, "line", 0) for example in examples], file):
            return self._predict(examples, on_long)

    def _predict(self, examples: Sequence[Any], on_long: str) -> list[dict[str, Any]]:
        """Predictions of examples: encode, compute, decode."""
        if self.task.head:
            self.needs(self.task.head, "predict")
        items = self.task.encode(examples, self.tokenizer, self.windows(on_long))
        if len(items) >= AT_ONCE:
            machine.trim_memory()  # what the tokenizer left fragmented, before the computation starts
        outputs = outputs_of(self.engine, self.task, items, steady=self.steady)
        for number, output in enumerate(outputs):
            if not np.isfinite(output).all():
                raise BadRow(number, NOT_FINITE)
        return [self.task.decode(item, output) for item, output in zip(items, outputs)]

    def evaluate(self, rows: Any, **columns: str) -> dict[str, float]:
        """Every metric on labelled rows: a file, a DataFrame, a Dataset, or a list of dicts."""
        return self.task.evaluate(rows, Reading(**columns), self.predict_examples)

    def needs(self, head: str, what: str) -> None:
        """Refuse a predictor's head that is missing or untrained."""
        if head not in self.engine.heads:
            has = ", ".join(self.engine.heads) or "none"
            raise UserError(
                f"This model cannot {what}: it has no {head} head (it has: {has}). Use a model with one, e.g. 'en'."
            )
        if not is_trained(head, self.engine.untrained):
            raise UserError(f"This model cannot {what} yet: its {head} head is untrained. Fine-tune it first.")


def chosen_engine(source: Path, engine: str) -> str:
    """The engine of the predictor of a folder: as asked, or the one it has files for."""
    if engine not in ENGINES:
        raise UserError(f"engine is {engine!r}. {suggest(engine, list(ENGINES))}")
    has_file = source.is_dir() and onnx_file(source) is not None
    if engine == "auto":
        engine = "onnx" if has_file and not (machine.has_torch() and has_weights(source)) else "torch"
    if engine != "torch" and not has_file:
        raise UserError(f"{source} has no ONNX file, so --engine {engine} cannot open it. {AGAIN}")
    if engine == "torch" and not machine.has_torch():
        raise UserError(f"{machine.NEEDS_TORCH} Or open an export: bertkit export {source} --out FOLDER, where it is.")
    return engine


def _merge(texts: Sequence[Rows], vectors: Sequence[np.ndarray], pool: str) -> list[np.ndarray]:
    """Join the token vectors that a predictor computed for a text's rows, each row contributing the tokens it owns."""
    parts = iter(vectors)
    merged = []
    for text in texts:
        windows = [(next(parts), row.core) for row in text.rows]
        if pool != "none":
            merged.append(pooled_windows(windows, pool, text.skip))
        elif len(windows) == 1:
            merged.append(windows[0][0])
        else:
            merged.append(np.concatenate([tokens[begin:end] for tokens, (begin, end) in windows]))
    return merged
