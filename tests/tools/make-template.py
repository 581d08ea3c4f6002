#!/usr/bin/env python3
"""Makes assets/pool-template: an empty Btrfs file system as its non-zero bytes.

Usage: make-template.py OUTPUT        (needs mkfs.btrfs of btrfs-progs; no root)

Format, all numbers little-endian: 8 bytes magic "RSPTPL1\\n", u64 size of the image, then runs until the
end: u32 offset, u16 length, that many bytes. Runs never cross a 4 KiB block; everything else is zero.
respool writes the runs into a new file and gives the copy its own file system id.
"""
import os, struct, subprocess, sys, tempfile

SIZE = 48 << 20   # under 64 MiB, so that there is one superblock only
BLOCK = 4096
GAP = 8           # zeros that end a run

def runs(block):
    i = 0
    while i < len(block):
        if block[i] == 0:
            i += 1
            continue
        end = block.find(bytes(GAP), i)
        end = len(block) if end < 0 else end
        yield i, block[i:end].rstrip(b"\0")
        i = end

def main():
    with tempfile.TemporaryDirectory() as d:
        image = os.path.join(d, "image")
        with open(image, "wb") as f:
            f.truncate(SIZE)
        # the features that every kernel from 5.15 on mounts; metadata once, as a loop file is one disk
        subprocess.run(
            ["mkfs.btrfs", "-q", "-f", "-m", "single", "-d", "single", "-n", "16k", "-s", "4k",
             "-O", "extref,skinny-metadata,no-holes", "-R", "free-space-tree", image],
            check=True)
        raw = open(image, "rb").read()
    out = bytearray(b"RSPTPL1\n" + struct.pack("<Q", SIZE))
    blocks = 0
    for at in range(0, SIZE, BLOCK):
        block = raw[at:at + BLOCK]
        if block.count(0) == BLOCK:
            continue
        blocks += 1
        for offset, data in runs(block):
            out += struct.pack("<IH", at + offset, len(data)) + data
    with open(sys.argv[1], "wb") as f:
        f.write(out)
    print(f"{blocks} blocks, {len(out)} bytes")

main()
