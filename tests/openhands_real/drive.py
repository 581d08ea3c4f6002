"""Runs inside a virtual environment with the real OpenHands SDK: sends the story's first messages, one by one,
and writes down what the workspace was just before and right after each.

    drive.py WORKSPACE CONVERSATIONS RESULT.json [--hooks] [--thinking SECONDS] [--resume ID --say TEXT...]

With --resume it goes on with a conversation instead: one message with a part for each --say.
"""
import argparse
import json
import os
import pathlib
import sys
import time
import uuid

os.environ.update(OPENHANDS_SUPPRESS_BANNER="1", LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONDONTWRITEBYTECODE="1")
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "recorder"))

import mock_llm  # noqa: E402
import record  # noqa: E402
import story  # noqa: E402
import trace_tree as trace  # noqa: E402


def digest(root):
    state = trace.State(root)
    text = state.digest()
    state.close()
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace")
    parser.add_argument("conversations")
    parser.add_argument("result")
    parser.add_argument("--hooks", action="store_true", help="load hooks.json as OpenHands finds it")
    parser.add_argument("--thinking", type=float, default=0.0, help="how long the model takes for each answer")
    parser.add_argument("--resume", metavar="ID", help="go on with this conversation")
    parser.add_argument("--say", action="append", default=[], metavar="TEXT", help="a part of the message to send")
    args = parser.parse_args()

    from openhands.sdk import LLM, Agent, Conversation, Message, TextContent, Tool
    from openhands.sdk.hooks import HookConfig
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool
    from pydantic import SecretStr

    script = [(said, [record.filled(s, args.workspace) for s in steps]) for said, steps in story.SCRIPT]
    if args.resume:
        script += [(text, [story.shell("date +%s%N >> went-on.txt"), story.finish("Gone on.")]) for text in args.say]
    answer = mock_llm.answer

    def slowly(*request):
        time.sleep(args.thinking)
        return answer(*request)

    mock_llm.answer = slowly
    server = mock_llm.serve(script)
    llm = LLM(model="openai/gpt-4o", base_url=f"http://127.0.0.1:{server.server_port}/v1",
              api_key=SecretStr("sk-dummy"), usage_id="agent", num_retries=0)
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
                  system_prompt_kwargs={"cli_mode": True})
    number = uuid.UUID(args.resume) if args.resume else uuid.uuid4()
    conversation = Conversation(
        agent=agent, workspace=args.workspace, persistence_dir=args.conversations, conversation_id=number,
        visualizer=None, hook_config=HookConfig.load(working_dir=args.workspace) if args.hooks else None)
    if args.resume:
        parts = [TextContent(text=text) for text in args.say]
        messages = [(args.say[0], Message(role="user", content=parts))]
    else:
        messages = [(said, said) for said, _ in story.SCRIPT]
    turns = []
    try:
        for count, (said, message) in enumerate(messages, 1):
            if count == 4:
                time.sleep(args.thinking)  # a user needs a moment too
                story.user_edits(args.workspace)
            before, sent = digest(args.workspace), time.monotonic()
            conversation.send_message(message)
            waited = time.monotonic() - sent
            conversation.run()
            if conversation.state.execution_status.value != "finished":
                raise SystemExit(f"message {count} did not finish: {conversation.state.execution_status}")
            turns.append({"text": said, "before": before, "after": digest(args.workspace), "sent_in": waited})
    finally:
        conversation.close()
        server.shutdown()
    pathlib.Path(args.result).write_text(json.dumps({"conversation": number.hex, "turns": turns}))


if __name__ == "__main__":
    main()
