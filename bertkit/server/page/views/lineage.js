// What came before BERT, on the user's sentence: n-grams, word2vec, an HMM's path, ELMo, GPT, the Transformer.
import {bar, card, choice, clean, css, h, marked, newRun, number, palette, percent, python, rising, shell, stream, svg, tipped, wide} from "../lib.js";

const KINDS = ["word2vec", "elmo", "gpt", "transformer"];
const runs = {};  // of what learns here, by kind

export default {
  id: "lineage",
  fields: ["text", "word", "passage"],
  short: ["word"],
  rows: {passage: 3},
  stacked: true,
  needs: ["text"],
  load: async ctx => {
    const asked = {text: ctx.text("text"), word: ctx.text("word")};
    const [counted] = await ctx.call("show/lineage", {...asked, language: ctx.model.language, passage: ctx.text("passage")});
    const ancestors = (await ctx.get("show/ancestors")).filter(one => one.language === null || one.language === ctx.model.language), shown = {};
    for (const {name} of ancestors) {
      try { [shown[name]] = await ctx.call("show/ancestor", {...asked, name}); } catch (problem) { if (problem.name === "AbortError") throw problem; shown[name] = {problem: problem.message}; }
    }
    return {...counted, ancestors, shown};
  },
  how: ctx => ({
    command: `bertkit learn ngram text.txt --out ngram\nbertkit learn elmo text.txt --out elmo --minutes 5\nbertkit suggest ngram ${shell(ctx.text("text"))}\nbertkit show ${shell(ctx.model.id)} elmo --view lineage`,
    python: `from bertkit.ancestors.lineage import ancestor_live, lineage\n\nread = lineage(${python(ctx.text("text"))}, ${python(ctx.model.language)})\nread["ngram"], read["hmm"], read["word"]\nfor event in ancestor_live("elmo", ${python(ctx.text("text"))}, language=${python(ctx.model.language)}):\n    print(event.get("loss"))\nevent["model"].both_ways(${python(ctx.text("text"))})`,
  }),
  render(ctx) {
    const {t, data} = ctx;
    const words = t("views.lineage"), bars = list => h("div", {class: "bars"}, list);
    const tags = [...new Set(data.hmm.flatMap(one => Object.keys(one.shares)))].sort();
    const hue = tag => tag === "O" ? "var(--wash)" : `color-mix(in srgb, ${["var(--accent)", "var(--warm)", "var(--right)", "var(--violet)"][Math.max(0, [...new Set(tags.map(name => name.slice(2)).filter(Boolean))].indexOf(tag.slice(2))) % 4]} 30%, var(--card))`;
    return [
      card(words.ngram, words.ngramAbout, h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, h("th", {style: {textAlign: "right"}}, words.context), h("th", {style: {textAlign: "left"}}, words.word), h("th", null, "P"), h("th", {style: {textAlign: "left", width: "60%"}}, words.guesses))),
        h("tbody", null, data.ngram.map(row => h("tr", null, h("td", {style: {color: "var(--soft)", whiteSpace: "nowrap", textAlign: "right"}}, row.context.join(" ")), h("td", {style: {textAlign: "left"}}, h("b", {class: "mono", style: {color: row.seen ? "" : "var(--wrong)"}}, row.word)), h("td", null, percent(row.probability)), h("td", {style: {textAlign: "left", whiteSpace: "normal", minWidth: "9rem"}}, guess(row.guesses))))))),
        h("p", {class: "small soft", style: {margin: ".75rem 0 0"}}, data.ngram.some(row => !row.seen) ? words.unseen : words.seen)),
      card(words.huffman, words.huffmanAbout, h("div", {class: "columns"},
        h("div", null, h("h3", null, data.word ? t("views.lineage.code", {word: data.word.word, count: data.word.count}) : words.none), data.word && h("div", {class: "scroll"}, path(data.word)), data.word && h("p", {class: "small soft", style: {marginTop: ".5rem"}}, t("views.lineage.turns", {word: data.word.word, turns: data.word.code.length, size: data.vocabulary.toLocaleString()}))),
        h("div", null, h("h3", null, words.noise), h("p", {class: "small soft", style: {marginBottom: ".5rem"}}, words.noiseAbout), bars([...data.most, ...(data.word && !data.most.some(one => one.word === data.word.word) ? [data.word] : [])].flatMap(one => bar(one.word, one.noise / data.most[0].noise, {shown: `${percent(one.share)} → ${percent(one.noise)}`, kind: "noise"})))))),
      card(words.hmm, words.hmmAbout, h("div", {class: "tokens"}, data.hmm.map(one => h("span", {class: "token", style: {background: hue(one.tag)}, title: Object.entries(one.shares).map(([tag, share]) => `${tag} ${percent(share)}`).join("\n")}, one.word, h("small", null, `${one.tag} ${percent(one.shares[one.tag] || 0)}`)))),
        h("div", {class: "scroll", style: {marginTop: "1rem"}}, h("table", null, h("thead", null, h("tr", null, h("th"), data.hmm.map(one => h("th", {style: {textAlign: "center"}}, one.word)))), h("tbody", null, tags.map(tag => h("tr", null, h("td", {style: {whiteSpace: "nowrap"}}, tag), data.hmm.map(one => h("td", {style: {textAlign: "center", fontWeight: one.tag === tag ? 700 : 400, background: `color-mix(in srgb, var(--accent) ${Math.round(40 * (one.shares[tag] || 0))}%, var(--card))`, boxShadow: one.tag === tag ? "inset 0 0 0 2px var(--warm)" : ""}}, one.shares[tag] ? percent(one.shares[tag]) : ""))))))), h("p", {class: "small soft", style: {marginTop: ".5rem"}}, words.path)),
      ...KINDS.map(kind => ancestor(kind, ctx)),
    ];
  },
};
function path({code, word}) {  // the way down the Huffman tree: each turn taken, and the branch that was not
  const down = 24, aside = 22, at = [0], size = wide(word) / 2;
  for (const turn of code) at.push(at[at.length - 1] + (turn === "1" ? aside : -aside));
  const low = Math.min(...at.map(x => x - aside), at[at.length - 1] - size) - 4, width = Math.max(...at.map(x => x + aside), at[at.length - 1] + size) + 4 - low, height = down * code.length + 30;
  const edge = (from, to, n, taken) => svg("line", {x1: from - low, y1: 6 + down * n, x2: to - low, y2: 6 + down * (n + 1), stroke: taken ? "var(--accent)" : "var(--strong)", "stroke-width": taken ? 2.5 : 1});
  return svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, style: {display: "block", margin: ".5rem 0"}, role: "img", "aria-label": code},
    [...code].map((turn, n) => [edge(at[n], 2 * at[n] - at[n + 1], n), svg("circle", {cx: 2 * at[n] - at[n + 1] - low, cy: 6 + down * (n + 1), r: 2.5, fill: "var(--strong)"})]),
    [...code].map((turn, n) => [edge(at[n], at[n + 1], n, true), svg("circle", {cx: at[n] - low, cy: 6 + down * n, r: 3.5, fill: "var(--accent)"}), svg("text", {class: "soft", x: (at[n] + at[n + 1]) / 2 - low + (turn === "1" ? 9 : -9), y: 6 + down * (n + 0.5), "text-anchor": "middle"}, turn)]),
    svg("text", {x: at[at.length - 1] - low, y: height - 8, "text-anchor": "middle", style: {fontWeight: 700}}, word));
}

