"""The real agent server inside a container of a dockerd of our own: one conversation with the hook, which reaches respool
through its door, and one without, whose events are followed. The container goes back with the workspace.

Needs dockerd and mkfs.btrfs. The container sees this machine's /usr and the Python of the agent server, read-only; its
root file system is a small one made by tests/docker/rootfs.sh.
"""
import json
import os
import pathlib
import socket
import subprocess
import time

import mock_llm
import story

HERE = pathlib.Path(__file__).resolve().parent


class Docker:
    """A dockerd of our own, gone afterwards."""

    def __init__(self, proof):
        self.folder = proof.scratch / "docker"
        self.folder.mkdir()
        self.host = f"unix://{self.folder / 'd.sock'}"
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        image = self.folder / "disk.img"
        with open(image, "wb") as f:
            f.truncate(4 << 30)
        subprocess.run(["mkfs.btrfs", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, self.disk], check=True)
        (self.folder / "daemon.json").write_text("{}")
        with open(self.folder / "log", "wb") as log:
            self.daemon = subprocess.Popen(
                ["dockerd", "--config-file", self.folder / "daemon.json", "--data-root", self.disk / "data", "--exec-root",
                 self.folder / "exec", "--pidfile", self.folder / "pid", "-H", self.host, "--storage-driver", "overlay2",
                 "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
                 "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/respool-proof-{os.getpid()}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            if self("version", check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise SystemExit("dockerd does not answer")

    def __call__(self, *words, check=True, **more):
        return subprocess.run(["docker", "-H", self.host, *words], check=check, capture_output=True, **more)

    def text(self, *words):
        return self(*words).stdout.decode().strip()

    def close(self):
        self("unpause", "agent", check=False)
        self("rm", "-f", "agent", check=False)
        self.daemon.terminate()
        self.daemon.wait(60)
        subprocess.run(["umount", self.disk], check=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(proof, python, api_of):
    docker = Docker(proof)
    model = mock_llm.serve([
        ("first", [story.shell("echo 1 > /workspace/a; echo 1 > /opt/mark"), story.finish("One.")]),
        ("second", [story.shell("echo 2 > /workspace/a; echo 2 > /opt/mark; mkdir -p /opt/tool"), story.finish("Two.")]),
        ("third", [story.shell("echo 3 > /workspace/b"), story.finish("Three.")])])
    try:
        in_container(proof, python, api_of, docker, model)
    finally:
        model.shutdown()
        docker.close()
    proof.untrack(proof.scratch / "by-container")


def in_container(proof, python, api_of, docker, model):
    root = proof.workspace("by-container")
    proof.env["DOCKER_HOST"] = docker.host
    code, opened = proof.run("hooks", "install", "openhands", "--container", cwd=root)
    proof.check("container: the door is opened", code == 0 and opened["inside"] == "/run/respool", opened)
    base = proof.scratch / "rootfs"
    subprocess.run(["bash", HERE.parent / "docker" / "rootfs.sh", base], check=True)
    packed = subprocess.run(["tar", "-C", base, "-c", "."], check=True, capture_output=True).stdout
    docker("import", "-", "box:1", input=packed)
    port = free_port()
    prefix = pathlib.Path(python).resolve().parent.parent
    venv = pathlib.Path(python).parent.parent
    mounts = ["/usr:/usr:ro", f"{prefix}:{prefix}:ro", f"{venv}:{venv}:ro", f"{root}:/workspace", opened["mount"],
              f"{proof.conversations}:/conversations"]
    docker("run", "-d", "--name", "agent", "--network", "host", *[w for m in mounts for w in ("-v", m)],
           "-e", "OH_CONVERSATIONS_PATH=/conversations", "-e", "OPENHANDS_SUPPRESS_BANNER=1", "-e", "HOME=/root",
           "-e", "PYTHONDONTWRITEBYTECODE=1", "-e", "LITELLM_LOCAL_MODEL_COST_MAP=True",
           "-e", "OH_SESSION_API_KEYS_0=topsecret", "-e", "PATH=/usr/bin:/bin", "-w", "/workspace", "box:1",
           python, "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(port))
    code, tracked = proof.run("--yes", "track", str(root), "--container", "agent")
    proof.check("container: it belongs to the sandbox", code == 0 and len(tracked.get("containers", [])) == 1, tracked)
    watcher = proof.watch(cwd=root)
    api = api_of(port, "topsecret")
    try:
        talk(proof, root, docker, model, watcher, api)
    finally:
        code, errors = watcher.stop()
    proof.check("container: SIGTERM ends the watcher", code == 0, (code, errors))
    proof.check("container: the server's key is shown nowhere", "topsecret" not in json.dumps(watcher.told) + errors)
    goes_back(proof, root, docker)


def talk(proof, root, docker, model, watcher, api):
    class Alive:
        @staticmethod
        def poll():
            return None if docker.text("inspect", "-f", "{{.State.Running}}", "agent") == "true" else 1

    api.up(Alive)
    watcher.wait("waiting")
    agent = {"kind": "Agent", "tools": [{"name": "terminal"}],
             "llm": {"model": "openai/gpt-4o", "base_url": f"http://127.0.0.1:{model.server_port}/v1",
                     "api_key": "sk-dummy", "usage_id": "agent", "num_retries": 0}}
    hooks = json.loads((root / ".openhands" / "hooks.json").read_text())["hooks"]
    ids = []
    for own in (hooks, None):
        body = {"agent": agent, "workspace": {"kind": "LocalWorkspace", "working_dir": "/workspace"}, "autotitle": False}
        ids.append(api("POST", "/api/conversations", body | ({"hook_config": own} if own else {}))["id"])
    proof.hooked, proof.plain = ids
    watcher.wait("watching", 2)
    for conversation, text in ((ids[0], "first"), (ids[0], "second"), (ids[1], "third")):
        api("POST", f"/api/conversations/{conversation}/events",
            {"role": "user", "content": [{"type": "text", "text": text}], "run": True})
        api.finished(conversation)
    watcher.wait("checkpoint", 1)
    time.sleep(1)  # of a turn's end no count is known beforehand
    code, status = proof.run("hooks", "status", "openhands", cwd=root)
    how = {r["id"].replace("-", ""): r["how"] for r in status.get("conversations", [])}
    want = {ids[0].replace("-", ""): "hook in a container", ids[1].replace("-", ""): "event stream"}
    proof.check("container: hooks status tells how each has its checkpoints", code == 0 and how == want, status)


def goes_back(proof, root, docker):
    hooked, plain = proof.hooked.replace("-", ""), proof.plain.replace("-", "")
    rows = proof.timeline("container, by hook", hooked, 2)
    proof.hook_answers("container", hooked, rows)
    code, document = proof.run("timeline", plain)
    states = [(r.get("checkpoint") or {}).get("state") for r in document.get("rows", [])]
    proof.check("container, by its events: the message has its checkpoint", code == 0 and states in (["ok"], ["late"]),
                document)
    # the agent of the other conversation worked after that
    code, done = proof.run("--yes", "-c", hooked, "rewind", "m2", "--files", cwd=root)
    proof.check("container: rewind m2", code == 0 and done.get("verified") is True, done)
    mark = docker.text("exec", "agent", "/bin/sh", "-c", "cat /opt/mark; ls -d /opt/tool 2>/dev/null; cat /workspace/a")
    proof.check("container: its own files are those from before message 2, and so is the workspace", mark == "1\n1", mark)
    proof.check("container: it runs again", docker.text("inspect", "-f", "{{.State.Running}}", "agent") == "true")
    code, done = proof.run("--yes", "undo", cwd=root)
    mark = docker.text("exec", "agent", "/bin/sh", "-c", "cat /opt/mark; cat /workspace/a /workspace/b")
    proof.check("container: undo", code == 0 and mark == "2\n2\n3", (done, mark))
