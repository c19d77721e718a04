//! A network interface as AF_XDP finds it: channels, offloads, attached programs, what the driver
//! can do.
//!
//! Owns [`Card`] and the reading of it; judges nothing and changes nothing. Facts that a driver or
//! kernel does not report are absent.

mod netlink;

use tailwater_bpf::sys::{Hook, program_name};

use crate::sys::interface::Interface;
use crate::xdp::linux::Linux;

pub use crate::sys::interface::Channels;
pub use netlink::Features;

/// A program that is attached for XDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Where it runs: `native`, `skb` or `offloaded`.
    pub mode: &'static str,
    /// Its number, by which `bpftool prog` shows it.
    pub id: u32,
    /// Its name, empty if it has none; `None` if it was not read, as by a process without
    /// `CAP_SYS_ADMIN`.
    pub name: Option<String>,
}

impl Attached {
    /// Reads the names of programs.
    pub(crate) fn name(programs: &mut [Self]) {
        for program in programs {
            program.name = program_name(program.id).ok();
        }
    }

    /// Returns in words that these programs are attached, and what takes them away from the
    /// interface of this name.
    pub fn describe(programs: &[Self], interface: &str) -> (String, String) {
        let join = |words: Vec<String>| words.join(" and ");
        let verb = if programs.len() == 1 { "is" } else { "are" };
        let attached = join(programs.iter().map(ToString::to_string).collect());
        let remedies = join(programs.iter().map(|program| program.detach(interface)).collect());
        (
            format!("{attached} {verb} attached"),
            format!(
                "{remedies}; if Linux answers that it is busy, a BPF link holds it, which `bpftool link detach id N` \
                 takes away (`bpftool link` shows N)"
            ),
        )
    }

    /// Returns the command that takes it away from the interface of this name, unless a BPF link
    /// holds it.
    fn detach(&self, interface: &str) -> String {
        let hook = match self.mode {
            "skb" => Hook::Generic.word(),
            "offloaded" => "xdpoffload",
            _ => Hook::Driver.word(),
        };
        format!("`ip link set dev {interface} {hook} off`")
    }
}

impl core::fmt::Display for Attached {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { mode, id, name } = self;
        match name.as_deref() {
            None => write!(f, "program {id} ({mode}; `sudo bpftool prog show id {id}` names it)"),
            Some("") => write!(f, "program {id} ({mode})"),
            Some(name) => write!(f, "program {id} ({name}, {mode})"),
        }
    }
}

/// What was read of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Name of the driver; empty if unknown.
    pub driver: String,
    /// Maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// Number of receive queues that Linux has made for it.
    pub receive_queues: u32,
    /// Its channels, if the driver reports any.
    pub channels: Option<Channels>,
    /// True if it joins received segments into long ones.
    pub lro: Option<bool>,
    /// True if it takes the VLAN tags off received frames.
    pub strips_tags: Option<bool>,
    /// True if Linux has VLANs directly on it, not on a bond or bridge above.
    pub has_vlans: bool,
    /// True if it verifies the checksums of received frames.
    pub receive_checksums: Option<bool>,
    /// Programs that are attached for XDP.
    pub attached: Vec<Attached>,
    /// What the driver says that it can do, since Linux 6.3.
    pub features: Option<Features>,
}

impl Card {
    /// Reads what is known of the interface of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn read(name: &str) -> Result<Self, String> {
        let missing = |error| format!("no interface {name} in this network namespace: {error}");
        let interface = Interface::new(name).map_err(missing)?;
        let index = interface.index().map_err(missing)?;
        let found = Linux::new().and_then(|mut linux| Ok((linux.link(index)?, linux.has_vlans(index)?)));
        let (mut link, has_vlans) =
            found.map_err(|error| format!("cannot read what {name} says of itself (netlink): {error}"))?;
        Attached::name(&mut link.attached);
        Ok(Self {
            driver: interface.driver(),
            mtu: interface.mtu().map_err(missing)?,
            receive_queues: link.receive_queues,
            channels: interface.channels(),
            lro: interface.joins_received(),
            strips_tags: interface.strips_tags(),
            has_vlans,
            receive_checksums: interface.checks_received(),
            attached: link.attached,
            features: netlink::features(index).ok(),
        })
    }
}

/// Returns what keeps VLAN tags in the frames that programs receive on the interface of this name
/// and driver. On a veth pair the other end has to put them there, of which this one knows nothing.
pub fn keep_tags(name: &str, driver: &str) -> String {
    match driver {
        "veth" => format!(
            "`ethtool -K PEER txvlan off` for the other end, and `ethtool -K {name} rxvlan off` to say so here"
        ),
        _ => format!("`ethtool -K {name} rxvlan off`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_read_and_one_that_is_not_there_is_named() {
        let card = Card::read("lo").unwrap();
        assert!(card.mtu > 0 && card.attached.is_empty() && card.receive_queues > 0, "{card:?}");
        assert!(Card::read("no-such-if").unwrap_err().contains("no-such-if"));
    }
}
