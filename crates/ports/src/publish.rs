//! Ports of this machine's own addresses behind which programs serve: `tcp:6379=kv`.
//!
//! Owns the notation and its check. What Linux does for it is set up by the program that runs the
//! IOKernel, which knows its programs by name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::grammar::OptionError;
use tailwater_shm::control::Listen;
pub use tailwater_shm::control::Transport;

/// The program behind a published port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The one that is registered under this name.
    Name(String),
    /// The one at this address, of either family only.
    Ip(IpAddr),
}

/// A port of this machine, and where it leads. Parsed from `tcp:6379=kv`, `tcp:80=web:8080`,
/// `udp:53=10.77.0.2` or `tcp:80=[fd00:7477::2]:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its protocol.
    pub transport: Transport,
    /// The port at all of this machine's addresses but those of loopback.
    pub port: u16,
    /// The program.
    pub target: Target,
    /// The program's port.
    pub target_port: u16,
}

impl FromStr for Published {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let wrong = |expected: &str| OptionError::new(text, expected);
        let (here, to) = text.split_once('=').ok_or_else(|| wrong("write tcp:6379=NAME, or tcp:6379=IP"))?;
        let Listen { transport, port } = here
            .parse()
            .map_err(|_| wrong("write tcp:PORT or udp:PORT before the =, with a port from 1 to 65535"))?;
        let bare = to.strip_prefix('[').and_then(|to| to.strip_suffix(']')).unwrap_or(to);
        let (target, target_port) = if let Ok(ip) = bare.parse::<IpAddr>() {
            (Target::Ip(ip), port)
        } else if let Ok(address) = to.parse::<SocketAddr>() {
            (Target::Ip(address.ip()), address.port())
        } else {
            let (name, target_port) = match to.rsplit_once(':') {
                Some((name, text)) => {
                    let wrong = || wrong("the program's port is a number from 1 to 65535");
                    (name, parse_port(text).ok_or_else(wrong)?)
                }
                None => (to, port),
            };
            (Target::Name(name.to_owned()), target_port)
        };
        if target_port == 0 || target == Target::Name(String::new()) {
            return Err(wrong(
                "a program's name or address comes after the =, and its port, if given, is not 0",
            ));
        }
        Ok(Self { transport, port, target, target_port })
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, port, target, target_port } = self;
        match target {
            Target::Name(name) => write!(f, "{transport}:{port}={name}:{target_port}"),
            Target::Ip(ip) => write!(f, "{transport}:{port}={}", SocketAddr::new(*ip, *target_port)),
        }
    }
}

fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// Parses all of `texts`.
///
/// # Errors
/// The first that is wrong, or publishes a port that another one does.
pub(super) fn parse_all(texts: &[String]) -> Result<Vec<Published>, OptionError> {
    let mut all: Vec<Published> = Vec::new();
    for text in texts {
        let one: Published = text.parse()?;
        if all.iter().any(|other| (other.transport, other.port) == (one.transport, one.port)) {
            return Err(OptionError::new(text, "the same port is published twice"));
        }
        all.push(one);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_leads_to_a_name_or_an_address_with_the_same_port_or_another() {
        for (text, shown) in [
            ("tcp:6379=kv", "tcp:6379=kv:6379"),
            ("udp:53=names:5353", "udp:53=names:5353"),
            ("tcp:80=10.77.0.2", "tcp:80=10.77.0.2:80"),
            ("tcp:80=10.77.0.2:8080", "tcp:80=10.77.0.2:8080"),
            ("tcp:80=[fd00:7477::2]:8080", "tcp:80=[fd00:7477::2]:8080"),
            ("tcp:80=fd00:7477::2", "tcp:80=[fd00:7477::2]:80"),
            ("tcp:80=[fd00:7477::2]", "tcp:80=[fd00:7477::2]:80"),
        ] {
            let rule: Published = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse::<Published>().unwrap(), rule);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("6379", "tcp:6379=NAME"),
            ("6379=kv", "tcp:PORT"),
            ("sctp:1=kv", "tcp:PORT or udp:PORT"),
            ("tcp:0=kv", "1 to 65535"),
            ("tcp:70000=kv", "1 to 65535"),
            ("tcp:1=", "comes after"),
            ("tcp:1=:5", "comes after"),
            ("tcp:1=kv:x", "1 to 65535"),
            ("tcp:1=10.77.0.2:0", "not 0"),
        ] {
            let error = text.parse::<Published>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
        let twice = ["tcp:1=a", "udp:1=a", "tcp:1=b"].map(str::to_owned);
        assert!(parse_all(&twice).unwrap_err().to_string().contains("tcp:1=b"));
        assert_eq!(parse_all(&twice[..2]).unwrap().len(), 2);
    }
}
