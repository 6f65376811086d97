"""An index in PostgreSQL with pgvector, named by a URL: postgresql://USER@HOST/DATABASE?index=NAME.

Tables:
- `bertkit_indexes`         name → `about`, which holds what index.json does, and the generation of the tables
- `bertkit_NAME_G`          passages: number, id, file, document, text, columns (jsonb), vector (halfvec)
- `bertkit_NAME_G_words`    passage → its length, terms and how often each occurs: what BM25 needs

A change is one transaction, so that it happens completely or not at all, whatever dies meanwhile; readers see the index
as it was until then.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from bertkit.errors import UserError, suggest
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.notify import note
from bertkit.retrieval.bm25 import LENGTH, SATURATION, Terms
from bertkit.retrieval.conditions import Where
from bertkit.retrieval.evaluate import RERANKED, Reranker
from bertkit.retrieval.index import AMONG, FORMAT, check_question, fingerprint, model_of, vector_weight
from bertkit.retrieval.passages import Passage
from bertkit.retrieval.postgres_sql import (
    COSINE,
    FEWEST_WORDS,
    QUERIES,
    Place,
    as_text,
    clean,
    condition,
    only,
    psycopg,
    sql,
    tables,
)
from bertkit.retrieval.segments import EFFORT, FEWEST, NEIGHBOURS, OVERSAMPLE, SAMPLE, embedded
from bertkit.text.tokenizer import Tokenizer

OLDEST = (0, 7)  # of pgvector: it brought halfvec
FILTERED = 20_000  # passages that a condition leaves: up to so many, all are compared, also where there is a graph


# ---- Writing


def build(
    predictor: Predictor, model: str, passages: Iterator[Passage], url: str, run: str = "", **about: Any
) -> dict[str, Any]:
    """Build an index in PostgreSQL: embed passages and write it in one transaction; a namesake is replaced."""
    place = Place.of(url)
    if about.get("vectors", "f16") != "f16":
        raise UserError("--store keeps vectors in 16 bits. Remove --vectors.")
    width = min(predictor.width, int(about.get("dimensions") or predictor.width))
    with place.changing() as connection:
        _prepare(connection, place)
        before = about_of(connection, place.name) or {}
        generation = int(before.get("generation", 0)) + 1
        names = tables(place.name, generation)
        connection.execute(
            sql.SQL(
                "CREATE TABLE {passages} (number bigint PRIMARY KEY, id text NOT NULL, file text NOT NULL, document "
                "int NOT NULL, text text NOT NULL, columns jsonb NOT NULL, vector halfvec({width}) NOT NULL)"
            ).format(width=sql.Literal(width), **names)
        )
        connection.execute(
            sql.SQL(
                "CREATE TABLE {words} (passage bigint PRIMARY KEY REFERENCES {passages} ON DELETE CASCADE, "
                "length int NOT NULL, terms int[] NOT NULL, counts smallint[] NOT NULL)"
            ).format(**names)
        )
        facts = _insert(connection, names, predictor, passages, int(about.get("dimensions", 0)), 1)
        if not facts["passages"]:
            raise UserError("There is no text to index.")
        for column in ("id", "file"):
            statement = "CREATE INDEX ON {passages} ({column})"
            connection.execute(sql.SQL(statement).format(column=sql.Identifier(column), **names))
        connection.execute(sql.SQL("CREATE INDEX ON {words} USING gin (terms)").format(**names))
        if about.get("engine") == "hnsw":
            connection.execute(
                sql.SQL(
                    "CREATE INDEX ON {passages} USING hnsw (vector halfvec_ip_ops) "
                    "WITH (m = {m}, ef_construction = {e})"
                ).format(m=sql.Literal(NEIGHBOURS), e=sql.Literal(EFFORT), **names)
            )
        for table in names.values():
            connection.execute(sql.SQL("ANALYZE {}").format(table))
        made = {
            "format": FORMAT, "generation": generation, "model": model, "fingerprint": fingerprint(model),
            "prompt": predictor.pooling.prompt_for("document"), **about, **facts, "next": facts["passages"] + 1,
            "engine": "hnsw" if about.get("engine") == "hnsw" else "exact",
            "vector_weight": _weight(connection, names, predictor, facts["passages"], about),
            "weight_measured_on": facts["passages"],
        }  # fmt: skip
        if made["engine"] == "hnsw":
            made["recall"] = facts["recall"] = _recall(connection, names, facts["passages"])
        _remember(connection, place.name, made)
        if before:
            _drop(connection, tables(place.name, int(before["generation"])))
    return {name: value for name, value in facts.items() if name not in ("pieces", "columns")}


def _prepare(connection: psycopg.Connection[Any], place: Place) -> None:
    """Make the extension and the table of indexes in PostgreSQL."""
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        raise UserError(
            f"{place.shown}: the server does not have the extension pgvector. Install it there "
            "(package postgresql-NN-pgvector), or use a server that has it."
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise UserError(
            f"{place.shown}: the user may not create the extension pgvector. Let an administrator run in this "
            "database: CREATE EXTENSION vector"
        ) from None
    version = str(only(connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'")))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise UserError(
            f"{place.shown}: pgvector {version} has no 16-bit vectors. Update it to 0.7 or newer, and run: "
            "ALTER EXTENSION vector UPDATE"
        )
    connection.execute("CREATE TABLE IF NOT EXISTS bertkit_indexes (name text PRIMARY KEY, about jsonb NOT NULL)")


def _drop(connection: psycopg.Connection[Any], names: dict[str, sql.Identifier]) -> None:
    connection.execute(sql.SQL("DROP TABLE {words}, {passages}").format(**names))


def about_of(connection: psycopg.Connection[Any], name: str) -> dict[str, Any] | None:
    """What PostgreSQL's table says of an index; None where there is none of this name."""
    if only(connection.execute("SELECT to_regclass('bertkit_indexes')")) is None:
        return None
    about: dict[str, Any] | None = only(
        connection.execute("SELECT about FROM bertkit_indexes WHERE name = %s", (name,))
    )
    return about


