//! What Linux knows of the wire: its own addresses, routes, and the stations of next hops
//! (rtnetlink(7)).
//!
//! Owns [`Linux`], which asks, and [`News`], which only shows that something has changed: what it
//! is, is read anew by questions, so a notification that is lost is made up for by the next look.
//! Each has a socket of the network namespace in which it was made. Linux answers within the call,
//! and no call waits. Runs on the control thread. [`rules`] and [`link`] have the questions about
//! routing rules and links.

mod link;
mod rules;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_wire::MacAddr;

use super::ways::{Prefix, Route, Ways};

/// Groups of notifications (linux/rtnetlink.h, `RTNLGRP_*`): links, neighbours, and addresses,
/// routes and rules of both families.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];
/// The table of this machine's own addresses (linux/rtnetlink.h).
const RT_TABLE_LOCAL: u8 = 255;
/// Maximum length of a part of an answer (net/netlink/af_netlink.c).
const PART: usize = 64 << 10;
/// Maximum number of messages of an answer that are kept, and of parts that are read: an answer
/// that is not read to its end would be in the way of the next question.
const MOST_MESSAGES: usize = 16_384;
const MOST_PARTS: usize = 16_384;
/// Maximum number of notifications that are read at once: more are read at the next look.
const MOST_NEWS: usize = 4_096;

/// What Linux knows of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) mac: MacAddr,
    /// Set by an administrator: Linux does not check it.
    pub(super) permanent: bool,
    /// Linux has not heard of it for some time, and checks it when it sends there.
    pub(super) stale: bool,
}

/// Whether something has changed. See the module documentation.
pub(super) struct News(Socket);

impl core::fmt::Debug for News {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("News")
    }
}

impl News {
    /// # Errors
    /// As [`Linux::new`].
    pub(super) fn new() -> io::Result<Self> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind_auto()?;
        for group in GROUPS {
            news.add_membership(group)?;
        }
        Ok(Self(news))
    }

    /// Returns whether something has changed since the last call.
    pub(super) fn has_any(&self) -> bool {
        let mut any = false;
        for _ in 0..MOST_NEWS {
            // The beginning is enough: the rest of a message is thrown away.
            let mut beginning = [0; 16];
            match self.0.recv(&mut &mut beginning[..], libc::MSG_DONTWAIT) {
                Ok(_) => any = true,
                // More has happened than the socket holds.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => break,
            }
        }
        any
    }
}

/// Answers to questions. See the module documentation.
pub(crate) struct Linux {
    questions: Socket,
    sequence: u32,
}

impl core::fmt::Debug for Linux {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Linux").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Linux {
    /// # Errors
    /// If Linux lets this process make no such socket.
    pub(crate) fn new() -> io::Result<Self> {
        let mut questions = Socket::new(NETLINK_ROUTE)?;
        questions.bind_auto()?;
        questions.connect(&SocketAddr::new(0, 0))?;
        // Linux before 4.20 does not filter answers; what was not asked for is skipped below.
        let _ = questions.set_netlink_get_strict_chk(true);
        Ok(Self { questions, sequence: 0 })
    }

