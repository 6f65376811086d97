"""Which tokens speak for a label or a guess, and which against it: by gradients, or by leaving each out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.inference.explain import encoded_text, row_of, tokens_of
from bertkit.inference.predictor import Predictor
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model, first_vectors
from bertkit.model.inference import is_prepared
from bertkit.text.encoding import Encoding

STEPS = 32  # of the path from the baseline to the text


def importance(
    predictor: Predictor, text: str, text_b: str | None = None, *, by: str = "gradients", label: str = ""
) -> dict[str, Any]:
    """How much each token speaks for (positive) or against (negative) a label, or the best guess of a [MASK].

    by: gradients (integrated gradients from a text of [MASK], arXiv 1703.01365), mask (the probability lost when the
    token is masked) or remove (when it is left out). label: default the predicted one. Returns {tokens, importance,
    target, probability, baseline, by}; with gradients, importance adds up to about probability minus baseline.
    """
    if by not in ("gradients", "mask", "remove"):
        raise UserError(f"by is {by!r}; it must be gradients, mask or remove.")
    encoding = encoded_text(predictor, text, text_b)
    row = row_of(encoding)
    model = _plain_model(predictor)
    hidden = next((n for n in (predictor.tokenizer.mask_id, predictor.tokenizer.unk_id) if n is not None), 0)
    ask = _target(predictor, model, encoding)
    if ask is None:
        raise UserError(
            "There is nothing to explain: this model has no labels. Put [MASK] into the text to explain a guess, or "
            "use a model fine-tuned with `bertkit finetune classify`."
        )
    with torch.no_grad():
        original = ask.scores(model.encoder(predictor._pack([row])))[0]
    if label and label not in ask.names:
        raise UserError(f"There is no label {label!r}. Choose from: {', '.join(ask.names)}.")
    best = ask.names.index(label) if label else int(original.argmax())
    places = [n for n, special in enumerate(encoding.special) if not special and n != ask.place]
    weights = np.zeros(len(encoding), np.float64)
    baseline = [hidden if n in places else piece for n, piece in enumerate(encoding.ids)]
    with torch.no_grad():
        empty = ask.scores(model.encoder(predictor._pack([Row(baseline, row.segments, row.core)])))[0]
    if by == "gradients":
        weights[:] = _integrated(predictor, model, row, baseline, lambda encoded: ask.scores(encoded)[:, best])
    else:
        for n in places:
            ids = [*row.ids[:n], *([hidden] if by == "mask" else []), *row.ids[n + 1 :]]
            sides = row.segments and [*row.segments[:n], *row.segments[n + (by == "remove") :]]
            with torch.no_grad():
                moved = ask.place - 1 if by == "remove" and n < ask.place else ask.place
                encoded = model.encoder(predictor._pack([Row(ids, sides, (0, len(ids)))]))
                weights[n] = float(original[best] - ask.at(moved).scores(encoded)[0][best])
    return {
        "tokens": tokens_of(predictor, encoding), "importance": weights, "target": ask.names[best],
        "probability": float(original[best]), "baseline": float(empty[best]), "by": by,
    }  # fmt: skip


def _plain_model(predictor: Predictor) -> Model:
    """The model in float32 with ordinary linear maps, through which the gradients of importance flow."""
    if not is_prepared(predictor.model):
        return predictor.model
    return predictor.as_written().model.eval().requires_grad_(False)


class Target:
    """What importance is measured of. scores: Encoded → (texts, names), probabilities. place: of the mask, else -1."""

    def __init__(self, names: Sequence[str], score: Callable[[Encoded, int], Tensor], place: int = -1) -> None:
        self.names, self.score, self.place = list(names), score, place

    def scores(self, encoded: Encoded) -> Tensor:
        """What tokens are important for: the scores of labels or guesses, (texts, names)."""
        return self.score(encoded, self.place)

    def at(self, place: int) -> Target:
        """The same target of importance with its mask elsewhere."""
        return Target(self.names, self.score, place)


def is_explained(predictor: Predictor, encoding: Encoding) -> bool:
    """Whether the model says something of this text that `importance` explains: a label, or a guess."""
    return _target(predictor, predictor.model, encoding) is not None


def _target(predictor: Predictor, model: Model, encoding: Encoding) -> Target | None:
    """What the importance of tokens is measured for: the predicted label, or the guess at a mask."""
    options = predictor.folder.about.get("options", {})
    labels = predictor.folder.labels
    if "text" in model.heads and "text" not in model.untrained and len(labels) > 1:
        multi_label, temperature = options.get("multi_label"), options.get("temperature", 1.0)

        def label_scores(encoded: Encoded, _: int) -> Tensor:
            logits = model.ask("text", encoded).float()
            return logits.sigmoid() if multi_label else (logits / temperature).softmax(-1)

        return Target(labels, label_scores)
    mask = predictor.tokenizer.mask_id
    if "mlm" in model.heads and "mlm" not in model.untrained and mask in encoding.ids and not predictor.config.causal:
        size = predictor.tokenizer.size

        def guess_scores(encoded: Encoded, place: int) -> Tensor:
            places = encoded.batch.starts + place
            return model.ask("mlm", encoded, places).float().softmax(-1)[:, :size]

        names = [predictor.tokenizer.id_to_token(n) or "" for n in range(size)]
        return Target(names, guess_scores, encoding.ids.index(mask))
    return None


def _integrated(
    predictor: Predictor, model: Model, row: Row, baseline: list[int], score: Callable[[Encoded], Tensor]
) -> np.ndarray:
    """Integrated gradients of each token: the gradients of the token vectors along a straight path from the baseline's
    vectors to the text's (at the middle of each of STEPS steps), times the distance; added up over the width."""
    size = len(row.ids)
    batch = predictor._pack([row] * STEPS)
    table = model.encoder.embeddings.tokens.weight.detach()
    ends = table[torch.tensor(row.ids, device=table.device)].float()
    starts = table[torch.tensor(baseline, device=table.device)].float()
    middles = (torch.arange(STEPS, device=table.device) + 0.5) / STEPS
    path = (starts + middles[:, None, None] * (ends - starts)).reshape(STEPS * size, -1).requires_grad_(True)

    def on_the_path(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        filler = output.shape[0] - path.shape[0]
        return torch.cat([path, output[path.shape[0] :]]) if filler else path

    hook = model.encoder.embeddings.tokens.register_forward_hook(on_the_path)
    try:
        with torch.enable_grad():
            total = score(model.encoder(batch)).sum()
            (gradient,) = torch.autograd.grad(total, path)
    finally:
        hook.remove()
    mean = gradient.view(STEPS, size, -1).mean(0)
    return ((ends - starts) * mean).sum(-1).double().cpu().numpy()


def turned_by_masking(predictor: Predictor, row: Row, special: list[bool]) -> np.ndarray:
    """Importance without a label: how far the text's vector turns when each token is masked.

    1 minus the cosine; 0 for special tokens.
    """
    tokenizer = predictor.tokenizer
    mask = next((n for n in (tokenizer.mask_id, tokenizer.unk_id, tokenizer.pad_id) if n is not None), 0)
    places = [n for n, is_special in enumerate(special) if not is_special]
    rows = [row] + [Row([*row.ids[:n], mask, *row.ids[n + 1 :]], row.segments, row.core) for n in places]

    def use(encoded: Encoded) -> list[np.ndarray]:
        outputs = torch.nn.functional.normalize(first_vectors(encoded, "mean").float(), dim=-1)
        return list(encoded.batch.restore(outputs).cpu().numpy())

    original, *without = predictor.run(rows, use)
    turned = np.zeros(len(special), np.float32)
    turned[places] = [1 - float(original @ masked) for masked in without]
    return turned