def _remember(connection: psycopg.Connection[Any], name: str, about: dict[str, Any]) -> None:
    connection.execute(
        "INSERT INTO bertkit_indexes VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET about = EXCLUDED.about",
        (name, json.dumps(about)),
    )


def _insert(
    connection: psycopg.Connection[Any], names: dict[str, sql.Identifier], predictor: Predictor,
    passages: Iterator[Passage], dimensions: int, first: int, before: Callable[[list[Passage]], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Embed passages and copy them into PostgreSQL, some at a time. Returns counts, and the columns they have."""
    terms, files, columns = Terms(predictor.tokenizer), set(), {"file": None, "id": None}
    counts = {"passages": 0, "tokens": 0, "pieces": 0}
    changed = 0
    into = sql.SQL("COPY {passages} (number, id, file, document, text, columns, vector) FROM STDIN").format(**names)
    beside = sql.SQL("COPY {words} (passage, length, terms, counts) FROM STDIN").format(**names)
    while chunk := list(islice(passages, AT_ONCE)):
        vectors = embedded(predictor, [passage.text for passage in chunk], dimensions).astype(np.float16)
        if before is not None:
            before(chunk)
        number = first + counts["passages"]
        with connection.cursor() as cursor:
            with cursor.copy(into) as copy:
                for n, (passage, vector) in enumerate(zip(chunk, vectors), number):
                    text = clean(passage.text)
                    changed += text != passage.text
                    facts = (n, clean(passage.id), clean(passage.file), passage.document, text, _cells(passage))
                    copy.write_row((*facts, as_text(vector)))
            rows = terms.of([passage.text for passage in chunk])
            with cursor.copy(beside) as copy:
                for n, row in enumerate(rows, number):
                    distinct, often = np.unique(row, return_counts=True)
                    copy.write_row((n, len(row), distinct.tolist(), np.minimum(often, 255).tolist()))
        counts["passages"] += len(chunk)
        counts["tokens"] += sum(map(terms.pieces_in, rows))
        counts["pieces"] += sum(map(len, rows))
        files |= {passage.file for passage in chunk}
        columns |= dict.fromkeys(name for passage in chunk for name in passage.columns)
    if changed:
        note(f"{changed:,} passages contain characters that PostgreSQL cannot hold; they were replaced by \ufffd.")
    width = int(vectors.shape[1]) if counts["passages"] else 0
    return {**counts, "files": len(files), "width": width, "columns": list(columns)}


def _cells(passage: Passage) -> str:
    """A passage's columns as JSON for PostgreSQL; numbers that JSON does not have become text."""
    odd = (float("inf"), float("-inf"))
    cells = {
        clean(name): clean(value) if isinstance(value, str) else str(value) if value != value or value in odd else value
        for name, value in passage.columns.items()
    }
    return json.dumps(cells, ensure_ascii=False)


def change(
    url: str, read: Callable[[Any], Iterator[Passage]] | None = None, delete: Collection[str] = (), **opening: Any
) -> dict[str, Any]:
    """Change an index in PostgreSQL: add passages and delete documents, as `index.change` does, in one transaction."""
    index = PostgresIndex.open(url, **opening)
    place, counts = index.place, {"added": 0, "replaced": 0, "deleted": 0}
    with place.changing() as connection:
        about = index.current(connection)
        names, start = tables(place.name, int(about["generation"])), int(about["next"])
        for name in delete:
            lost = _delete(connection, names, index.predictor.tokenizer, [clean(name)], [clean(name)], start)
            if not lost["documents"]:
                raise UserError(f"{place.shown} has no document with the id {name!r}, and none of a file of that name.")
            counts["deleted"] += lost["documents"]
            _subtract(about, lost)

        def replace(chunk: list[Passage]) -> None:
            ids = {clean(passage.id) for passage in chunk}
            unnamed = {clean(each.file) for each in chunk if each.file in (each.id, each.id.rpartition("#")[0])}
            lost = _delete(connection, names, index.predictor.tokenizer, list(ids), list(unnamed), start)
            counts["replaced"] += lost["documents"]
            _subtract(about, lost)

        if read is not None:
            facts = _insert(
                connection, names, index.predictor, read(index), int(about.get("dimensions", 0)), start, replace
            )
            if not facts["passages"]:
                raise UserError("There is no text to index.")
            counts["added"] = facts["passages"]
            for key in ("passages", "tokens", "pieces"):
                about[key] += facts[key]
            about["next"] = start + facts["passages"]
            about["columns"] = list(dict.fromkeys([*about["columns"], *facts["columns"]]))
            if about["passages"] > 2 * int(about["weight_measured_on"]):
                about["vector_weight"] = _weight(connection, names, index.predictor, about["passages"], about)
                about["weight_measured_on"] = about["passages"]
        about["files"] = only(
            connection.execute(sql.SQL("SELECT count(DISTINCT file) FROM {passages}").format(**names))
        )
        _remember(connection, place.name, about)
    return {**counts, "passages": about["passages"]}


def _delete(
    connection: psycopg.Connection[Any], names: dict[str, sql.Identifier], tokenizer: Tokenizer, ids: list[str],
    files: list[str], below: int,
) -> dict[str, int]:  # fmt: skip
    """Delete from PostgreSQL by id or file what was there before this change. Returns how much of each it was."""
    statement = sql.SQL(
        "WITH gone AS (DELETE FROM {passages} WHERE number < %s AND (id = ANY(%s) OR file = ANY(%s)) "
        "RETURNING number, id, text) SELECT count(DISTINCT id), count(*), coalesce(sum(length), 0), "
        "coalesce(array_agg(text), '{{}}') FROM gone JOIN {words} ON passage = number"
    ).format(**names)
    row = connection.execute(statement, (below, ids, files)).fetchone()
    assert row is not None
    tokens = sum(map(len, tokenizer.pieces_batch(row[3])))
    return {"documents": int(row[0]), "passages": int(row[1]), "pieces": int(row[2]), "tokens": tokens}


def _subtract(about: dict[str, Any], lost: dict[str, int]) -> None:
    for key in ("passages", "tokens", "pieces"):
        about[key] -= lost[key]


def _spread(connection: psycopg.Connection[Any], names: dict[str, sql.Identifier], total: int, count: int) -> list[Any]:
    """Texts and vectors of passages spread over the index in PostgreSQL."""
    places = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int)) + 1
    statement = (
        "SELECT text, vector::text FROM (SELECT text, vector, row_number() OVER (ORDER BY number) AS place "
        "FROM {passages}) AS numbered WHERE place = ANY(%s) ORDER BY place"
    )
    return connection.execute(sql.SQL(statement).format(**names), (places.tolist(),)).fetchall()


