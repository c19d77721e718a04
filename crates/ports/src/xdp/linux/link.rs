//! What a link says of itself, and the XDP programs that are attached to it, for which rtnetlink(7)
//! is the way: an attachment by netlink outlives the process.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;

use super::Linux;
use crate::card::Attached;
use tailwater_bpf::sys::Hook;

/// Attach only where no program is (linux/if_link.h, `XDP_FLAGS_UPDATE_IF_NOEXIST`).
const IF_NONE: u32 = 1;
/// Do so only if a given program is attached (linux/if_link.h, `XDP_FLAGS_REPLACE`).
const REPLACE: u32 = 1 << 4;

/// What a link says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Programs that are attached for XDP.
    pub(crate) attached: Vec<Attached>,
    /// Number of receive queues that Linux has made for it; 0 if it is not said.
    pub(crate) receive_queues: u32,
    /// It has a carrier: of a TAP device, a program has one of its queues.
    pub(crate) has_carrier: bool,
}

impl Linux {
    /// Returns what an interface says of itself.
    ///
    /// # Errors
    /// Linux's.
    pub(crate) fn link(&mut self, interface: u32) -> io::Result<Link> {
        let mut question = LinkMessage::default();
        question.header.index = interface;
        let answer = self.ask(RouteNetlinkMessage::GetLink(question), 0)?;
        let mut link = Link::default();
        for message in answer {
            let RouteNetlinkMessage::NewLink(message) = message else { continue };
            message.attributes.into_iter().for_each(|attribute| link.note(attribute));
        }
        Ok(link)
    }

    /// Returns whether Linux has VLANs directly on an interface: neither on a bond or bridge above
    /// it, nor in another network namespace.
    ///
    /// # Errors
    /// Linux's.
    pub(crate) fn has_vlans(&mut self, interface: u32) -> io::Result<bool> {
        let answer = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        Ok(answer.iter().any(|message| match message {
            RouteNetlinkMessage::NewLink(message) => is_vlan(&message.attributes, interface),
            _ => false,
        }))
    }

    /// Returns the number of the program that is attached to an interface, and its hook; `None`
    /// without one. One that the card itself runs is beside it, and keeps no other one away.
    ///
    /// # Errors
    /// Linux's.
    pub(in crate::xdp) fn attached_xdp(&mut self, interface: u32) -> io::Result<Option<(u32, Hook)>> {
        let attached = self.link(interface)?.attached;
        Ok(attached.iter().find_map(|program| match program.mode {
            "native" => Some((program.id, Hook::Driver)),
            "skb" => Some((program.id, Hook::Generic)),
            _ => None,
        }))
    }

    /// Attaches a program to an interface until it is replaced or taken away, also if this process
    /// ends. Unless it `replaces` one, no other may be there.
    ///
    /// # Errors
    /// Linux's: EBUSY if another program is attached.
    pub(in crate::xdp) fn attach_xdp(
        &mut self,
        interface: u32,
        program: BorrowedFd<'_>,
        hook: Hook,
        replaces: bool,
    ) -> io::Result<()> {
        let flags = hook as u32 | if replaces { 0 } else { IF_NONE };
        self.set_xdp(interface, vec![LinkXdp::Fd(program.as_raw_fd()), LinkXdp::Flags(flags)])
    }

    /// Takes a program away from an interface: this one alone if it is given.
    ///
    /// # Errors
    /// Linux's: EEXIST if another program is attached, or none.
    pub(in crate::xdp) fn detach_xdp(
        &mut self,
        interface: u32,
        program: Option<BorrowedFd<'_>>,
        hook: Hook,
    ) -> io::Result<()> {
        let mut parts = vec![LinkXdp::Fd(-1)];
        match program {
            Some(program) => parts.extend([
                LinkXdp::Flags(hook as u32 | REPLACE),
                LinkXdp::ExpectedFd(program.as_raw_fd() as u32),
            ]),
            None => parts.push(LinkXdp::Flags(hook as u32)),
        }
        self.set_xdp(interface, parts)
    }

    fn set_xdp(&mut self, interface: u32, parts: Vec<LinkXdp>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        message.attributes = vec![LinkAttribute::Xdp(parts)];
        self.ask(RouteNetlinkMessage::SetLink(message), NLM_F_ACK).map(drop)
    }
}

impl Link {
    fn note(&mut self, attribute: LinkAttribute) {
        match attribute {
            LinkAttribute::NumRxQueues(count) => self.receive_queues = count,
            LinkAttribute::Carrier(carrier) => self.has_carrier = carrier != 0,
            LinkAttribute::Xdp(parts) => {
                self.attached = parts.iter().filter_map(attached).collect();
            }
            _ => {}
        }
    }
}

/// Returns whether a link with these attributes is a VLAN on an interface of the same namespace.
fn is_vlan(attributes: &[LinkAttribute], interface: u32) -> bool {
    let has = |is: &dyn Fn(&LinkAttribute) -> bool| attributes.iter().any(is);
    has(&|it| matches!(it, LinkAttribute::Link(below) if *below == interface))
        && has(&|it| matches!(it, LinkAttribute::LinkInfo(parts) if parts.contains(&LinkInfo::Kind(InfoKind::Vlan))))
        // The number below is one of another namespace.
        && !has(&|it| matches!(it, LinkAttribute::LinkNetNsId(_)))
}

/// Returns the program of one of the three modes.
fn attached(part: &LinkXdp) -> Option<Attached> {
    let (mode, id) = match *part {
        LinkXdp::DrvProgId(id) => ("native", id),
        LinkXdp::SkbProgId(id) => ("skb", id),
        LinkXdp::HwProgId(id) => ("offloaded", id),
        _ => return None,
    };
    (id > 0).then_some(Attached { mode, id, name: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::link::XdpAttached;

    #[test]
    fn programs_are_found_by_the_mode_that_they_run_in() {
        let (mode, of_none) = (LinkXdp::Attached(XdpAttached::Multiple), LinkXdp::HwProgId(0));
        let parts = vec![mode, LinkXdp::DrvProgId(7), LinkXdp::SkbProgId(9), of_none];
        let mut link = Link::default();
        link.note(LinkAttribute::NumRxQueues(8));
        link.note(LinkAttribute::Xdp(parts));
        let of = |mode, id| Attached { mode, id, name: None };
        let attached = vec![of("native", 7), of("skb", 9)];
        assert_eq!(link, Link { attached, receive_queues: 8, has_carrier: false });
    }

    #[test]
    fn a_vlan_is_known_by_its_kind_and_by_what_is_below() {
        let of = |kind| vec![LinkAttribute::Link(7), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
        let vlan = of(InfoKind::Vlan);
        assert!(is_vlan(&vlan, 7) && !is_vlan(&vlan, 8) && !is_vlan(&of(InfoKind::MacVlan), 7));
        let of_another = [&vlan[..], &[LinkAttribute::LinkNetNsId(0)]].concat();
        assert!(!is_vlan(&of_another, 7));
        assert!(!Linux::new().unwrap().has_vlans(1).unwrap());
    }

    #[test]
    fn the_loopback_interface_has_one_queue_and_no_interface_is_an_error() {
        let mut linux = Linux::new().unwrap();
        assert_eq!(linux.link(1).unwrap().receive_queues, 1);
        assert!(linux.link(u32::MAX >> 1).is_err());
    }
}
