#!/usr/bin/env bash
# Proves a respool binary against the real Claude Code: checkpoints by hook, by `respool run`, and by watcher; its
# conversation goes back by a fork (also one that was made shorter, and one that was interrupted). On both vaults.
# Needs root, Python 3, and Node.js with npm (it fetches Claude Code from npm). The model is a script on loopback.
#
#   prove.sh RESPOOL [--claude PROGRAM] [--version 2.1.197] [--only hook|run|watcher|fork|compaction|interruption] [--vault btrfs|copy]
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

[ $# -ge 1 ] || die "usage: prove.sh RESPOOL [--claude PROGRAM] [--version V] [--only STEP] [--vault VAULT]"
[ "$(id -u)" -eq 0 ] || die "this needs root: loop devices and mounts"
here=$(cd "$(dirname "$0")" && pwd)
respool=$(readlink -f "$1")
[ -x "$respool" ] || die "$respool cannot be run"
shift
claude=
version=latest
more=()
while [ $# -gt 0 ]; do
    case "$1" in
    --claude) claude=$2 ;;
    --version) version=$2 ;;
    --only | --vault) more+=("$1" "$2") ;;
    *) die "unknown: $1" ;;
    esac
    shift 2
done
scratch=$(mktemp -d)

clean() {
    local mount
    # the newest mount first; only those below our own folder
    while read -r mount; do
        umount -- "$mount" || say "still mounted: $mount"
    done < <(awk -v top="$scratch/" 'index($2, top) == 1 { print $2 }' /proc/mounts | tac)
    chattr -i -- "$scratch"/*/w* 2>/dev/null || true
    rm -rf --one-file-system -- "$scratch"
}
trap clean EXIT

if [ -z "$claude" ]; then
    command -v npm >/dev/null || die "npm is missing: it fetches Claude Code"
    npm install --silent --prefix "$scratch/npm" "@anthropic-ai/claude-code@$version" >&2
    claude=$scratch/npm/node_modules/.bin/claude
fi
[ -x "$claude" ] || die "$claude cannot be run"
python3 "$here/prove.py" "$respool" "$claude" "$scratch" "${more[@]}"
