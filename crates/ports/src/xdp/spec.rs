//! The options of an AF_XDP port, parsed from words.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::grammar::{OptionError, device, flag, value, words};

/// Maximum number of queues used of one interface: each has 8 MiB of frame memory.
pub const MAX_QUEUES: u32 = 16;

/// Where the redirect program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum XdpMode {
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
pub(crate) enum ZeroCopy {
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
pub(crate) enum Share {
    /// Nothing.
    #[default]
    Nothing,
    /// Its own MAC address; each program has another one.
    Mac,
    /// Its own IP addresses; programs have others behind the same MAC address.
    Addresses,
    /// All ports but those of programs, which have the same MAC and IP addresses.
    Ports,
}

/// Ports from which connections of programs leave that share Linux's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// All of them.
    pub(super) range: RangeInclusive<u16>,
    /// How many each program has.
    pub(super) part: u16,
}

impl Default for Outgoing {
    /// Those above the range from which Linux takes its own unless set otherwise (ip-sysctl,
    /// `ip_local_port_range`), for eight programs.
    fn default() -> Self {
        Self { range: 61_000..=65_535, part: 567 }
    }
}

impl Outgoing {
    /// Returns how many programs get a part.
    pub(super) fn parts(&self) -> u16 {
        (self.range.len() / usize::from(self.part)) as u16
    }

    /// Returns the ports of a part.
    pub(super) fn part(&self, number: u16) -> RangeInclusive<u16> {
        let first = self.range.start() + number * self.part;
        first..=first + (self.part - 1)
    }
}

/// Which interface, and how. Parsed from words: `INTERFACE` first, then any of `gateway=IP`,
/// `mode=auto|native|skb`, `queues=N`, `zero-copy=auto|on|off`, `share`,
/// `share=mac|addresses|ports|off`, `range=FIRST-LAST`, `part=N`, and the flag `fill-checksums`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpSpec {
    /// Name of the interface.
    pub(crate) interface: String,
    /// The address that runtimes use as their gateway to other networks.
    pub(super) gateway: Option<Ipv4Addr>,
    /// Where the redirect program runs.
    pub(super) mode: XdpMode,
    /// Number of receive queues to use, from the first, 1 to [`MAX_QUEUES`]; `None`: all queues of
    /// the interface. Frames of other queues go to Linux.
    pub(super) queues: Option<u32>,
    /// Who copies frames. Where Linux uses the same queues, the word `auto`, or none, is
    /// [`ZeroCopy::Off`]: some drivers lose frames that are passed on to Linux otherwise.
    pub(super) zero_copy: ZeroCopy,
    /// What Linux keeps; [`Share::Mac`] and [`Share::Ports`] need `gateway`, an address of the
    /// runtimes' network.
    pub(super) share: Share,
    /// With [`Share::Ports`].
    pub(super) outgoing: Outgoing,
    /// Complete transport checksums that the sender left to its card: for a veth pair whose other
    /// end Linux itself uses.
    pub(super) fill_checksums: bool,
}

impl FromStr for XdpSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut words = words(text)?;
        let mut spec = Self {
            interface: device(text, &mut words)?.to_owned(),
            gateway: None,
            mode: XdpMode::Auto,
            queues: None,
            zero_copy: ZeroCopy::Auto,
            share: Share::Nothing,
            outgoing: Outgoing::default(),
            fill_checksums: false,
        };
        for (key, given) in words {
            spec.read(key, given)?;
        }
        if matches!(spec.share, Share::Mac | Share::Ports) && spec.gateway.is_none() {
            return Err(OptionError::new("share", "needs gateway=IP, an address of the runtimes' network"));
        }
        spec.check_ports()?;
        if spec.share != Share::Nothing && spec.zero_copy == ZeroCopy::Auto {
            spec.zero_copy = ZeroCopy::Off;
        }
        Ok(spec)
    }
}

