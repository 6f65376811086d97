"""Intervals and differences: they hold the truth as often as they say."""

import numpy as np
import pytest
from scipy import stats

from bertkit import metrics
from bertkit.errors import UserError

LABELS = ["no", "perhaps", "yes"]


def noisy(gold: list, wrong: float, seed: int) -> list:
    random = np.random.default_rng(seed)
    return [random.choice(gold) if random.random() < wrong else one for one in gold]


def labels_of(rows: int, seed: int = 0) -> list[str]:
    return np.random.default_rng(seed).choice(LABELS, rows, p=[0.5, 0.3, 0.2]).tolist()


def test_a_95_percent_interval_holds_the_truth_about_95_times_in_100() -> None:
    random, held = np.random.default_rng(0), 0
    for seed in range(300):
        right = random.random(200) < 0.8
        low, high = metrics.bootstrap(metrics.choice, [1] * 200, right.astype(int), seed=seed, resamples=400)[
            "accuracy"
        ]
        held += low <= 0.8 <= high
    assert 0.91 <= held / 300 <= 0.985


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_of_an_accuracy_is_that_of_the_binomial_distribution(level: float) -> None:
    right = [1] * 3200 + [0] * 800
    low, high = metrics.bootstrap(metrics.choice, [1] * 4000, right, level=level, resamples=20_000)["accuracy"]
    expected = stats.binom.ppf([(1 - level) / 2, (1 + level) / 2], 4000, 0.8) / 4000
    assert (low, high) == pytest.approx(tuple(expected), abs=6e-4)


def test_the_interval_of_a_rank_correlation_holds_the_truth() -> None:
    random, held, pearson = np.random.default_rng(1), 0, 0.6
    truth = 6 / np.pi * np.arcsin(pearson / 2)  # Spearman's of two normal variables
    for seed in range(150):
        x, y = random.multivariate_normal([0, 0], [[1, pearson], [pearson, 1]], 120).T
        low, high = metrics.bootstrap(metrics.regression, x, y, seed=seed, resamples=300)["spearman"]
        held += low <= truth <= high
    assert 0.89 <= held / 150 <= 0.99


