import pytest

from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support.written_lines import written_lines

KINDS = ("wordpiece", "bpe", "unigram")


@pytest.fixture(scope="session")
def learnt():
    """One tokenizer of each kind, learnt from the same written lines; two for wordpiece."""
    lines = written_lines(2000)
    found = {kind: learn(lines, VocabularySettings(kind, size=2500)) for kind in KINDS}
    return found | {"cased": learn(lines, VocabularySettings(size=2500, cased=True))}


@pytest.fixture(params=[*KINDS, "cased"])
def tokenizer(request, learnt):
    return learnt[request.param]
