"""The models that contestants run: random weights in one folder that all of them read, and its conversions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _harness import made_up_lines, made_up_words

# depth, width, heads, inner width
SHAPES = {"base": (12, 768, 12, 3072), "minilm": (6, 384, 12, 1536), "tiny": (2, 64, 2, 128)}
WORDS, PIECES, LONGEST = 12_000, 8_000, 512
EXPORTED = "bertkit"  # where in the folder its export is


def learn_vocabulary(folder: Path, words: int = WORDS, pieces: int = PIECES) -> list[str]:
    """Learn a vocabulary from made-up text into `folder`; returns the words the text was made of."""
    from bertkit.text.vocabulary import VocabularySettings, learn

    made = made_up_words(words)
    tokenizer = learn(made_up_lines(made, 2 * words), VocabularySettings(size=pieces))
    tokenizer.save(folder, LONGEST)
    return made


def make(folder: Path, shape: str, seed: int = 0) -> None:
    """Random weights of a shape beside the vocabulary that is in `folder`, also as sentence-transformers wants it."""
    import torch
    from transformers import BertConfig, BertModel

    depth, width, heads, inner = SHAPES[shape]
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len((folder / "vocab.txt").read_text("utf-8").splitlines()),
        num_hidden_layers=depth,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=LONGEST,
    )
    model = BertModel(config)
    with torch.no_grad():
        # The usual 0.02 keeps the texts' vectors so alike that an error would not show, or show too much.
        for name, weight in model.named_parameters():
            if name.startswith("encoder") and weight.dim() == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
    model.save_pretrained(folder)
    _write(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ])  # fmt: skip
    _write(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True})


def to_onnx(folder: Path) -> None:
    """folder/onnx/model.onnx: ids and mask in, mean-pooled vectors out."""
    import torch
    from transformers import BertModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            share = mask.unsqueeze(-1).to(tokens.dtype)
            return (tokens * share).sum(1) / share.sum(1)

    target = folder / "onnx" / "model.onnx"
    target.parent.mkdir(exist_ok=True)
    # Different tensors: the exporter takes two names of one tensor for one input.
    example = (torch.randint(5, 100, (2, 9)), torch.ones(2, 9, dtype=torch.int64))
    batch, length = torch.export.Dim("batch", min=1, max=4096), torch.export.Dim("length", min=2, max=LONGEST)
    with torch.no_grad():
        torch.onnx.export(
            Pooled().eval(),
            example,
            str(target),
            dynamo=True,
            input_names=["ids", "mask"],
            output_names=["vectors"],
            dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
            verbose=False,
        )


def to_int8(folder: Path) -> None:
    """folder/onnx/model-int8.onnx: ONNX Runtime's dynamic quantisation of folder/onnx/model.onnx."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from bertkit.machine import has_fast_int8

    model = onnx.load(str(folder / "onnx/model.onnx"))
    del model.graph.value_info[:]  # shapes of the exporter that quantisation would contradict
    plain = folder / "onnx/model-plain.onnx"
    onnx.save(model, str(plain))
    # As its documentation advises: 7 bits where the CPU's 8-bit products could overflow.
    reduce = not has_fast_int8()
    target = str(folder / "onnx/model-int8.onnx")
    quantize_dynamic(str(plain), target, weight_type=QuantType.QInt8, reduce_range=reduce)


def to_bertkit(folder: Path) -> None:
    """folder/bertkit: what `bertkit export` makes of it, in fp32 and int8."""
    from bertkit.config import build
    from bertkit.runs.compress import measure
    from bertkit.runs.compress.export import export
    from bertkit.settings.compress import ExportSettings

    measure.SECONDS, measure.TURNS, measure.MOST = 0.0, 1, 8  # its own comparison of speeds is not needed here
    export(build(ExportSettings, {"model": str(folder), "out": folder / EXPORTED}))


def to_ctranslate2(folder: Path) -> None:
    """folder/ctranslate2: CTranslate2's own conversion, int8."""
    from ctranslate2.converters import TransformersConverter

    config = json.loads((folder / "config.json").read_text("utf-8"))
    if "position_embedding_type" not in config:  # the converter asks for a setting that newer configs leave out
        _write(folder / "config.json", config | {"position_embedding_type": "absolute"})
    TransformersConverter(str(folder)).convert(str(folder / "ctranslate2"), quantization="int8", force=True)


CONVERSIONS = {
    "onnx": (to_onnx,), "onnx-int8": (to_onnx, to_int8), "ctranslate2": (to_ctranslate2,), "bertkit": (to_bertkit,),
}  # fmt: skip


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
