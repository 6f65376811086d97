// Where every head looks, how it flows through the layers, and one head in numbers.
import {arrows, card, choice, clean, css, h, heat, inWords, number, palette, percent, python, rising, shell, svg, tipped, token, wide} from "../lib.js";

const HABITS = ["after", "before", "itself", "special", "same", "spread"];

export default {
  id: "attention",
  fields: ["text", "b"],
  reset: params => { delete params.place; },
  load: async ctx => {
    const body = {text: ctx.text("text"), text_b: ctx.text("b") || null};
    const same = ctx.data && ctx.data.for === JSON.stringify([ctx.model.id, body]);
    const maps = same ? ctx.data.maps : (await ctx.call("show/attention", body))[0];
    return {maps, for: JSON.stringify([ctx.model.id, body]), one: (await ctx.call("show/head", {...body, ...opened(maps, ctx.params)}))[0]};
  },
  how: ctx => {
    const b = ctx.text("b"), {layer, head} = ctx.data ? opened(ctx.data.maps, ctx.params) : {layer: 1, head: 1};
    return {
      command: `bertkit inspect ${shell(ctx.model.id)} ${shell(ctx.text("text"))}` + (b ? ` --text-b ${shell(b)}` : ""),
      python: `import bertkit\nfrom bertkit.inference.explain import attention, head_numbers\n\nmodel = bertkit.load(${python(ctx.model.id)})\nseen = attention(model, ${python(ctx.text("text"))}${b ? ", " + python(b) : ""})\nseen["attention"][${layer - 1}, ${head - 1}], seen["rollout"][-1]\nhead_numbers(model, ${python(ctx.text("text"))}${b ? ", " + python(b) : ""}, layer=${layer}, head=${head})["scaled"]`,
    };
  },
  render(ctx) {
    const {t, data: {maps, one}, params} = ctx, colours = palette();
    const layers = maps.attention.length;
    const {layer, head} = opened(maps, params), mode = params.mode || "head";
    const place = Math.min(maps.tokens.length - 1, Number(params.place ?? telling(maps)));
    const matrix = mode === "rollout" ? maps.rollout[layer - 1] : mode === "mean" ? mean(maps.attention[layer - 1]) : maps.attention[layer - 1][head - 1];
    const pick = (l, k) => ctx.set({layer: l, head: k, mode: null});
    const title = mode === "head" ? t("views.attention.head", {layer, head}) : t("views.attention." + mode + "Title", {layer});
    return [
      card(t("views.attention.heads"), t("views.attention.headsAbout"), h("div", {class: "heads"}, grid(maps, layer, mode === "head" ? head : 0, pick, colours, t), finder(maps, layer, head, pick, t))),
      card(title, t("views.attention." + mode + "About"),
        h("div", {class: "bar-of-controls"}, choice(t("views.attention.mode"), ["head", "mean", "rollout"].map(name => [name, t("views.attention.modes")[name]]), mode, value => ctx.set({mode: value === "head" ? null : value}, false)),
          mode !== "head" && choice(t("views.attention.layer"), Array.from({length: layers}, (_, n) => [n + 1, String(n + 1)]), layer, value => ctx.set({layer: value}))),
        running(maps, matrix, place, ctx, colours), h("div", {class: "columns", style: {marginTop: "1.25rem"}}, fan(maps, matrix, place, ctx), square(maps, matrix, place, ctx, colours))),
      mode === "head" && numbers(one, place, t, colours),
    ];
  },
};

function opened(maps, params) {  // the head that was asked for; else the one that looks most at its neighbours
  const best = maps.heads.reduce((a, b) => Math.max(b.after, b.before) > Math.max(a.after, a.before) ? b : a);
  return {layer: Math.min(maps.attention.length, Number(params.layer || best.layer)), head: Math.min(maps.attention[0].length, Number(params.head || best.head))};
}
function telling(maps) {  // the token that looks most at one other word, in the head that opens first
  const {layer, head} = opened(maps, {}), ordinary = maps.tokens.map((one, n) => n).filter(n => !maps.tokens[n].special);
  const looks = ordinary.map(i => [i, Math.max(0, ...ordinary.filter(j => j !== i).map(j => maps.attention[layer - 1][head - 1][i][j]))]);
  return looks.reduce((best, one) => one[1] > best[1] ? one : best, [1, 0])[0];
}
const mean = heads => heads[0].map((row, i) => row.map((_, j) => heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length));