    /// Returns the addresses of this network namespace.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn addresses(&mut self) -> io::Result<HashSet<IpAddr>> {
        let answer = self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let own = |message| {
            let RouteNetlinkMessage::NewAddress(message) = message else { return None };
            local(&message)
        };
        Ok(answer.into_iter().filter_map(own).collect())
    }

    /// Returns the ways of packets from these senders out by an interface.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn ways(&mut self, interface: u32, senders: &[Prefix]) -> io::Result<Ways> {
        let rules = self.rules()?;
        Ok(Ways::new(senders, rules, self.routes(interface)?))
    }

    /// Returns the routes of all tables through an interface.
    fn routes(&mut self, interface: u32) -> io::Result<Vec<Route>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = RouteMessage::default();
            question.header.address_family = family;
            question.attributes = vec![RouteAttribute::Oif(interface)];
            let answer = match self.ask(RouteNetlinkMessage::GetRoute(question), NLM_F_DUMP) {
                Ok(answer) => answer,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            routes.extend(answer.into_iter().filter_map(|message| route(message, interface)));
        }
        Ok(routes)
    }

    /// Returns what Linux knows of a neighbour behind an interface; `None` if it does not know its
    /// station.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn neighbour(&mut self, interface: u32, ip: IpAddr) -> io::Result<Option<Known>> {
        let question = RouteNetlinkMessage::GetNeighbour(neighbour(interface, ip));
        let answer = match self.ask(question, 0) {
            Ok(answer) => answer,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(answer.into_iter().find_map(|message| known(message).map(|(_, known)| known)))
    }

    /// Returns what Linux knows of the neighbours behind an interface.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn neighbours(&mut self, interface: u32) -> io::Result<HashMap<IpAddr, Known>> {
        let mut stations = HashMap::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = NeighbourMessage::default();
            question.header.family = family;
            let answer = match self.ask(RouteNetlinkMessage::GetNeighbour(question), NLM_F_DUMP) {
                Ok(answer) => answer,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            let behind = answer.into_iter().filter(|message| match message {
                RouteNetlinkMessage::NewNeighbour(message) => message.header.ifindex == interface,
                _ => false,
            });
            stations.extend(behind.filter_map(known).filter_map(|(ip, known)| Some((ip?, known))));
        }
        Ok(stations)
    }

    /// Returns the lowest of the IPv6 addresses of an interface that last and are known elsewhere:
    /// neither link-local, nor temporary, deprecated, or not yet checked.
    ///
    /// # Errors
    /// Linux's.
    pub(super) fn global6(&mut self, interface: u32) -> io::Result<Option<Ipv6Addr>> {
        let answer = self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let unfit = AddressHeaderFlags::Secondary
            | AddressHeaderFlags::Deprecated
            | AddressHeaderFlags::Tentative
            | AddressHeaderFlags::Dadfailed;
        let ips = answer.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(message)
                if message.header.index == interface
                    && message.header.scope == AddressScope::Universe
                    && !message.header.flags.intersects(unfit) =>
            {
                match local(&message)? {
                    IpAddr::V6(ip) => Some(ip),
                    IpAddr::V4(_) => None,
                }
            }
            _ => None,
        });
        Ok(ips.min())
    }

    /// As [`use_neighbour`](Self::use_neighbour), except for an entry that an administrator has
    /// made, which would lose that state.
    pub(super) fn use_unless_permanent(&mut self, interface: u32, ip: IpAddr) {
        let permanent =
            self.neighbour(interface, ip).is_ok_and(|known| known.is_some_and(|known| known.permanent));
        if !permanent {
            // What Linux lacks for this, such as an address, is found at the next look.
            let _ = self.use_neighbour(interface, ip);
        }
    }

    /// Makes Linux find the station of a neighbour, or check one that it has not heard of for some
    /// time, as if it sent a packet there.
    ///
    /// # Errors
    /// Linux's; [`io::ErrorKind::PermissionDenied`] without `CAP_NET_ADMIN`.
    pub(super) fn use_neighbour(&mut self, interface: u32, ip: IpAddr) -> io::Result<()> {
        let mut message = neighbour(interface, ip);
        message.header.flags = NeighbourFlags::Use;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), NLM_F_ACK | NLM_F_CREATE).map(drop)
    }

    /// Sends a question; returns the messages of the answer.
    fn ask(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (NLM_F_REQUEST | flags, self.sequence);
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(question));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.questions.send(&bytes, 0)?;
        let mut answer = Vec::new();
        for _ in 0..MOST_PARTS {
            let mut part = Vec::with_capacity(PART);
            self.questions.recv(&mut part, libc::MSG_DONTWAIT)?;
            if self.read_part(&part, &mut answer)? {
                break;
            }
        }
        Ok(answer)
    }

    /// Reads the messages of a part of an answer; returns whether it was the last one.
    fn read_part(&self, mut part: &[u8], answer: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
        // The length of a message is its first word, rounded up to four bytes (RFC 3549 section
        // 2.3.2).
        while let Some(length) = part.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize) {
            let rest = part.get(length.next_multiple_of(4).max(16)..).unwrap_or(&[]);
            // One that cannot be read has attributes of a later Linux, and is left out.
            if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(part)
                && message.header.sequence_number == self.sequence
            {
                let more = message.header.flags & NLM_F_MULTIPART != 0;
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(true),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(message) if answer.len() < MOST_MESSAGES => {
                        answer.push(message);
                    }
                    _ => {}
                }
                if !more {
                    return Ok(true);
                }
            }
            part = rest;
        }
        Ok(false)
    }
}

