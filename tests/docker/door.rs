//! A hook inside a container, which is heard outside of it; and an agent server in one, whose events are followed.
//! P007 P012: a checkpoint at each message of an agent in a container, its root file system included.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::wait_until;
use crate::engine::{Engine, Layout};

const SOON: Duration = Duration::from_secs(30);
const CONVERSATION: &str = "66666666-7777-4888-8999-aaaaaaaaaaaa";

/// `respool watch`, ended also when the test fails.
struct Watch(Child, PathBuf);

impl Watch {
    fn start(engine: &Engine, args: &[&str]) -> Self {
        let events = engine.dir().join(format!("said-{}", args.len()));
        let said = std::fs::File::create(&events).expect("a file");
        let mut c = engine.respool();
        c.arg("--json")
            .args(args)
            .stdin(Stdio::null())
            .stdout(said.try_clone().expect("file"))
            .stderr(said);
        Self(c.spawn().expect("respool"), events)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.1).expect("events")
    }

    fn event(&self, name: &str) -> Option<Value> {
        let text = self.said();
        let mut all = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        all.find(|e| e["event"] == name)
    }

    fn wait(&self, name: &str) -> Value {
        assert!(
            wait_until(SOON, || self.event(name).is_some()),
            "no {name}: {}",
            self.said()
        );
        self.event(name).expect("the event")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let ended = wait_until(SOON, || self.0.try_wait().is_ok_and(|s| s.is_some()));
        assert!(ended || std::thread::panicking(), "it does not end");
    }
}

/// A tracked workspace, its hook for containers, and what mounts the door.
fn with_door(engine: &Engine) -> (String, PathBuf, String) {
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    engine.ok(&["track", &ws, "--size", "512M"]);
    let doc = engine.ok(&["hooks", "install", "openhands", "--container", "-s", &ws]);
    let door = PathBuf::from(doc["door"].as_str().expect("a door"));
    (ws, door, doc["mount"].as_str().expect("a mount").to_owned())
}

/// The hook as the configuration in the workspace names it.
fn command(ws: &str) -> String {
    let text = std::fs::read_to_string(Path::new(ws).join(".openhands/hooks.json")).expect("the hook's file");
    let doc: Value = serde_json::from_str(&text).expect("JSON");
    let hooks = doc.get("hooks").unwrap_or(&doc);
    let entry = hooks
        .get("UserPromptSubmit")
        .or_else(|| hooks.get("user_prompt_submit"));
    entry.expect("the entry")[0]["hooks"][0]["command"]
        .as_str()
        .expect("a command")
        .to_owned()
}

/// The hook is called in a container; what it prints.
fn call(engine: &Engine, container: &str, command: &str, text: &str) -> String {
    let input = json!({"event_type": "UserPromptSubmit", "message": text, "session_id": CONVERSATION,
        "working_dir": "/workspace"});
    engine.sh(
        container,
        &format!("OPENHANDS_SESSION_ID=x; export OPENHANDS_SESSION_ID; echo '{input}' | {command}"),
    )
}

/// The programs of this machine are there, the test's own respool needs its libraries.
fn box_with(engine: &Engine, name: &str, more: &[&str]) {
    engine.run(name, &[&["-v", "/usr:/usr:ro"], more].concat());
}

