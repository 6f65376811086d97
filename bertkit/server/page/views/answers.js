// What a model answers: every route of the server, each shown as its answer is best read.
import {bar, card, characters, choice, clean, css, diverging, h, heat, inWords, lines, number, palette, percent, python, rising, sentences, shell, signed, tipped} from "../lib.js";

// ability → its fields, its request, and how its answer is shown
const ABILITIES = {
  predict: {fields: m => m.pairs ? ["text", "b"] : ["text"], path: "predict", body: v => ({inputs: v("b") ? [v("text"), v("b")] : v("text")}), show: labels,
    command: (m, v) => `echo ${shell(v("text"))} > rows.txt; bertkit predict ${m} rows.txt`, code: v => `model.predict([${python(v("text"))}])`},
  tag: {fields: () => ["text"], path: "tag", body: v => ({inputs: v("text")}), show: entities, command: (m, v) => `echo ${shell(v("text"))} > rows.txt; bertkit predict ${m} rows.txt`, code: v => `model.predict([${python(v("text"))}])`},
  answer: {fields: () => ["question", "passage"], path: "answer", body: v => ({question: v("question"), context: v("passage")}), show: passage, code: v => `model.predict([${python({question: v("question"), context: v("passage")})}])`},
  choose: {fields: () => ["text", "choices"], path: "choose", body: v => ({inputs: {text: v("text"), choices: lines(v("choices"))}}), show: (found, ctx) => bars(lines(ctx.text("choices")).map((name, n) => [name, found.scores[n]]), {kind: "text"}), code: v => `model.predict([${python({text: v("text"), choices: lines(v("choices"))})}])`},
  fill: {fields: () => ["masked"], path: "fill", body: v => ({inputs: v("masked"), top: 8}), show: (masks, ctx) => h("div", {class: "columns"}, masks.map((guesses, n) => h("div", null, masks.length > 1 && h("h3", null, `[MASK] ${n + 1}`), bars(guesses.map(one => [one.token, one.score]))))),
    command: (m, v) => `bertkit fill ${m} ${shell(v("masked"))}`, code: v => `model.fill(${python(v("masked"))})`},
  rerank: {fields: () => ["question", "texts"], path: "rerank", body: (v, m) => ({query: v("question"), texts: lines(v("texts")), return_text: true, ...(m.task === "pair" ? {label: m.labels[m.labels.length - 1]} : {})}), show: (found, {model}) => bars(found.map(one => [one.text, one.score]), {kind: "text", shown: model.task === "pair" ? percent : number})},
  similarity: {fields: () => ["texts"], path: "embed", body: v => ({inputs: lines(v("texts")), normalize: true}), show: similarity, code: v => `vectors = model.embed(${python(lines(v("texts")))}, normalize=True)\nvectors @ vectors.T`},
  embed: {fields: () => ["text"], path: "embed", body: v => ({inputs: v("text")}), show: vector, command: (m, v) => `echo ${shell(v("text"))} > rows.txt; bertkit embed ${m} rows.txt --out vectors.npy`, code: v => `model.embed([${python(v("text"))}])`},
  tokenize: {fields: () => ["text"], path: "tokenize", body: v => ({inputs: v("text")}), show: found => h("div", {class: "tokens"}, found[0].map(one => h("span", {class: "token" + (one.special ? " special" : "")}, one.text, h("small", null, one.id)))), code: v => `model.tokenizer.encode(${python(v("text"))})`},
};
const able = ctx => Object.keys(ABILITIES).filter(name => ctx.model.abilities.includes(name));
const current = ctx => able(ctx).includes(ctx.params.ability) ? ctx.params.ability : able(ctx)[0];
const body = ctx => ABILITIES[current(ctx)].body(ctx.text, ctx.model);

