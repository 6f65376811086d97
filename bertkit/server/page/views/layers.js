// A token through the layers, the six features, and maps of texts or of one word.
import {arrows, calm, card, choice, clean, h, heat, inWords, lines, number, palette, percent, python, shell, slice, svg, tipped, token, wide} from "../lib.js";

const HUES = ["var(--accent)", "var(--warm)", "var(--right)", "var(--violet)", "var(--wrong)", "var(--soft)"];
const rows = ctx => lines(ctx.text("texts")).map(line => { const cut = line.lastIndexOf("\t") >= 0 ? line.lastIndexOf("\t") : line.lastIndexOf(" # "); return cut < 0 ? [line, ""] : [line.slice(0, cut).trim(), line.slice(cut).replace(/^[\t #]+/, "")]; });

export default {
  id: "layers",
  fields: ["text", "texts", "word"],
  short: ["word"],
  rows: {texts: 6},
  stacked: true,
  needs: ["text"],
  reset: (params, name) => { if (name === "text") delete params.place; },
  load: async ctx => {
    const one = (await ctx.call("show/word", {text: ctx.text("text"), place: Number(ctx.params.place ?? await usual(ctx))}))[0];
    let map = null, problem = "";
    try { map = (await ctx.call("show/map", {texts: rows(ctx).map(([text]) => text), word: ctx.text("word")}))[0]; } catch (error) { if (error.name === "AbortError") throw error; problem = error.message; }
    return {one, map, problem, rows: rows(ctx)};
  },
  how: ctx => ({
    command: `bertkit embed ${shell(ctx.model.id)} texts.txt --layers concat-last-4 --out vectors.npy`,
    python: `import bertkit\nfrom bertkit.inference.explain import vector_map, token_layers\n\nmodel = bertkit.load(${python(ctx.model.id)})\ntoken_layers(model, ${python(ctx.text("text"))}, ${ctx.data?.one?.place ?? 2})["vectors"].shape\nvector_map(model, ${python(rows(ctx).map(([text]) => text))}, ${python(ctx.text("word"))})["points"].shape`,
  }),
  render(ctx) {
    const {t, data: {one, map, problem, rows: given}, params} = ctx, colours = palette();
    const last = one.vectors.length - 1, layer = Math.min(last, Number(params.layer ?? last));
    const name = n => n ? t("views.layers.layer", {layer: n}) : t("views.layers.embeddings");
    const chips = one.tokens.map((each, n) => token(each, {tag: "button", kind: "heated" + (n === one.place ? " on" : ""), "data-key": "word" + n, onclick: () => ctx.set({place: n}), below: number(one.similar[layer][n])}));
    chips.forEach((chip, n) => { chip.style.backgroundColor = `color-mix(in srgb, var(--accent) ${Math.round(45 * Math.max(0, one.similar[layer][n]))}%, var(--card))`; });
    const most = spread(one.vectors), strips = one.vectors.flatMap((row, n) => [h("span", null, name(n)), heat([row], {most: spread([row]), colours})]);
    const six = Object.entries(one.choices).flatMap(([key, row]) => [h("span", null, t("views.layers.six")[key]), tipped(heat([row], {most: spread([row]), colours}), () => t("views.layers.numbers", {count: row.length}))]);
    return [
      card(t("views.layers.token", {token: one.tokens[one.place].token}), t("views.layers.tokenAbout"), picker(t, last, layer, ctx), arrows(h("div", {class: "tokens"}, inWords(chips)))),
      h("div", {class: "columns"}, card(t("views.layers.strips"), t("views.layers.stripsAbout", {width: one.vectors[0].length}), h("div", {class: "strips"}, strips)), card(t("views.layers.features"), t("views.layers.featuresAbout"), h("div", {class: "strips"}, six))),
      card(ctx.text("word") ? t("views.layers.mapWord", {word: ctx.text("word")}) : t("views.layers.mapTexts"), t("views.layers.mapAbout"), map ? [picker(t, last, layer, ctx), plane(map, given, layer, ctx)] : ctx.say(problem)),
    ];
  },
};

async function usual(ctx) {  // the last place of the word that is on the map, else the first word
  const word = ctx.text("word").toLowerCase(), {tokens} = (await ctx.call("show/pieces", {text: ctx.text("text")}))[0];
  return Math.max(1, tokens.map(one => clean(one.token).toLowerCase()).lastIndexOf(word));
}
const spread = list => { const sizes = list.flat().map(Math.abs).sort((a, b) => a - b); return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1e-6; };
function picker(t, last, layer, ctx) {
  return h("div", {class: "bar-of-controls"}, h("span", {class: "soft"}, t("views.layers.pick")), choice(t("views.layers.pick"), Array.from({length: last + 1}, (_, n) => [n, String(n)]), layer, value => { moved = layer; ctx.set({layer: value}, false); }));
}
function around(text, item) {  // the word and what stands next to it, cut between words
  const before = slice(text, 0, item.start), after = slice(text, item.end), spaced = /\s/.test(text);
  const left = spaced ? before.split(/(?<=\s)/).slice(-3).join("") : before.slice(-5), right = spaced ? after.split(/(?=\s)/).slice(0, 3).join("") : after.slice(0, 5);
  return (left.length < before.length ? "…" : "") + left + slice(text, item.start, item.end) + right + (right.length < after.length ? "…" : "");
}
const short = text => text.length > 26 ? text.slice(0, 25) + "…" : text;
function beside(points, names, width, height) {  // where a label stands: beside its point, over or under it, and on nothing else
  const boxes = points.map(([x, y]) => [x - 8, y - 8, x + 8, y + 8]), touch = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  return points.map(([x, y], n) => {
    const size = 0.87 * wide(names[n]), sides = [{x: 10, y: 0, anchor: "start", from: 9}, {x: -10, y: 0, anchor: "end", from: -9 - size}, {x: 0, y: -15, anchor: "middle", from: -size / 2}, {x: 0, y: 15, anchor: "middle", from: -size / 2},
      ...[-15, 15].flatMap(y => [{x: 6, y, anchor: "end", from: 6 - size}, {x: -6, y, anchor: "start", from: -6}])];
    for (const side of x > width / 2 ? [sides[1], sides[0], ...sides.slice(2)] : sides) {
      const box = [x + side.from, y + side.y - 7, x + side.from + size, y + side.y + 7];
      if (box[0] < 2 || box[2] > width - 2 || box[1] < 2 || box[3] > height - 2 || boxes.some((other, k) => k !== n && touch(box, other))) continue;
      boxes.push(box);
      return side;
    }
    return null;
  });
}
let moved = null;  // the layer that was shown before: points glide from there

function plane(map, given, layer, ctx) {
  const narrow = innerWidth < 896, width = narrow ? 360 : 860, height = narrow ? 340 : 420, pad = 28, {t} = ctx, labels = [...new Set(given.map(([, label]) => label).filter(Boolean))];
  const scale = points => { const xs = points.map(p => p[0]), ys = points.map(p => p[1]), grow = (v, low, high, size) => pad + (high > low ? (v - low) / (high - low) : 0.5) * (size - 2 * pad); return points.map(([x, y]) => [grow(x, Math.min(...xs), Math.max(...xs), width), height - grow(y, Math.min(...ys), Math.max(...ys), height)]); };
  const now = scale(map.points[layer]), before = moved !== null && map.points[moved] && !calm() ? scale(map.points[moved]) : now;
  const names = map.items.map(item => ctx.text("word") ? around(given[item.text][0], item) : short(given[item.text][0])), labelled = beside(now, names, width, height);
  const dots = map.items.map((item, n) => {
    const [text, label] = given[item.text], hue = HUES[Math.max(0, labels.indexOf(label)) % HUES.length], name = labelled[n];
    const dot = svg("g", {style: {transform: `translate(${before[n][0]}px, ${before[n][1]}px)`, transition: "transform .7s ease"}}, svg("circle", {r: 6, fill: hue, opacity: 0.85}), name && svg("text", {class: "soft", x: name.x, y: name.y + 4, "text-anchor": name.anchor}, names[n]));
    requestAnimationFrame(() => requestAnimationFrame(() => { dot.style.transform = `translate(${now[n][0]}px, ${now[n][1]}px)`; }));
    return tipped(dot, `${text}${label ? "\n" + label : ""}`);
  });
  const share = map.explained[layer];
  return [h("div", {class: "scroll"}, svg("svg", {viewBox: `0 0 ${width} ${height}`, style: {width: "100%", display: "block"}, role: "img", "aria-label": t("views.layers.mapTexts")}, svg("rect", {x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 8, fill: "none", class: "axis"}), dots)),
    h("div", {class: "legend", style: {marginTop: ".5rem"}}, labels.map((label, n) => h("span", null, h("i", {style: {background: HUES[n % HUES.length], borderColor: "transparent"}}), label)), h("span", null, t("views.layers.explained", {x: percent(share[0]), y: percent(share[1])})))];
}
