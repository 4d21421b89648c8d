"""A Ray that we start answers nobody without its token; one that runs already is joined."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from processes import HANGS

from openrlhf_cov.cluster.local_ray import environment, local_ray
from openrlhf_cov.cluster.ray_here import LOOPBACK_ONLY

pytestmark = pytest.mark.e2e

ASK = "import ray; ray.init(log_to_driver=False); print(ray.get(ray.remote(lambda: 'answered').remote()))"

TRAINERS_RAY = """
import os
from openrlhf_cov.cluster.ray_here import protect_own_ray
protect_own_ray()
import ray
from openrlhf_cov.cluster import connection
started = connection.connect(connection.Needs([{"GPU": 1.0, "CPU": 1.0}], way_out=""))
print("found", started, "RAY_AUTH_TOKEN" in os.environ, ray.get_runtime_context().gcs_address, flush=True)
input()
"""


def asked(address, token):
    """What comes of a task that somebody sends there."""
    return subprocess.run(
        [sys.executable, "-c", ASK],
        env=environment() | {"RAY_ADDRESS": address} | token,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )


def is_refused(address, token):
    """True once Ray says so; it then tries for minutes whether the answer changes."""
    env = environment() | {"RAY_ADDRESS": address} | token
    stranger = subprocess.Popen([sys.executable, "-c", ASK], env=env, stderr=subprocess.PIPE, text=True)
    try:
        return any("Unauthenticated" in line for line in stranger.stderr)
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.fixture(scope="module")
def demos_ray(tmp_path_factory):
    """The Ray of a demo, and its log."""
    log = tmp_path_factory.mktemp("demo") / "ray.log"
    with local_ray(num_gpus=1, num_cpus=1, log=log) as ray:
        yield ray, log


def test_the_demos_ray_refuses_those_without_its_token(demos_ray):
    ray, _ = demos_ray
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{ray.dashboard}/api/jobs/", timeout=HANGS)
    with refused.value as answer:  # or its socket closes when the garbage is collected, in some later test
        assert answer.code in (401, 403)
    assert is_refused(ray.gcs, LOOPBACK_ONLY)


# In ``make test`` demos submit their jobs with the token of such a Ray, and runs join it.
@pytest.mark.long
def test_the_demos_ray_answers_those_who_have_its_token(demos_ray):
    ray, log = demos_ray
    assert is_refused(ray.gcs, ray.token | {"RAY_AUTH_TOKEN": "0" * 64})
    friend = asked(ray.gcs, ray.token)
    assert friend.stdout.strip() == "answered", friend.stderr
    submit = [os.path.join(os.path.dirname(sys.executable), "ray"), "job", "submit", "--address", ray.dashboard]
    for token, works in (({}, False), (ray.token, True)):
        env = environment() | token
        job = subprocess.run([*submit, "--", "true"], env=env, capture_output=True, text=True, timeout=HANGS)
        assert (job.returncode == 0) is works, job.stdout + job.stderr
    assert ray.token["RAY_AUTH_TOKEN"] not in log.read_text()


@pytest.mark.parametrize("protected", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_ray_that_a_run_starts_for_itself(demos_ray, protected):
    """A run joins no Ray that runs already: its own has another address."""
    env = environment() | {"RAY_ADDRESS": "local"} | ({} if protected else {"RAY_AUTH_MODE": "disabled"})
    run = subprocess.Popen(
        [sys.executable, "-c", TRAINERS_RAY], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        found = next(line for line in run.stdout if line.startswith("found"))  # after warnings of another Ray
        _, started, has_token, address = found.split()
        assert (started, has_token) == ("True", str(protected))
        assert address != demos_ray[0].gcs
        nothing = {"RAY_AUTH_MODE": "disabled"} | LOOPBACK_ONLY
        assert is_refused(address, nothing) if protected else "answered" in asked(address, nothing).stdout
    finally:
        run.communicate("\n", timeout=HANGS)
