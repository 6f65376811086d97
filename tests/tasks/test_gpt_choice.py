"""A GPT learns to choose among answers, and its folder opens again, here and in transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as hf

import bertkit
from bertkit import samples
from tests.support import folders


def test_a_gpt_that_learned_to_choose_scores_as_transformers_does(tmp_path: Path) -> None:
    folders.write(tmp_path / "gpt", "gpt2", "GPT2LMHeadModel", max_tokens=200)
    files = {role: str(samples.path("en", f"choices_{role}.jsonl")) for role in ("train", "dev")}
    run = bertkit.finetune("choose", **files, model=str(tmp_path / "gpt"), out=str(tmp_path / "run"), steps=2,
                           precision="fp32")  # fmt: skip
    row = {"text": "the cat", "choices": ["in the cat", "the mat", "北京"]}
    (answer,) = run.predict([row])
    theirs = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    assert theirs.config.num_labels == 1
    scores = []
    for choice in row["choices"]:
        ids = run.tokenizer.encode(row["text"], choice).ids
        with torch.no_grad():
            scores.append(theirs(torch.tensor([ids])).logits[0, 0])
    np.testing.assert_allclose(answer["scores"], torch.stack(scores).softmax(0).numpy(), atol=1e-4)
    assert bertkit.load(tmp_path / "run", precision="fp32").predict([row])[0]["choice"] == answer["choice"]
