"""An index grows and shrinks in place, survives kill -9, is filtered by columns, and searches in smaller vectors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.commands import index, search
from bertkit.data.readers import read_documents_with_ids
from bertkit.errors import UserError
from bertkit.files.lock import RunLock
from bertkit.retrieval import segments
from bertkit.retrieval.conditions import Columns, Where
from bertkit.retrieval.index import Index
from bertkit.retrieval.segments import Vectors, shortened, write_copies
from tests.support import documents
from tests.support.documents import write

WORDS = [
    "garden", "train", "bread", "school", "river", "winter", "table", "market", "stone", "flour", "milk", "wall",
    "rain", "baker", "child", "book",
]  # fmt: skip


def sentence(n):
    return f"The {WORDS[n % 16]} and the {WORDS[(3 * n + 1) % 16]} were near number {n}."


def rows(first, last):
    return documents.rows(first, last, sentence)


def make(out, *files, **more):
    return index.run(index.Settings(files=files, model="en", out=out, threads=1, precision="fp32", **more))


def add(out, *files, **more):
    return index.run(index.Settings(files=files, out=out, add=bool(files), threads=1, precision="fp32", **more))


def answers(out, by):
    opened = Index.open(out)
    hits = [opened.search(f"the {word} near number 7", 12, by) for word in WORDS[:5]]
    return [[(hit["id"], round(hit["score"], 4)) for hit in each] for each in hits]


@pytest.mark.slow
def test_added_replaced_and_deleted_gives_the_answers_of_an_index_made_in_one_go(tmp_path):
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    changed = [row | {"text": "A flood came to the river."} if row["id"] == "d3" else row for row in rows(2, 30)]
    make(grown, write(tmp_path / "a.jsonl", rows(0, 10)))
    for n in range(10, 30, 4):  # several segments, which are joined
        add(grown, write(tmp_path / f"part{n}.jsonl", rows(n, min(n + 4, 30))))
    replaced = add(grown, write(tmp_path / "b.jsonl", [row for row in changed if row["id"] == "d3"]))
    assert (replaced["added"], replaced["replaced"]) == (1, 1)
    deleted = add(grown, delete=("d0", "d1"))
    assert deleted["deleted"] == 2 and deleted["passages"] == 28
    order = [row["id"] for row in changed if row["id"] != "d3"] + ["d3"]
    make(whole, write(tmp_path / "whole.jsonl", sorted(changed, key=lambda row: order.index(row["id"]))))
    weight = Index.open(grown).about["vector_weight"]
    about = json.loads((whole / "index.json").read_text())
    from bertkit.files.manifest import accept

    (whole / "index.json").write_text(json.dumps(about | {"vector_weight": weight}))
    accept(whole)
    for by in ("words", "vectors", "both"):
        assert answers(grown, by) == answers(whole, by), by
    assert len(Index.open(grown).segments) < 6
    assert not [path for path in (grown / "segments").iterdir() if not any(path.iterdir())]


def test_an_index_that_is_made_again_in_its_place_says_that_it_is_replaced(tmp_path, caplog):
    file, out = write(tmp_path / "a.jsonl", rows(0, 3)), tmp_path / "index"
    make(out, file)
    assert "replaced" not in caplog.text
    make(out, file)
    assert "holds an index, which is replaced; --add would add to it" in caplog.text


def test_a_file_without_ids_replaces_what_it_gave_before(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("One garden.\n\nTwo trains.\n\nThree breads.", "utf-8")
    make(tmp_path / "index", text)
    text.write_text("One garden.\n\nTwo schools.", "utf-8")
    assert add(tmp_path / "index", text)["passages"] == 2
    assert sorted(Index.open(tmp_path / "index").documents().values()) == [["One garden."], ["Two schools."]]
    assert add(tmp_path / "index", delete=(str(text),))["passages"] == 0
    assert search.run(search.Settings(index=tmp_path / "index", query="garden", threads=1))["found"] == []


def test_an_index_that_is_made_again_or_joined_keeps_its_columns_for_whoever_has_it_open(tmp_path):
    out, where = tmp_path / "index", Where("year = 2003")
    make(out, write(tmp_path / "a.jsonl", rows(0, 6)))
    opened = Index.open(out)
    before = Index.open(out).search("garden", 10, "vectors", where=where)
    make(out, write(tmp_path / "b.jsonl", [row | {"year": 2003} for row in rows(10, 16)]))
    assert opened.search("garden", 10, "vectors", where=where) == before
    add(out, write(tmp_path / "c.jsonl", rows(20, 24)))
    opened = Index.open(out)
    before = Index.open(out).search("garden", 10, "vectors", where=Where("year = 2020"))
    add(out, write(tmp_path / "d.jsonl", rows(30, 38)))  # joins the second segment, whose files it removes
    assert before and opened.search("garden", 10, "vectors", where=Where("year = 2020")) == before


def test_an_index_cannot_be_made_again_while_it_is_changed(tmp_path):
    out, path = tmp_path / "index", write(tmp_path / "a.jsonl", rows(0, 3))
    make(out, path)
    with RunLock(out, "changing"), pytest.raises(UserError, match="is in use"):
        make(out, path)


def test_what_cannot_be_changed_is_refused_and_changes_nothing(tmp_path):
    out = tmp_path / "index"
    make(out, write(tmp_path / "a.jsonl", rows(0, 4)))
    with pytest.raises(UserError, match="no document with the id 'd9'"):
        add(out, delete=("d0", "d9"))
    with pytest.raises(UserError, match=r"line 2: the id 'd5' is that of line 1 too"):
        add(out, write(tmp_path / "twice.jsonl", [rows(5, 6)[0]] * 2))
    with pytest.raises(UserError, match="is not an index"):
        add(tmp_path / "nothing", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="--add needs files"):
        index.run(index.Settings(out=out, add=True, threads=1))
    assert sorted(Index.open(out).documents()) == ["d0", "d1", "d2", "d3"]


def test_the_tokens_of_an_index_are_those_of_its_documents_after_deleting_and_replacing(tmp_path):
    out, whole = tmp_path / "index", tmp_path / "whole"
    make(out, write(tmp_path / "a.jsonl", rows(0, 6)))
    add(out, write(tmp_path / "b.jsonl", [row | {"text": "A flood 水灾 came."} for row in rows(2, 3)]))
    add(out, delete=("d0", "d5"))
    left = [*rows(1, 2), *rows(3, 5), {"id": "d2", "text": "A flood 水灾 came."}]
    make(whole, write(tmp_path / "left.jsonl", left))
    about, wanted = Index.open(out).about, Index.open(whole).about
    assert (about["tokens"], about["passages"]) == (wanted["tokens"], wanted["passages"])
    assert about["files"] == 2
    add(out, delete=(str(tmp_path / "a.jsonl"),))
    assert Index.open(out).about["files"] == 1


def test_two_files_with_the_same_id_are_not_both_indexed(tmp_path):
    out, first = tmp_path / "index", write(tmp_path / "a.jsonl", rows(0, 3))
    second = write(tmp_path / "b.jsonl", [row | {"text": "A flood came."} for row in rows(2, 4)])
    with pytest.raises(UserError, match=r"b\.jsonl, line 1: the id 'd2' is that of .*a\.jsonl, line 3, too.*--add"):
        make(out, first, second)
    make(out, first, first, tmp_path / "." / "a.jsonl")  # one file, however often it is named
    assert len(Index.open(out)) == 3
    with pytest.raises(UserError, match="the id 'd2' is that of"):
        add(out, second, first)
    add(out, second)
    assert Index.open(out).documents()["d2"] == ["A flood came."]


@pytest.mark.parametrize(
    "name, own, other",
    [("passage", 40, 64), ("vectors", "int8", "binary"), ("dimensions", 16, 32), ("engine", "exact", "usearch")],
)
def test_adding_with_other_settings_than_the_indexs_own_is_refused(tmp_path, name, own, other):
    out, more = tmp_path / "index", write(tmp_path / "b.jsonl", rows(4, 6))
    make(out, write(tmp_path / "a.jsonl", rows(0, 4)), **{name: own})
    with pytest.raises(UserError, match=rf"--{name} is {other}, and .*index was made with {own}\. Leave it out, or"):
        add(out, more, **{name: other})
    with pytest.raises(UserError, match=f"--{name} is for new files, not for --delete"):
        add(out, delete=("d0",), **{name: own})
    assert len(Index.open(out)) == 4
    add(out, more, **{name: own})
    assert len(Index.open(out)) == 6


CHILD = """
import sys
from pathlib import Path
from bertkit.commands import index
for part in sys.argv[2:]:
    index.run(index.Settings(files=(Path(part),), out=Path(sys.argv[1]), add=True, threads=1))
    print(part, flush=True)
