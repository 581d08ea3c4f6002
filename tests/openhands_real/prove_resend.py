"""Proves `rewind --resend` with the real agent server: files and conversation go back, the edited message is sent, and the
model gets what was said before and the new text, nothing else. With a picture, with the first and the last message, with
an agent at work; with a session key and without. Used by prove.py; standard library only.
"""
import json
import pathlib

import prove_chat
import story

PICTURE = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
           "rkJggg==")
ONE, TWO, THREE, FOUR = "message one", "message two", "message three", "message four"
RECORDED = pathlib.Path(__file__).resolve().parent.parent / "fixtures/openhands/rest_1.58/answers.json"


class Resend:
    """A conversation with a server that has it."""

    def __init__(self, proof, name, root, server, model, number):
        self.proof, self.name, self.root = proof, name, root
        self.server, self.model, self.number = server, model, number

    def check(self, what, good, note=""):
        self.proof.check(f"{self.name}: {what}", good, note)

    def respool(self, *words):
        return self.proof.run("--yes", "-c", self.number.replace("-", ""), *words, cwd=self.root)

    def heard(self, what, want, without=(), picture=False):
        """What the model got with the newest message: these, and nothing of the others."""
        self.server.until(self.number, "finished")
        got, everything = prove_chat.heard(self.model.log[0]) if self.model.log else ([], "")
        self.check(f"{what}: the model gets {want} and no more", got == want, got)
        left = [w for w in without if w in everything]
        self.check(f"{what}: nothing of the other branch", not left, left)
        self.check(f"{what}: the picture is {'there' if picture else 'not there'}", (PICTURE in everything) == picture)

    def say(self, text, *pictures):
        self.model.log.clear()
        content = [{"type": "text", "text": text}] + [{"type": "image", "image_urls": [p]} for p in pictures]
        answer = self.server("POST", f"/api/conversations/{self.number}/events",
                             {"role": "user", "content": content, "run": True})
        self.server.until(self.number, "finished")
        return answer

    def resend(self, message, text, *flags):
        self.model.log.clear()
        code, done = self.respool("rewind", message, "--both", "--resend", text, *flags)
        self.check(f"rewind {message} --resend '{text}'",
                   code == 0 and done.get("chat") == "rewound" and done.get("verified") is True
                   and done.get("resent") is True, done)
        self.check(f"rewind {message}: the key is nowhere in what was said", prove_chat.KEY not in json.dumps(done))

    def undo(self, state):
        code, done = self.respool("undo")
        self.check("undo", code == 0 and done.get("chat") == "rewound", done)
        self.check("undo: the files are as before", self.proof.digest(self.root) == state)

    def files(self, what, words, gone):
        there = {n: (self.root / n).read_text() if (self.root / n).exists() else None for n in [*words, *gone]}
        self.check(f"{what}: its turn changed files, from the state that was gone back to",
                   all(there[n] == w for n, w in words.items()) and all(there[n] is None for n in gone), there)

    def run(self):
        answer = self.say(ONE)
        recorded = json.loads(RECORDED.read_text())["events"]
        self.check("the server's answer to a message is the recorded one", answer == recorded["answer"], answer)
        self.say(TWO, PICTURE)
        self.heard("message two", [ONE, TWO], picture=True)
        self.say(THREE)
        third = self.proof.digest(self.root)

        self.resend("m2", "edited two")
        self.heard("m2", [ONE, "edited two"], (TWO, THREE, "ideas.md"), picture=True)
        self.files("m2", {"a": "edited\n", "e": "e\n"}, ["c", "ideas.md"])
        code, changes = self.proof.run("-c", self.number, "changes", "m1.end", "m2", cwd=self.root)
        self.check("m2: it came to the files of turn 1", code == 0 and changes == [], changes)
        code, document = self.proof.run("timeline", self.number)
        rows = [(r["message"], r["text"]) for r in document.get("rows", [])]
        self.check("the old branch is still shown", rows == [(1, ONE), (None, TWO), (None, THREE), (2, "edited two")], rows)
        newest = (document.get("rows") or [{}])[-1].get("checkpoint") or {}
        self.check("the message that was sent has its own checkpoint", newest.get("state") == "ok", newest)
        self.undo(third)
        self.say(FOUR)
        self.heard("the first branch again", [ONE, TWO, THREE, FOUR], ("edited two",), picture=True)
        fourth = self.proof.digest(self.root)

        self.resend("m4", "instead of four")
        self.heard("the last message", [ONE, TWO, THREE, "instead of four"], (FOUR,), picture=True)
        self.files("the last message", {"a": "last\n", "c": "3\n"}, ["e"])
        self.undo(fourth)
        self.resend("m1", "instead of one")
        self.heard("the first message", ["instead of one"], (ONE, TWO, THREE, FOUR))
        self.files("the first message", {"a": "first\n", "first": "first\n", "notes/ideas.md":
                                         story.INITIAL["notes/ideas.md"]}, ["c", "e", "last"])
        self.undo(fourth)
        self.resend("m2", TWO)
        self.heard("the same text", [ONE, TWO], (THREE, FOUR), picture=True)

        self.model.log.clear()
        self.server("POST", f"/api/conversations/{self.number}/events",
                    {"role": "user", "content": [{"type": "text", "text": "message slow"}], "run": True})
        self.server.until(self.number, "running")
        self.resend("m2", "edited two", "--interrupt")
        self.heard("an agent at work", [ONE, "edited two"], ("message slow", THREE), picture=True)


def by_server(proof, python, key=prove_chat.KEY):
    name = "resend" if key else "resend, no key"
    root, model = proof.workspace(name.replace(", ", "-").replace(" ", "-")), prove_chat.Model()
    server = prove_chat.Server(proof, python, key)
    proof.install_hooks(root)
    server.start()
    try:
        number = server.conversation(root, model)
        Resend(proof, name, root, server, model, number).run()
    finally:
        server.stop()
    proof.stop_shells()
    proof.untrack(root)
    model.close()


def run(proof, python):
    by_server(proof, python)
    by_server(proof, python, key=None)
