//! The connection to a container engine. Each call has a time limit, and runs on a thread of its own: callers may be
//! in an asynchronous task or not.

use std::future::Future;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::ListContainersOptionsBuilder;
use serde::Deserialize;

use super::error::{DockerError, Result};
use super::inspect::Inspect;

/// The limit of a call that only asks.
pub const ASK: Duration = Duration::from_secs(5);

/// The limit of a request of the client: more than any call here is given.
const CLIENT: u64 = 600;

/// A container engine.
pub struct Engine {
    docker: Docker,
    runtime: tokio::runtime::Runtime,
    host: String,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.host)
    }
}

/// What `~/.docker/config.json` says of contexts.
#[derive(Deserialize, Default)]
struct CliConfig {
    #[serde(rename = "currentContext", default)]
    current: Option<String>,
}

/// A context's `meta.json`.
#[derive(Deserialize)]
struct ContextMeta {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Endpoints", default)]
    endpoints: std::collections::BTreeMap<String, Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(rename = "Host", default)]
    host: Option<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The endpoint of the current context of the Docker client in its folder; `None` for the default one.
fn context(folder: &Path, named: Option<String>) -> Option<String> {
    let config = || {
        let text = crate::paths::read_file(&folder.join("config.json")).ok()?;
        serde_json::from_slice::<CliConfig>(&text).ok()?.current
    };
    let name = named
        .or_else(config)
        .filter(|n| !n.is_empty() && n != "default")?;
    let metas = std::fs::read_dir(folder.join("contexts/meta")).ok()?;
    metas.flatten().find_map(|entry| {
        let text = crate::paths::read_file(&entry.path().join("meta.json")).ok()?;
        let meta: ContextMeta = serde_json::from_slice(&text).ok()?;
        let host = meta.endpoints.get("docker")?.host.clone()?;
        (meta.name == name).then_some(host)
    })
}

