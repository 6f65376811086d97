"""The words of the page that `inspect` writes: (English, Chinese)."""

from __future__ import annotations

LOOKING: dict[str, tuple[str, str]] = {
    "look_title": ("What {model} makes of a text", "{model} 如何看一段文字"),
    "look_tokens": ("Tokens", "词元"),
    "look_importance": (
        "What is lost when each token is hidden: of the label's score, or of the direction of the text's vector",
        "遮住每个词元后损失多少：标签得分，或文本向量的方向",
    ),
    "look_table": ("Every token; seen: its share of all attention", "全部词元；被看：占全部注意力的份额"),
    "look_number": ("No.", "序号"),
    "look_token": ("Token", "词元"),
    "look_weight": ("Importance", "重要性"),
    "look_seen": ("Seen", "被看"),
    "look_heads": ("What the heads do", "各注意力头的习惯"),
    "look_habits": (
        "Mean shares of a token's attention; spread: how many tokens it looks at, in effect",
        "词元注意力的平均份额；广度：实际看多少个词元",
    ),
    "look_layer": ("Layer", "层"),
    "look_head": ("Head", "头"),
    "look_itself": ("Itself", "自身"),
    "look_before": ("The one before", "前一个"),
    "look_after": ("The one after", "后一个"),
    "look_special": ("Special tokens", "特殊词元"),
    "look_spread": ("Spread", "广度"),
    "look_maps": ("Where the heads look", "各头看向何处"),
    "look_maps_note": (
        "A row is a token that looks, a column one that is looked at, both in the order of the table. Darker: more.",
        "每一行是在看的词元，每一列是被看的词元，次序同上表。颜色越深，注意力越多。",
    ),
    "look_of_layer": ("Layer {layer}", "第 {layer} 层"),
    "look_layers": ("Layers", "层数"),
    "look_heads_each": ("Heads a layer", "每层头数"),
}