def _weight(
    connection: psycopg.Connection[Any], names: dict[str, sql.Identifier], predictor: Predictor, total: int,
    about: dict[str, Any],
) -> float:  # fmt: skip
    """The weight of vectors against words for an index in a database, from a sample of its passages."""
    rows = _spread(connection, names, total, AMONG)
    vectors = np.array([json.loads(vector) for _, vector in rows], np.float32)
    texts = [text for text, _ in rows]
    return vector_weight(predictor, Terms(predictor.tokenizer), texts, vectors, int(about.get("dimensions", 0)))


def _recall(connection: psycopg.Connection[Any], names: dict[str, sql.Identifier], total: int, top: int = 10) -> float:
    """The share of the true nearest `top` that pgvector's graph finds, for vectors spread over the index."""
    hits, rows = 0, _spread(connection, names, total, SAMPLE)
    top = min(top, total)
    by_graph = sql.SQL("SELECT number FROM {passages} ORDER BY vector <#> %s::halfvec LIMIT %s").format(**names)
    exactly = sql.SQL(
        "SELECT number FROM {passages} ORDER BY vector::vector <#> %s::vector, number LIMIT %s"
    ).format(**names)  # fmt: skip
    connection.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(max(EFFORT, FEWEST)),))
    for _, vector in rows:
        near = {number for (number,) in connection.execute(by_graph, (vector, FEWEST))}
        hits += sum(number in near for (number,) in connection.execute(exactly, (vector, top)))
    return round(hits / (top * len(rows)), 4)


