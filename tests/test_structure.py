"""The shape of the house: imports point down, files stay short, nothing tells of the machine it was written on."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bertkit"

# From the ground up. A module may import from lower rows and from its own package, never from its row or above.
FLOORS = [
    ["errors", "telling"],
    ["config", "machine", "metrics", "text", "layers", "report", "samples"],
    ["calibration", "data"],
    ["model", "sharing"],
    ["objectives.objective"],  # the loop knows the shape of an objective, never one of them
    ["train"],
    ["checkpoint"],
    ["tasks"],
    ["objectives"],
    ["scoring"],
    ["predictor"],
    ["layer_probe", "teacher", "looking"],
    ["pretraining", "finetuning", "searching"],
    ["compress"],
    ["ancestors"],  # built on the same runs as BERT
    ["comparing"],
    ["server"],  # a verb starts it, and it needs none
    ["verbs", "sklearn"],
    ["cli"],
    ["__init__", "__main__"],
]
# Pages are made by those who finish a run; nothing below them knows of pages.
ONLY_FOR = {"report": {"report", "verbs", "pretraining", "finetuning", "comparing", "server", "compress"}}


def floor_of(module: str) -> tuple[int, str]:
    """The floor and the row's name of a module ('bertkit.a.b'): the longest name that fits."""
    parts = module.split(".")[1:] or ["__init__"]
    for size in range(len(parts), 0, -1):
        name = ".".join(parts[:size])
        for floor, names in enumerate(FLOORS):
            if name in names:
                return floor, name
    raise AssertionError(f"{module} has no floor: give it one in FLOORS of {Path(__file__).name}")


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file imports, at any depth, with its line; imports for types alone are left out."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "bertkit")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: spell the import out from bertkit"
            if node.module == "bertkit":
                there = [
                    a.name for a in node.names if (PACKAGE / a.name).is_dir() or (PACKAGE / f"{a.name}.py").is_file()
                ]
                yield from ((f"bertkit.{name}", node.lineno) for name in there)
            elif node.module and node.module.startswith("bertkit."):
                yield node.module, node.lineno
        elif not is_for_types(node):
            waiting += ast.iter_child_nodes(node)


def test_the_tour_shows_the_floors_as_they_are():
    shown = "\n".join(", ".join(row) for row in reversed(FLOORS))
    assert f"```\n{shown}\n```" in (ROOT / "docs/tour.md").read_text("utf-8")


def test_imports_point_down_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        me = ".".join(["bertkit", *inside.with_suffix("").parts]).removesuffix(".__init__")
        floor, name = floor_of(me)
        if name == "__init__":
            continue  # the front door opens on every floor, lazily
        for module, line in imports(path):
            below, other = floor_of(module)
            same = me.split(".")[1] == module.split(".")[1]
            allowed = same or (below < floor and me.split(".")[1] in ONLY_FOR.get(other, {me.split(".")[1]}))
            if not allowed:
                wrong.append(f"bertkit/{inside}:{line}: {name} may not import {module}")
    assert wrong == []


def test_the_layering_test_sees_an_import_that_points_up(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from bertkit.verbs.fill import run\n    from bertkit import cli, __version__\n")
    assert sorted(imports(file)) == [("bertkit.cli", 3), ("bertkit.verbs.fill", 2)]
    assert floor_of("bertkit.objectives.objective")[0] < floor_of("bertkit.train.training")[0]
    assert floor_of("bertkit.train.training")[0] < floor_of("bertkit.objectives.masked")[0]
    with pytest.raises(AssertionError, match=r"bertkit\.utils has no floor"):
        floor_of("bertkit.utils")


def test_a_file_over_350_lines_has_its_reason_in_decisions() -> None:
    reasons = (ROOT / "docs/decisions.md").read_text("utf-8")
    long = [p.relative_to(ROOT).as_posix() for p in PACKAGE.rglob("*.py") if p.read_text("utf-8").count("\n") > 350]
    assert [name for name in long if name not in reasons] == []


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert [p.name for p in PACKAGE.rglob("*.py") if p.stem in ("utils", "util", "helpers", "misc", "common")] == []


def tracked() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the tracked files are not known")
    listed = subprocess.run(
        [git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


# Put together here, so that this file does not hold what it looks for.
FOREIGN = re.compile(
    "|".join(
        [
            r"(?<![\w.~-])/(?:work|root|home/\w+|Users/\w+)/",
            "pypi" + r"\.org",
            "python" + r"hosted\.org",
            "download" + r"\.pytorch\.org",
            "conda" + r"\.anaconda\.org",
            "registry" + r"\.npmjs",
            "index" + "-url",
        ]
    ).encode()
)


def test_no_file_speaks_of_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if hit := FOREIGN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit[0].decode()}")
    assert found == []


def test_importing_bertkit_is_light() -> None:
    heavy = ["torch", "numpy", "tokenizers", "safetensors", "sklearn", "pyarrow", "huggingface_hub", "rich"]
    script = f"import sys, bertkit; print([name for name in {heavy!r} if name in sys.modules], bertkit.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    from bertkit import __version__

    assert done.stdout.strip() == f"[] {__version__}"


@pytest.mark.parametrize(
    "module", ["bertkit.text.tokenizer", "bertkit.data.readers", "bertkit.metrics", "bertkit.config"]
)
def test_text_readers_metrics_and_settings_do_without_torch(module: str) -> None:
    script = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_link_of_the_documents_leads_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
