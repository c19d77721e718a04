//! MAC addresses of programs.
//!
//! Owns [`Macs`], the section `[macs]` of the configuration. A program does not choose: its MAC
//! address follows from its IPv4 address, or an administrator has entered another one for that
//! address, as networks require that let only known MAC addresses pass. No program can therefore
//! have the address of a port, of a gateway, or of another program.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use tailwater_wire::MacAddr;

/// MAC addresses by the IPv4 addresses of programs; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<Ipv4Addr, String>", into = "BTreeMap<Ipv4Addr, String>")]
pub struct Macs(BTreeMap<Ipv4Addr, MacAddr>);

impl TryFrom<BTreeMap<Ipv4Addr, String>> for Macs {
    type Error = String;

    fn try_from(written: BTreeMap<Ipv4Addr, String>) -> Result<Self, String> {
        let read = |(ip, text): (Ipv4Addr, String)| match parse(&text) {
            Some(mac) => Ok((ip, mac)),
            None => {
                Err(format!("`{text}` is not a MAC address; write six bytes, for instance 52:54:00:12:34:56"))
            }
        };
        written.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl From<Macs> for BTreeMap<Ipv4Addr, String> {
    fn from(macs: Macs) -> Self {
        macs.0.into_iter().map(|(ip, mac)| (ip, mac.to_string())).collect()
    }
}

fn parse(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddr(bytes))
}

impl Macs {
    /// Checks that each address is a host's and each MAC address can be that of one station.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub(crate) fn check(&self, is_host: impl Fn(Ipv4Addr) -> bool) -> Result<(), (String, String)> {
        let mut seen = HashSet::new();
        for (&ip, &mac) in &self.0 {
            let expected = if !is_host(ip) {
                "the IPv4 address is not a host address of the network"
            } else if !mac.is_station() {
                "a group or zero address; the first byte of a program's MAC address is even"
            } else if mac.0[..2] == MacAddr::derived(ip).0[..2] {
                "02:74 is the beginning of derived addresses; choose another one"
            } else if !seen.insert(mac) {
                "two addresses have this MAC address; choose another for one of them"
            } else {
                continue;
            };
            return Err((format!("{ip}: {mac}"), expected.to_owned()));
        }
        Ok(())
    }

    /// Returns the MAC address of a program at `ip`.
    pub(crate) fn of(&self, ip: Ipv4Addr) -> MacAddr {
        self.0.get(&ip).copied().unwrap_or(MacAddr::derived(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn an_address_has_the_mac_address_of_the_table_or_one_derived_from_it() {
        let config = Config::from_toml("[macs]\n\"10.77.1.5\" = \"52:54:00:12:34:Fe\"").unwrap();
        let (entered, other) = (Ipv4Addr::new(10, 77, 1, 5), Ipv4Addr::new(10, 77, 1, 6));
        assert_eq!(config.macs.of(entered), MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0xfe]));
        assert_eq!(config.macs.of(other), MacAddr::derived(other));
        assert_eq!(Config::from_toml(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn impossible_entries_are_refused_with_what_is_wrong() {
        for (entries, word) in [
            ("\"10.77.0.5\" = \"52:54:00:12:34\"", "six bytes"),
            ("\"10.77.0.5\" = \"52:54:00:12:34:+6\"", "six bytes"),
            ("\"10.77.0.5\" = \"52:54:00:12:34:56:78\"", "six bytes"),
            ("\"10.77.0.256\" = \"52:54:00:12:34:56\"", "not an IPv4 address"),
            ("\"10.78.0.5\" = \"52:54:00:12:34:56\"", "not a host address"),
            ("\"10.77.0.5\" = \"53:54:00:12:34:56\"", "group or zero"),
            ("\"10.77.0.5\" = \"00:00:00:00:00:00\"", "group or zero"),
            ("\"10.77.0.5\" = \"02:74:0a:4d:00:06\"", "derived"),
            ("\"10.77.0.5\" = \"52:54:00:12:34:56\"\n\"10.77.0.6\" = \"52:54:00:12:34:56\"", "two addresses"),
        ] {
            let error = Config::from_toml(&format!("[macs]\n{entries}")).unwrap_err().to_string();
            assert!(error.contains(word), "{entries}: {error}");
        }
    }
}
