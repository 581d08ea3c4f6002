"""Proves respool against the real OpenHands. Called by prove.sh; standard library only.

    prove.py RESPOOL SDK_PYTHON SCRATCH [--cli OPENHANDS]
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "recorder"))

import mock_llm  # noqa: E402
import story  # noqa: E402
import trace_tree as trace  # noqa: E402

CHECKPOINT = re.compile(r"\bcp-[0-9a-z]{10}\b")


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
            self.check(f"{name}: changes of message {row['message']}", row.get("changes") is not None)
        return rows

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
        self.check("by hook: the user's own edits are told apart",
                   any(r.get("between") for r in rows if r["message"] == 3),
                   [r.get("between") for r in rows])
        slowest = max(t["sent_in"] for t in result["turns"])
        print(f"     the slowest message was taken in {slowest * 1000:.0f} ms, hook and checkpoint included")
        self.rewinds("by hook", root, result)
        self.untrack(root)

    def by_watcher(self):
        root = self.workspace("by-watcher")
        watcher = subprocess.Popen(self.command("watch"), env=self.env, cwd=root, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(watcher.stdout), daemon=True)
        reader.start()
        try:
            result = self.drive(root, "--thinking", "0.5")
            rows = self.timeline("by watcher", result["conversation"], len(result["turns"]), ("ok", "late"))
            self.check("by watcher: nothing came late with half a second of thinking",
                       bool(rows) and all((r.get("checkpoint") or {}).get("state") == "ok" for r in rows))
        finally:
            watcher.terminate()
            watcher.wait(20)
            reader.join(5)
        told = [json.loads(line) for line in lines]
        seen = {e["checkpoint"] for e in told if e.get("event") == "checkpoint"}
        self.check("by watcher: each checkpoint was told as a JSON line",
                   bool(rows) and all((r.get("checkpoint") or {}).get("id") in seen for r in rows), lines[-3:])
        self.rewinds("by watcher", root, result)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("respool")
    parser.add_argument("python")
    parser.add_argument("scratch")
    parser.add_argument("--cli")
    args = parser.parse_args()
    proof = Proof(args)
    try:
        proof.by_hook()
        proof.by_watcher()
        if args.cli:
            proof.by_cli(args.cli)
    finally:
        proof.stop_shells()
    if proof.failed:
        raise SystemExit(f"{len(proof.failed)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