# ---- Searching


@dataclass
class PostgresIndex:
    """An open index of a database; it is used like `Index`."""

    place: Place
    about: dict[str, Any]
    predictor: Predictor
    connection: psycopg.Connection[Any]

    @classmethod
    def open(
        cls, url: str, model: str = "", precision: str = "auto", device: str = "auto", verify: bool = True
    ) -> PostgresIndex:
        """Connect to PostgreSQL, and open the index's model (`model`: where it is, if it has moved)."""
        place = Place.of(url)
        connection = place.connect()
        with place.explained():
            about = about_of(connection, place.name)
            if about is None:
                raise UserError(_none_of(connection, place))
        if int(about.get("format", 1)) > FORMAT:
            raise UserError(
                f"{place.shown} was written by a later version of bertkit (format {about['format']}). Update bertkit, "
                "or rebuild the index with `bertkit index`."
            )
        predictor = model_of(about, place.shown, model, precision, device)
        return cls(place, about, predictor, connection)

    def __len__(self) -> int:
        """The number of passages that can be found."""
        return int(self.about["passages"])

    def current(self, connection: psycopg.Connection[Any]) -> dict[str, Any]:
        """What PostgreSQL says of the index now: others may have changed it since it was opened."""
        about = about_of(connection, self.place.name)
        if about is None:
            raise UserError(_none_of(connection, self.place))
        if about["fingerprint"] != self.about["fingerprint"] or about["width"] != self.about["width"]:
            raise UserError(f"{self.place.shown} was rebuilt with another model meanwhile. Open it again.")
        self.about = about
        return about

    def search(
        self, question: str, top: int = 10, by: str = "both", reranker: Reranker | None = None,
        where: Where | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Search PostgreSQL: the nearest passages, best first, as `Index.search` gives them."""
        if reranker is not None:
            return reranker.rank(question, self.search(question, max(top, RERANKED), by, where=where))[:top]
        check_question(question, top, by)
        if self.connection.closed:
            self.connection = self.place.connect()
        asked = np.zeros(self.about["width"])  # words need no vector
        if by != "words":
            asked = embedded(self.predictor, [question], int(self.about.get("dimensions", 0)), "query")[0]
        with self.place.explained(), self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            about = self.current(self.connection)
            if not about["passages"]:
                return []
            if where is not None:
                where.check(about["columns"])
            rows = self._rows(question, asked, top, by, where)
        return [_hit(row) for row in rows]

    def _rows(self, question: str, asked: np.ndarray, top: int, by: str, where: Where | None) -> list[Any]:
        """Search in the database: the best passages by vectors, words or both."""
        about, count = self.about, int(self.about["passages"])
        terms = list(dict.fromkeys(self.terms.of([question])[0].tolist()))
        mean = max(1.0, about["pieces"] / count)
        wide = min(count, max(FEWEST, top * OVERSAMPLE["f16"]))
        bound: dict[str, Any] = {
            "terms": terms, "count": count, "mean": mean, "k1": SATURATION, "b": LENGTH, "asked": as_text(asked),
            "rounded": as_text(asked), "weight": float(about["vector_weight"]), "top": top, "wide": wide,
        }  # fmt: skip
        names = tables(self.place.name, int(about["generation"]))
        allowed = condition(where.tree, bound) if where else sql.SQL("true")
        graph = about["engine"] == "hnsw" and by != "words"
        order = sql.SQL("p.vector <#> %(rounded)s::halfvec")  # a parameter has one type
        if graph and where is not None:  # few allowed ones: all of them are compared
            some = sql.SQL("SELECT count(*) FROM (SELECT FROM {passages} AS p WHERE {where} LIMIT {most}) AS several")
            several = some.format(where=allowed, most=sql.Literal(FILTERED + 1), **names)
            graph = only(self.connection.execute(several, bound)) > FILTERED
        if graph:
            effort = str(min(1000, max(EFFORT, wide)))
            self.connection.execute("SELECT set_config('hnsw.ef_search', %s, true)", (effort,))
            if where is not None or wide > 1000:
                self.connection.execute("SELECT set_config('hnsw.iterative_scan', 'strict_order', true)")
        # With a graph, the lowest cosine is that of passages spread over the index.
        lowest = sql.SQL(
            "(SELECT min({cosine}) FROM {passages} AS p WHERE number IN (SELECT generate_series(1, {last}, {step})))"
        ).format(
            cosine=sql.SQL(COSINE), last=sql.Literal(int(about["next"])),
            step=sql.Literal(max(1, int(about["next"]) // AMONG)), **names,
        )  # fmt: skip
        query = sql.SQL(QUERIES[by, graph]).format(
            cosine=sql.SQL(COSINE), where=allowed, order=order,
            among=sql.SQL("JOIN chosen USING (number)" if graph else ""),
            lowest=lowest if graph else sql.SQL("min(cosine)"),
            least_words=sql.SQL(FEWEST_WORDS if graph else "min(words)"),
            **names,
        )  # fmt: skip
        return self.connection.execute(query, bound).fetchall()

    @cached_property
    def terms(self) -> Terms:
        """How an index in PostgreSQL splits a question into terms."""
        return Terms(self.predictor.tokenizer)

    def documents(self) -> dict[str, list[str]]:
        """The texts of every document's passages in PostgreSQL, by its id."""
        texts: dict[str, list[str]] = {}
        with self.place.explained(), self.connection.transaction():
            names = tables(self.place.name, int(self.current(self.connection)["generation"]))
            statement = sql.SQL("SELECT id, text FROM {passages} ORDER BY number").format(**names)
            with self.connection.cursor("documents") as cursor:  # of the server: rows come in portions
                for name, text in cursor.execute(statement):
                    texts.setdefault(name, []).append(text)
        return texts

    @property
    def megabytes(self) -> float:
        """The size of an index's tables in PostgreSQL and their indexes."""
        with self.place.explained():
            names = tables(self.place.name, int(self.about["generation"]))
            sizes = [
                only(self.connection.execute("SELECT pg_total_relation_size(%s)", (name.as_string(),)))
                for name in names.values()
            ]
        return sum(sizes) / 1e6


def _hit(row: Sequence[Any]) -> dict[str, Any]:
    score, cosine, text, file, document, name, columns = row
    near = {} if cosine is None or math.isnan(cosine) else {"cosine": float(cosine)}
    hit = {"score": float(score), **near, "id": name, "text": text, "file": file, "document": document}
    return {**hit, "columns": columns} if columns else hit


def _none_of(connection: psycopg.Connection[Any], place: Place) -> str:
    """The message that PostgreSQL has no index of this name, and which there are."""
    names: list[str] = []
    if only(connection.execute("SELECT to_regclass('bertkit_indexes')")) is not None:
        names = [name for (name,) in connection.execute("SELECT name FROM bertkit_indexes ORDER BY name LIMIT 20")]
    there = suggest(place.name, names) if names else "The database has no indexes yet."
    return f"{place.shown}: there is no index {place.name!r}. {there} Make it with `bertkit index FILES --store URL`."
