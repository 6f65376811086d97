// Whether one text follows another, by the head that was trained for it.
import {bar, card, h, percent, python, shell} from "../lib.js";

const able = model => model.can.next_sentence || model.can.order;

export default {
  id: "next",
  fields: ["text", "b"],
  needs: ["text", "b"],
  lacks: ctx => {
    if (able(ctx.model)) return "";
    const other = ctx.models.find(able);
    return ctx.t("views.next.lacks", {model: ctx.model.id}) + " " + (other ? ctx.t("views.next.choose", {model: other.id}) : ctx.t("views.next.load"));
  },
  load: async ctx => {
    const ask = async (text, text_b) => (await ctx.call("show/next", {text, text_b}))[0];
    return {there: await ask(ctx.text("text"), ctx.text("b")), back: await ask(ctx.text("b"), ctx.text("text"))};
  },
  how: ctx => ({
    command: `bertkit next ${shell(ctx.model.id)} ${shell(ctx.text("text"))} ${shell(ctx.text("b"))}`,
    python: `import bertkit\n\nmodel = bertkit.load(${python(ctx.model.id)})\nmodel.follows(${python(ctx.text("text"))}, ${python(ctx.text("b"))})`,
  }),
  render({t, data, text}) {
    const head = "next" in data.there ? "next" : "order";
    const row = (from, to) => h("div", {class: "tokens", style: {marginBottom: "1rem"}}, [["[CLS]", 1], [from, 0], ["[SEP]", 1], [to, 0], ["[SEP]", 1]].map(([words, special], n) => h("span", {class: "token" + (special ? " special" : n === 3 ? " kept" : " mask"), style: {whiteSpace: "normal", fontFamily: special ? "" : "inherit"}}, words, special ? "" : h("small", null, n === 3 ? "B" : "A"))));
    const answer = one => h("div", {class: "bars"}, bar(t(`views.next.${head}Yes`), one[head], {kind: one[head] >= 0.5 ? "right" : "", shown: percent(one[head])}), bar(t(`views.next.${head}No`), 1 - one[head], {shown: percent(1 - one[head])}));
    return [
      card(t("views.next.asked"), t(`views.next.${head}About`), row(text("text"), text("b")), answer(data.there)),
      card(t("views.next.turned"), t("views.next.turnedAbout"), row(text("b"), text("text")), answer(data.back)),
      card(t("views.next.caution"), t("views.next.cautionAbout")),
    ];
  },
};
