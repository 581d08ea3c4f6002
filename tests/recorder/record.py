#!/usr/bin/env python3
"""Records the demo's conversation with the real OpenHands SDK. See README.md beside it.

    record.py OUT      writes OUT/turns.json and OUT/conversation/
"""
import argparse
import getpass
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid

os.environ.update(OPENHANDS_SUPPRESS_BANNER="1", LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONDONTWRITEBYTECODE="1",
                  LC_ALL="C.UTF-8", TZ="UTC", GIT_TERMINAL_PROMPT="0")
os.environ.pop("PYTHONPATH", None)

import mock_llm  # noqa: E402
import story  # noqa: E402
import trace_tree as trace  # noqa: E402

HOME = "/home/dev"
WORKSPACE = f"{HOME}/{story.PROJECT}"
CONVERSATIONS = f"{HOME}/.openhands/conversations"
CONVERSATION = uuid.UUID("7d3f9a52-5c1e-4b7a-9c5e-2f6b8e0a4d11")
HERE = pathlib.Path(__file__).resolve().parent


def open_conversation(workspace, store, port):
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool
    from pydantic import SecretStr

    llm = LLM(model="openai/gpt-4o", base_url=f"http://127.0.0.1:{port}/v1", api_key=SecretStr("sk-dummy"),
              usage_id="agent", num_retries=0)
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
                  system_prompt_kwargs={"cli_mode": True})
    return Conversation(agent=agent, workspace=str(workspace), persistence_dir=str(store),
                        conversation_id=CONVERSATION, visualizer=None)


def filled(value, workspace):
    if isinstance(value, str):
        return value.replace("{{WS}}", str(workspace))
    if isinstance(value, list):
        return [filled(v, workspace) for v in value]
    if isinstance(value, dict):
        return {k: filled(v, workspace) for k, v in value.items()}
    return value


def lay(root):
    for path, text in story.INITIAL.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


class Recorder:
    """The real workspace, and a second one made of nothing but the recorded operations."""

    def __init__(self, workspace, copy):
        self.workspace, self.copy = workspace, copy
        copy.mkdir()
        self.state = trace.State(copy)

    def step(self):
        """What changed since the last call; proves that the operations lead to the same tree."""
        now = trace.State(self.workspace)
        ops = trace.diff(self.state, now)
        trace.replay(ops, self.copy)
        again = trace.State(self.copy)
        wrong = now.same_as(again)
        again.close()
        if wrong:
            raise SystemExit(f"replayed operations differ from the real workspace: {wrong}")
        self.state.close()
        self.state = now
        return ops, now.digest()


def failed(event):
    """A tool call of the agent's that did not work; the story has none."""
    seen = getattr(event, "observation", None)
    return seen is not None and (seen.is_error or getattr(seen, "exit_code", 0) not in (0, None))


def play(scratch):
    workspace, store = scratch / story.PROJECT, scratch / "conversations"
    workspace.mkdir()
    lay(workspace)
    recorder = Recorder(workspace, scratch / "replayed")
    initial, digest = recorder.step()
    script = [(said, [filled(s, workspace) for s in steps]) for said, steps in story.SCRIPT]
    server = mock_llm.serve(script)
    conversation = open_conversation(workspace, store, server.server_port)
    turns, seen = [], 0
    try:
        for number, (said, _) in enumerate(story.SCRIPT, 1):
            if number == 4:
                story.user_edits(workspace)
            before, before_digest = recorder.step()
            conversation.send_message(said)
            events = list(conversation.state.events)
            message = max(i for i, e in enumerate(events) if e.kind == "MessageEvent" and e.source == "user")
            conversation.run()
            status = conversation.state.execution_status.value
            events = list(conversation.state.events)
            if status != "finished" or any(failed(e) for e in events):
                raise SystemExit(f"message {number} ended as {status}, or a tool of it failed")
            ops, digest_end = recorder.step()
            end = len(events)
            turns.append({"message": number, "id": events[message].id, "text": said,
                          "events": {"first": seen, "message": message, "end": end},
                          "before": before, "before_tree": before_digest, "ops": ops, "tree": digest_end})
            seen = end
            print(f"message {number}: {len(before)} changes before, {len(ops)} in the turn, {end} events", flush=True)
    finally:
        conversation.close()
        server.shutdown()
    return {"format": 1, "project": story.PROJECT, "workspace": WORKSPACE, "conversation": CONVERSATION.hex,
            "initial": initial, "initial_tree": digest, "turns": turns}, store / CONVERSATION.hex, server.server_port


