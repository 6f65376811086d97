"""Removes whole layers and neurons: a smaller model of the same family, which transformers opens."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.checkpoint.card import changed
from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.checkpoint.locate import locate
from bertkit.data.readers import read_rows
from bertkit.data.windows import Windows, encode_rows
from bertkit.errors import UserError
from bertkit.files.atomic import write_new
from bertkit.inference.predictor import Predictor
from bertkit.model.encoder import FeedForward
from bertkit.model.heads import HEADS, Model
from bertkit.notify import note
from bertkit.runs.compress import measure
from bertkit.settings.compress import PruneSettings
from bertkit.settings.model import Config
from bertkit.tasks.base import Reading

# ---- Fewer layers: which ones stay, and the model with only those.


def chosen(config: Config, number: int, drop: str = "spread") -> list[int]:
    """Which layers pruning keeps, from 0.

    drop "spread": evenly, like DistilBERT's every second; "top": keep the lowest.

    A layer keeps its kind: one trained on local attention must not be put where the whole text is seen,
    and a pre-norm stack's first layer, which may have no norm, stays the first. Where layers share weights
    (ALBERT), all weights are kept and visited less often.
    """
    if not 1 <= number < config.depth:
        raise UserError(f"--layers {number}: the model has {config.depth}; keep at least 1 and fewer than that.")
    if number < config.unique_layers < config.depth:
        raise UserError(
            f"--layers {number}: the model's {config.depth} layers share {config.unique_layers} sets of weights, "
            "and each is needed. Keep at least that many."
        )
    if drop == "top" or config.unique_layers < config.depth:
        return list(range(number))
    ideal = [n * config.depth // number for n in range(number)]
    return _nearest(ideal, [config.is_global(n) for n in range(config.depth)])


def _nearest(ideal: list[int], kinds: list[bool]) -> list[int]:
    """Layers pruning keeps: a rising sequence near the ideal ones, the n-th of the n-th kind."""
    best: dict[int, tuple[int, list[int]]] = {0: (0, [0])}  # last layer kept → (distance so far, layers)
    for n, target in enumerate(ideal[1:], 1):
        best = {
            layer: min(
                (cost + abs(layer - target), [*path, layer]) for last, (cost, path) in best.items() if last < layer
            )
            for layer in range(n, len(kinds))
            if kinds[layer] == kinds[n] and min(best) < layer
        }
    return min(best.values())[1]


def with_layers(model: Model, numbers: list[int]) -> Model:
    """The pruned model with only these layers, weights copied."""
    config = model.config
    if config.unique_layers < config.depth:
        return rebuilt(model, replace(config, depth=len(numbers)), dict(model.state_dict()))
    smaller = replace(config, depth=len(numbers), unique_layers=len(numbers))
    place = {layer: n for n, layer in enumerate(numbers)}
    state = {}
    for name, tensor in model.state_dict().items():
        parts = name.split(".")
        if parts[:2] == ["encoder", "layers"]:
            if int(parts[2]) not in place:
                continue
            parts[2] = str(place[int(parts[2])])
        state[".".join(parts)] = tensor
    return rebuilt(model, smaller, state)


def rebuilt(model: Model, config: Config, state: dict[str, Tensor]) -> Model:
    """The pruned model: another config, the same heads, and this state."""
    heads = {}
    for kind in model.heads:
        out = model.head(kind).out
        heads[kind] = HEADS[kind].outputs or (out.out_features if out is not None else 0)
    new = Model(config, heads, pooler=model.pooler is not None)
    new.crf, new.untrained = model.crf, model.untrained
    new.load_state_dict(state)
    new.encoder.dtype = model.encoder.dtype
    return new


# ---- Layers and neurons removed: a smaller model of the same family, which transformers opens.

MULTIPLE = 8  # neurons stay in multiples of this: odd widths multiply slowly
MOST = 1000  # rows on which neurons are ranked


def prune(settings: PruneSettings) -> dict[str, Any]:
    """Prune layers or neurons as requested, write the folder, and compare it with the model."""
    if not settings.layers and settings.inner == 1.0:
        raise UserError(
            "Nothing to prune: pass --layers N to keep N layers, or --inner 0.5 to keep half of the neurons."
        )
    before = Predictor.load(settings.model, settings.precision, "cpu")
    rows = measure.rows_to_score(settings, before)
    folder = read_folder(locate(settings.model))
    depth = folder.model.config.depth
    if settings.layers:
        numbers = chosen(folder.model.config, settings.layers, settings.drop)
        folder.model = with_layers(folder.model, numbers)
        note(f"Keeping layers {', '.join(str(n + 1) for n in numbers)} of {depth}.")
    if settings.inner < 1:
        folder.model = fewer_neurons(folder.model, settings.inner, activity(Predictor(folder, "fp32", "cpu"), settings))
    config = folder.model.config
    facts = {"pruned from": settings.model, "layers": config.depth, "inner": config.inner}
    change = f"Layers or neurons of {settings.model} were removed."
    folder.about = changed(folder.about, change, facts, refitted=True)
    write_new(settings.out, lambda path: write_folder(path, folder))
    after = Predictor.load(settings.out, settings.precision, "cpu")
    comparison = measure.side_by_side(settings, before, after, rows)
    measure.keep_scores(settings, comparison)
    return {
        "out": str(settings.out), "model": settings.model, "depth": [depth, config.depth],
        "inner": [before.config.inner, config.inner], "task": measure.has_task(after), "compared": comparison,
    }  # fmt: skip


def activity(model: Predictor, settings: PruneSettings) -> list[tuple[Tensor, Tensor]]:
    """Mean and mean magnitude of each neuron's activation on some texts, to prune by, per layer: (inner,) each."""
    sums: list[Tensor] = []
    tokens: list[int] = []  # per layer: layers that share their weights may be visited unequally often
    handles, lock = [], Lock()

    def listen(place: int) -> Any:
        def hear(module: nn.Module, inputs: tuple[Tensor]) -> None:
            x = inputs[0].double()
            added = torch.stack([x.sum(0), x.abs().sum(0)])
            with lock:  # batches are computed in parallel
                sums[place] += added
                tokens[place] += len(x)

        return hear

    for place, part in enumerate(_parts(model.model)):
        sums.append(torch.zeros(2, part.narrow.in_features, dtype=torch.float64))
        tokens.append(0)
        handles.append(part.narrow.register_forward_pre_hook(listen(place)))
    windows = Windows(model.config.max_tokens, "truncate")
    encoded_rows = encode_rows(model.tokenizer, _texts(model, settings), None, windows)
    rows = [row for item in encoded_rows for row in item.rows if row.ids]
    model.run(rows, lambda encoded: [None] * encoded.batch.texts)
    for handle in handles:
        handle.remove()
    means = [item.float() / max(1, count) for item, count in zip(sums, tokens)]
    return [(mean[0], mean[1]) for mean in means]


