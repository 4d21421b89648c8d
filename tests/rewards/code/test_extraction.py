"""Where the program stands in a response."""

import pytest

from openrlhf_cov.rewards.code.program_extraction import last_fence, whole


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```\nbye", "print(1)\n"),
        ("```python\nold\n```\nno, better:\n```py\nnew\n```", "new\n"),
        ("```python\nx\n```\nIt prints\n```text\n3\n```", "x\n"),
        ("~~~python\nx\n~~~", "x\n"),
        ("````python\n```\nx\n````", "```\nx\n"),
        ("   ```python\nx\n   ```", "x\n"),
        ('```python\nx = """\nText ``` inside\n"""\n```', 'x = """\nText ``` inside\n"""\n'),
        ("```Python3\nx\n```<|im_end|>", "x\n"),
        ("```python\nx\n```\nIt prints\n```\n3\n```", "x\n"),
        ("```\nx\n```\nor\n```\ny\n```", "y\n"),
        ("1. So:\n    ```python\n    def f():\n        return 1\n    ```\n", "def f():\n    return 1\n"),
        ("- ```python\n  x = 1\n  ```", "x = 1\n"),
        ("So: ```python\nx\n```", "x\n"),
        ("\t```python\n\tx\n\t```", "x\n"),
        ("```python\r\nx\r\ny\r\n```\r\n", "x\ny\n"),
        ("``` {.python .numberLines}\nx\n```", "x\n"),
        (
            '```python\ndef f():\n    """\n    ```\n    a\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    a\n    ```\n    """\n',
        ),
        ("```python\nold\n```python\nnew\n```", "new\n"),
        ("```\nleft open\n```python\nx\n```", "x\n"),
        ("```python\nx\n```\n```python\nbroken off", "x\n"),
        ("```python\nx", "x"),
        ("```python\nx```", "x"),
        ("```\nx<|im_end|>", "x"),
        ("```cpp\nx", None),
        ("x\n```", None),
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
