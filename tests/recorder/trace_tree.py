"""A tree as it is, what differs between two such states as operations, and the operations applied again.

An operation is one JSON object; paths are relative to the root:
  {"op": "mkdir",   "path": P, "mode": "0755"}
  {"op": "rename",  "from": P, "to": P}                    the same inode, a folder with all below it
  {"op": "remove",  "path": P}                             a file, a link or an empty folder
  {"op": "write",   "path": P, "mode": "0644", "text": T}  or "base64" in place of "text"; all of the content;
                                                           "replace": true = as a new inode (sed -i does that)
  {"op": "symlink", "path": P, "target": T}
  {"op": "chmod",   "path": P, "mode": "0755"}
"""
import base64
import os
import stat
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One path: kind (dir, file, link), inode, permission bits, content or link target."""
    kind: str
    inode: int
    mode: int
    data: bytes


class State:
    """All paths below a root. Holds every inode open, so that none is reused while the state lives."""

    def __init__(self, root):
        self.entries, self._fds = {}, []
        self._read(root, "")

    def _read(self, root, folder):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            path = os.path.join(folder, name)
            full = os.path.join(root, path)
            self._fds.append(os.open(full, os.O_PATH | os.O_NOFOLLOW))
            st = os.lstat(full)
            mode = stat.S_IMODE(st.st_mode)
            if stat.S_ISDIR(st.st_mode):
                self.entries[path] = Entry("dir", st.st_ino, mode, b"")
                self._read(root, path)
            elif stat.S_ISLNK(st.st_mode):
                self.entries[path] = Entry("link", st.st_ino, 0, os.readlink(full).encode())
            elif stat.S_ISREG(st.st_mode) and st.st_nlink == 1:
                with open(full, "rb") as f:
                    self.entries[path] = Entry("file", st.st_ino, mode, f.read())
            else:
                raise SystemExit(f"the recorder knows no {path} (neither file, folder nor link, or linked twice)")

    def close(self):
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def digest(self):
        """CRC-32C over paths, kinds, modes and contents; inodes do not count. src/demo/digest.rs makes the same."""
        crc = 0
        for path, e in sorted(self.entries.items()):
            crc = crc32c(f"{path}\0{e.kind}\0{e.mode:o}\0{len(e.data)}\0".encode() + e.data, crc)
        return f"{crc:08x}"

    def same_as(self, other):
        """The paths that differ."""
        keys = set(self.entries) | set(other.entries)
        return sorted(p for p in keys if not same(self.entries.get(p), other.entries.get(p)))


def crc_table():
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        yield n


CRC_TABLE = list(crc_table())


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def same(a, b):
    return a is not None and b is not None and (a.kind, a.mode, a.data) == (b.kind, b.mode, b.data)


def octal(mode):
    return f"{mode:04o}"


def content(data):
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or any(ord(c) < 32 and c not in "\n\t" for c in text):
        return {"base64": base64.b64encode(data).decode()}
    return {"text": text}


def moved(path, old, new):
    return new + path[len(old):] if path == old or path.startswith(old + "/") else path


def diff(old, new):
    """The operations that make `new` of `old`."""
    ops, was = [], dict(old.entries)

    def make_folder(path):
        if path and path not in was:
            make_folder(os.path.dirname(path))
            e = new.entries[path]
            ops.append({"op": "mkdir", "path": path, "mode": octal(e.mode)})
            was[path] = e

    # what kept its inode but not its name, folders first and the upper ones first
    for path, e in sorted(new.entries.items(), key=lambda x: (x[1].kind != "dir", x[0])):
        source = next((p for p, w in was.items() if w.inode == e.inode and w.kind == e.kind), None)
        if source is None or source == path:
            continue
        if path in was:
            raise SystemExit(f"the recorder knows no rename over {path}")
        make_folder(os.path.dirname(path))
        ops.append({"op": "rename", "from": source, "to": path})
        was = {moved(p, source, path): w for p, w in was.items()}
    # what is gone, or is of another kind now, from the bottom up
    for path in sorted(was, reverse=True):
        e = new.entries.get(path)
        if e is None or e.kind != was[path].kind or (e.kind == "link" and e.data != was[path].data):
            ops.append({"op": "remove", "path": path})
            del was[path]
    for path, e in sorted(new.entries.items()):
        w = was.get(path)
        if w is None and e.kind == "dir":
            make_folder(path)
        elif w is None and e.kind == "link":
            ops.append({"op": "symlink", "path": path, "target": e.data.decode()})
        elif e.kind == "file" and (w is None or w.data != e.data or w.inode != e.inode):
            fresh = {"replace": True} if w is not None and w.inode != e.inode else {}
            ops.append({"op": "write", "path": path, "mode": octal(e.mode), **fresh, **content(e.data)})
        elif w is not None and w.mode != e.mode:
            ops.append({"op": "chmod", "path": path, "mode": octal(e.mode)})
    return ops


def replay(ops, root):
    """Applies operations below root."""
    for op in ops:
        at = {k: os.path.join(root, op[k]) for k in ("path", "from", "to") if k in op}
        kind = op["op"]
        if kind == "mkdir":
            os.mkdir(at["path"])
            os.chmod(at["path"], int(op["mode"], 8))
        elif kind == "rename":
            os.rename(at["from"], at["to"])
        elif kind == "remove":
            (os.rmdir if os.path.isdir(at["path"]) and not os.path.islink(at["path"]) else os.unlink)(at["path"])
        elif kind == "symlink":
            os.symlink(op["target"], at["path"])
        elif kind == "chmod":
            os.chmod(at["path"], int(op["mode"], 8))
        elif kind == "write":
            if op.get("replace"):
                os.unlink(at["path"])
            with open(at["path"], "wb") as f:
                f.write(op["text"].encode() if "text" in op else base64.b64decode(op["base64"]))
            os.chmod(at["path"], int(op["mode"], 8))
        else:
            raise SystemExit(f"unknown operation {kind}")
