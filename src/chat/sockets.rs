//! On which addresses of this machine a process listens: from its open sockets and the kernel's own lists.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::error::{ChatError, Result};

/// The addresses to connect to, loopback ones first. `network`: this process's own network namespace; a server in
/// another one cannot be reached.
pub(super) fn listening(pid: i32, network: Option<&Path>) -> Result<Vec<SocketAddr>> {
    let process = format!("/proc/{pid}");
    let theirs = fs::read_link(format!("{process}/ns/net"));
    if network.is_none() || theirs.ok().as_deref() != network {
        return Err(ChatError::server(
            "the agent server",
            format!("process {pid} is in a network of its own (a container?), or another user's"),
        ));
    }
    let own: HashSet<String> = fs::read_dir(format!("{process}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|e| {
            let link = fs::read_link(e.ok()?.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for list in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("{process}/net/{list}")).unwrap_or_default();
        found.extend(text.lines().filter_map(|l| entry(l, &own)));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// One line of the list, if it is a socket of these that listens where this machine can reach it by loopback.
fn entry(line: &str, own: &HashSet<String>) -> Option<SocketAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    if *state != "0A" || !own.contains(*inode) {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = ip(address)?;
    let ip = match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    ip.is_loopback().then(|| SocketAddr::new(ip, port))
}

/// Words of 32 bits, each in the byte order of the machine.
fn ip(hex: &str) -> Option<IpAddr> {
    let words: Vec<u32> = hex
        .as_bytes()
        .chunks(8)
        .map(|c| u32::from_str_radix(std::str::from_utf8(c).ok()?, 16).ok())
        .collect::<Option<_>>()?;
    match words[..] {
        [a] => Some(Ipv4Addr::from(a.to_ne_bytes()).into()),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_mut(4).zip([a, b, c, d]) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_listeners_are_found() {
        let v4 = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let any = std::net::TcpListener::bind("0.0.0.0:0").expect("listen");
        let network = fs::read_link("/proc/self/ns/net").expect("namespace");
        let found = listening(std::process::id() as i32, Some(&network)).expect("lists");
        let port = any.local_addr().expect("address").port();
        assert!(found.contains(&v4.local_addr().expect("address")), "{found:?}");
        assert!(
            found.contains(&SocketAddr::from(([127, 0, 0, 1], port))),
            "{found:?}"
        );
        assert!(listening(std::process::id() as i32, Some(Path::new("net:[1]"))).is_err());
    }
}