/// Returns the address of this machine in a message.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    // With a peer, `Address` is that one's.
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {}
        }
    }
    local.or(address)
}

/// Returns address and station of the neighbour in a message, if that has a station.
fn known(message: RouteNetlinkMessage) -> Option<(Option<IpAddr>, Known)> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
    if matches!(message.header.state, NeighbourState::Incomplete | NeighbourState::Failed) {
        return None;
    }
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => ip = Some((*address).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => ip = Some((*address).into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr).filter(|mac| mac.is_station());
            }
            _ => {}
        }
    }
    let permanent = matches!(message.header.state, NeighbourState::Permanent | NeighbourState::Noarp);
    let stale = message.header.state == NeighbourState::Stale;
    Some((ip, Known { mac: mac?, permanent, stale }))
}

/// Returns whether there is nothing of the kind: an entry, a table, or the family.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

/// Returns a message about a neighbour.
fn neighbour(interface: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = interface;
    let (family, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    message.header.family = family;
    message.attributes = vec![NeighbourAttribute::Destination(address)];
    message
}

/// Returns the router of the attributes of a route, or of one of its next hops.
fn router(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip)) => {
            Some(IpAddr::V4(*ip))
        }
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
            Some(IpAddr::V6(*ip))
        }
        _ => None,
    })
}

/// Returns the table that a kernel without rules has alone.
fn main_table() -> u32 {
    RouteHeader::RT_TABLE_MAIN.into()
}

