"""The page: its files, its routes, and every view in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import bertkit
from bertkit.ancestors.lineage import lineage
from bertkit.ancestors.meaning import meaning
from bertkit.commands.serve import VIEWS
from bertkit.errors import UserError
from bertkit.inference import explain, importance
from bertkit.server import routes_show
from bertkit.server.app import address_of, bind, make_app, server_of
from bertkit.server.middleware import LOCAL
from bertkit.server.models import ModelRegistry, ServedModel, load
from bertkit.server.routes_show import FOLDER
from bertkit.server.service import InferenceService
from bertkit.text.steps import steps

TEXT = "The cat sat on the old mat."
WORDS = {name: json.loads((FOLDER / f"words.{name}.json").read_text("utf-8")) for name in ("en", "zh")}


def keys(table: Any, path: str = "") -> set[str]:
    if isinstance(table, dict):
        return set().union(*(keys(value, f"{path}.{name}") for name, value in table.items()))
    return {path}


def test_the_page_brings_all_it_needs_and_lets_nothing_else_run(client) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and "default-src 'none'" in policy and "unsafe" not in policy
    for path in FOLDER.rglob("*.*"):
        name = path.relative_to(FOLDER).as_posix()
        part = client.get(f"/page/{name}")
        assert part.status_code == 200 and "unsafe" not in part.headers["content-security-policy"], name
        own = part.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://\w|innerHTML|\bon\w+=\"|style=\"|eval\(|document\.write", own), name
    assert client.get("/page/../app.py").status_code == 404 and client.get("/page/nothing.js").status_code == 404


def test_the_page_has_the_same_words_in_both_languages() -> None:
    assert keys(WORDS["en"]) == keys(WORDS["zh"])
    assert set(WORDS["en"]["views"]) == set(VIEWS)
    chinese = json.dumps(WORDS["zh"]["shell"], ensure_ascii=False)
    assert len(re.findall(r"[\u4e00-\u9fff]", chinese)) > 100


def test_a_key_guards_what_models_say_and_not_the_page(registry) -> None:
    service = InferenceService(registry, threads=1)
    with TestClient(make_app(service, hosts=LOCAL, key="secret"), base_url="http://127.0.0.1") as locked:
        assert locked.get("/").status_code == locked.get("/page/main.js").status_code == 200
        assert locked.get("/show/models").status_code == 401
        assert locked.post("/show/pieces", json={"text": "a"}).status_code == 401
        assert locked.post("/page/main.js", json={}).status_code == 401
    service.queue.join(5)


def test_the_page_lists_a_model_in_onnx_beside_one_in_torch() -> None:
    opened = {engine: bertkit.load("en", engine=engine) for engine in ("torch", "onnx")}
    registry = ModelRegistry([ServedModel(engine, model) for engine, model in opened.items()])
    service = InferenceService(registry, threads=1)
    with TestClient(make_app(service, hosts=LOCAL), base_url="http://127.0.0.1") as client:
        torch, onnx = client.get("/show/models").json()
        refused = client.post("/show/input", json={"text": TEXT, "model": "onnx"})
    service.queue.join(5)
    assert onnx == torch | {"id": "onnx"} and onnx["can"]["masks"] and not onnx["can"]["three_vectors"]
    assert refused.status_code == 422 and "is open in onnx" in refused.json()["error"]


def test_what_a_user_can_mend_is_reported_and_is_no_fault_of_the_server(registry) -> None:
    def looks_inside() -> None:
        raise UserError("words is open in onnx, which gives answers only.")

    service = InferenceService(registry, threads=1)
    app = make_app(service, hosts=LOCAL)
    app.add_api_route("/looks-inside", looks_inside)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/looks-inside")
    service.queue.join(5)
    assert answer.status_code == 422 and "is open in onnx" in answer.json()["error"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    service = InferenceService(load(["en", "zh", "classic"], precision="fp32"), threads=1)
    bound = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = server_of(make_app(service, hosts=LOCAL), service, ready.set)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield address_of(bound)
    server.should_exit = True
    thread.join(10)
    service.queue.join(5)


def posted(address: str, path: str, body: dict[str, Any]) -> Any:
    from urllib.request import Request, urlopen

    request = Request(address + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)


def test_every_number_of_a_view_is_python_s(address: str) -> None:
    model = bertkit.load("en", precision="fp32")
    expected = {
        "pieces": ({"text": TEXT}, steps(model.tokenizer, TEXT)),
        "input": ({"text": TEXT, "padding": 1}, explain.input_vectors(model, TEXT, padding=1)),
        "masking": (
            {"text": TEXT, "places": [2, 3], "joint": "beam"},
            explain.masked_row(model, TEXT, places=[2, 3], joint="beam"),
        ),
        "attention": ({"text": TEXT}, explain.attention(model, TEXT)),
        "head": ({"text": TEXT, "layer": 2, "head": 3}, explain.head_numbers(model, TEXT, layer=2, head=3)),
        "word": ({"text": TEXT, "place": 2}, explain.token_layers(model, TEXT, 2)),
        "map": ({"texts": [TEXT, "A dog.", "Rain."]}, explain.vector_map(model, [TEXT, "A dog.", "Rain."])),
        "importance": ({"text": "The [MASK] sat."}, importance.importance(model, "The [MASK] sat.")),
    }
    uses = {"word": "mat", "texts": ["The cat sat on the mat.", "A mat is red."]}
    expected["meaning"] = (uses, meaning(uses["word"], uses["texts"], {"en": model}))
    passage = "The cat sat. The cat ran.\nThe dog sat."
    expected["lineage"] = ({"text": TEXT, "passage": passage}, lineage(TEXT, passage=passage))
    for view, (body, numbers) in expected.items():
        same(posted(address, f"/show/{view}", {"model": "en", **body}), numbers, view)
    classic = bertkit.load("classic", precision="fp32")
    story = "She opened the door. The room was dark. She lit a lamp.\n\nPenguins swim. They eat fish. They cannot fly."
    asked = {"model": "classic", "text": story, "seed": 3}
    same(posted(address, "/show/pairs", asked), explain.sentence_pairs(classic, story, seed=3), "pairs")
    two = {"text": "She opened the door.", "text_b": "The room was dark."}
    same(posted(address, "/show/next", {"model": "classic", **two}), classic.follows(*two.values()), "next")


def test_an_ancestor_that_learnt_on_the_page_is_shown_and_compared(address: str) -> None:
    from urllib.request import Request, urlopen

    passage = "\n".join(["the cat drinks milk and sleeps", "the dog drinks water and runs"] * 4)
    body = {"kind": "elmo", "text": "the cat drinks milk", "passage": passage, "steps": 2}
    head = {"content-type": "application/json"}
    with urlopen(Request(address + "/show/ancestor/learn", json.dumps(body).encode(), head)) as answer:
        *_, last, end = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
    assert end == {"end": "steps"}
    shown = posted(address, "/show/ancestor", {"name": "elmo", "text": "the cat drinks milk"})
    same(shown, last["shown"], "elmo")
    texts = ["the cat drinks", "a cat"]
    compared = posted(address, "/show/meaning", {"model": "en", "word": "cat", "texts": texts, "others": ["elmo"]})
    assert [row["kind"] for row in compared["models"]] == ["bert", "elmo"]


def same(got: Any, wanted: Any, where: str) -> None:
    if isinstance(got, dict):
        for name in got:
            same(got[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, np.ndarray) or (isinstance(got, list) and got and isinstance(got[0], float)):
        assert np.abs(np.asarray(got, float) - np.asarray(wanted)).max() < 1e-4, where
    elif isinstance(got, list):
        for one, other in zip(got, wanted, strict=True):
            same(one, other, where)
    else:
        assert got == (pytest.approx(wanted, abs=1e-4) if isinstance(got, float) else wanted), where


# ---- In a browser.

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """A function that opens the page; at the end, nothing was wrong in it and no request has left the machine."""
    problems: list[str] = []
    contexts = []

    def open_page(
        path: str = "/", language: str = "en", phone: bool = False, dark: bool = False, refused: bool = False
    ) -> Any:
        """refused: a request is meant to be refused, which Chromium writes to its console."""

        def written(message: Any) -> None:
            if message.type == "error" and not (refused and "status of 422" in message.text):
                problems.append(message.text)

        context = browser.new_context(
            locale={"en": "en-US", "zh": "zh-CN"}[language], color_scheme="dark" if dark else "light",
            reduced_motion="reduce", viewport=dict(zip(("width", "height"), (390, 844) if phone else (1280, 900))),
        )  # fmt: skip
        context.set_default_timeout(90_000)  # a busy machine is slow, not wrong
        contexts.append(context)
        page = context.new_page()
        page.on("console", written)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
        page.goto(address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


# The choices of a group that do not lie wholly in it.
CUT = """[...document.querySelectorAll(".group button")].filter(button => {
  const one = button.getBoundingClientRect(), all = button.parentElement.getBoundingClientRect();
  return one.right > all.right + 1 || one.bottom > all.bottom + 1;
}).map(button => button.textContent)"""
SHOWN = "#result .card:not(.empty), #result .message"


def address_at(page: Any, view: str) -> str:
    return page.url.split("#")[0] + "#/" + view


@pytest.mark.slow
@pytest.mark.parametrize(("language", "phone", "dark"), [("en", False, False), ("zh", True, True), ("en", True, False)])
def test_every_view_shows_its_example(opened, language: str, phone: bool, dark: bool) -> None:
    page = opened("/", language, phone, dark)
    for view in VIEWS:
        page.goto(page.url.split("#")[0] + f"#/{view}")
        page.wait_for_function(
            "name => document.querySelector('h1')?.textContent === name", arg=WORDS[language]["views"][view]["title"]
        )
        page.wait_for_selector(SHOWN)
        assert page.locator("#result .message.bad").count() == 0, view
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the screen"
        assert page.evaluate(CUT) == [], f"{view}: a choice is cut off"
        if language == "zh":
            assert not re.search(r"\d %", page.locator("#result").text_content()), f"{view}: 50% has no space"
            heading = page.locator("#result :is(h2, p)").first.text_content()
            assert re.search(r"[\u4e00-\u9fff]", heading), heading
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert page.locator("#top select").input_value() == ("zh" if language == "zh" else "en")


@pytest.mark.slow
def test_the_text_stays_across_views_models_and_a_reload(opened) -> None:
    page = opened()
    page.locator("#field-text").fill("My own words stay.")
    page.wait_for_selector(".token:has-text('words')")
    page.locator("#nav a", has_text="Attention").click()
    page.wait_for_selector("h1:has-text('Where every head looks')")
    assert page.locator("#field-text").input_value() == "My own words stay."
    page.locator("#top select").select_option("zh")
    page.wait_for_selector(SHOWN)
    assert page.locator("#field-text").input_value() == "My own words stay."
    page.locator("button", has_text="中文").click()
    page.wait_for_selector("h1:has-text('每个注意力头在看哪里')")
    page.reload()
    page.wait_for_selector("h1:has-text('每个注意力头在看哪里')")
    assert page.locator("#field-text").input_value() == "My own words stay."


@pytest.mark.slow
def test_a_link_restores_what_was_seen_and_keys_move_in_it(opened) -> None:
    page = opened("/#/attention?model=en&text=The+cat+sat.&layer=3&head=2&place=2")
    page.wait_for_selector("h2:has-text('Layer 3, head 2')")
    assert page.locator(".token.on").first.text_content().startswith("cat")
    page.locator("[data-key='look2']").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".token.on:has-text('sat')")
    assert "place=3" in page.url
    page.goto(page.url.split("#")[0] + "#/masking?model=en&text=She+opened+the+door+and+went+in.")
    page.wait_for_selector("[data-key='before4']")
    page.locator("[data-key='again']").click()
    page.wait_for_function("location.hash.includes('seed=113')")
    page.locator("[data-key='before4']").press("Enter")
    page.wait_for_function("location.hash.includes('places=')")
    page.goto(address_at(page, "masking?model=en&text=She+opened+the+door+and+went+in.&places=4"))
    page.locator("[data-key='before4'][aria-pressed='true']").press("Enter")  # the last hidden piece is shown again
    page.wait_for_selector("#result .card.empty")
    assert page.locator(".token.mask").count() == 0 and "places=none" in page.url
    page.locator("#field-text").fill("")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".empty")


@pytest.mark.slow
def test_a_view_is_shown_with_a_model_that_has_what_it_is_about(opened) -> None:
    page = opened("/#/next")
    page.wait_for_selector(".instead")
    assert page.locator("#top select").input_value() == "classic"
    page.wait_for_selector(".bar")
    page.locator("#nav a", has_text="Attention").click()
    page.wait_for_selector("h1:has-text('Where every head looks')")
    assert page.locator("#top select").input_value() == "en" and page.locator(".instead").count() == 0
    page.wait_for_selector(".habits [aria-pressed='true']")  # the head that opens first has a habit
    chinese = opened("/#/next", "zh")  # no Chinese model here has such a head: the reader decides
    assert chinese.locator("#how").text_content() == ""  # no command that would fail
    chinese.locator(".lacks button").click()
    chinese.wait_for_selector(".bar")
    assert chinese.locator("#top select").input_value() == "classic"
    chinese.goto(address_at(chinese, "input?model=zh"))  # rotary positions: two vectors are not there
    chinese.reload()
    chinese.locator(".message button").click()
    chinese.wait_for_selector(".strips >> text=片段向量")


@pytest.mark.slow
def test_what_opens_first_shows_what_its_view_is_about(opened) -> None:
    page = opened("/#/masking")
    page.wait_for_selector(".token.mask")
    assert page.locator(".token.random").count() == page.locator(".token.kept").count() == 1
    assert page.locator("h2", has_text="All masks together").count() == 1
    page.goto(address_at(page, "attention"))  # a word that looks at another word
    page.wait_for_selector(".token.heated.on")
    shares = page.locator(".token.heated:not(.special):not(.on) small").all_text_contents()
    assert max(float(share.strip("<% ")) for share in shares) > 50
    page.goto(address_at(page, "meaning?model=zh"))  # the layer that the table above names
    page.wait_for_selector("td:has-text('BERT')")
    best = page.locator("tr", has_text="BERT").locator("td").nth(1).text_content()
    assert page.locator(".group [aria-pressed='true']").first.text_content() == best


@pytest.mark.slow
def test_an_ancestor_that_lacks_the_word_can_be_trained_again(opened, address: str) -> None:
    from urllib.request import Request, urlopen

    body = {"kind": "word2vec", "text": "the cat drinks milk", "passage": "the cat drinks milk\n" * 8, "steps": 2}
    head = {"content-type": "application/json"}
    with urlopen(Request(address + "/show/ancestor/learn", json.dumps(body).encode(), head)) as answer:
        answer.read()
    page = opened("/#/meaning?model=en")
    page.wait_for_selector("td:has-text('lacks the word')")
    page.locator("[data-key='train-word2vec']", has_text="again").click()
    page.locator("td", has_text="lacks the word").wait_for(state="detached")
    page.wait_for_selector("h2:has-text('word2vec · one vector per word')")
    page.goto(address_at(page, "lineage?model=zh"))  # it learned from English: nothing is shown of it beside Chinese
    page.wait_for_selector("#ancestor-word2vec >> text=Train it now")


@pytest.mark.slow
def test_an_error_of_the_server_is_chinese_on_the_chinese_page(opened) -> None:
    page = opened("/#/meaning?model=zh&word=长&texts=桌子很短%0A孩子长高了", "zh", refused=True)
    page.wait_for_selector("#result .message.bad")
    assert re.search("[\u4e00-\u9fff]{4}", page.locator("#result .message.bad").text_content())
    assert "does not contain" not in page.locator("#result .message.bad").text_content()


# What has the focus, and whether that can be seen.
FOCUSED = """(() => {
  const on = document.activeElement, drawn = getComputedStyle(on).outlineStyle !== "none";
  return [on.id || on.dataset.key || on.tagName, drawn];
})()"""


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_reached_and_used_by_keyboard_alone(opened, view: str) -> None:
    page = opened(f"/#/{view}?model={'classic' if view == 'next' else 'en'}")
    page.wait_for_selector(SHOWN)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    reached, hidden = set(), []
    for _ in range(120):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(FOCUSED)
        if name == "BODY":
            break
        reached.add(name)
        hidden += [] if outline else [name]
    assert hidden == [], "an element has the focus and does not show it"
    fields = page.eval_on_selector_all("#view textarea, #view input", "all => all.filter(x => x.id).map(x => x.id)")
    assert {"A", "SELECT", "BUTTON", *fields} <= reached


@pytest.mark.slow
def test_a_model_that_learns_is_in_sight_as_soon_as_it_starts(opened) -> None:
    page = opened("/#/learning", phone=True)
    page.locator("[data-key='start']").click()
    page.wait_for_selector("#run svg")
    assert 0 < page.evaluate("document.getElementById('run').getBoundingClientRect().top") < 200
    page.locator("#run button", has_text="Stop").click()
    page.wait_for_selector("#run :text('Stopped.')")


def test_learning_is_streamed_one_model_at_a_time(address: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    text = "\n".join(["the cat drinks milk and sleeps", "the dog drinks water and runs"] * 4)
    body = {"text": text, "gap": "the cat drinks [MASK]", "steps": 600, "seconds": 40.0}

    def ask(body: dict[str, Any]) -> Any:
        return urlopen(
            Request(address + "/show/learn", json.dumps(body).encode(), {"content-type": "application/json"})
        )

    with ask(body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b'"start"' in answer.readline() and routes_show._learning.locked()
    with routes_show._learning, pytest.raises(HTTPError) as busy:  # the first has ended: its reader left
        ask(body)
    assert busy.value.code == 429
    with pytest.raises(HTTPError) as wrong:
        ask(body | {"gap": "nothing"})
    assert wrong.value.code == 422


def test_learning_ends_when_its_reader_left_before_the_first_event() -> None:
    class Service:
        queue = SimpleNamespace(closing=False)

    def events() -> Iterator[dict[str, Any]]:
        for number in range(200):
            time.sleep(0.05)
            yield {"step": number}

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        await asyncio.sleep(0)

    async def ask() -> None:
        answer = await routes_show._streamed(Service(), events())  # type: ignore[arg-type]
        await answer({"type": "http", "asgi": {"spec_version": "2.3"}}, left, send)
        async with asyncio.timeout(5):  # all events take ten seconds
            while routes_show._learning.locked():
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)  # the thread has a last word

    with ThreadPoolExecutor(1) as pool:  # playwright's browser has an event loop of its own in this thread
        pool.submit(asyncio.run, ask()).result()


REFUSED = [  # path, body: what a reader of the page can do wrong
    ("/show/pieces", {"text": ""}),
    ("/show/head", {"text": "a", "layer": 9}),
    ("/show/attention", {"text": "word " * 400}),
    ("/show/meaning", {"word": "cat", "texts": ["a dog", "a cat"]}),
    ("/show/meaning", {"word": "cat", "texts": ["a cat"]}),
    ("/show/importance", {"text": "No gap here."}),
    ("/show/map", {"texts": ["one"] * 201}),
    ("/show/map", {"texts": ["one", "two"]}),
    ("/show/ancestor", {"name": "nobody", "text": "a"}),
    ("/show/lineage", {"text": "a", "passage": "x" * 200_000}),
    ("/show/learn", {"text": "The cat.", "gap": "no gap"}),
    ("/show/next", {"text": "a", "text_b": "b"}),
    ("/show/input", {"text": "a", "padding": 65}),
    ("/show/nothing", {"text": "a"}),
    ("/fill", {"inputs": "No gap here."}),
    ("/predict", {"inputs": "a", "model": "plain"}),
    ("/show/pieces", {"model": "nobody", "text": "a"}),
    ("/embed", {"inputs": [["a"]] * 40}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_an_error_is_in_chinese_on_the_chinese_page_and_in_english_for_everyone_else(client, path, body) -> None:
    def refused(**headers: str) -> str:
        answer = client.post(path, json=body, headers=headers)
        assert 400 <= answer.status_code < 500
        return answer.json()["error"]

    english, chinese = refused(), refused(**{"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"})
    assert not re.search(r"[\u4e00-\u9fff]", english) and refused(**{"accept-language": "de, zh"}) == english
    assert re.search(r"[\u4e00-\u9fff]", chinese), english
    assert not re.search(r"(?:[A-Za-z']+ ){3}", re.sub(r"[`'“][^`'”]*[`'”]", "", chinese)), chinese


def test_an_error_of_many_words_is_translated_in_little_time() -> None:
    from bertkit.notify import translated
    from bertkit.server.errors import ApiError, response

    hostile = ": ".join(["is of and in"] * 40)
    assert response(ApiError("invalid", hostile), "/", "zh").status_code == 422
    started = time.process_time()
    translated(hostile[:500], "zh")
    assert time.process_time() - started < 1
