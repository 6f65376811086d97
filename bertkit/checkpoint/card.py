"""The model card: what a stranger needs to know of a model folder."""

from __future__ import annotations

from typing import Any


def write(about: dict[str, Any], config: dict[str, Any], tensors: int) -> str:
    """A README.md from what is known of the model."""
    task = about.get("task", "encoder")
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {_PIPELINES.get(task, 'fill-mask')}",
        "tags: [bertkit]",
        "---",
        f"# {about.get('name', config['architectures'][0])}",
        "",
        about.get("summary", f"A {config['model_type']} model ({config['architectures'][0]}), written by bertkit."),
        "",
        "| | |",
        "|---|---|",
        f"| class | `{config['architectures'][0]}` |",
        f"| tensors | {tensors} |",
    ]
    lines += [f"| {key} | {value} |" for key, value in about.get("facts", {}).items()]
    if config.get("id2label"):
        lines.append(f"| labels | {', '.join(config['id2label'].values())} |")
    lines += ["", "## Use", "", "```python", "import bertkit", 'model = bertkit.load("this folder")', "```"]
    lines += ["", *about.get("notes", [])]
    return "\n".join(lines).rstrip() + "\n"


_PIPELINES = {
    "classify": "text-classification",
    "pair": "text-classification",
    "regress": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "embed": "sentence-similarity",
}
