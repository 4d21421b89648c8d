import time

import pytest

from openrlhf_cov.utils.redaction import HIDDEN, is_secret, redact, redact_words

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
        ["--header", f"Authorization: {SECRET}"],
        ["--header", f"authorization={SECRET}"],
        ["--header", f"Proxy-Authorization: Digest {SECRET}, x={SECRET}"],
        ["--header", f"X-Api-Key: {SECRET}"],
        ["--header", f"X-Auth-Token: {SECRET}"],
        ["--header", f"Cookie: session={SECRET}; other={SECRET}"],
        ["--header", f"Set-Cookie: id={SECRET}; Path=/"],
        ["--x", f"postgres://user:{SECRET}@host/db"],
        ["--x", f"//user:{SECRET}@host/db"],
        ["--x", f"https://h/?access={SECRET}&sas={SECRET}&n=1"],
        ["--x", f"https://h/?api%5Fkey={SECRET}"],
        ["--x", f"https://h/?to%6ben={SECRET}&%74oken={SECRET}"],
        ["--x", f"https://h/?api%255Fkey={SECRET}"],
        ["--x", f"https://h/#access_token={SECRET}"],
        ["env", f"DB_PASS={SECRET}"],
        ["env", f"AWS_ACCESS_KEY_ID={SECRET}"],
        ["env", f"AWS_SOMETHING={SECRET}"],
        ["env", f"AZURE_STORAGE_CONNECTION_STRING={SECRET}"],
        ["--x", f'{{"api_keys": ["{SECRET}", "{SECRET}"], "n": 1}}'],
        ["--x", f"{{'tokens_of': 1, 'hf_token': ['{SECRET}']}}"],
        ["--x", f'{{"password": "a\\"{SECRET}"}}'],
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
        f'{{"tokens": ["{SECRET}"]}}',
        f'{{"access_tokens": ["{SECRET}", "{SECRET}"]}}',
        f"OPENAI_API_KEY: {SECRET}",
        f"model: tiny\npassword: {SECRET}\nseed: 1",
        f"- api_key: {SECRET}",
        f"PGPASSWORD={SECRET} psql",
        f'{{"password": {{"value": "{SECRET}"}}}}',
        f'{{"auth": {{"token": "{SECRET}"}}}}',
        f"{{'token': b'{SECRET}'}}",
    ],
)
def test_entries_of_files_are_hidden(text):
    assert SECRET not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf_hub and hf_transfer are packages, sk-learn is one; AKIA is a prefix, eyJ is one",
        "AWS_REGION=eu-west-1 AWS_DEFAULT_REGION=eu-west-1",
        "line 3, is no token: an object with token and cov is needed",
        "--data.input_key input --data.label_key label",
        "Basic arithmetic: what is 1 + 1 = ?",
        "a@b.c",
        "the reward failed with ValueError: bad = 3",
        '{"max_tokens": 512, "tokens": 77}',
        "tokens: 5",
        "The password: it must be long",
    ],
)
def test_other_texts_are_kept(text):
    assert redact(text) == text


def test_what_stands_around_a_secret_is_kept():
    assert redact("x http://u:p@h:1/a?token=t&n=1, y") == "x http://***@h:1/a?token=***&n=1, y"
    assert redact('{"api_key": "k", "n": 1}') == '{"api_key": "***", "n": 1}'
    assert redact("{'hf_token': 'k', 'n': 1}") == "{'hf_token': '***', 'n': 1}"
    assert redact("namespace(url=['http://h?token=t'], n=1)") == "namespace(url=['http://h?token=***'], n=1)"


@pytest.mark.parametrize(
    "key",
    [
        "hf_" + "aB3" * 12,
        "sk_live_" + "aB3" * 8,
        "sk-proj-" + "aB3-_" * 12,
        "sk-ant-api03-" + "aB3" * 16,
        "gho_" + "aB3" * 12,
        "github_pat_" + "aB3_" * 14,
        "glpat-" + "aB3" * 8,
        "AKIA" + "A1B2" * 4,
        "AIza" + "aB3_-" * 7,
        "xoxb-123456789012-abcdef",
        "nvapi-" + "aB3" * 15,
        "gsk_" + "aB3" * 15,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    ],
)
@pytest.mark.parametrize("text", ["cannot use {}: refused", '["{}"]', "https://h/{}/x"])
def test_a_bare_key_of_a_known_service_is_hidden(key, text):
    kept = redact(text.format(key))
    assert key not in kept
    assert "***" in kept
    assert redact(kept) == kept


def test_a_private_key_is_hidden():
    text = "x -----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- y"
    assert redact(text) == "x -----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- y"
    assert "MIIE" not in redact("-----BEGIN PRIVATE KEY-----\nMIIE")


@pytest.mark.slow
def test_long_texts_take_linear_time():
    started = time.process_time()
    for part in ("a=", "//", "[" * 10, "eyJ", "x-", '\\"', "-----BEGIN ", "sk-", "?a%", "token "):
        redact(part * 20_000)
    assert time.process_time() - started < 20.0
