"""`bertkit pretrain`: from a token store to your own encoder."""

from __future__ import annotations

from typing import Any

from bertkit.config import merged, preset
from bertkit.notify import duration, short_count


def __getattr__(name: str) -> Any:
    """Import the settings class on first use."""
    if name == "Settings":
        from bertkit.settings.pretrain import PretrainSettings

        return PretrainSettings
    raise AttributeError(name)


def resolve(table: dict[str, Any]) -> dict[str, Any]:
    """The settings of `pretrain`: given values on top of the preset's."""
    return merged(preset(table.get("preset", "bert-mini")), table)


def run(settings: Any) -> dict[str, Any]:
    """Pretrain from scratch, or continue pretraining a model on your text (--init).

    The preset decides the masking: --set masking.rate=0.15 changes how many pieces are masked, and
    --set masking.unit=word masks whole words (whole-word masking).
    """
    if not settings.plan:
        from bertkit.files.atomic import check_folder
        from bertkit.runs.pretrain.run import pretrain

        check_folder(settings.out)
        return pretrain(settings)
    from bertkit import machine
    from bertkit.runs.pretrain.build import build
    from bertkit.runs.pretrain.run import estimate_cost
    from bertkit.training import distributed

    machine.limit_onednn_cache(machine.TRAINING_KERNELS)
    machine.set_up(settings.threads)
    world = distributed.join(machine.device_for(settings.device))
    return {"plan": estimate_cost(build(settings, world), world)}


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `pretrain`: the final scores, or with --plan the expected cost."""
    if "plan" in result:
        p = result["plan"]
        low, high = p["expected_loss"]
        return [
            f"{p['preset']}: {short_count(p['parameters'])} parameters, {p['memory_gb']} GB of memory",
            f"speed           {p['tokens_per_second']:,.0f} tokens/s ({p['seconds_per_step']:.3f} s per step)",
            f"one pass        {duration(p['seconds_per_epoch'])} for {p['store_tokens']:,} tokens",
            f"this run        {duration(p['seconds'])}: {p['steps']:,} steps, {p['tokens']:,} tokens, "
            f"{p['epochs']} passes",
            f"expected loss   {low} to {high} (a rough guide)",
            *(f"warning         {words}" for words in p["warnings"]),
        ]
    scores = ", ".join(f"{k} {v:.4g}" for k, v in result.items() if isinstance(v, float) and k not in ("seconds",))
    return [
        f"{result['folder']}: {result['steps']:,} steps, {result['tokens']:,} tokens, "
        f"{duration(result['seconds'])}; {scores}"
    ]
