// One ambiguous word in several texts: how alike its vectors are, by model and layer.
import {card, characters, choice, css, h, lines, newRun, number, palette, python, rising, shell, stream, svg, tipped} from "../lib.js";

const TRAINED = ["word2vec", "elmo", "gpt"];
const runs = {};
const rows = ctx => lines(ctx.text("texts")).map(line => { const cut = line.lastIndexOf("#"); return cut < 0 ? [line, ""] : [line.slice(0, cut).trim(), line.slice(cut + 1).trim()]; });
const best = model => model.layers.reduce((found, one) => (one.auc ?? 0) >= (found.auc ?? 0) ? one : found);  // the layer that tells the senses apart best
const senses = given => given.every(([, sense]) => sense) ? given.map(([, sense]) => sense) : [];

export default {
  id: "meaning",
  fields: ["word", "texts"],
  short: ["word"],
  rows: {texts: 5},
  stacked: true,
  needs: ["word", "texts"],
  load: async ctx => {
    const ancestors = (await ctx.get("show/ancestors")).filter(one => one.kind !== "transformer" && (one.language === null || one.language === ctx.model.language)), given = rows(ctx);
    const [answer] = await ctx.call("show/meaning", {word: ctx.text("word"), texts: given.map(([text]) => text), senses: senses(given), others: ancestors.map(one => one.name)});
    return {...answer, ancestors, senses: senses(given)};
  },
  how: ctx => ({
    command: `bertkit meaning ${shell(ctx.text("word"))} ${rows(ctx).map(([text]) => shell(text)).join(" ")} --models word2vec,elmo,${shell(ctx.model.id)}`,
    python: `import bertkit\nfrom bertkit.ancestors.meaning import meaning\n\nmodel = bertkit.load(${python(ctx.model.id)})\nmeaning(${python(ctx.text("word"))}, ${python(rows(ctx).map(([text]) => text))}, {${python(ctx.model.id)}: model}${senses(rows(ctx)).length ? `, senses=${python(senses(rows(ctx)))}` : ""})["models"][0]["layers"][-1]`,
  }),
  render(ctx) {
    const {t, data} = ctx;
    return [
      card(t("views.meaning.models"), t("views.meaning.modelsAbout"), controls(ctx), summary(ctx)),
      ...data.models.map((model, n) => shown(model, n, ctx)),
    ];
  },
};

function controls(ctx) {
  const {t, data} = ctx, box = h("div", {class: "bar-of-controls", id: "others"}), have = data.ancestors.map(one => one.kind);
  const again = () => {
    const running = TRAINED.find(kind => runs[kind]?.stop), problem = TRAINED.map(kind => runs[kind]?.problem).find(Boolean);
    box.replaceChildren(...TRAINED.map(kind => h("button", {type: "button", "data-key": "train-" + kind, disabled: Boolean(running), onclick: () => train(kind)}, "▶ ", t(have.includes(kind) ? "views.meaning.again" : "views.meaning.train", {model: t("views.meaning.kinds")[kind]}))),
      ...(running ? [h("button", {type: "button", onclick: () => runs[running].stop()}, "■ ", t("views.learning.stop")), h("span", {class: "small soft"}, t("views.meaning.training", {model: t("views.meaning.kinds")[running], step: runs[running].events.at(-1)?.step || 0}))] : []), ...(problem ? [ctx.say(problem, true)] : []));
  };
  const train = async kind => {
    const run = runs[kind] = newRun();
    await stream(run, ctx, "show/ancestor/learn", {kind, text: rows(ctx).map(([text]) => text).join("\n").slice(0, 2000), language: ctx.model.language, word: ctx.text("word"), steps: 200, seconds: 30}, again);
    if (box.isConnected && run.end && run.end !== "stopped") ctx.set({}, true);
  };
  again();
  return box;
}

function summary({t, data}) {  // a row per model: its last layer, and the layer that tells the senses apart best
  const known = data.models.filter(model => model.layers.length), told = known.some(model => model.layers[0].auc !== undefined);
  if (!told) return h("p", {class: "small soft"}, t("views.meaning.unsensed"));
  return h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, ["model", "layer", "same", "other", "auc"].map((name, n) => h("th", {style: {textAlign: n ? "center" : "left", fontFamily: "inherit"}}, t("views.meaning.columns")[name])))),
    h("tbody", null, data.models.map(model => { const one = model.layers.length ? best(model) : null; return h("tr", null, h("td", {style: {fontFamily: "inherit"}}, h("b", null, model.model), " ", h("span", {class: "small soft"}, t("views.meaning.about")[model.kind])), one ? [one.layer, number(one.same), number(one.other), number(one.auc)].map(value => h("td", {style: {textAlign: "center"}}, value)) : h("td", {colspan: 4, class: "soft", style: {whiteSpace: "normal", textAlign: "center"}}, t("views.meaning.unknown"))); }))));
}