def neutral(value, swaps):
    if isinstance(value, str):
        for old, new in swaps:
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [neutral(v, swaps) for v in value]
    if isinstance(value, dict):
        return {k: neutral(v, swaps) for k, v in value.items()}
    return value


def cut(text, length):
    return text if len(text) <= length else text[:length] + " [...]"


def slim_event(event):
    """OpenHands' own texts cut to a stub, this machine's name and user taken out."""
    if event["kind"] == "SystemPromptEvent":
        event["system_prompt"]["text"] = cut(event["system_prompt"]["text"], 60)
        event.pop("dynamic_context", None)
        for tool in event["tools"]:
            tool["description"] = cut(tool["description"], 40)
    metadata = event.get("observation", {}).get("metadata")
    if metadata:
        metadata.update(username="dev", hostname="laptop", py_interpreter_path="/usr/bin/python3")
    return event


def slim_state(state):
    for metrics in state["stats"]["usage_to_metrics"].values():
        for key in ("costs", "response_latencies", "token_usages"):
            if key in metrics:
                metrics[key] = []
    return state


def write_store(source, target, swaps):
    (target / "events").mkdir(parents=True)
    for file in [source / "base_state.json", *sorted((source / "events").glob("event-*.json"))]:
        document = neutral(json.loads(file.read_text()), swaps)
        document = slim_state(document) if file.name == "base_state.json" else slim_event(document)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        (target / file.relative_to(source)).write_text(text)


def write_turns(recording, path):
    """One operation a line."""
    def lines(ops):
        return "[" + ",".join("\n   " + json.dumps(op, ensure_ascii=False) for op in ops) + "]"

    head = [f' {json.dumps(k)}: {lines(v) if k == "initial" else json.dumps(v)}'
            for k, v in recording.items() if k != "turns"]
    turns = []
    for turn in recording["turns"]:
        fields = [f"{json.dumps(k)}: {lines(v) if k in ('before', 'ops') else json.dumps(v, ensure_ascii=False)}"
                  for k, v in turn.items()]
        turns.append("  {" + ",\n   ".join(fields) + "}")
    path.write_text("{\n" + ",\n".join(head) + ',\n "turns": [\n' + ",\n".join(turns) + "\n ]\n}\n")
    if json.loads(path.read_text()) != recording:
        raise SystemExit("turns.json does not read back as it was recorded")


def refuse_traces_of_this_machine(out, words):
    for file in out.rglob("*.json"):
        text = file.read_text()
        for word in words:
            if word and word in text:
                raise SystemExit(f"{file.name} still holds {word!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        scratch = pathlib.Path(folder)
        recording, store, port = play(scratch)
        swaps = [(str(scratch / story.PROJECT), WORKSPACE), (str(scratch / "conversations"), CONVERSATIONS),
                 (f"127.0.0.1:{port}", "127.0.0.1:4141")]
        made = scratch / "made"
        write_store(store, made / "conversation", swaps)
        write_turns(recording, made / "turns.json")
        home = os.path.expanduser("~")
        refuse_traces_of_this_machine(made, [str(scratch), home + "/", socket.gethostname() + '"',
                                             f'"{getpass.getuser()}"'])
        subprocess.run([sys.executable, HERE / "check.py", made], check=True)
        for name in ("conversation", "turns.json"):
            shutil.rmtree(out / name, ignore_errors=True)
            (out / name).unlink(missing_ok=True)
            out.mkdir(parents=True, exist_ok=True)
            shutil.move(made / name, out / name)
    print(f"wrote {out}: {sum(f.stat().st_size for f in out.rglob('*') if f.is_file())} bytes")


if __name__ == "__main__":
    main()