#[test]
fn a_hook_inside_a_container_is_heard_and_nothing_else_is() {
    let engine = Engine::start(Layout::OverlayOnBtrfs);
    let (ws, door, mount) = with_door(&engine);
    box_with(
        &engine,
        "agent",
        &["-v", &mount, "-v", &format!("{ws}:/workspace")],
    );
    box_with(&engine, "other", &["-v", &mount]);
    engine.ok(&["track", &ws, "--container", "agent"]);
    let hook = command(&ws);
    // nobody answers: the agent goes on, and its log says why
    let said = call(&engine, "agent", &hook, "one");
    assert!(
        said.contains(r#""decision":"allow""#) && said.contains("respool: no checkpoint: respool cannot"),
        "{said}"
    );
    let watch = Watch::start(&engine, &["-s", &ws, "watch"]);
    assert!(
        wait_until(SOON, || door.join("hook.sock").exists()),
        "{}",
        watch.said()
    );
    // one that is in the container's own files is there in the checkpoint
    engine.sh("agent", "echo before > /opt/mark");
    let said = call(&engine, "agent", &hook, "two");
    assert!(
        said.contains("respool: checkpoint cp-") && said.contains("rewind cp-"),
        "{said}"
    );
    engine.sh("agent", "echo after > /opt/mark; echo after > /workspace/made");
    let list = engine.ok(&["-s", &ws, "checkpoints"]);
    let newest = &list[0];
    assert_eq!(
        (&newest["kind"], &newest["conversation"]),
        (&"message".into(), &CONVERSATION.into()),
        "{list}"
    );
    assert_eq!(engine.state("agent"), "running");
    // whether and how is told
    let status = engine.ok(&["-s", &ws, "hooks", "status", "openhands"]);
    let rows = status["conversations"].as_array().expect("rows");
    assert_eq!(
        (&rows[0]["id"], &rows[0]["how"]),
        (&CONVERSATION.into(), &"hook in a container".into()),
        "{status}"
    );
    assert_eq!(status["will_checkpoint"], true, "{status}");
    // from another container: refused, and the agent goes on
    let said = call(&engine, "other", &hook, "three");
    assert!(
        said.contains("none of this sandbox's") && said.contains("allow"),
        "{said}"
    );
    nothing_else(&door);
    let said = call(&engine, "agent", &hook, "four");
    assert!(
        said.contains("respool: checkpoint cp-"),
        "it still answers: {said}"
    );
    assert_eq!(
        engine
            .ok(&["-s", &ws, "checkpoints"])
            .as_array()
            .expect("rows")
            .len(),
        list.as_array().expect("rows").len() + 1
    );
    drop(watch);
    // and the container goes back to where the message came
    let id = newest["id"]
        .as_str()
        .or_else(|| newest["checkpoint"].as_str())
        .expect("an id")
        .to_owned();
    engine.ok(&["-s", &ws, "rewind", &id, "--files"]);
    assert_eq!(engine.sh("agent", "cat /opt/mark"), "before");
    assert!(!Path::new(&ws).join("made").exists());
    let status = engine.ok(&["-s", &ws, "hooks", "status", "openhands"]);
    assert_eq!(status["conversations"][0]["how"], "none", "{status}");
    let why = status["conversations"][0]["why"].as_str().expect("why");
    assert!(why.contains("nobody answers at the door"), "{why}");
    engine.ok(&["hooks", "uninstall", "openhands", "--container", "-s", &ws]);
    assert!(!door.exists());
}

/// From this machine itself it is refused, and what is no hook's line gets no answer.
fn nothing_else(door: &Path) {
    let line = json!({"v": 1, "event": "message", "conversation": CONVERSATION, "text_hash": "00"});
    let said = raw(door, line.to_string().as_bytes());
    assert!(said.contains("not called in a container"), "{said}");
    let long = vec![b'x'; 100_000];
    for other in [
        &br#"{"version":1,"state_dir":null}"#[..],
        br#"{"v":1,"event":"rewind","conversation":"x"}"#,
        b"GET / HTTP/1.1",
        &long,
        b"\xff\xfe\n",
    ] {
        let start = String::from_utf8_lossy(&other[..20.min(other.len())]);
        assert_eq!(raw(door, other), "", "{start:?}");
    }
}

/// Says something at a door; what comes back.
fn raw(door: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(door.join("hook.sock")).expect("connect");
    stream.set_read_timeout(Some(SOON)).expect("timeout");
    // it may hang up in the middle
    let _sent = stream.write_all(bytes).and_then(|()| stream.write_all(b"\n"));
    let _sent = stream.shutdown(std::net::Shutdown::Write);
    let mut out = Vec::new();
    let _read = stream.read_to_end(&mut out);
    String::from_utf8(out).expect("UTF-8")
}

/// The service answers at the doors, too.
#[test]
fn the_service_answers_at_the_doors() {
    let engine = Engine::start(Layout::Btrfs);
    let (ws, door, mount) = with_door(&engine);
    let socket = engine.dir().join("s.sock");
    let service = Watch::start(&engine, &["service", "--socket", socket.to_str().expect("UTF-8")]);
    assert!(
        wait_until(SOON, || door.join("hook.sock").exists()),
        "{}",
        service.said()
    );
    box_with(&engine, "agent", &["-v", &mount, "--user", "1234"]);
    let said = call(&engine, "agent", &command(&ws), "one");
    assert!(
        said.contains("respool: checkpoint cp-"),
        "any user of the container: {said}"
    );
    let list = engine.ok(&["-s", &ws, "checkpoints"]);
    assert_eq!(list[0]["conversation"], CONVERSATION, "{list}");
}

/// The frames of agent server 1.58 for its first message, and for its end.
fn frames() -> [String; 3] {
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openhands/v1_agent_server_1.58");
    let mut all = Vec::new();
    let mut folders = vec![events];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("fixture").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                all.extend(std::fs::read_to_string(entry.path()));
            }
        }
    }
    let events: Vec<Value> = all.iter().filter_map(|t| serde_json::from_str(t).ok()).collect();
    let one = |fits: &dyn Fn(&Value) -> bool| events.iter().find(|e| fits(e)).expect("an event").to_string();
    let status = |e: &Value| e["kind"] == "ConversationStateUpdateEvent" && e["key"] == "execution_status";
    [
        one(&|e| e["kind"] == "MessageEvent" && e["source"] == "user"),
        one(&|e| status(e) && e["value"] == "running"),
        one(&|e| status(e) && e["value"] == "finished"),
    ]
}

