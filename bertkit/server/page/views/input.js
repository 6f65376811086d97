// What is added up before the first layer: token, segment and position vectors.
import {arrows, calm, inWords, card, h, heat, number, palette, python, sentences, shell, slider, tipped, token} from "../lib.js";

const ORDER = ["token", "segment", "position"];

export default {
  id: "input",
  fields: ["text", "b"],
  able: model => model.can.three_vectors,
  reset: params => { delete params.place; },
  load: async ctx => (await ctx.call("show/input", {text: ctx.text("text"), text_b: ctx.text("b") || null, padding: Number(ctx.params.padding || 0)}))[0],
  how: ctx => ({
    command: `bertkit show ${shell(ctx.model.id)} --view input --text ${shell(ctx.text("text"))}` + (ctx.text("b") ? ` --text-b ${shell(ctx.text("b"))}` : ""),
    python: `import bertkit\nfrom bertkit.inference.explain import input_vectors\n\nmodel = bertkit.load(${python(ctx.model.id)})\nvectors = input_vectors(model, ${python(ctx.text("text"))}${ctx.text("b") ? ", " + python(ctx.text("b")) : ""})\nvectors["parts"].keys(), vectors["sum"].shape`,
  }),
  render(ctx) {
    const {t, data} = ctx, colours = palette();
    const place = Math.min(data.tokens.length - 1, Number(ctx.params.place ?? 1));
    const names = ORDER.filter(name => data.parts[name]);
    const most = Math.max(...names.map(name => spread(data.parts[name])), 1e-6), top = spread(data.input);
    const chips = data.tokens.map((one, n) => token(one, {tag: "button", kind: (n === place ? "on " : "") + kind(one), "data-key": "input" + n, onclick: () => ctx.set({place: n}, false),
      below: names.includes("segment") ? `${"AB"[one.segment] ?? one.segment} · ${n}` : n, title: t("views.input.roles")[one.token.replace(/[[\]<>/]/g, "").toUpperCase()] || ""}));
    const readout = h("p", {class: "small mono", "aria-live": "polite"}, " ");
    const big = [];
    names.forEach((name, n) => {
      if (n) big.push(h("div", {class: "sign"}, "+"));
      big.push(h("span", null, t("views.input.parts")[name]), strip(data.parts[name][place], most, n));
    });
    if (names.length > 1) big.push(h("div", {class: "sign"}, "="), h("span", null, t("views.input.sum")), strip(data.sum[place], most, names.length));
    big.push(h("div", {class: "sign"}, "↓ ", h("span", {class: "small"}, t("views.input.norm"))), h("span", null, t("views.input.given")), strip(data.input[place], top, names.length + 1));
    function strip(row, limit, n) {
      const canvas = heat([row], {most: limit, colours});
      if (!calm()) { canvas.classList.add("rise"); canvas.style.animationDelay = 140 * n + "ms"; }
      return tipped(canvas, event => {
        const box = canvas.getBoundingClientRect(), k = Math.max(0, Math.min(row.length - 1, Math.floor((event.clientX - box.left) / box.width * row.length)));
        const sum = names.map(part => number(data.parts[part][place][k], 3)).join(" + ");
        readout.textContent = `${t("views.input.dimension")} ${k}: ${sum}${names.length > 1 ? " = " + number(data.sum[place][k], 3) : ""} → ${number(data.input[place][k], 3)}`;
        return `${k}: ${number(row[k], 4)}`;
      });
    }
    const columns = [...names.map(name => [t("views.input.parts")[name], data.parts[name], most]), [t("views.input.given"), data.input, top]];
    const missing = ORDER.filter(name => !names.includes(name)).map(name => t("views.input.missing")[name]);
    const other = missing.length ? ctx.models.find(one => one.can.three_vectors) : null;
    if (data.rotary) missing.push(t("views.input.rotary"));
    return [
      card(t("views.input.row"), t("views.input.rowAbout"),
        h("div", {class: "bar-of-controls"}, slider(t("views.input.padding"), {min: 0, max: 6, value: Number(ctx.params.padding || 0), change: value => ctx.set({padding: value || null})})),
        arrows(h("div", {class: "tokens"}, inWords(chips)), true)),
      card(t("views.input.adds", {token: data.tokens[place].token}), t("views.input.addsAbout", {width: data.input[0].length}), h("div", {class: "strips"}, big), readout,
        missing.length ? h("div", {class: "message", style: {marginTop: ".75rem"}}, h("p", null, sentences(missing)), other && h("button", {type: "button", class: "main", onclick: () => ctx.use(other)}, t("shell.showWith", {model: other.id}))) : ""),
      card(t("views.input.whole"), t(names.length > 1 ? "views.input.wholeAbout" : "views.input.wholeAlone"), h("div", {class: "columns wide"}, columns.map(([name, rows, limit]) => {
        const canvas = heat(rows, {most: limit, colours, kind: "matrix"});
        Object.assign(canvas.style, {width: "100%", height: Math.max(60, Math.min(320, 14 * rows.length)) + "px"});
        return h("figure", {style: {margin: 0}}, h("figcaption", {class: "small soft"}, name), tipped(canvas, event => {
          const box = canvas.getBoundingClientRect(), y = Math.min(rows.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows.length)));
          return data.tokens[y].token;
        }));
      })), h("div", {class: "legend", style: {marginTop: ".75rem"}}, h("span", null, h("i", {class: "cold"}), t("legend.negative")), h("span", null, h("i", {class: "warm"}), t("legend.positive")))),
    ];
  },
};

const kind = one => /^(\[MASK\]|<mask>)$/.test(one.token) ? "mask" : "";
function spread(rows) {  // the size that 99 of 100 values do not exceed: one loud dimension does not pale the rest
  const sizes = rows.flat().map(Math.abs).sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1e-6;
}
