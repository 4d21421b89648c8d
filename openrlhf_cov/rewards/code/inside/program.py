"""Run in the process of a program; the request at descriptor 3 names one of ``MODES``.

A request is one object of JSON. What this process says about itself is hearsay, as the program may have taken it over:
its exit status names a kind of failure, what it computes is compared by others.
"""

import atexit
import builtins
import gc
import importlib
import io
import json
import linecache
import os
import random
import sys
import threading
import traceback
from _sitebuiltins import Quitter
from contextlib import suppress
from types import ModuleType
from typing import Any, TextIO

REQUEST = 3
CHANNEL = 4
RESULTS = 5
# Exit status of a program that raised, ran out of memory, cannot be compiled.
FAILED = 1
OUT_OF_MEMORY = 71
NO_PROGRAM = 72
FILE = "solution.py"
MAX_MESSAGE = 500
# What may hold text that was written and not closed.
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

# Imported before any program starts.
WARM = (
    "abc array bisect cmath collections collections.abc contextlib copy dataclasses datetime decimal enum fractions "
    "functools heapq io itertools json math numbers operator peer pprint queue random re remote seccomp statistics "
    "string struct testing textwrap threading time traceback types typing unittest wire"
).split()

# What the judges of function calls import before a program, and what statements may use.
PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys, time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, groupby, islice, permutations, product, zip_longest
from math import ceil, comb, factorial, floor, gcd, inf, isclose, isinf, isnan, isqrt, lcm, log, log2, pi, sqrt
from typing import *
"""
_prelude: dict[str, Any] = {}

# Modules all of whose names the judges of LiveCodeBench and PRIME import before a program.
OPEN_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "builtins typing"
).split()
FROM_ALL = "\n".join(
    [
        *(f"from {name} import *" for name in OPEN_MODULES),
        f"import {', '.join(OPEN_MODULES)}".replace(", builtins, typing", ""),
    ]
)
APPS_NAMES = """
import collections, fractions, heapq, itertools, math, random, sys, time
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from heapq import *
from itertools import accumulate, combinations, permutations, product
from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan
from sys import stdin, stdout
from typing import List, Tuple
"""
# Judge -> what it imports before every program. Other judges import nothing for a program that reads its input.
BEFORE = {"livecodebench": FROM_ALL, "prime": FROM_ALL, "apps": APPS_NAMES}
# Judge -> the recursion limit that it sets.
RECURSION = {"livecodebench": 50_000, "prime": 600_000}
_names: dict[str, dict[str, Any]] = {}


def warm_up() -> None:
    """Import what programs use."""
    for name in WARM:
        importlib.import_module(name)
    for name in ("exit", "quit"):  # Python's site, which is left out, adds them
        setattr(builtins, name, Quitter(name, "Ctrl-D"))
    import_names()


def import_names() -> None:
    """Import what judges give to programs."""
    for source, names in [(PRELUDE, _prelude), *((BEFORE[judge], _names.setdefault(judge, {})) for judge in BEFORE)]:
        exec(source, names)
        del names["__builtins__"]


def before_programs(judge: str) -> str:
    """Return the source of what a judge does before a program that reads its input."""
    if judge not in BEFORE:
        return ""
    limit = f"sys.setrecursionlimit({RECURSION[judge]})" if judge in RECURSION else ""
    return f"{BEFORE[judge]}\n{limit}"


def run() -> int:
    """Do what the request says and return the exit status."""
    # JSON makes no cycles; looking for some while a large request is read only takes time.
    gc.disable()
    with os.fdopen(REQUEST, "rb") as file:
        request = json.load(file)
    gc.enable()
    # Every program is a fork of one process and would draw the same numbers.
    random.seed()
    _open_streams()
    sys.argv = [FILE]
    status = 0
    try:
        MODES[request["mode"]](request)
    except SystemExit as end:
        # the judges that run a program as a function compare its output however it exits
        status = 0 if request["mode"] == "script" and request.get("judge") in BEFORE else _status_of(end)
    except BaseException as error:  # the program's
        status = _report(error)
    failed = _finish() if request["mode"] == "script" else 0
    return status or failed


def _open_streams() -> None:
    """Open input and output anew, as Python does when it starts.

    Those of the forked process were opened on a file, and would say of the program's pipes that one can seek in them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        stream = open(  # noqa: SIM115  it stays open as long as the program runs
            number,
            "w" if number else "r",
            buffering=1 if name == "stderr" else -1,
            encoding=old.encoding,
            errors=old.errors,
            newline="\n",
            closefd=False,
        )
        buffer: Any = stream.buffer
        buffer.raw.name = f"<{name}>"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        for names in (_prelude, *_names.values()):
            names.update({each: stream for each, value in names.items() if value is old})


