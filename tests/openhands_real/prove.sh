#!/usr/bin/env bash
# Proves a respool binary against the real OpenHands: the SDK by hook and by watcher, the command line tool by hook,
# the agent server by both, and inside a container of a dockerd of its own; and that a conversation goes back with the
# files, and an edited message is sent again, by what the model gets afterwards.
# STEP: hook, not-tracked, watcher, both, chat, cli, chat-cli, server, chat-server, resend, container.
# `container` needs dockerd and mkfs.btrfs, too.
# Needs root, tmux, and Python 3.12 or later. Takes a few minutes the first time (it fetches OpenHands from PyPI).
#
#   prove.sh RESPOOL [--venv DIR] [--cli-venv DIR] [--server-venv DIR] [--only STEP]
#
# The folders hold the virtual environments of the SDK, of `openhands==1.16.0` and of the agent server; what is missing is
# made. Without --cli-venv or --server-venv that part is left out, which is said. PYTHON names the interpreter (default
# python3.12).
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

[ $# -ge 1 ] || die "usage: prove.sh RESPOOL [--venv DIR] [--cli-venv DIR] [--server-venv DIR] [--only STEP]"
[ "$(id -u)" -eq 0 ] || die "this needs root: loop devices and mounts"
here=$(cd "$(dirname "$0")" && pwd)
respool=$(readlink -f "$1")
[ -x "$respool" ] || die "$respool cannot be run"
shift
scratch=$(mktemp -d)
venv=$scratch/venv
cli_venv=
server_venv=
only=()
while [ $# -gt 0 ]; do
    case "$1" in
    --venv) venv=$2 ;;
    --cli-venv) cli_venv=$2 ;;
    --server-venv) server_venv=$2 ;;
    --only) only=(--only "$2") ;;
    *) die "unknown: $1" ;;
    esac
    shift 2
done

clean() {
    local mount
    # the newest mount first; only those below our own folder
    while read -r mount; do
        umount -- "$mount" || say "still mounted: $mount"
    done < <(awk -v top="$scratch/" 'index($2, top) == 1 { print $2 }' /proc/mounts | tac)
    chattr -i -- "$scratch"/by-* 2>/dev/null || true
    rm -rf --one-file-system -- "$scratch"
}
trap clean EXIT

python=${PYTHON:-python3.12}
# FOLDER MODULE PACKAGE...
environment() {
    local folder=$1 module=$2
    shift 2
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -c "import $module" 2>/dev/null || "$folder/bin/pip" install --quiet "$@"
}

environment "$venv" openhands.sdk openhands-sdk openhands-tools
cli=()
if [ -n "$cli_venv" ]; then
    environment "$cli_venv" openhands.sdk openhands==1.16.0
    cli=(--cli "$cli_venv/bin/openhands")
else
    say "the command line tool is left out: no --cli-venv"
fi
server=()
if [ -n "$server_venv" ]; then
    environment "$server_venv" openhands.agent_server openhands-agent-server
    server=(--server "$server_venv/bin/python")
else
    say "the agent server is left out: no --server-venv"
fi
python3 "$here/prove.py" "$respool" "$venv/bin/python" "$scratch/proof" "${cli[@]}" "${server[@]}" "${only[@]}"