SENTENCES = [["O", "B-PER", "I-PER", "O"], ["B-LOC", "O", "O"], ["O", "O"]] * 30
CASES = {
    "classification": (metrics.classification, labels_of(150), noisy(labels_of(150), 0.4, 1), {"labels": LABELS}),
    "multi_label": (
        metrics.multi_label,
        [{one} for one in labels_of(150)],
        [{one, "yes"} for one in noisy(labels_of(150), 0.4, 1)],
        {"labels": LABELS},
    ),
    "regression": (metrics.regression, list(range(90)), noisy(list(range(90)), 0.4, 1), {}),
    "tagging": (metrics.tagging, SENTENCES, [noisy(tags, 0.3, seed) for seed, tags in enumerate(SENTENCES)], {}),
    "answers": (metrics.answers, [["black cat"], []] * 40, noisy(["cat", ""] * 40, 0.5, 2), {}),
    "choice": (metrics.choice, [1, 0, 2] * 30, noisy([1, 0, 2] * 30, 0.5, 3), {}),
    "minimal_pairs": (metrics.minimal_pairs, list(range(60)), noisy(list(range(60)), 0.9, 4), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_array_resampling_agrees_with_calling_the_metric_on_resampled_lists(name: str) -> None:
    metric, gold, predicted, settings = CASES[name]
    fast = metrics.bootstrap(metric, gold, predicted, resamples=2000, **settings)
    slow = metrics.bootstrap(lambda *lists: metric(*lists, **settings), gold, predicted, resamples=600, seed=1)
    point = metric(gold, predicted, **settings)
    assert list(fast) == list(slow) == list(point)
    for key, (low, high) in fast.items():
        assert low - 1e-9 <= point[key] <= high + 1e-9
        assert slow[key] == pytest.approx((low, high), abs=0.15 * (high - low) + 1e-9)


def test_auc_gets_an_interval_too_even_when_some_resamples_lack_a_label() -> None:
    gold = ["no"] * 30 + ["yes"] * 2
    scores = np.linspace(0, 1, 32)
    low, high = metrics.bootstrap(metrics.classification, gold, gold, labels=["no", "yes"], scores=scores)["auc"]
    assert low == high == 1


def test_the_same_seed_gives_the_same_interval_and_a_wider_level_a_wider_one() -> None:
    metric, gold, predicted, settings = CASES["classification"]
    first, again = (metrics.bootstrap(metric, gold, predicted, seed=5, **settings) for _ in range(2))
    wide = metrics.bootstrap(metric, gold, predicted, seed=5, level=0.99, **settings)
    assert first == again
    assert all(wide[key][0] < low < high < wide[key][1] for key, (low, high) in first.items())


def test_accuracies_are_compared_with_mcnemars_exact_test() -> None:
    gold = ["yes"] * 50
    a, b = ["yes"] * 40 + ["no"] * 10, ["yes"] * 25 + ["no"] * 20 + ["yes"] * 5
    found = metrics.paired_difference(gold, a, b, metrics.classification, labels=["no", "yes"])
    assert found.difference == pytest.approx(0.2)
    assert found.p_value == pytest.approx(stats.binomtest(15, 20).pvalue)
    assert found.low < 0.2 < found.high


@pytest.mark.parametrize("name", sorted(set(CASES) - {"minimal_pairs"}))
def test_a_system_does_not_differ_from_itself_and_differs_from_the_truth(name: str) -> None:
    metric, gold, predicted, settings = CASES[name]
    perfect = [options[0] if options else "" for options in gold] if name == "answers" else gold
    assert metrics.paired_difference(gold, predicted, predicted, metric, **settings) == (0, 0, 0, 1)
    difference, low, high, p_value = metrics.paired_difference(gold, perfect, predicted, metric, **settings)
    assert 0 < low <= difference <= high and p_value < 0.01
    assert metrics.paired_difference(gold, predicted, perfect, metric, **settings).difference == -difference


def test_chance_differences_are_called_significant_about_as_often_as_they_should() -> None:
    random, alarms = np.random.default_rng(2), 0
    for seed in range(150):
        gold = random.normal(size=60)
        a, b = (gold + random.normal(size=60) for _ in range(2))
        alarms += metrics.paired_difference(gold, a, b, metrics.regression, seed=seed, resamples=199).p_value <= 0.1
    assert 0.03 <= alarms / 150 <= 0.18


def test_systems_that_say_different_tags_can_be_compared() -> None:
    gold = [["DET", "NOUN"], ["VERB", "NOUN"]] * 10
    a, b = [["DET", "X"], ["VERB", "NOUN"]] * 10, [["Y", "Z"], ["W", "V"]] * 10
    expected = metrics.tagging(gold, a)["macro_f1"] - metrics.tagging(gold, b)["macro_f1"]
    found = metrics.paired_difference(gold, a, b, metrics.tagging, name="macro_f1")
    assert found.difference == pytest.approx(expected)


def test_scores_of_both_systems_and_metrics_of_ones_own_can_be_compared() -> None:
    gold = ["no", "yes"] * 40
    good, poor = np.tile([0.1, 0.9], 40), np.random.default_rng(0).random(80)
    found = metrics.paired_difference(
        gold, gold, gold, metrics.classification, name="auc", labels=["no", "yes"], scores=(good, poor)
    )
    assert found.low > 0 and found.p_value < 0.01

    def share_of_yes(truth: list[str], said: list[str]) -> dict[str, float]:
        return {"yes": sum(one == "yes" for one in said) / len(said)}

    own = metrics.paired_difference(gold, ["yes"] * 80, gold, share_of_yes, resamples=200)
    assert own.difference == 0.5 and own.p_value < 0.01


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"level": 95}, "level=95.*0.95"),
        ({"resamples": 0}, "resamples=0"),
        ({"name": "acuracy"}, "'acuracy'.*'accuracy'"),
        ({"b": ["no", "yse"]}, "Row 2.*'yse'"),
        ({"b": ["no"]}, "2 gold rows and 1 predicted"),
    ],
)
def test_mistakes_in_a_comparison_are_reported(changed: dict, told: str) -> None:
    asked = {"a": ["no", "yes"], "b": ["no", "no"], "metric": metrics.classification, "labels": ["no", "yes"]} | changed
    with pytest.raises(UserError, match=f"(?s){told}"):
        metrics.paired_difference(["no", "yes"], **asked)
