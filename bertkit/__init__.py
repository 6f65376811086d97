"""bertkit: BERT whole, on the machine you have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.predictor import Predictor

__version__ = "0.1.0"


def load(name: str, precision: str = "auto", device: str = "auto") -> Predictor:
    """Open a model: an embedded name (`en`, `zh`), a folder, or a hub name `org/name`."""
    from bertkit.predictor import Predictor

    return Predictor.load(name, precision, device)


_VERBS: dict[str, str] = {}  # name → module with a `call` function, for use from Python


def __getattr__(name: str) -> Any:
    """Verbs, imported when first used: `import bertkit` stays light."""
    if name in _VERBS:
        return getattr(import_module(_VERBS[name]), name)
    raise AttributeError(f"module 'bertkit' has no attribute '{name}'")
