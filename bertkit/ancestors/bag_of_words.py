"""The cheapest rivals: the most frequent label, and counted words under logistic regression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np


class Majority:
    """Always says the most frequent label."""

    name = "majority"

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> Majority:
        """Count."""
        self.answer = Counter(labels).most_common(1)[0][0]
        return self

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The same for every text."""
        return [self.answer] * len(texts)


class TfIdf:
    """Words and word pairs (for Chinese: runs of one to three characters), weighed, under logistic regression."""

    name = "TF-IDF + logistic regression"

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> TfIdf:
        """Learn weights; the regularisation is chosen by cross-validation on the training rows."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline

        wide = sum(ord(c) > 0x2E7F for text in texts for c in text) > sum(len(text) for text in texts) / 4
        how: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 3)} if wide else {"ngram_range": (1, 2)}
        pipeline = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, min_df=1, **how), LogisticRegression(max_iter=1000, random_state=0)
        )
        rarest = min(Counter(labels).values())
        if rarest >= 3:
            self.model: Any = GridSearchCV(pipeline, {"logisticregression__C": [1.0, 10.0, 100.0]}, cv=3)
        else:
            self.model = pipeline
        self.model.fit(list(texts), np.array(labels))
        return self

    def predict(self, texts: Sequence[str]) -> list[str]:
        """A label a text."""
        return [str(label) for label in self.model.predict(list(texts))]


RIVALS = (Majority, TfIdf)
