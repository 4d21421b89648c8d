"""What each command refuses: one line with the flag and its value, exit status 2, and no file is written.

The rows of the trainer are in test_train_flags.py and test_train_inputs.py, those of a study in test_study.py.
"""

import json
import shlex

import pytest

from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig
from openrlhf_cov.experiments.tiny_task.task_files import TASK_FILES, TaskSettings, recorded_settings
from openrlhf_cov.rewards.limits import REWARD_TOKEN

pytestmark = pytest.mark.usefixtures("quiet_engines")

# Commands start in a folder with these files; a row is the rest of the command line and what its one line contains.
FILES = {
    "file": '{"step": 1}\n',
    "notes/README.md": "# Notes\nmine\n",
    "notes/report.html": "mine",
    "notes/manifest.json": "mine",
    "notes/train.jsonl": "mine",
    "broken/metrics.jsonl/x": "",
    "run/metrics.jsonl": "".join(
        json.dumps({"step": n, "entropy/mean": 1 / n, "reward": n / 50}) + "\n" for n in range(1, 31)
    ),
    "far/third/metrics.jsonl": '{"step": 1, "reward": 0.5, "entropy/mean": 1.0}\n',
    "unknown.csv": "step,foo,bar\n1,2,3\n",
    "twice.csv": "step,actor/entropy,actor/entropy\n1,0.5,0.7\n",
    "verl.csv": "step,actor/entropy,critic/score/mean\n1,0.5,0.5\n",
    "rows.jsonl": '{"response": "so \\\\boxed{5}", "answer": "5", "prompt": "?"}\n',
    "no_key.jsonl": "{}\n",
    "cut.jsonl": '{"response": "a", "answer": "5"}\n{\n',
    "number.jsonl": '{"response": 5, "answer": "5"}\n',
    "no_label.jsonl": '{"response": "a", "answer": ""}\n',
    "bad_label.jsonl": '{"response": "a", "answer": "\\\\frac{1}{2"}\n',
    "no_rows.jsonl": "\n",
    "source.jsonl": '{"response": "1", "answer": "1", "source": 3}\n',
    "surrogate.jsonl": '{"response": "1", "answer": "1", "source": "\\ud800"}\n',
    "own.jsonl": '{"id": "p0", "problem": "Find 1+1.", "answer": "2", "source": "math/sums"}\n',
    "made/train.jsonl": '{"id": "p0", "prompt": "Find 1+1.", "answer": "2", "source": "math/sums"}\n',
    "made/manifest.json": '{"openrlhf_cov": "0"}',
    "cut_lab/lab.json": '{"steps": [[',
    "blank.token": " \n",
    "comma.token": "a,b",
    "sums.jsonl": '{"id": "p0", "problem": "1 - 1 ?", "answer": "0", "source": "math"}\n',
    **{f"half_task/{name}": "" for name in TASK_FILES if name != "model/model.safetensors"},
    **{f"task/{name}": "" for name in TASK_FILES},
    "task/train.jsonl": '{"input": "1+1=", "label": "2"}\n' * 95,
    "task/task.json": json.dumps(
        {"task": "tiny_addition", "settings": recorded_settings(TaskSettings(seed=1), BasePolicyConfig())}
    ),
    "200-steps/on_policy/lab.json": '{"steps": 7}',
    "data/eurus-difficult.jsonl": "",
    "recorded/step_000001.safetensors": "",
}
LONG = "n" * 300
REPORT = "run --export law.json"
PREPARE = "--dataset own.jsonl --output new"
EVALUATE = "--model tiny --base_url {url} --benchmarks sums.jsonl --output new --temperature 0.6 --samples 3"
BY_MICRO_BATCH = "--method kl_cov --cov_scope micro_batch"
LAB = "--output new --base_policies base"

