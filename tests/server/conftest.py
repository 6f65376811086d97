from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed")

from fastapi.testclient import TestClient

from bertkit.server.app import make_app
from bertkit.server.middleware import LOCAL
from bertkit.server.models import ModelRegistry
from bertkit.server.service import InferenceService
from tests.support import small_models


@pytest.fixture(scope="session")
def registry() -> ModelRegistry:
    return small_models.registry()


@pytest.fixture(scope="session")
def client(registry: ModelRegistry) -> Iterator[TestClient]:
    service = InferenceService(registry, threads=1)
    with TestClient(make_app(service, hosts=LOCAL), base_url="http://127.0.0.1") as made:
        yield made
    service.queue.join(5)
