//! A port at which a program listens: `tcp:6379`.
//!
//! Owns the notation, which is the same on command lines, in configurations and in messages.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Maximum number of ports that a program may name.
pub const MAX_LISTEN: usize = 64;

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

impl Transport {
    /// Returns the number of the protocol in IP headers.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// See the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Listen {
    /// Its protocol.
    pub transport: Transport,
    /// Not 0.
    pub port: u16,
}

/// The text is not a port with its protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a port at which a program listens; write tcp:PORT or udp:PORT, with a port from 1 to 65535"
)]
pub struct ListenError(String);

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transport, self.port)
    }
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let read = || {
            let (transport, port) = text.split_once(':')?;
            let transport = match transport {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                _ => return None,
            };
            Some(Self { transport, port: port.parse().ok().filter(|&port| port > 0)? })
        };
        read().ok_or_else(|| ListenError(text.to_owned()))
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl TryFrom<String> for Listen {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
        text.parse()
    }
}

/// Reads ports that are separated by commas.
///
/// # Errors
/// [`ListenError`] of the first that is none.
pub fn parse_listens(text: &str) -> Result<Vec<Listen>, ListenError> {
    text.split(',').map(|word| word.trim().parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_written() {
        let listens = parse_listens("tcp:6379, udp:53").unwrap();
        assert_eq!(listens[0], Listen { transport: Transport::Tcp, port: 6379 });
        let words: Vec<String> = listens.iter().map(Listen::to_string).collect();
        assert_eq!(words, ["tcp:6379", "udp:53"]);
        let json = serde_json::to_string(&listens).unwrap();
        assert_eq!(json, r#"["tcp:6379","udp:53"]"#);
        assert_eq!(serde_json::from_str::<Vec<Listen>>(&json).unwrap(), listens);
    }

    #[test]
    fn what_is_no_port_is_refused_and_named() {
        for wrong in ["6379", "tcp", "tcp:", "tcp:0", "tcp:65536", "sctp:1", "tcp:80,,udp:1", ""] {
            let error = parse_listens(wrong).unwrap_err().to_string();
            assert!(error.contains("tcp:PORT"), "{error}");
        }
        assert!(serde_json::from_str::<Listen>("\"tcp:0\"").is_err());
    }
}
