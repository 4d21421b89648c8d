"""The tokenizer of the embedded tasks: one token per character, or per word of a list."""

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openrlhf_cov.rewards.addition import EOS_TOKEN

PAD_TOKEN = "<pad>"
# More than the four answer styles need, so that a policy can leave their format and be marked wrong for it.
CHARACTERS = "0123456789+=*-() ,;"


def build_tokenizer(max_length: int, words: Sequence[str] = CHARACTERS) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer with ``<pad>`` (id 0), ``<eos>`` (id 1) and one id for each of ``words``.

    It adds no token of its own, pads on the left, and decodes to exactly the text that was encoded. Encoding a text
    that is not a sequence of words raises an error.

    Args:
        max_length: Context of the model in tokens.
        words: The words, which have the ids from 2 on. Where several words fit, the longest one is taken.
    """
    vocabulary = {token: index for index, token in enumerate((PAD_TOKEN, EOS_TOKEN, *words))}
    longer = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(vocabulary))  # no unknown token: it would hide characters of a prompt
    pattern = "|".join([*map(re.escape, longer), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="left",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
