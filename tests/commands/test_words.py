"""Sentences of the library in the words of the command line."""

import re

import hypothesis.strategies as st
from hypothesis import given

from dpswd.commands._words import in_options, in_options_of_fit

NAMES = st.from_regex(r"[a-z]{2,8}(_[a-z]{2,8})?", fullmatch=True)
VALUES = st.sampled_from(["", "3", "0.5", '"zero"', "'light'", "[(low, high), ...]", "None"])
PLAIN = st.sampled_from(["Expected numbers", "got none;", "pass it", "at a/b.pth", "of x, y"])


@given(name=NAMES, value=VALUES, before=PLAIN, after=PLAIN)
def test_an_argument_becomes_its_option(name, value, before, after):
    option = "--" + name.replace("_", "-")
    sentence = in_options(f"{before} {name}={value} ({option} X), {after}.")
    assert sentence == f"{before} {option} X, {after}."


@given(name=NAMES, before=PLAIN)
def test_a_name_becomes_the_option_of_that_name_alone(name, before):
    option = "--" + name.replace("_", "-")
    assert in_options(f"{before} {name} ({option}).") == f"{before} {option}."
    assert in_options(f"{before} {name} (--other).") == f"{before} {name} (--other)."


@given(name=NAMES, value=VALUES, before=PLAIN)
def test_options_of_fit_have_a_group(name, value, before):
    option = "--" + name.replace("_", "-")
    sentence = in_options_of_fit(f"{before} {name}={value} ({option}).")
    assert re.search(rf"--(data|privacy)\.{name}\.$", sentence)


def test_the_budget_is_named_by_its_options():
    assert in_options("use a smaller target_epsilon.") == "use a smaller --epsilon."
    assert in_options_of_fit("raise target_delta.") == "raise --privacy.target_delta."
    assert in_options_of_fit("got none; pass ckpt_path= (--ckpt_path).") == (
        "got none; pass --ckpt_path."
    )


@given(
    name=st.one_of(NAMES, st.sampled_from(["target_epsilon", "target_delta"])),
    group=st.sampled_from(["privacy", "data", "model.generator"]),
    value=VALUES,
    before=PLAIN,
)
def test_options_of_fit_that_have_a_group_stay(name, group, value, before):
    option = f"--{group}.{name}"
    for sentence in (
        f"{before} {name} ({option}).",
        f"{before} {name}={value} ({option}).",
        f"{before} {option}.",
    ):
        assert in_options_of_fit(sentence) == f"{before} {option}."
    two = f"{before} ({option} 1, {option})."
    assert in_options_of_fit(two) == two


def test_names_of_options_become_options_and_paths_stay():
    names = ["per_unit", "n", "batch_size"]
    assert in_options("Expected n >= 1, got n=0.", names) == "Expected -n >= 1, got 0."
    sentence = "Expected batch_size <= sample_size, got batch_size=9 and sample_size=4; use less."
    assert in_options(sentence, names) == (
        "Expected --batch-size <= sample_size, got --batch-size=9 and sample_size=4; use less."
    )
    for unchanged in (
        "Expected a file at runs/per_unit/a.csv.",
        "Expected a file at per_unit/a.csv.",
        "Expected a column of ['per_unit'].",
        "Expected n of them, got none.",
    ):
        assert in_options(unchanged, names) == unchanged
