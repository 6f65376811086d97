"""/fill, /tag, /ner, /answer, /qa and /choose say what the Predictor says."""

from __future__ import annotations

import pytest

from tests.support import toy
from tests.support.small_models import LONG

MASKED = ["the [MASK] in the garden", "[MASK] and [MASK] of bread", "a [MASK]"]
CHOICES = {"text": "the letter", "choices": ["in the garden", "of bread", "the"]}


def near(said, wanted) -> None:
    """Equal, numbers nearly."""
    if isinstance(wanted, dict):
        assert said.keys() == wanted.keys()
        for key in wanted:
            near(said[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(said) == len(wanted)
        for one, other in zip(said, wanted):
            near(one, other)
    else:
        assert said == (pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else wanted)


def test_fill_guesses_every_mask_of_one_text_or_of_many(client, registry) -> None:
    wanted = [registry["words"].predictor.fill(text, top=3) for text in MASKED]
    near(client.post("/fill", json={"inputs": MASKED, "top": 3}).json(), wanted)
    near(client.post("/fill", json={"text": MASKED[1], "top": 3}).json(), wanted[1])
    assert [len(one) for one in wanted] == [1, 2, 1]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"inputs": "no mask"}, {"inputs": ["a [MASK]", "none"]}, {"inputs": "[MASK] " + LONG},
        {"inputs": "[MASK]", "top": 0}, {"inputs": "[MASK]", "top": 101}, {"inputs": "[MASK]", "tpo": 3},
        {"inputs": "[MASK] " * 30, "top": 100},
    ],
)  # fmt: skip
def test_fill_refuses_what_it_cannot_fill(client, body) -> None:
    answer = client.post("/fill", json=body)
    assert answer.status_code == 422 and answer.json()["error_type"] == "Validation"


def test_tag_gives_tags_and_ner_the_entities(client, registry) -> None:
    texts = ["anna in new london", "the river", LONG]
    wanted = registry["tags"].predictor.predict(texts)
    near(client.post("/tag", json={"inputs": texts}).json(), wanted)
    near(client.post("/tag", json={"inputs": texts[0]}).json(), wanted[0])
    words = [["anna", "in", "london"], ["bread"]]
    near(client.post("/tag", json={"inputs": words}).json(), registry["tags"].predictor.predict(words))
    found = client.post("/ner", json={"inputs": texts}).json()
    for entities, want in zip(found, wanted, strict=True):
        assert [(one["entity_group"], one["word"], one["start"]) for one in entities] == [
            (one["label"], one["text"], one["start"]) for one in want["entities"]
        ]
    cut = client.post("/tag", json={"inputs": LONG, "truncate": True})
    assert cut.headers["x-truncated-inputs"] == "1" and cut.json()["cut"] > 0


def test_answer_and_qa_cut_the_answer_out_of_the_context(client, registry) -> None:
    asked = [{key: one[key] for key in ("question", "context")} for one in toy.questions(4)]
    wanted = registry["answers"].predictor.predict(asked)
    for route in ("/answer", "/qa"):
        single = client.post(route, json=asked[0]).json()
        near(single, wanted[0])
        assert asked[0]["context"][single["start"] : single["end"]] == single["answer"]
        near(client.post(route, json={"inputs": asked[0]}).json(), wanted[0])
        near(client.post(route, json={"inputs": asked}).json(), wanted)
    for wrong in (
        {"question": "who"},
        {"context": "x"},
        asked[0] | {"inputs": asked},
        {},
        {"inputs": [{"question": "q"}]},
    ):
        assert client.post("/answer", json=wrong).status_code == 422, wrong
    long = {"question": "which friend", "context": LONG + " anna"}
    near(client.post("/qa", json=long).json(), registry["answers"].predictor.predict([long])[0])


def test_choose_scores_every_choice(client, registry) -> None:
    (wanted,) = registry["choices"].predictor.predict([CHOICES])
    near(client.post("/choose", json={"inputs": CHOICES}).json(), wanted)
    near(client.post("/choose", json={"inputs": [CHOICES] * 2}).json(), [wanted] * 2)
    assert client.post("/choose", json={"inputs": {"text": "a", "choices": []}}).status_code == 422
