"""A scripted stand-in for a language model: an OpenAI-style server on loopback, standard library only.

It keeps no state. The answer follows from the request alone: the last user message that the script knows
names the turn, the number of assistant messages after it names the step.
"""
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def text_of(content):
    if isinstance(content, str):
        return content
    return "\n".join(p.get("text", "") for p in content or [] if isinstance(p, dict))


def next_step(script, messages):
    """script: [(user text, [step, ...]), ...]; a step is {"text"?, "tool"?, "args"?}."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") != "user":
            continue
        said = text_of(messages[at].get("content"))
        for user, steps in script:
            if user in said:
                done = sum(1 for m in messages[at:] if m.get("role") == "assistant")
                return steps[done] if done < len(steps) else {"text": "Done."}
    return {"text": "Hello! What should I do?"}


def answer(script, request):
    step = next_step(script, request.get("messages", []))
    message = {"role": "assistant", "content": step.get("text", "")}
    if "tool" in step:
        message["tool_calls"] = [{
            "id": "call_" + uuid.uuid4().hex[:20],
            "type": "function",
            "function": {"name": step["tool"], "arguments": json.dumps(arguments(request, step))},
        }]
    size = len(json.dumps(request)) // 4
    return {
        "id": "chatcmpl-" + uuid.uuid4().hex,
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if "tool" in step else "stop"}],
        "usage": {"prompt_tokens": size, "completion_tokens": 20, "total_tokens": size + 20},
    }


def arguments(request, step):
    """Some agents demand a risk with every call."""
    for tool in request.get("tools") or []:
        needs = tool["function"].get("parameters", {}).get("required", [])
        if tool["function"]["name"] == step["tool"] and "security_risk" in needs:
            return {"security_risk": "LOW", **step["args"]}
    return step["args"]


def serve(script, log=None):
    """Starts the server in a thread; returns it, its port is server.server_port. Each request is added to `log`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if log is not None:
                log.append(request)
            body = json.dumps(answer(script, request)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
