//! Which interface, and how: the words of an AF_XDP port.

use std::net::Ipv4Addr;
use std::str::FromStr;

use super::MAX_QUEUES;
use crate::port::grammar::{OptionError, value, words};
use crate::sys::interface::MAX_NAME;

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver if it can, else on Linux's packets.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// On Linux's packets.
    Skb,
}

/// Who copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroCopy {
    /// Nobody if the driver can, else the kernel.
    #[default]
    Auto,
    /// Nobody; a driver that cannot is an error.
    Required,
    /// The kernel.
    Off,
}

/// Which interface, and how. From words: `INTERFACE` first, then any of `gateway=IP`, `mode=auto|native|skb`, `queues=N`,
/// `zero-copy=auto|on|off`, `share`, `fill-checksums`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// Name of the interface.
    pub interface: String,
    /// What runtimes are told to send frames for other networks to.
    pub gateway: Option<Ipv4Addr>,
    /// Where the program runs.
    pub mode: XdpMode,
    /// Receive queues to use, from the first, 1 to [`MAX_QUEUES`]; `None`: all that the interface has. Frames on others go to
    /// Linux.
    pub queues: Option<u32>,
    /// Who copies.
    pub zero_copy: ZeroCopy,
    /// Leave Linux the frames to the interface's own MAC address; needs `gateway` to know the runtimes' network.
    pub share: bool,
    /// Complete transport checksums that the sender left to its card: for a veth pair whose other end is used by Linux itself.
    pub fill_checksums: bool,
}

impl FromStr for XdpSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut words = words(text);
        let Some((interface, None)) = words.next() else {
            return Err(OptionError::new(text, "the name of an interface comes first"));
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
            share: false,
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
                "share" => spec.share = true,
                "fill-checksums" => spec.fill_checksums = true,
                _ => {
                    let known = "there are gateway=, mode=, queues=, zero-copy=, share, fill-checksums";
                    return Err(OptionError::new(key, known));
                }
            }
        }
        if spec.share && spec.gateway.is_none() {
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
        assert!(spec.share && spec.fill_checksums);
        for (bad, part) in [
            ("", "interface comes first"),
            ("mode=skb", "interface comes first"),
            ("eth1,mode=fast", "mode=fast"),
            ("eth1,mode", "mode"),
            ("eth1,queues=0", "1 to 16"),
            ("eth1,gateway=x", "IPv4"),
            ("eth1,share", "gateway"),
            ("eth1,shared", "fill-checksums"),
            ("an-interface-name-that-is-long", "bytes"),
        ] {
            let error = bad.parse::<XdpSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
