// Models that learn in front of the reader: a tiny BERT on a pasted text, and a classifier on a few typed rows.
import {bar, calm, card, chinese, clean, h, lines, newRun, number, percent, python, stream, svg} from "../lib.js";

// What each run has shown so far; it stays while other views are looked at.
const runs = {learn: newRun(), tune: newRun()};
const rows = ctx => lines(ctx.text("rows")).map(line => { const cut = line.includes("\t") ? line.lastIndexOf("\t") : line.lastIndexOf("#"); return cut < 0 ? [line, ""] : [line.slice(0, cut).trim(), line.slice(cut + 1).trim()]; }).filter(([text, label]) => text && label);
const requests = {
  learn: ctx => ({text: ctx.text("passage"), gap: ctx.text("gap"), steps: 300, seconds: 30}),
  tune: ctx => ({rows: rows(ctx), probe: ctx.text("probe"), steps: 60, seconds: 30}),
};

export default {
  id: "learning",
  fields: ["passage", "gap", "rows", "probe"],
  short: ["gap", "probe"],
  rows: {passage: 6, rows: 6},
  visible: ctx => which(ctx) === "learn" ? ["passage", "gap"] : ["rows", "probe"],
  stacked: true,
  needs: ctx => which(ctx) === "learn" ? ["passage", "gap"] : ["rows"],
  load: async () => ({}),
  submit: ctx => begin(which(ctx), ctx),
  how: ctx => which(ctx) === "learn" ? {
    command: "bertkit tokenizer text.txt --size 2000 --out tok\nbertkit prepare text.txt --tokenizer tok --out store\nbertkit pretrain --preset bert-tiny --data store --out own --steps 300",
    python: `from bertkit.inference.live import pretrain_live\n\ntext = open("text.txt").read()\nfor event in pretrain_live(text, ${python(ctx.text("gap"))}, steps=300):\n    print(event)`,
  } : {
    command: `bertkit finetune classify --train rows.csv --model ${ctx.model.id} --out runs/mine --steps 60`,
    python: `import bertkit\nfrom bertkit.inference.live import finetune_live\n\nrows = ${python(rows(ctx).slice(0, 2))}  # …\nfor event in finetune_live(bertkit.load(${python(ctx.model.id)}), rows, ${python(ctx.text("probe"))}):\n    print(event)`,
  },
  render(ctx) {
    const {t} = ctx, kind = which(ctx);
    const tabs = h("div", {class: "group", role: "group", "aria-label": t("views.learning.what")}, ["learn", "tune"].map(name => h("button", {type: "button", "aria-pressed": String(name === kind), onclick: () => { ctx.params.run = name === "learn" ? null : name; ctx.write("_", ""); }}, t(`views.learning.${name}`))));
    const box = h("div", {id: "run"});
    fill(box, kind, ctx);
    return [card(t(`views.learning.${kind}Title`), t(`views.learning.${kind}About`), h("div", {class: "bar-of-controls"}, tabs), box)];
  },
};

const which = ctx => ctx.params.run === "tune" ? "tune" : "learn";

async function begin(kind, ctx) {
  for (const other of Object.values(runs)) other.stop?.();
  const run = runs[kind] = newRun();
  const again = () => {
    const box = document.getElementById("run");
    if (!box || which(ctx) !== kind) return;
    fill(box, kind, ctx);
    if (run.events.length === 1 && box.getBoundingClientRect().bottom > innerHeight - 120) box.scrollIntoView({behavior: calm() ? "auto" : "smooth"});  // what the reader started is seen
  };
  await stream(run, ctx, `show/${kind}`, kind === "tune" ? {model: ctx.model.id, ...requests.tune(ctx)} : requests.learn(ctx), again);
}

