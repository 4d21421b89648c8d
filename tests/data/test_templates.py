import pytest
from texts import missing
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from openrlhf_cov.config import PromptConfig, template_arguments
from openrlhf_cov.data.templates import (
    TEMPLATES,
    get_template,
    own_template_warning,
    sent_template,
    template_text,
    unread_arguments,
)
from openrlhf_cov.errors import UsageError

LLAMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def tokenizer():
    tokens = Tokenizer(WordLevel({"<s>": 0, "<unk>": 1}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="<s>", unk_token="<unk>")


def test_qwen_boxed():
    assert get_template("qwen-boxed")("What is $1+1$?", None) == (
        "<|im_start|>system\n"
        "Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\n"
        "What is $1+1$?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_plain():
    assert get_template("plain")("What is $1+1$?", None) == (
        "What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )


def test_chat(tokenizer):
    tokenizer.chat_template = LLAMA_LIKE
    assert get_template("chat")("What is $1+1$?", tokenizer) == (
        "<s><|user|>What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}."
        "<|end|><|assistant|>"
    )


def test_chat_needs_a_chat_template(tokenizer):
    for without in (tokenizer, None):
        with pytest.raises(UsageError, match=r"^--template chat: .* has no chat template; use qwen-boxed or plain$"):
            get_template("chat")("1+1", without)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("problem", ["{0} {x} {problem} %s \\boxed{}", "二加二\n\n", "{{ messages }}{% raw %}"])
def test_a_problem_stands_in_its_prompt_as_it_is(tokenizer, name, problem):
    tokenizer.chat_template = LLAMA_LIKE
    assert get_template(name)(problem, tokenizer).count(problem) == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_stored_text_gives_the_prompt_back(tokenizer, name):
    tokenizer.chat_template = LLAMA_LIKE
    stored = template_text(name, tokenizer)
    assert stored.replace("{problem}", "1+1") == get_template(name)("1+1", tokenizer)


THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}{% if language == 'fr' %}{{ raise_exception('no French') }}{% endif %}"
)


def test_arguments_reach_the_chat_template(tokenizer):
    tokenizer.chat_template = THINKING
    with_thinking = get_template("chat")("1+1=", tokenizer)
    without = get_template("chat", {"enable_thinking": False})("1+1=", tokenizer)
    assert without == with_thinking + "<think></think>"
    assert template_text("chat", tokenizer, {"enable_thinking": False}).endswith("<|assistant|><think></think>")


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"chat"}))
def test_arguments_are_for_the_chat_template(name):
    assert get_template(name, {}) is TEMPLATES[name]
    with pytest.raises(UsageError, match=f"--chat_template_kwargs only applies with --template chat, got {name}"):
        get_template(name, {"enable_thinking": False})


def test_a_chat_template_that_fails_is_refused_in_one_line(tokenizer):
    tokenizer.chat_template = THINKING
    with pytest.raises(UsageError) as refused:
        get_template("chat", {"language": "fr"})("1+1=", tokenizer)
    message = str(refused.value)
    facts = ('--chat_template_kwargs {"language": "fr"}', "no French", "qwen-boxed", "plain")
    assert missing(message, "--template chat", *facts) == []
    assert "\n" not in message


def test_arguments_that_the_chat_template_does_not_read_are_named(tokenizer):
    assert unread_arguments({"x": 1}, tokenizer) is None  # has no chat template, which is refused elsewhere
    tokenizer.chat_template = THINKING
    assert unread_arguments({"enable_thinking": False, "language": "en"}, tokenizer) is None
    warning = unread_arguments({"enable_thinkin": False, "effort": "low"}, tokenizer)
    assert warning.startswith("the chat template of the model does not read enable_thinkin, effort, so")


def test_the_models_own_template_is_named_where_it_is_not_used(tokenizer):
    assert own_template_warning("qwen-boxed", tokenizer) is None
    assert own_template_warning("qwen-boxed", None) is None  # a dry run without the model
    tokenizer.chat_template = THINKING
    assert own_template_warning("qwen-boxed", tokenizer).startswith("--template is not given, so prompts have the")
    tokenizer.chat_template = "{{ messages[0].content }}"  # as the template plain
    assert own_template_warning("plain", tokenizer) is None


def test_a_server_is_sent_the_message_and_puts_its_chat_template_around_it(tokenizer):
    tokenizer.chat_template = THINKING
    sent = {name: sent_template(name, None)("1+1=", None) for name in ("chat", "plain", "none", "qwen-boxed")}
    assert sent["chat"] == sent["plain"] == get_template("plain")("1+1=", None)
    assert sent["none"] == "1+1="
    assert "<|im_start|>" in sent["qwen-boxed"]
    assert sent_template("chat", None, {"enable_thinking": False})("1+1=", None) == sent["plain"]
    assert sent_template("chat", tokenizer)("1+1=", tokenizer) == get_template("chat")("1+1=", tokenizer)
    with pytest.raises(UsageError, match="--chat_template_kwargs only applies with --template chat, got none"):
        sent_template("none", None, {"enable_thinking": False})


GIVEN = {
    "": {},
    "{}": {},
    '{"enable_thinking": false}': {"enable_thinking": False},
    '{"tools": [{"name": "f"}], "effort": "low"}': {"tools": [{"name": "f"}], "effort": "low"},
}


@pytest.mark.parametrize("text", GIVEN)
def test_arguments_are_a_json_object(text):
    assert template_arguments(text) == GIVEN[text]
    assert PromptConfig(chat_template_kwargs=text).chat_template_kwargs == text


@pytest.mark.parametrize("text", ["[1]", "enable_thinking=false", '{"x": NaN}', "[" * 100_000, " "])
def test_what_is_no_json_object_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match=r"--data.chat_template_kwargs .*: it is not a JSON object; write") as refused:
        PromptConfig(chat_template_kwargs=text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["tokenize", "messages"])
def test_what_this_package_sets_cannot_be_changed(name):
    with pytest.raises(ValueError, match=f"--chat_template_kwargs: {name} cannot be changed"):
        template_arguments(f'{{"enable_thinking": false, "{name}": true}}', "--chat_template_kwargs")
