"""Write requirements/*.txt: every package that a make target installs, with the SHA-256 of its files (`make lock`).

Needs uv on the path. torch is not in the files: its CPU build has other files than the index's default, so the Makefile
installs it first, by its exact version and without a hash; what only its CUDA build needs is left out as well.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETS = {"all": ["all"], "dev": ["all", "dev"], "bench": ["all", "dev", "bench"]}
BUILD = "hatchling\neditables\n"  # what builds the package itself
ONLY_CUDA = re.compile(r"torch|triton|nvidia-.+|cuda-.+")


def entries(text: str) -> list[str]:
    """One entry per package, with its hashes."""
    return re.findall(r"^\w.*\n(?: .*\n)*", text, re.M)


def main() -> None:
    """Compile the three sets."""
    for name, extras in SETS.items():
        options = [word for extra in extras for word in ("--extra", extra)]
        compiled = subprocess.run(
            ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes",
             "--no-header", "--no-annotate",
             "--constraint", "constraints.txt", *options, "pyproject.toml", "-"],
            input=BUILD, capture_output=True, text=True, check=True, cwd=HERE.parent,
        ).stdout  # fmt: skip
        kept = [entry for entry in entries(compiled) if not ONLY_CUDA.fullmatch(re.split("==| ", entry)[0])]
        title = f"# Made by `make lock` for: {', '.join(extras)}. torch is installed before, see lock.py.\n"
        (HERE / f"{name}.txt").write_text(title + "".join(kept), "utf-8")


if __name__ == "__main__":
    main()
