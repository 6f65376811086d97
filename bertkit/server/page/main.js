// The shell: models, languages, the address, the user's text, and the view that is shown.
import {h, marked} from "./lib.js";
import pieces from "./views/pieces.js";
import input from "./views/input.js";
import masking from "./views/masking.js";
import next from "./views/next.js";
import layers from "./views/layers.js";
import meaning from "./views/meaning.js";
import attention from "./views/attention.js";
import learning from "./views/learning.js";
import lineage from "./views/lineage.js";
import answers from "./views/answers.js";

// The menu: a group's name in the words, then its views.
const MENU = [
  ["reading", [pieces, input]],
  ["pretraining", [masking, next]],
  ["inside", [attention, layers, meaning]],
  ["more", [learning, lineage, answers]],
];
const VIEWS = Object.fromEntries(MENU.flatMap(([, views]) => views).map(view => [view.id, view]));
const at = id => document.getElementById(id);
const LANGUAGES = {en: "English", zh: "中文"};
const store = {
  get: name => { try { return localStorage.getItem("bertkit." + name); } catch { return null; } },
  set: (name, value) => { try { value === null ? localStorage.removeItem("bertkit." + name) : localStorage.setItem("bertkit." + name, value); } catch { /* private windows keep nothing */ } },
};
const key = {  // kept for this tab alone
  get: () => { try { return sessionStorage.getItem("bertkit.key") || ""; } catch { return ""; } },
  set: value => { try { sessionStorage.setItem("bertkit.key", value); } catch { /* as above */ } },
};

let words = {}, language = "en", models = [], model = null, view = null;
let instead = "";
let chosen = "";  // the model the user chose; a view that needs what it lacks is shown with another of its language
let texts = {};  // what the user typed, by field: kept for all views and models
let params = {};  // what the view was set to: layer, head, place …
let data = null, asked = 0, waiting = 0, controller = null;

// ---- Words.

function t(path, values = {}) {
  let found = words;
  for (const part of path.split(".")) found = found?.[part];
  if (typeof found !== "string") return found ?? path;
  return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}
async function speak(name) {
  words = await (await fetch(`page/words.${name}.json`)).json();
  language = name;
  document.documentElement.lang = name === "zh" ? "zh-Hans" : "en";
  store.set("language", name);
}

// ---- Requests.

async function call(path, body, signal) {
  const headers = {"accept-language": language, ...(body && {"content-type": "application/json"})};
  if (key.get()) headers.authorization = "Bearer " + key.get();
  const response = await fetch(path, body ? {method: "POST", headers, body: JSON.stringify(body), signal} : {headers, signal});
  const answer = await response.json();
  if (response.ok) return [answer, response.headers];
  const problem = new Error(typeof answer.error === "string" ? answer.error : answer.error.message);
  problem.status = response.status;
  throw problem;
}

async function stream(path, body, each, signal) {  // server-sent events, one by one
  const headers = {"accept-language": language, "content-type": "application/json"};
  if (key.get()) headers.authorization = "Bearer " + key.get();
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal});
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) each(JSON.parse(part.slice(6)));
  }
}

// ---- The address: #/view?model=…&text=…: it restores what is shown.

function address() {
  const query = new URLSearchParams({model: model?.id || ""});
  for (const field of view.fields) if (texts[field]) query.set(field, texts[field]);
  for (const [name, value] of Object.entries(params)) if (value !== undefined && value !== null && value !== "") query.set(name, value);
  return `#/${view.id}?${query}`;
}
function remember(push) {
  const url = address();
  if (url !== location.hash) history[push ? "pushState" : "replaceState"](null, "", url);
  store.set("texts", JSON.stringify(texts));
}
function follow() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  view = VIEWS[path] || pieces;
  const given = new URLSearchParams(query || "");
  const wanted = models.find(one => one.id === given.get("model"));
  if (wanted && !chosen) choose(wanted);
  const mine = models.find(one => one.id === chosen) || models.find(one => one.language === language) || models[0];
  model = wanted || (fits(mine) ? mine : models.find(one => one.language === mine.language && fits(one)) || mine);
  instead = wanted || model === mine ? "" : mine.id;
  params = {};
  for (const [name, value] of given) {
    if (name === "model") continue;
    if (view.fields.includes(name)) texts[name] = value;
    else params[name] = value;
  }
}

const fits = one => !view.able || view.able(one);
function choose(one) {
  chosen = one.id;
  try { sessionStorage.setItem("bertkit.model", chosen); } catch { /* private windows keep nothing */ }
}

// ---- What a view gets.

