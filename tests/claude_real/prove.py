"""Proves respool against the real Claude Code. Called by prove.sh; standard library only.

    prove.py RESPOOL CLAUDE SCRATCH [--only hook|run|watcher|fork|compaction|interruption] [--vault btrfs|copy]
"""
import argparse
import hashlib
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import model as scripted  # noqa: E402

# three turns: new, changed, renamed and deleted files, modes, links, bytes that are no text
TURNS = [
    "one: begin\n%sh printf one > a.txt; mkdir -p d; printf '\\0\\377' > d/bytes; ln -s a.txt link; chmod 750 d",
    "two: go on\n%sh printf two > a.txt; printf 2 > 'b c.txt'\n%sh mv d e; chmod 600 a.txt",
    "three: make a mess\n%sh rm -rf e link; printf three > a.txt; printf x > first.txt; mkdir -p x/y",
]


def tree(top):
    """Every path below, with all that a restore must bring back."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            what = os.readlink(path) if stat.S_ISLNK(s.st_mode) else None
            if stat.S_ISREG(s.st_mode):
                what = (hashlib.sha256(open(path, "rb").read()).hexdigest(), s.st_mtime_ns)
            found[os.path.relpath(path, top)] = (s.st_mode, s.st_uid, s.st_gid, what)
    return found


class Watcher:
    """`respool --json watch` and what it told."""

    def __init__(self, proof):
        self.process = subprocess.Popen(proof.words("watch"), env=proof.env, cwd=proof.ws, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.told, self.news = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.told.append(json.loads(line))
                self.news.notify_all()

    def wait(self, event, count, limit=30):
        with self.news:
            return self.news.wait_for(lambda: sum(e["event"] == event for e in self.told) >= count, limit)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


class Proof:
    def __init__(self, args, way, vault):
        self.respool, self.claude = os.path.abspath(args.respool), os.path.abspath(args.claude)
        self.name = f"{way} {vault}"
        self.scratch = pathlib.Path(args.scratch).resolve() / f"{way}-{vault}"
        self.home, self.ws = self.scratch / "home", self.scratch / "w"
        self.home.mkdir(parents=True)
        self.ws.mkdir()
        (self.ws / "first.txt").write_text("first\n")
        self.model = scripted.Model()
        self.failed = 0
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SUDO_", "XDG_", "CLAUDE", "ANTHROPIC"))}
        self.env = keep | {"HOME": str(self.home), "ANTHROPIC_BASE_URL": self.model.url, "ANTHROPIC_API_KEY": "dummy",
                           "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
                           # it refuses to skip permissions as root anywhere else
                           "IS_SANDBOX": "1", "PATH": f"{os.path.dirname(self.claude)}:{os.environ['PATH']}"}
        self.ok("track", *(["--vault", vault] if vault else []), str(self.ws))

    def check(self, what, good, note=""):
        print(("ok   " if good else "FAIL ") + f"{self.name}: {what}" + (f": {note}" if note and not good else ""), flush=True)
        self.failed += not good

    def words(self, *words):
        return [self.respool, "--json", "--yes", "--state-dir", str(self.scratch / "state"), *words]

    def run(self, words, **more):
        return subprocess.run(words, env=self.env, cwd=self.ws, capture_output=True, text=True, timeout=180,
                              **({"stdin": subprocess.DEVNULL} | more))

    def ok(self, *words):
        done = self.run(self.words(*words))
        self.check(" ".join(words[:2]), done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def turn(self, n, *before, settings=()):
        """The n-th turn, by a process of Claude Code of its own. Returns its answer."""
        words = [*before, self.claude, *settings, "-p", "--dangerously-skip-permissions", *(["-c"] if n else []), TURNS[n]]
        done = self.run(words)
        steps = TURNS[n].count("%sh ")
        good = done.returncode == 0 and done.stdout == f"done: {steps} steps\n"
        self.check(f"turn {n + 1}", good, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def turns(self, *before, settings=(), after=lambda n: None):
        """All three; the tree before each and at the end."""
        trees = []
        for n in range(len(TURNS)):
            trees.append(tree(self.ws))
            self.turn(n, *before, settings=settings)
            after(n)
        return trees + [tree(self.ws)]

    def judge(self, trees, how):
        """Checkpoints at each message, and back byte for byte."""
        found = self.ok("conversations", "--agent", "claude")
        self.check("one conversation", len(found) == 1 and found[0]["workspace"] == str(self.ws), str(found))
        rows = self.ok("timeline")["rows"]
        self.check("the messages", [r["text"] for r in rows] == TURNS, str(rows))
        self.check("a checkpoint at each", [r["checkpoint"]["state"] for r in rows] == ["ok"] * 3, str(rows))
        self.check("a turn-end at each", all(r["changes"] for r in rows), str(rows))
        said = json.dumps(self.model.sent)
        self.check("the model hears nothing of it", how == "hook" or "respool" not in said.replace(str(self.scratch), ""))
        self.ok("rewind", "m2", "--files")
        self.check("the tree before message 2, byte for byte", tree(self.ws) == trees[1])
        self.ok("undo")
        self.check("undone", tree(self.ws) == trees[3])
        for state, want in (("m1", 0), ("m3", 2), ("m2.end", 2), ("m3.end", 3)):
            self.ok("rewind", state, "--files")
            self.check(f"the tree of {state}", tree(self.ws) == trees[want])
        self.ok("rewind", "m2", "--files")
        # the agent works on in the same conversation
        self.turn(1)

    def end(self):
        self.ok("untrack", str(self.ws))
        self.model.shutdown()
        self.model.server_close()


def by_hook(proof):
    proof.ok("hooks", "install", "claude", "--project")
    status = proof.ok("hooks", "status", "claude")
    proof.check("it says so", status["will_checkpoint"] is True, str(status))
    trees = proof.turns()
    proof.judge(trees, "hook")
    proof.ok("hooks", "uninstall", "claude", "--project")
    proof.check("nothing of it is left", not (proof.ws / ".claude").exists())


def by_run(proof):
    mine = proof.scratch / "mine.json"
    mine.write_text('{"env": {"OF_MINE": "kept"}}')
    protected = [proof.respool, "--yes", "--state-dir", str(proof.scratch / "state"), "run", "--"]
    trees = proof.turns(*protected)
    settings = [p for p in proof.home.rglob("settings*.json")] + [p for p in proof.ws.rglob("settings*.json")]
    proof.check("no file of the user's is touched", not settings, str(settings))
    proof.judge(trees, "run")
    done = proof.run([*protected, proof.claude, "--settings", str(mine), "-p", "--dangerously-skip-permissions",
                      "four\n%sh printf \"$OF_MINE\" > of-mine.txt"])
    got = proof.ws / "of-mine.txt"
    proof.check("settings of the user's own hold too", got.exists() and got.read_text() == "kept", done.stderr)
    proof.check("a checkpoint all the same", "1 checkpoint of messages taken" in done.stderr, done.stderr)
    proof.check("they are as they were", mine.read_text() == '{"env": {"OF_MINE": "kept"}}')


def by_watcher(proof):
    # the message is in the file a quarter of a second after it was sent
    proof.model.thinks = 1
    watcher = Watcher(proof)
    try:
        proof.check("the watcher waits", watcher.wait("waiting", 1))
        def after(n):
            proof.check(f"checkpoint {n + 1}", watcher.wait("checkpoint", n + 1), str(watcher.told))
            proof.check(f"turn-end {n + 1}", watcher.wait("turn-end", n + 1), str(watcher.told))
        trees = proof.turns(after=after)
    finally:
        watcher.stop()
    late = [e for e in watcher.told if e.get("late")]
    proof.check("none is late", not late, str(late))
    proof.judge(trees, "watcher")


EDITED = "two, edited\n%sh printf edited > a.txt"


class Forks:
    """The conversation goes back with the files, and the agent goes on in what respool wrote."""

    def __init__(self, proof):
        self.proof = proof
        self.protected = [proof.respool, "--yes", "--state-dir", str(proof.scratch / "state"), "run", "--"]

    def store(self, conversation):
        return next(self.proof.home.glob(f".claude/projects/*/{conversation}.jsonl"))

    def bytes(self, conversation):
        return self.store(conversation).read_bytes()

    def ask(self, text, *words, protected=True):
        """What the model was sent for this message first; the agent's process of its own has ended then."""
        proof, before = self.proof, len(self.proof.model.sent)
        program = [*(self.protected if protected else []), proof.claude]
        done = proof.run([*program, *words, "-p", "--dangerously-skip-permissions", "--", text])
        sent = [b for b in proof.model.sent[before:] if text in scripted.said(b)]
        good = done.returncode == 0 and sent
        proof.check(f"the agent takes {text[:12]!r}", good, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        return sent[0] if sent else {"messages": []}

    def hears(self, what, sent, texts):
        self.proof.check(f"{what}: the model hears {len(texts)} messages", scripted.said(sent) == texts, str(scripted.said(sent)))

    def rewind(self, state, *words):
        done = self.proof.ok("rewind", state, *words)
        self.proof.check(f"{state} is a fork", done and done["chat"] == "forked" and done["conversation"], str(done))
        return done["conversation"]


def by_fork(proof):
    forks = Forks(proof)
    trees = proof.turns(*forks.protected)
    old = proof.ok("timeline")["conversation"]["id"]
    ids = [r["id"] for r in proof.ok("timeline")["rows"]]
    was = forks.bytes(old)

    # the second message, edited
    new = forks.rewind("m2", "--resend", EDITED)
    proof.check("the tree before message 2", tree(proof.ws) == trees[1])
    sent = forks.ask(EDITED, "--resume", new)
    forks.hears("edited", sent, [TURNS[0], EDITED])
    proof.check("the edited turn is done", (proof.ws / "a.txt").read_text() == "edited")
    rows = proof.ok("timeline")["rows"]
    own = [r for r in rows if r["active"]]
    proof.check("the fork is the folder's conversation", [r["text"] for r in own] == [TURNS[0], EDITED], str(rows))
    proof.check("its messages have checkpoints", [r["checkpoint"]["state"] for r in own] == ["ok"] * 2, str(rows))
    proof.check("the old branch is seen", [r["id"] for r in rows if not r["active"]] == ids[1:], str(rows))
    proof.check("the old conversation is untouched", forks.bytes(old) == was)
    # what the program itself would have sent after a fork of its own
    first = next(json.loads(line) for line in was.splitlines() if ids[1] in line.decode() and b'"promptSource"' in line)
    own = forks.ask(EDITED, "--resume", old, "--resume-session-at", first["parentUuid"], "--fork-session", protected=False)
    proof.check("as by the program's own fork", own["messages"] == sent["messages"])

    # inside the fork; back to the first branch
    again = forks.rewind("m2", "-c", new)
    proof.check("a fork of a fork", again not in (old, new))
    proof.ok("-c", new, "undo")
    undone = proof.ok("-c", new, "undo")
    proof.check("undone", undone["chat"] == "rewound" and undone["conversation"] == old, str(undone))
    proof.check("the tree after message 3", tree(proof.ws) == trees[3])
    proof.check("the used fork stays", forks.store(new).exists() and not (forks.store(new).parent / f"{again}.jsonl").exists())
    sent = forks.ask("four: go on", "--resume", old)
    forks.hears("the first branch", sent, [*TURNS, "four: go on"])

    # the first message, and the last
    first = proof.ok("-c", old, "rewind", "m1")
    proof.check("nothing is written for an empty one", not list(proof.home.rglob(first["conversation"] + ".jsonl")), str(first))
    proof.check("the tree before message 1", tree(proof.ws) == trees[0])
    sent = forks.ask("one, edited", "--session-id", first["conversation"])
    forks.hears("the first message", sent, ["one, edited"])
    proof.ok("-c", old, "undo")
    last = proof.ok("-c", old, "rewind", "m4")["conversation"]
    sent = forks.ask("four, edited", "--resume", last)
    forks.hears("the last message", sent, [*TURNS, "four, edited"])


def by_compaction(proof):
    """A conversation that was made shorter: to before that its messages are there in full."""
    forks = Forks(proof)
    proof.turns(*forks.protected)
    old = proof.ok("timeline")["conversation"]["id"]
    done = proof.run([proof.claude, "--resume", old, "-p", "--dangerously-skip-permissions", "/compact"])
    proof.check("made shorter", b"compact_boundary" in forks.bytes(old), done.stdout + done.stderr)
    sent = forks.ask("after it", "--resume", old)
    proof.check("the model hears a summary", TURNS[0] not in scripted.said(sent), str(scripted.said(sent)))
    rows = [r for r in proof.ok("timeline")["rows"] if r["active"]]
    proof.check("all its messages are rows", [r["text"] for r in rows if r["kind"] == "prompt"] == [*TURNS, "after it"], str(rows))
    new = forks.rewind("m3")
    sent = forks.ask("three, edited", "--resume", new)
    forks.hears("before it", sent, [*TURNS[:2], "three, edited"])
    proof.ok("-c", new, "undo")
    # to after it: the summary holds
    number = next(r["message"] for r in rows if r["text"] == "after it")
    new = proof.ok("-c", old, "rewind", f"m{number}")["conversation"]
    sent = forks.ask("after it, edited", "--resume", new)
    said = scripted.said(sent)
    proof.check("after it the summary holds", TURNS[0] not in said and said[-1] == "after it, edited", str(said))


def by_interruption(proof):
    """An agent that was killed while a tool ran, and one that called two tools at once."""
    forks = Forks(proof)
    two = "one: two at once\n%sh printf 1 > one.txt ;; printf 2 > two.txt"
    proof.check("two at once", proof.run([*forks.protected, proof.claude, "-p", "--dangerously-skip-permissions", "--", two]).returncode == 0)
    proof.check("both ran", (proof.ws / "one.txt").exists() and (proof.ws / "two.txt").exists())
    old = proof.ok("timeline")["conversation"]["id"]
    # the program may note the call after it runs it
    hangs = "two: hangs\n%sh touch hangs; exec sleep 77777"
    agent = subprocess.Popen([proof.claude, "--resume", old, "-p", "--dangerously-skip-permissions", "--", hangs],
                             env=proof.env, cwd=proof.ws, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while not ((proof.ws / "hangs").exists() and forks.bytes(old).count(b'"type":"tool_use"') == 3) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            if open(f"/proc/{pid}/cmdline", "rb").read() == b"sleep\0" b"77777\0" and os.readlink(f"/proc/{pid}/cwd") == str(proof.ws):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    calls, results = forks.bytes(old).count(b'"type":"tool_use"'), forks.bytes(old).count(b'"type":"tool_result"')
    proof.check("a call is open", calls == results + 1, f"{calls} calls, {results} results")
    forks.ask("three: go on", "--resume", old)
    new = forks.rewind("m3")
    text = forks.bytes(new)
    # 2.1.332 closes it itself when it goes on; older ones leave it
    proof.check("none is in the fork", text.count(b'"type":"tool_use"') == text.count(b'"type":"tool_result"') >= 2)
    sent = forks.ask("three, edited", "--resume", new)
    forks.hears("after an open call", sent, [two, hangs, "three, edited"])
    proof.check("the model refuses nothing", not proof.model.refused, str(proof.model.refused))


WAYS = {"hook": by_hook, "run": by_run, "watcher": by_watcher, "fork": by_fork, "compaction": by_compaction,
        "interruption": by_interruption}


def main():
    parser = argparse.ArgumentParser()
    for word in ("respool", "claude", "scratch"):
        parser.add_argument(word)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--vault", choices=["btrfs", "copy"])
    args = parser.parse_args()
    version = subprocess.run([args.claude, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    print(f"Claude Code: {version}", flush=True)
    failed = 0
    for vault in [args.vault] if args.vault else ["copy", "btrfs"]:
        for way, prove in WAYS.items():
            if args.only in (None, way):
                proof = Proof(args, way, vault)
                prove(proof)
                proof.end()
                failed += proof.failed
    print(f"{failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
