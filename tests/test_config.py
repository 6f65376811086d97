"""Settings: strict in, exact out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit import config
from bertkit.checkpoint.families import FAMILIES
from bertkit.config import PRESETS, Common, build, merged, option, parse_set, preset, read_toml, to_plain, to_toml
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.settings.pretrain import PretrainSettings

NAMES = sorted(path.stem for path in PRESETS.glob("*.toml"))


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = option(0.5, "A rate.")
    share: float = option(0.5, "A share.", at_least=0, at_most=1)
    unit: str = option("word", "A unit.", choices=("word", "token"))


@dataclass(frozen=True, kw_only=True)
class Example(Common):
    out: Path = option(help="Where to.")
    size: int = option(3, "How many.")
    name: str = option("x", "A name.")
    loud: bool = option(False, "Loud.")
    files: tuple[Path, ...] = option((), "Files.")
    numbers: tuple[float, ...] = option((), "Numbers.")
    note: str | None = option(None, "Perhaps.")
    folds: int = option(2, "Parts.", at_least=1)
    mood: str = option("", "A mood.", choices=("", "glad", "sad"))
    warmth: float = option(1.0, "Renamed.", aliases=("--heat-level",))
    inner: Inner = option(factory=Inner)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
paths = st.text("abc/é北 .'\"\\", min_size=1, max_size=12).map(Path)
examples = st.builds(
    Example,
    seed=st.integers(0, 2**32 - 1), out=paths, size=st.integers(-9, 9**12), name=texts, loud=st.booleans(),
    files=st.lists(paths, max_size=3).map(tuple),
    numbers=st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    note=st.none() | texts,
    inner=st.builds(Inner, rate=st.floats(allow_nan=False), unit=st.sampled_from(["word", "token"])),
)  # fmt: skip


@given(examples)
def test_settings_survive_run_toml_exactly(settings: Example) -> None:
    text = to_toml(to_plain(settings))
    assert build(Example, tomllib.loads(text)) == settings


def test_settings_survive_a_run_toml_on_disk(tmp_path: Path) -> None:
    wanted = Example(out=Path("ein Ordner/北"), name='say "hi"\n\ttab\\', numbers=(1e-12, 5.0), note="\x7f\x00")
    (tmp_path / "run.toml").write_text(to_toml(to_plain(wanted)), "utf-8")
    assert build(Example, read_toml(tmp_path / "run.toml")) == wanted


@pytest.mark.parametrize(
    "values, told",
    [
        ({"out": "x", "szie": 4}, "here: there is no setting 'szie'. Did you mean 'size'"),
        ({"out": "x", "inner": {"rat": 1}}, "here: inner: there is no setting 'rat'. Did you mean 'rate'"),
        ({"out": "x", "size": "4"}, "here: size must be a whole number, not '4'"),
        ({"out": "x", "size": 4.0}, "size must be a whole number, not 4.0"),
        ({"out": "x", "size": True}, "size must be a whole number, not True"),
        ({"out": "x", "loud": 1}, "loud must be true or false, not 1"),
        ({"out": "x", "name": 3}, "name must be text in quotes, not 3"),
        ({"out": 3}, "out must be a path, not 3"),
        ({"out": "x", "files": 3}, "files must be a list, not 3"),
        ({"out": "x", "numbers": ["a"]}, "numbers must be a number, not 'a'"),
        ({"out": "x", "inner": 3}, "inner is a section with its own keys, not 3"),
        ({"out": "x", "inner": {"unit": "wrod"}}, "unit is 'wrod'. Did you mean 'word'"),
        ({"out": "x", "device": "gpu"}, "device is 'gpu'"),
        ({}, "here: --out must be set"),
    ],
)
def test_a_wrong_setting_is_reported_with_place_value_and_fix(values: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        build(Example, values, "here")


def test_a_whole_number_will_do_for_a_number_and_dashes_for_underscores() -> None:
    settings = build(PretrainSettings, {"data": "store", "eval-every": 4, "minutes": 3})
    assert (settings.eval_every, settings.minutes, type(settings.minutes)) == (4, 3.0, float)


@pytest.mark.parametrize(
    "given_text, expected",
    [
        ("a=3", {"a": 3}), ("a.b.c=1.5", {"a": {"b": {"c": 1.5}}}), ("a=true", {"a": True}), ("a=word", {"a": "word"}),
        ('a="3"', {"a": "3"}), ("a=[1, 2]", {"a": [1, 2]}), ("a=", {"a": ""}), ("a=b=c", {"a": "b=c"}),
        ("a=runs/x y", {"a": "runs/x y"}), (" a = 3", {"a": 3}), ("a=1e-3", {"a": 0.001}),
    ],
)  # fmt: skip
def test_a_set_option_is_toml_or_a_bare_word(given_text: str, expected: dict) -> None:
    assert parse_set(given_text) == expected


@pytest.mark.parametrize("wrong", ["a", "=3", " =3", ""])
def test_a_set_option_without_key_or_value_is_reported(wrong: str) -> None:
    with pytest.raises(UserError, match="write KEY=VALUE"):
        parse_set(wrong)


@given(st.text(max_size=30))
def test_a_set_option_never_fails_badly(text: str) -> None:
    try:
        parse_set(text)
    except UserError as mistake:
        assert "KEY=VALUE" in str(mistake)


def test_layers_of_settings_merge_section_by_section() -> None:
    below = {"a": 1, "model": {"width": 2, "depth": 3}}
    assert merged(below, {"model": {"depth": 4}, "b-c": 5}) == {"a": 1, "b_c": 5, "model": {"width": 2, "depth": 4}}
    assert below["model"] == {"width": 2, "depth": 3}


@pytest.mark.parametrize(
    "content, told",
    [
        (b"a = ", "not valid TOML"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_not_toml_is_reported(content: bytes | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"run\.toml: .*{told}"):
        read_toml(path)


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(tmp_path / "a.toml") == {"a": 1}


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_writes_out_every_number_and_makes_a_model(name: str) -> None:
    table = preset(name)
    settings = build(PretrainSettings, merged(table, {"data": "store"}), name)
    assert settings.family in FAMILIES
    unwritten = {"vocabulary", "padding", "local_rotary_base", "summary_norm", "token_transform"}
    unwritten |= {
        "task_types",
        "rms_norm",
        "dense_bias",
        "key_heads",
        "bias_buckets",
    }  # parts of families without a preset
    unwritten |= {"relative_span", "relative_limit", "relative_shared", "relative_norm"}
    assert {f.name for f in fields(Config)} - set(table["model"]) <= unwritten
    for section in ("masking", "loop"):
        assert table[section], section
    tiny = replace(
        settings.model, vocabulary=30, width=16, heads=2, inner=16, depth=2,
        unique_layers=min(settings.model.unique_layers, 2),
        embedding_width=min(settings.model.embedding_width, 16), positions=16 * bool(settings.model.positions),
        max_tokens=8,
    )  # fmt: skip
    heads = {"replaced": 1} if settings.objective == "replaced" else {"mlm": 0}
    assert sum(p.numel() for p in Model(tiny, heads).parameters()) > 0
    longest = max(length for _, length in settings.length_plan)
    assert longest <= settings.model.max_tokens


def test_an_unknown_preset_is_reported_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"no preset 'bert-mni'\. Did you mean 'bert-mini'"):
        preset("bert-mni")
    with pytest.raises(UserError, match="no preset"):
        preset("../../secret")


@pytest.mark.parametrize(
    "values, told",
    [
        ({"folds": 0}, "here: --folds is 0; it must be at least 1."),
        ({"seed": -1}, "here: --seed is -1; it must be from 0 to 4294967295."),
        ({"inner": {"share": 1.5}}, "here: inner: share is 1.5; it must be from 0 to 1."),
        ({"inner": {"share": float("nan")}}, "share is nan; it must be from 0 to 1."),
        ({"inner": {"share": float("-inf")}}, "share is -inf; it must be from 0 to 1."),
    ],
)
def test_a_number_out_of_its_range_is_reported_with_the_range(values: dict, told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        build(Example, {"out": "x", **values}, "here")


def test_the_ends_of_a_range_belong_to_it() -> None:
    made = build(Example, {"out": "x", "folds": 1, "inner": {"share": 1}})
    assert (made.folds, made.inner.share) == (1, 1.0)
    assert build(Example, {"out": "x", "inner": {"share": 0}}).inner.share == 0.0


def test_a_setting_is_found_by_its_alias() -> None:
    for key in ("warmth", "heat_level", "heat-level"):
        assert build(Example, {"out": "x", key: 3}).warmth == 3.0


def test_a_choice_that_is_empty_is_not_shown_among_what_there_is() -> None:
    with pytest.raises(UserError, match=re.escape("mood is 'bogus'. Choose from: glad, sad.")):
        build(Example, {"out": "x", "mood": "bogus"})


def numbers_of(settings: type) -> Iterator[tuple[type, Field]]:
    """Every number of a settings class and of its sections that is an option."""
    kinds = config.hints(settings)
    for f in fields(settings):
        if is_dataclass(kinds[f.name]):
            yield from numbers_of(kinds[f.name])
        elif kinds[f.name] in (int, float) and "help" in f.metadata:
            yield settings, f


def test_every_number_of_every_command_has_a_range_and_a_default_within_it() -> None:
    from bertkit.commands import COMMANDS, find

    for verb in COMMANDS:
        for settings, f in numbers_of(find(verb).Settings):
            where = f"{verb}: {settings.__name__}.{f.name}"
            assert f.metadata["at_least"] is not None, f"{where} has no smallest number"
            assert f.metadata["at_least"] <= f.default, where
            assert f.metadata["at_most"] is None or f.default <= f.metadata["at_most"], where


def test_hints_resolve_for_every_command() -> None:
    from bertkit.commands import COMMANDS, find

    for verb in COMMANDS:
        settings = find(verb).Settings
        assert set(config.hints(settings)) >= {f.name for f in fields(settings)}
        assert {"seed", "threads", "device", "precision"} <= {f.name for f in fields(settings)}


def test_older_and_usual_names_of_a_setting_are_understood():
    from bertkit.settings.compress import DistillSettings
    from bertkit.settings.finetune import FinetuneSettings

    usual = {"learning_rate": 0.5, "batch-size": 7, "max_length": 9, "output_dir": "o", "other_settings": True}
    found = config.build(FinetuneSettings, {"task": "classify", "train": "t", **usual})
    assert (found.lr, found.batch, found.max_tokens, found.out) == (0.5, 7, 9, Path("o"))
    assert found.allow_changed_settings
    old = config.build(DistillSettings, {"teacher": "t", "train": "t", "heat": 3.0, "hard": 0.25})
    assert (old.temperature, old.alpha) == (3.0, 0.25)
    with pytest.raises(UserError, match="heat and temperature are the same setting"):
        config.build(DistillSettings, {"teacher": "t", "train": "t", "heat": 3.0, "temperature": 2.0})


def test_other_names_hide_no_setting_of_their_own():
    from bertkit.commands import COMMANDS, find

    for verb in COMMANDS:
        settings = find(verb).Settings
        names = {f.name for f in fields(settings)}
        aliases = [alias for f in fields(settings) for alias in config.aliases_of(f)]
        assert len(set(aliases)) == len(aliases) and not names & set(aliases), verb
