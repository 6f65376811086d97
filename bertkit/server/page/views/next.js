// Whether one text follows another, by the head that was trained for it.
import {bar, card, h, percent, python, shell} from "../lib.js";

const able = model => model.can.next_sentence || model.can.order;

export default {
  id: "next",
  fields: ["text", "b", "story"],
  rows: {story: 4},
  needs: ["text", "b"],
  able,
  lacks: ctx => able(ctx.model) ? "" : ctx.t("views.next.lacks", {model: ctx.model.id}) + (ctx.models.some(able) ? "" : " " + ctx.t("views.next.load")),
  load: async ctx => {
    const ask = async (text, text_b) => (await ctx.call("show/next", {text, text_b}))[0];
    const story = ctx.text("story");
    let pairs = null;
    try { if (story.trim()) [pairs] = await ctx.call("show/pairs", {text: story, seed: Number(ctx.params.seed || 0)}); } catch (problem) { if (problem.name === "AbortError") throw problem; pairs = {problem: problem.message}; }
    return {pairs, there: await ask(ctx.text("text"), ctx.text("b")), back: await ask(ctx.text("b"), ctx.text("text"))};
  },
  how: ctx => ({
    command: `bertkit next ${shell(ctx.model.id)} ${shell(ctx.text("text"))} ${shell(ctx.text("b"))}`,
    python: `import bertkit\n\nmodel = bertkit.load(${python(ctx.model.id)})\nmodel.follows(${python(ctx.text("text"))}, ${python(ctx.text("b"))})\n\nfrom bertkit.inference.explain import sentence_pairs\nsentence_pairs(model, open("story.txt").read())["right"]`,
  }),
  render(ctx) {
    const {t, data, text} = ctx;
    const head = "next" in data.there ? "next" : "order";
    const row = (from, to) => h("div", {class: "tokens", style: {marginBottom: "1rem"}}, [["[CLS]", 1], [from, 0], ["[SEP]", 1], [to, 0], ["[SEP]", 1]].map(([words, special], n) => h("span", {class: "token" + (special ? " special" : n === 3 ? " kept" : " mask"), style: {whiteSpace: "normal", fontFamily: special ? "" : "inherit"}}, words, special ? "" : h("small", null, n === 3 ? "B" : "A"))));
    const side = (name, share) => bar(t(`views.next.${head}${name}`), share, {kind: "phrase " + (share >= 0.5 ? "on" : "other")});
    const answer = one => h("div", {class: "bars"}, side("Yes", one[head]), side("No", 1 - one[head]));
    return [
      card(t("views.next.asked"), t(`views.next.${head}About`), row(text("text"), text("b")), answer(data.there)),
      card(t("views.next.turned"), t("views.next.turnedAbout"), row(text("b"), text("text")), answer(data.back)),
      data.pairs && pairs(data.pairs, ctx),
      card(t("views.next.caution"), t("views.next.cautionAbout")),
    ];
  },
};

function pairs(data, ctx) {
  const {t} = ctx;
  const good = one => (one.probability >= 0.5) === one.label;
  if (data.problem) return card(t("views.next.pairs"), t("views.next.pairsAbout"), ctx.say(data.problem, true));
  return card(t("views.next.pairs"), t(`views.next.pairs${data.head === "next" ? "" : "Order"}About`),
    h("div", {class: "bar-of-controls"}, h("button", {type: "button", "data-key": "draw", onclick: () => ctx.set({seed: Number(ctx.params.seed || 0) + 1})}, "↻ ", t("views.next.draw")), h("span", {class: "soft"}, t("views.next.right", {right: data.pairs.filter(good).length, count: data.pairs.length}))),
    h("div", {class: "scroll"}, h("table", {class: "pairs"}, h("thead", null, h("tr", null, h("th", {style: {textAlign: "left", fontFamily: "inherit"}}, "A"), h("th", {style: {textAlign: "left"}}, "B"), h("th", null, t("views.next.label")), h("th", null, t("views.next.answer")))),
      h("tbody", null, data.pairs.map(one => { const right = good(one); return h("tr", null, [one.a, one.b].map((words, n) => h("td", {"data-name": "AB"[n], style: {textAlign: "left", fontFamily: "inherit", whiteSpace: "normal", minWidth: "8rem"}}, words)), h("td", {"data-name": t("views.next.label")}, t(`views.next.${data.head}${one.label ? "Yes" : "No"}`)), h("td", {"data-name": t("views.next.answer"), style: {color: right ? "var(--right)" : "var(--wrong)"}}, percent(one.probability), right ? " ✓" : " ✗")); })))));
}
