"""What a folder may still say of itself once its weights are others: scores belong to the weights they were made by."""

from __future__ import annotations

from typing import Any

MEASURED = ("metrics", "scored_on", "result")  # of bertkit.json: what training reached
FITTED = ("temperature", "abstain")  # options that were fitted to the outputs


def changed(about: dict[str, Any], said: str, facts: dict[str, Any], *, refitted: bool) -> dict[str, Any]:
    """bertkit.json without the original's scores. said: what was done, for the card; facts: for its table.

    refitted: whether the outputs moved so far that options fitted to them (temperature, abstaining) go too; labels,
    windows and the other options stay.
    """
    scores = {name for key in MEASURED for name in _table(about, key)}
    kept = {key: value for key, value in about.items() if key not in MEASURED}
    kept["facts"] = {key: value for key, value in _table(about, "facts").items() if key not in scores} | facts
    fitted = [key for key in FITTED if key in _table(about, "options")]
    if refitted and fitted:
        kept["options"] = {key: value for key, value in about["options"].items() if key not in FITTED}
    if refitted:
        kept.pop("calibration", None)
    told = [said, "The original's scores are not its own and are left out."] if scores else [said]
    if fitted:
        told.append(FITTED_TOLD[refitted].format(" and ".join(fitted)))
    kept["notes"] = [*about.get("notes", []), " ".join(told)]
    return kept


FITTED_TOLD = {
    True: "So are the options that were fitted to its outputs ({}): probabilities are uncalibrated.",
    False: "Kept are the options that were fitted to the original's outputs: {}.",
}


def _table(about: dict[str, Any], key: str) -> dict[str, Any]:
    value = about.get(key)
    return value if isinstance(value, dict) else {}
