// How a text becomes pieces, step by step.
import {arrows, card, h, inWords, number, player, python, sentences, shell, slice, svg, token} from "../lib.js";

export default {
  id: "pieces",
  fields: ["text"],
  reset: params => { delete params.word; },
  load: async ctx => (await ctx.call("show/pieces", {text: ctx.text("text")}))[0],
  how: ctx => ({
    command: `bertkit show ${shell(ctx.model.id)} --view pieces --text ${shell(ctx.text("text"))}`,
    python: `import bertkit\nfrom bertkit.text.steps import steps\n\nmodel = bertkit.load(${python(ctx.model.id)})\nsteps(model.tokenizer, ${python(ctx.text("text"))})["words"]`,
  }),
  render(ctx) {
    const {t, data, params} = ctx;
    const longest = data.words.reduce((best, word, n) => word.steps.length > data.words[best].steps.length ? n : best, 0);
    const chosen = Math.min(data.words.length - 1, Number(params.word ?? longest)), word = data.words[chosen];
    const owner = new Map(data.words.flatMap((one, n) => one.tokens.map(place => [place, n])));
    const unknown = data.tokens.filter(one => one.unknown).length;
    const chips = data.tokens.map((one, place) => {
      const mine = owner.get(place);
      return token(one, {tag: mine === undefined ? "span" : "button", kind: (mine === chosen ? "on " : "") + (one.unknown ? "unknown" : ""), below: one.id, "data-key": "piece" + place,
        title: one.special ? t("views.pieces.special") : `${slice(data.text, one.start, one.end)}  [${one.start}, ${one.end})`, onclick: mine === undefined ? null : () => ctx.set({word: mine}, false)});
    });
    const ordinary = data.tokens.filter(one => !one.special).length;
    return [
      card(t("views.pieces.all"), sentences([t("views.pieces.count", {pieces: ordinary, words: data.words.length, size: ctx.model.vocabulary.toLocaleString()}), unknown && t("views.pieces.unknown", {count: unknown})]), arrows(h("div", {class: "tokens"}, inWords(chips)))),
      card(t(`views.pieces.${data.kind}`), t(`views.pieces.${data.kind}About`), word.steps.length ? KINDS[data.kind](word, data, ctx) : h("p", {class: "soft"}, t("views.pieces.whole"))),
      card(t("views.pieces.offsets"), t("views.pieces.offsetsAbout"), offsets(data, t)),
    ];
  },
};

function wordpiece(word, data, {t}) {
  const moves = [];  // every try is a step of the player
  let from = 0;
  const letters = Array.from(word.word);
  for (const step of word.steps) {
    step.tried.forEach((tried, n) => {
      const end = letters.length - n, hit = n === step.tried.length - 1 && step.piece;
      moves.push({from, end, tried, hit, lost: n === step.tried.length - 1 && !step.piece});
      if (hit) from = end;
    });
    if (!step.tried.length) moves.push({from, end: letters.length, tried: word.word, lost: true});
  }
  return player(moves.length, moves.length - 1, t("player"), at => {
    const now = moves[at], done = moves.slice(0, at + (now.hit ? 1 : 0)).filter(one => one.hit);
    const lost = now.lost;
    const taken = done.length ? done[done.length - 1].end : 0;
    const boxes = letters.map((letter, n) => h("span", {class: "letter " + (lost ? "lost" : n < taken ? "taken" : n >= now.from && n < now.end ? "window" : "")}, letter));
    const trail = [];
    for (const move of moves.slice(0, at + 1)) {
      if (!trail.length || trail[trail.length - 1].closed) trail.push({parts: [], closed: false});
      const row = trail[trail.length - 1];
      row.parts.push(h("span", {class: move.hit ? "hit" : move.lost ? "miss" : "tried"}, move.lost ? "[UNK]" : move.tried));
      if (move.hit) row.closed = true;
    }
    const said = lost ? t("views.pieces.lost") : now.hit ? t("views.pieces.hit", {piece: now.tried}) : t("views.pieces.tried", {piece: now.tried});
    return [h("div", {class: "scroll"}, h("div", {class: "letters"}, boxes)), h("p", {class: "small soft", style: {marginTop: ".5rem"}}, said), h("div", {class: "trail"}, trail.map(row => h("div", null, row.parts)))];
  });
}

