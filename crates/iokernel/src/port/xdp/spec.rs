//! The options of an AF_XDP port, parsed from words.

use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::port::grammar::{OptionError, value, words};
use crate::sys::interface::MAX_NAME;

/// Maximum number of queues used of one interface: each has 8 MiB of frame memory.
pub const MAX_QUEUES: u32 = 16;

/// Where the redirect program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver if it supports that, else on Linux's packets.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// On Linux's packets.
    Skb,
}

/// Who copies frames between the card and the socket's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroCopy {
    /// The card if its driver supports that, else the kernel.
    #[default]
    Auto,
    /// The card; a driver that does not support that is an error.
    Required,
    /// The kernel.
    Off,
}

/// What Linux keeps of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Share {
    /// Nothing.
    #[default]
    Nothing,
    /// Its own MAC address; each program has another one.
    Mac,
    /// Its own IP addresses; programs have others behind the same MAC address.
    Addresses,
}

/// Which interface, and how. Parsed from words: `INTERFACE` first, then any of `gateway=IP`,
/// `mode=auto|native|skb`, `queues=N`, `zero-copy=auto|on|off`, `share`, `share=mac|addresses`,
/// `fill-checksums`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// Name of the interface.
    pub interface: String,
    /// The address that runtimes use as their gateway to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// Where the redirect program runs.
    pub mode: XdpMode,
    /// Number of receive queues to use, from the first, 1 to [`MAX_QUEUES`]; `None`: all queues of
    /// the interface. Frames of other queues go to Linux.
    pub queues: Option<u32>,
    /// Who copies frames.
    pub zero_copy: ZeroCopy,
    /// What Linux keeps; [`Share::Mac`] needs `gateway` to know the runtimes' network.
    pub share: Share,
    /// Complete transport checksums that the sender left to its card: for a veth pair whose other
    /// end Linux itself uses.
    pub fill_checksums: bool,
}

impl FromStr for XdpSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut words = words(text);
        let Some((interface, None)) = words.next() else {
            return Err(OptionError::new(text, "the name of an interface must come first"));
        };
        if interface.len() > MAX_NAME {
            return Err(OptionError::new(
                interface,
                format!("an interface's name has at most {MAX_NAME} bytes"),
            ));
        }
        let mut spec = Self {
            interface: interface.to_owned(),
            gateway: None,
            mode: XdpMode::Auto,
            queues: None,
            zero_copy: ZeroCopy::Auto,
            share: Share::Nothing,
            fill_checksums: false,
        };
        for (key, given) in words {
            match key {
                "gateway" => spec.gateway = Some(value(key, given, "an IPv4 address", |v| v.parse().ok())?),
                "mode" => {
                    spec.mode = value(key, given, "mode=auto, native or skb", |v| match v {
                        "auto" => Some(XdpMode::Auto),
                        "native" => Some(XdpMode::Native),
                        "skb" => Some(XdpMode::Skb),
                        _ => None,
                    })?;
                }
                "queues" => {
                    let read = |v: &str| v.parse().ok().filter(|n| (1..=MAX_QUEUES).contains(n));
                    spec.queues = Some(value(key, given, &format!("1 to {MAX_QUEUES}"), read)?);
                }
                "zero-copy" => {
                    spec.zero_copy = value(key, given, "zero-copy=auto, on or off", |v| match v {
                        "auto" => Some(ZeroCopy::Auto),
                        "on" => Some(ZeroCopy::Required),
                        "off" => Some(ZeroCopy::Off),
                        _ => None,
                    })?;
                }
                "share" => {
                    spec.share = value(key, given.or(Some("mac")), "share=mac or addresses", |v| match v {
                        "mac" => Some(Share::Mac),
                        "addresses" => Some(Share::Addresses),
                        _ => None,
                    })?;
                }
                "fill-checksums" => spec.fill_checksums = true,
                _ => {
                    let known = "known words are gateway=, mode=, queues=, zero-copy=, share, share=addresses, fill-checksums";
                    return Err(OptionError::new(key, known));
                }
            }
        }
        if spec.share == Share::Mac && spec.gateway.is_none() {
            return Err(OptionError::new("share", "needs gateway=IP, an address of the runtimes' network"));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_a_specification_or_name_what_is_wrong() {
        let spec: XdpSpec =
            "eth1, gateway=10.77.0.1,mode=skb,queues=4,zero-copy=off,share,fill-checksums".parse().unwrap();
        assert_eq!(spec.interface, "eth1");
        assert_eq!(spec.gateway, Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert_eq!((spec.mode, spec.zero_copy, spec.queues), (XdpMode::Skb, ZeroCopy::Off, Some(4)));
        assert!(spec.share == Share::Mac && spec.fill_checksums);
        assert_eq!("eth1,share=addresses".parse::<XdpSpec>().unwrap().share, Share::Addresses);
        for (bad, part) in [
            ("", "interface must come first"),
            ("mode=skb", "interface must come first"),
            ("eth1,mode=fast", "mode=fast"),
            ("eth1,mode", "mode"),
            ("eth1,queues=0", "1 to 16"),
            ("eth1,gateway=x", "IPv4"),
            ("eth1,share", "gateway"),
            ("eth1,share=ports", "mac or addresses"),
            ("eth1,shared", "fill-checksums"),
            ("an-interface-name-that-is-long", "bytes"),
        ] {
            let error = bad.parse::<XdpSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