function shown(model, n, ctx) {
  const {t, data, params} = ctx, colours = palette(), layers = model.layers, last = layers.length - 1, name = `${model.model} · ${t("views.meaning.about")[model.kind]}`;
  if (last < 0) return card(name, t("views.meaning.unknown"));
  const key = n ? "layer" + n : "layer", layer = Math.min(last, Number(params[key] ?? layers.indexOf(best(model)))), cosine = layers[layer].cosines;
  const texts = data.texts.map((text, k) => { const marks = characters(text), [a, b] = data.spans[k]; return h("span", null, marks.slice(0, a).join(""), h("b", {style: {color: "var(--warm)"}}, marks.slice(a, b).join("")), marks.slice(b).join("")); });
  const low = Math.min(...cosine.flat());
  const table = h("table", null, h("thead", null, h("tr", null, h("th"), texts.map((_, k) => h("th", {style: {textAlign: "center"}}, k + 1)))), h("tbody", null, cosine.map((row, i) => h("tr", null, h("td", {style: {fontFamily: "inherit", minWidth: "8rem"}}, `${i + 1}. `, texts[i].cloneNode(true)),
    row.map((value, j) => tipped(h("td", {style: {textAlign: "center", background: i === j ? "" : css(rising(0.32 * (value - low) / Math.max(1e-6, 1 - low), colours)), color: i === j ? "var(--faint)" : ""}}, number(value)), `${data.texts[i]}\n${data.texts[j]}\n${number(value, 4)}`))))));
  return card(name, t(layer ? "views.meaning.tableAbout" : "views.meaning.static"),
    last > 0 && h("div", {class: "bar-of-controls"}, h("span", {class: "soft"}, t("views.layers.pick")), choice(t("views.layers.pick"), layers.map((_, k) => [k, String(k)]), layer, value => ctx.set({[key]: value}, false))), h("div", {class: "scroll"}, table),
    last > 0 && h("h3", {style: {marginTop: "1.25rem"}}, t("views.meaning.curves")), last > 0 && h("p", {class: "small soft"}, t("views.meaning.curvesAbout")), last > 0 && curves(data, layers, layer, t));
}

function curves(data, layers, layer, t) {
  const narrow = innerWidth < 896, width = narrow ? 360 : 860, height = 260, left = 36, bottom = 26, pairs = [], given = data.senses || [];
  data.texts.forEach((_, i) => data.texts.forEach((__, j) => { if (i < j) pairs.push([i, j]); }));
  const values = pairs.flatMap(([i, j]) => layers.map(one => one.cosines[i][j])), low = Math.min(0.9, Math.floor(10 * Math.min(...values)) / 10), x = n => left + n * (width - left - 60) / Math.max(1, layers.length - 1), y = v => 10 + (1 - v) / (1 - low) * (height - bottom - 10);
  const hue = ([i, j]) => !given.length ? "var(--accent)" : given[i] === given[j] ? "var(--right)" : "var(--warm)", step = low > 0.45 ? 0.1 : low > 0 ? 0.2 : 0.5, ticks = Array.from({length: 1 + Math.floor((1 - low) / step + 1e-6)}, (_, n) => 1 - step * n);
  const ends = pairs.map(([i, j], n) => [y(layers[layers.length - 1].cosines[i][j]), n]).sort((a, b) => a[0] - b[0]);
  ends.forEach((end, n) => { if (n) end[0] = Math.max(end[0], ends[n - 1][0] + 13); });
  const at = new Map(ends.map(([place, n]) => [n, place]));
  return h("div", {class: "scroll"}, svg("svg", {viewBox: `0 0 ${width} ${height}`, style: {width: "100%", display: "block"}, role: "img", "aria-label": t("views.meaning.curves")},
    ticks.map(v => [svg("line", {class: "axis", x1: left, x2: width - 60, y1: y(v), y2: y(v)}), svg("text", {class: "soft", x: left - 8, y: y(v) + 4, "text-anchor": "end"}, number(v, 1))]),
    svg("line", {x1: x(layer), x2: x(layer), y1: 10, y2: height - bottom, stroke: "var(--strong)", "stroke-dasharray": "3 3"}),
    layers.map((_, n) => svg("text", {class: "soft", x: x(n), y: height - 8, "text-anchor": "middle"}, n)),
    pairs.map(([i, j], n) => tipped(svg("g", null, svg("polyline", {points: layers.map((one, k) => `${x(k)},${y(one.cosines[i][j])}`).join(" "), fill: "none", stroke: hue([i, j]), "stroke-width": 2}), svg("text", {class: "soft", x: width - 52, y: at.get(n) + 4, style: {fill: hue([i, j])}}, `${i + 1} – ${j + 1}`)), `${data.texts[i]}\n${data.texts[j]}`))),
    given.length ? h("div", {class: "legend"}, [["right", "same"], ["warm", "other"]].map(([kind, name]) => h("span", null, h("i", {style: {background: `var(--${kind})`, borderColor: "transparent"}}), t("views.meaning.columns")[name]))) : "");
}
