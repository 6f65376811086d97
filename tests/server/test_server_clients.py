"""The clients people have: OpenAI's own, Hugging Face's, LangChain's and LlamaIndex's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bertkit.server.service import InferenceService
from tests.support.running_server import Running

TEXTS = ["the house in the garden", "a letter"]


@pytest.fixture(scope="module")
def server(registry) -> Iterator[Running]:
    made = Running(InferenceService(registry, threads=1))
    yield made
    made.stop()


def test_the_official_openai_client_gets_its_vectors(server: Running, registry) -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    wanted = registry["words"].predictor.embed(TEXTS, normalize=True)
    said = client.embeddings.create(model="words", input=TEXTS)  # asks for base64
    np.testing.assert_allclose([one.embedding for one in said.data], wanted, atol=1e-6)
    plain = client.embeddings.create(model="words", input=TEXTS, encoding_format="float", dimensions=8)
    assert len(plain.data[0].embedding) == 8 and plain.usage.prompt_tokens == said.usage.total_tokens
    assert "words" in [one.id for one in client.models.list()]
    assert client.models.retrieve("tags").id == "tags"
    with pytest.raises(openai.NotFoundError) as wrong:
        client.embeddings.create(model="gpt-9", input="a")
    assert wrong.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="words", input="")
    by_path = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/models/tags/v1", api_key="none")
    assert by_path.embeddings.create(model="tags", input="a").model == "tags"


@pytest.fixture
def hub(server: Running, monkeypatch) -> Callable[[str], Any]:
    """Hugging Face's client of a path of this server."""
    library = pytest.importorskip("huggingface_hub", reason="Hugging Face's client is not installed")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it would not even speak to this machine
    return lambda path: library.InferenceClient(model=f"http://127.0.0.1:{server.port}{path}")


def test_the_hugging_face_client_gets_vectors_and_similarities(hub, registry) -> None:
    wanted = registry["words"].predictor.embed(TEXTS[:1], normalize=True)
    for path in ("/embed", "/models/words", "/models/words/pipeline/feature-extraction", ""):
        np.testing.assert_allclose(hub(path).feature_extraction(TEXTS[0]), wanted, atol=1e-6)
    plain = hub("/models/words").feature_extraction(TEXTS[0], normalize=False)
    np.testing.assert_allclose(plain, registry["words"].predictor.embed(TEXTS[:1], normalize=False), atol=1e-6)
    for path in ("/similarity", "/models/words", "/models/labels/pipeline/sentence-similarity", ""):
        alike = hub(path).sentence_similarity(TEXTS[0], other_sentences=TEXTS)
        assert alike[0] == pytest.approx(1, abs=1e-5) and len(alike) == 2


def test_the_hugging_face_client_fills_masks(hub, registry) -> None:
    masked = "the [MASK] in the garden"
    wanted = registry["words"].predictor.fill(masked, top=3)[0]
    for path in ("/models/words", "/pipeline/fill-mask", ""):
        guesses = hub(path).fill_mask(masked, top_k=3)
        assert [(guess.token, guess.token_str, guess.sequence) for guess in guesses] == [
            (guess["id"], guess["token"], guess["text"]) for guess in wanted
        ]
        assert guesses[0].score == pytest.approx(wanted[0]["score"], abs=1e-6)
    assert len(hub("/models/words").fill_mask(masked)) == 5


def test_the_hugging_face_client_classifies(hub, registry) -> None:
    (wanted,) = registry["labels"].predictor.predict(TEXTS[:1])
    for path in ("/models/labels", "/pipeline/text-classification"):
        labels = hub(path).text_classification(TEXTS[0])
        assert [label.label for label in labels] == sorted(wanted["scores"], key=lambda name: -wanted["scores"][name])
        assert labels[0].score == pytest.approx(wanted["score"], abs=1e-6)
    assert len(hub("/models/labels").text_classification(TEXTS[0], top_k=1)) == 1
    assert max(label.score for label in hub("/models/labels").text_classification(TEXTS[0], function_to_apply="none"))


def test_the_hugging_face_client_finds_entities(hub, registry) -> None:
    text = " ".join(["anna in new london the river"] * 3)
    (wanted,) = registry["tags"].predictor.predict([text])
    assert wanted["entities"], "the random model should tag something"
    for path in ("/models/tags", "/pipeline/token-classification"):
        entities = hub(path).token_classification(text, aggregation_strategy="simple")
        assert [(entity.entity_group, entity.word, entity.start, entity.end) for entity in entities] == [
            (entity["label"], entity["text"], entity["start"], entity["end"]) for entity in wanted["entities"]
        ]
    left = hub("/models/tags").token_classification(text, ignore_labels=["LOC"])
    assert all(entity.entity_group != "LOC" for entity in left)


