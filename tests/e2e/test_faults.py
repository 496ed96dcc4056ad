"""Faults of the system around the process: files that change, memory, pipes that nobody reads, signals, limits, descriptors."""

import http.client
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from coppice_process import TIMEOUT_S, Coppice, binary, free_port, model_path

SMALL = ("--kv-bytes", "64MiB")


def serve(*arguments: str, model=None, **options) -> subprocess.CompletedProcess:
    command = [binary(), "serve", "--model", str(model or model_path()), "--port", "0", *SMALL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, **options)


def test_a_model_that_is_cut_while_it_serves(tmp_path):
    model = tmp_path / "model.gguf"
    shutil.copy(model_path(), model)
    with Coppice(*SMALL, model=str(model)) as server:
        os.truncate(model, 4096)
        # The tokens' embeddings are read from the mapping.
        try:
            server.post("/v1/completions", {"prompt": list(range(20000, 20100)), "max_tokens": 1})
        except OSError:
            pass
        assert server.process.wait(TIMEOUT_S) == 1
        assert "The model's file was changed or cut while it was served" in server.log.read_text()


def test_a_model_that_is_deleted_or_replaced_by_rename(tmp_path):
    model = tmp_path / "model.gguf"
    shutil.copy(model_path(), model)
    with Coppice(*SMALL, model=str(model)) as server:
        (tmp_path / "new.gguf").write_text("another one")
        os.rename(tmp_path / "new.gguf", model)
        server.post("/v1/completions", {"prompt": list(range(20000, 20100)), "max_tokens": 1})


def test_weights_that_are_no_numbers(tmp_path):
    model = tmp_path / "model.gguf"
    shutil.copy(model_path(), model)
    with model.open("r+b") as file:  # all scales become NaN
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 8)
        file.write(b"\xff" * (size - size // 8))
    done = serve(model=model)
    assert done.returncode == 1 and "gives no numbers" in done.stderr.splitlines()[-1], done.stderr
    assert "ready" not in done.stderr


def test_a_step_without_memory_costs_its_requests_only():
    """The tensor library ended the process, and started a debugger on it."""
    with Coppice(*SMALL) as server:
        pid = server.process.pid
        ask = lambda: server.post("/v1/completions", {"prompt": list(range(20000, 21000)), "max_tokens": 1})  # noqa: E731
        server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1})
        size = int(re.search(r"VmSize:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) << 10
        resource.prlimit(pid, resource.RLIMIT_AS, (size + (64 << 10), resource.RLIM_INFINITY))
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError) as failed:
                ask()
            assert failed.value.code in (500, 503)
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == "", "a debugger"
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ask()
        assert server.end() == 0


def test_a_log_that_nobody_reads():
    reading, writing = os.pipe()
    with Coppice(*SMALL, "--verbose", log_to=writing) as server:
        for i in range(200):  # far more than a pipe holds
            server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "x" * 1000 + str(i): 1})
        assert server.get("/health")[0] == 200
        assert server.end() == 0
    os.close(writing)
    with os.fdopen(reading, "rb") as log:
        assert len(log.read()) < 200_000


