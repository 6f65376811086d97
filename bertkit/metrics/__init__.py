"""How good are the answers? Every metric is a pure function of two lists: gold and predicted.

Each returns `Scores`, a dictionary whose first key is the headline. Fractions are between 0 and 1.
`bootstrap` puts an interval around every number, `paired_difference` says whether two systems differ.
"""

from bertkit.metrics.answers import answers
from bertkit.metrics.intervals import Difference, bootstrap, paired_difference
from bertkit.metrics.labels import choice, classification, confusion, multi_label, per_class
from bertkit.metrics.numbers import minimal_pairs, perplexity, ranking, regression
from bertkit.metrics.tags import chunk_like, entities, per_type, tagging
from bertkit.metrics.tally import Scores

__all__ = [
    "Difference",
    "Scores",
    "answers",
    "bootstrap",
    "choice",
    "chunk_like",
    "classification",
    "confusion",
    "entities",
    "minimal_pairs",
    "multi_label",
    "paired_difference",
    "per_class",
    "per_type",
    "perplexity",
    "ranking",
    "regression",
    "tagging",
]