function finder(maps, layer, head, pick, t) {  // the head with most of a habit
  const found = HABITS.map(habit => [habit, maps.heads.filter(one => one[habit] !== null).reduce((best, one) => !best || one[habit] > best[habit] ? one : best, null)]).filter(([, best]) => best);
  const tokens = maps.tokens.length;
  return h("div", {class: "habits"}, h("h3", null, t("views.attention.find")), found.map(([habit, best]) =>
    h("button", {type: "button", "data-key": habit, "aria-pressed": String(best.layer === layer && best.head === head), onclick: () => pick(best.layer, best.head)},
      h("span", null, t("views.attention.habits")[habit]), h("span", {class: "track"}, h("i", {style: {width: 100 * (habit === "spread" ? best[habit] / tokens : best[habit]) + "%"}})),
      h("span", null, habit === "spread" ? t("views.attention.tokens", {count: number(best[habit], 1)}) : percent(best[habit])), h("span", null, t("views.attention.at", {layer: best.layer, head: best.head})))));
}

function grid(maps, layer, head, pick, colours, t) {
  const heads = maps.attention[0].length, side = heads > 8 ? 40 : heads < 5 && innerWidth > 896 ? 76 : 60;
  const cells = [h("span"), ...Array.from({length: heads}, (_, n) => h("span", {style: {textAlign: "center"}}, n + 1))];
  maps.attention.forEach((row, l) => {
    cells.push(h("span", null, l + 1));
    row.forEach((matrix, k) => {
      const habit = maps.heads[l * heads + k];
      const canvas = heat(matrix, {most: 1, colours, scale: rising, kind: "matrix"});
      Object.assign(canvas.style, {width: side + "px", height: side + "px", cursor: "pointer"});
      const button = h("button", {type: "button", "data-key": `head${l}.${k}`, "aria-label": t("views.attention.head", {layer: l + 1, head: k + 1}), "aria-pressed": String(l + 1 === layer && k + 1 === head), onclick: () => pick(l + 1, k + 1)}, canvas);
      cells.push(tipped(button, () => `${t("views.attention.head", {layer: l + 1, head: k + 1})}\n` + HABITS.filter(name => habit[name] !== null).map(name => `${t("views.attention.habits")[name]}: ${name === "spread" ? number(habit[name], 1) : percent(habit[name])}`).join("\n")));
    });
  });
  const box = h("div", {class: "grid-heads", style: {gridTemplateColumns: `1.2rem repeat(${heads}, ${side + 4}px)`}}, cells);
  box.addEventListener("keydown", event => {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    const at = document.activeElement?.dataset?.key?.match(/^head(\d+)\.(\d+)$/);
    if (!step || !at) return;
    event.preventDefault();
    box.querySelector(`[data-key="head${Number(at[1]) + step[0]}.${Number(at[2]) + step[1]}"]`)?.focus();
  });
  return h("div", {class: "scroll"}, box);
}

function running(maps, matrix, place, ctx, colours) {
  const most = Math.max(...matrix[place], 0.05);
  const chips = maps.tokens.map((one, n) => {
    const chip = token(one, {tag: "button", kind: "heated" + (n === place ? " on" : ""), "data-key": "look" + n, onclick: () => ctx.set({place: n}, false), below: percent(matrix[place][n])});
    chip.style.backgroundColor = css(rising(matrix[place][n], colours, most * 3));
    return chip;
  });
  return arrows(h("div", {class: "tokens", "aria-label": ctx.t("views.attention.text")}, inWords(chips)), true);
}

