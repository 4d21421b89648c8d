"""A run on a parquet file in verl's form, whose prompts need an argument of the chat template."""

import json
import shutil

import datasets
import pytest

pytestmark = pytest.mark.e2e

# Without the argument ``bare`` the model is asked for another sum than that of the label, which is at least 44: no
# response is correct then.
TEMPLATE = "{% if bare %}{{ messages[0].content }}{% else %}11+11={% endif %}"


def test_rollouts_and_the_evaluation_of_a_run_have_the_arguments(task, run_trainer, ray, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(task.model, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    rows = [
        {
            "prompt": [{"role": "user", "content": row["input"]}],
            "reward_model": {"style": "rule", "ground_truth": row["label"]},
        }
        for row in map(json.loads, task.train.read_text().splitlines())
    ]
    data = tmp_path / "train.parquet"
    datasets.Dataset.from_list(rows).to_parquet(data)
    flags = task.flags(tmp_path / "run")
    changes = {
        "--actor.model_name_or_path": str(model),
        "--data.prompt_dataset": str(data),
        "--data.input_key": "prompt",
        "--data.label_key": "reward_model.ground_truth",
    }
    flags = [changes.get(flags[place - 1], word) for place, word in enumerate(flags)]
    flags += ["--data.apply_chat_template", "--rollout_limit", "1", "--eval.dataset", str(data), "--eval.steps", "1"]
    run = run_trainer([*flags, "--data.chat_template_kwargs", '{"bare": true}'], tmp_path / "run", ray)
    evaluated = json.loads((tmp_path / "run" / "eval.jsonl").read_text().splitlines()[0])
    assert min(run.metrics[0]["reward"], evaluated["eval_default_pass1"]) > 0.1
