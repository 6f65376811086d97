// What came before BERT, on the user's sentence: n-grams, word2vec's Huffman code and noise, an HMM's path.
import {bar, card, h, percent, python, shell} from "../lib.js";

export default {
  id: "lineage",
  fields: ["text", "word"],
  short: ["word"],
  needs: ["text"],
  load: async ctx => (await ctx.call("show/lineage", {text: ctx.text("text"), word: ctx.text("word"), language: ctx.model.language}))[0],
  how: ctx => ({
    command: `bertkit learn ngram text.txt --out ngram\nbertkit suggest ngram ${shell(ctx.text("text"))}`,
    python: `from bertkit.ancestors.lineage import lineage\n\nread = lineage(${python(ctx.text("text"))}, ${python(ctx.model.language)})\nread["ngram"], read["hmm"], read["word"]`,
  }),
  render({t, data}) {
    const words = t("views.lineage"), bars = list => h("div", {class: "bars"}, list);
    const tags = [...new Set(data.hmm.flatMap(one => Object.keys(one.shares)))].sort();
    const hue = tag => tag === "O" ? "var(--wash)" : `color-mix(in srgb, ${["var(--accent)", "var(--warm)", "var(--right)", "var(--violet)"][Math.max(0, [...new Set(tags.map(name => name.slice(2)).filter(Boolean))].indexOf(tag.slice(2))) % 4]} 30%, var(--card))`;
    return [
      card(words.ngram, words.ngramAbout, h("div", {class: "scroll"}, h("table", null, h("thead", null, h("tr", null, h("th", null, words.context), h("th", null, words.word), h("th", null, "P"), h("th", {style: {textAlign: "left"}}, words.guesses))),
        h("tbody", null, data.ngram.map(row => h("tr", null, h("td", {style: {color: "var(--soft)"}}, row.context.join(" ")), h("td", null, h("b", {class: "mono", style: {color: row.seen ? "" : "var(--wrong)"}}, row.word)), h("td", null, percent(row.probability)), h("td", {style: {textAlign: "left"}}, row.guesses.map(one => `${one.word} ${percent(one.probability)}`).join(" · "))))))),
        h("p", {class: "small soft", style: {margin: ".75rem 0 0"}}, data.ngram.some(row => !row.seen) ? words.unseen : words.seen)),
      card(words.huffman, words.huffmanAbout, h("div", {class: "columns"},
        h("div", null, h("h3", null, data.word ? t("views.lineage.code", {word: data.word.word, count: data.word.count}) : words.none), data.word && path(data.word.code), data.word && h("p", {class: "small soft", style: {marginTop: ".5rem"}}, t("views.lineage.turns", {turns: data.word.code.length, size: data.vocabulary.toLocaleString()}))),
        h("div", null, h("h3", null, words.noise), h("p", {class: "small soft", style: {marginBottom: ".5rem"}}, words.noiseAbout), bars([...data.most, ...(data.word && !data.most.some(one => one.word === data.word.word) ? [data.word] : [])].flatMap(one => bar(one.word, one.noise / data.most[0].noise, {shown: `${percent(one.share)} → ${percent(one.noise)}`, kind: "noise"})))))),
      card(words.hmm, words.hmmAbout, h("div", {class: "tokens"}, data.hmm.map(one => h("span", {class: "token", style: {background: hue(one.tag)}, title: Object.entries(one.shares).map(([tag, share]) => `${tag} ${percent(share)}`).join("\n")}, one.word, h("small", null, `${one.tag} ${percent(one.shares[one.tag] || 0)}`)))),
        h("div", {class: "scroll", style: {marginTop: "1rem"}}, h("table", null, h("thead", null, h("tr", null, h("th"), data.hmm.map(one => h("th", {style: {textAlign: "center"}}, one.word)))), h("tbody", null, tags.map(tag => h("tr", null, h("td", null, tag), data.hmm.map(one => h("td", {style: {textAlign: "center", fontWeight: one.tag === tag ? 700 : 400, background: `color-mix(in srgb, var(--accent) ${Math.round(40 * (one.shares[tag] || 0))}%, var(--card))`, boxShadow: one.tag === tag ? "inset 0 0 0 2px var(--warm)" : ""}}, one.shares[tag] ? percent(one.shares[tag]) : ""))))))), h("p", {class: "small soft", style: {marginTop: ".5rem"}}, words.path)),
      card(words.after, words.afterAbout),
    ];
  },
};
const path = code => h("div", {class: "letters", style: {flexWrap: "wrap", marginTop: ".5rem"}}, [...code].map(turn => h("span", {class: "letter" + (turn === "1" ? " taken" : " window")}, turn)));
