#!/usr/bin/env bash
# Makes a small root file system in the folder $1, of this machine's own programs: a shell, dpkg, tools for
# attributes. Nothing is downloaded.
set -euo pipefail
to=$1
mkdir -p "$to"/{etc,root,tmp,proc,sys,dev,run,work,opt,usr/{bin,sbin,lib,share/doc/old,local/bin},var/{log,lib/dpkg/{info,updates,triggers,alternatives,parts}}}
chmod 1777 "$to/tmp"
for link in bin sbin lib; do ln -s "usr/$link" "$to/$link"; done
[ ! -e /lib64 ] || { mkdir -p "$to/usr/lib64" && ln -s usr/lib64 "$to/lib64"; }
touch "$to"/var/lib/dpkg/{status,available,diversions,statoverride}
touch "$to"/var/lib/dpkg/triggers/{File,Lock,Unincorp}
echo 'root:x:0:0:root:/root:/bin/sh' >"$to/etc/passwd"
echo 'root:x:0:' >"$to/etc/group"
echo 'an image file' >"$to/etc/issue"
echo old >"$to/usr/share/doc/old/readme"
echo gone >"$to/usr/share/doc/gone"
declare -A copied
lib() {
    local real
    [ -z "${copied[$1]-}" ] || return 0
    copied[$1]=1
    real=$(readlink -f "$1")
    mkdir -p "$to$(dirname "$1")"
    cp "$real" "$to$1"
}
for program in sh dpkg dpkg-deb dpkg-query dpkg-split dpkg-trigger tar gzip xz rm diff cat ls mkdir touch ln mv cp \
    sleep chmod chown mknod mkfifo stat env true echo head cut sync ldconfig start-stop-daemon setfattr setfacl setcap \
    sed grep find; do
    path=$(command -v "$program" || true)
    case $program in sh) path=/bin/sh ;; echo) path=/bin/echo ;; true) path=/bin/true ;; esac
    [ -n "$path" ] || { echo "this machine lacks $program" >&2 && exit 1; }
    mkdir -p "$to$(dirname "$path")"
    cp "$(readlink -f "$path")" "$to$path"
    { ldd "$path" 2>/dev/null || true; } | while read -r a b c _; do
        if [ "${b-}" = '=>' ]; then echo "$c"; else echo "$a"; fi
    done | grep '^/' | sort -u >"$to/tmp/.libs" || true
    while read -r l; do lib "$l"; done <"$to/tmp/.libs"
done
rm -f "$to/tmp/.libs"
