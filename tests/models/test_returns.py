import torch

from openrlhf_cov.models.returns import sums_to_the_end


def test_every_entry_and_all_after_it():
    # 1 + 2 + 4, 2 + 4, 4; a reward on the last token alone is the return of all tokens
    values = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.1]])
    assert torch.equal(sums_to_the_end(values), torch.tensor([[7.0, 6.0, 4.0], [0.1, 0.1, 0.1]]))


def test_the_last_entry_comes_first_in_single_precision():
    # beside 2^24 a single precision number has no room for 1: (2^24 + 1) + 1 is 2^24, (1 + 1) + 2^24 is not
    values = torch.tensor([[1.0, 1.0, 2.0**24], [2.0**24, 1.0, 1.0]])
    assert sums_to_the_end(values)[:, 0].tolist() == [2.0**24, 2.0**24 + 2]
    assert sums_to_the_end(values.double())[:, 0].tolist() == [2.0**24 + 2, 2.0**24 + 2]


def test_half_precision_is_summed_in_single():
    # 256 + 1 needs nine bits, bfloat16 has eight
    assert sums_to_the_end(torch.tensor([[1.0, 256.0]], dtype=torch.bfloat16)).tolist() == [[257.0, 256.0]]


def test_nothing_to_sum():
    assert sums_to_the_end(torch.zeros(2, 0)).shape == (2, 0)
    assert sums_to_the_end(torch.zeros(0, 3)).shape == (0, 3)