def wait_until_held(process: subprocess.Popen, number: int):
    """Until the signal is blocked, to be waited for: a busy machine may take seconds to start the process. It must be one of its first deeds."""
    proc = Path(f"/proc/{process.pid}")
    end = time.monotonic() + TIMEOUT_S
    held = False
    while not held:
        assert process.poll() is None and time.monotonic() < end
        ticks = (proc / "stat").read_text().rpartition(")")[2].split()[11:13]  # before one looks: it goes on meanwhile
        blocked = int(re.search(r"SigBlk:\s*(\w+)", (proc / "status").read_text())[1], 16)
        held = blocked >> (number - 1) & 1 and (proc / "comm").read_text() == "coppice\n"
        assert held or sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") < 0.3, "seconds of CPU before"
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_time_ends_in_good_order(number):
    seed = int(os.environ.get("COPPICE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    for _ in range(6):
        process = subprocess.Popen([binary(), "serve", "--model", model_path(), "--port", "0", *SMALL],
                                   stderr=subprocess.DEVNULL)
        wait_until_held(process, number)
        time.sleep(draw.uniform(0, 0.6))
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0, f"seed {seed}"


def test_a_hangup_at_any_time_ends_nothing_where_there_are_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-a\n")
    seed = int(os.environ.get("COPPICE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    for _ in range(5):
        with Coppice(*SMALL, "--api-keys", str(keys), log_to=subprocess.DEVNULL, wait_ready=False) as server:
            wait_until_held(server.process, signal.SIGHUP)
            time.sleep(draw.uniform(0, 0.3))
            server.process.send_signal(signal.SIGHUP)
            server.wait(server._healthy)
            assert server.end() == 0, f"seed {seed}"


def new_group(parent: Path, limit: str, size: int):
    """A control group of memory within this process's, or None."""
    try:
        group = Path(tempfile.mkdtemp(prefix="coppice-", dir=parent))
        (group / limit).write_text(str(size))
        return group
    except OSError:
        return None


def test_the_limit_of_a_control_group_and_its_parent():
    """A real one, where one may be made: what it leaves is what the pool may have. Its own parent's limit is the lower one."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    places = [(Path("/sys/fs/cgroup/memory") / path.strip("/"), "memory.limit_in_bytes") for _, kinds, path in lines if "memory" in kinds.split(",")]
    places += [(Path("/sys/fs/cgroup") / path.strip("/"), "memory.max") for number, _, path in lines if number == "0"]
    made = []
    try:
        for parent, limit in places:
            made = [group for group in [new_group(parent, limit, 400 << 20)] if group]
            inner = made and new_group(made[0], limit, 1 << 30)
            if inner:
                made.append(inner)
                break
        if len(made) < 2:
            pytest.skip("no control group may be made here")
        enter = lambda: (made[1] / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        done = serve("--kv-bytes", "600MiB", preexec_fn=enter)
        assert done.returncode == 1 and "memory" in done.stderr.splitlines()[-1], done.stderr
        with Coppice("--kv-bytes", "32MiB", "--ctx", "512", preexec_fn=enter) as server:
            assert server.end() == 0
    finally:
        for group in reversed(made):
            for _ in range(100):  # its processes have just ended
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)


def test_a_second_signal_ends_it_though_nothing_else_moves():
    """The first one waits for the stream, whose reader doesn't read."""
    with Coppice(*SMALL, "--drain-seconds", "100") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            body = b'{"prompt": [1], "max_tokens": 100000, "stream": true, "ignore_eos": true}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert client.recv(1) == b"H"
            server.process.send_signal(signal.SIGTERM)
            server.wait(lambda: "signal 15" in server.log.read_text())
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(TIMEOUT_S) == 128 + 15


def test_a_full_file_system_for_the_log_ends_nothing():
    with Coppice(*SMALL) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "no such field": 1})
        assert server.get("/health")[0] == 200


def test_a_revoked_key_ends_though_there_are_no_descriptors(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-a\nkey-b\n")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with Coppice(*SMALL, "--api-keys", str(keys)) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)

        def status():
            client.request("GET", "/v1/models", headers={"Authorization": "Bearer key-a"})
            reply = client.getresponse()
            reply.read()
            return reply.status

        assert status() == 200
        most = max(int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")) + 1
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        others = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]  # they take what is free below
        server.wait(lambda: "accept: Too many open files" in server.log.read_text())
        keys.write_text("key-b\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "Until then the keys stay" in server.log.read_text())
        assert status() == 200
        time.sleep(1)
        assert server.log.read_text().count("accept: Too many open files") == 1
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        server.wait(lambda: status() == 401)
        for other in others:
            other.close()
        client.close()
        assert server.end() == 0


def test_few_descriptors_are_said_once():
    with Coppice(*SMALL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))) as server:
        assert server.log.read_text().count("too few descriptors (ulimit -n") == 1


def test_no_thread_and_no_permission_are_said_in_words():
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else, whom no other test runs as")
    folder = Path(tempfile.mkdtemp(prefix="coppice-others-"))  # pytest's folders are closed to others
    try:
        folder.chmod(0o755)
        for source, name in ((binary(), "coppice"), (model_path(), "model.gguf")):
            shutil.copy(source, folder / name)
        (folder / "keys").write_text("key-a\n")
        (folder / "keys").chmod(0)

        def complaint(processes, *arguments):
            def become():
                os.setresuid(54321, 54321, 54321)
                resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))

            command = [folder / "coppice", "serve", "--model", folder / "model.gguf", "--port", "0", *SMALL, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=become, cwd="/", env={"HOME": "/"})
            assert done.returncode == 1, done.stderr
            return done.stderr.splitlines()[-1]

        assert "Permission denied" in complaint(4096, "--api-keys", folder / "keys")
        assert "Cannot start a thread" in complaint(1)
        (folder / "model.gguf").chmod(0)
        assert "Permission denied" in complaint(4096)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_leaves_no_core_file(tmp_path, number):
    """It would hold prompts and keys. The limit that the process is started with allows one, of any size."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]

    def begin():
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    with Coppice(*SMALL, preexec_fn=begin) as server:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_CORE) == (0, 0)
        server.process.send_signal(number)
        assert os.waitid(os.P_PID, server.process.pid, os.WEXITED | os.WNOWAIT).si_code == os.CLD_KILLED, "not CLD_DUMPED"
        assert server.process.wait(TIMEOUT_S) == -number
    assert os.listdir(tmp_path) == []


def test_no_program_gets_a_dump_from_a_pipe():
    """No limit holds that. Of a process that may not be dumped the kernel gives /proc/PID to root."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else, whose process may be looked at")
    with tempfile.TemporaryDirectory(prefix="coppice-others-") as folder:  # pytest's folders are closed to others
        os.chmod(folder, 0o755)
        program = shutil.copy(binary(), folder)
        model = shutil.copy(model_path(), folder)
        os.chmod(model, 0o644)
        command = [program, "serve", "--model", model, "--port", str(port := free_port()), *SMALL]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.setresuid(54321, 54321, 54321), cwd="/", env={"HOME": "/"})
        try:
            end = time.monotonic() + TIMEOUT_S
            with socket.socket() as probe:
                while probe.connect_ex(("127.0.0.1", port)) != 0 and process.poll() is None and time.monotonic() < end:
                    time.sleep(0.02)
            assert os.stat(f"/proc/{process.pid}/status").st_uid == 0
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def test_hosts():
    done = serve("--host", "")
    assert done.returncode == 2 and "0.0.0.0" in done.stderr, done.stderr
    done = serve("--host", "no-such-host.invalid")
    assert done.returncode == 1 and "no-such-host.invalid" in done.stderr.splitlines()[-1], done.stderr
    with Coppice(*SMALL, "--host", "0.0.0.0") as server:
        assert "anybody who reaches 0.0.0.0" in server.log.read_text()
    if not socket.has_ipv6:
        return
    with Coppice(*SMALL, "--host", "[::1]", log_to=subprocess.DEVNULL, wait_ready=False) as server:
        server.url = f"http://[::1]:{server.port}"
        server.wait(server._healthy)


