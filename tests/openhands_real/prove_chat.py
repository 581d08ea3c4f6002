"""Proves with the real OpenHands that a conversation goes back with the files: what counts is what the model gets
afterwards. Three turns, back to before the second, an edited text; undo; the first branch again; redo. Used by
prove.py; standard library only.
"""
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "recorder"))

import mock_llm  # noqa: E402
import story  # noqa: E402

KEY = "proof-key-5d0c"
SCRIPT = [
    ("message one", [story.shell("echo 1 > a"), story.finish("One.")]),
    ("message two", [story.shell("echo 2 > a && mv notes/ideas.md ideas.md"), story.finish("Two.")]),
    ("message three", [story.shell("echo 3 > a && echo 3 > c"), story.finish("Three.")]),
    ("edited two", [story.shell("echo edited > a && echo e > e"), story.finish("Edited.")]),
    ("message four", [story.shell("echo 4 > a"), story.finish("Four.")]),
    ("message five", [story.shell("echo 5 > a"), story.finish("Five.")]),
    ("instead of one", [story.shell("echo first > a && echo first > first"), story.finish("First.")]),
    ("instead of four", [story.shell("echo last > a && echo last > last"), story.finish("Last.")]),
    ("message slow", [story.shell("sleep 30; echo slow > slow"), story.finish("Slow.")]),
]


def heard(request):
    """The human's messages in a request to the model, and all of its text."""
    said = [mock_llm.text_of(m.get("content")) for m in request["messages"] if m["role"] == "user"]
    known = [text for text, _ in SCRIPT]
    return [next(k for k in known if k in s) for s in said if any(k in s for k in known)], json.dumps(request["messages"])


class Model:
    """The scripted model, and what it was asked."""

    def __init__(self):
        self.log = []
        self.server = mock_llm.serve(SCRIPT, self.log)
        self.port = self.server.server_port

    def close(self):
        self.server.shutdown()


class Steps:
    """The same steps for each way to run OpenHands. `say(text)` sends a message and waits for the end of its turn."""

    def __init__(self, proof, name, root, conversation, say, model):
        self.proof, self.name, self.root = proof, name, root
        self.conversation, self.say, self.model = conversation, say, model

    def check(self, what, good, note=""):
        self.proof.check(f"{self.name}: {what}", good, note)

    def respool(self, *words):
        return self.proof.run("--yes", "-c", self.conversation(), *words, cwd=self.root)

    def turn(self, text, want, without=()):
        """Sends it; the model must get these messages, and nothing of the others."""
        self.model.log.clear()
        self.say(text)
        got, everything = heard(self.model.log[0]) if self.model.log else ([], "")
        self.check(f"'{text}': the model gets {want} and no more", got == want, got)
        left = [w for w in without if w in everything]
        self.check(f"'{text}': nothing else of the other branch", not left, left)
        self.check(f"'{text}': the agent's own instructions are there",
                   bool(self.model.log) and self.model.log[0]["messages"][0]["role"] == "system")
        return self.proof.digest(self.root)

    def run(self):
        one, two, three = "message one", "message two", "message three"
        start = self.proof.digest(self.root)
        first = self.turn(one, [one])
        self.turn(two, [one, two])
        third = self.turn(three, [one, two, three])
        code, done = self.respool("rewind", "m2", "--both")
        self.check("rewind m2 --both", code == 0 and done.get("chat") == "rewound" and done.get("verified") is True, done)
        self.check("the files are those of turn 1", self.proof.digest(self.root) == first)
        edited = self.turn("edited two", [one, "edited two"], (two, three, "ideas.md"))
        self.check("the edited turn changed files", edited not in (first, third))
        code, done = self.respool("undo")
        self.check("undo", code == 0 and done.get("chat") == "rewound", done)
        self.check("the files are those of turn 3 again", self.proof.digest(self.root) == third)
        fourth = self.turn("message four", [one, two, three, "message four"], ("edited two",))
        code, done = self.respool("redo")
        self.check("redo", code == 0 and done.get("chat") == "rewound", done)
        self.turn("message five", [one, "edited two", "message five"], (two, three, "message four"))
        code, done = self.respool("undo")
        self.check("undo again", code == 0 and self.proof.digest(self.root) == fourth, done)
        code, done = self.respool("rewind", "m1")
        self.check("the first message", code == 0 and done.get("chat") == "rewound"
                   and self.proof.digest(self.root) == start, done)
        self.turn(one, [one], (two, three, "edited two", "message four", "message five"))


def by_sdk(proof):
    """The SDK alone: nobody holds the store between its runs."""
    root, model, number = proof.workspace("chat-sdk"), Model(), str(uuid.uuid4())
    proof.install_hooks(root)

    def say(text):
        done = subprocess.run([proof.python, str(HERE / "say.py"), str(root), str(proof.conversations), number,
                               str(model.port), text], env=proof.env, cwd=root, capture_output=True, text=True,
                              timeout=240)
        if done.returncode:
            raise SystemExit(f"the OpenHands run failed:\n{done.stderr[-2000:]}")

    Steps(proof, "chat, SDK", root, lambda: number.replace("-", ""), say, model).run()
    proof.stop_shells()
    proof.untrack(root)
    model.close()


