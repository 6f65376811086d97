"""One file per command: a `Settings` class, a `run(settings)` function, and `lines(result)` for the terminal.

Modules here import nothing heavy at the top, so that `--help` is fast.
"""

COMMANDS = {  # the order of `bertkit --help`
    "demo": "Fine-tune and predict on sample data, in a minute or two.",
    "doctor": "Check this machine, and see what is in a data file.",
    "tokenizer": "Train a tokenizer on text.",
    "prepare": "Turn running text into a token store.",
    "pretrain": "Pretrain an encoder on a token store.",
    "finetune": "Fine-tune a model on labelled rows.",
    "evaluate": "Score a model on labelled rows, with confidence intervals.",
    "predict": "Predict the rows of a file.",
    "compare": "Compare models on your rows, from the most frequent label to BERT: is it worth it?",
    "fill": "Predict the masked words of a text.",
    "embed": "Turn texts into vectors.",
    "inspect": "Show tokens, attention heads and token importance as a page.",
    "index": "Make your documents searchable.",
    "search": "Find the passages of an index that match a question.",
    "ask": "Extract an answer from your documents.",
    "serve": "Serve models over HTTP, with a page to try them.",
    "seq2seq": "Train an encoder–decoder Transformer on pairs of texts.",
    "rewrite": "Rewrite texts with a trained encoder–decoder Transformer.",
    "learn": "Train one of BERT's ancestors: n-gram, word2vec, GloVe, LSTM, ELMo …",
    "neighbours": "Find the words nearest to a word, or complete an analogy.",
    "suggest": "Suggest the next words (left-to-right models).",
    "distill": "Distill a fine-tuned model into a smaller one.",
    "quantize": "Store weights in fewer bits: int8, bf16 or fp16.",
    "prune": "Remove whole layers or neurons from a model.",
    "export": "Export a model for other programs: ONNX, or a plain transformers folder.",
    "convert": "Convert a checkpoint to a folder that bertkit and transformers open.",
    "completion": "Print a completion script for your shell.",
}
