"""PostgreSQL's side of an index: the connection and its errors, conditions and searches as SQL.

All values are bound parameters; names of tables are quoted by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np

from bertkit.errors import UserError
from bertkit.retrieval.conditions import NUMBER, truth

try:
    import psycopg
    from psycopg import sql
except ImportError:
    raise UserError("An index in PostgreSQL needs psycopg. Run: pip install 'bertkit[postgres]'") from None

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
DEFAULT = "documents"
UNREADABLE = (
    "The URL of the database cannot be read. Write postgresql://USER@HOST:PORT/DATABASE?index=NAME; special characters "
    "of a password are percent-encoded (@ is %40), or the password is in PGPASSWORD or ~/.pgpass."
)
PATIENCE = 10  # seconds to connect, where the URL does not say


# ---- Where an index is


@dataclass(frozen=True)
class Place:
    """A database and the name of an index in it. shown: the URL without its password, for messages."""

    connection: str
    name: str
    shown: str
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, url: str) -> Place:
        """The parts of a PostgreSQL URL. No message repeats what may be a password."""
        address, _, query = url.partition("?")
        options = [pair for pair in query.split("&") if pair]
        name = next((unquote(pair[len("index=") :]) for pair in options if pair.startswith("index=")), DEFAULT)
        address = "?".join(filter(None, [address, "&".join(pair for pair in options if pair[:6] != "index=")]))
        try:
            parts = psycopg.conninfo.conninfo_to_dict(address)
        except (psycopg.ProgrammingError, UnicodeDecodeError):  # its text may quote the password
            raise UserError(UNREADABLE) from None
        port, database = str(parts.get("port") or ""), str(parts.get("dbname") or "")
        if not re.fullmatch("[0-9,]*", port) or "@" in database:  # a / or : of the password ended it too early
            raise UserError(UNREADABLE)
        if not NAME.fullmatch(name):
            raise UserError(
                f"{name!r} cannot be the name of an index. Use up to 40 lower-case letters, digits and _, "
                "beginning with a letter."
            )
        secrets = tuple(str(parts.pop(key)) for key in ("password", "sslpassword") if parts.get(key))
        user, host = (str(parts.get(key) or "") for key in ("user", "host"))
        without_password = (
            "postgresql://" + (f"{user}@" if user else "") + ("" if host.startswith("/") else host)
            + (f":{port}" if port else "") + f"/{database}?index={name}"
        )  # fmt: skip
        if "connect_timeout" not in parts:
            address = psycopg.conninfo.make_conninfo(address, connect_timeout=PATIENCE)
        return cls(address, name, without_password, secrets)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to PostgreSQL that commits every statement, unless a transaction is open."""
        try:
            connection = psycopg.connect(self.connection, autocommit=True, application_name="bertkit")
        except psycopg.Error as error:
            raise UserError(
                f"{self.shown} cannot be reached: {self.reason(error)}. Check the URL, and that the server is running; "
                "a password can be given in PGPASSWORD or ~/.pgpass."
            ) from None
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise UserError(f"{self.shown}: the database has the encoding {encoding}. Use one with UTF8.")
        return connection

    def reason(self, error: BaseException) -> str:
        """What went wrong with a statement, in a line and without a password."""
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text

    @contextmanager
    def explained(self, effect: str = "") -> Iterator[None]:
        """Turn an error of PostgreSQL's server into a message with its fix. effect: what it means for a change."""
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise UserError(
                f"{self.shown}: {self.reason(error)}. Grant the user the right, or connect as another one.{effect}"
            ) from None
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            raise UserError(f"{self.shown} is being changed by another process. Wait for it, then try again.") from None
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise UserError(
                f"{self.shown}: the server failed or the connection was lost ({self.reason(error)}).{effect} Run the "
                "command again when the server can be reached."
            ) from None
        except psycopg.Error as error:
            raise UserError(f"{self.shown}: the server refused a statement ({self.reason(error)}).{effect}") from None

    @contextmanager
    def changing(self) -> Iterator[psycopg.Connection[Any]]:
        """One transaction of PostgreSQL, by one process at a time; rolled back unless it ends well."""
        # A lost connection during the commit itself leaves open whether it happened; doing it again is harmless,
        # because documents with the same ids are replaced.
        with self.connect() as connection, self.explained(" Nothing was changed."), connection.transaction():
            locked = connection.execute("SELECT pg_try_advisory_xact_lock(hashtext(%s))", (f"bertkit {self.name}",))
            if not only(locked):
                raise psycopg.errors.LockNotAvailable
            for name in ("statement_timeout", "idle_in_transaction_session_timeout"):  # computing vectors takes time
                connection.execute(sql.SQL("SET LOCAL {} = 0").format(sql.Identifier(name)))
            yield connection


