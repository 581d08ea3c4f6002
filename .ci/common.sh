# shellcheck shell=bash
# Sourced by the scripts beside it: where things are, and how to become root.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here" || exit 1

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Runs a command as root. `as_root` alone says whether that works.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "this needs root: run it as root, or install sudo"
    fi
}

# Finds cargo, also where HOME is a fresh folder or the shell never read ~/.cargo/env.
find_cargo() {
    local home bin root
    home=$(getent passwd "$(id -u)" | cut -d: -f6)
    if ! command -v cargo >/dev/null; then
        for bin in "$HOME/.cargo/bin" "$home/.cargo/bin"; do
            [ -x "$bin/cargo" ] && PATH="$bin:$PATH" && break
        done
    fi
    command -v cargo >/dev/null || die "cargo was not found: install Rust 1.90 or later (rustup), then run this again"
    if ! cargo --version >/dev/null 2>&1; then
        root=$(dirname "$(dirname "$(command -v cargo)")")
        export CARGO_HOME="${CARGO_HOME:-$root}" RUSTUP_HOME="${RUSTUP_HOME:-$(dirname "$root")/.rustup}"
        cargo --version >/dev/null || die "cargo does not start: see above"
    fi
    export PATH
}

# The folder that cargo builds into.
target_dir() { printf '%s' "${CARGO_TARGET_DIR:-$here/target}"; }
