//! The agent server of OpenHands (REST, SDK 1.31 to 1.58), on loopback or where the user's config says.
//!
//! Keys are never shown: they have no `Debug`, are in no error and in no argument; they go to the address that
//! they belong to, without redirects and without a proxy.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{ChatError, Result};
use super::sockets;
use crate::paths::{Env, read_file};
use crate::process;
use crate::progress::Progress;

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same for a message: its hooks are done first, and OpenHands gives each of them a minute where nothing else is set.
const HOOKS: Duration = Duration::from_secs(180);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// The largest answer that is read.
const ANSWER: u64 = 32 << 20;
/// How long an interrupted agent has to stop.
const STOP: Duration = Duration::from_secs(30);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// The secret of a server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key(String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// From its bytes, without the white space around it; `None` if no header can carry it.
    fn of(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim();
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        plain.then(|| Self(text.to_owned()))
    }

    /// From a file.
    pub(super) fn in_file(path: &Path) -> Result<Self> {
        let bytes = read_file(path).map_err(ChatError::io("read", path))?;
        Self::of(&bytes).ok_or_else(|| ChatError::Damaged {
            path: path.to_owned(),
            reason: "it holds no key".into(),
        })
    }

    /// All that the environment of a server names, the likeliest first.
    fn in_environment(env: &Env) -> Vec<Self> {
        let mut named: Vec<&String> = env
            .keys()
            .filter(|n| n.starts_with("OH_SESSION_API_KEYS_"))
            .collect();
        named.sort();
        let names = named.into_iter().map(String::as_str);
        let names = names.chain(["SESSION_API_KEY", "LOCAL_BACKEND_API_KEY"]);
        names
            .filter_map(|n| Self::of(std::os::unix::ffi::OsStrExt::as_bytes(env.get(n)?.as_os_str())))
            .collect()
    }
}

/// What a server says of a conversation.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) execution_status: Option<String>,
    #[serde(default)]
    pub(super) leaf_event_id: Option<String>,
    #[serde(default)]
    pub(super) persistence_dir: Option<String>,
}

impl Told {
    /// True while the agent may write.
    pub(super) fn running(&self) -> bool {
        self.execution_status.as_deref() == Some("running")
    }
}

/// A server that holds a conversation.
#[derive(Clone)]
pub struct Server {
    /// Its address: `http://127.0.0.1:8000`.
    pub url: String,
    /// Its process, if it is one of this machine.
    pub pid: Option<i32>,
    key: Option<Key>,
    agent: ureq::Agent,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({}, {:?})", self.url, self.pid)
    }
}

/// An answer: the status, and the document.
struct Answer {
    status: u16,
    body: Value,
}

impl Server {
    fn new(url: &str, pid: Option<i32>, key: Option<Key>) -> Self {
        Self::with_patience(url, pid, key, PATIENCE)
    }