def by_cli(proof, openhands):
    """The command line tool, whose store has no tree: later events go to an archive and come back."""
    root, model = proof.workspace("chat-cli"), Model()
    proof.install_hooks(root)
    env = proof.env | {"LLM_API_KEY": "sk-dummy", "LLM_MODEL": "openai/gpt-4o", "OPENHANDS_SUPPRESS_BANNER": "1",
                       "LLM_BASE_URL": f"http://127.0.0.1:{model.port}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    known = {p.name for p in proof.conversations.iterdir()}

    def conversation():
        new = {p.name for p in proof.conversations.iterdir()} - known
        return new.pop() if new else None

    def say(text):
        resume = ["--resume", conversation()] if conversation() else []
        subprocess.run([openhands, "--headless", "--override-with-envs", "--exit-without-confirmation", *resume,
                        "-t", text], env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=240,
                       check=True)

    Steps(proof, "chat, CLI", root, conversation, say, model).run()
    proof.stop_shells()
    proof.untrack(root)
    model.close()


class Server:
    """A real agent server, with a key or without, and its REST interface."""

    def __init__(self, proof, python, key=KEY):
        self.proof, self.python, self.key = proof, python, key
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = None

    def start(self):
        env = self.proof.env | {"OH_CONVERSATIONS_PATH": str(self.proof.conversations), "OPENHANDS_SUPPRESS_BANNER": "1",
                                "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        if self.key:
            env["OH_SESSION_API_KEYS_0"] = self.key
        self.process = subprocess.Popen(
            [self.python, "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(self.port)], env=env,
            cwd=self.proof.scratch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the agent server did not start") from None
                time.sleep(0.1)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(40)

    def __call__(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"}
                                         | ({"X-Session-API-Key": self.key} if self.key else {}))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as e:
            raise SystemExit(f"{method} {path}: {e.code} {e.read().decode()[:500]}") from e

    def until(self, conversation, status, limit=60):
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if self("GET", f"/api/conversations/{conversation}")["execution_status"] == status:
                return
            time.sleep(0.05)
        raise SystemExit(f"the agent was not {status} in time")

    def conversation(self, root, model):
        """A new one in this workspace, with the hooks of its project."""
        hooks = json.loads((root / ".openhands" / "hooks.json").read_text())["hooks"]
        agent = {"kind": "Agent", "tools": [{"name": "terminal"}, {"name": "file_editor"}],
                 "llm": {"model": "openai/gpt-4o", "base_url": f"http://127.0.0.1:{model.port}/v1", "api_key": "sk-dummy",
                         "usage_id": "agent", "num_retries": 0}}
        return self("POST", "/api/conversations", {
            "agent": agent, "workspace": {"kind": "LocalWorkspace", "working_dir": str(root)}, "autotitle": False,
            "hook_config": hooks})["id"]


def by_server(proof, python):
    """The agent server: it moves the head itself; interrupted while it works; after a kill -9 the store is free."""
    root, model, server = proof.workspace("chat-server"), Model(), Server(proof, python)
    proof.install_hooks(root)
    server.start()
    try:
        number = server.conversation(root, model)

        def send(text):
            server("POST", f"/api/conversations/{number}/events",
                   {"role": "user", "content": [{"type": "text", "text": text}], "run": True})

        def say(text):
            send(text)
            server.until(number, "finished")

        steps = Steps(proof, "chat, agent server", root, lambda: number.replace("-", ""), say, model)
        steps.run()
        interrupted(steps, server, number, send)
        killed(steps, server)
    finally:
        if server.process.poll() is None:
            server.stop()
    proof.stop_shells()
    proof.untrack(root)
    model.close()


def interrupted(steps, server, number, send):
    before = steps.proof.digest(steps.root)
    send("message slow")
    server.until(number, "running")
    until = time.monotonic() + 30
    while len(steps.model.log) < 2 and not tmux_sleeps(steps) and time.monotonic() < until:
        time.sleep(0.1)
    code, done = steps.respool("rewind", "m2")
    steps.check("at work: refused, with the flag that helps",
                code == 3 and "--interrupt" in json.dumps(done) and str(server.process.pid) in json.dumps(done), done)
    code, done = steps.respool("rewind", "m2", "--interrupt")
    steps.check("at work: interrupted, and gone back", code == 0 and done.get("chat") == "rewound", done)
    steps.check("the files are those before the slow message", steps.proof.digest(steps.root) == before)
    steps.check("the key is nowhere in what was said", KEY not in json.dumps(done))
    steps.turn("message two", ["message one", "message two"], ("message slow",))


def tmux_sleeps(steps):
    listed = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
    return any(line.strip() == "sleep 30" for line in listed.splitlines())


def killed(steps, server):
    server.stop(signal.SIGKILL)
    lease = steps.proof.conversations / steps.conversation() / "owner_lease.json"
    steps.check("kill -9 leaves the lease", lease.exists())
    code, plan = steps.proof.run("-c", steps.conversation(), "--dry-run", "rewind", "m2", cwd=steps.root)
    shells = [b for b in plan.get("plan", {}).get("blockers", []) if b["kind"] == "shell"]
    steps.check("its tmux server is listed", bool(shells), plan)
    for shell in shells:
        line = pathlib.Path(f"/proc/{shell['pid']}/cmdline").read_bytes()
        steps.check("and it is one", b"tmux" in line and b"openhands-" in line, line[:80])
    before = steps.proof.conversations / steps.conversation() / "base_state.json"
    old = before.read_text()
    code, done = steps.respool("rewind", "m2")
    steps.check("killed: the store is moved offline", code == 0 and done.get("chat") == "rewound", done)
    new = before.read_text()
    a, b = json.loads(old), json.loads(new)
    changed = {k for k in a if a[k] != b.get(k)} | (b.keys() - a.keys())
    steps.check("killed: nothing but the head changed", changed <= {"leaf_event_id", "execution_status"}, changed)
    server.start()
    steps.turn("edited two", ["message one", "edited two"], ("message two", "message three", "message slow"))

