"""One thread, no network and the same examples for every test; where the real data is, if it is."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

# `same` draws the same examples everywhere; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["LC_ALL"] = "C.UTF-8"  # messages are compared in English, whatever the language of the machine
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def english_messages():
    """A test that speaks Chinese, or whose command does, leaves no Chinese to the next one."""
    yield
    from bertkit import notify

    notify.speak("en")


@pytest.fixture(scope="session", autouse=True)
def short_turns():
    """What is compressed is measured for speed, and no test waits for it."""
    from bertkit.runs.compress import measure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "SECONDS", 0.0)
        patch.setattr(measure, "TURNS", 1)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests first, so that no worker ends with a long file while the others wait."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path], item.path.as_posix()))


DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not DATA.is_dir():
        pytest.skip("the real data sets are not beside this project (../shared/data)")
    return DATA


class Notes(list):
    """Every note that was shown while a test ran."""

    def note(self, message: str) -> None:
        self.append(message)

    def status(self, message: str) -> None:
        pass

    def track(self, items, label, total):
        yield from items


@pytest.fixture
def notes(monkeypatch) -> Notes:
    from bertkit import notify

    heard = Notes()
    monkeypatch.setattr(notify, "_listener", heard)
    return heard
