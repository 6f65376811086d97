// What all views share: elements, heat, bars, tokens, tips. Text only, never markup: nothing a text or a label holds can run.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return made;
}
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const lines = text => text.split("\n").map(line => line.trim()).filter(Boolean);
export const percent = p => (p >= 0.9995 ? "100" : p >= 0.0995 ? (100 * p).toFixed(0) : p >= 0.001 ? (100 * p).toFixed(1) : p > 0 ? "< 0.1" : "0") + (chinese() ? "%" : " %");
export const chinese = () => document.documentElement.lang.startsWith("zh");
export const sentences = list => list.filter(Boolean).join(chinese() ? "" : " ");
export const marked = words => words.split(/(`[^`]+`)/).map(part => part.length > 1 && part.startsWith("`") ? h("code", null, part.slice(1, -1)) : part);
export const number = (x, digits = 2) => x === null || x === undefined ? "" : (Object.is(x, -0) || Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−");
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const clean = token => token.replace(/^[Ġ▁]/, "").replace(/^##/, "") || token;
export const unspaced = token => token.replace(/^[Ġ▁]/, "") || token;  // ## stays: a piece that continues a word is another than one that begins it
const marks = new Map();
export const characters = text => {  // offsets count characters, not UTF-16 units
  if (!marks.has(text)) { marks.clear(); marks.set(text, Array.from(text)); }
  return marks.get(text);
};
export const slice = (text, start, end) => characters(text).slice(start, end).join("");

export function card(title, about, ...children) {
  return h("section", {class: "card"}, title && h("h2", null, title), about && h("p", null, marked(about)), ...children);
}

export const wide = text => Array.from(text).reduce((sum, letter) => sum + (/[\u2e80-\uffff]/.test(letter) ? 12.5 : 7.3), 0);  // of the small letters, in pixels

// ---- A tip that follows the pointer or the focus.

const tip = document.getElementById("tip");
export function tipped(element, text) {
  const show = event => {
    tip.textContent = typeof text === "function" ? text(event) : text;
    tip.hidden = !tip.textContent;
    const box = element.getBoundingClientRect();
    const x = event.clientX || box.left + box.width / 2, y = event.clientY || box.top;
    tip.style.left = Math.max(4, Math.min(innerWidth - tip.offsetWidth - 8, x + 12)) + "px";
    tip.style.top = Math.max(4, y - tip.offsetHeight - 12) + "px";
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("focus", show);
  for (const name of ["pointerleave", "blur"]) element.addEventListener(name, () => { tip.hidden = true; });
  return element;
}

// ---- Bars.

export function bar(name, share, {shown, kind, title} = {}) {
  return h("div", {class: "bar " + (kind || ""), title},
    h("span", {title: name}, name), h("div", {class: "track"}, h("i", {style: {width: 100 * Math.max(0, Math.min(1, share)) + "%"}})),
    h("span", null, shown ?? percent(share)));
}
export function signed(name, value, most, shown) {
  const width = 50 * Math.min(1, Math.abs(value) / (most || 1));
  return h("div", {class: "bar " + (value > 0 ? "warm" : "")}, h("span", {title: name}, name),
    h("div", {class: "track signed"}, h("i", {style: {width: width + "%", left: (value < 0 ? 50 - width : 50) + "%"}})), h("span", null, shown ?? number(value, 3)));
}

// ---- Colours: one hue below zero, one above, paper between.

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = name => style.getPropertyValue(name).split(",").map(Number);
  return {cold: rgb("--cold-rgb"), warm: rgb("--warm-rgb"), paper: rgb("--paper-rgb")};
}
const mix = (from, to, share) => from.map((value, n) => Math.round(value + (to[n] - value) * share));
export const diverging = (value, most, colours) => mix(colours.paper, value < 0 ? colours.cold : colours.warm, Math.min(1, Math.abs(value) / (most || 1)) ** 0.7);
export const rising = (value, colours, most = 1) => mix(colours.paper, colours.cold, Math.min(1, value / (most || 1)) ** 0.6);
export const css = rgb => `rgb(${rgb.join(",")})`;

export function heat(rows, {most, colours = palette(), scale = diverging, kind = "strip"} = {}) {
  const height = rows.length, width = rows[0]?.length || 1;
  const canvas = h("canvas", {class: kind, width, height, "aria-hidden": "true"});
  const context = canvas.getContext("2d"), picture = context.createImageData(width, height);
  const top = most ?? Math.max(1e-9, ...rows.map(row => Math.max(...row.map(Math.abs))));
  rows.forEach((row, y) => row.forEach((value, x) => {
    const rgb = scale === diverging ? diverging(value, top, colours) : rising(value, colours, top);
    picture.data.set([...rgb, 255], 4 * (y * width + x));
  }));
  context.putImageData(picture, 0, 0);
  return canvas;
}

// ---- Tokens as chips in running order.

export function token(one, {tag = "span", kind = "", below, ...props} = {}) {
  const joined = one.token?.startsWith("##") ? " joined" : "";
  return h(tag, {type: tag === "button" ? "button" : null, class: `token ${one.special ? "special" : ""}${joined} ${kind}`, ...props},
    one.token === "" ? "∅" : one.token, below !== undefined && h("small", null, below));
}
export function inWords(chips) {  // the pieces of a word stay together where a line breaks
  const words = [];
  for (const chip of chips) chip.classList.contains("joined") && words.length ? words[words.length - 1].append(chip) : words.push(h("span", {class: "word"}, chip));
  return words;
}
export function arrows(box, pick) {  // left and right move the focus among a box's buttons
  box.addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    const all = [...box.querySelectorAll("button")], at = all.indexOf(document.activeElement);
    const next = all[at + step];
    if (at < 0 || !next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
    if (pick) next.click();
  });
  return box;
}
export function choice(name, options, current, pick) {  // options: [[value, words]]
  return arrows(h("div", {class: "group", role: "group", "aria-label": name},
    options.map(([value, words]) => h("button", {type: "button", "aria-pressed": String(value === current), onclick: () => pick(value)}, words))));
}
export function slider(name, {min, max, step = 1, value, shown = String, change}) {
  const readout = h("span", {class: "mono"}, shown(value));
  const input = h("input", {type: "range", min, max, step, value, "aria-label": name});
  input.addEventListener("input", () => { readout.textContent = shown(Number(input.value)); });
  input.addEventListener("change", () => change(Number(input.value)));
  return h("label", null, name, " ", input, " ", readout);
}

// ---- A player: steps shown one by one; buttons and arrow keys move, and it plays by itself.

let playing = 0;
export function player(count, at, words, render) {
  const box = h("div"), stage = h("div", {"aria-live": "polite"}), id = ++playing;
  let timer = 0;
  const readout = h("span", {class: "small soft"});
  const go = to => {
    at = Math.max(0, Math.min(count - 1, to));
    readout.textContent = `${at + 1} / ${count}`;
    back.disabled = at === 0;
    on.disabled = at === count - 1;
    stage.replaceChildren(...[render(at)].flat());
  };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "▶"; play.setAttribute("aria-label", words.play); };
  const start = () => {
    if (at === count - 1) go(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", words.pause);
    timer = setInterval(() => {
      if (!box.isConnected || id !== playing) return stop();
      if (at === count - 1) return stop();
      go(at + 1);
    }, 900);
  };
  const back = h("button", {type: "button", "aria-label": words.back, onclick: () => { stop(); go(at - 1); }}, "←");
  const on = h("button", {type: "button", "aria-label": words.on, onclick: () => { stop(); go(at + 1); }}, "→");
  const play = h("button", {type: "button", "aria-label": words.play, onclick: () => timer ? stop() : start()}, "▶");
  box.append(count > 1 ? h("div", {class: "player"}, back, play, on, readout) : "", stage);
  box.addEventListener("keydown", event => {
    if (event.key === "ArrowLeft") { stop(); go(at - 1); event.preventDefault(); }
    if (event.key === "ArrowRight") { stop(); go(at + 1); event.preventDefault(); }
  });
  go(at);
  return box;
}

// ---- Text for a shell and for Python.

export const shell = text => /^[\w./=:-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
export const python = value => value === null ? "None" : Array.isArray(value) ? "[" + value.map(python).join(", ") + "]" : JSON.stringify(value);

// ---- A model that learns while one looks on: what it has shown so far stays while other views are looked at.

export const newRun = () => ({events: [], start: null, stop: null, end: "", problem: ""});
export async function stream(run, ctx, path, body, again) {
  const controller = new AbortController();
  run.stop = () => controller.abort();
  again();
  try {
    await ctx.stream(path, body, event => {
      if (event.start) run.start = event.start;
      else if (event.end) run.end = event.end;
      else run.events.push(event);
      again();
    }, controller.signal);
  } catch (problem) {
    if (problem.name === "AbortError") run.end = "stopped";
    else run.problem = problem.message;
  }
  run.stop = null;
  again();
}