def _finish() -> int:
    """End a program as Python does: wait for threads, call exit handlers, flush output."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    _flush(sys.__stdout__)  # which fails without its buffer, of which the program may have made another stream
    failed = _flush(sys.stdout, sys.stderr)
    # Python writes what open files still hold when it ends, but this process ends by ``os._exit``.
    _flush(*(each for each in gc.get_objects() if type(each) in FILES))
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    sys.modules.pop("__main__", None)
    gc.collect()  # which ends the objects of the program's module
    _flush(sys.stdout, sys.stderr)
    return failed


def _flush(*streams: TextIO | io.IOBase | None) -> int:
    """Write what the streams still hold. Return an exit status: ``FAILED`` if a stream failed, else 0."""
    status = 0
    for stream in streams:
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:  # also of a stream that the program made
            status = FAILED
    return status


def script(request: dict[str, Any]) -> None:
    """Run the program from its first line to its last, with its input at descriptor 0."""
    module = _module("__main__")
    builtins.open = _opener(any_file=request.get("judge") in BEFORE)
    _prepare(request, module)
    if "open" in vars(module):
        vars(module)["open"] = builtins.open
    _run(request, module)


def calls(request: dict[str, Any]) -> None:
    """Call a function for each line of arguments on the channel, and send back its value, or what it raised."""
    import wire

    with _channel() as channel:
        module = _module(wire.OWNER)
        vars(module).update(_prelude)
        _prepare(request, module)
        _run(request, module)
        target = _function(module, request["function"])
        for line in channel:
            try:
                reply = {"value": wire.dump(target(*wire.load(json.loads(line))))}
            except (MemoryError, SystemExit):
                raise
            except BaseException as error:
                reply = {"error": _described(error)}
            channel.write(wire.line(reply))
            channel.flush()


def served(request: dict[str, Any]) -> None:
    """Send the names of the program's module over the channel, and answer whatever the tests then ask of them."""
    import peer
    import wire

    with _channel() as channel:
        module = _module(wire.OWNER)
        _run(request, module)
        side = peer.Peer(channel, trusting=True, owner=wire.OWNER)
        side.say({"names": peer.names_of(vars(module), side)})
        side.serve()


def tests(request: dict[str, Any]) -> None:
    """Run the tests of the program on the other side of the channel."""
    import testing

    with _channel() as channel, os.fdopen(RESULTS, "wb") as results:
        testing.run(request, channel, results, _prelude)


MODES = {"script": script, "calls": calls, "served": served, "tests": tests}


def _channel() -> io.BufferedRWPair:
    """Open the channel, and discard all output from here on, so that a full pipe cannot block the program."""
    import socket

    global _messages
    _messages = os.dup(2)
    nowhere = os.open("/dev/null", os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    return socket.socket(fileno=CHANNEL).makefile("rwb")


# Where the last words of a program go.
_messages = 2


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    return module


def _prepare(request: dict[str, Any], module: ModuleType) -> None:
    """Give a program the names and the recursion limit that its judge gives."""
    judge = request.get("judge", "")
    vars(module).update(_names.get(judge, {}))
    if judge in RECURSION:
        sys.setrecursionlimit(RECURSION[judge])


def _opener(any_file: bool) -> Any:
    """Return ``open`` with the input at /dev/stdin, which the sandbox lacks.

    With ``any_file`` a file that does not exist is the input, too, as it is for judges that replace ``open``.
    """
    real = builtins.open

    def open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        reads = isinstance(file, str) and isinstance(mode, str) and mode.startswith("r") and "+" not in mode
        if reads and (file == "/dev/stdin" or (any_file and not os.path.exists(file))):
            file = os.dup(0)
        return real(file, mode, *args, **options)

    return open


def _run(request: dict[str, Any], module: ModuleType) -> None:
    if request.get("prelude"):
        exec(compile(request["prelude"], "prelude.py", "exec"), vars(module))
    try:
        code = compile(request["source"], FILE, "exec")
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:  # null bytes, too many brackets
        raise SyntaxError(str(error)) from None
    # Tracebacks take the lines of a file from this cache, and the program has no file.
    lines = request["source"].splitlines(keepends=True)
    linecache.cache[FILE] = (len(request["source"]), None, lines, FILE)
    exec(code, vars(module))


def _function(module: ModuleType, name: str) -> Any:
    """Return the function to call: a method of the class Solution, as on LeetCode, or a function of the module."""
    solution = vars(module).get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    return vars(module)[name]


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 255
    print(end.code, file=sys.stderr)
    return FAILED


def _report(error: BaseException) -> int:
    with suppress(OSError):
        os.write(_messages, _described(error).encode(errors="replace"))
    # Only ``_run`` raises it "from None"; one from ``eval`` in the program is an error like others.
    if isinstance(error, SyntaxError) and error.__cause__ is None and error.__suppress_context__:
        return NO_PROGRAM
    return OUT_OF_MEMORY if isinstance(error, MemoryError) else FAILED


def _described(error: BaseException) -> str:
    """Return the end of a traceback, from the first line of the program on."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != FILE:
        frame = frame.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frame, limit=-3, chain=False)
    except Exception:  # the error's own text fails
        lines = [type(error).__name__]
    return "".join(lines).removeprefix("Traceback (most recent call last):\n")[-MAX_MESSAGE:]