function context() {
  return {
    t, call: (path, body) => call(path, {model: model.id, ...body}, controller?.signal), get: async path => (await call(path))[0], model, models, language, params, data,
    text: name => texts[name] || example()[name] || "",
    set: (changes, again = true) => { Object.assign(params, changes); remember(); again ? ask() : show(); },
    write: (name, value) => { texts[name] = value; remember(); draw(); },
    redraw: show, say, stream, use,
  };
}
const example = () => (t(`views.${view.id}.examples`) || {})[model?.language === "zh" ? "zh" : "en"]?.[0] || {};

// ---- Drawing.

function drawTop() {
  const pick = h("select", {"aria-label": t("shell.model"), onchange: event => use(models.find(one => one.id === event.target.value))},
    models.map(one => h("option", {value: one.id, selected: one.id === model?.id}, one.id)));
  const other = language === "en" ? "zh" : "en";
  const dark = document.documentElement.dataset.theme === "dark";
  at("top").replaceChildren(
    h("a", {class: "brand", href: "#/pieces"}, h("img", {src: "page/icon.svg", alt: ""}), "bertkit"),
    h("label", {class: "small soft"}, t("shell.model"), " ", pick),
    h("span", {class: "about", title: about()}, about()), h("span", {class: "room"}),
    h("button", {type: "button", class: "plain", lang: other, onclick: async () => { await speak(other); draw(); }}, LANGUAGES[other]),
    h("button", {type: "button", class: "plain", "aria-label": t(dark ? "shell.light" : "shell.dark"), title: t(dark ? "shell.light" : "shell.dark"), onclick: () => { theme(dark ? "light" : "dark"); draw(); }}, dark ? "☀" : "☾"));
  at("skip").textContent = t("shell.skip");
}
function about() {
  if (!model) return "";
  const task = model.task ? t("shell.tuned", {task: t("tasks")[model.task] || model.task}) : t("shell.encoder");
  return [task, t("shell.size", {layers: model.layers, heads: model.heads, width: model.width}), model.tokenizer].join(" · ");
}
function drawNav() {
  at("nav").setAttribute("aria-label", t("shell.views"));
  at("nav").replaceChildren(...MENU.flatMap(([group, views]) => [h("b", null, t("groups." + group)),
    ...views.map(one => h("a", {href: `#/${one.id}`, "aria-current": one === view ? "page" : null}, t(`views.${one.id}.name`)))]));
  const current = at("nav").querySelector("[aria-current]"), nav = at("nav");
  if (current && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = current.offsetLeft - nav.clientWidth / 2 + current.offsetWidth / 2;
}
function field(name) {
  const long = !(view.short || []).includes(name);
  const box = h(long ? "textarea" : "input", {id: "field-" + name, rows: long ? (view.rows?.[name] || 2) : null, spellcheck: "false", autocomplete: "off",
    oninput: () => { texts[name] = box.value; clearTimeout(waiting); waiting = setTimeout(() => { view.reset?.(params, name); remember(); ask(); }, 350); }});
  box.value = texts[name] ?? example()[name] ?? "";
  if (long) requestAnimationFrame(() => { box.style.height = Math.min(view.rows?.[name] ? 32 * view.rows[name] : 320, box.scrollHeight + 2) + "px"; });
  return h("label", {class: "field"}, t(`views.${view.id}.fields.${name}`) === `views.${view.id}.fields.${name}` ? t("fields." + name) : t(`views.${view.id}.fields.${name}`), box);
}
function examples() {
  const list = (t(`views.${view.id}.examples`) || {})[model?.language === "zh" ? "zh" : "en"] || [];
  if (!list.length) return null;
  const shown = view.visible ? view.visible(context()) : view.fields, heads = one => shown.map(name => (one[name] || "").split("\n")[0]).filter(Boolean);
  const first = one => heads(one).find(words => list.every(other => other === one || !heads(other).includes(words))) || heads(one)[0] || "";  // what no other example has
  return h("div", {class: "chips"}, h("span", {class: "soft"}, t("shell.examples")),
    list.map(one => h("button", {type: "button", title: Object.values(one).join("\n"), onclick: () => { for (const name of view.fields) delete texts[name]; Object.assign(texts, one); params = {}; remember(); draw(); }}, first(one))));
}
function draw() {
  document.title = `${t(`views.${view.id}.name`)} · bertkit`;
  drawTop();
  drawNav();
  const shown = view.visible ? view.visible(context()) : view.fields;
  at("view").replaceChildren(
    h("h1", null, t(`views.${view.id}.title`)), h("p", {class: "lead"}, marked(t(`views.${view.id}.lead`))),
    shown.length ? h("div", {class: "fields" + (shown.length > 1 && !view.stacked ? " two" : "")}, shown.map(field)) : "",
    examples() || "", instead ? h("p", {class: "small soft instead"}, t("shell.instead", {model: model.id, mine: instead})) : "", h("div", {id: "result", "aria-live": "polite"}), h("div", {id: "how"}));
  data = null;
  ask();
}
const say = (message, bad) => h("div", {class: "message" + (bad ? " bad" : "")}, h("p", null, marked(message)));
function locked() {
  const box = h("input", {type: "password", autocomplete: "off", id: "key"});
  return h("form", {class: "card", onsubmit: event => { event.preventDefault(); key.set(box.value.trim()); begin(); }},
    h("h2", null, t("shell.key")), h("p", null, t("shell.keyAbout")), h("label", {class: "field"}, t("shell.keyField"), box), h("p", null, h("button", {class: "main"}, t("shell.keySend"))));
}
async function ask() {
  clearTimeout(waiting);
  const result = at("result"), number = ++asked;
  if (!result) return;
  controller?.abort();
  controller = new AbortController();
  how();
  const missing = view.lacks?.(context());
  if (missing) {
    at("how").replaceChildren();
    const other = view.able && models.find(view.able);
    return result.replaceChildren(h("div", {class: "card lacks"}, h("p", null, marked(missing)), other && h("button", {type: "button", class: "main", onclick: () => use(other)}, t("shell.showWith", {model: other.id}))));
  }
  const needed = typeof view.needs === "function" ? view.needs(context()) : view.needs || ["text"];
  if (needed.some(name => !(texts[name] ?? example()[name] ?? "").trim())) {
    at("how").replaceChildren();
    return result.replaceChildren(h("div", {class: "card empty"}, h("p", null, t("shell.empty"))));
  }
  result.classList.add("stale");
  if (!data) result.replaceChildren(h("div", {class: "card empty"}, h("p", null, t("shell.loading"))));
  try {
    const answer = await view.load(context());
    if (number !== asked) return;
    data = answer;
    show();
  } catch (problem) {
    if (problem.name === "AbortError" || number !== asked) return;
    result.replaceChildren(problem.status === 401 ? locked() : say(problem.status ? problem.message : t("shell.unreachable"), true));
  } finally {
    if (number === asked) result.classList.remove("stale");
  }
}
function show() {
  const focused = document.activeElement?.dataset?.key;
  at("result").replaceChildren(...[view.render(context())].flat().filter(Boolean));
  if (focused) at("result").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  how();
}
function how() {
  const made = view.how?.(context());
  if (!made) return at("how").replaceChildren();
  const part = (title, code) => h("div", null, h("div", {class: "row"}, h("span", null, title), copier(() => code)), h("pre", null, h("code", null, code.split(/((?<=\s)--?\w[\w.-]*)/).map((words, n) => n % 2 ? h("span", null, words) : words))));
  at("how").replaceChildren(h("section", {class: "card how", style: {marginTop: "1.25rem"}}, h("h2", null, t("shell.how")),
    made.command && part(t("shell.command"), made.command), made.python && part(t("shell.python"), made.python),
    h("div", {class: "row"}, h("span", null, t("shell.link")), copier(() => location.href))));
}
function copier(text) {
  const button = h("button", {type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text()); } catch { return; }
    button.textContent = t("shell.copied");
    setTimeout(() => { button.textContent = t("shell.copy"); }, 1200);
  }}, t("shell.copy"));
  return button;
}
function use(one) {
  choose(model = one);
  instead = "";
  params = {};
  remember();
  draw();
}
function theme(name) {
  document.documentElement.dataset.theme = name;
  store.set("theme", name);
}

// ---- The start.

async function begin() {
  try {
    models = (await call("show/models"))[0];
  } catch (problem) {
    at("view").replaceChildren(h("h1", null, "bertkit"), h("div", {id: "result"}, problem.status === 401 ? locked() : say(problem.status ? problem.message : t("shell.unreachable"), true)));
    return;
  }
  follow();
  remember();
  draw();
}

document.documentElement.dataset.theme = store.get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", event => { if (!store.get("theme")) { document.documentElement.dataset.theme = event.matches ? "dark" : "light"; if (view) draw(); } });
try { texts = JSON.parse(store.get("texts") || "{}"); } catch { texts = {}; }
addEventListener("hashchange", () => { if (!models.length) return; const before = view; follow(); remember(); draw(); if (before !== view) { scrollTo(0, 0); } });
addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); remember(); view?.submit ? view.submit(context()) : ask(); }
});
at("skip").addEventListener("click", event => { event.preventDefault(); at("view").focus(); });
try { chosen = sessionStorage.getItem("bertkit.model") || ""; } catch { /* as above */ }
await speak(store.get("language") in LANGUAGES ? store.get("language") : navigator.language.startsWith("zh") ? "zh" : "en");
await begin();