def test_an_empty_key_is_refused_as_an_unset_variable_gives_it():
    done = serve("--api-key", "")
    assert done.returncode == 2 and "--api-key" in done.stderr, done.stderr
    for name in ("LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "VLLM_API_KEY"):
        for value in ("", ",", ",,"):  # "$ONE,$OTHER"
            done = serve(env=os.environ | {name: value})
            assert done.returncode == 2 and name in done.stderr, done.stderr
        with Coppice(*SMALL, "--api-key", "given", preexec_fn=lambda name=name: os.putenv(name, "")):
            pass


def test_a_name_with_two_addresses_is_listened_on_at_both():
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        pytest.skip("this machine has no /etc/hosts, as a bare Debian: nothing is named localhost")
    with Coppice(*SMALL, "--host", "localhost") as server:
        for address in addresses:
            with socket.create_connection((address, server.port), timeout=TIMEOUT_S):
                pass


def test_a_model_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    done = serve(model=tmp_path / "model.gguf")
    assert done.returncode == 1 and "model.gguf" in done.stderr.splitlines()[-1], done.stderr


def with_stack(soft: int, hard: int):
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


@pytest.mark.parametrize("path", ["pipe", "/dev/zero"])
def test_a_chat_template_that_never_ends(tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    done = serve("--chat-template", str(tmp_path / path))
    assert done.returncode == 1 and "it is no file" in done.stderr.splitlines()[-1], done.stderr


def test_a_small_stack():
    process = subprocess.Popen([binary(), "serve", "--model", model_path(), "--port", str(port := free_port()), *SMALL],
                               stderr=subprocess.DEVNULL, preexec_fn=with_stack(256 << 10, resource.RLIM_INFINITY))
    try:
        nested = b'{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": %s}}, ' \
                 b'"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}' % (
                     b'{"type": "array", "items": ' * 20 + b"{}" + b"}" * 20)
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end and process.poll() is None:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", nested)
                assert urllib.request.urlopen(request, timeout=TIMEOUT_S).status == 200
                break
            except OSError:
                time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    done = serve(preexec_fn=with_stack(256 << 10, 512 << 10))
    assert done.returncode == 1 and "ulimit -s" in done.stderr.splitlines()[-1], done.stderr


def test_closed_descriptors():
    """Sockets and files would get their numbers, and the log would be written into them."""
    def close_all():
        for fd in (0, 1, 2):
            os.close(fd)

    # Ready first: while the loader is at work, its own files have these numbers.
    with Coppice(*SMALL, log_to=subprocess.DEVNULL, preexec_fn=close_all) as server:
        for fd in (0, 1, 2):
            assert os.readlink(f"/proc/{server.process.pid}/fd/{fd}") == "/dev/null"
        assert server.end() == 0