/// Where engines listen, the first ones first: those that were named, or else the sockets that there are.
fn candidates() -> Vec<String> {
    if let Some(host) = variable("DOCKER_HOST") {
        return vec![host];
    }
    let folder = variable("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|h| Path::new(&h).join(".docker")));
    if let Some(host) = folder.and_then(|f| context(&f, variable("DOCKER_CONTEXT"))) {
        return vec![host];
    }
    let mut paths = vec![PathBuf::from("/var/run/docker.sock")];
    let own = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    paths.extend(own.iter().map(|d| d.join("docker.sock")));
    paths.push("/run/podman/podman.sock".into());
    paths.extend(own.iter().map(|d| d.join("podman/podman.sock")));
    let is_socket = |p: &&PathBuf| std::fs::metadata(p).is_ok_and(|m| m.file_type().is_socket());
    let there = paths.iter().filter(is_socket);
    there.map(|p| format!("unix://{}", p.display())).collect()
}

/// What an error of the API says, one line.
pub(super) fn said(e: &ApiError) -> String {
    match e {
        ApiError::DockerResponseServerError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

impl Engine {
    /// Connects: to `host` (`unix:///...`, `tcp://...`), or to the one that this user's environment means.
    pub fn connect(host: Option<&str>) -> Result<Self> {
        if let Some(host) = host {
            // one that is known: nothing is asked until there is a question
            return Self::client(host).map_err(|e| DockerError::Unreachable(format!("{host}: {e}")));
        }
        let hosts = candidates();
        let mut why = "there is no socket of one".to_owned();
        for host in hosts {
            match Self::connect_to(&host) {
                Ok(engine) => return Ok(engine),
                Err(e) => why = format!("{host}: {e}"),
            }
        }
        Err(DockerError::Unreachable(why))
    }

    /// Connects to a known one, and asks it: an error where it is down.
    pub fn reach(host: &str) -> Result<Self> {
        Self::connect_to(host).map_err(|e| DockerError::Unreachable(format!("{host}: {e}")))
    }

    /// Connects, and agrees on a version: API 1.41 and later. Podman answers the same.
    fn connect_to(host: &str) -> std::result::Result<Self, String> {
        let mut engine = Self::client(host)?;
        let asked = engine.docker.clone();
        engine.docker = engine.call(ASK, asked.negotiate_version())?;
        Ok(engine)
    }

    fn client(host: &str) -> std::result::Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let docker = Docker::connect_with_host(host)
            .map_err(|e| said(&e))?
            .with_timeout(Duration::from_secs(CLIENT));
        Ok(Self {
            docker,
            runtime,
            host: host.to_owned(),
        })
    }

    /// Where it listens.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Why the files of its containers cannot be reached from here: it is on another machine, or belongs to a user
    /// whose word is not root's. `None` if they can.
    pub fn out_of_reach(&self) -> Option<String> {
        let Some(path) = self.host.strip_prefix("unix://") else {
            return Some("the engine is reached over a network: its files may be on another machine".into());
        };
        if !rustix::process::geteuid().is_root() {
            return Some("only root reaches the files of a container".into());
        }
        match std::fs::metadata(path) {
            Ok(meta) if meta.uid() == 0 => None,
            Ok(meta) => Some(format!(
                "the engine belongs to user {}: rootless ones are not covered yet",
                meta.uid()
            )),
            Err(e) => Some(format!("{}: {e}", crate::text::shown(path))),
        }
    }

    /// Makes a call, within a time limit.
    pub(super) fn call<T: Send>(
        &self,
        limit: Duration,
        call: impl Future<Output = std::result::Result<T, ApiError>> + Send,
    ) -> std::result::Result<T, String> {
        self.raw(limit, call)?.map_err(|e| said(&e))
    }

    /// As [`Engine::call`], with the error as the API has it.
    pub(super) fn raw<T: Send>(
        &self,
        limit: Duration,
        call: impl Future<Output = std::result::Result<T, ApiError>> + Send,
    ) -> std::result::Result<std::result::Result<T, ApiError>, String> {
        let within = async { tokio::time::timeout(limit, call).await };
        let done = std::thread::scope(|s| s.spawn(|| self.runtime.block_on(within)).join());
        match done {
            Ok(answer) => answer.map_err(|_| format!("no answer within {} seconds", limit.as_secs())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(super) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// One container, by its id or its exact name; `None` if there is none.
    pub fn find(&self, name: &str) -> Result<Option<Inspect>> {
        let name = name.trim_start_matches('/');
        // nothing else is a container's name, and what is pasted into a path must be one
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if name.is_empty() || !name.bytes().all(plain) {
            return Ok(None);
        }
        match self.raw(ASK, self.docker.inspect_container(name, None)) {
            Ok(Ok(found)) => {
                let found = Inspect::of(found);
                // the engine takes a prefix of an id, too
                let exact = found.name == name
                    || found.id == name
                    || (name.len() >= 12 && found.id.starts_with(name));
                Ok(exact.then_some(found))
            }
            Ok(Err(ApiError::DockerResponseServerError { status_code: 404, .. })) => Ok(None),
            Ok(Err(e)) => Err(DockerError::Unreachable(said(&e))),
            Err(why) => Err(DockerError::Unreachable(why)),
        }
    }

    /// As [`Engine::find`]; it must be there.
    pub fn inspect(&self, name: &str) -> Result<Inspect> {
        self.find(name)?
            .ok_or_else(|| DockerError::NoContainer(name.to_owned()))
    }

    /// All containers, stopped ones too, by name.
    pub fn all(&self) -> Result<Vec<Inspect>> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let listed = self
            .call(ASK, self.docker.list_containers(Some(options)))
            .map_err(DockerError::Unreachable)?;
        let mut out = Vec::new();
        for id in listed.into_iter().filter_map(|c| c.id) {
            // one that is gone meanwhile is no container any more
            out.extend(self.find(&id)?);
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// The folder of its data.
    pub fn data_root(&self) -> Option<PathBuf> {
        let info = self.call(ASK, self.docker.info()).ok()?;
        info.docker_root_dir.map(PathBuf::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_names_an_endpoint() {
        let dir = tempfile::tempdir().expect("tempdir");
        let meta = dir.path().join("contexts/meta/0123");
        std::fs::create_dir_all(&meta).expect("folder");
        std::fs::write(
            dir.path().join("config.json"),
            r#"{"currentContext":"far","auths":{}}"#,
        )
        .expect("config");
        let text = r#"{"Name":"far","Metadata":{},"Endpoints":{"docker":{"Host":"unix:///x.sock","SkipTLSVerify":false}}}"#;
        std::fs::write(meta.join("meta.json"), text).expect("meta");
        assert_eq!(context(dir.path(), None).as_deref(), Some("unix:///x.sock"));
        assert_eq!(context(dir.path(), Some("default".into())), None);
        assert_eq!(context(dir.path(), Some("none".into())), None);
    }

    #[test]
    fn a_missing_socket_is_named() {
        let e = Engine::connect(Some("unix:///nonexistent/docker.sock")).expect_err("nothing there");
        assert!(e.to_string().contains("/nonexistent/docker.sock"), "{e}");
    }
}
