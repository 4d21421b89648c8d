"""A stand-in for a sandbox service: SandboxFusion's ``/run_code``, with a plain subprocess for its containers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """One request: run, or fail as ``server.faults`` says."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            return self.send_error(fault)
        content = fault if fault is not None else json.dumps(answer(body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def log_message(self, *_):
        pass


def answer(body):
    """What SandboxFusion says about a program that ran, by its published schema."""
    result = {"status": "Finished", "execution_time": 0.1, "return_code": None, "stdout": "", "stderr": ""}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(body["code"])
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(body["stdin"], timeout=body["run_timeout"])
                result |= {"return_code": process.returncode, "stdout": stdout, "stderr": stderr}
            except subprocess.TimeoutExpired:
                result["status"] = "TimeLimitExceeded"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # as the end of a container
    status = "Success" if result["return_code"] == 0 else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": result, "files": {}}


@contextmanager
def serving():
    """The running service: its ``url``, ``requests``, and ``faults`` that the next answers are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.faults = [], []
    server.url = f"url:http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
