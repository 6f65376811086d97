"""TEI's routes: its bodies, its answers, and the numbers of the Predictor itself."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from bertkit.inference.predictor import Predictor
from bertkit.server.errors import Limits
from bertkit.server.models import ServedModel
from tests.support import small_models
from tests.support.small_models import LIMIT, LONG

TEXTS = ["the house in the garden", "a letter", "", "people on the street with bread and water"]


def unit(vectors) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_embed_gives_the_predictors_vectors_of_length_one(client, registry) -> None:
    said = client.post("/embed", json={"inputs": TEXTS}).json()
    np.testing.assert_allclose(said, unit(registry["words"].predictor.embed(TEXTS)), atol=1e-6)
    single = client.post("/embed", json={"inputs": TEXTS[0]}).json()
    assert len(single) == 1  # always a list of vectors
    np.testing.assert_allclose(single[0], said[0], atol=1e-6)


def test_embed_normalize_false_and_dimensions(client, registry) -> None:
    plain = registry["words"].predictor.embed(TEXTS)
    said = client.post("/embed", json={"inputs": TEXTS, "normalize": False}).json()
    np.testing.assert_allclose(said, plain, atol=1e-6)
    said = client.post("/embed", json={"inputs": TEXTS, "dimensions": 8}).json()
    np.testing.assert_allclose(said, unit(plain[:, :8]), atol=1e-6)
    for wrong in (0, -1, 33, 1.5, "8", True):
        answer = client.post("/embed", json={"inputs": "a", "dimensions": wrong})
        assert answer.status_code == 422 and answer.json()["error_type"] == "Validation", wrong


def test_embed_takes_ids_and_mixes_them_with_texts(client, registry) -> None:
    tokenizer = registry["words"].predictor.tokenizer
    ids = tokenizer.encode(TEXTS[0]).ids
    wanted = client.post("/embed", json={"inputs": TEXTS[:2]}).json()
    assert client.post("/embed", json={"inputs": ids}).json() == [pytest.approx(wanted[0], abs=1e-6)]
    mixed = client.post("/embed", json={"inputs": [ids, TEXTS[1]]}).json()
    np.testing.assert_allclose(mixed, wanted, atol=1e-6)
    for wrong in ([5, tokenizer.size], [[3], [-1]], [True, 2], [1, "a"], [[1, "a"]]):
        assert client.post("/embed", json={"inputs": wrong}).status_code == 422, wrong
    assert client.post("/embed", json={"inputs": list(range(5, 5 + LIMIT + 1))}).status_code == 422


def test_a_long_text_is_read_whole_cut_or_refused_and_it_is_reported(client, registry) -> None:
    predictor = registry["words"].predictor
    tokens = len(predictor.tokenizer.encode(LONG))
    assert tokens > 2 * LIMIT
    whole = client.post("/embed", json={"inputs": ["short", LONG], "normalize": False})
    np.testing.assert_allclose(whole.json()[1], predictor.embed(LONG)[0], atol=1e-6)
    assert whole.headers["x-truncated-inputs"] == "0"
    cut = client.post("/embed", json={"inputs": ["short", LONG], "truncate": True, "normalize": False})
    np.testing.assert_allclose(cut.json()[1], predictor.embed(LONG, on_long="truncate")[0], atol=1e-6)
    assert cut.headers["x-truncated-inputs"] == "1"
    short = len(predictor.tokenizer.encode("short"))
    assert int(cut.headers["x-input-tokens"]) == tokens + short
    assert int(cut.headers["x-compute-tokens"]) == LIMIT + short
    details = client.post("/embed?details=true", json={"inputs": ["short", LONG], "truncate": True}).json()
    assert details["truncated"] == [False, True] and details["cut"] == [0, tokens - LIMIT]
    assert len(details["results"]) == 2
    refused = client.post("/embed", json={"inputs": LONG, "truncate": False})
    assert refused.status_code == 422 and str(tokens) in refused.json()["error"]


def test_unknown_pieces_are_counted_in_a_header_of_every_route(client, registry) -> None:
    """Two unknown characters of four, wherever the text goes; nothing for a text that is known."""
    known, unknown = "short", "ཀ short ཁ short"
    tokenizer = registry["words"].predictor.tokenizer
    assert tokenizer.encode(unknown).ids.count(tokenizer.unk_id) == 2
    for route, wrap in (("/embed", str), ("/tokenize", str), ("/predict", lambda text: [text])):
        asked = client.post(route, json={"inputs": [wrap(known), wrap(unknown)]})
        assert asked.status_code == 200 and asked.headers["x-unknown-tokens"] == "2", route
        assert client.post(route, json={"inputs": [wrap(known)]}).headers["x-unknown-tokens"] == "0"


def test_cutting_from_the_left_keeps_the_end(client) -> None:
    end = " ".join(LONG.split()[-LIMIT + 2 :])
    ask = {"inputs": LONG, "truncate": True, "truncation_direction": "left"}
    left = client.post("/embed", json=ask).json()
    assert left == client.post("/embed", json=ask | {"truncation_direction": "Left"}).json()
    assert left[0] == pytest.approx(client.post("/embed", json={"inputs": end}).json()[0], abs=1e-5)
    assert client.post("/embed", json=ask | {"truncation_direction": "up"}).status_code == 422


def test_predict_sorts_labels_and_tells_single_from_batch(client, registry) -> None:
    wanted = registry["labels"].predictor.predict(TEXTS)
    single = client.post("/predict", json={"inputs": TEXTS[0]}).json()
    assert [one["score"] for one in single] == sorted((one["score"] for one in single), reverse=True)
    assert {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in single} == wanted[0]["scores"]
    batch = client.post("/predict", json={"inputs": [[text] for text in TEXTS]}).json()
    for said, want in zip(batch, wanted, strict=True):
        assert {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in said} == want["scores"]
    raw = client.post("/predict", json={"inputs": TEXTS[0], "raw_scores": True}).json()
    logits = np.array([one["score"] for one in raw])
    assert np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum() == pytest.approx(
        [one["score"] for one in single], abs=1e-6
    )


def test_predict_takes_a_flat_list_of_two_for_a_pair_and_refuses_three(client, registry) -> None:
    pair = ["the house", "the garden"]
    wanted = registry["pairs"].predictor.predict([pair])[0]["scores"]
    said = client.post("/predict", json={"inputs": pair, "model": "pairs"}).json()
    assert {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in said} == wanted
    batch = client.post("/predict", json={"inputs": [pair, pair], "model": "pairs"}).json()
    assert [len(one) for one in batch] == [2, 2]
    for wrong in (["a", "b", "c"], [["a", "b", "c"]], [[]], [["a"], "b"]):
        assert client.post("/predict", json={"inputs": wrong, "model": "pairs"}).status_code == 422, wrong
    assert client.post("/predict", json={"inputs": []}).json()["error_type"] == "Empty"
    for model, wrong in (("pairs", "one text"), ("labels", pair)):
        answer = client.post("/predict", json={"inputs": wrong, "model": model})
        assert answer.status_code == 422 and model in answer.json()["error"]


def test_several_labels_and_numbers(client, registry) -> None:
    said = client.post("/predict", json={"inputs": TEXTS[0], "model": "many"}).json()
    wanted = registry["many"].predictor.predict(TEXTS[0])[0]["scores"]
    assert {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in said} == wanted
    (number,) = client.post("/predict", json={"inputs": ["a", "b"], "model": "numbers"}).json()
    wanted = registry["numbers"].predictor.predict([("a", "b")])[0]["value"]
    assert number["score"] == pytest.approx(wanted, abs=1e-5)


def test_a_foreign_model_reads_what_it_is_given_one_text_or_two(client) -> None:
    batch = client.post("/predict", json={"inputs": [["a"], ["a", "b"], ["a"]], "model": "foreign"}).json()
    one, two, again = (found[0]["score"] for found in batch)
    assert one == pytest.approx(again, abs=1e-6) and one != pytest.approx(two, abs=1e-4)


def test_rerank_by_a_model_that_reads_both(client, registry) -> None:
    ask = {"query": "which garden", "texts": TEXTS, "model": "numbers"}
    wanted = [one["value"] for one in registry["numbers"].predictor.predict([("which garden", text) for text in TEXTS])]
    raw = client.post("/rerank", json=ask | {"raw_scores": True}).json()
    assert [one["index"] for one in raw] == np.argsort(-np.array(wanted), kind="stable").tolist()
    assert [one["score"] for one in raw] == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)
    squashed = client.post("/rerank", json=ask | {"return_text": True}).json()
    assert [one["text"] for one in squashed] == [TEXTS[one["index"]] for one in squashed]
    assert [one["score"] for one in squashed] == pytest.approx([1 / (1 + np.exp(-one["score"])) for one in raw])
    assert "text" not in raw[0]


def test_rerank_by_a_label_and_by_cosine(client, registry) -> None:
    ask = {"query": "which garden", "texts": TEXTS, "model": "pairs"}
    missing = client.post("/rerank", json=ask)
    assert missing.status_code == 422 and "different, same" in missing.json()["error"]
    said = client.post("/rerank", json=ask | {"label": "same"}).json()
    wanted = registry["pairs"].predictor.predict([("which garden", text) for text in TEXTS])
    assert said[0]["score"] == pytest.approx(max(one["scores"]["same"] for one in wanted), abs=1e-6)
    vectors = unit(registry["words"].predictor.embed(["which garden", *TEXTS]))
    said = client.post("/rerank", json=ask | {"model": "words"}).json()
    assert {one["index"]: pytest.approx(one["score"], abs=1e-5) for one in said} == dict(
        enumerate((vectors[1:] @ vectors[0]).tolist())
    )


def test_similarity_is_the_cosine(client, registry) -> None:
    vectors = unit(registry["words"].predictor.embed(["a house", *TEXTS]))
    body = {"inputs": {"source_sentence": "a house", "sentences": TEXTS}}
    assert client.post("/similarity", json=body).json() == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-5)
    body["parameters"] = {"truncate": False}
    assert client.post("/similarity", json=body).status_code == 200
    body["inputs"]["sentences"] = [LONG]
    assert client.post("/similarity", json=body).status_code == 422
    assert client.post("/similarity", json={"inputs": {"source_sentence": "a", "sentences": []}}).status_code == 400


def test_tokenize_gives_back_the_users_characters(client, registry) -> None:
    text = "The HOUSE, 北京 garden"
    (said,) = client.post("/tokenize", json={"inputs": text}).json()
    encoding = registry["words"].predictor.tokenizer.encode(text)
    assert [one["id"] for one in said] == encoding.ids
    assert all(set(one) == {"id", "text", "special", "start", "stop"} for one in said)
    for one in said:
        if one["special"]:
            assert one["start"] is None and one["text"] in ("[CLS]", "[SEP]")
        else:
            assert text[one["start"] : one["stop"]] == one["text"]
    (bare,) = client.post("/tokenize", json={"inputs": [text], "add_special_tokens": False}).json()
    assert bare == [one for one in said if not one["special"]]
    assert client.post("/tokenize", json={"inputs": LONG}).headers["x-truncated-inputs"] == "0"


@pytest.mark.parametrize(("precision", "told"), [("fp32", "float32"), ("int8", "int8")])
def test_info_tells_the_numbers_of_a_model_of_any_precision(precision: str, told: str) -> None:
    served = ServedModel("mine", Predictor(small_models.folder("labels", small_models.tokenizer()), precision))
    assert served.info(Limits(), "")["model_dtype"] == told


def test_info_tells_the_kind_of_each_model(client, registry) -> None:
    first = client.get("/info").json()
    assert first["model_id"] == "words" and first["model_type"] == {"embedding": {"pooling": "mean"}}
    assert first["max_input_length"] == LIMIT and first["max_client_batch_size"] == 32
    assert first["model_dtype"] == "float32" and len(first["models"]) == len(registry)
    assert first["precision"] == "fp32" and first["batch_difference"] == 1e-6
    labels = client.get("/info?model=labels").json()
    assert labels["model_type"]["classifier"]["id2label"] == {"0": "bad", "1": "good", "2": "so-so"}
    assert client.get("/models/numbers/info").json()["model_type"].keys() == {"reranker"}
    assert client.get("/info?model=none").status_code == 404


def test_a_model_is_picked_by_body_by_path_or_by_what_it_can_do(client) -> None:
    by_body = client.post("/embed", json={"inputs": "a house", "model": "tags"}).json()
    by_path = client.post("/models/tags/embed", json={"inputs": "a house"}).json()
    first = client.post("/embed", json={"inputs": "a house"}).json()
    assert by_body == by_path != first
    unknown = client.post("/embed", json={"inputs": "a", "model": "../words"})
    assert unknown.status_code == 404 and "words, labels" in unknown.json()["error"]
    cannot = client.post("/predict", json={"inputs": "a", "model": "words"})
    assert cannot.status_code == 424 and cannot.json()["error_type"] == "Backend"


def test_the_bare_address_embeds_or_predicts(client) -> None:
    assert len(client.post("/", json={"inputs": "a house"}).json()[0]) == 32
    assert client.post("/models/labels/", json={"inputs": "a house"}).json()[0].keys() == {"score", "label"}
    assert client.post("/", json={"inputs": 3}).status_code == 422
    assert client.post("/", json=[]).status_code == 422


def test_an_empty_batch_and_an_unknown_prompt_are_refused(client) -> None:
    empty = client.post("/embed", json={"inputs": []})
    assert empty.status_code == 400 and empty.json()["error_type"] == "Empty"
    assert client.post("/embed", json={"inputs": [[], "a"]}).status_code == 400
    prompt = client.post("/embed", json={"inputs": "a", "prompt_name": "query"})
    assert prompt.status_code == 422 and "prompt" in prompt.json()["error"]


def test_every_answer_tells_what_it_took(client) -> None:
    headers = client.post("/embed", json={"inputs": ["a house", "bread"]}).headers
    for name in ("compute-time", "total-time", "tokenization-time", "queue-time", "inference-time"):
        assert headers[f"x-{name}"].isdigit()
    assert headers["x-compute-type"] == "cpu" and headers["x-compute-characters"] == "12"


def test_metrics_count_requests_in_prometheus_words(client) -> None:
    def counts() -> dict[str, float]:
        text = client.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^(te_\S+) ([\d.]+)$", text, flags=re.MULTILINE)}

    client.post("/embed", json={"inputs": "a"})
    client.post("/embed", content=b"{", headers={"content-type": "application/json"})
    before = counts()
    client.post("/embed", json={"inputs": ["a", "b"]})
    client.post("/embed", content=b"{", headers={"content-type": "application/json"})
    after = counts()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown['te_request_count{method="batch"}'] == grown['te_request_success{method="batch"}'] == 1
    assert grown["te_embed_count"] == grown["te_embed_success"] == 2
    assert grown['te_request_failure{err="validation"}'] == 1
    assert grown["te_embed_inference_duration_count"] == 1 and grown["te_request_input_length_count"] == 2
    assert after['te_request_duration_bucket{le="+Inf"}'] == after["te_request_duration_count"]
    assert after["te_queue_size"] == 0


def test_health_and_the_schema(client) -> None:
    healthy = client.get("/health")
    assert healthy.status_code == 200 and healthy.content == b""
    assert client.get("/ping").status_code == 200
    paths = json.loads(client.get("/openapi.json").content)["paths"]
    assert {"/embed", "/predict", "/rerank", "/similarity", "/tokenize", "/v1/embeddings", "/fill", "/qa"} <= set(paths)
    assert client.get("/docs").status_code == 404  # it would load scripts from elsewhere


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_model_that_is_not_served_is_said_to_be_missing_with_those_there_are(client, registry, method: str) -> None:
    for path in ("/models/NOPE/embed", "/models/NOPE/info", "/models/NOPE", "/models/NOPE/v1/embeddings"):
        answer = client.request(method, path, json={"inputs": "a house"})
        said = answer.json()["error"]
        message = said["message"] if "/v1/" in path else said
        assert answer.status_code == 404 and "no model 'NOPE'" in message, path
        assert all(name in message for name in registry), path
    assert "route" in client.post("/models/words/nothing", json={}).json()["error"]
