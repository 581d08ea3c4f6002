//! The events of an agent server inside a container (OpenHands SDK 1.31 to 1.58): its WebSocket pushes each message right
//! after it was written. The server is reached in the network of its own container, so that no port need be published.
//!
//! What is read there is data of the container's: frames are bounded, ids are checked, and the key goes to that
//! server alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};

use super::error::{ChatError, Result};
use super::server::Server;
use crate::conversation::is_server;
use crate::process;
use crate::progress::Progress;

/// The largest frame that is read, in bytes: a message may carry pictures.
const FRAME: usize = 32 << 20;
/// How often the end is looked for, and how long a read waits.
const TICK: Duration = Duration::from_millis(500);
/// How often new conversations are asked for.
const ROUND: Duration = Duration::from_secs(1);
/// A server that does not listen within this time is told.
const STARTING: Duration = Duration::from_secs(20);
/// So many conversations of one server are followed.
const MOST: usize = 64;

/// What a server told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// This conversation is followed from now on.
    Following(String),
    /// A message was stored.
    Message {
        /// Its conversation (hostile).
        conversation: String,
        /// Its native id (hostile).
        id: String,
        /// Its text (hostile).
        text: String,
    },
    /// The agent stopped.
    Stopped {
        /// The conversation.
        conversation: String,
    },
    /// Something is not heard, and why.
    Deaf {
        /// The conversation, where it is about one.
        conversation: Option<String>,
        /// Why.
        why: String,
    },
}

/// The processes of agent servers in the container whose first process this is.
pub fn servers_in(first: i32) -> Vec<i32> {
    let room = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let Some(own) = room(first) else { return Vec::new() };
    let line = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let all = process::pids().into_iter().filter(|p| is_server(&line(*p)));
    all.filter(|p| room(*p).as_ref() == Some(&own)).collect()
}

fn failed(what: &str, e: impl std::fmt::Display) -> ChatError {
    ChatError::server("the agent server", format!("{what}: {e}"))
}

/// Moves this thread, which must end soon after, into the network of a process.
fn enter(pid: i32) -> Result<PathBuf> {
    let path = format!("/proc/{pid}/ns/net");
    let link = std::fs::read_link(&path).map_err(|e| failed("its network", e))?;
    let file = File::open(&path).map_err(|e| failed("its network", e))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| failed("its network", e))?;
    Ok(link)
}

/// Follows all conversations of the server that runs as this process, until `stop` says so or the server ends. It may
/// take up to a second after its end is told. Runs on threads of its own.
pub fn follow(pid: i32, stop: &dyn Progress, tell: &Sender<Told>) {
    let deaf = |why: String| {
        drop(tell.send(Told::Deaf {
            conversation: None,
            why,
        }));
    };
    let Some(start) = process::stat(pid).map(|s| s.start) else {
        return;
    };
    let ears = Ears {
        known: Mutex::default(),
        open: Mutex::default(),
        began: Instant::now(),
        pid,
        start,
        stop,
        tell,
    };
    std::thread::scope(|threads| {
        let room = std::thread::Builder::new().name("events".into());
        let spawned = room.spawn_scoped(threads, || {
            let mut last = None;
            while ears.go_on() {
                if let Err(e) = ears.conversations() {
                    // one that has just started does not listen yet
                    let why = e.to_string();
                    if ears.began.elapsed() > STARTING && last.as_ref() != Some(&why) {
                        deaf(why.clone());
                        last = Some(why);
                    }
                    std::thread::sleep(ROUND);
                }
            }
        });
        if let Err(e) = spawned {
            deaf(e.to_string());
        }
    });
}

/// What is followed of one server.
struct Ears<'a> {
    /// Conversations that were followed before.
    known: Mutex<BTreeSet<String>>,
    /// Those that are now.
    open: Mutex<BTreeSet<String>>,
    began: Instant,
    pid: i32,
    start: u64,
    stop: &'a dyn Progress,
    tell: &'a Sender<Told>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ears<'_> {
    fn go_on(&self) -> bool {
        !self.stop.cancelled() && process::alive(self.pid, self.start)
    }

    /// In the container's network: asks for conversations, and has each followed.
    fn conversations(&self) -> Result<()> {
        let network = enter(self.pid)?;
        let server = Server::inside(self.pid, &network)?;
        // what was there before is not new; of one that has just begun, its first message is
        let mut first = locked(&self.known).is_empty() && self.began.elapsed() < STARTING;
        std::thread::scope(|threads| {
            while self.go_on() {
                for id in server.conversations()? {
                    if locked(&self.open).len() >= MOST || !locked(&self.open).insert(id.clone()) {
                        continue;
                    }
                    let fresh = locked(&self.known).insert(id.clone()) && !first;
                    let server = server.clone();
                    threads.spawn(move || self.one(&server, &id, fresh));
                }
                first = false;
                std::thread::sleep(ROUND);
            }
            Ok(())
        })
    }

    fn one(&self, server: &Server, id: &str, fresh: bool) {
        let line = Line {
            server,
            conversation: id,
            ears: self,
        };
        if let Err(e) = line.follow(fresh) {
            line.say(Told::Deaf {
                conversation: Some(id.to_owned()),
                why: e.to_string(),
            });
            std::thread::sleep(ROUND);
        }
        locked(&self.open).remove(id);
    }
}