// ---- An ancestor that is opened, or learns now.

function ancestor(kind, ctx) {
  const box = h("div", {id: "ancestor-" + kind});
  fill(box, kind, ctx);
  return card(ctx.t(`views.lineage.${kind}Title`), ctx.t(`views.lineage.${kind}About`), box);
}

async function begin(kind, ctx) {
  for (const other of Object.values(runs)) other.stop?.();
  const run = runs[kind] = {...newRun(), language: ctx.model.language};
  await stream(run, ctx, "show/ancestor/learn", {kind, text: ctx.text("text"), word: ctx.text("word"), language: ctx.model.language, passage: ctx.text("passage"), steps: kind === "transformer" ? 400 : 300, seconds: 40}, () => {
    const box = document.getElementById("ancestor-" + kind);
    if (box) fill(box, kind, ctx);
  });
  if (run.end && run.end !== "stopped") { run.events = run.events.slice(-1); if (document.getElementById("ancestor-" + kind)) ctx.set({["of_" + kind]: null}); }
}

function fill(box, kind, ctx) {
  const {t, data, params} = ctx, kept = runs[kind], run = kept && (kept.stop || kept.language === ctx.model.language) ? kept : newRun(), last = run.events[run.events.length - 1];
  const names = data.ancestors.filter(one => one.kind === kind).map(one => one.name), name = names.includes(params["of_" + kind]) ? params["of_" + kind] : names[0];
  const shown = run.stop ? last?.shown : name ? data.shown[name] : last?.shown;
  const button = run.stop ? h("button", {type: "button", onclick: () => run.stop()}, "■ ", t("views.learning.stop"))
    : h("button", {type: "button", class: name ? null : "main", "data-key": "train-" + kind, onclick: () => begin(kind, ctx)}, "▶ ", t(name ? "views.lineage.again" : "views.lineage.train"));
  const state = run.problem ? ctx.say(run.problem, true) : h("span", {class: "small soft", "aria-live": "polite"}, run.stop ? (last ? t("views.lineage.state", {step: last.step, seconds: number(last.seconds, 0), loss: last.loss === null ? "–" : number(last.loss, 2)}) : t("shell.loading")) : run.start ? t("views.lineage.done", {parameters: run.start.parameters.toLocaleString(), words: run.start.words.toLocaleString()}) : name ? "" : marked(t("views.lineage.idle")));
  box.replaceChildren(h("div", {class: "bar-of-controls"}, button, names.length > 1 && choice(t("views.lineage.which"), names.map(one => [one, one]), name, value => ctx.set({["of_" + kind]: value}, false)), state),
    ...(!shown ? [] : shown.problem ? [ctx.say(shown.problem, true)] : [DRAW[kind](shown, ctx)].flat()));
}