function fill(box, kind, ctx) {
  const {t} = ctx, run = runs[kind], last = run.events[run.events.length - 1];
  const button = run.stop ? h("button", {type: "button", onclick: () => run.stop()}, "■ ", t("views.learning.stop")) : h("button", {type: "button", class: "main", "data-key": "start", onclick: () => begin(kind, ctx)}, "▶ ", t(run.events.length ? "views.learning.again" : "views.learning.start"));
  const state = run.problem ? ctx.say(run.problem, true) : run.start && last ? h("p", {class: "small soft"}, t(`views.learning.${kind}State`, {step: last.step, seconds: number(last.seconds, 1), parameters: run.start.parameters.toLocaleString(), pieces: run.start.pieces, rows: run.start.rows}), run.end ? (chinese() ? "" : " ") + t("views.learning.ends")[run.end] : "") : h("p", {class: "small soft"}, t(run.stop ? "shell.loading" : "views.learning.idle"));
  const parts = [h("div", {class: "bar-of-controls"}, button, h("span", {class: "small soft keys"}, "Ctrl + Enter")), state];
  if (last) {
    const shown = kind === "learn" ? guesses(run, ctx) : labels(run, ctx);
    parts.push(h("div", {class: "columns", style: {marginTop: "1rem"}}, h("div", null, h("h3", null, t("views.learning.loss")), curve(run.events, t)), h("div", null, shown)));
  }
  box.replaceChildren(...parts);
}

function curve(events, t) {
  const width = 420, height = 200, left = 34, bottom = 22, told = events.filter(event => event.loss !== null);
  if (!told.length) return h("p", {class: "small soft"}, "…");
  const last = Math.max(1, told[told.length - 1].step), top = Math.max(...told.map(event => event.loss), 0.1);
  const x = step => left + step / last * (width - left - 8), y = loss => 8 + (1 - loss / top) * (height - bottom - 8);
  return svg("svg", {viewBox: `0 0 ${width} ${height}`, style: {width: "100%", maxWidth: "32rem", display: "block"}, role: "img", "aria-label": t("views.learning.loss")},
    [0, top / 2, top].map(value => [svg("line", {class: "axis", x1: left, x2: width - 8, y1: y(value), y2: y(value)}), svg("text", {class: "soft", x: left - 6, y: y(value) + 4, "text-anchor": "end"}, number(value, top < 2 ? 2 : 1))]),
    svg("polyline", {points: told.map(event => `${x(event.step)},${y(event.loss)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 2}),
    svg("circle", {cx: x(last), cy: y(told[told.length - 1].loss), r: 3.5, fill: "var(--accent)"}), svg("text", {class: "soft", x: width - 8, y: height - 6, "text-anchor": "end"}, t("views.learning.steps", {step: last})));
}
function guesses(run, ctx) {
  const {t} = ctx, last = run.events[run.events.length - 1], many = run.events.length, picked = run.events.filter((_, n) => n % Math.max(1, Math.floor(many / 6)) === 0).slice(-7);
  return [h("h3", null, t("views.learning.gapNow")), h("div", {class: "bars", style: {margin: ".4rem 0 1rem"}}, last.guesses.map(one => bar(clean(one.token), one.probability))),
    h("h3", null, t("views.learning.before")), h("table", null, h("tbody", null, picked.map(event => h("tr", null, h("td", null, t("views.learning.steps", {step: event.step})), h("td", {style: {textAlign: "left"}}, event.guesses.slice(0, 3).map(one => `${clean(one.token)} ${percent(one.probability)}`).join(" · "))))))];
}
function labels(run, ctx) {
  const {t} = ctx, last = run.events[run.events.length - 1];
  return [h("h3", null, t("views.learning.rowsRight")), h("div", {class: "bars", style: {margin: ".4rem 0 1rem"}}, bar(t("views.learning.right"), last.right, {kind: "right"})),
    h("h3", null, t("views.learning.probe")), h("div", {class: "bars", style: {marginTop: ".4rem"}}, Object.entries(last.probe).map(([label, score]) => bar(label, score)))];
}