/// The events of one conversation.
struct Line<'a> {
    server: &'a Server,
    conversation: &'a str,
    ears: &'a Ears<'a>,
}

impl Line<'_> {
    fn follow(&self, fresh: bool) -> Result<()> {
        enter(self.ears.pid)?;
        let address = self.server.url.strip_prefix("http://").unwrap_or_default();
        let address: SocketAddr = address.parse().map_err(|e| failed("its address", e))?;
        let mut events = self.connect(address)?;
        self.say(Told::Following(self.conversation.to_owned()));
        if fresh && let Some(event) = self.server.user_messages(self.conversation)?.last() {
            self.heard(event);
        }
        while self.ears.go_on() {
            match events.read() {
                Ok(Message::Text(text)) => {
                    if let Ok(event) = serde_json::from_str(&text) {
                        self.heard(&event);
                    }
                }
                Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
                Ok(_) => {}
                Err(tungstenite::Error::Io(e)) if is_patience(&e) => {}
                Err(e) => return Err(failed("its events", e)),
            }
        }
        Ok(())
    }

    fn connect(&self, address: SocketAddr) -> Result<WebSocket<TcpStream>> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(3));
        let stream = stream.map_err(|e| failed("it cannot be reached", e))?;
        let limits = |patience| {
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(Duration::from_secs(5)))
        };
        limits(Duration::from_secs(5)).map_err(|e| failed("its events", e))?;
        let again = stream.try_clone().map_err(|e| failed("its events", e))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(FRAME))
            .max_frame_size(Some(FRAME));
        let path = format!("ws://{address}/sockets/events/{}", self.conversation);
        let (mut events, _) = tungstenite::client::client_with_config(path, again, Some(config))
            .map_err(|e| failed("its events", e))?;
        if let Some(hello) = self.server.greeting() {
            events
                .send(Message::text(hello))
                .map_err(|e| failed("its events", e))?;
        }
        limits(TICK).map_err(|e| failed("its events", e))?;
        Ok(events)
    }

    fn heard(&self, event: &Value) {
        if let Some(told) = told(self.conversation, event) {
            self.say(told);
        }
    }

    /// Nobody listens any more at the end.
    fn say(&self, told: Told) {
        drop(self.ears.tell.send(told));
    }
}

fn is_patience(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

/// What an event means here, if anything.
fn told(conversation: &str, event: &Value) -> Option<Told> {
    let conversation = conversation.to_owned();
    match event["kind"].as_str()? {
        "MessageEvent" if event["source"] == "user" => {
            let parts = event["llm_message"]["content"].as_array()?;
            let text = parts.iter().filter_map(|p| p["text"].as_str()).collect();
            let id = event["id"]
                .as_str()
                .filter(|id| super::server::plain(id).is_ok())?
                .to_owned();
            Some(Told::Message {
                conversation,
                id,
                text,
            })
        }
        "ConversationStateUpdateEvent" if event["key"] == "execution_status" => {
            let over = ["finished", "idle", "error", "stuck", "paused"];
            let now = event["value"].as_str()?;
            over.contains(&now).then_some(Told::Stopped { conversation })
        }
        _ => None,
    }
}

/// The first frame: the key, where the server wants one.
pub(super) fn greeting(key: &str) -> String {
    json!({"type": "auth", "session_api_key": key}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As agent server 1.58 sent them.
    #[test]
    fn messages_of_the_user_and_the_end_of_the_turn() {
        let message = json!({"id": "2bbe104c-b4ef-4569-846b-aabfe1f3dcbf", "kind": "MessageEvent", "source": "user",
            "llm_message": {"role": "user", "content": [{"type": "text", "text": "do "}, {"type": "image"},
            {"type": "text", "text": "it"}]}});
        let expected = Told::Message {
            conversation: "c".into(),
            id: "2bbe104c-b4ef-4569-846b-aabfe1f3dcbf".into(),
            text: "do it".into(),
        };
        assert_eq!(told("c", &message), Some(expected));
        let state = |key: &str, value: &str| json!({"kind": "ConversationStateUpdateEvent", "key": key, "value": value});
        assert!(matches!(
            told("c", &state("execution_status", "finished")),
            Some(Told::Stopped { .. })
        ));
        let mut agent = message.clone();
        agent["source"] = "agent".into();
        let mut hostile = message;
        hostile["id"] = "../x".into();
        for other in [
            agent,
            hostile,
            state("execution_status", "running"),
            state("stats", "idle"),
            json!([]),
        ] {
            assert_eq!(told("c", &other), None, "{other}");
        }
    }

    #[test]
    fn this_process_is_no_agent_server() {
        assert_eq!(servers_in(std::process::id() as i32), Vec::<i32>::new());
    }
}
