"""OpenAI's routes, asked by hand."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from tests.support.small_models import LONG

TEXTS = ["the house in the garden", "a letter"]


def ask(client, **body):
    """Written by json.dumps itself: the client's own way refuses half a character before it is sent."""
    content = json.dumps({"model": "words", "input": TEXTS} | body).encode()
    return client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})


def test_vectors_of_length_one_in_their_order_with_the_tokens_used(client, registry) -> None:
    said = ask(client).json()
    assert said["object"] == "list" and said["model"] == "words"
    assert [(one["object"], one["index"]) for one in said["data"]] == [("embedding", 0), ("embedding", 1)]
    wanted = client.post("/embed", json={"inputs": TEXTS}).json()
    np.testing.assert_allclose([one["embedding"] for one in said["data"]], wanted, atol=1e-6)
    tokens = sum(map(len, registry["words"].predictor.tokenizer.ids_batch(TEXTS)))
    assert said["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_base64_holds_the_same_numbers_as_little_endian_float32(client) -> None:
    floats = [one["embedding"] for one in ask(client, dimensions=8).json()["data"]]
    coded = [one["embedding"] for one in ask(client, dimensions=8, encoding_format="base64").json()["data"]]
    np.testing.assert_array_equal([np.frombuffer(base64.b64decode(one), "<f4") for one in coded], np.float32(floats))


def test_input_may_be_a_string_strings_ids_or_lists_of_ids(client, registry) -> None:
    ids = registry["words"].predictor.tokenizer.ids_batch(TEXTS)
    wanted = [one["embedding"] for one in ask(client).json()["data"]]
    for given, vectors in ((TEXTS[0], wanted[:1]), (ids[0], wanted[:1]), (ids, wanted)):
        found = [one["embedding"] for one in ask(client, input=given).json()["data"]]
        np.testing.assert_allclose(found, vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "gpt-9"}, 404, "model", "model_not_found"),
        ({"model": None}, 400, "model", None),
        ({"input": ""}, 400, "input", None),
        ({"input": ["a", ""]}, 400, "input", None),
        ({"input": []}, 400, "input", None),
        ({"input": [[]]}, 400, "input", None),
        ({"input": [1, "a"]}, 400, "input", None),
        ({"input": [99999]}, 400, "input", None),
        ({"input": "a\ud800"}, 400, "input", None),
        ({"input": ["a"] * 2049}, 400, "input", None),
        ({"input": "a " * 50_001}, 413, "input", None),
        ({"dimensions": 0}, 400, "dimensions", None),
        ({"dimensions": 33}, 400, "dimensions", None),
        ({"encoding_format": "hex"}, 400, "encoding_format", None),
        ({"inptu": "a"}, 400, "inptu", None),
    ],
)
def test_a_mistake_is_reported_in_openais_shape(client, change, status, param, code) -> None:
    answer = ask(client, **change)
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


def test_as_many_inputs_as_openai_takes_are_answered_and_teis_routes_keep_their_own_limit(client) -> None:
    said = ask(client, input=["a letter"] * 2048, dimensions=4)
    assert said.status_code == 200 and [one["index"] for one in said.json()["data"]] == list(range(2048))
    assert client.post("/embed", json={"inputs": ["a"] * 32}).status_code == 200
    assert client.post("/embed", json={"inputs": ["a"] * 33}).status_code == 422
    large = ask(client, input=["a" * 50] * 2048)
    assert large.status_code == 413 and "102400 characters" in large.json()["error"]["message"]


def test_a_missing_key_no_json_and_no_such_route_have_the_shape_too(client) -> None:
    for answer, status in (
        (client.post("/v1/embeddings", json={"input": "a"}), 400),
        (client.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"}), 400),
        (client.post("/v1/embeddings", content=b"a=1"), 415),
        (client.get("/v1/embeddings"), 405),
        (client.get("/v1/nothing"), 404),
        (client.get("/v1/models/nothing"), 404),
    ):
        assert answer.status_code == status and set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_models_are_listed_with_what_they_can_do(client) -> None:
    said = client.get("/v1/models").json()
    assert said["object"] == "list" and [one["id"] for one in said["data"]][:2] == ["words", "labels"]
    assert all(one["object"] == "model" and isinstance(one["created"], int) for one in said["data"])
    assert client.get("/v1/models/tags").json()["abilities"][0] == "tag"


def test_a_long_input_is_read_whole_and_its_tokens_are_counted(client, registry) -> None:
    answer = ask(client, input=LONG)
    assert answer.json()["usage"]["prompt_tokens"] == len(registry["words"].predictor.tokenizer.encode(LONG))
    assert answer.headers["x-truncated-inputs"] == "0"