function fan(maps, matrix, place, ctx) {  // lines from the tokens on the left to what they look at on the right
  const label = one => (clean(one.token).length > 13 ? clean(one.token).slice(0, 12) + "…" : one.token);
  const tokens = maps.tokens, row = 22, height = row * tokens.length + 30, width = Math.min(420, innerWidth - 86);
  const left = 14 + Math.max(...tokens.map(one => wide(label(one)))), right = width - left, y = n => 36 + row * n;
  const lines = svg("g"), names = svg("g");
  const draw = at => {
    lines.replaceChildren(...matrix.flatMap((weights, i) => weights.map((weight, j) => weight < (i === at ? 0.004 : 0.06) ? null : svg("path", {
      d: `M${left} ${y(i) - 4} C${left + 50} ${y(i) - 4} ${right - 50} ${y(j) - 4} ${right} ${y(j) - 4}`, fill: "none",
      stroke: i === at ? "var(--warm)" : "var(--accent)", "stroke-width": i === at ? 0.5 + 4 * weight : 0.5 + 1.5 * weight, opacity: i === at ? 0.25 + 0.75 * weight : 0.4 * weight})).filter(Boolean)));
  };
  tokens.forEach((one, n) => {
    names.append(svg("text", {x: left - 8, y: y(n), "text-anchor": "end", style: {fontWeight: n === place ? 700 : 400, cursor: "pointer", fill: n === place ? "var(--warm)" : ""}, onpointerenter: () => draw(n), onpointerleave: () => draw(place), onclick: () => ctx.set({place: n}, false)}, label(one)),
      svg("text", {x: right + 8, y: y(n)}, label(one)));
  });
  draw(place);
  return h("figure", {style: {margin: 0}}, h("figcaption", {class: "small soft"}, ctx.t("views.attention.lines")), h("div", {class: "scroll"}, svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": ctx.t("views.attention.lines")}, svg("text", {class: "soft", x: left - 8, y: 12, "text-anchor": "end"}, ctx.t("views.attention.from")), svg("text", {class: "soft", x: right + 8, y: 12}, ctx.t("views.attention.to")), lines, names)));
}

function square(maps, matrix, place, ctx, colours) {
  const short = one => clean(one.token).slice(0, 9);
  const tokens = maps.tokens, edge = 12 + Math.max(...tokens.map(one => wide(short(one)))), room = Math.min(400, innerWidth - 86) - edge - 14;
  const size = Math.max(7, Math.min(26, Math.floor(room / tokens.length))), side = size * tokens.length;
  const canvas = heat(matrix, {most: Math.max(0.3, ...matrix.flat()), colours, scale: rising, kind: "matrix"});
  Object.assign(canvas.style, {width: side + "px", height: side + "px", position: "absolute", left: edge + "px", top: edge + "px"});
  const find = event => { const box = canvas.getBoundingClientRect(); return [event.clientY - box.top, event.clientX - box.left].map(way => Math.max(0, Math.min(tokens.length - 1, Math.floor(way / size)))); };
  tipped(canvas, event => { const [i, j] = find(event); return `${tokens[i].token} → ${tokens[j].token}: ${percent(matrix[i][j])}`; });
  canvas.addEventListener("click", event => ctx.set({place: find(event)[0]}, false));
  const wordy = tokens.some(one => wide(short(one)) > size && !one.special);  // then all words stand upright; Chinese characters never do
  const turned = one => wide(short(one)) > size || (wordy && !/[\u2e80-\uffff]/.test(short(one)));
  const font = {fontSize: Math.min(12, size) + "px"};
  const labels = size < 9 ? [] : tokens.flatMap((one, n) => [
    svg("text", {x: edge - 6, y: edge + size * (n + 0.72), "text-anchor": "end", style: {...font, fontWeight: n === place ? 700 : 400}}, short(one)),
    svg("text", {x: 0, y: 0, transform: `translate(${edge + size * (n + 0.5) + (turned(one) ? 4 : 0)} ${edge - 6}) rotate(${turned(one) ? -90 : 0})`, "text-anchor": turned(one) ? "start" : "middle", style: font}, short(one))]);
  const frame = svg("rect", {x: edge - 1, y: edge + size * place - 1, width: side + 2, height: size + 2, fill: "none", stroke: "var(--warm)", "stroke-width": 1.5});
  const over = svg("svg", {width: edge + side + 14, height: edge + side + 4, style: {position: "relative", pointerEvents: "none"}, "aria-hidden": "true"}, labels, frame);
  return h("figure", {style: {margin: 0}}, h("figcaption", {class: "small soft"}, ctx.t("views.attention.matrix")), h("div", {class: "scroll"}, h("div", {style: {position: "relative", width: edge + side + 14 + "px", height: edge + side + 4 + "px"}}, canvas, over)));
}

function numbers(one, place, t, colours) {
  const words = t("views.attention.numbers"), most = spread([one.query[place], ...one.key]), values = spread(one.value);
  const strip = (row, limit) => { const made = heat([row], {most: limit, colours}); made.classList.add("cell"); return made; };
  const added = one.added !== null && one.added[place].some(value => value !== 0);
  const body = one.tokens.map((each, n) => h("tr", {class: n === place ? "on" : null}, h("td", null, each.token), h("td", null, strip(one.key[n], most)), h("td", null, number(one.scores[place][n])), h("td", null, number(one.scaled[place][n])),
    added && h("td", null, one.added[place][n] === null ? "−∞" : number(one.added[place][n])), h("td", null, h("b", null, percent(one.weights[place][n]))), h("td", null, strip(one.value[n], values))));
  return card(t("views.attention.inNumbers", {token: one.tokens[place].token, layer: one.layer, head: one.head}), t("views.attention.inNumbersAbout", {width: one.query[0].length}),
    h("div", {class: "scroll"}, h("table", {class: "numbers"}, h("thead", null, h("tr", null, h("th", null, words.token), h("th", {style: {textAlign: "left"}}, words.key), h("th", null, "q · k"), h("th", null, "÷ √" + one.query[0].length), added && h("th", null, words.added), h("th", null, "softmax"), h("th", {style: {textAlign: "left"}}, words.value))),
      h("tbody", null, h("tr", null, h("td", {style: {whiteSpace: "nowrap"}}, h("b", null, words.query)), h("td", null, strip(one.query[place], most)), h("td", {colspan: added ? 5 : 4})), body,
        h("tr", null, h("td", {colspan: added ? 6 : 5, style: {textAlign: "right", fontFamily: "inherit"}}, h("b", null, words.output)), h("td", null, strip(one.output[place], values)))))));
}
function spread(rows) {
  const sizes = rows.flat().map(Math.abs).sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1e-6;
}