#[test]
fn the_events_of_an_agent_server_inside_a_container_are_followed() {
    let engine = Engine::start(Layout::OverlayOnBtrfs);
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    let tools = engine.dir().join("tools");
    std::fs::create_dir(&tools).expect("mkdir");
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/docker/fake_server.py");
    std::fs::copy(server, tools.join("agent-server")).expect("copy");
    let recorded = frames();
    let id = serde_json::from_str::<Value>(&recorded[0]).expect("JSON")["id"]
        .as_str()
        .expect("id")
        .to_owned();
    let lines = [
        "not json".to_owned(),
        recorded[0].clone(),
        recorded[1].clone(),
        recorded[2].clone(),
    ];
    std::fs::write(tools.join("frames"), lines.join("\n")).expect("write");
    // no port is published, it has no network but its own
    let tools_mount = format!("{}:/tools", tools.display());
    box_with(
        &engine,
        "agent",
        &["-v", &tools_mount, "-e", "OH_SESSION_API_KEYS_0=topsecret"],
    );
    engine.ok(&["track", &ws, "--size", "512M", "--container", "agent"]);
    let start =
        format!("exec /usr/bin/python3 /tools/agent-server 8000 {CONVERSATION} /tools/frames /tools/go");
    engine.docker(&["exec", "-d", "agent", "/bin/sh", "-c", &start]);
    let watch = Watch::start(&engine, &["-s", &ws, "watch"]);
    assert_eq!(watch.wait("watching")["conversation"], CONVERSATION);
    std::fs::write(tools.join("go"), "1\n2\n").expect("go");
    let taken = watch.wait("checkpoint");
    assert_eq!(
        (&taken["message"], &taken["how"]),
        (&id.as_str().into(), &"watch".into()),
        "{taken}"
    );
    std::fs::write(tools.join("go"), "1\n2\n3\n4\n").expect("go");
    assert_eq!(watch.wait("turn-end")["message"], id.as_str());
    let status = engine.ok(&["-s", &ws, "hooks", "status", "openhands"]);
    assert_eq!(status["conversations"][0]["how"], "event stream", "{status}");
    assert!(!watch.said().contains("topsecret"));
    drop(watch);
    let list = engine.ok(&["-s", &ws, "checkpoints"]);
    let kinds: Vec<&str> = list
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|c| c["kind"].as_str())
        .collect();
    assert_eq!(kinds[..2], ["turn-end", "message"], "{list}");
    let status = engine.ok(&["-s", &ws, "hooks", "status", "openhands"]);
    assert_eq!(status["conversations"][0]["how"], "none", "{status}");
}

/// Its store is mounted from this machine, its workspace has another path inside.
#[test]
fn a_store_that_is_mounted_into_a_container_is_watched() {
    let engine = Engine::start(Layout::Btrfs);
    let ws = engine.dir().join("ws");
    std::fs::create_dir(&ws).expect("the workspace");
    let ws = ws.to_str().expect("UTF-8").to_owned();
    engine.ok(&["track", &ws, "--size", "512M"]);
    let id = CONVERSATION.replace('-', "");
    let store = engine.dir().join("home/.openhands/conversations").join(&id);
    std::fs::create_dir_all(store.join("events")).expect("folders");
    let inside = format!("{}:/var/openhands/conversations/{id}", store.display());
    let name = "agent-server-conversation-0123";
    engine.run(
        name,
        &["-v", &inside, "-v", &format!("{ws}:/inside/the/container")],
    );
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/openhands/v1_sdk_1.58/conversations/11111111222243338444555555555555");
    let text = std::fs::read_to_string(from.join("base_state.json")).expect("state");
    let mut base: Value = serde_json::from_str(&text).expect("JSON");
    base["id"] = CONVERSATION.into();
    base["workspace"]["working_dir"] = "/inside/the/container".into();
    let watch = Watch::start(&engine, &["-s", &ws, "watch"]);
    watch.wait("waiting");
    let mut events: Vec<_> = std::fs::read_dir(from.join("events"))
        .expect("events")
        .flatten()
        .map(|e| e.path())
        .collect();
    events.sort();
    events.retain(|p| {
        p.file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"event-"))
    });
    let put = |many: usize| {
        let mut last = Value::Null;
        for event in &events[..many] {
            let to = store.join("events").join(event.file_name().expect("name"));
            std::fs::copy(event, to).expect("copy");
            let event: Value = serde_json::from_slice(&std::fs::read(event).expect("event")).expect("JSON");
            last = event["id"].clone();
        }
        let mut base = base.clone();
        base["leaf_event_id"] = last;
        std::fs::write(store.join("base_state.json"), base.to_string()).expect("state");
    };
    put(1);
    watch.wait("watching");
    put(10);
    let taken = watch.wait("checkpoint");
    assert_eq!(taken["how"], "watch", "{taken}");
    let rows = engine.ok(&["timeline", store.to_str().expect("UTF-8")]);
    assert_eq!(rows["rows"][0]["checkpoint"]["id"], taken["checkpoint"], "{rows}");
}