def _texts(model: Predictor, s: PruneSettings) -> list[str]:
    """The texts on which pruning ranks neurons."""
    if s.train is None:
        note("No --train file: neurons are ranked on sample texts. Your own texts give a better ranking.")
        rows = measure.sample_rows(model)
    elif measure.has_task(model):
        reading = model.task.reading_of(s.train, Reading(s.text, s.text_b, s.label, s.encoding))
        rows = model.task.read(s.train, reading, labelled=False)
    else:
        rows = list(read_rows(s.train, text=s.text, labelled=False, encoding=s.encoding))
    return [text for row in rows[:MOST] for text in _texts_of(row)]


def _texts_of(row: Any) -> list[str]:
    """The texts of any kind of example, on which neurons are ranked for pruning."""
    if isinstance(row, str):
        return [row]
    texts = [getattr(row, name, None) for name in ("text", "text_b", "question", "context")]
    return [text for text in (*texts, *getattr(row, "choices", ())) if text]


def _parts(model: Model) -> list[FeedForward]:
    return [layer.feed_forward for layer in model.encoder.layers]  # type: ignore[misc]


def fewer_neurons(model: Model, share: float, activations: list[tuple[Tensor, Tensor]]) -> Model:
    """Prune neurons: keep those that move each layer's output most: mean magnitude times outgoing weight.

    The mean activation of the others goes into the bias if the family has one. activations: from `activity`.
    """
    config = model.config
    number = max(MULTIPLE, round(share * config.inner / MULTIPLE) * MULTIPLE)
    if number >= config.inner:
        raise UserError(f"--inner {share:g} keeps all {config.inner} neurons (in multiples of {MULTIPLE}). Lower it.")
    state = dict(model.state_dict())
    for n, (part, (mean, loudness)) in enumerate(zip(_parts(model), activations, strict=True)):
        prefix = f"encoder.layers.{n}.feed_forward."
        narrow = part.narrow.weight.detach()
        order = (loudness * narrow.norm(dim=0)).argsort(descending=True)
        keep, removed = order[:number].sort().values, order[number:]
        rows = torch.cat([keep, keep + config.inner]) if config.gated else keep
        for leaf in ("weight", "bias"):
            if f"{prefix}wide.{leaf}" in state:
                state[f"{prefix}wide.{leaf}"] = state[f"{prefix}wide.{leaf}"][rows]
        state[f"{prefix}narrow.weight"] = narrow[:, keep]
        if f"{prefix}narrow.bias" in state:
            state[f"{prefix}narrow.bias"] = state[f"{prefix}narrow.bias"] + narrow[:, removed] @ mean[removed]
    return rebuilt(model, replace(config, inner=number), state)
