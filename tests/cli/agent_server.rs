//! An agent server of OpenHands that plays the answers recorded from a real one (1.58.2), in a process of its own:
//! it listens on loopback, wants a key, holds the store by its lease, and can go wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{given, wait_until};
use crate::lab::SOON;

/// The key that it wants.
pub const KEY: &str = "topsecret-6b1f";
const ANSWERS: &str = include_str!("../fixtures/openhands/rest_1.58/answers.json");

/// A running fake; it ends with this value.
pub struct Fake {
    child: Option<Child>,
    dir: PathBuf,
}

impl Fake {
    /// Holds this store. `mode`: what goes wrong. `env`: the variable with its key.
    pub fn start(store: &Path, dir: &Path, mode: &str, key_variable: &str) -> Self {
        let dir = dir.join("fake-server");
        std::fs::create_dir_all(&dir).expect("folder");
        let mut c = Command::new(std::env::current_exe().expect("this program"));
        c.args([
            "--exact",
            "agent_server::fake_agent_server",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        c.env_clear()
            .env("FAKE_STORE", store)
            .env("FAKE_DIR", &dir)
            .env("FAKE_MODE", mode)
            .env(key_variable, KEY);
        c.stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        c.process_group(0);
        let it = Self {
            child: Some(c.spawn().expect("start")),
            dir,
        };
        assert!(
            wait_until(SOON, || it.dir.join("port").exists()),
            "it did not start"
        );
        it
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("running")
    }

    pub fn port(&self) -> String {
        std::fs::read_to_string(self.dir.join("port")).expect("port")
    }

    /// The requests that came with the right key: method and path after the id.
    pub fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The message that was sent, if one was.
    pub fn sent(&self) -> Option<Value> {
        let bytes = std::fs::read(self.dir.join("sent")).ok()?;
        Some(serde_json::from_slice(&bytes).expect("JSON"))
    }

    /// SIGKILL: the lease stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            child.wait().expect("its end");
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Held {
    store: PathBuf,
    dir: PathBuf,
    mode: String,
    base: Value,
    /// How often it is asked yet before an interrupted agent has stopped.
    stopping: u32,
}

impl Held {
    fn save(&self) {
        let temp = self.store.join(".base_state.json.x1y2");
        std::fs::write(&temp, self.base.to_string()).expect("state");
        std::fs::rename(temp, self.store.join("base_state.json")).expect("state");
    }

    fn lease(&self) {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("host");
        let lease = json!({"owner_instance_id": "fd6517aee59246b2beac3d6688397b23", "generation": 1,
            "expires_at": chrono::Utc::now().timestamp() + 600, "owner_host": host.trim(),
            "owner_pid": std::process::id()});
        std::fs::write(self.store.join(".owner_lease.lock"), "").expect("lock");
        std::fs::write(self.store.join("owner_lease.json"), lease.to_string()).expect("lease");
    }

    fn recorded(name: &str) -> (u64, Value) {
        let all: Value = serde_json::from_str(ANSWERS).expect("recorded");
        let one = &all[name];
        (one["status"].as_u64().expect("status"), one["answer"].clone())
    }

    /// The recorded document of a conversation, as it is now.
    fn told(&self, name: &str) -> (u64, Value) {
        let (status, mut answer) = Self::recorded(name);
        answer["id"] = self.base["id"].clone();
        answer["persistence_dir"] = json!(self.store);
        answer["leaf_event_id"] = self.base["leaf_event_id"].clone();
        answer["execution_status"] = self.base["execution_status"].clone();
        (status, answer)
    }

    fn knows(&self, event: &str) -> bool {
        let mut events = std::fs::read_dir(self.store.join("events")).expect("events");
        events.any(|e| e.expect("entry").file_name().to_string_lossy().contains(event))
    }

    fn answer(&mut self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (u64, Value) {
        if key != Some(KEY) {
            return Self::recorded("unauthorized");
        }
        let place = format!("/api/conversations/{}", self.base["id"].as_str().expect("id"));
        let Some(rest) = path.strip_prefix(&place) else {
            return Self::recorded("unknown_conversation");
        };
        let mut log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.dir.join("log"))
            .expect("log");
        writeln!(log, "{method} {rest}").expect("log");
        match (method, rest) {
            ("GET", "") => {
                if self.stopping > 0 {
                    self.stopping -= 1;
                    if self.stopping == 0 {
                        self.base["execution_status"] = json!("paused");
                        self.save();
                    }
                }
                self.told("get")
            }
            ("POST", "/interrupt") => {
                self.stopping = if self.mode == "never-stops" { u32::MAX } else { 3 };
                Self::recorded("interrupt")
            }
            ("POST", "/events") if self.mode == "send-fails" => {
                (500, json!({"detail": "Internal Server Error"}))
            }
            // it goes away without an answer
            ("POST", "/events") if self.mode == "send-lost" => (0, Value::Null),
            ("POST", "/events") => {
                std::fs::write(self.dir.join("sent"), body.to_string()).expect("sent");
                if self.mode == "send-taken" {
                    self.base["leaf_event_id"] = json!("00000000-0000-4000-8000-0000000000aa");
                    self.save();
                    return (0, Value::Null);
                }
                if self.mode == "send-busy" {
                    return (
                        429,
                        json!({"detail": "Message saved, but the conversation run limit was reached."}),
                    );
                }
                Self::recorded("events")
            }
            ("POST", "/navigate") => self.navigate(body["event_id"].as_str().unwrap_or_default()),
            _ => (404, json!({"detail": "Not Found"})),
        }
    }

    fn navigate(&mut self, event: &str) -> (u64, Value) {
        let first = self.mode == "navigate-fails" || self.mode == "navigate-dies";
        if !self.knows(event) {
            return Self::recorded("navigate_unknown");
        }
        if self.mode == "navigate-fails" {
            return (500, json!({"detail": "Internal Server Error\u{1b}[31m"}));
        }
        if self.mode != "navigate-lies" {
            self.base["leaf_event_id"] = json!(event);
            self.save();
        }
        if first {
            std::process::exit(1);
        }
        self.told("navigate")
    }
}

fn serve(held: &mut Held, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut key, mut length) = (None, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "x-session-api-key" => key = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (status, answer) = held.answer(method, path, key.as_deref(), &body);
    if status == 0 {
        return Ok(());
    }
    let text = answer.to_string();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn fake_agent_server() {
    let (store, dir) = (given("FAKE_STORE"), given("FAKE_DIR"));
    let bytes = std::fs::read(store.join("base_state.json")).expect("state");
    let mut held = Held {
        mode: given("FAKE_MODE").to_string_lossy().into_owned(),
        base: serde_json::from_slice(&bytes).expect("state"),
        stopping: 0,
        store,
        dir,
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    held.lease();
    let port = listener.local_addr().expect("address").port();
    let temp = held.dir.join("port.new");
    std::fs::write(&temp, port.to_string()).expect("port");
    std::fs::rename(temp, held.dir.join("port")).expect("port");
    // ends with the test that started it, also when that is killed
    std::thread::spawn(|| {
        let _end = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    for stream in listener.incoming().flatten() {
        let _broken = serve(&mut held, stream);
    }
}
