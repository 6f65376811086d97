"""Does it learn? BERT-tiny from scratch on a few megabytes of real text, in minutes on a CPU.

Prints the held-out masked-word loss beside the entropy of the pieces' frequencies (what a model that knows only
frequencies reaches), and the accuracy of next-sentence prediction beside chance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _harness

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "corpus" / "en_wikipedia.txt.xz"


def text_file(folder: Path, megabytes: float) -> Path:
    """The first megabytes of the corpus, or of the sample text (repeated never) where it is absent."""
    from bertkit import samples
    from bertkit.data.readers.documents import read_documents

    source = DATA if DATA.is_file() else samples.path("en", "passages.txt")
    path = folder / "text.txt"
    size = 0
    with path.open("w", encoding="utf-8") as out:
        for document in read_documents(source):
            out.write(document.strip() + "\n\n")
            size += len(document)
            if size > megabytes * 1e6:
                break
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="end within three minutes")
    parser.add_argument("--smoke", action="store_true", help="a few steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    minutes = 0.05 if args.smoke else 2.0 if args.quick else args.minutes
    with tempfile.TemporaryDirectory() as name:
        rows = learn(Path(name), minutes, args)
    document = {"machine": _harness.machine(args.threads or 2, ["torch"]), "rows": rows}
    print(
        json.dumps(document)
        if args.json
        else "\n".join(f"{r['case']:28} {r['contestant']:22} {r['value']:.4f}" for r in rows)
    )


def learn(folder: Path, minutes: float, args: argparse.Namespace) -> list[dict]:
    from bertkit import config
    from bertkit.commands import prepare, tokenizer
    from bertkit.data.store import Store
    from bertkit.runs.pretrain.run import pretrain
    from bertkit.settings.pretrain import PretrainSettings

    text = text_file(folder, 1 if args.smoke else 12)
    tokenizer.run(tokenizer.Settings(texts=(text,), out=folder / "tokenizer", size=8000))
    prepare.run(prepare.Settings(texts=(text,), tokenizer=str(folder / "tokenizer"), out=folder / "store"))
    store = Store.open(folder / "store")
    counts = np.bincount(np.asarray(store.ids[:]), minlength=store.tokenizer.size).astype(float)
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * np.log(share)).sum())
    table = config.merged(
        config.preset("bert-tiny"),
        {
            "preset": "bert-tiny", "data": folder / "store", "out": folder / "run", "minutes": minutes,
            "lengths": [[0.6, 64], [0.4, 128]],
            "eval_length": 128, "held_out": 0.02, "eval_tokens": 65536, "threads": args.threads,
            "batch_tokens": 4096, "model": {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0},
            "masking": {"copies": 0}, "loop": {"lr": 2e-3, "warmup": 0.05},
        },
    )  # fmt: skip
    result = pretrain(config.build(PretrainSettings, table))
    rows = [
        ("masked-word loss", "unigram entropy", entropy, "nats"),
        ("masked-word loss", "bert-tiny", result["mlm_loss"], "nats"),
        ("masked-word accuracy", "bert-tiny", result["mlm_accuracy"], "share"),
        ("next-sentence accuracy", "chance", 0.5, "share"),
        ("next-sentence accuracy", "bert-tiny", result["next_sentence_accuracy"], "share"),
        ("tokens seen", "bert-tiny", float(result["tokens"]), "tokens"),
    ]
    base = {case: value for case, who, value, _ in rows if who in ("unigram entropy", "chance")}
    return [
        {"case": case, "contestant": who, "value": value, "unit": unit, "ratio": value / base.get(case, value)}
        for case, who, value, unit in rows
    ]


if __name__ == "__main__":
    main()