def test_the_hugging_face_client_gets_answers(hub, registry) -> None:
    asked = {"question": "who was in the garden?", "context": "anna was in the garden and bert in the house."}
    (wanted,) = registry["answers"].predictor.predict([asked])
    for path in ("/models/answers", "/pipeline/question-answering", ""):
        found = hub(path).question_answering(**asked)
        assert (found.answer, found.start, found.end) == (wanted["answer"], wanted["start"], wanted["end"])


def test_the_hugging_face_client_gets_the_cells_of_a_table(hub, registry) -> None:
    table = {"name": ["anna", "bert"], "place": ["the garden", "the house"]}
    read = "name: anna; place: the garden.\nname: bert; place: the house.\n"
    (wanted,) = registry["answers"].predictor.predict([{"question": "where was bert?", "context": read}])
    for path in ("/models/answers", "/pipeline/table-question-answering", ""):
        answered = hub(path).table_question_answering(table, "where was bert?")
        for cell, (row, column) in zip(answered.cells, answered.coordinates, strict=True):
            assert [*table.values()][column][row] == cell
        # Every cell that the reader's answer touches, and none that it does not.
        starts = {cell: read.index(cell) for cells in table.values() for cell in cells}
        touched = [
            cell for cell, start in sorted(starts.items(), key=lambda pair: pair[1])
            if start < wanted["end"] and wanted["start"] < start + len(cell)
        ]  # fmt: skip
        assert answered.cells == touched and answered.answer == ", ".join(touched)


def test_a_table_with_columns_of_different_lengths_is_refused(server: Running) -> None:
    for table in ({"a": ["b"], "c": []}, {}, {"a": []}, {"a": [1]}):
        status, said, _ = server.ask("/models/answers", {"inputs": {"query": "a", "table": table}})
        assert status == 422 and said["error_type"] == "Validation"


def test_the_hugging_face_client_classifies_without_examples(hub, registry) -> None:
    labels = ["garden", "letter", "bread"]
    one = hub("/models/entails").zero_shot_classification(TEXTS[0], candidate_labels=labels)
    assert {element.label for element in one} == set(labels)
    assert sum(element.score for element in one) == pytest.approx(1)
    assert one == sorted(one, key=lambda element: -element.score)
    many = hub("/models/entails").zero_shot_classification(TEXTS[0], labels, multi_label=True)
    pairs = [(TEXTS[0], f"This example is {element.label}.") for element in many]
    for element, wanted in zip(many, registry["entails"].predictor.predict(pairs), strict=True):
        yes, no = (wanted["scores"][name] for name in ("entailment", "contradiction"))
        assert element.score == pytest.approx(yes / (yes + no), abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/models/labels", {"inputs": "a", "parameters": {"top_k": 0}}, "top_k"),
        ("/models/words", {"inputs": "a [MASK]", "parameters": {"targets": ["b"]}}, "targets"),
        ("/models/answers", {"inputs": {"question": "a", "context": "b"}, "parameters": {"top_k": 2}}, "top_k"),
        ("/models/labels", {"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}, "softmax"),
        ("/models/entails", {"inputs": "a", "parameters": {"candidate_labels": []}}, "candidate_labels"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(server: Running, path: str, body: Any, words: str) -> None:
    status, said, _ = server.ask(path, body)
    assert status == 422 and words in said["error"]


def test_a_model_without_entailment_does_not_classify_without_examples(server: Running) -> None:
    status, said, _ = server.ask("/models/labels", {"inputs": "a", "parameters": {"candidate_labels": ["b"]}})
    assert status == 424 and "entailment" in said["error"]


@pytest.mark.slow
def test_langchain_gets_its_vectors(server: Running, registry) -> None:
    library = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    client = library.OpenAIEmbeddings(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="words", check_embedding_ctx_length=False
    )
    wanted = registry["words"].predictor.embed(TEXTS, normalize=True)
    np.testing.assert_allclose(client.embed_documents(TEXTS), wanted, atol=1e-6)
    np.testing.assert_allclose(client.embed_query(TEXTS[1]), wanted[1], atol=1e-6)


@pytest.mark.slow
def test_llama_index_gets_its_vectors(server: Running, registry) -> None:
    library = pytest.importorskip(
        "llama_index.embeddings.openai_like", reason="llama-index-embeddings-openai-like is not installed"
    )
    client = library.OpenAILikeEmbedding(
        model_name="words", api_base=f"http://127.0.0.1:{server.port}/v1", api_key="none"
    )
    wanted = registry["words"].predictor.embed(TEXTS, normalize=True)
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS), wanted, atol=1e-6)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[0]), wanted[0], atol=1e-6)
