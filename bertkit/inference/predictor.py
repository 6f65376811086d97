"""A loaded model that answers, shared by the command line, the server and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit import machine
from bertkit.checkpoint.folder import Folder, read_folder
from bertkit.checkpoint.locate import locate
from bertkit.data.batch import Batch, pack, run_batched
from bertkit.data.readers.frames import is_frame
from bertkit.data.windows import Row, Rows, Windows, encode_rows
from bertkit.errors import UserError, suggest
from bertkit.model import layer_choice
from bertkit.model.encoder import Encoded
from bertkit.model.heads import is_trained
from bertkit.model.inference import INT8, prepare
from bertkit.model.pooling import Pooling, check_mode, pooled_windows, unit
from bertkit.notify import note
from bertkit.tasks import TASKS, make, task_classes
from bertkit.tasks.base import Reading, Task, check_labels, outputs_of_heads, validated
from bertkit.tasks.batches import outputs_of
from bertkit.text.checks import BadRow, by_line
from bertkit.text.encoding import Encoding
from bertkit.text.words import closed_up

AT_ONCE_POOLED = ("mean", "cls", "max")  # for a whole batch; other modes are pooled text by text
NOT_FINITE = (
    "cannot be predicted: the model's outputs are not finite; its weights are damaged, or its training failed. "
    "Copy or download the weights again, or train the model again."
)
AT_ONCE = 1024  # texts that commands read, sort and compute together: bounds memory for any length of input


class Predictor:
    """A model and its tokenizer, ready to answer."""

    def __init__(self, folder: Folder, precision: str = "auto", device: str = "auto") -> None:
        machine.threads()
        self.device = machine.device_for(device)
        self.folder = folder
        self.source: Path | None = None  # the folder it was read from
        self.tokenizer = folder.tokenizer
        self.pooling = folder.pooling or Pooling()
        if precision == "auto" and folder.about.get("weights") == INT8 and self.device == "cpu":
            precision = INT8 if machine.has_fast_int8() else precision
        # counted before the weights get their new layout
        self.outputs = outputs_of_heads(folder.model)
        self.parameters = sum(p.numel() for p in folder.model.parameters())
        self.encoder_parameters = sum(p.numel() for p in folder.model.encoder.parameters())
        self.model = prepare(folder.model, precision, self.device)
        self.config = folder.model.config
        self.steady = False  # whether a text's numbers are the same in any batch, at some cost; servers switch it on
        self.result: dict[str, Any] = {}  # the result of fine-tuning, right after it
        computed = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.model.encoder.dtype]
        self.precision = precision if precision == INT8 else computed

    @classmethod
    def load(cls, name: str | Path, precision: str = "auto", device: str = "auto", verify: bool = True) -> Predictor:
        """Open a model by embedded name, folder or hub name. verify: compare its files with its manifest first."""
        source = locate(name)
        predictor = cls(read_folder(source, verify=verify), precision, device)
        predictor.source = source
        return predictor

    def __repr__(self) -> str:
        """Name, task, labels, size and precision."""
        fine_tuned = self.about.get("task") in TASKS or any(
            task.head in self.outputs for task in task_classes().values()
        )
        task = f"{self.task.name}, " if fine_tuned else ""
        labels = self.task.labels if fine_tuned and self.task.labelled_by_name else ()
        named = ", ".join(labels[:6]) + (f" … ({len(labels)})" if len(labels) > 6 else "")
        shown = f"labels {named}, " if labels else ""
        size = f"{self.parameters / 1e6:.1f}M parameters"
        return f"<bertkit model {self.folder.name!r}: {task}{shown}{size}, {self.precision} on {self.device}>"

    def as_written(self) -> Folder:
        """The folder, read again: weights prepared for inference cannot be saved."""
        if self.source is None:
            raise UserError("This model has no folder. Save it before preparing it for inference.")
        return read_folder(self.source)

    def run(
        self, rows: Sequence[Row], use: Callable[[Encoded], Sequence[Any]], *, layers: bool = False, maps: bool = False
    ) -> list[Any]:
        """Encode rows in the fastest order; `use` returns one answer per row of its batch, in the batch's row order."""
        answers: list[Any] = [None] * len(rows)

        def compute(numbers: list[int]) -> None:
            batch = self._pack([rows[n] for n in numbers])
            results = use(self.model.encoder(batch, layers=layers, maps=maps))
            for number, answer in zip(numbers, results, strict=True):
                answers[number] = answer

        run_batched([len(row.ids) for row in rows], compute, self.device)
        return answers

    def _pack(self, rows: Sequence[Row]) -> Batch:
        segmented = any(row.segments is not None for row in rows) and self.config.segments > 1
        segments = [row.segments or [0] * len(row.ids) for row in rows] if segmented else None
        return pack([row.ids for row in rows], segments, steady=self.steady).to(self.device)

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
        texts = [texts] if isinstance(texts, str) else list(texts)
        windows = Windows(self.vector_limit, on_long)
        encoded = self.encode_texts(texts, [prompt] * len(texts), windows, keep=keep)
        if cut := sum(text.cut for text in encoded):
            note(f"{cut} tokens were truncated from texts longer than {windows.limit} tokens.")
        return encoded

    @property
    def vector_limit(self) -> int:
        """The most tokens of one row: the model's limit, or where sentence-transformers truncates, if that is less."""
        return min(self.config.max_tokens, self.pooling.max_tokens or self.config.max_tokens)

    @property
    def width(self) -> int:
        """The width of a text's vector."""
        return self.pooling.width(self.config.width)

    def encode_texts(
        self, texts: Sequence[str], prompts: Sequence[str], windows: Windows, *, keep: bool = False
    ) -> list[Rows]:
        """Rows of texts, each with its prompt before it ("" for none)."""
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

        def use(encoded: Encoded) -> list[np.ndarray]:
            encoded.tokens = encoded.tokens if choice.only_last else choice.pick(encoded.layers)
            return _pooled(encoded, pool if unsplit else "none")

        # Without special tokens, an empty text has no tokens: its vector is zero.
        wide = choice.width(self.config.width)
        empty = np.zeros(wide if unsplit and pool != "none" else (int(pool != "none"), wide), np.float32)
        answers = iter(self.run([row for row in rows if row.ids], use, layers=not choice.only_last))
        vectors = [next(answers) if row.ids else empty for row in rows]
        if not unsplit:
            vectors = _merge(encoded_texts, vectors, pool)
        if pool == "none":
            return [unit(tokens) for tokens in vectors] if normalize else vectors
        if not vectors:
            return np.zeros((0, self.width if whole else wide * len(pool.split("+"))), np.float32)
        stacked = np.stack(vectors)
        if whole:
            return self.pooling.finish(stacked, normalize)
        return unit(stacked) if normalize else stacked

    def fill(self, text: str, top: int = 5, joint: str = "") -> list[Any]:
        """Predictions for every mask of a text: per mask, a list of {token, score, id, text}, best first.

        joint: guess all masks together (independent, left-to-right or beam; see scoring.fill_jointly). Then the
        answer is one list of {tokens, ids, score, scores, text}, best first; score is the joint probability.
        """
        encodings = self.encode_masked([text])
        if not joint:
            return self.guesses(encodings, top)[0]
        from bertkit.inference.scoring import JOINT, fill_jointly

        _check("joint", joint, JOINT)
        return fill_jointly(self, encodings[0], top, joint)

    def encode_masked(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts with masks; a text without masks or beyond the model's limit is refused."""
        self.needs("mlm", "predict masked words")
        if self.config.causal:
            raise UserError(
                "This model reads from left to right, so it cannot fill a mask from both sides. "
                "Use `bertkit suggest` for the next words."
            )
        mask = self.tokenizer.mask_id
        if mask is None:
            raise UserError("This tokenizer has no mask token, so there is nothing to fill.")
        spelled = self.tokenizer.id_to_token(mask) or "[MASK]"
        encodings = self.tokenizer.encode_batch([t if spelled in t else t.replace("[MASK]", spelled) for t in texts])
        for number, encoding in enumerate(encodings, 1):
            subject = f"Text {number}" if len(encodings) > 1 else "The text"
            if mask not in encoding.ids:
                raise UserError(f"{subject} has no {spelled}. Put {spelled} where a word should be predicted.")
            if len(encoding) > self.config.max_tokens:
                raise UserError(
                    f"{subject} has {len(encoding)} tokens; this model's limit is {self.config.max_tokens}. Shorten it."
                )
        return encodings

    def guesses(self, encodings: Sequence[Encoding], top: int = 5) -> list[list[list[dict[str, Any]]]]:
        """For each text and each of its masks, the best predictions."""
        mask = self.tokenizer.mask_id
        assert mask is not None  # otherwise there would be no encodings with masks

        def use(encoded: Encoded) -> list[tuple[list[float], list[int]]]:
            batch = encoded.batch
            hidden = batch.ids[: batch.tokens].eq(mask)
            scores = self.model.ask("mlm", encoded, hidden.nonzero()[:, 0]).float().softmax(-1)
            scores = scores[:, : self.tokenizer.size]  # further rows are padding of the table
            best = scores.topk(min(top, self.tokenizer.size), dim=-1)
            counts = [int(part.sum()) for part in hidden.split(list(batch.lengths))]
            packed = list(zip(best.values.split(counts), best.indices.split(counts)))
            restored: list[Any] = [None] * len(packed)
            for place, caller in enumerate(batch.order):
                restored[caller] = tuple(part.tolist() for part in packed[place])
            return restored

        predictions = self.run([Row(masked.ids, masked.segments, (0, len(masked))) for masked in encodings], use)
        filled = []
        for encoding, (scores, pieces) in zip(encodings, predictions):
            places = [place for place, piece in enumerate(encoding.ids) if piece == mask]
            filled.append(
                [
                    [self._guess(encoding.ids, place, piece, score) for score, piece in zip(values, ids)]
                    for place, values, ids in zip(places, scores, pieces)
                ]
            )
        return filled

    def _guess(self, ids: list[int], place: int, piece: int, score: float) -> dict[str, Any]:
        filled = [*ids[:place], piece, *ids[place + 1 :]]
        return {"token": self.spelled(piece), "score": score, "id": piece, "text": self.shown(filled)}

    def spelled(self, piece: int) -> str:
        """A piece as users see it."""
        return (self.tokenizer.id_to_token(piece) or "").lstrip("Ġ▁")

    def shown(self, ids: Sequence[int]) -> str:
        """A text from its ids, in which a mask that is not filled yet stays visible."""
        hidden = self.tokenizer.special_ids - {self.tokenizer.mask_id}
        return closed_up(self.tokenizer.decode([n for n in ids if n not in hidden], keep_special=True))

    def follows(self, a: str | Sequence[str], b: str | Sequence[str]) -> Any:
        """Whether text b follows text a, by the model's next-sentence head: {"next": probability}.

        A sentence-order head (ALBERT's) answers {"order": probability}: of two neighbouring texts, that a is the
        first. Lists of texts give a list. A pair beyond the model's limit loses the end of its longer text.
        """
        from bertkit.inference.scoring import follows

        single = isinstance(a, str)
        answers = follows(self, [a] if isinstance(a, str) else list(a), [b] if isinstance(b, str) else list(b))
        return answers[0] if single else answers

    def score(self, texts: str | Sequence[str], words: bool = False) -> list[float]:
        """Log-likelihood of each text: every piece predicted from all others (or from the left, for a causal model).

        `words`: when a piece is masked, the later pieces of its word are masked too, which keeps a long
        rare word from being counted as likely because its own pieces give it away.
        """
        from bertkit.inference.scoring import score

        self.needs("mlm", "score texts")
        return score(self, [texts] if isinstance(texts, str) else list(texts), words)

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
        if task.labelled_by_name and task.head in self.outputs:
            check_labels(task.labels, self.outputs[task.head], f"{self.folder.name}/bertkit.json")
        return task

    def _guessed_task(self) -> tuple[str, dict[str, Any]]:
        """Task and options of a folder that bertkit did not fine-tune, by its head and its config.json."""
        folder = self.folder
        guesses = (
            (kind, options)
            for head in self.model.heads
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
        """How long texts are read: as in training, unless overridden."""
        saved = self.about.get("windows", {})
        limit = min(int(saved.get("limit", self.pooling.max_tokens or 512)), self.config.max_tokens)
        return Windows(limit, on_long or saved.get("on_long", "window"), int(saved.get("overlap", 64)))

    def predict(self, inputs: Any, on_long: str = "", **columns: str) -> list[dict[str, Any]]:
        """Predictions for texts (or pairs, word lists, questions, choices: what the task takes), in order.

        inputs: a text, a list of texts or dicts, or a table: a pandas or polars DataFrame, a `datasets.Dataset`, whose
        columns are found as those of a file are; columns: their names where these differ (text="body").
        """
        if is_frame(inputs):
            return self.predict_examples(self.task.from_frame(inputs, Reading(**columns)), on_long, file="input")
        single = isinstance(inputs, (str, dict))
        return self._predict(self.task.from_inputs([inputs] if single else list(inputs)), on_long)

    def predict_examples(self, examples: Sequence[Any], on_long: str = "", file: str = "") -> list[dict[str, Any]]:
        """Predictions for a reader's examples; errors name the line (of `file`)."""
        with by_line([getattr(example, "line", 0) for example in examples], file):
            return self._predict(examples, on_long)

    def _predict(self, examples: Sequence[Any], on_long: str) -> list[dict[str, Any]]:
        if self.task.head:
            self.needs(self.task.head, "predict")
        items = self.task.encode(examples, self.tokenizer, self.windows(on_long))
        if len(items) >= AT_ONCE:
            machine.trim_memory()  # what the tokenizer left fragmented, before the computation starts
        outputs = outputs_of(self.model, self.task, items, self.device, steady=self.steady)
        for number, output in enumerate(outputs):
            if not np.isfinite(output).all():
                raise BadRow(number, NOT_FINITE)
        return [self.task.decode(item, output) for item, output in zip(items, outputs)]

    def evaluate(self, rows: Any, **columns: str) -> dict[str, float]:
        """Every metric on labelled rows: a file, a DataFrame, a Dataset, or a list of dicts."""
        return self.task.evaluate(rows, Reading(**columns), self.predict_examples)

    def needs(self, head: str, what: str) -> None:
        """Refuse to use a head that is missing or untrained."""
        if head not in self.model.heads:
            has = ", ".join(self.model.heads) or "none"
            raise UserError(
                f"This model cannot {what}: it has no {head} head (it has: {has}). Use a model with one, e.g. 'en'."
            )
        if not is_trained(head, self.model.untrained):
            raise UserError(f"This model cannot {what} yet: its {head} head is untrained. Fine-tune it first.")


def _check(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name} is {value!r}. {suggest(value, list(choices))}")


def _pooled(encoded: Encoded, pool: str) -> list[np.ndarray]:
    """One vector per text in the caller's order; pool none: one (tokens, width) per text."""
    batch = encoded.batch
    if pool == "none":
        return [part.float().cpu().numpy() for part in batch.split(encoded.tokens)]
    if pool == "cls":
        return list(batch.restore(encoded.tokens[batch.starts].float()).cpu().numpy())
    parts = []
    for group in batch.groups:
        rows = encoded.tokens[group.start : group.stop]
        if group.lengths is None:
            square = rows.view(group.texts, group.length, -1)
            parts.append(square.mean(1, dtype=torch.float32) if pool == "mean" else square.amax(1).float())
        else:
            parts.append(torch.segment_reduce(rows.float(), pool, lengths=group.lengths))
    return list(batch.restore(torch.cat(parts)).cpu().numpy())


def _merge(texts: Sequence[Rows], vectors: Sequence[np.ndarray], pool: str) -> list[np.ndarray]:
    """Join the token vectors of each text's rows: each row contributes the tokens it owns."""
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
