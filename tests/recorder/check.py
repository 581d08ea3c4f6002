#!/usr/bin/env python3
"""Proves a recording. See README.md beside it.

    check.py RECORDING [--no-sdk]

1. turns.json, replayed from nothing, gives the very tree (contents, modes, links) that the real workspace had
   after each turn and after each edit of the user's: the recorder wrote their digests down.
2. The event files are complete and each belongs to one turn; the message of each turn is where it says.
3. The real SDK loads the store and sees the same events and the same head (left out with --no-sdk).
"""
import argparse
import json
import os
import pathlib
import shutil
import tempfile

import trace_tree as trace


def same_tree(root, want, when):
    state = trace.State(root)
    got = state.digest()
    state.close()
    if got != want:
        raise SystemExit(f"{when}: the replayed tree is not the recorded one")


def check_tree(recording, root):
    trace.replay(recording["initial"], root)
    same_tree(root, recording["initial_tree"], "at the start")
    for turn in recording["turns"]:
        trace.replay(turn["before"], root)
        same_tree(root, turn["before_tree"], f"before message {turn['message']}")
        trace.replay(turn["ops"], root)
        same_tree(root, turn["tree"], f"after message {turn['message']}")


def check_events(recording, store):
    files = sorted((store / "events").glob("event-*.json"))
    events = [json.loads(f.read_text()) for f in files]
    for index, (file, event) in enumerate(zip(files, events)):
        if file.name != f"event-{index:05d}-{event['id']}.json":
            raise SystemExit(f"{file.name} is not event {index}")
    at = 0
    for turn in recording["turns"]:
        span, message = turn["events"], events[turn["events"]["message"]]
        if span["first"] != at or not span["first"] <= span["message"] < span["end"]:
            raise SystemExit(f"the events of message {turn['message']} do not follow those before")
        if (message["id"], message["source"]) != (turn["id"], "user"):
            raise SystemExit(f"event {span['message']} is not message {turn['message']}")
        if message["llm_message"]["content"][0]["text"] != turn["text"]:
            raise SystemExit(f"message {turn['message']} has another text in the store")
        at = span["end"]
    if at != len(events):
        raise SystemExit(f"{len(events) - at} events belong to no turn")
    return len(events)


def check_sdk(store, scratch, count):
    os.environ.update(OPENHANDS_SUPPRESS_BANNER="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
    import record

    copy = scratch / "conversations" / store_id(store)
    shutil.copytree(store, copy)
    (scratch / "ws").mkdir()
    conversation = record.open_conversation(scratch / "ws", scratch / "conversations", 9)
    try:
        state = conversation.state
        want = json.loads((store / "base_state.json").read_text())
        if len(state.events) != count or str(state.leaf_event_id) != want["leaf_event_id"]:
            raise SystemExit("the SDK sees another conversation than the one recorded")
    finally:
        conversation.close()


def store_id(store):
    return json.loads((store / "base_state.json").read_text())["id"].replace("-", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=pathlib.Path)
    parser.add_argument("--no-sdk", action="store_true")
    args = parser.parse_args()
    recording = json.loads((args.recording / "turns.json").read_text())
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        scratch = pathlib.Path(folder)
        (scratch / "tree").mkdir()
        check_tree(recording, scratch / "tree")
        count = check_events(recording, args.recording / "conversation")
        if not args.no_sdk:
            check_sdk(args.recording / "conversation", scratch, count)
    print(f"ok: {len(recording['turns'])} turns, {count} events" + ("" if args.no_sdk else ", loaded by the SDK"))


if __name__ == "__main__":
    main()
