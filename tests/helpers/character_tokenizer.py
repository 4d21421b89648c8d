"""A tokenizer with one token for each printable character; the token of the character 0 is the padding."""

import string
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@cache
def character_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {char: index for index, char in enumerate(string.printable)}
    characters = Tokenizer(models.WordLevel(vocabulary))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, clean_up_tokenization_spaces=False, pad_token="0")