/// Returns the route in a message, if it goes through this interface.
fn route(message: RouteNetlinkMessage, interface: u32) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(RouteMessage { header, attributes, .. }) = message else { return None };
    if header.kind != RouteType::Unicast {
        return None;
    }
    let mut network = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let (mut table, mut through, mut priority, mut via) = (u32::from(header.table), false, 0, None);
    for attribute in &attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => network = (*ip).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => network = (*ip).into(),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => priority = *number,
            RouteAttribute::Oif(number) => through = *number == interface,
            RouteAttribute::MultiPath(hops) => {
                let own = hops.iter().find(|hop| hop.interface_index == interface);
                through |= own.is_some();
                via = own.and_then(|hop| router(&hop.attributes));
            }
            _ => {}
        }
    }
    let to = Prefix::new(network, header.destination_prefix_length);
    through.then(|| Route { table, to, priority, via: via.or_else(|| router(&attributes)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::interface::Interface;
    use tailwater_testkit::namespace::Namespace;
    use tailwater_testkit::until;

    const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn addresses_routes_and_neighbours_are_linuxs_and_changes_are_noticed() {
        let [here, there] = match [Namespace::new(), Namespace::new()] {
            [Ok(here), Ok(there)] => [here, there],
            [Err(why), _] | [_, Err(why)] => return eprintln!("skipped: {why}"),
        };
        here.join("here0", &there, "there0", 1);
        let (mut linux, news) =
            here.inside(|| (Linux::new().expect("a socket"), News::new().expect("another")));
        let index = here.inside(|| Interface::new("here0").unwrap().index().unwrap());
        assert!(!linux.addresses().unwrap().contains(&IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))));
        news.has_any();
        here.ip(&["addr", "add", "192.0.2.9/24", "dev", "here0"]);
        here.ip(&["route", "add", "default", "via", "192.0.2.1"]);
        here.ip(&["route", "add", "198.51.100.0/24", "via", "192.0.2.2", "metric", "7"]);
        assert!(news.has_any());
        assert!(linux.addresses().unwrap().contains(&IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))));
        here.ip(&["route", "add", "default", "via", "192.0.2.3", "table", "1000"]);
        let routes = linux.routes(index).unwrap();
        let prefix = |ip: [u8; 4], len| Prefix::new(ip.into(), len);
        let main = Route { table: 254, to: prefix([0; 4], 0), priority: 0, via: Some(ROUTER) };
        let via = |host| Some(Ipv4Addr::new(192, 0, 2, host).into());
        for route in [
            main,
            Route { to: prefix([198, 51, 100, 0], 24), priority: 7, via: via(2), ..main },
            Route { to: prefix([192, 0, 2, 0], 24), via: None, ..main },
            Route { table: 1_000, via: via(3), ..main },
        ] {
            assert!(routes.contains(&route), "{route:?} is not in {routes:?}");
        }
        assert_eq!(linux.neighbour(index, ROUTER).unwrap(), None);
        let mac = "02:00:00:00:00:07";
        here.ip(&["neigh", "add", "192.0.2.1", "lladdr", mac, "dev", "here0", "nud", "permanent"]);
        let known = linux.neighbour(index, ROUTER).unwrap().expect("it is known");
        assert_eq!((known.mac.to_string().as_str(), known.permanent), (mac, true));
    }

    #[test]
    fn the_own_address_of_a_pair_is_not_the_peers_and_one_that_linux_has_not_checked_is_stale() {
        let Some([here, _there]) = Namespace::pair(["here0", "there0"], 1) else { return };
        let mut linux = here.inside(|| Linux::new().expect("a socket"));
        let index = here.inside(|| Interface::new("here0").unwrap().index().unwrap());
        here.ip(&["addr", "add", "192.0.2.9/24", "dev", "here0"]);
        for (state, stale) in [("stale", true), ("reachable", false)] {
            let mac = "02:00:00:00:00:07";
            here.ip(&["neigh", "replace", "192.0.2.1", "lladdr", mac, "dev", "here0", "nud", state]);
            assert_eq!(linux.neighbours(index).unwrap()[&ROUTER].stale, stale);
        }
        let own = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
        if !here.inside(|| std::path::Path::new("/proc/thread-self/net/if_inet6").exists()) {
            return eprintln!("skipped: this kernel has no IPv6");
        }
        here.ip(&["addr", "add", "2001:db8::9", "peer", "2001:db8::1/128", "dev", "here0", "nodad"]);
        assert_eq!(linux.global6(index).unwrap(), Some(own));
        assert!(linux.addresses().unwrap().contains(&own.into()));
    }

    #[test]
    fn linux_finds_a_neighbour_that_is_to_be_used() {
        let [here, there] = match [Namespace::new(), Namespace::new()] {
            [Ok(here), Ok(there)] => [here, there],
            [Err(why), _] | [_, Err(why)] => return eprintln!("skipped: {why}"),
        };
        here.join("here0", &there, "there0", 1);
        here.ip(&["addr", "add", "192.0.2.9/24", "dev", "here0"]);
        there.ip(&["addr", "add", "192.0.2.1/24", "dev", "there0"]);
        let mut linux = here.inside(|| Linux::new().expect("a socket"));
        let index = here.inside(|| Interface::new("here0").unwrap().index().unwrap());
        linux.use_neighbour(index, ROUTER).unwrap();
        until("Linux finds the station", || {
            linux.neighbour(index, ROUTER).unwrap().is_some_and(|known| !known.permanent)
        });
    }
}
