"""Log-probs of given tokens from engines: of all of them, one text after another, and none of a dead engine."""

import pytest
from played_ray import PlayedActor
from ray.exceptions import ActorDiedError, RayTaskError
from vllm_outputs import request_output

from openrlhf_cov.trainer.ray.engine_scores import score_texts

pytestmark = pytest.mark.usefixtures("played_ray")


def engine(factor, calls):
    """Return an engine that gives token v the log-prob -v * ``factor``."""

    def generate(ids, settings):
        # greedy and one token: no random number is drawn; 0: no other tokens beside the prompt's own
        assert (settings.temperature, settings.max_tokens, settings.prompt_logprobs) == (0.0, 1, 0)
        calls.append((factor, ids))
        return request_output(prompt=ids, prompt_log_probs=[{token: -token * factor} for token in ids[1:]])

    noting = {name: lambda name=name: calls.append(name) for name in ("wake_up", "sleep")}
    return PlayedActor(generate=generate, **noting)


@pytest.mark.parametrize("asleep", [False, True])
def test_every_engine_scores_every_text(asleep):
    calls = []
    scores = score_texts([engine(1.0, calls), engine(2.0, calls)], [[5, 6, 7], [9, 1]], asleep)
    assert [each.tolist() for each in scores or ()] == [[-6.0, -7.0, -1.0], [-12.0, -14.0, -2.0]]
    asked = [(1.0, [5, 6, 7]), (2.0, [5, 6, 7]), (1.0, [9, 1]), (2.0, [9, 1])]
    assert calls == (["wake_up"] * 2 + asked + ["sleep"] * 2 if asleep else asked)


def test_a_dead_engine_has_no_scores_and_another_failure_is_raised():
    dead = PlayedActor(generate=ActorDiedError())
    assert score_texts([engine(1.0, []), dead], [[1, 2]], asleep=False) is None
    failing = PlayedActor(generate=RayTaskError("generate", "too long", ValueError()).as_instanceof_cause())
    with pytest.raises(ValueError, match="too long"):
        score_texts([failing], [[1, 2]], asleep=False)
