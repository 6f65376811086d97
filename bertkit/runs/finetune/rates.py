"""How fast each parameter learns in a fine-tuning."""

from __future__ import annotations

from bertkit.settings.finetune import FinetuneSettings
from bertkit.model.heads import Model

WORDS_LIKE_BERTS = 0.04  # the size (root mean square) of BERT's word vectors, which the usual rates are made for
CRF_RATE = 1e-2  # a CRF's scores start from nothing and are compared with logits: at an encoder's rate they stay there


class Rates:
    """The peak rate of a run, and every parameter's share of it."""

    def __init__(self, settings: FinetuneSettings, model: Model) -> None:
        self.settings, self.model = settings, model
        self.peak = settings.lr or self._chosen()
        self.words = 1.0 if settings.freeze else self._words()

    def _chosen(self) -> float:
        """By width (narrow models learn faster); heads alone bear much more."""
        if self.settings.freeze:
            return 2e-3
        # 5e-5 for BERT-base. At width 256 six times that was seven points better on SST-2 (docs/results.md).
        narrow = 768 / self.model.config.width
        return 5e-5 * max(narrow, min(12.0, narrow**2))

    def _words(self) -> float:
        """Word vectors that grew larger than BERT's take larger steps: a rare word must be able to change its meaning.

        Some pretrainings (Muon's) leave them several times as large. On 6,000 rows of SST-2 `en` gained three points,
        on all 67,349 none (docs/results.md).
        """
        size = float(self.model.encoder.embeddings.words.weight.detach().float().square().mean().sqrt())
        return min(10.0, max(1.0, round(size / max(WORDS_LIKE_BERTS, self.model.config.init_std), 2)))

    def share(self, name: str) -> float:
        """A parameter's share of the rate: less in the layers below where so asked, more for large word vectors."""
        decay, depth = self.settings.layer_decay, self.model.config.unique_layers
        parts = name.split(".")
        if "crf" in parts:
            return CRF_RATE / self.peak
        if "encoder" not in parts:
            return 1.0
        number = int(parts[parts.index("layers") + 1]) if "layers" in parts else -1
        return float(decay ** (depth - number)) * (self.words if "words" in parts else 1.0)
