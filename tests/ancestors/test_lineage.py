"""One sentence as BERT's ancestors read it."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.ancestors.lineage import hmm_tagger, lineage, ngram_model
from bertkit.errors import UserError

TEXT = "The old man went to London."


@pytest.mark.parametrize(("language", "text"), [("en", TEXT), ("zh", "老人去了北京。")])
def test_every_row_is_what_its_model_says(language: str, text: str) -> None:
    read = lineage(text, language)
    assert [row["word"] for row in read["ngram"]] == [*read["words"], "</s>"]
    model = ngram_model(language)
    total = sum(np.log(row["probability"]) for row in read["ngram"])
    ids = [model.ids.get(word, 0) for word in ["<s>", "<s>", *read["words"], "</s>"]]
    log10 = model.log10_of(np.asarray(ids))[2:]
    assert total == pytest.approx(float(log10.sum()) * np.log(10), rel=1e-4)
    words = [row["word"] for row in read["hmm"]]
    assert [row["tag"] for row in read["hmm"]] == hmm_tagger(language).tag([words])[0]
    assert all(0.9 < sum(row["shares"].values()) <= 1.0001 for row in read["hmm"])


def test_frequent_words_have_short_codes_and_rare_ones_are_drawn_more_than_they_occur() -> None:
    read = lineage(TEXT, "en", "london") if lineage(TEXT)["word"] is None else lineage(TEXT)
    rare = read["word"]
    assert len(rare["code"]) > len(read["most"][0]["code"]) and len(rare["code"]) == len(rare["nodes"])
    assert rare["noise"] > rare["share"] and read["most"][0]["noise"] < read["most"][0]["share"]
    codes = [one["code"] for one in read["most"]]
    assert not any(a != b and b.startswith(a) for a in codes for b in codes)


def test_an_empty_or_endless_text_is_refused() -> None:
    for text, said in ((" ", "empty"), ("word " * 80, "at most 60")):
        with pytest.raises(UserError, match=said):
            lineage(text)
