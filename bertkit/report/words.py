"""Every word of the reports, in English and Chinese: a table, with the same keys in each language.

`words` gives the sentences; `name_of` the name of a metric, a setting or a fact, or its key made readable.
"""

from __future__ import annotations

from bertkit.errors import UserError, suggest

# ---- The words of the page that `inspect` writes: (English, Chinese).

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


# ---- Every word of the reports, in English and Chinese: a table, with the same keys in each language.

# key: (English, Chinese)
_WORDS: dict[str, tuple[str, str]] = {
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "s": ("s", "秒"),
    "min": ("min", "分"),
    "h": ("h", "小时"),
    "table": ("Table", "表格"),
    "contents": ("Contents", "目录"),
    "note": ("Note", "注意"),
    "result": ("Result", "结论"),
    "no_data": ("Nothing to show", "没有可显示的数据"),
    "shortened": ("({length} characters in all)", "（共 {length} 个字符）"),
    "more": ("and {count} more, not shown", "另有 {count} 项未显示"),
    "footer": (
        "Written by bertkit. One self-contained file: no scripts, and nothing is loaded from the network.",
        "由 bertkit 生成。单个自包含文件：不含脚本，不从网络加载任何内容。",
    ),
    # plots
    "accuracy": ("Accuracy", "准确率"),
    "confidence": ("Confidence", "置信度"),
    "reliability": ("Reliability: confidence against accuracy", "可靠性：置信度与准确率"),
    "diagonal": ("dashed: as sure as right", "虚线：置信度与准确率一致"),
    "before": ("before", "校准前"),
    "after": ("after", "校准后"),
    "coverage": ("Share of texts answered", "作答比例"),
    "coverage_title": ("Accuracy by share answered", "作答比例与准确率"),
    "accuracy_answered": ("Accuracy of what is answered", "已作答部分的准确率"),
    "chosen": ("answers from {threshold} up: {coverage}", "置信度 ≥ {threshold} 时作答：{coverage}"),
    "rows": ("Rows", "行数"),
    "step": ("Step", "步数"),
    "tokens": ("Tokens", "词元"),
    "training": ("Training", "训练"),
    "log_scale": (", log scale", "（对数坐标）"),
    "in_training": ("training", "训练"),
    "held_out": ("held out", "留出集"),
    "best": ("Best", "最佳"),
    "limit": ("window", "窗口长度"),
    "panel_loss": ("Loss", "损失"),
    "panel_perplexity": ("Perplexity", "困惑度"),
    "panel_scores": ("Scores on held-out data", "留出数据上的得分"),
    "panel_lr": ("Learning rate", "学习率"),
    "panel_grad_norm": ("Gradient norm", "梯度范数"),
    "panel_speed": ("Speed", "速度"),
    "panel_memory": ("Memory", "内存"),
    # sections
    "summary": ("Summary", "概要"),
    "curves": ("Curves", "曲线"),
    "evaluations": ("Evaluations while training", "训练中的评估"),
    "evaluations_caption": (
        "Measured on held-out documents ({shown} of {count} evaluations).",
        "在留出文档上测得（{count} 次评估中的 {shown} 次）。",
    ),
    "about": ("Data and machine", "数据与机器"),
    "settings": ("How to repeat it", "如何复现"),
    "notes": ("Told during the run", "运行中的提示"),
    "errors": ("Worst errors", "最严重的错误"),
    "suspects": ("Labels that look wrong", "可疑标签"),
    "predictions": ("Fresh predictions", "新文本的预测"),
    "data": ("Data", "数据"),
    "speed": ("Speed and size", "速度与体积"),
    "environment": ("Environment", "环境"),
    "by_label": ("Label by label", "各标签表现"),
    "trust": ("How far to trust it", "可信程度"),
    "verdict": ("Verdict", "结论"),
    "contenders": ("Contenders", "参赛方法"),
    "learning": ("What more labels would bring", "更多标注的收益"),
    "skipped": ("Not run", "未运行"),
    # pretraining
    "pretraining": ("Pretraining: {name}", "预训练：{name}"),
    "pretraining_subtitle": (
        "What the run reached on text it never trained on, how it got there, and what it cost.",
        "模型在未见过的文本上的表现、训练过程与代价。",
    ),
    "unigram": ("knowing only word frequencies", "仅知词频的水平"),
    "interrupted": ("The run ended before its budget. It can be resumed.", "训练提前结束，可以继续。"),
    "loss_path": (
        "The held-out loss went from {first} to {last} by step {step}.",
        "到第 {step} 步，留出集损失从 {first} 变为 {last}。",
    ),
    "loss_rose": (
        "The held-out loss was lowest at step {step} ({best}) and has risen since: the model has begun to learn the "
        "text by heart. More text, or fewer passes over it, would help.",
        "留出集损失在第 {step} 步最低（{best}），此后上升：模型开始死记文本。增加文本或减少遍数会有帮助。",
    ),
    "not_finite": ("Steps whose loss is not a number: {count}.", "有 {count} 步的损失不是有效数字。"),
    "no_rows": ("No step was recorded.", "没有记录任何训练步。"),
    # fine-tuning
    "finetuning": ("Fine-tuning: {name}", "微调：{name}"),
    "finetuning_subtitle": ("Starting from the model {model}.", "起始模型：{model}。"),
    "headline": ("{metric} is {value} on held-out rows.", "留出数据上，{metric} 为 {value}。"),
    "headline_interval": (
        "{metric} is {value} on held-out rows; with {level} confidence it lies between {low} and {high}.",
        "留出数据上，{metric} 为 {value}；{level} 置信区间为 {low} 至 {high}。",
    ),
    "metric": ("Metric", "指标"),
    "score_interval": ("Score and interval", "得分与区间"),
    "metrics_caption": (
        "Scores with {level} bootstrap intervals; rows scored: {rows}.",
        "得分及 {level} 自助法置信区间；评估行数：{rows}。",
    ),
    "this_model": ("this model", "本模型"),
    "baselines_caption": (
        "{metric} beside cheap methods on the same rows.",
        "同一数据上与简单方法的对比（{metric}）。",
    ),
    "label": ("Label", "标签"),
    "gold": ("True label", "真实标签"),
    "predicted": ("Predicted label", "预测标签"),
    "share": ("Share", "占比"),
    "confusion_caption": (
        "Which label was taken for which. Each row is shaded by its own share.",
        "各标签被预测成什么。每行按自身占比着色。",
    ),
    "largest": ("The {shown} largest of {count} are shown.", "显示 {count} 个中最大的 {shown} 个。"),
    "mixed_caption": ("Most often mixed up, with the share of the true label.", "最常混淆的标签及其占真实标签的比例。"),
    "per_class_caption": ("Precision, recall and F1 of each label.", "各标签的精确率、召回率与 F1。"),
    "calibrated": (
        "Confidence is off by {after} on average (before calibration: {before}); the temperature is {temperature}.",
        "置信度平均偏差为 {after}（校准前为 {before}）；温度为 {temperature}。",
    ),
    "abstaining": (
        "If it answers only from a confidence of {threshold} up, it answers {coverage} of the texts and is right in "
        "{accuracy} of those.",
        "若仅在置信度不低于 {threshold} 时作答，则回答 {coverage} 的文本，其中 {accuracy} 正确。",
    ),
    "reliability_caption": (
        "Does 0.9 mean right nine times in ten? Larger dots hold more rows.",
        "置信度 0.9 是否意味着十次对九次？圆点越大，行数越多。",
    ),
    "coverage_caption": (
        "What leaving the unsure texts to people would bring.",
        "把没有把握的文本交给人工的效果。",
    ),
    "errors_caption": (
        "The surest mistakes first ({shown} of {count}).",
        "按置信度排列的错误（{count} 个中的 {shown} 个）。",
    ),
    "suspects_caption": (
        "Not having trained on the row, the model is sure of another label ({shown} of {count}). Look at these.",
        "模型未用该行训练，却确信是另一标签（{count} 个中的 {shown} 个），建议复查。",
    ),
    "predictions_caption": (
        "Texts from outside the data ({shown} of {count}).",
        "数据之外的文本（{count} 条中的 {shown} 条）。",
    ),
    "files_caption": ("Files read.", "读取的文件。"),
    "file": ("File", "文件"),
    "balance_caption": ("Balance of the {count} labels.", "{count} 个标签的分布。"),
    "lengths_caption": ("How long the texts are, in tokens.", "文本长度（词元数）。"),
    "rows_cut": ("Rows cut", "被截断的行"),
    "tokens_cut": ("Tokens cut", "被截去的词元"),
    "nothing_cut": ("Nothing was cut: every token of every text was seen.", "没有截断：所有文本的所有词元都被读取。"),
    "something_cut": (
        "Some texts were cut: the model did not see their ends.",
        "部分文本被截断：模型没有看到其余部分。",
    ),
    "cut_caption": ("What the model did not see.", "模型没有看到的部分。"),
    "seeds_caption": ("The same run with other seeds.", "不同随机种子的结果。"),
    # comparing
    "comparison": ("Is it worth it? {name}", "值得吗？{name}"),
    "comparison_subtitle": (
        "The same rows for everyone: what each method reaches, what it costs, and which one to use.",
        "所有方法使用相同数据：各自的得分、代价，以及该用哪一个。",
    ),
    "contender": ("Contender", "方法"),
    "contenders_caption": (
        "Best first, with {level} intervals. The p-value is of the difference from the best.",
        "按得分排列，附 {level} 置信区间。p 值为与最佳方法之差的显著性。",
    ),
    "front_ms_per_text": (
        "Score against milliseconds a text. None of those on the line is beaten on both.",
        "得分与每条文本的毫秒数。连线上的方法没有被任何方法在两方面同时超过。",
    ),
    "front_train_seconds": (
        "Score against seconds of training. None of those on the line is beaten on both.",
        "得分与训练秒数。连线上的方法没有被任何方法在两方面同时超过。",
    ),
    "axis_ms_per_text": ("Milliseconds a text, log scale", "每条文本的毫秒数（对数坐标）"),
    "axis_train_seconds": ("Seconds of training, log scale", "训练秒数（对数坐标）"),
    "training_rows": ("Training rows", "训练行数"),
    "learning_caption": ("Score by the number of training rows.", "不同训练行数下的得分。"),
    "skipped_caption": ("Why these were left out.", "未运行的原因。"),
    "verdict_none": ("No contender has a score.", "没有任何方法得到分数。"),
    "verdict_alone": ("Only {best} was run: {a}.", "只运行了 {best}：{a}。"),
    "verdict_cheap": (
        "{pick} is within noise of {best} ({a} against {b}{p}) at 1/{ratio} of the {cost}: use it.",
        "{pick} 与 {best} 的差距在误差之内（{a} 对 {b}{p}），而{cost}只有其 1/{ratio}：用它。",
    ),
    "verdict_both": (
        "{best} is the best ({a}), and none is clearly cheaper: use it.",
        "{best} 得分最高（{a}），且没有明显更便宜的方法：用它。",
    ),
    "verdict_best": (
        "{best} is worth it: {a} against {b} for {rival}, the best of the cheaper ones{p}.",
        "{best} 值得：得分 {a}，而更便宜的方法中最好的 {rival} 为 {b}{p}。",
    ),
    "verdict_unsure": (
        "{best} scores best, {a} against {b} for {rival}, the best of the cheaper ones; but on so few rows the "
        "difference cannot be told from chance{p}. Judge on more rows before you choose.",
        "{best} 得分最高（{a}），更便宜的方法中最好的 {rival} 为 {b}；但测试数据太少，无法断定差距不是偶然{p}。"
        "请用更多数据评测后再选择。",
    ),
    "verdict_price": ("The price is {ratio} times the {cost}.", "代价是 {ratio} 倍的{cost}。"),
    "cost_ms_per_text": ("time a text", "单条文本耗时"),
    "cost_train_seconds": ("training time", "训练时间"),
    "cost_megabytes": ("size on disk", "磁盘占用"),
}

