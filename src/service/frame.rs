//! Frames of the protocol: four bytes of length, then JSON.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Report;
use crate::sandbox::remote::Request;
use crate::text::ExactPath;

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The longest frame that the service takes.
pub const FROM_CLIENT: usize = 4 << 20;
/// The longest frame that a client takes: a file's content in base64, or the list of a very large tree.
pub const FROM_SERVICE: usize = 2 << 30;

/// The first frame of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The program's version.
    pub program: String,
    /// The client's: the state folder that was named on its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<ExactPath>,
}

impl Hello {
    /// This program's.
    pub fn own(state_dir: Option<ExactPath>) -> Self {
        Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            state_dir,
        }
    }
}

/// From the client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ask {
    /// Its number; answers carry it.
    pub id: u64,
    /// What is asked; nothing in a cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// Stop the request of this number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
    /// How many ordinary requests this one counts for, by its length.
    #[serde(skip, default = "one")]
    pub weight: usize,
}

fn one() -> usize {
    1
}

/// From the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The number of what was asked.
    pub id: u64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Work goes on: the phase, steps done, steps in all (0 = not known).
    Progress(String, u64, u64),
    /// The last frame of this number: the result.
    Ok(Value),
    /// The last frame of this number: why not.
    Error(Report),
}

/// Writes one frame.
pub fn write(to: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0u8; 4];
    serde_json::to_writer(&mut bytes, frame)?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| io::Error::other("the frame is too long"))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads one frame of at most `limit` bytes; `None` at the end of the line.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, limit: usize) -> io::Result<Option<T>> {
    read_bytes(from, limit)?.map(|bytes| parse(&bytes)).transpose()
}

/// The most values that a frame of a client may hold: each takes much more memory than bytes in the frame.
const VALUES: usize = 300_000;

/// A frame this much longer counts for one request more.
const HEAVY: usize = 256 << 10;

/// As [`read`], for what a client sent.
pub fn read_ask(from: &mut impl Read) -> io::Result<Option<Ask>> {
    read_bytes(from, FROM_CLIENT)?
        .map(|bytes| {
            let values = bytes.iter().filter(|b| matches!(b, b',' | b'[' | b'{')).count();
            if values > VALUES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too many values"));
            }
            let ask: Ask = parse(&bytes)?;
            Ok(Ask {
                weight: 1 + bytes.len() / HEAVY,
                ..ask
            })
        })
        .transpose()
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn read_bytes(from: &mut impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0u8; 4];
    let mut got = 0;
    while got < length.len() {
        match from.read(&mut length[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes, {limit} at most"),
        ));
    }
    // memory only for what really comes
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_back_and_the_end_is_told_from_a_cut() {
        let mut line = Vec::new();
        write(&mut line, &Hello::own(None)).expect("written");
        let mut from = line.as_slice();
        assert_eq!(
            read::<Hello>(&mut from, 100).expect("read"),
            Some(Hello::own(None))
        );
        assert_eq!(read::<Hello>(&mut from, 100).expect("end"), None);
        for cut in 1..line.len() {
            let e = read::<Hello>(&mut &line[..cut], 100).expect_err("cut");
            assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
        let e = read::<Hello>(&mut line.as_slice(), 8).expect_err("too long");
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_take_much_memory(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut from = bytes.as_slice();
            while let Ok(Some(_)) = read::<Ask>(&mut from, FROM_CLIENT) {}
        }

        #[test]
        fn any_json_is_a_request_or_an_error(text in "\\{\"id\":[0-9]{1,3},\"request\":.{0,80}\\}") {
            let mut line = (text.len() as u32).to_be_bytes().to_vec();
            line.extend(text.as_bytes());
            drop(read::<Ask>(&mut line.as_slice(), FROM_CLIENT));
        }
    }
}
