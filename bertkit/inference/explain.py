"""How a model reads one text: its pieces as vectors, where every head looks, what each layer makes of a word, which
masked words it guesses, and which tokens matter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.batch import pack
from bertkit.data.masking import MaskVocabulary, mask_tokens
from bertkit.data.packing import Example
from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.inference.fill import fill_jointly
from bertkit.inference.predictor import Predictor
from bertkit.model import layer_choice
from bertkit.model.attention import Attention, AttentionContext
from bertkit.model.encoder import Encoded, Layer
from bertkit.settings.training import MaskSettings
from bertkit.text.encoding import Encoding
from bertkit.text.words import sentences_of

MOST_JOINT = 8  # masks that are guessed together
LONGEST = 256  # tokens: larger maps are not readable on a page


def explain(predictor: Predictor, text: str, text_b: str | None = None) -> dict[str, Any]:
    """Explain how a model reads one text (or pair): its tokens, where every head looks, and which tokens matter.

    tokens: [{token, start, end, importance, looked_at}]; attention: (layers, heads, tokens, tokens), rows look at
    columns; heads: [{layer, head, itself, before, after, special, spread}]; said: {label, score, baseline}, the label
    of a fine-tuned model or the best guess of the first [MASK], None if there is neither. importance: integrated
    gradients of that score, with their sign (`importance.importance`); without a score, how far the text's vector turns
    when the token is masked.
    """
    # They read texts with this file's functions.
    from bertkit.inference.importance import importance, is_explained, turned_by_masking

    encoding = encoded_text(predictor, text, text_b)
    row = row_of(encoding)
    (maps,) = predictor.run([row], _maps, maps=True)
    prediction: dict[str, Any] | None = None
    if is_explained(predictor, encoding):
        why = importance(predictor, text, text_b)
        weights = why["importance"]
        prediction = {"label": why["target"], "score": why["probability"], "baseline": why["baseline"]}
    else:
        weights = turned_by_masking(predictor, row, encoding.special)
    tokens = [
        {
            "token": predictor.tokenizer.id_to_token(piece) or "", "start": start, "end": end, "side": side,
            "special": special, "importance": round(float(weight), 4), "looked_at": round(float(received), 4),
        }
        for piece, (start, end), side, special, weight, received in zip(
            encoding.ids, encoding.offsets, encoding.sides, encoding.special, weights, maps.mean((0, 1, 2))
        )
    ]  # fmt: skip
    return {
        "text": text, "text_b": text_b, "tokens": tokens, "attention": maps, "said": prediction,
        "heads": _habits(maps, np.asarray(encoding.special)),
    }  # fmt: skip


def encoded_text(predictor: Predictor, text: str, text_b: str | None = None, longest: int = LONGEST) -> Encoding:
    """The tokens of a text or pair to explain, unless there are none or too many to look at."""
    encoding = predictor.tokenizer.encode(text, text_b)
    limit = min(longest, predictor.config.max_tokens)
    if len(encoding) > limit:
        raise UserError(f"The text has {len(encoding)} tokens; at most {limit} can be inspected. Shorten it.")
    if all(encoding.special):
        raise UserError("The text is empty: there is nothing to inspect.")
    return encoding


def row_of(encoding: Encoding) -> Row:
    """A text to explain as one row of a batch."""
    return Row(encoding.ids, encoding.segments, (0, len(encoding)))


def tokens_of(predictor: Predictor, encoding: Encoding) -> list[dict[str, Any]]:
    """Tokens to explain: [{id, token, start, end, special, side, word, segment}]."""
    return [
        {
            "id": piece, "token": predictor.tokenizer.id_to_token(piece) or "", "start": start, "end": end,
            "special": special, "side": side, "word": word, "segment": segment,
        }
        for piece, (start, end), special, side, word, segment in zip(
            encoding.ids, encoding.offsets, encoding.special, encoding.sides, encoding.words, encoding.segments
        )
    ]  # fmt: skip


def _maps(encoded: Encoded) -> list[np.ndarray]:
    """The attention maps of a batch with one text: (layers, heads, tokens, tokens)."""
    size = encoded.batch.lengths[0]
    return [np.stack([layer[0][0, :, :size, :size].float().cpu().numpy() for layer in encoded.maps])]


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


# ---- Attention: all heads, how it flows through the layers, and one head in numbers.


def attention(predictor: Predictor, text: str, text_b: str | None = None) -> dict[str, Any]:
    """Where every head looks.

    tokens; attention: (layers, heads, tokens, tokens), rows look at columns; rollout: (layers, tokens, tokens), see
    `rollout`; heads: their habits as in `explain`, and `same`: the fraction that goes to the same piece elsewhere.
    """
    encoding = encoded_text(predictor, text, text_b)
    (maps,) = predictor.run([row_of(encoding)], _maps, maps=True)
    special = np.asarray(encoding.special)
    ids = np.asarray(encoding.ids)
    same = (ids[:, None] == ids[None, :]) & ~np.eye(len(ids), dtype=bool)
    rows = ~special & same.any(1)
    habits = _habits(maps, special)
    for habit in habits:
        weights = maps[habit["layer"] - 1, habit["head"] - 1]
        habit["same"] = float((weights * same)[rows].sum(-1).mean()) if rows.any() else None
    return {
        "tokens": tokens_of(predictor, encoding), "attention": maps, "rollout": rollout(maps), "heads": habits,
    }  # fmt: skip


def rollout(maps: np.ndarray) -> np.ndarray:
    """Attention rollout (arXiv 2005.00928): how much of each token reaches each place, up to every layer.

    maps: (layers, heads, tokens, tokens). A layer passes on half of what was there (its residual connection) and half
    of what its heads bring, on average. Returns (layers, tokens, tokens); each row adds up to 1.
    """
    mixed = 0.5 * maps.mean(1) + 0.5 * np.eye(maps.shape[-1], dtype=maps.dtype)
    flows = [mixed[0]]
    for layer in mixed[1:]:
        flows.append(layer @ flows[-1])
    return np.stack(flows)


def head_numbers(
    predictor: Predictor, text: str, text_b: str | None = None, *, layer: int = 1, head: int = 1
) -> dict[str, Any]:
    """One head step by step; layer and head count from 1.

    query, key, value: (tokens, head width); scores: query times key, (tokens, tokens); scaled: scores times `scale`
    (1 over the square root of the head's width); added: what masks and relative positions add, None if nothing;
    weights: the softmax of both; output: weights times value, (tokens, head width).
    """
    config = predictor.config
    if not (1 <= layer <= config.depth and 1 <= head <= config.heads):
        raise UserError(
            f"There is no head {head} in layer {layer}: layers 1 to {config.depth} have heads 1 to {config.heads}."
        )
    encoding = encoded_text(predictor, text, text_b)
    seen: list[tuple[Attention, Tensor, AttentionContext]] = []

    def remember(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Attention):
            seen.append((module, inputs[0], inputs[1]))

    layers = [module for module in predictor.model.encoder.layers if isinstance(module, Layer)]
    hooks = [module.attention.register_forward_pre_hook(remember) for module in layers]
    try:
        batch = pack([encoding.ids], [encoding.segments] if config.segments > 1 else None).to(predictor.device)
        with torch.no_grad():
            (maps,) = _maps(predictor.model.encoder(batch, maps=True))
    finally:
        for hook in hooks:
            hook.remove()
    module, x, context = seen[layer - 1]
    size, which = len(encoding), head - 1
    with torch.no_grad():
        qkv = module.qkv(x)
        if config.key_heads:
            qkv = module._shared_keys(qkv)
        qkv = qkv.view(-1, 3, config.heads, config.head_width)
        if context.rotation is not None:
            qkv = context.rotation(qkv)
        query, key, value = qkv[:size, :, which].float().unbind(1)
        scores = query @ key.t()
        added: Tensor | None = None
        if context.masks[0] is not None:
            added = context.masks[0].float().expand(1, config.heads, size, size)[0, which]
        if context.distances is not None:
            by_head = qkv[:size].view(1, size, 3, config.heads, config.head_width).permute(2, 0, 3, 1, 4)
            near = module._vectors(context.distances)[0]
            assert near is not None
            by_distance = module._by_distance(by_head, *near, exact=True)[0, which].float()
            added = by_distance if added is None else added + by_distance
        weights = torch.from_numpy(maps[layer - 1, which])
        steps = {
            "query": query, "key": key, "value": value, "scores": scores, "scaled": scores * module.scale,
            "added": added, "weights": weights, "output": weights @ value,
        }  # fmt: skip
    numbers = {name: None if step is None else step.cpu().numpy() for name, step in steps.items()}
    return {"tokens": tokens_of(predictor, encoding), "layer": layer, "head": head, "scale": module.scale, **numbers}


# ---- The input: what is added up before the first layer.


def input_vectors(predictor: Predictor, text: str, text_b: str | None = None, padding: int = 0) -> dict[str, Any]:
    """The vectors that are added up for each token, and what the first layer gets.

    parts: {token, position, segment → (tokens, width)}, only those the model has; sum: (tokens, width); input:
    (tokens, width), the sum after its norm (and projection); padding: [PAD] tokens to append, as batches of other
    programs have them. rotary: whether positions turn the queries and keys in each head instead of being added.
    """
    encoding = encoded_text(predictor, text, text_b)
    embeddings, config = predictor.model.encoder.embeddings, predictor.config
    pad = predictor.tokenizer.pad_id
    padding = padding if pad is not None else 0
    ids = torch.tensor([*encoding.ids, *[pad or 0] * padding], device=predictor.device)
    places = torch.arange(len(ids), device=predictor.device) + embeddings.first_position
    segments = torch.tensor([*encoding.segments, *[0] * padding], device=predictor.device)
    if embeddings.positions is not None and int(places[-1]) >= embeddings.positions.num_embeddings:
        raise UserError(f"The text and {padding} [PAD] are longer than this model's limit of {config.max_tokens}.")
    with torch.no_grad():
        parts = {"token": embeddings.tokens(ids)}
        if embeddings.positions is not None:
            parts["position"] = embeddings.positions(places)
        if embeddings.segments is not None:
            parts["segment"] = embeddings.segments(segments.clamp(max=embeddings.segments.num_embeddings - 1))
        batch = pack([ids.tolist()], [segments.tolist()] if config.segments > 1 else None).to(predictor.device)
        given = embeddings(batch, torch.float32 if predictor.device == "cpu" else predictor.model.encoder.dtype)
    total = sum(part.float() for part in parts.values())
    tokens = tokens_of(predictor, encoding)
    spelled = predictor.tokenizer.id_to_token(pad) if pad is not None else ""
    side = {"start": 0, "end": 0, "special": True, "side": -1, "word": -1, "segment": 0}
    tokens += [{"id": pad, "token": spelled, **side} for _ in range(padding)]
    return {
        "tokens": tokens, "parts": {name: part.float().cpu().numpy() for name, part in parts.items()},
        "sum": torch.as_tensor(total).cpu().numpy(), "input": given[: len(ids)].float().cpu().numpy(),
        "rotary": any(config.rotary(layer) for layer in range(config.depth)),
    }  # fmt: skip


# ---- Masked words: a row before and after, and what the model guesses.


def masked_row(
    predictor: Predictor, text: str, *, unit: str = "token", rate: float = 0.15, seed: int = 1,
    places: Sequence[int] | None = None, top: int = 5, joint: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A row as pretraining masks it, and what the model guesses at each masked place.

    unit: token, word or span, as `pretrain --masking.unit`; places: mask these tokens instead of random ones. tokens:
    before; after: the ids and pieces the model sees; masked: [{place, fate, probability, rank, guesses}], where `fate`
    is mask, random or kept, and probability and rank are those of the original piece. joint: guess all [MASK] together
    (independent, left-to-right or beam, as `fill`); fillings: its answers, None for one mask or more than MOST_JOINT.
    """
    predictor.needs("mlm", "predict masked words")
    tokenizer = predictor.tokenizer
    if tokenizer.mask_id is None or predictor.config.causal:
        raise UserError("This model cannot fill masks: it has no mask token, or reads from left to right.")
    encoding = encoded_text(predictor, text)
    ids, special = np.asarray(encoding.ids), np.asarray(encoding.special)
    if places is None:
        settings = MaskSettings(rate=rate, unit=unit)
        continues = np.asarray([n < len(tokenizer.continuation) and tokenizer.continuation[n] for n in encoding.ids])
        example = Example(ids, np.asarray(encoding.segments), special, ~continues & ~special)
        ordinary = np.asarray([n for n in range(tokenizer.size) if n not in tokenizer.special_ids])
        pieces = MaskVocabulary(tokenizer.mask_id, ordinary)
        after, chosen = mask_tokens(example, settings, rate, pieces, np.random.default_rng(seed))
        fates = [
            "mask" if after[n] == tokenizer.mask_id else "kept" if after[n] == ids[n] else "random" for n in chosen
        ]
    else:
        if wrong := [n for n in places if not 0 <= n < len(ids) or special[n]]:
            raise UserError(f"Token {wrong[0]} cannot be masked: the text has ordinary tokens 1 to {len(ids) - 2}.")
        after, chosen = ids.copy(), np.asarray(sorted(set(places)), dtype=np.int64)
        after[chosen] = tokenizer.mask_id
        fates = ["mask"] * len(chosen)

    def use(encoded: Encoded) -> list[Tensor]:
        scores = predictor.model.ask("mlm", encoded, torch.as_tensor(chosen, device=predictor.device))
        return [scores.float().softmax(-1)[:, : tokenizer.size].cpu()]

    masked = []
    if len(chosen):
        (scores,) = predictor.run([Row(after.tolist(), encoding.segments, (0, len(ids)))], use)
        for place, fate, row in zip(chosen.tolist(), fates, scores):
            best = row.topk(min(top, len(row)))
            right = float(row[int(ids[place])])
            guesses = [
                {"id": n, "token": tokenizer.id_to_token(n) or "", "probability": p}
                for p, n in zip(best.values.tolist(), best.indices.tolist())
            ]
            rank = int((row > right).sum()) + 1
            masked.append({"place": place, "fate": fate, "probability": right, "rank": rank, "guesses": guesses})
    seen = [{"id": n, "token": tokenizer.id_to_token(n) or ""} for n in after.tolist()]
    fillings = None
    if joint and 2 <= fates.count("mask") <= MOST_JOINT:
        fillings = fill_jointly(predictor, replace(encoding, ids=after.tolist()), top, joint)
    return {
        "tokens": tokens_of(predictor, encoding), "after": seen, "masked": masked, "unit": unit, "fillings": fillings,
    }  # fmt: skip


# ---- Layers: what each makes of a token, and maps of many vectors.


def layer_vectors(predictor: Predictor, text: str, text_b: str | None = None) -> np.ndarray:
    """Every token's vector in every layer: (layers + 1, tokens, width); the first are the embeddings."""
    (layers,) = predictor.run([row_of(encoded_text(predictor, text, text_b))], _layers, layers=True)
    return np.asarray(layers)


def _layers(encoded: Encoded) -> list[np.ndarray]:
    """The vectors of each text of a batch, layer by layer, to be explained: (layers + 1, tokens, width)."""
    by_layer = [encoded.batch.split(layer.float()) for layer in encoded.layers]
    return [torch.stack(layers).cpu().numpy() for layers in zip(*by_layer)]


def token_layers(predictor: Predictor, text: str, place: int) -> dict[str, Any]:
    """How a model reads one token, layer by layer: its vector in each, and what it resembles.

    vectors: (layers + 1, width); similar: (layers + 1, tokens), its cosine with each token of the text in that layer;
    choices: the six features of the BERT paper, name → vector.
    """
    encoding = encoded_text(predictor, text)
    if not 0 <= place < len(encoding):
        raise UserError(f"There is no token {place}: the text has tokens 0 to {len(encoding) - 1}.")
    layers = layer_vectors(predictor, text)
    unit = layers / np.maximum(np.linalg.norm(layers, axis=-1, keepdims=True), 1e-12)
    features = torch.from_numpy(layers[:, place])
    choices = {
        name: layer_choice.choose(name, predictor.config.depth).pick(list(features)).numpy()
        for name in layer_choice.CHOICES
    }
    return {
        "tokens": tokens_of(predictor, encoding), "place": place, "vectors": layers[:, place],
        "similar": np.einsum("lw,ltw->lt", unit[:, place], unit), "choices": choices,
    }  # fmt: skip


def vector_map(predictor: Predictor, texts: Sequence[str], word: str = "") -> dict[str, Any]:
    """Texts, or every occurrence of a word in them, as points of a plane, layer by layer (principal components).

    points: (layers + 1, n, 2); explained: (layers + 1, 2), the share of the variance each axis has; items: [{text,
    start, end}], the occurrences (of a text: all of it). A text's vector is the mean of its tokens, a word's that of
    its pieces.
    """
    vectors, items = [], []
    for number, text in enumerate(texts):
        if not text.strip():
            continue
        encoding = encoded_text(predictor, text)
        spans = [(0, len(text))] if not word else _occurrences(text, word)
        (layers,) = predictor.run([row_of(encoding)], _layers, layers=True)
        for start, end in spans:
            places = [
                n
                for n, ((a, b), special) in enumerate(zip(encoding.offsets, encoding.special))
                if not special and a < end and b > start
            ]
            if places:
                vectors.append(layers[:, places].mean(1))
                items.append({"text": number, "start": start, "end": end})
    if len(vectors) < 3:
        what = f"the word {word!r} occurs {len(vectors)} times" if word else f"there are {len(vectors)} texts"
        raise UserError(f"A map needs at least three points, but {what}. Add more texts.")
    stacked = np.stack(vectors, 1).astype(np.float64)
    pairs = [principal(layer) for layer in stacked]
    return {
        "points": np.stack([points for points, _ in pairs]), "explained": np.stack([share for _, share in pairs]),
        "items": items, "vectors": stacked,
    }  # fmt: skip


def _occurrences(text: str, word: str) -> list[tuple[int, int]]:
    """The places of a word in a text; "art" is not in "start"."""
    lowered, wanted = text.lower(), word.lower()
    starts = [n for n in range(len(text)) if lowered.startswith(wanted, n)]

    def inside(n: int) -> bool:  # "art" of "start" is another word; Chinese has no such borders
        around = (text[n - 1] if n else " ", text[n + len(word)] if n + len(word) < len(text) else " ")
        return any(mark.isascii() and mark.isalnum() for mark in around) and word.isascii()

    return [(n, n + len(word)) for n in starts if not inside(n)]


def principal(vectors: np.ndarray, axes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """The first principal components of (n, width): points (n, axes) and each axis's share of the variance.

    An axis points to where its largest coordinate is positive, so that the picture is always the same.
    """
    centred = vectors - vectors.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), axes))
    share = np.zeros(axes)
    filled = min(axes, len(sizes))
    points[:, :filled] = (left * sizes)[:, :filled]
    share[:filled] = sizes[:filled] ** 2 / max(float((sizes**2).sum()), 1e-12)
    signs = np.sign(points[np.abs(points).argmax(0), range(axes)])
    return points * np.where(signs == 0, 1, signs), share


