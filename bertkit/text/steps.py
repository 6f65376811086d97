"""How a tokenizer comes to its pieces, step by step: WordPiece's greedy search, BPE's merges, Unigram's best path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer

LONGEST = 400  # characters: more steps than these nobody follows
UNKNOWN_PENALTY = 10.0  # Unigram: an unknown character costs this much more than the rarest piece


def steps(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """How each word of a text becomes pieces.

    kind: wordpiece, bpe or unigram. tokens: [{id, token, start, end, special, word, unknown}], as `encode` has them.
    words: [{word, start, end, tokens, steps, …}], in order; `word` is the normalized form. The steps of a word are,
    by kind: wordpiece [{rest, tried, piece}], bpe [{parts, pair, rank}], unigram [{start, end, piece, score, best}].
    They are empty where the word has none, as an added token such as [MASK], or where they do not lead to its pieces.
    """
    if len(text) > LONGEST:
        raise UserError(f"The text has {len(text)} characters; steps are shown for at most {LONGEST}. Shorten it.")
    encoding = tokenizer.encode(text)
    if all(encoding.special):
        raise UserError("The text is empty: there is nothing to split into pieces.")
    tokens: list[dict[str, Any]] = [
        {
            "id": piece, "token": tokenizer.id_to_token(piece) or "", "start": start, "end": end, "special": special,
            "word": word, "unknown": piece == tokenizer.unk_id and not special,
        }
        for piece, (start, end), special, word in zip(
            encoding.ids, encoding.offsets, encoding.special, encoding.words
        )
    ]  # fmt: skip
    waiting = [n for n, token in enumerate(tokens) if not token["special"]]
    words: list[dict[str, Any]] = []
    for word, explain in _words(tokenizer, text):
        pieces, way = explain(tokenizer, word) if explain else ([word], [])
        spelled = [tokens[n]["token"] for n in waiting[: len(pieces)]]
        if spelled != pieces:  # rules that are not followed here: the rest of the text is shown without its steps
            break
        words.append(_word(word, waiting[: len(pieces)], tokens, way))
        waiting = waiting[len(pieces) :]
    by_word: dict[int, list[int]] = {}
    for n in waiting:
        by_word.setdefault(tokens[n]["word"], []).append(n)
    for numbers in by_word.values():
        start, end = tokens[numbers[0]]["start"], tokens[numbers[-1]]["end"]
        words.append(_word(text[start:end], numbers, tokens, []))
    return {"kind": tokenizer.kind, "text": text, "lower": tokenizer.lower, "tokens": tokens, "words": words}


def _word(word: str, numbers: list[int], tokens: list[dict[str, Any]], way: list[dict[str, Any]]) -> dict[str, Any]:
    start, end = (tokens[numbers[0]]["start"], tokens[numbers[-1]]["end"]) if numbers else (0, 0)
    return {"word": word, "start": start, "end": end, "tokens": numbers, "steps": way}


Way = Callable[[Tokenizer, str], tuple[list[str], list[dict[str, Any]]]]


def _words(tokenizer: Tokenizer, text: str) -> Iterator[tuple[str, Way | None]]:
    """The words of a text as the tokenizer's first steps normalize them, and how each is split."""
    backend = tokenizer.backend
    added = sorted((token.content for token in backend.get_added_tokens_decoder().values()), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, added))})", text) if added else [text]
    for part in parts:
        if part in added:
            yield part, None
            continue
        normal = backend.normalizer.normalize_str(part) if backend.normalizer else part
        split = backend.pre_tokenizer.pre_tokenize_str(normal) if backend.pre_tokenizer else [(normal, (0, 0))]
        yield from ((word, WAYS[tokenizer.kind]) for word, _ in split if word)


def wordpiece(tokenizer: Tokenizer, word: str) -> tuple[list[str], list[dict[str, Any]]]:
    """WordPiece's steps: the longest piece that begins the rest of the word, again and again; else it is unknown."""
    model = tokenizer.shape["model"]
    vocabulary, prefix = model["vocab"], model["continuing_subword_prefix"]
    if len(word) > model["max_input_chars_per_word"]:
        return [model["unk_token"]], [{"rest": word, "tried": [], "piece": None}]
    pieces: list[str] = []
    way: list[dict[str, Any]] = []
    start = 0
    while start < len(word):
        tried = [(prefix if start else "") + word[start:end] for end in range(len(word), start, -1)]
        number = next((n for n, piece in enumerate(tried) if piece in vocabulary), None)
        if number is None:
            return [model["unk_token"]], [*way, {"rest": word[start:], "tried": tried, "piece": None}]
        pieces.append(tried[number])
        way.append({"rest": word[start:], "tried": tried[: number + 1], "piece": tried[number]})
        start = len(word) - number
    return pieces, way


def bpe(tokenizer: Tokenizer, word: str) -> tuple[list[str], list[dict[str, Any]]]:
    """BPE's steps: the word as characters; then the neighbours whose merge was learned first are merged, to the end."""
    model = tokenizer.shape["model"]
    if model.get("byte_fallback") or model.get("continuing_subword_prefix"):
        return [], []
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    ranks = {(left, right): n for n, (left, right) in enumerate(merges)}
    parts = list(word)
    if suffix := model.get("end_of_word_suffix"):
        parts[-1] += suffix
    way: list[dict[str, Any]] = [{"parts": parts, "pair": None, "rank": None}]
    while True:
        candidates = [(ranks[pair], n) for n, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not candidates:
            break
        rank, at = min(candidates)
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
        way.append({"parts": parts, "pair": at, "rank": rank})
    unknown = model.get("unk_token")
    return [part if part in model["vocab"] else str(unknown) for part in parts], way


def unigram(tokenizer: Tokenizer, word: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Unigram's steps: the pieces whose log-probabilities add up to the most (Viterbi); each that fits is an edge."""
    model = tokenizer.shape["model"]
    scores = {piece: float(score) for piece, score in model["vocab"]}
    penalty = min(scores.values()) - UNKNOWN_PENALTY
    longest = max(map(len, scores))
    unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else None
    best: list[tuple[float, int]] = [(0.0, 0)]
    edges: list[dict[str, Any]] = []
    for end in range(1, len(word) + 1):
        candidates = []
        for start in range(max(0, end - longest), end):
            piece = word[start:end]
            known = piece in scores
            if known or start == end - 1:
                score = scores[piece] if known else penalty
                candidates.append((best[start][0] + score, start))
                token = piece if known else unknown
                edges.append({"start": start, "end": end, "piece": token, "score": score, "best": False})
        best.append(max(candidates, key=lambda candidate: candidate[0]))
    path: list[tuple[int, int]] = []
    end = len(word)
    while end:
        path.append((best[end][1], end))
        end = best[end][1]
    chosen = set(path)
    pieces: list[str] = []
    for edge in edges:
        edge["best"] = (edge["start"], edge["end"]) in chosen
    for start, end in reversed(path):
        piece = word[start:end] if word[start:end] in scores else str(unknown)
        if not (piece == unknown and pieces and pieces[-1] == unknown):  # neighbours that are unknown become one
            pieces.append(piece)
    return pieces, edges


WAYS: dict[str, Way] = {"wordpiece": wordpiece, "bpe": bpe, "unigram": unigram}
