import pickle

from ray import cloudpickle

from openrlhf_cov.trainer.shared_argument import share


class Tokenizer:
    """Counts how often it is pickled and unpickled."""

    pickled = unpickled = 0

    def __init__(self, words):
        self.words = words

    def __reduce__(self):
        Tokenizer.pickled += 1
        return rebuilt, (self.words,)


def rebuilt(words):
    Tokenizer.unpickled += 1
    return Tokenizer(words)


def test_pickled_once_and_unpickled_once_in_a_process(played_ray):
    first, second = share(Tokenizer(["a"])), share(Tokenizer(["b"]))
    sent = [cloudpickle.dumps(each) for each in (first, first, second, second)]
    received = [pickle.loads(each) for each in sent]
    assert [each.words for each in received] == [["a"], ["a"], ["b"], ["b"]]
    assert received[0] is received[1]
    assert received[2] is received[3]
    assert (Tokenizer.pickled, Tokenizer.unpickled) == (2, 2)