MOST_PAIRS = 32


def sentence_pairs(predictor: Predictor, text: str, seed: int = 0, most: int = MOST_PAIRS) -> dict[str, Any]:
    """Next sentence, explained: a text's sentences in pairs as pretraining makes them, and what the head says of each.

    Half of the pairs are neighbours; in the other half, the second sentence is drawn from another paragraph (an empty
    line separates two), or from elsewhere where there is one alone. An ALBERT is asked for the order instead: every
    second pair is swapped. Returns {head, pairs: [{a, b, label, probability}], right}; label: whether it is so;
    right: the share of pairs for which the probability is on the label's side of a half.
    """
    paragraphs = [sentences for part in re.split(r"\n\s*\n", text) if (sentences := sentences_of(part))]
    neighbours = [(n, a, b) for n, part in enumerate(paragraphs) for a, b in pairwise(part)]
    if len(neighbours) < 3:
        raise UserError(f"The text has {len(neighbours)} pairs of neighbouring sentences; give a text with at least 3.")
    chance = np.random.default_rng(seed)
    chosen = [neighbours[n] for n in sorted(chance.permutation(len(neighbours))[:most].tolist())]
    ordered = "next_sentence" not in predictor.model.heads or "next_sentence" in predictor.model.untrained
    pairs: list[tuple[str, str, bool]] = []
    for number, (paragraph, a, b) in enumerate(chosen):
        others = [sentence for n, part in enumerate(paragraphs) if n != paragraph for sentence in part]
        others = others or [sentence for sentence in paragraphs[0] if sentence not in (a, b)]
        if number % 2 == 0:
            pairs.append((a, b, True))
        else:
            pairs.append((b, a, False) if ordered else (a, others[int(chance.integers(len(others)))], False))
    answers = predictor.follows([a for a, _, _ in pairs], [b for _, b, _ in pairs])
    head = "order" if "order" in answers[0] else "next"
    rows = [
        {"a": a, "b": b, "label": label, "probability": answer[head]} for (a, b, label), answer in zip(pairs, answers)
    ]
    right = sum((row["probability"] >= 0.5) == row["label"] for row in rows) / len(rows)
    return {"head": head, "pairs": rows, "right": right}
