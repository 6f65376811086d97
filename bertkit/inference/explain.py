"""How a model reads one text: its tokens, where every head looks, and which tokens matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.encoder import Encoded
from bertkit.model.heads import first_vectors

LONGEST = 256  # tokens: larger maps are not readable on a page


def explain(predictor: Predictor, text: str, text_b: str | None = None) -> dict[str, Any]:
    """Explain how a model reads one text (or pair): its tokens, where every head looks, and which tokens matter.

    tokens: [{token, start, end, importance, looked_at}]; attention: (layers, heads, tokens, tokens), rows look at
    columns; heads: [{layer, head, itself, before, after, special, spread}]; said: the label and its score, if the model
    has been fine-tuned to predict labels.
    """
    encoding = predictor.tokenizer.encode(text, text_b)
    size = len(encoding)
    limit = min(LONGEST, predictor.config.max_tokens)
    if size > limit:
        raise UserError(f"The text has {size} tokens; at most {limit} can be inspected. Shorten it.")
    if all(encoding.special):
        raise UserError("The text is empty: there is nothing to inspect.")
    row = Row(encoding.ids, encoding.segments, (0, size))
    (maps,) = predictor.run([row], _maps, maps=True)
    prediction, importance = _importance(predictor, row, encoding.special)
    tokens = [
        {
            "token": predictor.tokenizer.id_to_token(piece) or "", "start": start, "end": end, "side": side,
            "special": special, "importance": round(float(weight), 4), "looked_at": round(float(received), 4),
        }
        for piece, (start, end), side, special, weight, received in zip(
            encoding.ids, encoding.offsets, encoding.sides, encoding.special, importance, maps.mean((0, 1, 2))
        )
    ]  # fmt: skip
    return {
        "text": text, "text_b": text_b, "tokens": tokens, "attention": maps, "said": prediction,
        "heads": _habits(maps, np.asarray(encoding.special)),
    }  # fmt: skip


def _maps(encoded: Encoded) -> list[np.ndarray]:
    """The attention maps of a batch with one text: (layers, heads, tokens, tokens)."""
    size = encoded.batch.lengths[0]
    return [np.stack([layer[0][0, :, :size, :size].float().cpu().numpy() for layer in encoded.maps])]


def _importance(predictor: Predictor, row: Row, special: list[bool]) -> tuple[dict[str, Any] | None, np.ndarray]:
    """How much is lost when each token is masked: of the label's score, or of the text vector's direction."""
    tokenizer, model = predictor.tokenizer, predictor.model
    mask = next((n for n in (tokenizer.mask_id, tokenizer.unk_id, tokenizer.pad_id) if n is not None), 0)
    places = [n for n, is_special in enumerate(special) if not is_special]
    rows = [row] + [Row([*row.ids[:n], mask, *row.ids[n + 1 :]], row.segments, row.core) for n in places]
    options = predictor.folder.about.get("options", {})
    multi_label, temperature = options.get("multi_label"), options.get("temperature", 1.0)
    predicts_label = "text" in model.heads and "text" not in model.untrained and len(predictor.folder.labels) > 1

    def use(encoded: Encoded) -> list[np.ndarray]:
        if predicts_label:
            logits = model.ask("text", encoded).float()
            outputs = logits.sigmoid() if multi_label else (logits / temperature).softmax(-1)
        else:
            outputs = torch.nn.functional.normalize(first_vectors(encoded, "mean").float(), dim=-1)
        return list(encoded.batch.restore(outputs).cpu().numpy())

    original, *without = predictor.run(rows, use)
    importance = np.zeros(len(special), np.float32)
    if not predicts_label:
        importance[places] = [1 - float(original @ masked) for masked in without]
        return None, importance
    best = int(original.argmax())
    importance[places] = [float(original[best] - masked[best]) for masked in without]
    return {"label": predictor.folder.labels[best], "score": float(original[best])}, importance


def _habits(maps: np.ndarray, special: np.ndarray) -> list[dict[str, Any]]:
    """Where each head looks, as fractions of its attention; spread: the effective number of tokens it looks at."""
    habits = []
    for layer, head in np.ndindex(maps.shape[:2]):
        attention = maps[layer, head][~special]  # from ordinary tokens only
        rows = np.arange(len(attention))
        numbers = np.flatnonzero(~special)
        near = {name: np.clip(numbers + by, 0, len(special) - 1) for name, by in (("before", -1), ("after", 1))}
        entropy = -(attention * np.log(np.maximum(attention, 1e-12))).sum(-1)
        habits.append(
            {
                "layer": layer + 1, "head": head + 1, "itself": float(attention[rows, numbers].mean()),
                **{name: float(attention[rows, columns].mean()) for name, columns in near.items()},
                "special": float(attention[:, special].sum(-1).mean()), "spread": float(np.exp(entropy).mean()),
            }
        )  # fmt: skip
    return habits