const guess = list => h("span", {class: "guesses"}, list.map(one => h("span", null, h("span", {class: "mono"}, clean(one.word ?? one.token)), " ", h("small", {class: "soft"}, percent(one.score ?? one.probability)))));
const glue = (text, piece) => piece.startsWith("##") ? text + piece.slice(2) : text + (/^[\u2e80-\uffff.,;:!?]/.test(piece) ? "" : " ") + piece;
const DRAW = {
  word2vec: (shown, {t}) => shown.word === null ? h("p", {class: "small soft"}, t("views.lineage.none")) : [h("h3", null, t("views.lineage.near", {word: shown.word})), h("div", {class: "bars", style: {marginTop: ".4rem"}}, shown.neighbours.map(one => bar(one.word, one.cosine, {shown: number(one.cosine, 2)})))],
  elmo: (shown, {t}) => h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, h("th", {style: {textAlign: "right", fontFamily: "inherit"}}, t("views.lineage.forward")), h("th", null, "P"), h("th", {style: {textAlign: "center"}}, t("views.lineage.word")), h("th", null, "P"), h("th", {style: {textAlign: "left"}}, t("views.lineage.backward")))),
    h("tbody", null, shown.words.map(one => h("tr", null, h("td", {style: {textAlign: "right", color: "var(--soft)", fontFamily: "inherit"}}, guess(one.forward.guesses.slice(0, 3))), h("td", null, percent(one.forward.probability)), h("td", {style: {textAlign: "center"}}, h("b", {class: "mono"}, one.word)), h("td", null, percent(one.backward.probability)), h("td", {style: {textAlign: "left", color: "var(--soft)"}}, guess(one.backward.guesses.slice(0, 3)))))))),
  gpt: (shown, {t}) => [h("p", {style: {marginBottom: ".75rem"}}, h("b", null, shown.steps[0].text), h("span", {style: {color: "var(--warm)"}}, shown.steps.map(step => step.guesses[0]?.token || "").reduce(glue, ""))),
    h("div", {class: "scroll"}, h("table", null, h("tbody", null, shown.steps.map((step, n) => h("tr", null, h("td", {style: {width: "4rem", whiteSpace: "nowrap"}}, t("views.lineage.piece", {n: n + 1})), h("td", {style: {textAlign: "left", whiteSpace: "normal"}}, step.guesses.map((one, k) => h("span", {class: "token" + (k ? "" : " mask"), style: {marginRight: ".3rem"}}, clean(one.token), h("small", null, percent(one.score))))))))))],
  transformer: (shown, ctx) => cross(shown, ctx),
};

function cross(shown, ctx) {
  const {t, params} = ctx, colours = palette(), layers = shown.maps.length, heads = shown.maps[0].length;
  const layer = Math.min(layers, Number(params.cross || layers)), head = Math.min(heads, Number(params.crosshead || 0));
  const maps = shown.maps[layer - 1], map = head ? maps[head - 1] : maps[0].map((row, i) => row.map((_, j) => maps.reduce((sum, one) => sum + one[i][j], 0) / heads));
  return [h("p", {style: {marginBottom: ".75rem"}}, h("span", {class: "soft"}, t("views.lineage.writes"), " "), h("b", null, shown.text || "∅")),
    h("div", {class: "bar-of-controls"}, h("span", {class: "soft"}, t("views.attention.layer")), choice(t("views.attention.layer"), shown.maps.map((_, n) => [n + 1, String(n + 1)]), layer, value => ctx.set({cross: value}, false)),
      h("span", {class: "soft"}, t("views.lineage.heads")), choice(t("views.lineage.heads"), [[0, t("views.attention.modes").mean], ...maps.map((_, n) => [n + 1, String(n + 1)])], head, value => ctx.set({crosshead: value || null}, false))),
    h("div", {class: "scroll"}, h("table", {class: "cross"}, h("thead", null, h("tr", null, h("th", null, t("views.lineage.writing")), shown.source.map(one => h("th", {style: {textAlign: "center"}}, one)))),
      h("tbody", null, map.map((row, i) => h("tr", null, h("td", null, h("b", {class: "mono"}, shown.target[i + 1])), row.map((value, j) => tipped(h("td", {style: {textAlign: "center", background: css(rising(0.5 * value, colours))}}, value < 0.005 ? "" : number(value)), `${shown.target[i + 1]} ← ${shown.source[j]}: ${number(value, 3)}`)))))))];
}