    fn with_patience(url: &str, pid: Option<i32>, key: Option<Key>, patience: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(patience))
            .user_agent("respool")
            .build();
        Self {
            url: url.trim_end_matches('/').to_owned(),
            pid,
            key,
            agent: config.into(),
        }
    }

    /// The one that the user's config names.
    pub(super) fn configured(url: &str, key_file: Option<&Path>) -> Result<Self> {
        if !url.starts_with("http://") {
            return Err(ChatError::server(
                url,
                "only http:// is supported; put a tunnel in between",
            ));
        }
        let key = key_file.map(Key::in_file).transpose()?;
        Ok(Self::new(url, None, key))
    }

    /// The one that runs as this process and knows this conversation, whose store is `store`.
    pub(super) fn of_process(
        pid: i32,
        network: Option<&Path>,
        more_keys: &[PathBuf],
        conversation: &str,
        store: &Path,
    ) -> Result<Self> {
        // a store can name any process: keys go to none of another user's
        let owner = std::fs::symlink_metadata(store).map(|m| m.uid());
        let user = process::user(pid);
        if user != Some(0) && user != owner.ok() {
            return Err(ChatError::server(
                "the agent server",
                format!("process {pid} is another user's than the conversation"),
            ));
        }
        let addresses = sockets::listening(pid, network)?;
        let env = environment(pid);
        let mut keys: Vec<Option<Key>> = Key::in_environment(&env).into_iter().map(Some).collect();
        keys.extend(more_keys.iter().filter_map(|f| Key::in_file(f).ok()).map(Some));
        keys.push(None);
        let mut last = ChatError::server("the agent server", "it listens on no address of this machine");
        for address in addresses {
            for key in &keys {
                let server = Self::new(&format!("http://{address}"), Some(pid), key.clone());
                match server.knows(conversation, store) {
                    Ok(_) => return Ok(server),
                    Err(e) => last = e,
                }
            }
        }
        Err(last)
    }

    /// The one that runs as this process, from a thread that is in its network.
    pub(super) fn inside(pid: i32, network: &Path) -> Result<Self> {
        let addresses = sockets::listening(pid, Some(network))?;
        let mut keys: Vec<Option<Key>> = Key::in_environment(&environment(pid))
            .into_iter()
            .map(Some)
            .collect();
        keys.push(None);
        let mut last = ChatError::server("the agent server", "it listens on no address");
        for address in addresses {
            for key in &keys {
                let server = Self::new(&format!("http://{address}"), Some(pid), key.clone());
                match server.conversations() {
                    Ok(_) => return Ok(server),
                    Err(e) => last = e,
                }
            }
        }
        Err(last)
    }

    /// The ids of its newest conversations.
    pub(super) fn conversations(&self) -> Result<Vec<String>> {
        let body = self.good(self.call("GET", "/api/conversations/search?limit=100", None)?)?;
        let items = body["items"].as_array().into_iter().flatten();
        let ids = items.filter_map(|c| plain(c["id"].as_str()?).ok().map(str::to_owned));
        Ok(ids.collect())
    }

    /// The newest messages of the user in a conversation, as events, the oldest first.
    pub(super) fn user_messages(&self, conversation: &str) -> Result<Vec<Value>> {
        let path = format!(
            "/api/conversations/{}/events/search?kind=MessageEvent&source=user&sort_order=TIMESTAMP&limit=100",
            plain(conversation)?
        );
        let mut body = self.good(self.call("GET", &path, None)?)?;
        let items = body["items"].as_array_mut().map(std::mem::take);
        Ok(items.unwrap_or_default())
    }

    /// The first frame of a WebSocket, where it wants a key.
    pub(super) fn greeting(&self) -> Option<String> {
        self.key.as_ref().map(|k| super::stream::greeting(&k.0))
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let url = format!("{}{path}", self.url);
        let fail = |e: ureq::Error| ChatError::server(&self.url, e.to_string());
        let key = self.key.as_ref().map(|k| k.0.as_str());
        let with_key = |r: ureq::http::request::Builder| match key {
            Some(key) => r.header("X-Session-API-Key", key),
            None => r,
        };
        let request = with_key(ureq::http::Request::builder().method(method).uri(&url));
        let request = request.header("Content-Type", "application/json");
        let text = body.map(Value::to_string).unwrap_or_default();
        let built = request
            .body(text)
            .map_err(|e| ChatError::server(&self.url, e.to_string()))?;
        let mut answer = self.agent.run(built).map_err(fail)?;
        let status = answer.status().as_u16();
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(ANSWER)
            .read_to_vec()
            .map_err(fail)?;
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Answer { status, body })
    }

    fn good(&self, answer: Answer) -> Result<Value> {
        let detail = &answer.body["detail"];
        // of a request that it did not understand: a list
        let detail = detail
            .as_str()
            .or_else(|| detail[0]["msg"].as_str())
            .unwrap_or_default();
        match answer.status {
            200..=299 => Ok(answer.body),
            401 | 403 => Err(ChatError::server(
                &self.url,
                "it wants another key: name it in the config, [agents.openhands] api_key_file",
            )),
            404 if detail == "Not Found" => {
                Err(ChatError::server(&self.url, "it does not know the conversation"))
            }
            status => Err(ChatError::server(
                &self.url,
                format!("it answered {status} {detail}"),
            )),
        }
    }

    /// What it says of a conversation.
    pub(super) fn told(&self, conversation: &str) -> Result<Told> {
        let path = format!("/api/conversations/{}", plain(conversation)?);
        let body = self.good(self.call("GET", &path, None)?)?;
        serde_json::from_value(body).map_err(|e| ChatError::server(&self.url, e.to_string()))
    }

    /// As [`Server::told`], refused if it keeps that conversation in another place than `store`.
    pub(super) fn knows(&self, conversation: &str, store: &Path) -> Result<Told> {
        let told = self.told(conversation)?;
        let real = |p: &Path| p.canonicalize().ok();
        let place = told.persistence_dir.as_ref().map(PathBuf::from);
        // a relative one is relative to the server's own folder: the name must do then
        let same = place.as_ref().is_none_or(|p| {
            if p.is_absolute() && self.pid.is_some() {
                real(p).is_some_and(|p| real(store) == Some(p))
            } else {
                p.file_name() == store.file_name()
            }
        });
        if same {
            return Ok(told);
        }
        Err(ChatError::server(
            &self.url,
            "it keeps a conversation of that id in another place",
        ))
    }

    /// Moves the head, and looks whether it moved.
    pub(super) fn navigate(&self, conversation: &str, event: &str) -> Result<()> {
        let path = format!("/api/conversations/{}/navigate", plain(conversation)?);
        self.good(self.call("POST", &path, Some(&json!({"event_id": event})))?)?;
        process::fault_point("chat-navigated");
        let told = self.told(conversation)?;
        if told.leaf_event_id.as_deref() == Some(event) {
            return Ok(());
        }
        Err(ChatError::server(&self.url, "the head is not where it was to go"))
    }

    /// Sends a message, and lets the agent work on it; false if it has the message, and cannot begin now. (It answers
    /// when its hooks are done and the message is stored.)
    pub(super) fn send(&self, conversation: &str, content: &[Value]) -> Result<bool> {
        let path = format!("/api/conversations/{}/events", plain(conversation)?);
        let message = json!({"role": "user", "content": content, "run": true});
        let before = self.told(conversation)?.leaf_event_id;
        let patient = Self::with_patience(&self.url, self.pid, self.key.clone(), HOOKS);
        let answer = match patient.call("POST", &path, Some(&message)) {
            Ok(answer) => answer,
            // it may have it all the same: sent again, it would be there twice
            Err(e) => match self.told(conversation) {
                Ok(told) if told.leaf_event_id != before => return Ok(true),
                _ => return Err(ChatError::Unanswered(Box::new(e))),
            },
        };
        if answer.status == 429 {
            return Ok(false);
        }
        if self.good(answer)?["success"] == true {
            return Ok(true);
        }
        Err(ChatError::server(&self.url, "it did not take the message"))
    }

    /// Stops what the agent does, and waits until it has stopped.
    pub(super) fn interrupt(&self, conversation: &str, progress: &dyn Progress) -> Result<()> {
        let path = format!("/api/conversations/{}/interrupt", plain(conversation)?);
        self.good(self.call("POST", &path, Some(&json!({})))?)?;
        self.at_rest(conversation, progress)
            .map_err(ChatError::after_interrupt)
    }

    /// Waits until it has stopped.
    fn at_rest(&self, conversation: &str, progress: &dyn Progress) -> Result<()> {
        let until = Instant::now() + STOP;
        let mut seen = None;
        loop {
            let told = self.told(conversation)?;
            // it notes the interruption a moment later: the head must have come to rest
            if !told.running() && seen.as_ref() == Some(&told.leaf_event_id) {
                return Ok(());
            }
            seen = (!told.running()).then_some(told.leaf_event_id);
            if progress.cancelled() {
                return Err(ChatError::Cancelled);
            }
            if Instant::now() > until {
                return Err(ChatError::NotStopped(STOP.as_secs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Who it is, in words.
    pub fn words(&self) -> String {
        let url = crate::text::shown(&self.url);
        match self.pid {
            Some(pid) => format!("the agent server at {url}, process {pid}"),
            None => format!("the agent server at {url}"),
        }
    }
}

/// An id that can stand in an address.
pub(super) fn plain(id: &str) -> Result<&str> {
    let good = !id.is_empty() && id.len() < 100 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    good.then_some(id)
        .ok_or_else(|| ChatError::Unmovable("the conversation's id is none that a server could know".into()))
}

fn environment(pid: i32) -> Env {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes
        .split(|b| *b == 0)
        .filter_map(|pair| {
            let eq = pair.iter().position(|b| *b == b'=')?;
            let name = std::str::from_utf8(&pair[..eq]).ok()?;
            Some((
                name.to_owned(),
                std::ffi::OsStr::from_bytes(&pair[eq + 1..]).to_owned(),
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let key = Key::of(b" topsecret\n").expect("a key");
        assert_eq!(key.0, "topsecret");
        let server = Server::new("http://127.0.0.1:1/", Some(7), Some(key.clone()));
        let all = format!("{key:?} {server:?} {}", server.words());
        assert!(!all.contains("topsecret"), "{all}");
        let e = server
            .told("2bbe104c-b4ef-4569-846b-aabfe1f3dcbf")
            .expect_err("nobody is there");
        assert!(!format!("{e} {e:?}").contains("topsecret"));
        assert_eq!(Key::of(b"two words"), None);
        assert_eq!(Key::of(b"line\r\nX-Evil: 1"), None);
    }

    #[test]
    fn keys_are_found_in_the_environment() {
        let env: Env = [
            ("SESSION_API_KEY", "c"),
            ("OH_SESSION_API_KEYS_1", "b"),
            ("OH_SESSION_API_KEYS_0", "a"),
            ("OTHER", "x"),
            ("LOCAL_BACKEND_API_KEY", ""),
        ]
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).into()))
        .collect();
        let keys: Vec<String> = Key::in_environment(&env).into_iter().map(|k| k.0).collect();
        assert_eq!(keys, ["a", "b", "c"]);
    }

    /// A lease is a file of the store: whoever wrote it must not get the user's keys.
    #[test]
    fn keys_go_to_no_process_of_another_user() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can start another user's process"
        );
        let dir = tempfile::tempdir().expect("tempdir");
        let mut other = std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--clear-groups", "sleep", "600"])
            .spawn()
            .expect("setpriv");
        let pid = other.id() as i32;
        while process::user(pid) == Some(0) {
            std::thread::yield_now();
        }
        let e = Server::of_process(pid, None, &[], "x", dir.path()).expect_err("not asked");
        other.kill().expect("killed");
        other.wait().expect("ended");
        assert!(e.to_string().contains("another user's"), "{e}");
    }

    #[test]
    fn ids_cannot_leave_their_place_in_an_address() {
        for bad in ["", "../x", "a/b", "a?b", "a b", "a\r\n"] {
            assert!(plain(bad).is_err(), "{bad:?}");
        }
    }
}
