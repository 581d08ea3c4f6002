"""Proves respool against the real OpenHands. Called by prove.sh; standard library only.

    prove.py RESPOOL SDK_PYTHON SCRATCH [--cli OPENHANDS] [--server PYTHON] [--only STEP]
"""
import argparse
import fcntl
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "recorder"))

import mock_llm  # noqa: E402
import prove_chat  # noqa: E402
import prove_container  # noqa: E402
import prove_resend  # noqa: E402
import story  # noqa: E402
import trace_tree as trace  # noqa: E402

CHECKPOINT = re.compile(r"\bcp-[0-9a-z]{10}\b")


class Watcher:
    """`respool --json watch` and the lines that it printed."""

    def __init__(self, command, env, cwd):
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.told, self.news = [], threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.told.append(json.loads(line))
                self.news.notify_all()

    def wait(self, event, count=1, limit=60):
        """Until so many events of this name were told."""
        def enough():
            return sum(e.get("event") == event for e in self.told) >= count
        with self.news:
            if not self.news.wait_for(enough, limit):
                print(f"     waited in vain for {count} x {event}: {self.told}", flush=True)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(20)
        self.reader.join(5)
        return code, self.process.stderr.read()[-500:]


class Proof:
    def __init__(self, args):
        self.respool = os.path.abspath(args.respool)
        self.python = args.python
        self.scratch = pathlib.Path(args.scratch).resolve()
        self.home = self.scratch / "home"
        self.failed = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SUDO_", "XDG_", "OPENHANDS_"))}
        self.env.update(HOME=str(self.home), PATH=f"{os.path.dirname(self.respool)}:{os.environ['PATH']}",
                        PYTHONDONTWRITEBYTECODE="1", TMUX_TMPDIR=str(self.scratch / "tmux"))
        self.conversations.mkdir(parents=True)
        (self.scratch / "tmux").mkdir()

    @property
    def conversations(self):
        return self.home / ".openhands" / "conversations"

    def check(self, name, good, note=""):
        print(("ok   " if good else "FAIL ") + name + (f": {note}" if note and not good else ""), flush=True)
        if not good:
            self.failed.append(name)

    def command(self, *words):
        return [self.respool, "--json", "--state-dir", str(self.scratch / "state"), *words]

    def run(self, *words, cwd=None):
        done = subprocess.run(self.command(*words), env=self.env, cwd=cwd or self.scratch, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=180)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            document = {}
        if done.returncode:
            print(f"     respool {' '.join(words)}: exit {done.returncode}: {done.stdout.strip()} "
                  f"{done.stderr.strip()[-300:]}", flush=True)
        return done.returncode, document

    def workspace(self, name):
        root = self.scratch / name
        root.mkdir()
        for path, text in story.INITIAL.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        code, tracked = self.run("--yes", "track", str(root))
        self.check(f"{name}: track", code == 0 and tracked.get("path") == str(root), tracked)
        return root

    def untrack(self, root):
        last = self.digest(root)
        code, done = self.run("--yes", "untrack", str(root))
        self.check(f"{root.name}: untrack", code == 0 and not os.path.ismount(root), done)
        self.check(f"{root.name}: the plain folder has the same content", self.digest(root) == last)

    def install_hooks(self, root):
        code, _ = self.run("--yes", "hooks", "install", "openhands", "--project", cwd=root)
        hooks = root / ".openhands" / "hooks.json"
        self.check("hooks install --project", code == 0 and hooks.exists(), str(hooks))
        text = hooks.read_text() if hooks.exists() else ""
        self.check("hooks.json has a prompt hook and a stop hook",
                   all(re.search(word, text, re.I) for word in ("user_?prompt_?submit", '"stop"')), text)

    def events(self, conversation):
        folder = self.conversations / conversation / "events"
        return [json.loads(f.read_text()) for f in sorted(folder.glob("event-*.json"))]

    def hook_answers(self, name, conversation, rows):
        """The store itself says which message has which checkpoint."""
        events = self.events(conversation)
        for row in rows:
            runs = [e for e in events if e["kind"] == "HookExecutionEvent" and e.get("message_id") == row["id"]]
            said = CHECKPOINT.findall(runs[0]["stdout"]) if runs else []
            own = (row.get("checkpoint") or {}).get("id")
            self.check(f"{name}: OpenHands recorded the checkpoint of message {row['message']}",
                       own is not None and own in said and runs[0]["exit_code"] == 0, (said, own))
            self.check(f"{name}: the hook's answer names the command that restores it",
                       bool(runs) and "respool" in runs[0]["stdout"] and "rewind" in runs[0]["stdout"],
                       runs and runs[0]["stdout"])

    def timeline(self, name, conversation, count, states=("ok",)):
        code, document = self.run("timeline", conversation)
        rows = document.get("rows", [])
        self.check(f"{name}: timeline", code == 0 and len(rows) == count, f"exit {code}, {len(rows)} rows")
        for row in rows:
            state = (row.get("checkpoint") or {}).get("state")
            self.check(f"{name}: message {row['message']} has its checkpoint ({state})", state in states,
                       row.get("checkpoint"))
            self.check(f"{name}: the end of turn {row['message']} has one too",
                       bool((row.get("checkpoint") or {}).get("turn_end")), row.get("checkpoint"))
            changes = row.get("changes") or {}
            self.check(f"{name}: changes of message {row['message']}: {sum(changes.values())}", sum(changes.values()) > 0)
        return rows

    def between(self, name, rows):
        """The user edited between messages 3 and 4, and nowhere else."""
        counts = {r["message"]: sum((r.get("between") or {}).values()) for r in rows}
        self.check(f"{name}: the user's own edits are told apart",
                   counts.get(3, 0) > 0 and not any(n for m, n in counts.items() if m != 3), counts)

    def digest(self, root):
        state = trace.State(root)
        text = state.digest()
        state.close()
        return text

    def rewinds(self, name, root, result):
        """To just before every message, and back by undo: byte for byte."""
        conversation, turns = result["conversation"], result["turns"]
        for number in (2, 5, 1):
            code, done = self.run("--yes", "-c", conversation, "rewind", f"m{number}", "--files", cwd=root)
            self.check(f"{name}: rewind m{number}", code == 0 and done.get("verified") is True, done)
            self.check(f"{name}: the tree is the one from before message {number}",
                       self.digest(root) == turns[number - 1]["before"])
            code, done = self.run("--yes", "undo", cwd=root)
            self.check(f"{name}: undo", code == 0 and done.get("verified") is True, done)
            self.check(f"{name}: the tree is the last one again", self.digest(root) == turns[-1]["after"])
        code, done = self.run("--yes", "-c", conversation, "rewind", "m3.end", "--files", cwd=root)
        self.check(f"{name}: rewind m3.end", code == 0 and self.digest(root) == turns[2]["after"], done)
        code, changes = self.run("-c", conversation, "changes", "m3", "m3.end", cwd=root)
        renames = [(c["from"], c["path"]) for c in changes if c["kind"] == "renamed"] if code == 0 else []
        self.check(f"{name}: the rename of message 3 is one row",
                   renames == [("skylog/store.py", "skylog/journal.py")], renames)

    def stop_shells(self):
        """The command line tool leaves its tmux server behind, with shells that stand in the workspace."""
        for server in (self.scratch / "tmux").glob("tmux-*/*"):
            subprocess.run(["tmux", "-S", str(server), "kill-server"], env=self.env, capture_output=True, check=False)

    def drive(self, root, *flags):
        result = self.scratch / f"{root.name}.json"
        done = subprocess.run([self.python, str(HERE / "drive.py"), str(root), str(self.conversations), str(result),
                               *flags], env=self.env, cwd=root, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"the OpenHands run failed:\n{done.stderr[-2000:]}")
        return json.loads(result.read_text())

    def by_hook(self):
        root = self.workspace("by-hook")
        self.install_hooks(root)
        result = self.drive(root, "--hooks")
        rows = self.timeline("by hook", result["conversation"], len(result["turns"]))
        self.hook_answers("by hook", result["conversation"], rows)
        self.between("by hook", rows)
        slowest = max(t["sent_in"] for t in result["turns"])
        print(f"     the slowest message was taken in {slowest * 1000:.0f} ms, hook and checkpoint included")
        self.rewinds("by hook", root, result)
        self.goes_on("by hook", root, result["conversation"])
        self.while_rewinding(root, result["conversation"])
        self.untrack(root)

    def goes_on(self, name, root, conversation):
        """After a rewind the agent takes another message; one of several parts, one with a text said before."""
        code, document = self.run("timeline", conversation)
        known = len(document["rows"])
        for count, parts in enumerate((["go on", "and on"], ["go on"]), 1):
            turn = self.drive(root, "--hooks", "--resume", conversation,
                              *(word for part in parts for word in ("--say", part)))["turns"][0]
            code, document = self.run("timeline", conversation)
            rows = document.get("rows", [])
            last = rows[-1] if len(rows) == known + count else {}
            self.check(f"{name}: after the rewind message {known + count} has its checkpoint",
                       (last.get("checkpoint") or {}).get("state") == "ok", last.get("checkpoint"))
            self.hook_answers(name, conversation, [last] if last else [])
            code, done = self.run("--yes", "-c", conversation, "rewind", f"m{known + count}", "--files", cwd=root)
            self.check(f"{name}: rewind m{known + count}", code == 0 and self.digest(root) == turn["before"], done)
            code, done = self.run("--yes", "undo", cwd=root)
            self.check(f"{name}: undo", code == 0 and self.digest(root) == turn["after"], done)

    def while_rewinding(self, root, conversation):
        """A message that comes while an operation changes the files: the agent goes on, and the row says why."""
        code, sandboxes = self.run("sandboxes")
        sandbox = next(s["id"] for s in sandboxes if s["path"] == str(root))
        [folder] = (self.scratch / "state" / "mnt").glob(f"*/s/{sandbox}")
        entry = folder / "ops" / "99999999-op-0000000000.json"
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entry.write_text(json.dumps({"v": 1, "phase": "applying", "kind": "rewind"}))
            try:
                self.drive(root, "--hooks", "--resume", conversation, "--say", "meanwhile")
            finally:
                entry.unlink()
        code, document = self.run("timeline", conversation)
        last = (document.get("rows") or [{}])[-1]
        self.check("a message during a rewind: the row says why it has no checkpoint",
                   (last.get("checkpoint") or {}).get("state") == "failed"
                   and "a rewind is under way" in last["checkpoint"]["reason"], last.get("checkpoint"))
        runs = [e for e in self.events(conversation) if e.get("message_id") == last.get("id")]
        self.check("a message during a rewind: OpenHands recorded the reason and went on",
                   bool(runs) and "a rewind is under way" in runs[0]["stdout"] and runs[0]["success"], runs)

    def not_tracked(self):
        """The hook of a folder that is not tracked lets the agent work, and says why there is no checkpoint."""
        root = self.scratch / "not-tracked"
        root.mkdir()
        for path, text in story.INITIAL.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        self.install_hooks(root)
        result = self.drive(root, "--hooks")
        self.check("not tracked: the agent did all its work", len(result["turns"]) == len(story.SCRIPT))
        runs = [e for e in self.events(result["conversation"]) if e["kind"] == "HookExecutionEvent"]
        self.check("not tracked: each answer says so",
                   bool(runs) and all(f"no checkpoint: {root} is not tracked" in e["stdout"] and e["exit_code"] == 0
                                      for e in runs), runs[:1])

    def watch(self, *words, cwd):
        return Watcher(self.command("watch", *words), self.env, cwd)

    def by_watcher(self):
        root = self.workspace("by-watcher")
        # no conversation is here yet
        watcher = self.watch(cwd=root)
        try:
            watcher.wait("waiting")
            result = self.drive(root, "--thinking", "0.5")
            watcher.wait("turn-end", len(result["turns"]))
            rows = self.timeline("by watcher", result["conversation"], len(result["turns"]), ("ok", "late"))
            self.check("by watcher: nothing came late with half a second of thinking",
                       bool(rows) and all((r.get("checkpoint") or {}).get("state") == "ok" for r in rows))
            self.between("by watcher", rows)
        finally:
            code, errors = watcher.stop()
        self.check("by watcher: SIGTERM ends it", code == 0, (code, errors))
        seen = {e["checkpoint"]: e["how"] for e in watcher.told if e.get("event") == "checkpoint"}
        self.check("by watcher: each checkpoint was told as a JSON line",
                   bool(rows) and all(seen.get((r.get("checkpoint") or {}).get("id")) == "watch" for r in rows), seen)
        self.rewinds("by watcher", root, result)
        self.untrack(root)

    def by_both(self):
        """Hook and watcher together take one checkpoint for each message, the hook's."""
        root = self.workspace("by-both")
        self.install_hooks(root)
        watcher = self.watch(cwd=root)
        try:
            watcher.wait("waiting")
            result = self.drive(root, "--hooks")
            watcher.wait("turn-end", len(result["turns"]))
            rows = self.timeline("by both", result["conversation"], len(result["turns"]))
        finally:
            code, errors = watcher.stop()
        told = [(e["event"], e["how"]) for e in watcher.told if "how" in e]
        want = [("checkpoint", "hook"), ("turn-end", "hook")] * len(rows)
        self.check("by both: the watcher reports what the hook took", told == want, told)
        code, sandboxes = self.run("sandboxes")
        count = next(s["checkpoints"] for s in sandboxes if s["path"] == str(root))
        self.check("by both: one checkpoint a message, one a turn, one at the start", count == 2 * len(rows) + 1, count)
        self.untrack(root)

    def by_cli(self, openhands):
        """The command line tool, whose store is linear: two messages, the second one after a resume."""
        root = self.workspace("by-cli")
        self.install_hooks(root)
        server = mock_llm.serve([
            ("message one", [story.shell("echo 1 > a"), story.finish("One.")]),
            ("message two", [story.shell("echo 2 > a && mv notes/ideas.md ideas.md"), story.finish("Two.")])])
        env = self.env | {"LLM_API_KEY": "sk-dummy", "LLM_MODEL": "openai/gpt-4o", "OPENHANDS_SUPPRESS_BANNER": "1",
                          "LLM_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1",
                          "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        known = {p.name for p in self.conversations.iterdir()}
        before = [self.digest(root)]

        def say(text, *flags):
            subprocess.run([openhands, "--headless", "--override-with-envs", "--exit-without-confirmation", *flags,
                            "-t", text], env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=240,
                           check=True)

        say("message one")
        before.append(self.digest(root))
        conversation = ({p.name for p in self.conversations.iterdir()} - known).pop()
        say("message two", "--resume", conversation)
        last = self.digest(root)
        rows = self.timeline("by CLI", conversation, 2)
        self.hook_answers("by CLI", conversation, rows)
        for number in (2, 1):
            code, done = self.run("--yes", "-c", conversation, "rewind", f"m{number}", "--files", cwd=root)
            self.check(f"by CLI: rewind m{number}", code == 0 and self.digest(root) == before[number - 1], done)
            code, done = self.run("--yes", "undo", cwd=root)
            self.check("by CLI: undo", code == 0 and self.digest(root) == last, done)
        self.stop_shells()
        self.untrack(root)
        server.shutdown()


    def by_server(self, python):
        """The agent server: two conversations in one workspace, one with the hook, both watched."""
        root = self.workspace("by-server")
        self.install_hooks(root)
        model = mock_llm.serve([
            ("plain", [story.shell("echo 1 > a"), story.finish("One.")]),
            ("hooked", [story.shell("echo 2 > a && mv notes/ideas.md ideas.md"), story.finish("Two.")]),
            ("again", [story.shell("echo 3 > b"), story.finish("Three.")])])
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = self.env | {"OH_CONVERSATIONS_PATH": str(self.conversations), "OPENHANDS_SUPPRESS_BANNER": "1",
                          "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        server = subprocess.Popen([python, "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(port)],
                                  env=env, cwd=self.scratch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        watcher = self.watch(cwd=root)
        api = Api(port)
        before = []

        def say(conversation, text):
            before.append(self.digest(root))
            api("POST", f"/api/conversations/{conversation}/events",
                {"role": "user", "content": [{"type": "text", "text": text}], "run": True})
            api.finished(conversation)
            watcher.wait("turn-end", len(before))

        try:
            api.up(server)
            watcher.wait("waiting")
            agent = {"kind": "Agent", "tools": [{"name": "terminal"}, {"name": "file_editor"}],
                     "llm": {"model": "openai/gpt-4o", "base_url": f"http://127.0.0.1:{model.server_port}/v1",
                             "api_key": "sk-dummy", "usage_id": "agent", "num_retries": 0}}
            ids = []
            for hooks in (None, json.loads((root / ".openhands" / "hooks.json").read_text())["hooks"]):
                body = {"agent": agent, "workspace": {"kind": "LocalWorkspace", "working_dir": str(root)},
                        "autotitle": False}
                ids.append(api("POST", "/api/conversations", body | ({"hook_config": hooks} if hooks else {}))["id"])
            say(ids[0], "plain")
            say(ids[1], "hooked")
            say(ids[0], "again")
            last = self.digest(root)
            for name, conversation, count in (("plain", ids[0], 2), ("hooked", ids[1], 1)):
                key = conversation.replace("-", "")
                rows = self.timeline(f"agent server, {name}", key, count, ("ok", "late"))
                if name == "hooked":
                    self.hook_answers("agent server", key, rows)
            how = [(e["event"], e["how"]) for e in watcher.told if "how" in e]
            self.check("agent server: each message and turn end once, by hook or by watcher",
                       [h for _, h in how] == ["watch"] * 2 + ["hook"] * 2 + ["watch"] * 2, how)
            for conversation, number, state in ((ids[0], 2, 2), (ids[1], 1, 1), (ids[0], 1, 0)):
                code, done = self.run("--yes", "-c", conversation, "rewind", f"m{number}", "--files", cwd=root)
                self.check(f"agent server: rewind m{number}", code == 0 and self.digest(root) == before[state], done)
                code, done = self.run("--yes", "undo", cwd=root)
                self.check("agent server: undo", code == 0 and self.digest(root) == last, done)
        finally:
            server.terminate()
            server.wait(30)
            model.shutdown()
            code, errors = watcher.stop()
        self.check("agent server: SIGTERM ends the watcher", code == 0, (code, errors))
        self.stop_shells()
        self.untrack(root)


class Api:
    """The REST interface of the agent server, as far as it is needed."""

    def __init__(self, port, key=None):
        self.base = f"http://127.0.0.1:{port}"
        self.key = {"X-Session-API-Key": key} if key else {}

    def __call__(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"} | self.key)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as e:
            raise SystemExit(f"{method} {path}: {e.code} {e.read().decode()[:500]}") from e

    def up(self, server, limit=60):
        until = time.monotonic() + limit
        while True:
            try:
                with urllib.request.urlopen(self.base + "/health", timeout=5):
                    return
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the agent server did not start") from None
                time.sleep(0.1)

    def finished(self, conversation, limit=60):
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if self("GET", f"/api/conversations/{conversation}")["execution_status"] == "finished":
                return
            time.sleep(0.1)
        raise SystemExit("the agent did not finish")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("respool")
    parser.add_argument("python")
    parser.add_argument("scratch")
    parser.add_argument("--cli")
    parser.add_argument("--server", metavar="PYTHON")
    parser.add_argument("--only", choices=["hook", "not-tracked", "watcher", "both", "chat", "cli", "chat-cli",
                                           "server", "chat-server", "resend", "container"])
    args = parser.parse_args()
    proof = Proof(args)
    try:
        steps = {"hook": proof.by_hook, "not-tracked": proof.not_tracked, "watcher": proof.by_watcher,
                 "both": proof.by_both, "chat": lambda: prove_chat.by_sdk(proof)}
        if args.cli:
            steps["cli"] = lambda: proof.by_cli(args.cli)
            steps["chat-cli"] = lambda: prove_chat.by_cli(proof, args.cli)
        if args.server:
            steps["server"] = lambda: proof.by_server(args.server)
            steps["chat-server"] = lambda: prove_chat.by_server(proof, args.server)
            steps["resend"] = lambda: prove_resend.run(proof, args.server)
            steps["container"] = lambda: prove_container.run(proof, args.server, Api)
        for name in [args.only] if args.only else steps:
            steps[name]()
    finally:
        proof.stop_shells()
    if proof.failed:
        raise SystemExit(f"{len(proof.failed)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