function bpe(word, data, {t}) {
  return player(word.steps.length, word.steps.length - 1, t("player"), at => {
    const step = word.steps[at];
    const row = (one, now) => h("div", {class: "letters"}, one.parts.map((part, n) => h("span", {class: "letter" + (now && n === one.pair ? " merged" : "")}, part)));
    const said = step.pair === null ? t("views.pieces.bpeStart") : t("views.pieces.bpeStep", {piece: step.parts[step.pair], rank: (step.rank + 1).toLocaleString()});
    return [h("div", {class: "scroll"}, row(step, true)), h("p", {class: "small soft", style: {marginTop: ".5rem"}}, said),
      h("div", {class: "trail"}, word.steps.slice(0, at).reverse().map(one => h("div", null, h("span", {class: "tried", style: {textDecoration: "none"}}, one.parts.join(" · ")))))];
  });
}

function unigram(word, data, {t}) {
  const letters = Array.from(word.word), gap = Math.max(34, Math.min(64, 640 / letters.length)), width = gap * letters.length + 40;
  const spans = Math.max(1, ...word.steps.map(edge => edge.end - edge.start)), height = 70 + 22 * spans;
  const x = n => 20 + gap * n, base = height - 34;
  const edges = word.steps.filter(edge => edge.end - edge.start > 1 || edge.best);
  const drawn = [...edges].sort((a, b) => a.best - b.best).map(edge => {
    const size = edge.end - edge.start, top = base - 14 - 22 * size, middle = (x(edge.start) + x(edge.end)) / 2;
    const group = svg("g", null, svg("path", {d: `M${x(edge.start)} ${base} Q${middle} ${top - 18} ${x(edge.end)} ${base}`, fill: "none", stroke: edge.best ? "var(--right)" : "var(--strong)", "stroke-width": edge.best ? 2.5 : 1}));
    if (edge.best) group.append(svg("text", {x: middle, y: (base + top) / 2 - 10, "text-anchor": "middle", fill: "var(--right)"}, edge.piece ?? "?"), svg("text", {class: "soft", x: middle, y: (base + top) / 2 + 3, "text-anchor": "middle"}, number(edge.score)));
    group.append(svg("title", null, `${edge.piece ?? "?"}  ${number(edge.score)}`));
    return group;
  });
  const nodes = Array.from({length: letters.length + 1}, (_, n) => svg("circle", {cx: x(n), cy: base, r: 3, fill: "var(--soft)"}));
  const named = letters.map((letter, n) => svg("text", {x: x(n) + gap / 2, y: base + 20, "text-anchor": "middle"}, letter));
  const best = word.steps.filter(edge => edge.best).reduce((sum, edge) => sum + edge.score, 0);
  return [h("div", {class: "scroll"}, svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("views.pieces.unigram")}, drawn, nodes, named)), h("p", {class: "small soft"}, t("views.pieces.unigramSum", {sum: number(best), edges: word.steps.length}))];
}
const KINDS = {wordpiece, bpe, unigram};

function offsets(data, t) {
  const ordinary = data.tokens.map((one, n) => [one, n]).filter(([one]) => !one.special);
  const parts = [];
  let at = 0;
  for (const [one, n] of ordinary) {
    if (one.start > at) parts.push(slice(data.text, at, one.start));
    if (one.end > one.start) parts.push(h("mark", {class: one.unknown ? "bad" : null, title: `${one.token} · [${one.start}, ${one.end})`, style: {background: one.unknown ? "var(--wrong-tint)" : n % 2 ? "var(--tint)" : "var(--warm-tint)", padding: "0", borderRadius: "0"}}, slice(data.text, Math.max(at, one.start), one.end)));
    at = Math.max(at, one.end);
  }
  parts.push(slice(data.text, at));
  return h("div", {class: "running"}, parts);
}
