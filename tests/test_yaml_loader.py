"""Numbers in YAML mean what they say, and nothing else becomes one."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from replay.experiment import PolicyChoice
from scheduler.config.box import load_config
from scheduler.yaml_loader import Loader, load
from workers.model_yaml import parse_model_file

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(number=FINITE, form=st.sampled_from(["{!r}", "{:e}", "{:g}", "{:.0e}", "+{:e}"]))
def test_each_way_to_write_a_number_is_read(number, form):
    text = form.format(abs(number) if form.startswith("+") else number)
    assert yaml.load(text, Loader) == float(text)


@given(text=st.text("0123456789eE+-._xab", max_size=8))
def test_all_else_is_read_as_before(text):
    try:
        before = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    read = yaml.load(text, Loader)
    assert read == before or (isinstance(before, str) and read == float(before))


def test_costs_tolerances_and_options_may_have_an_exponent(tmp_path):
    file = tmp_path / "edge.yaml"
    file.write_text(
        "cloud: [{name: eu, url: 'grpc://h:1', cost_per_request: 2e-5}]\ndrain_s: 1E1\n"
    )
    config = load_config(file)
    assert (config.cloud[0].cost_per_request, config.drain_s) == (2e-5, 10)
    model = parse_model_file("variants: {v: {file: a.onnx}}\ntolerance: {rtol: 1e-3, atol: 1e-5}")
    assert model.tolerance is not None
    assert model.tolerance.rtol == pytest.approx(1e-3)
    assert dict(PolicyChoice.parse("goodput?scale=4e-1").options) == {"scale": 0.4}


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "b: {a: 1, 'a': 1}",
        "[{1: x, 2: y, 1: z}]",
        "[{1: x, 0x1: y}]",
        "{yes: 1, true: 2}",
    ],
)
def test_a_key_stands_once(text):
    with pytest.raises(yaml.YAMLError, match="appears twice"):
        load(text)


def test_what_is_merged_into_a_mapping_is_not_given_twice():
    text = "a: &a {p: 1, q: 1}\nb: &b {<<: *a, q: 2}\nc: {<<: [*b, *a], p: 3}"
    assert load(text) == yaml.safe_load(text)
    assert load(text)["c"] == {"p": 3, "q": 2}
    loop = load("a: &a {b: *a}")
    assert loop["a"]["b"] is loop["a"]
