"""The locked requirements: complete, hashed, and the versions that constraints.txt names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = {"all": ("all",), "dev": ("all", "dev"), "bench": ("all", "dev", "bench")}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", path.read_text("utf-8"), re.M)
    return {canonical(name): version for name, version in found}


def wanted(extra: str, project: dict) -> set[str]:
    """The packages that an extra names, through the extras it names itself."""
    names: set[str] = set()
    for line in project["optional-dependencies"][extra]:
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", line).groups()
        names |= (
            {canonical(name)} if name != "bertkit" else set().union(*(wanted(e, project) for e in inner.split(",")))
        )
    return names


@pytest.mark.parametrize("name", EXTRAS)
def test_every_package_that_make_installs_is_locked_with_hashes(name):
    path = ROOT / "requirements" / f"{name}.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    locked = pins(path)
    named = {canonical(re.match(r"[\w.-]+", line)[0]) for line in project["dependencies"]}
    named |= set().union(*(wanted(extra, project) for extra in EXTRAS[name])) | {"hatchling", "editables"}
    assert named - set(locked) == {"torch"}  # installed before, by its exact version: its CPU build has other files
    entries = re.findall(r"^\w.*\n(?: .*\n)*", path.read_text("utf-8"), re.M)
    assert len(entries) == len(locked) and all("--hash=sha256:" in entry for entry in entries)
    constraints = pins(ROOT / "constraints.txt")
    assert {key: version for key, version in locked.items() if constraints.get(key, version) != version} == {}
    assert "://" not in path.read_text("utf-8") and not re.search(
        r"^(nvidia|cuda|triton)", path.read_text("utf-8"), re.M
    )
