"""Where the program stands in a response."""

import pytest

from openrlhf_cov.rewards.code.extraction import last_fence, whole


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```\nbye", "print(1)\n"),
        ("```python\nold\n```\nno, better:\n```py\nnew\n```", "new\n"),
        ("```python\nx\n```\nIt prints\n```text\n3\n```", "x\n"),
        ("```python\nx\n```\nIt prints\n```output\n3\n```\n", "x\n"),
        ("~~~python\nx\n~~~", "x\n"),
        ("````python\n```\nx\n````", "```\nx\n"),
        ("   ```python\nx\n   ```", "x\n"),
        ('```python\nx = """\nText ``` inside\n"""\n```', 'x = """\nText ``` inside\n"""\n'),
        ("```Python3\nx\n```<|im_end|>", "x\n"),
        ("```python\nx", None),
        ("```python\n```", None),
        ("```python\n\n```", None),
        ("```cpp\nint main() {}\n```", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_the_last_fence(response, program):
    assert last_fence(response) == program


def test_the_whole_response():
    assert whole("print(1)\n<|im_end|>") == "print(1)"
    assert whole("  x<eos>") == "  x"
    assert whole("\n\n") is None


@pytest.mark.parametrize("response", ["```\n" * 100_001, "`" * 400_000, "~~~python\n" * 30_001, " " * 400_000])
def test_long_responses_without_a_program(response):
    assert last_fence(response) is None
