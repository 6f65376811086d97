"""`bertkit seq2seq`: train the Transformer on pairs of texts."""

from __future__ import annotations

from typing import Any

from bertkit.settings.ancestors import Seq2SeqSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Train the encoder-decoder Transformer to turn sources into targets."""
    from bertkit.ancestors.transformer.train import train
    from bertkit.files.atomic import check_folder

    check_folder(settings.out)
    return train(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """The scores, and where the model is."""
    shown = [f"{name:20} {value:.4f}" for name, value in result["metrics"].items()]
    return [*shown, f"scored on {result['rows']:,} dev pairs; best of step {result['best_step']:,} in {result['out']}"]


__all__ = ["Settings", "lines", "run"]