impl XdpSpec {
    /// Reads one word.
    fn read(&mut self, key: &str, given: Option<&str>) -> Result<(), OptionError> {
        match key {
            "gateway" => self.gateway = Some(value(key, given, "an IPv4 address", |v| v.parse().ok())?),
            "mode" => {
                self.mode = value(key, given, "mode=auto, native or skb", |v| match v {
                    "auto" => Some(XdpMode::Auto),
                    "native" => Some(XdpMode::Native),
                    "skb" => Some(XdpMode::Skb),
                    _ => None,
                })?;
            }
            "queues" => {
                let read = |v: &str| v.parse().ok().filter(|n| (1..=MAX_QUEUES).contains(n));
                self.queues = Some(value(key, given, &format!("1 to {MAX_QUEUES}"), read)?);
            }
            "zero-copy" => {
                self.zero_copy = value(key, given, "zero-copy=auto, on or off", |v| match v {
                    "auto" => Some(ZeroCopy::Auto),
                    "on" => Some(ZeroCopy::Required),
                    "off" => Some(ZeroCopy::Off),
                    _ => None,
                })?;
            }
            "share" => {
                self.share =
                    value(key, given.or(Some("mac")), "share=mac, addresses, ports or off", |v| match v {
                        "off" => Some(Share::Nothing),
                        "mac" => Some(Share::Mac),
                        "addresses" => Some(Share::Addresses),
                        "ports" => Some(Share::Ports),
                        _ => None,
                    })?;
            }
            "range" => {
                self.outgoing.range = value(key, given, "range=FIRST-LAST, ports from 1024 on", |v| {
                    let (first, last) = v.split_once('-')?;
                    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                    (1_024 <= first && first <= last).then_some(first..=last)
                })?;
            }
            "part" => {
                let read = |v: &str| v.parse().ok().filter(|&n| n > 0);
                self.outgoing.part = value(key, given, "part=N, ports of one program", read)?;
            }
            "fill-checksums" => self.fill_checksums = flag(key, given)?,
            _ => {
                let known = "known words are gateway=, mode=, queues=, zero-copy=, share=mac|addresses|ports|off, range=, part=, fill-checksums";
                return Err(OptionError::new(key, known));
            }
        }
        Ok(())
    }

    /// Checks the words that belong to `share=ports`.
    fn check_ports(&self) -> Result<(), OptionError> {
        let wrong = |word: &str, why: &str| Err(OptionError::new(word, why));
        if self.share != Share::Ports {
            let is_set = self.outgoing != Outgoing::default();
            return if is_set { wrong("range, part", "only with share=ports") } else { Ok(()) };
        }
        if self.queues.is_some() {
            return wrong(
                "queues",
                "not with share=ports: frames for programs may arrive on each queue, and must not go to Linux",
            );
        }
        if self.outgoing.parts() == 0 {
            return wrong("part", "is longer than the range");
        }
        Ok(())
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
        for (words, zero_copy) in [
            ("eth1", ZeroCopy::Auto),
            ("eth1,share=addresses", ZeroCopy::Off),
            ("eth1,zero-copy=auto,share,gateway=10.77.0.1", ZeroCopy::Off),
            ("eth1,share=addresses,zero-copy=on", ZeroCopy::Required),
        ] {
            assert_eq!(words.parse::<XdpSpec>().unwrap().zero_copy, zero_copy, "{words}");
        }
        assert_eq!("eth1,share=addresses".parse::<XdpSpec>().unwrap().share, Share::Addresses);
        let off: XdpSpec = "eth1,share=off,fill-checksums=off".parse().unwrap();
        assert_eq!(Ok(off), "eth1".parse());
        let spec: XdpSpec = "eth1,share=ports,gateway=10.77.0.1,range=50000-50299,part=100".parse().unwrap();
        assert_eq!((spec.share, spec.outgoing.parts()), (Share::Ports, 3));
        assert_eq!([0, 2].map(|n| spec.outgoing.part(n)), [50_000..=50_099, 50_200..=50_299]);
        let last = Outgoing::default().parts() - 1;
        assert_eq!((last, *Outgoing::default().part(last).end()), (7, 65_535));
        for (bad, part) in [
            ("", "must come first"),
            ("mode=skb", "must come first"),
            ("eth0 eth1", "no blank"),
            ("eth1,mode=fast", "mode=fast"),
            ("eth1,mode", "mode"),
            ("eth1,queues=0", "1 to 16"),
            ("eth1,gateway=x", "IPv4"),
            ("eth1,share", "gateway"),
            ("eth1,share=port", "mac, addresses, ports or off"),
            ("eth1,share=ports", "gateway"),
            ("eth1,share=ports,gateway=10.77.0.1,queues=1", "each queue"),
            ("eth1,share=ports,gateway=10.77.0.1,range=61000", "FIRST-LAST"),
            ("eth1,share=ports,gateway=10.77.0.1,range=80-90", "1024"),
            ("eth1,share=ports,gateway=10.77.0.1,part=0", "part=N"),
            ("eth1,share=ports,gateway=10.77.0.1,range=61000-61009,part=11", "longer than the range"),
            ("eth1,range=61000-61009", "only with share=ports"),
            ("eth1,shared", "fill-checksums"),
            ("an-interface-name-that-is-long", "bytes"),
            ("eth1,fill-checksums=no", "fill-checksums=off"),
        ] {
            let error = bad.parse::<XdpSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
