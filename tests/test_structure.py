"""The shape of the house: imports point down, files stay short, nothing tells of the machine it was written on."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bertkit"

# From the ground up. A module may import from lower rows and from its own package, never from its row or above.
FLOORS = [
    ["errors", "notify"],
    ["config", "machine", "samples", "files"],
    ["settings", "text", "report"],
    ["data", "metrics"],
    ["model"],
    ["training"],  # the loop owns the shape of an objective and knows none of them
    ["checkpoint", "tasks"],
    ["objectives"],
    ["inference", "ancestors"],
    ["runs.pretrain", "runs.finetune", "retrieval"],
    ["runs.compress", "runs.compare"],
    ["loading"],
    ["server"],  # a command starts it, and it needs none
    ["commands", "sklearn"],
    ["cli", "__init__", "__main__"],
]
FRONT_DOORS = ("__init__", "__main__")  # they open on every floor
# Pages are made by those who finish a run; nothing below them knows of pages.
ONLY_FOR = {"report": {"report", "runs", "commands", "server"}}


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
            if (node.module or "").split(".")[0] == "bertkit":
                there = ROOT / str(node.module).replace(".", "/")
                inside = [a.name for a in node.names if (there / a.name).is_dir() or (there / f"{a.name}.py").is_file()]
                yield from ((f"{node.module}.{name}", node.lineno) for name in inside)
                if node.module != "bertkit" and len(inside) < len(node.names):
                    yield str(node.module), node.lineno
        elif not is_for_types(node):
            waiting += ast.iter_child_nodes(node)


def test_the_tour_shows_the_floors_as_they_are():
    shown = "\n".join(", ".join(row) for row in reversed(FLOORS))
    assert f"```\n{shown}\n```" in (ROOT / "docs/tour.md").read_text("utf-8")


def test_imports_point_down_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        me = module_name(path)
        if me == "bertkit.runs":
            continue  # a drawer for four storeys
        floor, name = floor_of(me)
        if name in FRONT_DOORS:
            continue
        for module, line in imports(path):
            below, other = floor_of(module)
            allowed = name == other or (below < floor and me.split(".")[1] in ONLY_FOR.get(other, {me.split(".")[1]}))
            if not allowed:
                wrong.append(f"bertkit/{inside}:{line}: {name} may not import {module}")
    assert wrong == []


def test_the_layering_test_sees_an_import_that_points_up(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from bertkit.commands.fill import run\n    from bertkit import cli, __version__\n")
    assert sorted(imports(file)) == [("bertkit.cli", 3), ("bertkit.commands.fill", 2)]
    assert floor_of("bertkit.training.loop")[0] < floor_of("bertkit.objectives.masked")[0]
    assert floor_of("bertkit.runs.finetune.run")[0] < floor_of("bertkit.runs.compress.distill")[0]
    with pytest.raises(AssertionError, match=r"bertkit\.utils has no floor"):
        floor_of("bertkit.utils")


def test_a_file_over_500_lines_has_its_reason_in_decisions() -> None:
    reasons = (ROOT / "docs/decisions.md").read_text("utf-8")
    long = [p.relative_to(ROOT).as_posix() for p in PACKAGE.rglob("*.py") if p.read_text("utf-8").count("\n") > 500]
    assert [name for name in long if name not in reasons] == []


def test_the_house_stays_small_enough_to_find_things_in() -> None:
    files = list(PACKAGE.rglob("*.py"))
    sizes = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in files)
    assert len(files) <= 250 and sizes["."] <= 9 and len(FLOORS) <= 15
    assert {name: size for name, size in sizes.items() if size > 14 and name != "commands"} == {}


def module_name(path: Path) -> str:
    return ".".join(["bertkit", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def importers() -> dict[str, set[str]]:
    """Module → the modules that import it, at any depth, for types alone, or by its name in a table."""
    files = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = {name: set() for name in files}
    for me, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
                names = [f"bertkit.{node.value}"]
            for name in names:
                if name in found and name != me:
                    found[name].add(me)
    return found


def test_few_files_are_there_for_one_other_file() -> None:
    """What one file alone needs is mostly a part of it. Commands and families are rows of one table each."""
    tables = (".commands", ".families.")
    single = [name for name, users in importers().items() if len(users) == 1 and not any(t in name for t in tables)]
    assert len(single) <= 50, sorted(single)


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
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_test_that_the_reliability_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/reliability.md").read_text("utf-8"))
    assert len(named) > 30
    missing = [name for path, name in named if f"def {name}(" not in (ROOT / "tests" / path).read_text("utf-8")]
    assert missing == []
