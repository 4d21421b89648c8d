import platform
import sys
import time

import pytest

from openrlhf_cov.cluster.host.installed import (
    DISTRIBUTIONS,
    Package,
    _is_present,
    distribution_version,
    find_packages,
    pins,
    try_imports,
)

MODULES = {
    "good": "print('hello'); import os; os.write(1, b'hello from below')",
    "raises": "raise ImportError('undefined\\n  symbol')",
    "exits": "import sys; sys.exit(3)",
    "quits": "import os; os._exit(3)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "import time; time.sleep(99)",
}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """Packages that can be imported in other processes only."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code + "\n")
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))


def faults(*names, timeout=30.0):
    return {name: result["fault"] for name, result in try_imports(names, timeout).items()}


@pytest.mark.slow
def test_every_import_has_an_outcome_whatever_the_others_do():
    assert faults("raises", "good", "quits", "exits", "dies", "json", "missing") == {
        "raises": "ImportError: undefined symbol",
        "good": None,
        "quits": "the process ended with status 3",
        "exits": "SystemExit: 3",
        "dies": "the process ended with signal 11",
        "json": None,
        "missing": "ModuleNotFoundError: No module named 'missing'",
    }


@pytest.mark.slow
def test_an_import_that_hangs_is_given_up():
    started = time.monotonic()
    assert faults("json", "hangs", "good", timeout=2.0) == {
        "json": None,
        "hangs": "it took more than 2 s",
        "good": None,
    }
    assert time.monotonic() - started < 30


def test_nothing_to_import_starts_nothing():
    assert try_imports([]) == {}


def test_what_is_present_and_what_is_installed():
    assert _is_present("pytest")
    assert not _is_present("no_such_module")
    assert distribution_version("pytest") == pytest.__version__
    assert distribution_version("no-such-package") is None


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    # Ray leaves /tmp/ray: asked for from /tmp, Python would import it as an empty package
    (tmp_path / "no_such_module").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not _is_present("no_such_module")


def test_a_module_without_a_loader_is_not_present(monkeypatch):
    import types

    monkeypatch.setitem(sys.modules, "half", types.ModuleType("half"))  # its __spec__ is None: find_spec raises
    assert not _is_present("half")


def test_pins_are_the_exact_versions():
    found = pins("openrlhf")
    assert found["vllm"] == "0.29.0"  # of the extra; the range of another extra is no pin
    assert found["ray"] == "2.55.0"
    assert not {"torch", "grpcio"} & found.keys()  # any version, any from one on
    assert pins("no-such-package") == {}


@pytest.mark.e2e
def test_packages_of_this_environment():
    found = find_packages()
    assert found.keys() == DISTRIBUTIONS.keys()
    assert found["openrlhf"] == Package("0.11.2", True)
    assert found["torch"].fault is None
    assert found["torch"].facts.keys() == {"built_for", "nccl", "devices", "gcc", "cpu", "os", "processor"}
    assert platform.machine() in found["torch"].facts["os"]
    assert found["vllm"].facts["platform"] in ("cpu", "cuda")