"""


@pytest.mark.slow
def test_kill_9_during_add_loses_nothing_that_was_acknowledged(tmp_path):
    out = tmp_path / "index"
    make(out, write(tmp_path / "a.jsonl", rows(0, 5)))
    parts = [write(tmp_path / f"p{n}.jsonl", rows(n, n + 5)) for n in range(5, 65, 5)]
    environment = os.environ | {"PYTHONPATH": str(Path(index.__file__).parents[2])}
    done: list[str] = []
    random = np.random.default_rng(0)
    for _ in range(3):
        command = [sys.executable, "-c", CHILD, str(out), *map(str, parts[len(done) :])]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        done.append(child.stdout.readline().strip())
        time.sleep(float(random.uniform(0, 0.4)))
        child.send_signal(signal.SIGKILL)
        done += [line for line in child.communicate()[0].split("\n") if line]
        documents = set(Index.open(out).documents())
        acknowledged = {f"d{n}" for n in range(5 + 5 * len(done))}
        assert acknowledged <= documents
        assert len(documents) % 5 == 0  # of an add that was not acknowledged, all documents or none
    add(out, *parts)
    assert set(Index.open(out).documents()) == {f"d{n}" for n in range(65)}


def test_documents_are_filtered_by_their_columns(tmp_path):
    out = tmp_path / "index"
    make(out, write(tmp_path / "a.jsonl", rows(0, 12)))
    add(out, write(tmp_path / "b.jsonl", rows(12, 20)))
    for by in ("words", "vectors", "both"):
        settings = search.Settings(
            index=out, query="near number", where='year > 2005 and lang = "zh"', by=by, k=50, threads=1
        )
        ids = {hit["id"] for hit in search.run(settings)["found"]}
        assert ids == {f"d{n}" for n in range(20) if n > 5 and n % 2}, by
    with pytest.raises(UserError, match=r"no document has a column 'yaer'\. Did you mean 'year'"):
        search.run(search.Settings(index=out, query="x", where="yaer = 1", threads=1))


TABLE = [{"year": 2019, "lang": "en"}, {"year": "2021", "lang": "zh"}, {"lang": "en", "ok": True}, {"year": 2020.5}]


@pytest.mark.parametrize(
    "condition, wanted",
    [
        ("year > 2020", [1, 3]),
        ("year >= 2019 and year < 2021", [0, 3]),
        ('lang = "zh" or ok = true', [1, 2]),
        ("not (lang = 'en')", [1, 3]),
        ('lang in ("zh", "fr")', [1]),
        ("lang contains 'e' and not year = 2019", [2]),
        ("year != 2019", [1, 3]),
        ("`year` == 2021", [1]),
        ("ok = 1", []),
        ('lang = "zh" and year = 2021 or year = 2019', [0, 1]),
    ],
)
def test_conditions_mean_what_they_say(condition, wanted):
    assert np.flatnonzero(Where(condition).mask(Columns.of(TABLE))).tolist() == wanted


@pytest.mark.parametrize("condition", ["ok = true", "ok = 'true'", 'ok = "True"', "ok != false", "ok in ('TRUE')"])
def test_true_is_found_however_a_table_spells_it(condition):
    spelled = [{"ok": True}, {"ok": "True"}, {"ok": "true"}, {"ok": " TRUE"}, {"ok": False}, {"ok": "False"}]
    assert np.flatnonzero(Where(condition).mask(Columns.of(spelled))).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "condition",
    ["", "year", "year >", "year > zh", "(year > 1", "year > 1)", "year ~ 1", "1 < year", "a = 1 b = 2", "in (1)",
     "__import__('os').system('true')", "(" * 99 + "a = 1" + ")" * 99, "a = 'x", "a in ()"],
)  # fmt: skip
def test_a_condition_that_cannot_be_read_is_refused_with_an_example(condition):
    with pytest.raises(UserError, match="--where"):
        Where(condition)


@pytest.mark.parametrize("number", ["1" * 5000, "-" + "1" * 5000, "0." + "1" * 5000])
def test_a_number_of_thousands_of_digits_in_a_condition_is_refused_in_one_short_line(number):
    with pytest.raises(UserError, match=r"--where: the number -?[01.]+… has 5,00\d characters") as told:
        Where(f"year > {number}")
    assert len(str(told.value)) < 200


@given(st.text(max_size=40))
def test_no_condition_does_more_than_be_refused(condition):
    with contextlib.suppress(UserError):
        Where(condition)


def clustered(count, width=64):
    random = np.random.default_rng(0)
    vectors = (
        random.normal(size=(20, width))[random.integers(20, size=count)] + random.normal(size=(count, width)) * 0.7
    )
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


@pytest.mark.parametrize(
    "kind, engine",
    [("int8", "exact"), ("binary", "exact"), ("f16", "usearch"), ("int8", "usearch"), ("binary", "usearch")],
)
def test_smaller_vectors_and_graphs_propose_the_true_neighbours(tmp_path, kind, engine):
    if engine == "usearch":
        pytest.importorskip("usearch", reason="needs usearch (the index extra)")
    vectors = clustered(3000)
    vectors.tofile(tmp_path / "vectors.f16")
    made = write_copies(tmp_path, 64, kind, engine)
    assert made["engine"] == engine and made["recall"] >= (0.9 if kind == "binary" else 0.99)
    opened = Vectors(tmp_path, 64)
    assert opened.proposes and opened.kind == kind
    asked = vectors[5].astype(np.float32)
    assert 5 in opened.candidates(asked, 1)


def test_the_nearest_of_several_are_those_of_each_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "BLOCK", 70)
    vectors = clustered(300)
    vectors.tofile(tmp_path / "vectors.f16")
    opened, asked = Vectors(tmp_path, 64), vectors[:9].astype(np.float32)
    for row, nearest in zip(asked, opened.nearest(asked, 10)):
        assert set(nearest.tolist()) == set(np.argsort(-opened.cosines(row), kind="stable")[:10].tolist())
    assert opened.nearest(asked[:1], 300).shape == (1, 300)


@pytest.mark.parametrize(
    "more", [{"vectors": "int8"}, {"vectors": "binary"}, {"dimensions": 64}, {"engine": "usearch"}]
)
def test_an_index_of_another_form_finds_what_an_exact_one_does(tmp_path, more):
    if "engine" in more:
        pytest.importorskip("usearch", reason="needs usearch (the index extra)")
    path, later = write(tmp_path / "a.jsonl", rows(0, 12)), write(tmp_path / "b.jsonl", rows(12, 20))
    make(tmp_path / "index", path, **more)
    add(tmp_path / "index", later)
    opened = Index.open(tmp_path / "index")
    for row in rows(0, 20):
        assert opened.search(row["text"], 3)[0]["id"] == row["id"]
        filtered = opened.search(row["text"], 50, "vectors", where=Where("year < 2003"))
        assert {hit["id"] for hit in filtered} == {"d0", "d1", "d2"}
    add(tmp_path / "index", delete=("d4",))
    assert "d4" not in {hit["id"] for hit in Index.open(tmp_path / "index").search(rows(4, 5)[0]["text"], 50)}


@pytest.mark.parametrize("vectors", ["int8", "binary"])
def test_documents_that_a_condition_allows_are_found_though_others_are_nearer(tmp_path, vectors):
    far = [{"id": f"far{n}", "text": f"Item {n}: 7 8 9 +-*/ {n * n}.", "kind": "far"} for n in range(250)]
    path = write(tmp_path / "a.jsonl", [row | {"kind": "near"} for row in rows(0, 400)] + far)
    make(tmp_path / "exact", path)
    make(tmp_path / "small", path, vectors=vectors)
    exact, small = Index.open(tmp_path / "exact"), Index.open(tmp_path / "small")
    for by in ("vectors", "both"):
        hits = small.search(sentence(7), 10, by, where=Where('kind = "far"'))
        assert len(hits) == 10 and {hit["columns"]["kind"] for hit in hits} == {"far"}
    few = Where('kind = "far" and file contains "a"')  # few or many, a score means the same in every form of an index
    for top, where in ((10, few), (30, few), (10, Where('id = "far3"'))):
        best, same = (each.search("Item 3: 7 8 9", top, "both", where=where)[0] for each in (exact, small))
        assert best["id"] == same["id"] and best["score"] == pytest.approx(same["score"], abs=0.05)


def test_a_cut_vector_has_length_one():
    vectors = clustered(4).astype(np.float32)
    assert np.linalg.norm(shortened(vectors, 8), axis=1) == pytest.approx(1)
    assert shortened(vectors, 0) is vectors and shortened(vectors, 64) is vectors


def test_pages_and_office_files_are_documents(tmp_path):
    (tmp_path / "a.html").write_text(
        "<html><style>p{}</style><script>no()</script><body><h1>Title</h1><p>A <b>bold</b> word &amp; more."
        "</p></body></html>",
        "utf-8",
    )
    (tmp_path / "b.md").write_text("# Head\n\nFirst part.\n\nSecond part.", "utf-8")
    documents = list(read_documents_with_ids([tmp_path / "a.html", tmp_path / "b.md"]))
    assert [each.text for each in documents] == ["Title\nA bold word & more.", "# Head\n\nFirst part.\n\nSecond part."]
    assert documents[1].id == str(tmp_path / "b.md")


def test_word_and_pdf_files_are_read_and_damaged_ones_named(tmp_path):
    docx = pytest.importorskip("docx", reason="needs python-docx (the index extra)")
    pypdf = pytest.importorskip("pypdf", reason="needs pypdf (the index extra)")
    document = docx.Document()
    document.add_paragraph("A paragraph of Word.")
    document.save(tmp_path / "a.docx")
    assert "A paragraph of Word." in next(read_documents_with_ids([tmp_path / "a.docx"])).text
    writer = pypdf.PdfWriter()
    writer.add_blank_page(72, 72)
    writer.write(tmp_path / "empty.pdf")
    assert list(read_documents_with_ids([tmp_path / "empty.pdf"])) == []
    for name in ("bad.pdf", "bad.docx"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(UserError, match=rf"{name}: cannot be read as"):
            list(read_documents_with_ids([tmp_path / name]))
