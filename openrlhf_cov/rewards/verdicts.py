"""Rules for every response, whatever grades it: its possible verdicts, and how much of it is read."""

import re

# Characters of a response that are looked at, counted from its end.
MAX_RESPONSE = 400_000
END_TOKEN = re.compile(
    r"(?:<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|<eos>|<bos>|<end_of_turn>|<pad>|\[/?INST\]|<\|im_start\|>[a-z]{4,9})\Z"
)
# Last signs of these tokens and of the role that may follow one: user, assistant, system.
ENDS_OF_TOKENS = frozenset(">]rtm")
MAX_END_TOKENS = 20


def without_end_tokens(text: str) -> str:
    """Return the text without the special tokens and the white space at its end."""
    text = text.rstrip()
    for _ in range(MAX_END_TOKENS):
        # No token is longer, and searching the whole text for each would take long.
        match = END_TOKEN.search(text[-60:]) if text[-1:] in ENDS_OF_TOKENS else None
        if match is None:
            break
        text = text[: len(text) - len(match[0])].rstrip()
    return text
