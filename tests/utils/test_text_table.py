from openrlhf_cov.utils.text_table import aligned


def test_aligned():
    rows = [("name", "n", "verdict"), ("a", "10", "noise"), ("abcdef", "1", "")]
    assert aligned(rows, left=(0, 2)) == ["name     n  verdict", "a       10  noise", "abcdef   1"]
