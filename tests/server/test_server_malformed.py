"""Whatever is sent, the answer has its family's shape and the server keeps running."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROUTES = (
    "/embed", "/predict", "/rerank", "/similarity", "/tokenize", "/fill", "/tag", "/ner", "/answer", "/qa", "/choose",
    "/", "/models/labels", "/pipeline/fill-mask", "/pipeline/zero-shot-classification", "/v1/embeddings",
)  # fmt: skip
KEYS = (
    "inputs", "text", "texts", "query", "question", "context", "choices", "model", "input", "truncate", "dimensions",
    "source_sentence", "sentences", "top", "label", "parameters", "candidate_labels", "top_k",
    "prompt_name", "encoding_format", "\ud800", "x" * 999,
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(
        ["", "a [MASK]", "\0", "\ud800", "words", "labels", "pairs", "tags", "answers", "left", "base64", 10**400, -1]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
WRONG = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs": NaN}', b'{"inputs": [1e999]}', b"[" * 99_999, b'{"a":' * 9_999,
    b'{"inputs": "\\ud800"}', b'{"inputs": "\\u0000"}', b'{"inputs": ' + b"9" * 5000 + b"}", b'{"inputs": ["a", NaN]}',
    b'{"model": "\\udfff", "inputs": "a"}', b'{"inputs": "a", "model": {}}', b'{"\\ud800": 1}', b"\0" * 100,
    b'{"inputs": "a", "inputs": 3}', b'{"inputs": [-1]}', b'{"inputs": [99999999999999999999]}', b'"inputs"',
]  # fmt: skip


def check(client, route: str, content: bytes) -> None:
    answer = client.post(route, content=content, headers={"content-type": "application/json"})
    assert answer.status_code < 500, (route, content[:200], answer.text)
    if answer.status_code == 200:
        return
    said = answer.json()
    if route.startswith("/v1/"):
        assert set(said) == {"error"} and set(said["error"]) == {"message", "type", "param", "code"}
    else:
        assert set(said) == {"error", "error_type"} and said["error"]
        assert said["error_type"] in ("Validation", "Empty", "Backend", "Tokenizer")


@pytest.mark.parametrize("route", ROUTES)
def test_known_horrors_are_refused_in_shape(client, route: str) -> None:
    for content in WRONG:
        check(client, route, content)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(route=st.sampled_from(ROUTES), body=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6) | VALUES)
def test_any_json_is_answered_or_refused_in_shape(client, route: str, body: Any) -> None:
    check(client, route, json.dumps(body).encode())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=())))
def test_any_text_is_embedded_tokenized_and_tagged_or_refused(client, text: str) -> None:
    for route in ("/embed", "/tokenize", "/tag", "/predict"):
        check(client, route, json.dumps({"inputs": text}).encode())


@pytest.mark.parametrize(
    "path",
    [
        "/models/../words/embed", "/models/words/../../etc/passwd", "/models//embed", "/models/%2e%2e/embed",
        "/models/words%00/embed", "/v1/models/..%2f..%2fetc", "/page.html",
        "/models/nothing", "/models/nothing/embed", "/models/words/pipeline/nothing",
    ],
)  # fmt: skip
def test_a_path_leads_nowhere_but_to_a_route(client, path: str) -> None:
    answer = client.post(path, json={"inputs": "a"})
    assert answer.status_code in (404, 405) and "error" in answer.json()


def test_the_server_still_answers(client) -> None:
    assert client.get("/health").status_code == 200
    assert client.post("/embed", json={"inputs": "a house"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        # A column's name is written before each of its cells.
        ("/models/answers", {"inputs": {"query": "a", "table": {"n" * 200_000: ["x"] * 2_000}}}, 413),
        # The template is written for each label, and each label in every {} of it.
        ("/models/entails", {"inputs": "a", "parameters": {
            "candidate_labels": ["b"] * 20_000, "hypothesis_template": "{}" + "t" * 20_000}}, 422),
        ("/models/entails", {"inputs": "a", "parameters": {
            "candidate_labels": ["b" * 20_000] * 2, "hypothesis_template": "{}" * 10_000}}, 413),
    ],
)  # fmt: skip
def test_a_small_request_that_would_become_a_large_one_is_refused_before_it_does(client, path, body, status) -> None:
    tracemalloc.start()
    try:
        assert client.post(path, json=body).status_code == status
        assert tracemalloc.get_traced_memory()[1] < 50_000_000  # it would have been 400 MB
    finally:
        tracemalloc.stop()


def test_an_ancestor_that_is_not_there_is_refused_by_name(client) -> None:
    body = {"model": "words", "word": "a", "texts": ["a b", "b a"], "others": ["nobody"]}
    answer = client.post("/show/meaning", json=body)
    assert answer.status_code == 404 and "nobody" in answer.json()["error"]


def test_a_compressed_body_is_refused_with_the_reason(client) -> None:
    content = gzip.compress(b'{"inputs": "a"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = client.post("/embed", content=content, headers=headers)
    assert answer.status_code == 415 and "Content-Encoding" in answer.json()["error"]
