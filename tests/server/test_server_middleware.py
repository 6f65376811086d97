"""Who may ask, and how much at once; and the page, in which nothing of others runs."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from bertkit.commands.serve import Settings
from bertkit.server.app import make_app
from bertkit.server.errors import Limits
from bertkit.server.middleware import LOCAL, hosts_of
from bertkit.server.service import InferenceService

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def locked(registry):
    service = InferenceService(
        registry, Limits(body=1000, items=3, characters=100, body_seconds=0.2, wrong_keys=1000), threads=1
    )
    with TestClient(make_app(service, hosts=LOCAL, key="sesame"), base_url="http://localhost:8080") as made:
        made.headers["authorization"] = "Bearer sesame"
        yield made
    service.queue.join(5)


def test_defaults_are_the_safe_ones() -> None:
    settings = Settings(models=("en",))
    assert settings.host == "127.0.0.1" and settings.max_items == 32 and settings.max_body == 2_000_000
    assert hosts_of(settings.host, ()) == (*LOCAL, "127.0.0.1")
    assert hosts_of("0.0.0.0", ()) == () and hosts_of("0.0.0.0", ("Bert.example",)) == ("bert.example",)


def test_another_sites_name_in_the_host_header_is_refused(client) -> None:
    for host, status in (
        ("127.0.0.1", 200), ("127.0.0.1:8080", 200), ("LOCALHOST:1", 200), ("[::1]:8080", 200), ("[::1]", 200),
        ("evil.example", 400), ("evil.example:8080", 400), ("127.0.0.1.evil.example", 400), ("", 400),
    ):  # fmt: skip
        answer = client.get("/info", headers={"host": host})
        assert answer.status_code == status, host
        assert status == 200 or answer.json()["error_type"] == "Validation"


def test_a_method_that_is_not_supported_is_answered_with_those_that_are(client) -> None:
    for path, methods in (("/", "GET, POST"), ("/embed", "POST"), ("/info", "GET")):
        answer = client.request("PUT", path, json={})
        assert (answer.status_code, answer.headers["allow"]) == (405, methods) and "error" in answer.json()


def test_no_other_site_may_read_an_answer(client) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = client.options("/embed", headers=asked)
    assert answer.status_code == 405 and not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic sesame", "sesame"])
def test_a_wrong_key_is_refused_and_looking_needs_none(locked, given: str) -> None:
    header = {"authorization": given}
    for path in ("/embed", "/v1/embeddings", "/", "/models/words/embed"):
        assert locked.post(path, json={"inputs": "a"}, headers=header).status_code == 401, path
    for path in ("/info", "/v1/models", "/openapi.json"):
        assert locked.get(path, headers=header).status_code == 401, path
    for path in ("/", "/health", "/ping", "/metrics"):
        assert locked.get(path, headers=header).status_code == 200, path


def test_wrong_keys_in_a_row_are_slowed_and_nothing_else_is(registry) -> None:
    service = InferenceService(registry, Limits(wrong_keys=5), threads=1)
    with TestClient(make_app(service, hosts=LOCAL, key="sesame"), base_url="http://localhost:8080") as client:
        given = [{"authorization": f"Bearer wrong{number}"} for number in range(8)]
        statuses = [client.get("/info", headers=header).status_code for header in given]
        assert statuses == [401] * 5 + [429] * 3
        slowed = client.post("/v1/embeddings", json={}, headers={"authorization": "Bearer sesame"})
        assert slowed.status_code == 429 and int(slowed.headers["retry-after"]) >= 1  # a right guess is not confirmed
        assert slowed.json()["error"]["type"] == "rate_limit_error"
        assert client.get("/info").status_code == 401  # no key is no guess
        assert client.get("/health").status_code == 200
    service.queue.join(5)


def test_the_schema_lists_every_status_a_route_can_answer(client) -> None:
    schema = client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            statuses = {int(status) for status in operation["responses"]}
            expected = {200, 400, 401, 404, 408, 429, 431, 500, 503}
            if method == "post":
                expected |= {413, 415} if path.startswith("/v1/") else {413, 415, 422, 424}
            assert statuses == expected, path
            wanted = "OpenAIError" if path.startswith("/v1/") else "Error"
            shape = operation["responses"]["429"]["content"]["application/json"]["schema"]["$ref"]
            assert shape == f"#/components/schemas/{wanted}"
    assert "content" not in schema["paths"]["/health"]["get"]["responses"]["200"]
    assert not [name for name in schema["components"]["schemas"] if "Validation" in name]


def test_the_schema_says_what_the_models_here_accept(client, registry) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert f'"maximum": {registry["words"].predictor.tokenizer.size - 1}' in json.dumps(schemas["EmbedBody"])
    assert json.dumps(schemas["FillBody"]["properties"]).count("MASK") == 2
    assert schemas["RerankBody"]["properties"]["texts"]["minItems"] == 1
    assert "text" not in schemas["Ranked"]["required"]


def test_the_right_key_opens(locked) -> None:
    assert locked.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_large_body_is_refused_whether_or_not_it_says_so(locked) -> None:
    large = b'{"inputs": "' + b"a" * 1000 + b'"}'

    def pieces():
        yield from (large[start : start + 100] for start in range(0, len(large), 100))

    for content in (large, pieces()):
        answer = locked.post("/embed", content=content, headers=JSON)
        assert answer.status_code == 413 and answer.json()["error_type"] == "Validation"
    assert "error" in locked.post("/v1/embeddings", content=large * 20, headers=JSON).json()


def test_too_many_texts_or_characters_are_refused(locked) -> None:
    many = locked.post("/embed", json={"inputs": ["a"] * 4})
    assert many.status_code == 422 and many.json()["error"].startswith("batch size 4 > maximum allowed batch size 3")
    assert locked.post("/rerank", json={"query": "q", "texts": ["a"] * 4}).status_code == 422
    assert locked.post("/rerank", json={"query": "q", "texts": ["a"] * 3}).status_code == 200
    assert locked.post("/embed", json={"inputs": "a" * 101}).status_code == 413
    pair = {"query": "q" * 40, "texts": ["a"] * 3, "model": "numbers"}  # the query is read with every text
    assert locked.post("/rerank", json=pair).status_code == 413


def test_a_body_must_say_that_it_is_json(client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = client.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": kind})
        assert answer.status_code == 415 and answer.json()["error_type"] == "Validation", kind
    good = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/embed", content=b'{"inputs": "a"}', headers=good).status_code == 200
