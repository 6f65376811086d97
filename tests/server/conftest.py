from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed")

from fastapi.testclient import TestClient

from bertkit.server.app import make_app
from bertkit.server.middleware import LOCAL
from bertkit.server.models import Shelf
from bertkit.server.service import Desk
from tests.support import small_models


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    return small_models.shelf()


@pytest.fixture(scope="session")
def client(shelf: Shelf) -> Iterator[TestClient]:
    desk = Desk(shelf, threads=1)
    with TestClient(make_app(desk, hosts=LOCAL), base_url="http://127.0.0.1") as made:
        yield made
    desk.queue.join(5)
