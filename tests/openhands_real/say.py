"""Runs inside a virtual environment with the real OpenHands SDK: sends messages to a conversation, one turn each.

    say.py WORKSPACE CONVERSATIONS ID PORT TEXT...

The model is at PORT of loopback. The hooks are those that OpenHands finds for the workspace.
"""
import os
import sys
import uuid

os.environ.update(OPENHANDS_SUPPRESS_BANNER="1", LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONDONTWRITEBYTECODE="1")


def main():
    workspace, conversations, number, port = sys.argv[1:5]
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.sdk.hooks import HookConfig
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool
    from pydantic import SecretStr

    llm = LLM(model="openai/gpt-4o", base_url=f"http://127.0.0.1:{port}/v1", api_key=SecretStr("sk-dummy"),
              usage_id="agent", num_retries=0)
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
                  system_prompt_kwargs={"cli_mode": True})
    conversation = Conversation(agent=agent, workspace=workspace, persistence_dir=conversations,
                                conversation_id=uuid.UUID(number), visualizer=None,
                                hook_config=HookConfig.load(working_dir=workspace))
    try:
        for text in sys.argv[5:]:
            conversation.send_message(text)
            conversation.run()
            if conversation.state.execution_status.value != "finished":
                raise SystemExit(f"it did not finish: {conversation.state.execution_status}")
    finally:
        conversation.close()


if __name__ == "__main__":
    main()