_NAMES: dict[str, tuple[str, str]] = {
    # tasks
    "classify": ("classify", "文本分类"),
    "pair": ("pair", "文本对分类"),
    "regress": ("regress", "回归"),
    "tag": ("tag", "序列标注"),
    "answer": ("answer", "抽取问答"),
    "choose": ("choose", "选择题"),
    "embed": ("embed", "句向量"),
    # metrics
    "accuracy": ("Accuracy", "准确率"),
    "macro_f1": ("Macro F1", "宏平均 F1"),
    "micro_f1": ("Micro F1", "微平均 F1"),
    "f1": ("F1", "F1"),
    "precision": ("Precision", "精确率"),
    "recall": ("Recall", "召回率"),
    "mcc": ("Matthews correlation", "马修斯相关系数"),
    "auc": ("AUC", "AUC"),
    "pearson": ("Pearson", "皮尔逊相关"),
    "spearman": ("Spearman", "斯皮尔曼相关"),
    "rmse": ("RMSE", "均方根误差"),
    "mae": ("MAE", "平均绝对误差"),
    "exact": ("Exact match", "完全匹配"),
    "exact_match": ("Exact match", "完全匹配"),
    "exact_answerable": ("Exact match, answerable", "完全匹配（可回答）"),
    "f1_answerable": ("F1, answerable", "F1（可回答）"),
    "accuracy_unanswerable": ("Accuracy, unanswerable", "准确率（不可回答）"),
    "hamming_loss": ("Hamming loss", "汉明损失"),
    "loss": ("Loss", "损失"),
    "mlm_loss": ("Masked-word loss", "掩码损失"),
    "perplexity": ("Perplexity", "困惑度"),
    "mlm_accuracy": ("Masked-word accuracy", "掩码准确率"),
    "next_sentence_accuracy": ("Next-sentence accuracy", "下一句准确率"),
    "next_sentence_loss": ("Next-sentence loss", "下一句损失"),
    "sentence_order_accuracy": ("Sentence-order accuracy", "句序准确率"),
    "minimal_pairs": ("Minimal pairs", "最小对立对"),
    "score": ("Score", "得分"),
    # curves and costs
    "step": ("Step", "步"),
    "epoch": ("Epoch", "轮次"),
    "lr": ("Learning rate", "学习率"),
    "grad_norm": ("Gradient norm", "梯度范数"),
    "tokens": ("Tokens", "词元"),
    "tokens_per_second": ("Tokens a second", "每秒词元数"),
    "texts_per_second": ("Texts a second", "每秒文本数"),
    "memory_gb": ("Memory (GB)", "内存 (GB)"),
    "mask_rate": ("Mask rate", "掩码比例"),
    "seconds": ("Time", "用时"),
    "train_seconds": ("Training", "训练用时"),
    "ms_per_text": ("ms a text", "毫秒/条"),
    "megabytes": ("Size (MB)", "体积 (MB)"),
    "parameters": ("Parameters", "参数量"),
    "p_value": ("p-value", "p 值"),
    "seeds": ("Seeds", "种子数"),
    "seed": ("Seed", "种子"),
    "best_step": ("Best step", "最佳步"),
    "stopped": ("Why it stopped", "停止原因"),
    "temperature": ("Temperature", "温度"),
    "ece_before": ("Calibration error before", "校准前误差"),
    "ece_after": ("Calibration error after", "校准后误差"),
    # data
    "train": ("Training", "训练"),
    "dev": ("Development", "验证"),
    "test": ("Test", "测试"),
    "rows": ("Rows", "行数"),
    "rows_scored": ("Rows scored", "评估行数"),
    "labels_scored": ("Labels", "标签数"),
    "role": ("Used for", "用途"),
    "name": ("Name", "名称"),
    "label": ("Label", "标签"),
    "labels": ("Labels", "标签"),
    "gold": ("True", "真实"),
    "predicted": ("Predicted", "预测"),
    "suggested": ("Suggested", "建议"),
    "text": ("Text", "文本"),
    "text_b": ("Second text", "第二文本"),
    "question": ("Question", "问题"),
    "value": ("Value", "数值"),
    "line": ("Line", "行号"),
    "reason": ("Reason", "原因"),
    "note": ("Note", "备注"),
    "rows_gold": ("Rows", "行数"),
    "rows_predicted": ("Predicted", "预测行数"),
    "support": ("Rows", "行数"),
    "cut": ("Cut", "截去"),
    "duplicates": ("Duplicates", "重复文本"),
    "conflicts": ("Same text, other label", "文本相同而标签不同"),
    "overlap": ("Also in training", "与训练集重叠"),
    "dropped": ("Rows dropped", "丢弃的行"),
    "mean": ("Mean", "均值"),
    "median": ("Median", "中位数"),
    "longest": ("Longest", "最长"),
    "limit": ("Window", "窗口"),
    "documents": ("Documents", "文档"),
    "sentences": ("Sentences", "句子"),
    "tokens_seen": ("Tokens seen", "已见词元"),
    "unigram_entropy": ("Unigram entropy (nats)", "一元熵 (nats)"),
    "sha256": ("SHA-256", "SHA-256"),
    # environment
    "machine": ("Machine", "机器"),
    "versions": ("Versions", "版本"),
    "threads": ("Threads", "线程"),
    "precision_used": ("Precision used", "数值精度"),
    "device": ("Device", "设备"),
    "data": ("Data", "数据"),
    "preset": ("Preset", "预设"),
}

LANGUAGES = ("en", "zh")
_WORDS |= LOOKING
WORDS = {lang: {key: told[n] for key, told in _WORDS.items()} for n, lang in enumerate(LANGUAGES)}
NAMES = {lang: {key: told[n] for key, told in _NAMES.items()} for n, lang in enumerate(LANGUAGES)}


def words(lang: str) -> dict[str, str]:
    """The table of sentences of a language."""
    if lang not in WORDS:
        raise UserError(f"lang is {lang!r}; reports are written in en or zh. {suggest(lang, list(LANGUAGES))}")
    return WORDS[lang]


def name_of(key: str, lang: str) -> str:
    """A key in the reader's words; an unknown key has its underscores replaced."""
    words(lang)
    head, dot, rest = key.partition(" · ")
    return NAMES[lang].get(key) or (f"{NAMES[lang].get(head, head)}{dot}{rest}" if dot else key.replace("_", " "))
