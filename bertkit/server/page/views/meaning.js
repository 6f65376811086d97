// One ambiguous word in several texts: how alike its vectors are, by layer.
import {card, characters, choice, css, h, lines, number, palette, python, rising, shell, svg, tipped} from "../lib.js";

export default {
  id: "meaning",
  fields: ["word", "texts"],
  short: ["word"],
  rows: {texts: 5},
  stacked: true,
  needs: ["word", "texts"],
  load: async ctx => (await ctx.call("show/meaning", {word: ctx.text("word"), texts: lines(ctx.text("texts"))}))[0],
  how: ctx => ({
    command: `bertkit meaning ${shell(ctx.text("word"))} ${lines(ctx.text("texts")).map(shell).join(" ")} --models word2vec,elmo,${shell(ctx.model.id)}`,
    python: `import bertkit\nfrom bertkit.ancestors.meaning import meaning\n\nmodel = bertkit.load(${python(ctx.model.id)})\nmeaning(${python(ctx.text("word"))}, ${python(lines(ctx.text("texts")))}, {${python(ctx.model.id)}: model})["models"][0]["layers"][-1]`,
  }),
  render(ctx) {
    const {t, data, params} = ctx, colours = palette(), layers = data.models[0].layers, last = layers.length - 1;
    const layer = Math.min(last, Number(params.layer ?? last)), cosine = layers[layer].cosines;
    const texts = data.texts.map((text, n) => { const marks = characters(text), [a, b] = data.spans[n]; return h("span", null, marks.slice(0, a).join(""), h("b", {style: {color: "var(--warm)"}}, marks.slice(a, b).join("")), marks.slice(b).join("")); });
    const low = Math.min(...cosine.flat());
    const table = h("table", null, h("thead", null, h("tr", null, h("th"), texts.map((_, n) => h("th", {style: {textAlign: "center"}}, n + 1)))), h("tbody", null, cosine.map((row, i) => h("tr", null, h("td", {style: {fontFamily: "inherit", minWidth: "11rem"}}, `${i + 1}. `, texts[i].cloneNode(true)),
      row.map((value, j) => tipped(h("td", {style: {textAlign: "center", background: i === j ? "" : css(rising(0.32 * (value - low) / Math.max(1e-6, 1 - low), colours)), color: i === j ? "var(--faint)" : ""}}, number(value)), `${data.texts[i]}\n${data.texts[j]}\n${number(value, 4)}`))))));
    return [
      card(t("views.meaning.table", {word: data.word, layer: layer ? t("views.layers.layer", {layer}) : t("views.layers.embeddings")}), t(layer ? "views.meaning.tableAbout" : "views.meaning.static"),
        h("div", {class: "bar-of-controls"}, h("span", {class: "soft"}, t("views.layers.pick")), choice(t("views.layers.pick"), layers.map((_, n) => [n, String(n)]), layer, value => ctx.set({layer: value}, false))), h("div", {class: "scroll"}, table)),
      card(t("views.meaning.curves"), t("views.meaning.curvesAbout"), curves(data, layers, layer, t)),
    ];
  },
};

function curves(data, layers, layer, t) {
  const width = 640, height = 260, left = 40, bottom = 26, pairs = [];
  data.texts.forEach((_, i) => data.texts.forEach((__, j) => { if (i < j) pairs.push([i, j]); }));
  const values = pairs.flatMap(([i, j]) => layers.map(one => one.cosines[i][j])), low = Math.min(0, ...values), x = n => left + n * (width - left - 60) / Math.max(1, layers.length - 1), y = v => 10 + (1 - v) / (1 - low) * (height - bottom - 10);
  const hues = ["var(--accent)", "var(--warm)", "var(--right)", "var(--violet)", "var(--wrong)", "var(--soft)"];
  const ends = pairs.map(([i, j], n) => [y(layers[layers.length - 1].cosines[i][j]), n]).sort((a, b) => a[0] - b[0]);
  ends.forEach((end, n) => { if (n) end[0] = Math.max(end[0], ends[n - 1][0] + 13); });
  const at = new Map(ends.map(([place, n]) => [n, place]));
  return h("div", {class: "scroll"}, svg("svg", {viewBox: `0 0 ${width} ${height}`, style: {width: "100%", minWidth: "22rem", maxWidth: "46rem", display: "block"}, role: "img", "aria-label": t("views.meaning.curves")},
    [0, 0.5, 1].filter(v => v >= low).map(v => [svg("line", {class: "axis", x1: left, x2: width - 60, y1: y(v), y2: y(v)}), svg("text", {class: "soft", x: left - 8, y: y(v) + 4, "text-anchor": "end"}, number(v, 1))]),
    svg("line", {x1: x(layer), x2: x(layer), y1: 10, y2: height - bottom, stroke: "var(--strong)", "stroke-dasharray": "3 3"}),
    layers.map((_, n) => svg("text", {class: "soft", x: x(n), y: height - 8, "text-anchor": "middle"}, n)),
    pairs.map(([i, j], n) => tipped(svg("g", null, svg("polyline", {points: layers.map((one, k) => `${x(k)},${y(one.cosines[i][j])}`).join(" "), fill: "none", stroke: hues[n % hues.length], "stroke-width": 2}), svg("text", {class: "soft", x: width - 52, y: at.get(n) + 4, style: {fill: hues[n % hues.length]}}, `${i + 1} – ${j + 1}`)), `${data.texts[i]}\n${data.texts[j]}`))));
}
