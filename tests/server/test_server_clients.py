"""The clients people have: OpenAI's own, and Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterator

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


def test_the_hugging_face_client_gets_vectors_and_similarities(server: Running, registry, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it would not even speak to this machine
    base = f"http://127.0.0.1:{server.port}"
    found = hub.InferenceClient(model=f"{base}/embed").feature_extraction(TEXTS[0])
    np.testing.assert_allclose(found, registry["words"].predictor.embed(TEXTS[:1], normalize=True), atol=1e-6)
    alike = hub.InferenceClient(model=f"{base}/similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert alike[0] == pytest.approx(1, abs=1e-5)
