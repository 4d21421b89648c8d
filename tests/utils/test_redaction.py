import pytest

from openrlhf_cov.utils.redaction import is_secret, redact, redact_settings, redact_words

SECRET = "S3cret-T0ken"


@pytest.mark.parametrize(
    "name",
    [
        *("--logger.wandb.key", "--logger.wandb.k", "--logger.wandb.ke", "--judge.api_key", "--endpoint.apikey"),
        *("--hf_token", "--hub-token", "--token", "--db.PASSWORD", "--runtime-env-json", "--api-key", "--apiKey"),
        *("HF_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENRLHF_COV_REWARD_TOKEN"),
        *("--client.secret", "--passphrase", "--private_key", "access_token", "--auth_token", "Authorization"),
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("--data.input_key", "--data.label_key", "--data.image_key", "--ckpt.best_metric_key", "--response_key"),
        *("--data.pad_token", "--stop_token", "--max_tokens", "--rollout.max_tokens_per_gpu", "--api_key_env"),
        *("--token_file", "--data.disable_fast_tokenizer", "--logger.wandb", "--l", "--x"),
        *("--cov_dump_tokens", "--loss_per_token", "--key", "--tokenizer"),
    ],
)
def test_names_of_other_settings(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    "words",
    [
        ["--hf_token", SECRET],
        [f"--hf_token={SECRET}"],
        ["--api_keys", SECRET, SECRET],
        ["--logger.wandb.k", SECRET],
        ["--reward.remote_url", f"http://node:5000?token={SECRET},http://other:5000/get_reward?a=1&api_key={SECRET}"],
        [f"--reward.remote_url=http://node:5000/?token={SECRET}#end"],
        ["--reward.remote_url", f"http://me:{SECRET}@node:5000"],
        ["--reward.remote_url", f"https://{SECRET}@node:5000/path@here"],
        ["--x", f"https://host/?X-Amz-Signature={SECRET}&sig={SECRET}"],
        ["env", f"HF_TOKEN={SECRET}"],
        ["--runtime-env-json", f'{{"env_vars": {{"HF_TOKEN": "{SECRET}"}}}}'],
        ["--header", f"Authorization: Bearer {SECRET}"],
    ],
)
def test_no_spelling_of_a_secret_is_kept(words):
    kept = redact_words(["train", *words, "--last", "word"])
    assert SECRET not in " ".join(kept)
    assert "***" in " ".join(kept)
    assert kept[0] == "train"
    assert kept[-2:] == ["--last", "word"]
    assert len(kept) == len(words) + 3
    assert SECRET not in redact(" ".join(["cannot reach", *words[:2]]))
    assert redact_words(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "http://node:5000/get_reward?n=8&temperature=1",
        "line 3, is no token: an object with token and cov is needed",
        "https://medium.com/@user/page",
        "--data.input_key input --data.label_key label",
        "Basic arithmetic: what is 1 + 1 = ?",
        "a@b.c",
        "the reward failed with ValueError: bad = 3",
    ],
)
def test_other_texts_are_kept(text):
    assert redact(text) == text


def test_what_stands_around_a_secret_is_kept():
    assert redact("x http://u:p@h:1/a?token=t&n=1, y") == "x http://***@h:1/a?token=***&n=1, y"
    assert redact('{"api_key": "k", "n": 1}') == '{"api_key": "***", "n": 1}'
    assert redact("{'hf_token': 'k', 'n': 1}") == "{'hf_token': '***', 'n': 1}"
    assert redact("namespace(url=['http://h?token=t'], n=1)") == "namespace(url=['http://h?token=***'], n=1)"


def test_settings():
    settings = {"--hf_token": SECRET, "--url": f"http://h?token={SECRET}", "--x": "1"}
    assert redact_settings(settings) == {"--hf_token": "***", "--url": "http://h?token=***", "--x": "1"}