export default {
  id: "answers",
  fields: ["text", "b", "masked", "question", "passage", "choices", "texts"],
  short: ["question"],
  rows: {passage: 5, texts: 5, choices: 3},
  visible: ctx => ABILITIES[current(ctx)].fields(ctx.model),
  needs: ctx => ABILITIES[current(ctx)].fields(ctx.model).filter(name => name !== "b"),
  load: async ctx => {
    const ability = current(ctx), [answer, headers] = await ctx.call(ABILITIES[ability].path, body(ctx));
    let why = null;
    if (ability === "predict" && ctx.model.labels.length > 1) why = (await ctx.call("show/importance", {text: ctx.text("text"), text_b: ctx.model.pairs ? ctx.text("b") || null : null, by: ctx.params.by || "gradients"}))[0];
    if (ability === "fill") why = (await ctx.call("show/importance", {text: ctx.text("masked"), by: ctx.params.by || "gradients"}))[0];
    return {ability, answer, why, tokens: headers.get("x-compute-tokens"), time: headers.get("x-total-time"), cut: Number(headers.get("x-truncated-inputs"))};
  },
  how: ctx => {
    const one = ABILITIES[current(ctx)], name = shell(ctx.model.id);
    const sent = JSON.stringify({model: ctx.model.id, ...body(ctx)});
    return {
      command: `${one.command ? one.command(name, ctx.text) + "\n\n" : ""}curl ${location.origin}/${one.path} -H 'content-type: application/json' -d ${shell(sent)}`,
      python: one.code && `import bertkit\n\nmodel = bertkit.load(${python(ctx.model.id)})\n${one.code(ctx.text)}`,
    };
  },
  render(ctx) {
    const {t, data} = ctx, words = t("views.answers");
    const measured = sentences([t("views.answers.took", {tokens: data.tokens, time: data.time}), data.cut && t("views.answers.cut", {count: data.cut})]);
    return [
      card(words.abilities[data.ability], words.about[data.ability],
        h("div", {class: "bar-of-controls"}, choice(words.ask, able(ctx).map(name => [name, words.abilities[name]]), data.ability, value => { ctx.params.ability = value; ctx.write("_", ""); })),
        ABILITIES[data.ability].show(data.answer, ctx), h("p", {class: "small soft", style: {marginTop: ".9rem"}}, measured)),
      data.why && importance(data.why, ctx),
    ];
  },
};

const bars = (rows, {kind, shown = percent} = {}) => h("div", {class: "bars"}, rows.map(([name, score]) => bar(name, score, {kind, shown: shown(score)})));

function labels(found, {model}) {
  if (model.task === "regress") return h("p", {style: {fontSize: "1.7rem"}}, number(found[0].score, 3));
  return bars(found.map(one => [one.label, one.score]));
}

const HUES = ["--accent", "--warm", "--right", "--violet", "--wrong"];
function entities(found, ctx) {
  const text = characters(ctx.text("text")), kinds = [...new Set(found.entities.map(one => one.label))];
  if (!found.entities.length) return [h("p", {class: "soft"}, ctx.t("views.answers.noEntities")), h("div", {class: "tokens", style: {marginTop: ".75rem"}}, found.tokens.map((word, n) => h("span", {class: "token"}, word, h("small", null, found.tags[n]))))];
  const parts = [];
  let at = 0;
  for (const one of found.entities) {
    parts.push(text.slice(at, one.start).join(""));
    const hue = HUES[kinds.indexOf(one.label) % HUES.length];
    parts.push(h("mark", {style: {background: `color-mix(in srgb, var(${hue}) 18%, var(--card))`, boxShadow: `inset 0 -2px 0 var(${hue})`}, title: percent(one.score)}, text.slice(one.start, one.end).join(""), h("small", {style: {color: `var(${hue})`}}, one.label)));
    at = one.end;
  }
  parts.push(text.slice(at).join(""));
  return h("div", {class: "running"}, parts);
}

