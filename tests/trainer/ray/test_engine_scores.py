"""Log-probs of given tokens from engines: of all of them, one text after another, and none of a dead engine."""

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from openrlhf_cov.trainer.ray import engine_scores
from openrlhf_cov.trainer.ray.engine_scores import score_texts


class Engine:
    """Gives token v the log-prob -v * ``factor``, as vLLM does: a dict for each token, None for the first."""

    def __init__(self, factor, calls, failure=None):
        self.factor, self.calls, self.failure = factor, calls, failure
        self.generate = SimpleNamespace(remote=self._generate)
        for name in ("wake_up", "sleep"):
            setattr(self, name, SimpleNamespace(remote=lambda name=name: calls.append(name)))

    def _generate(self, ids, settings):
        self.calls.append((self.factor, ids))
        # greedy and one token: no random number is drawn; 0: no other tokens beside the prompt's own
        assert (settings.temperature, settings.max_tokens, settings.prompt_logprobs) == (0.0, 1, 0)
        if self.failure:
            return self.failure
        found = [{token: SimpleNamespace(logprob=-token * self.factor)} for token in ids[1:]]
        return SimpleNamespace(prompt_logprobs=[None, *found])


def get(references):
    for reference in references:
        if isinstance(reference, Exception):
            raise reference
    return references


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    from openrlhf.trainer.ray import vllm_engine

    monkeypatch.setattr(engine_scores, "ray", SimpleNamespace(get=get))
    monkeypatch.setattr(vllm_engine, "ray", SimpleNamespace(get=get))


@pytest.mark.parametrize("asleep", [False, True])
def test_every_engine_scores_every_text(asleep):
    calls = []
    engines = [Engine(1.0, calls), Engine(2.0, calls)]
    scores = score_texts(engines, [[5, 6, 7], [9, 1]], asleep)
    assert [each.tolist() for each in scores or ()] == [[-6.0, -7.0, -1.0], [-12.0, -14.0, -2.0]]
    asked = [(1.0, [5, 6, 7]), (2.0, [5, 6, 7]), (1.0, [9, 1]), (2.0, [9, 1])]
    assert calls == (["wake_up"] * 2 + asked + ["sleep"] * 2 if asleep else asked)


def test_a_dead_engine_has_no_scores_and_another_failure_is_raised():
    engines = [Engine(1.0, []), Engine(1.0, [], ActorDiedError())]
    assert score_texts(engines, [[1, 2]], asleep=False) is None
    failure = RayTaskError("generate", "too long", ValueError()).as_instanceof_cause()
    with pytest.raises(ValueError, match="too long"):
        score_texts([Engine(1.0, [], failure)], [[1, 2]], asleep=False)
