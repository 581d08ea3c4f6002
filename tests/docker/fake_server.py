"""A fake agent server: lists one conversation, and plays recorded frames to who has the key.

fake_server.py PORT CONVERSATION FRAMES GO: FRAMES has one frame a line; line N is sent when the file GO has N lines.
"""

import base64
import hashlib
import json
import os
import socket
import sys
import threading
import time

port, conversation, frames, go = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
key = os.environ["OH_SESSION_API_KEYS_0"]
lines = open(frames).read().splitlines()


def frame(text):
    data = text.encode()
    head = b"\x81" + (bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big"))
    return head + data


def read_frame(f):
    n = f.read(2)[1] & 0x7F
    n = int.from_bytes(f.read(2), "big") if n == 126 else n
    mask = f.read(4)
    return bytes(b ^ mask[i % 4] for i, b in enumerate(f.read(n))).decode()


def answer(sock, status, body):
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    sock.sendall(head.encode() + text)


def serve(sock):
    f = sock.makefile("rb")
    first = f.readline().decode()
    headers = {}
    while (line := f.readline().decode().strip()):
        name, value = line.split(":", 1)
        headers[name.lower()] = value.strip()
    path = first.split()[1]
    if path.startswith("/sockets/events/" + conversation):
        digest = hashlib.sha1((headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        sock.sendall(("HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                      + base64.b64encode(digest).decode() + "\r\n\r\n").encode())
        hello = json.loads(read_frame(f))
        if hello != {"type": "auth", "session_api_key": key}:
            sock.close()
            return
        sent = 0
        while True:
            want = len(open(go).read().splitlines()) if os.path.exists(go) else 0
            while sent < min(want, len(lines)):
                sock.sendall(frame(lines[sent]))
                sent += 1
            time.sleep(0.02)
    elif headers.get("x-session-api-key") != key:
        answer(sock, 401, {"detail": "no"})
    elif path.startswith("/api/conversations/search"):
        answer(sock, 200, {"items": [{"id": conversation}, {"id": "../../etc"}], "next_page_id": None})
    else:
        answer(sock, 404, {"detail": "Not Found"})
    sock.close()


listener = socket.create_server(("127.0.0.1", port))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
