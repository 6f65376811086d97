"""The model card: what a stranger needs to know of a model folder."""

from __future__ import annotations

from typing import Any


def write(about: dict[str, Any], config: dict[str, Any], tensors: int, pooled: str = "") -> str:
    """A README.md from what is known of the model. pooled: how its vectors are made, where it is made for vectors."""
    task = about.get("task", "encoder")
    lines = [
        "---",
        f"library_name: {'sentence-transformers' if pooled else 'transformers'}",
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
    lines += ["", *about.get("notes", []), *_told(about, pooled)]
    return "\n".join(lines).rstrip() + "\n"


def _told(about: dict[str, Any], pooled: str) -> list[str]:
    """Where other programs give other answers than bertkit, and why."""
    found = []
    options = about.get("options")
    options = options if isinstance(options, dict) else {}
    if options.get("crf"):
        found.append(
            "The tags of a sentence are chosen together by a conditional random field, whose scores are in "
            "`crf.safetensors`. bertkit uses them; transformers opens the folder without them and tags piece by piece."
        )
    if options.get("word", "first") != "first":
        found.append(
            f"A word's vector is the {options['word']} of its pieces' vectors. transformers tags every piece by itself."
        )
    if pooled:
        found.append(f"A text's vector is made by {pooled} pooling; sentence-transformers opens the folder as it is.")
    return [line for text in found for line in (text, "")]


_PIPELINES = {
    "classify": "text-classification",
    "pair": "text-classification",
    "regress": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "embed": "sentence-similarity",
}
