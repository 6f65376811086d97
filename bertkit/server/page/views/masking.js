// A row as pretraining masks it, and the model's guesses.
import {arrows, bar, card, choice, clean, h, inWords, percent, python, shell, slider, token, unspaced} from "../lib.js";

const SEED = 112;  // of the first example it hides two words, changes one and keeps one
const listed = places => places === "none" ? [] : places.split(",").map(Number);

export default {
  id: "masking",
  fields: ["text"],
  reset: params => { delete params.places; },
  able: model => model.can.masks,
  lacks: ctx => ctx.model.can.masks ? "" : ctx.t("views.masking.lacks"),
  load: async ctx => {
    const {unit = "token", rate = 0.15, seed = SEED, places} = ctx.params;
    const body = {text: ctx.text("text"), unit, rate: Number(rate), seed: Number(seed), top: 5};
    if (places) body.places = listed(places);
    body.joint = ctx.params.joint || "beam";
    return (await ctx.call("show/masking", body))[0];
  },
  how: ctx => {
    const marked = ctx.data && ctx.params.places ? ctx.data.after.map((one, n) => ctx.data.tokens[n].special ? "" : one.token).join(" ").replace(/ ##/g, "").trim() : "";
    const {unit = "token", rate = 0.15, seed = SEED, places} = ctx.params;
    return {
      command: marked ? `bertkit fill ${shell(ctx.model.id)} ${shell(marked)}` : `bertkit pretrain --data store --out own --masking.unit ${unit} --masking.rate ${rate}`,
      python: `import bertkit\nfrom bertkit.inference.explain import masked_row\n\nmodel = bertkit.load(${python(ctx.model.id)})\nmasked_row(model, ${python(ctx.text("text"))}, ${places ? `places=[${listed(places).join(", ")}]` : `unit=${python(unit)}, rate=${rate}, seed=${seed}`})["masked"]`,
    };
  },
  render(ctx) {
    const {t, data, params} = ctx;
    const {unit = "token", rate = 0.15, seed = SEED, places} = params;
    const masked = new Map(data.masked.map(one => [one.place, one]));
    const toggle = place => {
      const now = new Set(places ? listed(places) : data.masked.map(one => one.place));
      now.has(place) ? now.delete(place) : now.add(place);
      ctx.set({places: [...now].sort((a, b) => a - b).join(",") || "none"});
    };
    const before = data.tokens.map((one, n) => token(one, {tag: one.special ? "span" : "button", kind: masked.has(n) ? "on" : "", "data-key": "before" + n, onclick: one.special ? null : () => toggle(n), "aria-pressed": one.special ? null : String(masked.has(n)), title: one.special ? "" : t("views.masking.click")}));
    const after = data.after.map((one, n) => token({...one, special: data.tokens[n].special}, {kind: masked.get(n)?.fate || ""}));
    const whole = data.fillings?.[0].score > 0.1 ? 1 : data.fillings?.[0].score || 1;  // of many masks no filling is probable: then the best fills the bar
    const right = data.masked.filter(one => one.rank === 1).length;
    const settings = h("div", {class: "bar-of-controls"},
      choice(t("views.masking.unit"), Object.entries(t("views.masking.units")), unit, value => ctx.set({unit: value, places: null})),
      slider(t("views.masking.rate"), {min: 0.05, max: 0.5, step: 0.05, value: Number(rate), shown: value => percent(value), change: value => ctx.set({rate: value, places: null})}),
      h("button", {type: "button", "data-key": "again", onclick: () => ctx.set({seed: Number(seed) + 1, places: null})}, "↻ ", t("views.masking.again")));
    return [
      card(t("views.masking.row"), t("views.masking.rowAbout"), settings,
        h("h3", null, t("views.masking.before")), arrows(h("div", {class: "tokens", style: {margin: ".4rem 0 1rem"}}, inWords(before))),
        h("h3", null, t("views.masking.after")), h("div", {class: "tokens", style: {margin: ".4rem 0 .9rem"}}, inWords(after)),
        h("div", {class: "legend"}, ["mask", "random", "kept"].map(fate => h("span", null, h("i", {class: fate}), t("views.masking.fates")[fate])))),
      data.masked.length ? card(t("views.masking.guesses"), t("views.masking.score", {right, count: data.masked.length}), h("div", {class: "columns narrow"}, data.masked.map(one => guess(one, data, t))))
        : h("div", {class: "card empty"}, h("p", null, t("views.masking.none"))),
      data.fillings && card(t("views.masking.joint"), t("views.masking.jointAbout"),
        h("div", {class: "bar-of-controls"}, choice(t("views.masking.jointName"), Object.entries(t("views.masking.how")), params.joint || "beam", value => ctx.set({joint: value === "beam" ? null : value}))),
        h("div", {class: "bars"}, data.fillings.map(one => bar(one.tokens.map(clean).join(" · "), one.score / whole, {shown: percent(one.score), title: one.text})))),
    ];
  },
};

function guess(one, data, t) {
  const truth = data.tokens[one.place];
  const rows = one.guesses.map(each => bar(unspaced(each.token), each.probability, {kind: each.id === truth.id ? "right" : ""}));
  if (!one.guesses.some(each => each.id === truth.id)) rows.push(bar(unspaced(truth.token), one.probability, {kind: "right"}));
  const context = (from, to) => data.after.slice(Math.max(0, from), to).map((each, n) => data.tokens[Math.max(0, from) + n].special ? "" : clean(each.token)).join(" ");
  return h("div", null, h("h3", {class: "small soft", style: {fontWeight: 400, marginBottom: ".4rem"}}, "… ", context(one.place - 2, one.place), " ", h("b", null, data.after[one.place].token), " ", context(one.place + 1, one.place + 3), " …"),
    h("div", {class: "bars"}, rows), h("p", {class: "small soft", style: {marginTop: ".35rem"}}, one.rank === 1 ? t("views.masking.first") : t("views.masking.rank", {rank: one.rank.toLocaleString(), token: unspaced(truth.token)})));
}