def only(cursor: psycopg.Cursor[Any]) -> Any:
    """The one value of an SQL answer; None where there is none."""
    row = cursor.fetchone()
    return row[0] if row else None


def clean(text: str) -> str:
    """Text for SQL, without what PostgreSQL cannot hold: NUL and half characters become U+FFFD."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def as_text(vector: np.ndarray) -> str:
    """A vector in SQL, as pgvector reads it."""
    return "[" + ",".join([f"{number:.9g}" for number in vector.tolist()]) + "]"


def tables(name: str, generation: int) -> dict[str, sql.Identifier]:
    """The names of an index's tables in SQL, quoted."""
    table = f"bertkit_{name}_{generation}"
    return {"passages": sql.Identifier(table), "words": sql.Identifier(f"{table}_words")}


# ---- Conditions on columns, as SQL with bound values. They mean what `Where.mask` does.

SIGNS = {"=": "=", "==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
KINDS = {
    "boolean": "CASE WHEN {kind} = 'boolean' THEN {text}::boolean WHEN {kind} = 'string' AND lower(btrim({text}, "
    "E' \\t\\n\\r')) IN ('true', 'false') THEN btrim({text}, E' \\t\\n\\r')::boolean END",
    "number": "CASE WHEN {kind} = 'number' THEN {text}::numeric WHEN {kind} = 'string' AND {text} ~ {number} "
    "THEN btrim({text})::numeric END",
    "text": "CASE WHEN {kind} <> 'boolean' THEN {text} END COLLATE \"C\"",
}


def condition(tree: tuple[Any, ...], bound: dict[str, Any]) -> sql.Composable:
    """A parsed condition as SQL; its names and values are put into `bound`."""
    kind, *parts = tree
    if kind == "not":
        return sql.SQL("NOT {}").format(condition(parts[0], bound))
    if kind in ("and", "or"):
        return sql.SQL("({})").format(sql.SQL(f" {kind} ").join(condition(part, bound) for part in parts))
    name, given = parts

    def bind(value: Any) -> sql.Composable:
        bound[f"where{len(bound)}"] = value
        return sql.Placeholder(f"where{len(bound) - 1}")

    if name in ("id", "file"):
        cell: sql.Composable = sql.SQL("to_jsonb(p.{})").format(sql.Identifier(name))
    else:
        cell = sql.SQL("(p.columns -> {}::text)").format(bind(clean(name)))
    facts = {"kind": sql.SQL("jsonb_typeof({})").format(cell), "text": sql.SQL("({} #>> '{{}}')").format(cell)}
    if kind == "contains":
        spelled = sql.SQL("CASE {kind} WHEN 'boolean' THEN initcap({text}) ELSE {text} END").format(**facts)
        return sql.SQL("coalesce(strpos({}, {}::text) > 0, false)").format(spelled, bind(clean(str(given))))
    sort = "boolean" if isinstance(given, bool) else "text" if isinstance(given, str) else "number"
    values: dict[str, Any] = {"boolean": truth(given)} if isinstance(truth(given), bool) else {}
    values |= {sort: clean(given) if sort == "text" else Decimal(str(given)) if sort == "number" else given}
    compared = [
        sql.SQL("{cell} {sign} {value}::{type_}").format(
            cell=sql.SQL(KINDS[sort]).format(number=sql.Literal(NUMBER), **facts), sign=sql.SQL(SIGNS[kind]),
            value=bind(value), type_=sql.SQL({"number": "numeric"}.get(sort, sort)),
        )
        for sort, value in values.items()
    ]  # fmt: skip
    return sql.SQL("({cell} IS NOT NULL AND coalesce({compared}, {otherwise}))").format(
        cell=cell, compared=sql.SQL(", ").join(compared), otherwise=sql.SQL("true" if kind == "!=" else "false")
    )


# ---- Searches

# BM25 as in bm25.py. asked: the question's terms; hits: how often each occurs where; words: the score of a passage.
WORDS = """
hits AS MATERIALIZED (
  SELECT w.passage, asked.term, w.length, w.counts[array_position(w.terms, asked.term)]::float8 AS often
  FROM unnest(%(terms)s::int[]) AS asked(term) JOIN {words} AS w ON w.terms @> ARRAY[asked.term]),
rarity AS (
  SELECT term, ln(1 + (%(count)s::float8 - count(*) + 0.5) / (count(*) + 0.5)) AS rare FROM hits GROUP BY term),
shared AS MATERIALIZED (
  SELECT passage AS number, sum(rare * often * (%(k1)s::float8 + 1)
    / (often + %(k1)s::float8 * (1 - %(b)s::float8 + %(b)s::float8 * length / %(mean)s::float8))) AS words
  FROM hits JOIN rarity USING (term) GROUP BY passage)"""
COSINE = "-(p.vector::vector <#> %(asked)s::vector)"
# Both, each scaled to 0 … 1 over `compared`, as `fused` does. lowest: the passages that set the lower end.
FUSED = """
compared AS MATERIALIZED (
  SELECT p.number, {cosine} AS cosine, coalesce(shared.words, 0) AS words
  FROM {passages} AS p LEFT JOIN shared USING (number) {among}),
scale AS (
  SELECT least(min(cosine), {lowest}) AS low, max(cosine) AS high, {least_words} AS low_words, max(words) AS high_words
  FROM compared),
scored AS (
  SELECT number, cosine, %(weight)s::float8 * CASE WHEN high > low THEN (cosine - low) / (high - low)
      ELSE (high > 0)::int END
    + (1 - %(weight)s::float8) * CASE WHEN high_words > low_words THEN (words - low_words) / (high_words - low_words)
      ELSE (high_words > 0)::int END AS score
  FROM compared, scale)"""
FEWEST_WORDS = (
    "(SELECT CASE WHEN count(*) < %(count)s::float8 THEN 0 ELSE min(shared.words) END FROM shared)"  # 0: shares none
)
SHOWN = (
    " SELECT s.score, s.cosine, p.text, p.file, p.document, p.id, p.columns FROM scored AS s JOIN {passages} AS p "
    "USING (number) WHERE {where} ORDER BY s.score DESC, number LIMIT %(top)s"
)
NEAR = "near AS MATERIALIZED (SELECT p.number FROM {passages} AS p WHERE {where} ORDER BY {order} LIMIT %(wide)s)"
QUERIES = {
    ("words", False): "WITH" + WORDS + ", scored AS (SELECT number, words AS score, NULL::float8 AS cosine FROM shared)"
    + SHOWN,
    ("vectors", False): "WITH scored AS (SELECT p.number, {cosine} AS cosine, {cosine} AS score FROM {passages} AS p)"
    + SHOWN,
    ("both", False): "WITH" + WORDS + "," + FUSED + SHOWN,
    ("vectors", True): "WITH " + NEAR + ", scored AS (SELECT p.number, {cosine} AS cosine, {cosine} AS score "
    "FROM {passages} AS p JOIN near USING (number))" + SHOWN,
    ("both", True): "WITH " + NEAR + "," + WORDS + ", chosen AS (SELECT number FROM near UNION (SELECT s.number "
    "FROM shared AS s JOIN {passages} AS p USING (number) WHERE {where} ORDER BY words DESC, s.number "
    "LIMIT %(wide)s))," + FUSED + SHOWN,
}  # fmt: skip
