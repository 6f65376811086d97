"""The one style sheet: light, dark, phone and paper."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--wash:#f6f7f9;--ink:#1d2530;--soft:#5b6675;--line:#dfe3e8;--grid:#e9ecf0;
--accent:#0b6cad;--good:#0a7d5a;--good-wash:#eaf6f1;--bad:#a8480a;--bad-wash:#fdf2e9;--heat:11,108,173;--on:#fff;
--c0:#0b6cad;--c1:#d1590a;--c2:#0a8f68;--c3:#b85c93;--c4:#b98a00;--c5:#4a9fd8;--c6:#6b7280}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14181e;--wash:#1b2129;--ink:#e6eaef;--soft:#9aa6b5;
--line:#2c343f;--grid:#252c36;--accent:#6bb7ee;--good:#4cc79c;--good-wash:#15291f;--bad:#f0995c;--bad-wash:#2d2118;
--heat:107,183,238;--on:#0e1319;--c0:#6bb7ee;--c1:#f0914f;--c2:#45c498;--c3:#e09cc5;--c4:#e3bb45;--c5:#a9d6f5;
--c6:#9aa6b5}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%;scroll-padding-top:1rem}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.6;font:1rem/1.6 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue","Noto Sans","PingFang SC","Hiragino Sans GB","Microsoft YaHei","Noto Sans CJK SC",
"Source Han Sans SC","WenQuanYi Micro Hei",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
header,main,footer{max-width:64rem;margin:0 auto;padding:0 2rem}
header{padding-top:3.5rem}
h1{font-size:2.1rem;line-height:1.2;letter-spacing:-.015em;margin:0;font-weight:680;text-wrap:balance}
.subtitle{color:var(--soft);font-size:1.08rem;margin:.6rem 0 0;max-width:46rem}
h2{font-size:1.3rem;line-height:1.3;margin:0 0 1.1rem;font-weight:650;letter-spacing:-.005em}
section{padding:2.4rem 0 0;margin-top:2.4rem;border-top:1px solid var(--line)}
main>section:first-child{margin-top:2rem}
p{margin:0 0 1rem;max-width:46rem}
.tiles{display:grid;gap:0;margin:2rem 0 0;padding:0;border:1px solid var(--line);border-radius:10px;overflow:hidden}
.tiles.across1{grid-template-columns:1fr}.tiles.across2{grid-template-columns:repeat(2,1fr)}
.tiles.across3{grid-template-columns:repeat(3,1fr)}
.tiles.across4{grid-template-columns:repeat(4,1fr)}
.tiles.across5{grid-template-columns:repeat(5,1fr)}
.tiles>div{box-shadow:0 0 0 .5px var(--line);padding:1rem 1.2rem;display:flex;flex-direction:column-reverse;
justify-content:flex-end}
.tiles dt{color:var(--soft);font-size:.82rem;line-height:1.35;margin-top:.2rem}
.tiles dd{margin:0;font-size:1.4rem;line-height:1.25;font-weight:620;letter-spacing:-.01em}
nav{margin:1.6rem 0 0;font-size:.9rem}
nav ul{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:.35rem 1.25rem}
a{color:var(--accent);text-decoration:none}
a:hover{text-decoration:underline}
a:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:3px}
dl.facts{display:grid;grid-template-columns:fit-content(50%) 1fr;gap:0;margin:0 0 1.6rem;align-content:start;
font-size:.94rem}
dl.facts>div{display:contents}
dl.facts dt,dl.facts dd{padding:.36rem 0;border-bottom:1px solid var(--grid);margin:0}
dl.facts dt{color:var(--soft);padding-right:2rem;min-width:9rem}
dl.facts>div:last-child>*{border-bottom:0}
.scroll{overflow-x:auto;margin:0 0 1.8rem;max-width:100%;background:
linear-gradient(to left,var(--paper) 40%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to left,var(--line),transparent) right/.8rem 100% no-repeat scroll}
table{border-collapse:separate;border-spacing:0;font-size:.92rem;line-height:1.45;min-width:min(100%,22rem)}
caption{caption-side:top;text-align:left;padding:0 0 .55rem}
caption span{position:sticky;left:0;display:inline-block;max-width:min(46rem,calc(100vw - 4rem))}
caption,figcaption{color:var(--soft);font-size:.9rem;line-height:1.45}
th,td{padding:.46rem .9rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid);overflow-wrap:normal}
td{white-space:nowrap}
th:first-child,td:first-child{padding-left:0}
th:last-child,td:last-child{padding-right:0}
th.h,td.h{padding-left:.9rem;padding-right:.9rem}
thead th{color:var(--soft);font-weight:600;font-size:.84rem;border-bottom:1px solid var(--line);vertical-align:bottom;
word-break:keep-all}
tbody th{font-weight:600;word-break:keep-all;overflow-wrap:break-word}
tbody tr:last-child>*{border-bottom:0}
.r{text-align:right;white-space:nowrap}
.c{text-align:center}
td.long,th.long{min-width:12rem;max-width:30rem;white-space:pre-line;overflow-wrap:anywhere}
.k{display:none}
td small{color:var(--soft);font-size:.86em;margin-left:.45em;white-space:nowrap}
tr.best>*{font-weight:650}
tr.best small{font-weight:400}
.h1{background:rgba(var(--heat),.05)}.h2{background:rgba(var(--heat),.1)}.h3{background:rgba(var(--heat),.16)}
.h4{background:rgba(var(--heat),.22)}.h5{background:rgba(var(--heat),.3)}
.beside{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));gap:2rem 2.4rem;
margin:0 0 1.8rem;align-items:start}
.beside>.scroll,.beside>dl.facts{margin:0}
figure{margin:0;min-width:0}
figure.wide{grid-column:1/-1}
figcaption{margin:0 0 .5rem}
.plot{display:block;width:100%;height:auto;max-width:35rem;overflow:visible}
.wide .plot{max-width:56rem}
.two .plot+.plot{display:none}
.plot text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","PingFang SC","Microsoft YaHei",
"Noto Sans CJK SC",sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}
.two .plot text{font-size:11px}
.plot text.strong{fill:var(--ink)}
.plot text.on{fill:var(--on)}
.plot .grid{stroke:var(--grid);stroke-width:1}
.plot .axis{stroke:var(--line);stroke-width:1}
.plot .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4}
.plot .lead{stroke:var(--soft);stroke-width:.75;opacity:.6}
.plot line,.plot path{vector-effect:non-scaling-stroke}
.plot .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.plot .raw{opacity:.28;stroke-width:1}
.plot .d1{stroke-dasharray:7 4}.plot .d2{stroke-dasharray:2 4}.plot .d3{stroke-dasharray:10 3 2 3}
.plot .whisker{stroke:var(--ink);stroke-width:1.4;opacity:.65}
.plot .halo{stroke:var(--paper);stroke-width:1.5}
.plot .s0{stroke:var(--c0)}.plot .s1{stroke:var(--c1)}.plot .s2{stroke:var(--c2)}.plot .s3{stroke:var(--c3)}
.plot .s4{stroke:var(--c4)}.plot .s5{stroke:var(--c5)}.plot .s6{stroke:var(--c6)}
.plot .f0{fill:var(--c0)}.plot .f1{fill:var(--c1)}.plot .f2{fill:var(--c2)}.plot .f3{fill:var(--c3)}
.plot .f4{fill:var(--c4)}.plot .f5{fill:var(--c5)}.plot .f6{fill:var(--c6)}
.callout{position:relative;border-left:3px solid var(--bad);background:var(--bad-wash);
padding:.8rem 1.1rem .8rem 2.5rem;border-radius:0 8px 8px 0;margin:0 0 1.1rem;max-width:50rem}
.callout.good{border-color:var(--good);background:var(--good-wash)}
.callout b{color:var(--bad);font-weight:750;position:absolute;left:1.1rem}
.callout.good b{color:var(--good)}
pre{background:var(--wash);border:1px solid var(--line);border-radius:8px;padding:.9rem 1.1rem;margin:0 0 1.6rem;
font:.85rem/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","Noto Sans Mono CJK SC",monospace;
white-space:pre-wrap;max-width:50rem}
footer{margin-top:3.5rem;padding-top:1.2rem;padding-bottom:3rem;color:var(--soft);font-size:.85rem}
@media (max-width:40rem){header,main,footer{padding-left:1.15rem;padding-right:1.15rem}
header{padding-top:1.8rem}h1{font-size:1.6rem}.subtitle{font-size:1rem}section{padding-top:1.8rem;margin-top:1.8rem}
dl.tiles.tiles{grid-template-columns:1fr 1fr;margin-top:1.4rem}.tiles>div{padding:.8rem .9rem}
.tiles dd{font-size:1.18rem}
caption span{max-width:calc(100vw - 2.3rem)}.plot text,.two .plot text{font-size:13.5px}.two .plot{display:none}
.two .plot+.plot{display:block}.tiles>div:last-child:nth-child(odd){
grid-column:1/-1}dl.facts dt{padding-right:1.2rem;min-width:6rem}th,td{padding:.46rem .7rem}
tbody th{position:sticky;left:0;background:var(--paper);max-width:9.5rem}td.long,th.long{min-width:10rem}
.stack,.stack tbody,.stack caption{display:block}.stack{min-width:0}.stack thead{display:none}
.stack tr{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;padding:.8rem 0;border-bottom:1px solid var(--grid)}
.stack td{display:block;border:0;padding:0;white-space:normal;text-align:left;min-width:0;overflow-wrap:anywhere}
.stack td.long{flex:1 0 100%;max-width:100%;order:-1;margin-bottom:.25rem}
.stack .k{display:inline;color:var(--soft);font-size:.84em;margin-right:.4em}.stack .long .k{display:none}}
@media print{@page{margin:16mm 14mm}html{font-size:10pt}header,main,footer{max-width:none;padding-left:0;
padding-right:0}header{padding-top:0}nav{display:none}section{padding-top:1.2rem;margin-top:1.2rem}
h2{break-after:avoid}figure,.callout,tr,.tiles,dl.facts>div{break-inside:avoid}.scroll{overflow:visible}
thead{display:table-header-group}table{font-size:8.5pt}th,td{padding:.3rem .55rem}td.long,th.long{min-width:0}
.beside{grid-template-columns:1fr 1fr;gap:1rem 1.4rem}.wide .plot{max-width:32rem}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".strip()
