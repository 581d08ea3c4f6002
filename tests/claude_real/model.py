"""A model that plays a script: it speaks the Anthropic Messages protocol, streamed. The lines of the newest message that
begin with `%sh ` are run, one a turn, by the agent's shell tool (those that ` ;; ` parts at once); then it answers. It
keeps what it was sent, and refuses, as the real one does, a tool call without its result and a result without its
call."""
import json
import re
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STEP = re.compile(r"^%sh (.*)$", re.M)


def unpaired(messages):
    """What is wrong with the calls and results, if something is."""
    open_calls = set()
    for message in messages:
        if message["role"] == "system":
            continue
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = {b.get("tool_use_id") for b in blocks if b.get("type") == "tool_result"}
        if results != open_calls:
            return f"calls {sorted(open_calls)}, results {sorted(results)}"
        open_calls = {b["id"] for b in blocks if b.get("type") == "tool_use"}
    return f"calls {sorted(open_calls)} without results" if open_calls else None


def said(body):
    """The human's words that a model was sent, in order, what the agent adds left out."""
    texts = []
    for message in body["messages"]:
        if message["role"] != "user":
            continue
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        own = [b["text"] for b in blocks if b.get("type") == "text" and not b["text"].lstrip().startswith("<")]
        texts += own
    return texts


def turns(messages):
    """(role, text, tool calls) of each."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        text = "\n".join(b["text"] for b in content if b.get("type") == "text")
        yield message["role"], text, sum(b.get("type") == "tool_use" for b in content)


def answer(body):
    """The content blocks of the answer."""
    steps, done = [], 0
    for role, text, calls in turns(body.get("messages", [])):
        if role == "user" and STEP.search(text):
            steps, done = STEP.findall(text), 0
        elif role == "assistant":
            done += calls
    tools = [t.get("name") for t in body.get("tools") or []]
    calls = [part.split(" ;; ") for part in steps]
    while calls and done >= len(calls[0]):
        done -= len(calls.pop(0))
    if calls and "Bash" in tools:
        return [{"type": "text", "text": "I do that."}] + [
            {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:16]}", "name": "Bash",
             "input": {"command": command, "description": "a step of the script"}} for command in calls[0]]
    return [{"type": "text", "text": f"done: {len(steps)} steps"}]


class Model(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sent = []
        self.refused = []
        # seconds before each answer; real ones need more
        self.thinks = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        # an agent that ends closes its lines as it likes
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def document(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        self.document({})

    def do_GET(self):
        self.document({})

    def event(self, name, **more):
        self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name, **more})}\n\n".encode())
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            return self.document({"input_tokens": 100})
        if not path.endswith("/messages"):
            return self.document({})
        self.server.sent.append(body)
        wrong = unpaired(body["messages"])
        if wrong:
            self.server.refused.append(wrong)
            return self.document({"type": "error", "error": {"type": "invalid_request_error", "message": wrong}}, 400)
        time.sleep(self.server.thinks)
        blocks = answer(body)
        stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 100, "output_tokens": 20}
        message = {"id": f"msg_{uuid.uuid4().hex[:16]}", "type": "message", "role": "assistant",
                   "model": body.get("model"), "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            return self.document({**message, "content": blocks, "stop_reason": stop})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        self.event("message_start", message={**message, "content": [], "stop_reason": None})
        for i, block in enumerate(blocks):
            if block["type"] == "text":
                start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                start = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            self.event("content_block_start", index=i, content_block=start)
            self.event("content_block_delta", index=i, delta=delta)
            self.event("content_block_stop", index=i)
        self.event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 20})
        self.event("message_stop")
