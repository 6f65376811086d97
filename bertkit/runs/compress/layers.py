"""Fewer layers: which ones stay, and the same model with those alone."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bertkit.errors import UserError
from bertkit.settings.model import Config
from bertkit.model.heads import HEADS, Model


def chosen(config: Config, number: int, drop: str = "spread") -> list[int]:
    """The layers that stay, from 0. drop "spread": evenly, as DistilBERT took every second; "top": the lowest stay.

    A layer keeps its kind: one that learnt to see its neighbours alone must not be put where the whole text is seen,
    and a pre-norm stack's first layer, which may have no norm of its own, stays the first. Where layers share weights
    (ALBERT), all weights stay and are visited less often.
    """
    if not 1 <= number < config.depth:
        raise UserError(f"--layers {number}: the model has {config.depth}; keep at least 1 and fewer than that.")
    if number < config.unique_layers < config.depth:
        raise UserError(
            f"--layers {number}: the model's {config.depth} layers share {config.unique_layers} sets of weights, "
            "and each is needed. Keep at least as many."
        )
    if drop == "top" or config.unique_layers < config.depth:
        return list(range(number))
    ideal = [n * config.depth // number for n in range(number)]
    return _nearest(ideal, [config.is_global(n) for n in range(config.depth)])


def _nearest(ideal: list[int], kinds: list[bool]) -> list[int]:
    """A rising sequence of layers near the ideal ones, the n-th of the n-th kind, the first the first."""
    best: dict[int, tuple[int, list[int]]] = {0: (0, [0])}  # last layer taken → (distance so far, layers)
    for n, wish in enumerate(ideal[1:], 1):
        best = {
            layer: min(
                (cost + abs(layer - wish), [*taken, layer]) for last, (cost, taken) in best.items() if last < layer
            )
            for layer in range(n, len(kinds))
            if kinds[layer] == kinds[n] and min(best) < layer
        }
    return min(best.values())[1]


def with_layers(model: Model, kept: list[int]) -> Model:
    """The model with these layers alone, weights copied."""
    config = model.config
    if config.unique_layers < config.depth:
        return rebuilt(model, replace(config, depth=len(kept)), dict(model.state_dict()))
    smaller = replace(config, depth=len(kept), unique_layers=len(kept))
    place = {layer: n for n, layer in enumerate(kept)}
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
    """A model of other numbers with the heads of this one, and this state."""
    heads = {}
    for kind in model.heads:
        out = model.head(kind).out
        heads[kind] = HEADS[kind].outputs or (out.out_features if out is not None else 0)
    new = Model(config, heads, summary=model.summary is not None)
    new.crf, new.untrained = model.crf, model.untrained
    new.load_state_dict(state)
    new.encoder.dtype = model.encoder.dtype
    return new
