"""Every flag of OpenRLHF, with its name, default, type and choices, and our own beside them."""

import argparse
from dataclasses import fields

import pytest
from upstream_flags import declared_by_upstream

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer.flags.parser import GROUPS, CovArgumentParser
from openrlhf_cov.trainer.flags.ranges import INTERVALS, POSITIVE, RANGES

OUR_FIELDS = [field for config in GROUPS.values() for field in fields(config)]


def flags(parser):
    """{first option: everything that argparse knows about the flag}. Two options may have one destination."""
    return {
        action.option_strings[0].removeprefix("--"): {
            "dest": action.dest,
            "options": action.option_strings,
            "default": action.default,
            "type": action.type,
            "choices": action.choices,
            "nargs": action.nargs,
            "const": action.const,
            "required": action.required,
            "kind": type(action),
        }
        for action in parser._actions
    }


@pytest.fixture(scope="module")
def upstream_flags():
    declared = flags(declared_by_upstream())
    declared["logger.wandb.run_name"].pop("default")  # the time of day
    return declared


@pytest.fixture(params=[False, True], ids=["gpu_host", "cpu_host"])
def our_flags(request, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: request.param)
    return request.param, flags(CovArgumentParser())


def test_every_upstream_flag_is_ours_unchanged(upstream_flags, our_flags):
    on_cpu, ours = our_flags
    changed = {
        (dest, key): ours[dest][key]
        for dest, flag in upstream_flags.items()
        for key in flag
        if ours[dest][key] != flag[key]
    }
    types = ["bf16", "fp16", "fp32"]
    expected = {("ds.param_dtype", "choices"): types, ("ds.grad_accum_dtype", "choices"): types}
    if on_cpu:
        expected |= {(dest, "default"): value for dest, value in cpu_host.FLAG_DEFAULTS.items()}
    assert changed == expected


def test_our_own_flags_are_the_fields_of_the_config(upstream_flags, our_flags):
    _, ours = our_flags
    assert ours.keys() - upstream_flags.keys() == {"preset"} | {
        field.metadata["flag"] or field.name for field in OUR_FIELDS
    }


@pytest.mark.parametrize("field", OUR_FIELDS, ids=lambda field: field.name)
def test_a_flag_has_the_default_of_its_field(our_flags, field):
    flag = our_flags[1][field.metadata["flag"] or field.name]
    assert flag["default"] == field.default
    assert flag["options"] == [f"--{field.metadata['flag'] or field.name}"]
    if isinstance(field.default, bool):
        assert flag["kind"] is argparse._StoreTrueAction
    else:
        if field.metadata["scheduled"]:
            assert [flag["type"](text) for text in ("0.5", "1:2:3")] == [0.5, Schedule(1.0, 2.0, 3)]
        else:
            one = field.default[0] if isinstance(field.default, tuple) else field.default
            assert flag["type"] is (float if one is None else type(one))
        assert flag["choices"] == field.metadata["choices"]


def test_help_shows_every_flag(our_flags, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: our_flags[0])
    parser = CovArgumentParser()
    text = parser.format_help()  # a lone percent sign in a help text would raise
    assert all(option in text for flag in our_flags[1].values() for option in flag["options"])


LEFT_TO_UPSTREAM = {
    *("local_rank", "critic.freezing_steps", "data.dataloader_num_workers", "data.max_images_per_prompt"),
    *("actor.muon.ns_steps", "critic.muon.ns_steps"),  # which DeepSpeed ignores
}


def test_every_number_of_upstream_has_a_range(upstream_flags):
    numbers = {dest for dest, flag in upstream_flags.items() if flag["type"] in (int, float)}
    assert sorted((*POSITIVE, *INTERVALS, *RANGES)) == sorted(numbers - LEFT_TO_UPSTREAM)