function passage(found, ctx) {
  if (!found.answer) return h("p", null, ctx.t("views.answers.noAnswer"));
  const text = characters(ctx.text("passage"));
  return [bars([[found.answer, found.score]]), h("div", {class: "running", style: {marginTop: ".75rem"}}, text.slice(0, found.start).join(""), h("mark", {style: {boxShadow: "inset 0 -2px 0 var(--accent)", fontWeight: 600}}, text.slice(found.start, found.end).join("")), text.slice(found.end).join(""))];
}

function similarity(vectors, ctx) {
  const texts = lines(ctx.text("texts")), colours = palette();
  const cosine = vectors.map(a => vectors.map(b => a.reduce((sum, x, n) => sum + x * b[n], 0)));
  const low = Math.min(...cosine.flat()), shade = value => (value - low) / Math.max(1e-6, 1 - low);
  return h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, h("th"), texts.map((_, n) => h("th", {style: {textAlign: "center"}}, n + 1)))), h("tbody", null, cosine.map((row, i) =>
    h("tr", null, h("td", {style: {fontFamily: "inherit", maxWidth: "22rem", minWidth: "9rem"}}, `${i + 1}. ${texts[i]}`), row.map((value, j) => tipped(h("td", {style: {background: css(rising(shade(value) * 0.32, colours)), textAlign: "center"}}, number(value)), `${texts[i]}\n${texts[j]}\n${number(value, 4)}`)))))));
}

function vector(found, ctx) {
  const canvas = heat([found[0]]);
  canvas.style.height = "2.4rem";
  return [tipped(canvas, event => { const box = canvas.getBoundingClientRect(), k = Math.max(0, Math.min(found[0].length - 1, Math.floor((event.clientX - box.left) / box.width * found[0].length))); return `${k}: ${number(found[0][k], 5)}`; }),
    h("p", {class: "small soft", style: {margin: ".5rem 0"}}, ctx.t("views.answers.vector", {width: found[0].length})), h("details", null, h("summary", {class: "small"}, ctx.t("views.answers.numbers")), h("pre", {style: {whiteSpace: "pre-wrap"}}, "[" + found[0].map(x => x.toFixed(5)).join(", ") + "]"))];
}

function importance(why, ctx) {
  const {t} = ctx, colours = palette(), most = Math.max(...why.importance.map(Math.abs), 1e-9);
  const chips = why.tokens.map((one, n) => { const chip = h("span", {class: "token" + (one.special ? " special" : " heated") + (one.token.startsWith("##") ? " joined" : "")}, one.token, h("small", null, one.special ? " " : number(why.importance[n], 3))); if (!one.special) chip.style.backgroundColor = css(diverging(why.importance[n] * 0.35, most, colours)); return chip; });
  const twice = new Set(why.tokens.map(one => one.token).filter((word, n, all) => all.indexOf(word) < n));  // these are told apart by their number
  const ranked = why.tokens.map((one, n) => [{...one, token: twice.has(one.token) ? `${clean(one.token)} (${n})` : clean(one.token)}, why.importance[n]]).filter(([one]) => !one.special).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 8);
  return card(t("views.answers.why", {target: clean(why.target), probability: percent(ctx.data.answer[0]?.[0]?.token === why.target ? ctx.data.answer[0][0].score : why.probability)}), t(`views.answers.by.${why.by}About`, {baseline: percent(why.baseline), sum: number(why.importance.reduce((a, b) => a + b, 0), 3), difference: number(why.probability - why.baseline, 3)}),
    h("div", {class: "bar-of-controls"}, choice(t("views.answers.byName"), ["gradients", "mask", "remove"].map(name => [name, t("views.answers.by")[name]]), why.by, value => ctx.set({by: value}))),
    h("div", {class: "tokens", style: {marginBottom: "1rem"}}, inWords(chips)), h("div", {class: "bars"}, ranked.map(([one, value]) => signed(one.token, value, most))),
    h("div", {class: "legend", style: {marginTop: ".75rem"}}, h("span", null, h("i", {class: "warm"}), t("views.answers.for")), h("span", null, h("i", {class: "cold"}), t("views.answers.against"))));
}
