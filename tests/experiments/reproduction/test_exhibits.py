from pathlib import Path

import pytest

from openrlhf_cov.experiments.reproduction.exhibits import ENTROPY_COEFS, FIGURES, KL_COEFS, TABLES, exhibit
from openrlhf_cov.experiments.reproduction.paper_commands import submission

ALL = {**{f"figure {n}": each for n, each in FIGURES.items()}, **{f"table {n}": each for n, each in TABLES.items()}}
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
RECIPES = {run.name: run.recipe for each in ALL.values() for run in each.runs if run.recipe}


def models(number: int) -> set[str]:
    return {run.recipe.variables["MODEL"] for run in FIGURES[number].runs if run.recipe}


def test_the_paper_has_fourteen_figures_and_two_tables():
    assert (list(FIGURES), list(TABLES)) == (list(range(1, 15)), [1, 2])
    assert exhibit(8, None) is FIGURES[8]
    assert exhibit(None, 2) is TABLES[2]


@pytest.mark.parametrize("name", ALL)
def test_an_exhibit_has_runs_at_both_scales_or_says_why_not(name):
    runs = ALL[name].runs
    assert any(run.recipe for run in runs)
    assert ALL[name].not_tiny or any(run.is_tiny for run in runs)


def test_a_name_is_one_run_at_either_scale():
    recipes, tiny = {}, {}
    for run in (run for each in ALL.values() for run in each.runs):
        assert recipes.setdefault(run.name, run.recipe) == run.recipe
        if run.is_tiny:
            assert tiny.setdefault(run.tiny_name, (run.lab, run.trainer)) == (run.lab, run.trainer)
    assert len(set(tiny.values())) == len(tiny)
    assert not any("qwen" in name for name in tiny)  # no Qwen trains there


def test_a_tiny_name_says_the_share_that_is_clipped_and_the_coefficient():
    runs = {run.tiny_name: run.lab for run in FIGURES[12].runs}
    # 50 times 2e-4, 4e-4, 5e-4 and 7e-4; times 100 the last is above the 5 % that the flag takes
    shares = ("0.01", "0.02", "0.025", "0.035")
    assert [name for name in runs if name.startswith("clip_cov")] == [f"clip_cov_{share}" for share in shares]
    assert all(lab[-1] == name.rpartition("_")[2] for name, lab in runs.items() if "cov" in name)


def test_the_models_of_section_2_2_and_of_appendix_d():
    assert models(3) == {
        *(f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B", "32B")),
        *("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Small-24B-Base-2501"),
        *("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B", "deepseek-ai/deepseek-math-7b-base"),
    }
    assert models(4) == models(3)
    assert models(14) == {f"Qwen/Qwen2.5-{size}-Instruct" for size in ("1.5B", "3B", "7B")}
    # appendix A: Eurus for Qwen and Mistral's 24B, GSM8K for the others
    eurus = {run.recipe.variables["MODEL"] for run in FIGURES[3].runs if run.recipe and "eurus" in run.recipe.data}
    assert eurus == {model for model in models(3) if "Qwen" in model or "24B" in model}


def test_programs_are_asked_for_programs():
    recipes = {run.recipe.variables["MODEL"]: run.recipe for run in FIGURES[4].runs if run.recipe}
    assert {recipe.data for recipe in recipes.values()} == {"eurus-2-code,acecode,kodcode"}
    assert all(recipe.template == recipe.variables["TEMPLATE"] for recipe in recipes.values())
    # ChatML for Qwen alone
    assert {model for model, recipe in recipes.items() if recipe.template == "qwen-code"} == models(3) & {
        f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B", "32B")
    }
    assert {recipe.template for recipe in recipes.values()} == {"qwen-code", "plain-code"}


def test_the_theorem_is_about_one_update_of_fresh_responses():
    (run,) = FIGURES[8].runs
    words = submission(SCRIPTS, run.recipe.script, {}, (*run.recipe.arguments, *run.recipe.flags))
    assert words[words.index("--sampling_max_staleness") + 1] == "0"
    last = len(words) - 1 - words[::-1].index("--train.batch_size")
    assert words[last + 1] == "2048"  # 256 prompts x 8


def test_the_swept_values():
    flags = {run.name: run.recipe.flags for n in (9, 10, 12) for run in FIGURES[n].runs if run.recipe}
    swept = [(each, value) for each in flags.values() for value in each[-1:]]
    assert {value for _, value in swept} == {*ENTROPY_COEFS, *KL_COEFS, *("4e-4", "5e-4", "7e-4"),
                                             *("0", "0.05", "0.1", "0.5")}  # fmt: skip
    # the scripts themselves have ratio 2e-4, and coefficient 1
    assert {"qwen2.5_7b_clip_cov", "qwen2.5_7b_kl_cov"} <= {run.name for run in FIGURES[12].runs}
    assert all("k3" in each for name, each in flags.items() if "reference" in name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_there(name):
    assert (SCRIPTS / RECIPES[name].script).is_file()
    assert (SCRIPTS / "layouts" / f"qwen2.5_{RECIPES[name].size}_colocated.flags").is_file()
