"""Token ids of prompts with tokenizers of the kinds that model families have, all built here."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.templates import prompt_ids, prompts_ids
from openrlhf_cov.evaluation.benchmarks import PROTOCOLS, own_benchmark
from openrlhf_cov.evaluation.plan import make_plan
from openrlhf_cov.trainer.rollout.reward_executor import MultiTurnExecutor, RewardExecutor

BOS, EOS, MASK = 256, 257, 258
SPECIAL = {"<bos>": BOS, "<eos>": EOS, "<mask>": MASK}
TEXT = "1+1=é"


def byte_level(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte and this template of its post-processor."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL))
    raw.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(SPECIAL.items()))
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>")


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Return a tokenizer as Llama 2 and Mistral have it: a mark for spaces, also before the text, and bytes."""
    vocabulary = {f"<0x{number:02X}>": number for number in range(256)} | SPECIAL
    vocabulary |= {"<unk>": 259, "▁": 260} | {letter: 261 + number for number, letter in enumerate("0123456789+=?")}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.add_special_tokens(list(SPECIAL))
    raw.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=list(SPECIAL.items()))
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")


# The kind of tokenizer -> how it is made, and the ids that stand before the text of a prompt.
KINDS = {
    "Llama 3": (lambda: byte_level("<bos> $A"), [BOS]),
    "Mistral and Llama 2": (sentencepiece_like, [BOS]),
    "Qwen": (lambda: byte_level("$A"), []),
    "DeepSeek": (lambda: byte_level("<bos>:0 $A:0"), [BOS]),
    "appends EOS": (lambda: byte_level("$A <eos>"), []),
    "BOS and EOS": (lambda: byte_level("<bos> $A <eos>"), [BOS]),
    "two before the text": (lambda: byte_level("<mask> <bos> $A"), [MASK, BOS]),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """A tokenizer and the ids that it puts before a prompt."""
    make, before = KINDS[request.param]
    return make(), before


class Engine:
    """An engine that keeps the ids of every prompt and answers all with one token."""

    def __init__(self) -> None:
        self.prompts = []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.prompts.append(list(prompt_token_ids))
        answer = SimpleNamespace(token_ids=[1], finish_reason="stop", logprobs=None, text="x")
        return SimpleNamespace(outputs=[answer])


def roll_out(executor, text, tokenizer):
    """Return the output of one rollout and the prompts that the engine received."""
    engine = Engine()
    request = executor.execute(text, "", SamplingParams(max_tokens=8), 100, tokenizer, engine)
    return asyncio.run(request), engine.prompts


def evaluated(tmp_path, text, tokenizer, template="none"):
    """Return text and ids of the prompt that an evaluation makes of a problem."""
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"id": "0", "problem": text, "answer": "2", "source": "math"}) + "\n")
    plan = make_plan(
        [own_benchmark(path)],
        PROTOCOLS["paper"],
        {},
        data_dir=None,
        limit=None,
        template=template,
        tokenizer=tokenizer,
    )
    return plan.items[0].prompt, plan.items[0].prompt_ids


def test_a_prompt_has_the_special_tokens_before_the_text_and_no_others(kind):
    tokenizer, before = kind
    bare = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert prompt_ids(TEXT, tokenizer) == before + bare
    assert EOS not in prompt_ids(TEXT, tokenizer)


def test_a_text_that_begins_with_the_special_tokens_gets_no_second_ones(kind):
    tokenizer, before = kind
    text = "".join(name for name in ("<mask>", "<bos>") if SPECIAL[name] in before) + TEXT
    ids = prompt_ids(text, tokenizer)
    assert ids[: len(before)] == before
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_bos_inside_the_text_does_not_stand_for_the_first_one():
    tokenizer = byte_level("<bos> $A <eos>")
    ids = prompt_ids(f"{TEXT}<bos>{TEXT}", tokenizer)
    assert ids[0] == BOS
    assert ids.count(BOS) == 2


def test_many_prompts_are_those_of_each_and_an_empty_one_has_the_tokens_before_any_text(kind):
    tokenizer, before = kind
    texts = [TEXT, "1", "<bos>2"]
    assert prompts_ids([*texts, ""], tokenizer) == [*(prompt_ids(text, tokenizer) for text in texts), before]
    assert prompts_ids([], tokenizer) == []


def test_a_processor_of_images_has_the_ids_of_its_tokenizer():
    tokenizer = byte_level("<bos> $A")
    processor = SimpleNamespace(image_processor=object(), tokenizer=tokenizer)
    assert prompt_ids(TEXT, processor) == prompt_ids(TEXT, tokenizer)


@pytest.mark.parametrize("text", [TEXT, "<bos>1+1=", "a<eos>b"])
def test_a_rollout_has_the_ids_of_the_evaluation(kind, tmp_path, text):
    tokenizer, _ = kind
    _, ids = evaluated(tmp_path, text, tokenizer)
    output, prompts = roll_out(RewardExecutor(None, RewardConfig()), text, tokenizer)
    assert prompts == [list(ids)]
    # The response is the one token of the engine, behind the whole prompt.
    assert output["observation_tokens"] == [*ids, 1]
    assert output["action_ranges"] == [(len(ids), len(ids) + 1)]


def test_a_chat_template_has_one_bos_in_rollouts_and_evaluations(kind, tmp_path):
    tokenizer, before = kind
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}:"
    text, ids = evaluated(tmp_path, "1+1=", tokenizer, "chat")
    _, prompts = roll_out(RewardExecutor(None, RewardConfig()), text, tokenizer)
    assert prompts == [list(ids)]
    assert list(ids).count(BOS) == 1
    assert ids[: len(before)] == (*before,)


def test_only_the_first_observation_of_an_agent_is_a_prompt():
    class Twice(AgentInstanceBase):
        """An environment that ends after its second answer."""

        def __init__(self) -> None:
            self.steps = 0

        async def step(self, state_dict):
            self.steps += 1
            rewards = SimpleNamespace(item=lambda: 1.0)
            return {"rewards": rewards, "environment_feedback": "ab", "done": self.steps == 2}

    tokenizer = byte_level("<bos> $A <eos>")
    first, feedback = ([*tokenizer(text, add_special_tokens=False)["input_ids"]] for text in (TEXT, "ab"))
    _, prompts = roll_out(MultiTurnExecutor(MultiTurnAgentExecutor(Twice)), TEXT, tokenizer)
    assert prompts == [[BOS, *first], [BOS, *first, 1, *feedback]]
