"""The model card: what a newcomer needs to know about a model folder."""

from __future__ import annotations

from typing import Any

# By the kind of weights that the folder holds: who reads it, and how it is opened.
LIBRARIES = {"floats": "transformers", "int8": "bertkit", "onnx": "onnx"}
BY_BERTKIT = ["import bertkit", 'model = bertkit.load("this folder")']
USE = {
    "floats": BY_BERTKIT,
    "int8": BY_BERTKIT,
    "onnx": [
        *BY_BERTKIT,
        "# or",
        "import onnxruntime, tokenizers",
        'tokenizer = tokenizers.Tokenizer.from_file("this folder/tokenizer.json")',
        'session = onnxruntime.InferenceSession("this folder/onnx/model.onnx")',
    ],
}
OPENED = {
    "int8": (
        "The weights are int8, which only bertkit opens; `bertkit convert` writes floating-point weights for other "
        "programs."
    ),
    "onnx": "The weights are an ONNX file, which bertkit (also without torch), onnxruntime, optimum and "
    "transformers.js open.",
}
CRF = {  # what the card says of tags that were chosen together
    "floats": "The tags of a sentence are chosen jointly by a conditional random field, whose scores are in "
    "`crf.safetensors`. bertkit uses them; transformers opens the folder without them and tags piece by piece.",
    "int8": "The tags of a sentence are chosen jointly by a conditional random field, whose scores are in "
    "`crf.safetensors`.",
    "onnx": "The tags of a sentence are chosen jointly by a conditional random field, whose scores are in "
    "`crf.safetensors`. bertkit uses them; other programs read the file's tags piece by piece.",
}
PIECES = {"floats": " transformers tags every piece independently.", "int8": "", "onnx": " The file tags every piece."}
POOLED = {"floats": "; sentence-transformers opens the folder as it is.", "int8": ".", "onnx": "."}


def write(
    about: dict[str, Any], config: dict[str, Any], tensors: int, pooled: str = "", weights: str = "floats"
) -> str:
    """Write the model card (README.md) from what is known about the model.

    pooled: the pooling of an embedding model. weights: floats, int8 or onnx.
    """
    name = config["architectures"][0]
    library = "sentence-transformers" if pooled and weights == "floats" else LIBRARIES[weights]
    lines = [
        "---",
        f"library_name: {library}",
        *_pipeline(about.get("task", ""), name),
        "tags: [bertkit]",
        "---",
        f"# {about.get('name', name)}",
        "",
        about.get("summary", f"A {config['model_type']} model ({name}), written by bertkit."),
        "",
        "| | |",
        "|---|---|",
        f"| class | `{name}` |",
        f"| tensors | {tensors} |",
    ]
    lines += [f"| {key} | {value} |" for key, value in about.get("facts", {}).items()]
    if config.get("id2label"):
        lines.append(f"| labels | {', '.join(config['id2label'].values())} |")
    lines += ["", "## Use", "", "```python", *USE[weights], "```"]
    notes = [*about.get("notes", []), *_notes(about, pooled, weights)]
    lines += [line for text in notes for line in ("", text)]
    return "\n".join(lines).rstrip() + "\n"


def _pipeline(task: str, name: str) -> list[str]:
    """The hub's name, on the model card, for the task or for what the class is used for; empty if it has none."""
    pipeline = _PIPELINES.get(task) or next((tag for ending, tag in _OF_CLASS.items() if name.endswith(ending)), "")
    return [f"pipeline_tag: {pipeline}"] if pipeline else []


def _notes(about: dict[str, Any], pooled: str, weights: str) -> list[str]:
    """What the model card says: what opens the folder, where and why other programs give different answers."""
    notes = [OPENED[weights]] if weights in OPENED else []
    options = about.get("options")
    options = options if isinstance(options, dict) else {}
    if options.get("crf"):
        notes.append(CRF[weights])
    if options.get("word", "first") != "first":
        notes.append(f"A word's vector is the {options['word']} of its pieces' vectors.{PIECES[weights]}")
    if pooled:
        notes.append(f"A text's vector is made by {pooled} pooling{POOLED[weights]}")
    return notes


_PIPELINES = {
    "classify": "text-classification",
    "pair": "text-classification",
    "regress": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "embed": "sentence-similarity",
}
_OF_CLASS = {  # how a class's name ends; the first that fits
    "ElectraForPreTraining": "feature-extraction",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "LMHeadModel": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "feature-extraction",
}


# ---- What a folder may still say of itself once its weights are others: scores belong to the weights they were made
# by.

MEASURED = ("metrics", "scored_on", "result")  # of bertkit.json: what training reached
FITTED = ("temperature", "abstain")  # options that were fitted to the outputs


def changed(about: dict[str, Any], change: str, facts: dict[str, Any], *, refitted: bool) -> dict[str, Any]:
    """What the card of a changed model says: bertkit.json without the original's scores.

    said: what was done; facts: for its table.

    refitted: whether the outputs changed so much that options fitted to them (temperature, abstention) go; labels,
    windows and the other options are kept.
    """
    scores = {name for key in MEASURED for name in _table(about, key)}
    kept = {key: value for key, value in about.items() if key not in MEASURED}
    kept["facts"] = {key: value for key, value in _table(about, "facts").items() if key not in scores} | facts
    # The temperature is in the head's weights (in older folders, among the options).
    fitted = [key for key in FITTED if key in _table(about, "options") | _table(about, "calibration")]
    if refitted and "options" in about:
        kept["options"] = {key: value for key, value in about["options"].items() if key not in FITTED}
    if refitted:
        kept.pop("calibration", None)
    notes = [change, "The scores of the original do not apply to it and are left out."] if scores else [change]
    if fitted:
        notes.append(FITTED_TOLD[refitted].format(" and ".join(fitted)))
    kept["notes"] = [*about.get("notes", []), " ".join(notes)]
    return kept


FITTED_TOLD = {
    True: "The options fitted to the outputs of the original ({}) are left out too: probabilities are uncalibrated.",
    False: "The options fitted to the outputs of the original are kept: {}.",
}


def _table(about: dict[str, Any], key: str) -> dict[str, Any]:
    value = about.get(key)
    return value if isinstance(value, dict) else {}