REFUSED = {
    "compare": [
        ("grpo", ["one run alone compares with nothing; name a second one, or --against"]),
        ("grpo kl_cov kl_cov/../grpo", ["grpo is given twice"]),
        ("grpo no/such", ["no/such is not the folder of an evaluation: run.json: No such file or directory"]),
        ("grpo cut", ["cut: the run is not finished: 15 of 16 responses are missing"]),
        ("grpo kl_cov --metric best", ["--metric best: a metric is avg or, for example, pass@8"]),
        ("grpo kl_cov --metric pass@3", ["--metric pass@3: no benchmark of these runs has 3 samples"]),
        ("grpo --against paper-7b --metric pass@2", ["the paper gives no pass@2"]),
        ("grpo kl_cov --json no/such/file", ["--json no/such/file: there is no folder no/such"]),
        ("grpo kl_cov --json notes/README.md", ["--json notes/README.md", "not of this command"]),
        ("grpo kl_cov --grader published", ["grpo: aime24 was graded by strict alone; `"]),
    ],
    "report": [
        # Places are checked before runs are read.
        ("nowhere --output file", ["--output file: file is a file; give a folder"]),
        ("nowhere --output file/x/y", ["--output file/x/y: ", "/file is a file; give a folder"]),
        ("nowhere --output notes", ["--output notes/report.html", "not of this command; give another place"]),
        ("nowhere --export notes", ["--export notes is a folder; give a file"]),
        ("nowhere --export file", ["--export file: this file is there and not of this command"]),
        ("nowhere --export file/x", ["--export file/x: there is no folder file; make it, or give another file"]),
        ("run far/third", ["the runs are in different folders", "--output DIR"]),
        (f"{REPORT} --forecast 1", ["--forecast 1: "]),
        ("run --output new --formats pdf", ["--formats pdf: "]),
        (f"{REPORT} --metric rewards", ["--metric rewards: did you mean reward? "]),
        (f"{REPORT} --size run=many", ["--size run=many: "]),
        (f"{REPORT} --size 7e9", ["--size 7e9: "]),
        (f"{REPORT} --size run=1e6 run=2e6", ["--size run is given twice"]),
        (f"{REPORT} --size rum=7e9", ["--size rum: did you mean run? "]),
        (f"{REPORT} --reward_max nan", ["--reward_max nan: "]),
        (f"{REPORT} --extrapolate 7e9", ["--extrapolate 7e+09 needs the sizes of the runs: --size RUN=N"]),
        (f"{REPORT} --size run=7e9 --extrapolate -1", ["--extrapolate -1: "]),
        (f"{REPORT} --mapping ver", ["--mapping ver: "]),
        (f"{REPORT} --mapping entropy=", ["--mapping entropy=: "]),
        # Flags that nothing would read.
        (f"{REPORT} --mapping verl", ["--mapping verl has no effect: the runs have a metrics.jsonl"]),
        (
            "verl.csv --mapping entropy=actor/entropy entropy/mean=critic/score/mean --export law.json",
            ["--mapping entropy/mean=critic/score/mean: entropy/mean is mapped to actor/entropy as well"],
        ),
        (f"{REPORT} --formats svg", ["--formats has no effect with --export alone", "add --output"]),
        (f"{REPORT} --no_page", ["--no_page has no effect with --export alone"]),
        ("twice.csv --export law.json", ["twice.csv: two columns are called 'actor/entropy'; rename one of them"]),
        ("unknown.csv --export law.json", ["unknown.csv: none of its columns is known, bar, foo; map them"]),
        ("verl.csv --mapping trl --export law.json", ["none of its columns is known, actor/entropy, critic/score/"]),
    ],
    "watch": [
        ("none --once", ["none does not exist; name the folder of a run, its --ckpt.output_dir"]),
        ("run", ["add --once"]),
        ("run --once --interval 0", ["--interval 0: "]),
        ("run --once --interval nan", ["--interval nan: "]),
        ("run --once --steps 0", ["--steps 0: "]),
        ("broken --once", ["broken/metrics.jsonl cannot be read (Is a directory)"]),
    ],
    "grade": [
        ("no_key.jsonl", ["no_key.jsonl, line 1 has no key 'response'; it has none", "--response_key"]),
        ("cut.jsonl", ["cut.jsonl, line 2: not JSON"]),
        ("number.jsonl", ["line 1: 'response' is int, not a string"]),
        ("no_label.jsonl", ["line 1: the label '': a label is a string that is not empty"]),
        ("bad_label.jsonl", ["does not even equal itself"]),
        ("no_rows.jsonl", ["no_rows.jsonl has no rows"]),
        ("missing.jsonl", ["missing.jsonl", "cannot be read"]),
        ("source.jsonl --reward_source row", ["source.jsonl, line 1"]),
        ("surrogate.jsonl --reward_source row", ["surrogate.jsonl, line 1"]),
        ("rows.jsonl --output rows.jsonl", ["--output rows.jsonl is the file of the responses"]),
        ("rows.jsonl --output notes/README.md", ["--output notes/README.md", "not of this command"]),
        ("rows.jsonl --compare --reward_grader published", ["--compare grades by both graders; drop --reward_grader"]),
        # Settings that the rule does not read, and settings of a training.
        ("rows.jsonl --code_timeout 9", ["--code_timeout only applies to --reward_source code or row, got math"]),
        ("rows.jsonl --reward_source gsm8k --reward_grader published", ["--reward_grader only", "got gsm8k"]),
        ("rows.jsonl --reward_source code --reward_format any", ["--reward_format only applies to", "got code"]),
        ("rows.jsonl --compare --reward_source choice", ["--compare: by --reward_source choice both graders"]),
        ("rows.jsonl --reward_incorrect -1", ["--reward_incorrect -1: unknown flag"]),
        ("rows.jsonl --reward_skip_bad_labels", ["--reward_skip_bad_labels: unknown flag"]),
        ("rows.jsonl --prompt_key asked", ["line 1 has no key 'asked'; it has "]),
        ("rows.jsonl --thinking_markers '<a>' '<a>'", ["'<a>' '<a>': the two markers must be different"]),
    ],
    "prepare": [
        (f"{PREPARE} --eval_ngram 20", ["--eval_ngram needs --eval_dir, a folder of evaluation sets"]),
        (f"{PREPARE} --eval_ngram -1", ["--eval_ngram -1: must be a number of words of at least 1, or 0 for off"]),
        (f"{PREPARE} --eval_dir no/such", ["--eval_dir no/such: no *.jsonl files there"]),
        (f"{PREPARE} --dataset mat", ["--dataset mat: no such file or dataset; did you mean math?"]),
        (f"{PREPARE} --output cut_lab", ["--output cut_lab is not empty and holds no manifest.json"]),
        (f"{PREPARE} --output notes", ["--output notes/manifest.json", "not of this command"]),
        (f"{PREPARE} --output file", ["--output file is a file; choose a folder"]),
        (f"{PREPARE} --output file/x", ["--output file/x: ", "file is a file; give a folder"]),
        # A file and a named set have no splits, and only named sets are in --data_dir.
        (f"{PREPARE} --split test", ["--split test has no effect on files and named sets"]),
        (f"{PREPARE} --subset main", ["--subset main has no effect on files and named sets"]),
        (f"{PREPARE} --data_dir notes", ["--data_dir notes has no effect: no input is one of dapo-math-17k, "]),
        # With the right key the command could read and replace its own output.
        ("--dataset made/train.jsonl --problem_key prompt --output made", ["--output made is the folder of the"]),
    ],
    "methods": [
        ("kl_cov,clip_cov", ["kl_cov,clip_cov: this command describes one method; name one of them"]),
        ("kl-cov", ["no method is called 'kl-cov'; did you mean kl_cov?"]),
        ("xyz", ["no method is called 'xyz'; choose from"]),
    ],
    "lab": [
        (f"{LAB} --steps 0", ["--steps 0: must be at least 1"]),
        (f"{LAB} --train.micro_batch_size 200", ["--train.micro_batch_size 200: an optimizer step has 64 samples"]),
        (f"{LAB} --dump_dir recorded", ["--dump_dir recorded holds recorded rollouts of another run"]),
        (f"{LAB} --method none --cov_type kl_cov", ["--cov_type kl_cov", "--method none", "drop one"]),
        (f"{LAB} --updates 3", ["--updates 3: must divide the 512 samples"]),
        (f"{LAB} --rollout.n_samples_per_prompt 1", ["--rollout.n_samples_per_prompt 1: must be at least 2"]),
        (f"{LAB} --cov_type kl_cov --kl_cov_ratio 0.2", ["--kl_cov_ratio"]),
        # A command has one correct response, so all correct responses have the same weight.
        (f"{LAB} --method ucpo", ["--method ucpo has no effect with --task commands", "use --task shortcut"]),
        # The rewards of a replay are recorded.
        (f"{LAB} --random_reward --replay_dir notes", ["--random_reward has no effect with --replay_dir"]),
        # 64 prompts x 8 responses / 8 updates are 64 samples of an update.
        (f"{LAB} {BY_MICRO_BATCH}", ["--train.micro_batch_size 0: one micro-batch has all 64 samples", "1 to 63"]),
        (f"{LAB} {BY_MICRO_BATCH} --train.micro_batch_size 64", ["--cov_scope micro_batch has no effect", " 64: "]),
        (f"{LAB} --method nonsense", ["--method nonsense"]),
        (f"{LAB} --cov_type kl_cov --actor.eps_clip_low_high 0.2 0.2", ["which has no PPO clip"]),
        (f"{LAB} --method prime", ["--method prime needs a process reward model, which the lab does not have"]),
        (f"{LAB} --task sums", ["--task sums: must be one of commands, "]),
        (f"{LAB} --train.seed -1", ["--train.seed -1: must be a number from 0 to 2^31 - 1"]),
        (f"{LAB} --test_samples 99999999999", ["--test_samples 99999999999: must be a number from 0"]),
        (f"{LAB} --threads 0", ["--threads 0: must be a number from 1 to 1024"]),
        (f"{LAB} --actor.adam.lr nan", ["--actor.adam.lr "]),
        (f"{LAB} --actor.adam.lr 1e38", ["--actor.adam.lr "]),
        (f"{LAB} --actor.entropy_coef inf", ["--actor.entropy_coef inf: must be a finite number"]),
        (f"{LAB} --algo.kl.init_coef nan", ["--algo.kl.init_coef nan: must be a finite number of at least 0"]),
        (f"{LAB} --actor.eps_clip_low_high nan 0.2", ["--actor.eps_clip_low_high nan 0.2: must be distances from 1"]),
        (f"{LAB} --output cut_lab", ["cut_lab is not empty and does not hold this run"]),
        (f"{LAB} --output file", ["--output file"]),
        (f"{LAB} --output {LONG}", [f"--output {LONG}"]),
        (f"{LAB} --base_policies file/run", ["--base_policies file/run"]),
        (f"{LAB} --base_policies {LONG}", [f"--base_policies {LONG}"]),
    ],
    "base-policies": [
        ("--output new --base_seed -1", ["--base_seed -1: must be numbers from 0"]),
        ("--output new --pack a --unpack b", ["give one of the two"]),
        ("--output new --unpack missing", ["--unpack missing: no such file"]),
        ("--output new --unpack file --task tail", ["--task has no effect with --unpack, which takes all policies"]),
    ],
    "reproduce": [
        ("--figure 7 --scale tiny", ["--scale tiny: figure 7 has none: the embedded tasks have one size"]),
        ("--figure 8 --collect docs", ["--collect copies what --run makes; add --run"]),
        ("--figure 8 --steps 1", ["--steps 1: must be at least 2"]),
        ("--figure 8 --steps 5", ["--steps 5 has no effect at the paper's scale; drop it, or add --scale tiny"]),
        ("--figure 8 --scale tiny --data_dir notes", ["--data_dir notes has no effect with --scale tiny"]),
        ("--figure 8 --run --output file", ["file is a file; give a folder"]),
    ],
    "demo": [
        ("--steps 0", ["--steps 0: must be at least 1"]),
        ("--folder fresh --output file", ["--output file is not empty or no folder; choose a new folder"]),
        ("--folder fresh --output notes", ["--output notes is not empty or no folder; choose a new folder"]),
        ("--folder fresh --output file/run", ["--output file/run cannot be written: "]),
        ("--folder half_task", ["--folder half_task is not empty and holds no finished task 'addition'"]),
        # 95 problems are 2 steps of 32 prompts and a rest.
        ("--folder task --steps 3", ["--steps 3 is more than the task gives: 95 training problems are 2 steps of 32"]),
    ],
    "fetch-smollm2": [
        ("--output notes", ["--output notes is not empty; choose another folder"]),
        ("--output file/x", ["--output file/x: ", "file is a file; give a folder"]),
    ],
    "tiny-task": [
        ("--output task", ["task holds a task with other settings (seed 1, not 0); choose another --output"]),
        ("--output half_task", ["half_task is not empty and holds no finished task; choose another --output"]),
        ("--output new --seed -1", ["--seed -1: must be from 0 to 2**63 - 1"]),
        ("--output new --train_rows 0", ["--train_rows 0: must be at least 1"]),
        ("--output new --train_rows 8000", ["--train_rows and --test_rows are at most 8100 together"]),
        ("--output new --test_rows many", ["--test_rows many: must be a whole number"]),
    ],
    "serve-reward": [
        ("--port 70000", ["--port 70000: must be from 0 to 65535"]),
        ("--port {port}", ["cannot listen on --host 127.0.0.1 --port {port}: Address already in use"]),
        ("--host 192.0.2.1", ["cannot listen on --host 192.0.2.1 --port 5000: Cannot assign requested address"]),
        (f"--host {LONG}", [f"cannot listen on --host {LONG} --port 5000: "]),
        ("--token_file no/token", ["--token_file no/token cannot be read: No such file or directory"]),
        ("--token_file binary", ["--token_file binary cannot be read: "]),
        # A token is a part of a URL, and URLs are separated by commas.
        ("--token_file blank.token", ["--token_file blank.token holds no token"]),
        ("--token_file comma.token", ["--token_file comma.token holds no token"]),
        ("--reward_timeout 0", ["--reward_timeout 0.0: must be a number of seconds in (0, 86400]"]),
        ("--code_timeout 9", ["--code_timeout only applies to --reward_source code or row, got math"]),
        ("--max_queries 0", ["--max_queries 0: must lie between 1 and 2^20"]),
        ("--max_req 1", ["--max_req 1: unknown flag; "]),
        # Flags of the trainer's side of a reward.
        ("--reward_keep_truncated", ["--reward_keep_truncated: unknown flag; "]),
        ("--reward_skip_bad_labels", ["--reward_skip_bad_labels: unknown flag; "]),
        ("--reward_max_error_frac=0.1", ["--reward_max_error_frac=0.1: unknown flag; "]),
    ],
    "doctor": [("--hubs", ["--hubs: unknown flag; did you mean --hub?"])],
    "evaluate": [
        ("--benchmarks sums.jsonl --output new", ["--model is missing; give a folder of a Hugging Face model"]),
        ("--model tiny --output new", ["--benchmarks is missing; --list shows the benchmarks"]),
        ("--model tiny --benchmarks sums.jsonl", ["--output is missing; give a folder for the results"]),
        ("--regrade", ["--output is missing"]),
        ("--regrade --output notes", ["notes is not the folder of an evaluation: run.json: No such file"]),
        (f"{EVALUATE} --output file/run", ["--output file/run: ", "file is a file; give a folder"]),
        (f"{EVALUATE} --output notes", ["notes is not empty and holds no evaluation; choose another folder"]),
        (f"{EVALUATE} --benchmarks aime2", ["--benchmarks aime2: no benchmark 'aime2'; did you mean aime25?"]),
        (f"{EVALUATE} --benchmarks aime24,math50", ["'math50'", "did you mean math500?"]),
        (f"{EVALUATE} --benchmarks xyzzy", ["--benchmarks xyzzy: no benchmark 'xyzzy'", "--list"]),
        (f"{EVALUATE} --benchmarks aime24,", ["--benchmarks aime24,: a name is empty", "--list"]),
        (f"{EVALUATE} --protocol papr", ["--protocol papr: no such protocol; choose one of paper, quick"]),
        (f"{EVALUATE} --template qwen", ["--template qwen: no such prompt template; choose one of qwen-boxed, "]),
        (EVALUATE + """ --chat_template_kwargs '{{"x": 1}}'""", ["--chat_template_kwargs only", "--template chat"]),
        (f"{EVALUATE} --chat_template_kwargs x=1", ["--chat_template_kwargs 'x=1': it is not a JSON object"]),
        (EVALUATE + """ --template chat --chat_template_kwargs '{{"tokenize": true}}'""", ["tokenize cannot be"]),
        (f"{EVALUATE} --limit 0", ["--limit 0: must be at least 1"]),
        (f"{EVALUATE} --limit x", ["--limit x: must be a whole number"]),
        (f"{EVALUATE} --model large", ["--model large is not served at {url}; it serves tiny"]),
        (f"{EVALUATE} --benchmarks math500 --data_dir notes", ["--data_dir notes: no file math500.jsonl"]),
        (f"{EVALUATE} --samples 0", ["sums: --samples 0: must be at least 1"]),
        (f"{EVALUATE} --temperature 0", ["--samples 3 with --temperature 0: greedy responses are all the same"]),
        (f"{EVALUATE} --top_p 0", ["sums: --top_p 0.0: must be a fraction in (0, 1]"]),
        (f"{EVALUATE} --top_p 1.1", ["sums: --top_p 1.1: must be a fraction in (0, 1]"]),
        (f"{EVALUATE} --max_tokens 0", ["sums: --max_tokens 0: must be at least 1"]),
        (f"{EVALUATE} --temperature -0.1", ["sums: --temperature -0.1: must be a finite number of at least 0"]),
        (f"{EVALUATE} --temperature nan", ["sums: --temperature nan: must be a finite number of at least 0"]),
        # Numbers of engines are checked for a server as well.
        (f"{EVALUATE} --num_engines 0", ["--num_engines 0: must be at least 1"]),
        (f"{EVALUATE} --max_retries -1", ["--max_retries -1: must be at least 0"]),
        (f"{EVALUATE} --gpu_memory_utilization 0", ["--gpu_memory_utilization 0.0: must be a fraction in (0, 1]"]),
        (f"{EVALUATE} --gpu_memory_utilization nan", ["--gpu_memory_utilization nan: must be a fraction in (0, 1]"]),
        (f"{EVALUATE} --max_num_seqs -1", ["--max_num_seqs -1: must lie between 0 and 1,048,576"]),
        (
            f"{EVALUATE} --max_num_seqs 64 --max_num_batched_tokens 32",
            ["--max_num_batched_tokens 32", "--max_num_seqs 64"],
        ),
        (f"{EVALUATE} --num_engines 2", ["--num_engines is for engines started here and has no effect with --base_"]),
        (f"{EVALUATE} --concurrency 0", ["--concurrency 0: must be at least 1"]),
        (f"{EVALUATE} --reward_timeout 0", ["--reward_timeout 0.0: must be a number of seconds in (0, 86400]"]),
        (f"{EVALUATE} --smaples 2", ["--smaples 2: unknown flag; did you mean --samples?"]),
        (f"{EVALUATE} --base_url ''", ["--base_url is empty; give http://HOST:PORT/v1, or drop it"]),
        # What is generated already, and problems, have no sampling.
        ("--regrade --output grpo --temperature 1", ["--temperature has no effect with --regrade, which grades what"]),
        ("--benchmarks sums.jsonl --write_data new --samples 4", ["--samples has no effect with --write_data"]),
        ("--benchmarks sums.jsonl --write_data file", ["--write_data file: file is a file"]),
    ],
    # The name of a command itself.
    "": [
        ("evalute", ["no command 'evalute'; did you mean evaluate?"]),
        ("xyz", ["no command 'xyz'; choose one of methods, "]),
        ("''", ["no command ''; choose one of"]),
        ("--lr 1e-6", ["--lr: flags come after a command; openrlhf-cov --help lists the commands"]),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_evaluation):
    """The folder in which all commands start."""
    folder = tmp_path_factory.mktemp("refusals")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "binary").write_bytes(b"\xff")
    for name in ("grpo", "kl_cov", "cut"):
        make_evaluation({"aime24": ["1 2"] * 8}, model=f"models/{name}").write(folder / name)
    responses = folder / "cut" / "responses.jsonl"
    responses.write_text(responses.read_text().splitlines()[0] + "\n")
    return folder


ROWS = [(command, *row) for command, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("command", "words", "said"), ROWS, ids=[f"{row[0]} {row[1]}"[:90] for row in ROWS])
def test_a_refused_request_is_one_line_and_writes_nothing(
    folder, monkeypatch, run_command, openai_server, command, words, said
):
    monkeypatch.chdir(folder)
    monkeypatch.delenv(REWARD_TOKEN, raising=False)
    places = {"url": openai_server.url, "port": openai_server.server_port}
    before = contents(folder)
    status, out, error = run_command(*filter(None, [command]), *shlex.split(words.format(**places)))
    assert (status, out) == (2, "")
    assert error.startswith(f"openrlhf-cov {command}".rstrip() + ": error: ")
    assert error.count("\n") == 1
    assert [text.format(**places) for text in said if text.format(**places) not in error] == [], error
    assert contents(folder) == before


def contents(folder):
    """The files of a folder; the lock of a folder is no content."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
