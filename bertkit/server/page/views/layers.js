// A token through the layers, the six features, and maps of texts or of one word.
import {arrows, calm, card, choice, clean, h, heat, inWords, lines, number, palette, percent, python, shell, slice, svg, tipped, token} from "../lib.js";

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
    const chips = one.tokens.map((each, n) => token(each, {tag: "button", kind: n === one.place ? "on" : "", "data-key": "word" + n, onclick: () => ctx.set({place: n}), below: number(one.similar[layer][n])}));
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
  const left = spaced ? before.split(/(?<=\s)/).slice(-2).join("") : before.slice(-5), right = spaced ? after.split(/(?=\s)/).slice(0, 3).join("") : after.slice(0, 5);
  return (left.length < before.length ? "…" : "") + left + slice(text, item.start, item.end) + right + (right.length < after.length ? "…" : "");
}
let moved = null;  // the layer that was shown before: points glide from there

function plane(map, given, layer, ctx) {
  const narrow = innerWidth < 896, width = narrow ? 360 : 860, height = narrow ? 340 : 420, pad = 28, {t} = ctx, labels = [...new Set(given.map(([, label]) => label).filter(Boolean))];
  const scale = points => { const xs = points.map(p => p[0]), ys = points.map(p => p[1]), grow = (v, low, high, size) => pad + (high > low ? (v - low) / (high - low) : 0.5) * (size - 2 * pad); return points.map(([x, y]) => [grow(x, Math.min(...xs), Math.max(...xs), width), height - grow(y, Math.min(...ys), Math.max(...ys), height)]); };
  const now = scale(map.points[layer]), before = moved !== null && map.points[moved] && !calm() ? scale(map.points[moved]) : now;
  const labelled = now.map(([x, y], n) => !now.slice(0, n).some(([u, v]) => Math.abs(v - y) < 15 && Math.abs(u - x) < 170));  // no label over another
  const dots = map.items.map((item, n) => {
    const [text, label] = given[item.text], hue = HUES[Math.max(0, labels.indexOf(label)) % HUES.length];
    const shown = ctx.text("word") ? around(text, item) : text.length > 26 ? text.slice(0, 25) + "…" : text;
    const dot = svg("g", {style: {transform: `translate(${before[n][0]}px, ${before[n][1]}px)`, transition: "transform .7s ease"}}, svg("circle", {r: 6, fill: hue, opacity: 0.85}), labelled[n] && svg("text", {class: "soft", x: now[n][0] > width / 2 ? -10 : 10, y: 4, "text-anchor": now[n][0] > width / 2 ? "end" : "start"}, shown));
    requestAnimationFrame(() => requestAnimationFrame(() => { dot.style.transform = `translate(${now[n][0]}px, ${now[n][1]}px)`; }));
    return tipped(dot, `${text}${label ? "\n" + label : ""}`);
  });
  const share = map.explained[layer];
  return [h("div", {class: "scroll"}, svg("svg", {viewBox: `0 0 ${width} ${height}`, style: {width: "100%", display: "block"}, role: "img", "aria-label": t("views.layers.mapTexts")}, svg("rect", {x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 8, fill: "none", class: "axis"}), dots)),
    h("div", {class: "legend", style: {marginTop: ".5rem"}}, labels.map((label, n) => h("span", null, h("i", {style: {background: HUES[n % HUES.length], borderColor: "transparent"}}), label)), h("span", null, t("views.layers.explained", {x: percent(share[0]), y: percent(share[1])})))];
}
