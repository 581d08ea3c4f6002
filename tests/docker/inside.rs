//! respool in a container that has a dockerd of its own, as the dev container of this project.

use std::path::Path;

use crate::engine::{Engine, Layout};

/// What such a container is given where `--privileged` is refused: `respool doctor` names the same.
const RIGHTS: [&str; 6] = [
    "--cap-add",
    "ALL",
    "--cap-drop",
    "SYS_RESOURCE",
    "--device-cgroup-rule",
    "a *:* rwm",
];

const TRACK: &str = r#"
mkdir -p /data/ws; echo one > /data/ws/f
r() { /respool --state-dir /data/state --json --yes "$@"; }
r track /data/ws --size 512M >/dev/null
id=$(r -s /data/ws checkpoint | sed 's/.*"checkpoint":"\([^"]*\)".*/\1/')
echo two > /data/ws/f
r -s /data/ws rewind "$id" --files >/dev/null
cat /data/ws/f
"#;

/// The dockerd in it, and a container of that with the workspace.
const INNER: &str = r"
mkdir -p /data/docker /tmp/exec
dockerd --data-root /data/docker --exec-root /tmp/exec --pidfile /tmp/docker.pid -H unix:///tmp/d.sock \
    --storage-driver vfs --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
    --exec-opt native.cgroupdriver=cgroupfs >/tmp/log 2>&1 </dev/null &
docker() { /usr/bin/env HOME=/tmp DOCKER_HOST=unix:///tmp/d.sock docker --config /tmp/client $@; }
n=0; until docker version >/dev/null 2>&1; do
    n=$((n+1)); [ $n -lt 300 ] || { cat /tmp/log >&2; exit 1; }; sleep 0.1; done
docker import /rootfs.tar box:1 >/dev/null
docker run --rm --network none -v /data/ws:/w box:1 cat /w/f
echo three > /data/ws/f
docker run --rm --network none -v /data/ws:/w box:1 cat /w/f
kill $(cat /tmp/docker.pid); n=0
while [ -e /tmp/docker.pid ] && [ $n -lt 300 ]; do n=$((n+1)); sleep 0.1; done
";

const GIVE_BACK: &str = r"
/respool --state-dir /data/state --json --yes untrack /data/ws >/dev/null
/respool --state-dir /data/state --json --yes pool unmount >/dev/null
cat /data/ws/f
";

fn volume(from: &Path, to: &str) -> String {
    format!("{}:{to}", from.display())
}

/// A container like this project's dev container, with this machine's dockerd in it.
fn dev(engine: &Engine) {
    let (data, tar) = (engine.disk().join("inside"), engine.dir().join("rootfs.tar"));
    std::fs::create_dir(&data).expect("a folder");
    std::fs::write(&tar, crate::engine::rootfs()).expect("the image");
    let program = Path::new(env!("CARGO_BIN_EXE_respool"));
    let mut more: Vec<String> = RIGHTS.map(str::to_owned).into();
    more.extend(
        [
            "--security-opt",
            "seccomp=unconfined",
            "--security-opt",
            "apparmor=unconfined",
        ]
        .map(str::to_owned),
    );
    for v in [
        // this machine's programs: dockerd, containerd, runc
        volume(Path::new("/usr"), "/usr:ro"),
        volume(Path::new("/sys/fs/cgroup"), "/sys/fs/cgroup"),
        volume(program, "/respool:ro"),
        volume(&tar, "/rootfs.tar:ro"),
        volume(&data, "/data"),
    ] {
        more.extend(["-v".to_owned(), v]);
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    engine.run("dev", &more);
}

#[test]
fn loop_images_mounts_and_containers_in_a_container() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    dev(&engine);
    assert_eq!(
        engine.sh("dev", "ls /dev | grep loop || true"),
        "",
        "it has no node"
    );
    let doctor = engine.sh("dev", "/respool --state-dir /data/state --json doctor || true");
    let rows: serde_json::Value = serde_json::from_str(&doctor).expect("the checks");
    let of = |name: &str| {
        let all = rows.as_array().expect("a list");
        all.iter()
            .find(|r| r["check"] == name)
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(of("loop")["ok"], true, "{doctor}");
    let container = of("container");
    assert!(
        container["ok"] == true
            && container["detail"]
                .as_str()
                .is_some_and(|d| d.starts_with("in a container: docker")),
        "{doctor}"
    );
    assert_eq!(engine.sh("dev", TRACK), "one");
    assert_eq!(
        engine.sh("dev", INNER),
        "one\nthree",
        "the tracked folder is seen"
    );
    assert_eq!(engine.sh("dev", GIVE_BACK), "three");
    engine.docker(&["rm", "-f", "dev"]);
}

/// A dockerd in the container, with its data on a mount of that, into a pool, back to a checkpoint, and out.
const WHOLE: &str = r#"
export DOCKER_HOST=unix:///tmp/d.sock HOME=/tmp
docker() { /usr/bin/docker --config /tmp/client "$@"; }
r() { /respool --state-dir /data/state --json --yes "$@"; }
mkdir -p /data/docker /data/ws /tmp/exec /var/lib/docker
echo '{"debug": false}' > /data/daemon.json
mount --bind /data/docker /var/lib/docker
dockerd --exec-root /tmp/exec --pidfile /tmp/docker.pid -H $DOCKER_HOST \
    --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
    --config-file /data/daemon.json --exec-opt native.cgroupdriver=cgroupfs >/tmp/log 2>&1 </dev/null &
n=0; until docker version >/dev/null 2>&1; do
    n=$((n+1)); [ $n -lt 300 ] || { cat /tmp/log >&2; exit 1; }; sleep 0.1; done
docker import /rootfs.tar box:1 >/dev/null
docker run -d --name ag --network none box:1 /bin/sh -c 'trap exit TERM; while :; do sleep 0.1; done' >/dev/null
r docker enable --size 2G >/dev/null
grep -c ' /var/lib/docker ' /proc/self/mountinfo
docker exec ag /bin/sh -c 'echo one > /opt/f'
r track /data/ws --size 2G --container ag >/dev/null
id=$(r -s /data/ws checkpoint | sed 's/.*"checkpoint":"\([^"]*\)".*/\1/')
docker exec ag /bin/sh -c 'echo two > /opt/f'
r -s /data/ws rewind "$id" --files --whole-docker >/dev/null
docker exec ag /bin/cat /opt/f
r docker disable >/dev/null
docker exec ag /bin/cat /opt/f
cat /data/daemon.json
docker rm -f ag >/dev/null
r untrack /data/ws >/dev/null
r pool unmount >/dev/null
kill $(cat /tmp/docker.pid); n=0
while [ -e /tmp/docker.pid ] && [ $n -lt 300 ]; do n=$((n+1)); sleep 0.1; done
umount /var/lib/docker
"#;

#[test]
fn all_of_a_nested_docker_goes_into_a_pool_and_back() {
    let engine = Engine::start(Layout::OverlayOnExt4);
    dev(&engine);
    let said = engine.sh("dev", WHOLE);
    assert_eq!(said, "2\none\none\n{\"debug\": false}");
    engine.docker(&["rm", "-f", "dev"]);
}
