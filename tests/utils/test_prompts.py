import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.prompts import TEMPLATES, get_template, template_text

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


@pytest.mark.parametrize("problem", ["34+57=", " {problem}\n"])
def test_none(problem):
    assert get_template("none")(problem, None) == problem


def test_chat(tokenizer):
    tokenizer.chat_template = LLAMA_LIKE
    assert get_template("chat")("What is $1+1$?", tokenizer) == (
        "<s><|user|>What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}."
        "<|end|><|assistant|>"
    )


CHATS = {
    # the formats of the paper's four families, written down as templates of one user message
    "Qwen2.5-Instruct": (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_start|>assistant\n",
    ),
    "Mistral": ("{{ bos_token }}{% for m in messages %}[INST] {{ m.content }}[/INST]{% endfor %}", "[/INST]"),
    "Llama 3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
        "<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "DeepSeek": (
        "{{ bos_token }}{% for m in messages %}User: {{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}",
        "Assistant:",
    ),
}


@pytest.mark.parametrize("family", CHATS)
def test_the_chat_formats_of_the_papers_families(tokenizer, family):
    tokenizer.chat_template, opening = CHATS[family]
    prompt = get_template("chat")("What is $1+1$?", tokenizer)
    # the problem and the instruction are one message of the user, and the model speaks next
    assert prompt.count(get_template("plain")("What is $1+1$?", None)) == 1
    assert prompt.endswith(opening)
    assert prompt.count("<s>") == (0 if family.startswith("Qwen") else 1)


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


def test_an_unknown_template_is_refused():
    with pytest.raises(UsageError) as refused:
        get_template("qwen")
    assert str(refused.value) == (
        "--template qwen: no such prompt template; choose one of qwen-boxed, qwen-code, chat, plain, plain-code, none"
    )
