//! Which program has which port, and what the wire looks like: the control thread's side of
//! `share=ports`.
//!
//! Owns the map of ports that the redirect program reads, the sockets that hold these ports from
//! Linux, the reservation of the range, the record for the next IOKernel, and the view that the
//! translation uses. A program gets its ports before it is told that it is registered, and loses
//! them when it has ended: they are Linux's then. Each program has its own part of the range, which
//! it keeps from one IOKernel to the next.
//!
//! # Next hops
//! Those of Linux's main table, and stations from its table of neighbours. A neighbour that Linux
//! does not know is found by it when a program sends there; the routers of the routes are used once
//! a second, so that Linux checks them.
//!
//! # Crash and lie
//!
//! | step | lie or failure | consequence |
//! |---|---|---|
//! | the IOKernel is killed, also while it starts | - | the redirect program stays attached and drops what is for ports of programs, so Linux resets no connection; the next IOKernel puts its own in its place, with the ports of the [record](super::record), and peers send again |
//! | it ends in good order | programs are registered, and wait for the next one | the same, and the log says so |
//! | it ends in good order | no program is registered | program, record and reservation are taken away |
//! | another IOKernel starts on the interface, without a takeover | - | it finds the sockets of this one on the queues, and ends before it attaches |
//! | an IOKernel takes over | - | it goes on with the program and the maps; ports are held once more when the other has ended |
//! | programs do not come back | - | their ports are Linux's after [`KEPT`] |
//! | a program is killed | - | its listening ports are Linux's, which answers with resets; what comes for connections it had opened is answered by the switch for [`KEPT`], or until its part of the range is needed |
//! | a program asks for a port that Linux or another program has, or one of the range | - | it is refused, with who has it |
//! | Linux takes a port meanwhile, while no IOKernel holds it | - | the program keeps it on the wire; the log names the port and who has it |
//! | the interface gets another address | - | ports are held there, and frames leave with it; connections of the old address end as Linux's do |
//! | Linux answers no question | - | what was known stays in effect; a line in the log, once |

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_bpf::sys::Hook;
use tailwater_bpf::sys::map::Map;
use tailwater_host::ReservedPorts;
use tailwater_shm::control::Listen;

use super::held::Held;
use super::record::{Ports, Record};
use super::{Latest, Program, View, Wanted};
use crate::frame::MacAddr;
use crate::port::xdp::linux::Linux;
use crate::port::xdp::program::ports::port_key;
use crate::port::xdp::spec::Outgoing;

/// For how long ports are kept for programs of an earlier IOKernel that do not come back: as long
/// as calls of these wait for another one, unless set otherwise.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of ports at which programs listen.
pub(in crate::port::xdp) const MOST_PORTS: u32 = 16_384;
/// Maximum number of datagrams whose later fragments are redirected.
pub(in crate::port::xdp) const MOST_FRAGMENTED: u32 = 4_096;

/// Ports at which programs listen, as the redirect program finds them.
pub(in crate::port::xdp) type PortMap = Map<u32, u32>;

/// A program that has ports.
#[derive(Debug)]
struct Holder {
    ip6: Option<Ipv6Addr>,
    /// Number of its part of the range.
    part: u16,
    listens: BTreeMap<Listen, Held>,
    /// Until when it is expected, if it was registered with an earlier IOKernel, or answered for,
    /// if it has ended.
    until: Option<Instant>,
    ended: bool,
}

/// The attachment that this is about.
#[derive(Debug, Clone)]
pub(in crate::port::xdp) struct Attachment {
    /// Name and number of the interface.
    pub(in crate::port::xdp) port: String,
    pub(in crate::port::xdp) index: u32,
    pub(in crate::port::xdp) hook: Hook,
    /// Number of the attached program.
    pub(in crate::port::xdp) program: u32,
    /// It was taken over from an IOKernel that still runs.
    pub(in crate::port::xdp) adopted: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(in crate::port::xdp) struct Steering {
    at: Attachment,
    outgoing: Outgoing,
    map: Arc<PortMap>,
    /// Those that the map has.
    entered: BTreeSet<u32>,
    holders: BTreeMap<Ipv4Addr, Holder>,
    mac: MacAddr,
    ip: Option<Ipv4Addr>,
    ip6: Option<Ipv6Addr>,
    linux: Linux,
    latest: Arc<Latest<View>>,
    wanted: Arc<Wanted>,
    view: View,
    file: PathBuf,
    record: Record,
    reserved: Option<ReservedPorts>,
    /// What was logged once: a failed reservation, ports that Linux has.
    complained: BTreeSet<String>,
    /// Another IOKernel, or another attachment, goes on with what is attached.
    left: bool,
    /// This IOKernel ends, and its programs wait for the next one.
    ending: bool,
    /// Linux's addresses and routers, which no program may have.
    taken: HashSet<IpAddr>,
    taken_changed: bool,
}

/// Returns the keys of the ports of an interface that an earlier IOKernel has left closed to Linux.
pub(in crate::port::xdp) fn recorded(port: &str) -> Vec<u32> {
    let record = Record::path(port).map(|path| Record::read(&path)).unwrap_or_default();
    record.programs.iter().flat_map(|ports| ports.listens.iter().map(key)).collect()
}

/// Attaches a program to an interface until it is taken away, also if this process ends: in the
/// place of that of an IOKernel of before, which does not run any more. It is in the record first.
///
/// # Errors
/// Linux's; EBUSY if the attached program is another one's.
pub(in crate::port::xdp) fn attach(port: &str, index: u32, program: &OwnedFd, hook: Hook) -> io::Result<()> {
    let (mut linux, file) = (Linux::new()?, Record::path(port)?);
    let there = linux.attached_xdp(index)?.unwrap_or(0);
    let before = Record::read(&file);
    if there != 0 && !before.knows(there) {
        return Err(Errno::BUSY.into());
    }
    let number = tailwater_bpf::sys::program_number(program)?;
    // One that cannot be written is complained of when programs get their ports.
    let _ = Record { program: number, replaced: there, ..before.clone() }.write(&file);
    let attached = match linux.attach_xdp(index, program.as_fd(), hook, there != 0) {
        // One in the other mode is in the way.
        Err(error)
            if there != 0 && matches!(Errno::from_io_error(&error), Some(Errno::EXIST | Errno::INVAL)) =>
        {
            let other = if hook == Hook::Driver { Hook::Generic } else { Hook::Driver };
            linux.detach_xdp(index, other)?;
            linux.attach_xdp(index, program.as_fd(), hook, false)
        }
        attached => attached,
    };
    if attached.is_err() && there == 0 && before == Record::default() {
        // It is missing if it could not be written.
        let _ = std::fs::remove_file(&file);
    }
    attached
}

fn key(listen: &Listen) -> u32 {
    port_key(listen.transport.number(), listen.port)
}

impl Steering {
    /// Returns one for an attachment, with the ports of programs that were there before.
    ///
    /// # Errors
    /// If Linux does not answer, or the map.
    pub(in crate::port::xdp) fn new(
        at: Attachment,
        outgoing: &Outgoing,
        map: Arc<PortMap>,
        (latest, wanted): (Arc<Latest<View>>, Arc<Wanted>),
        ip6_of: impl Fn(Ipv4Addr) -> Option<Ipv6Addr>,
    ) -> io::Result<Self> {
        let file = Record::path(&at.port)?;
        let record = Record::read(&file);
        let until = Some(Instant::now() + KEPT);
        let parts = outgoing.parts();
        let before = record.programs.iter().filter(|ports| ports.part < parts).map(|ports| {
            let listens = ports.listens.iter().map(|&listen| (listen, Held::default())).collect();
            (ports.ip, Holder { ip6: ip6_of(ports.ip), part: ports.part, listens, until, ended: false })
        });
        let holders = before.collect();
        let entered = map.entries(MOST_PORTS as usize)?.into_iter().map(|(key, _)| key).collect();
        Ok(Self {
            at,
            outgoing: outgoing.clone(),
            map,
            entered,
            holders,
            mac: MacAddr::default(),
            ip: None,
            ip6: None,
            linux: Linux::new()?,
            latest,
            wanted,
            view: View::default(),
            file,
            record,
            reserved: None,
            complained: BTreeSet::new(),
            left: false,
            ending: false,
            taken: HashSet::new(),
            taken_changed: true,
        })
    }

    /// Gives a program its ports; returns its part of the range.
    ///
    /// # Errors
    /// In words: which port it cannot have, who has it, and what to do.
    pub(in crate::port::xdp) fn claim(
        &mut self,
        (ip, ip6): (Ipv4Addr, Option<Ipv6Addr>),
        listens: &[Listen],
    ) -> Result<(u16, u16), String> {
        let part = match self.holders.get(&ip) {
            Some(holder) => holder.part,
            None => self.take_part()?,
        };
        let mut held = BTreeMap::new();
        for &listen in listens {
            held.insert(listen, self.hold(ip, listen)?);
        }
        let holder = self.holders.entry(ip).or_insert(Holder {
            ip6,
            part,
            listens: BTreeMap::new(),
            until: None,
            ended: false,
        });
        // Two instances of a program have one address, and the ports of both.
        if holder.until.take().is_some() {
            holder.listens.retain(|listen, _| held.contains_key(listen));
        }
        (holder.ip6, holder.ended) = (ip6, false);
        for (listen, socket) in held {
            // A socket that is there already stays.
            let place = holder.listens.entry(listen).or_default();
            if let Some(socket) = socket {
                *place = socket;
            }
        }
        self.publish();
        let ports = self.outgoing.part(part);
        Ok((*ports.start(), *ports.end()))
    }

    /// Returns a socket at a port that a program wishes; `None` if it has one, or will when an
    /// earlier IOKernel has ended.
    fn hold(&self, ip: Ipv4Addr, listen: Listen) -> Result<Option<Held>, String> {
        if self.outgoing.range.contains(&listen.port) {
            let (first, last) = (self.outgoing.range.start(), self.outgoing.range.end());
            return Err(format!(
                "{listen} is in the range of ports for outgoing connections, {first}-{last}; listen at another port, or \
                 give the IOKernel's port another range="
            ));
        }
        for (other, holder) in &self.holders {
            match holder.listens.get(&listen) {
                Some(_) if *other != ip => {
                    return Err(format!(
                        "{listen} is the port of the program at {other}; stop that one, or listen at another port"
                    ));
                }
                Some(held) if held.is_held() || holder.until.is_some() => return Ok(None),
                _ => {}
            }
        }
        Held::new(listen, self.own()).map(Some)
    }

    fn own(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.ip.map(IpAddr::V4), self.ip6.map(IpAddr::V6)].into_iter().flatten()
    }

    /// Returns a part of the range that no program has: that of the one that has ended first if
    /// there is no other.
    fn take_part(&mut self) -> Result<u16, String> {
        let parts = self.outgoing.parts();
        let taken: HashSet<u16> = self.holders.values().map(|holder| holder.part).collect();
        if let Some(free) = (0..parts).find(|part| !taken.contains(part)) {
            return Ok(free);
        }
        let ended = self.holders.iter().filter(|(_, holder)| holder.ended);
        let first = ended.min_by_key(|(_, holder)| holder.until).map(|(&ip, _)| ip);
        if let Some(holder) = first.and_then(|ip| self.holders.remove(&ip)) {
            return Ok(holder.part);
        }
        let Outgoing { range, part } = &self.outgoing;
        Err(format!(
            "{parts} programs have all ports for outgoing connections, {}-{}, {part} each; stop one, or give the \
             IOKernel's port a longer range= or a smaller part=",
            range.start(),
            range.end()
        ))
    }

    /// Takes the ports of programs that are registered no more. Frames for connections of theirs
    /// are answered by the switch for a time, which keeps their parts of the range.
    pub(in crate::port::xdp) fn set_programs(&mut self, registered: &HashSet<Ipv4Addr>) {
        if self.ending {
            return;
        }
        let until = Some(Instant::now() + KEPT);
        for (ip, holder) in &mut self.holders {
            if registered.contains(ip) {
                holder.until = None;
            } else if holder.until.is_none() {
                (holder.until, holder.ended) = (until, true);
                holder.listens.clear();
            }
        }
        self.publish();
    }

    /// Returns the IPv6 address that programs share.
    pub(in crate::port::xdp) fn own_ip6(&mut self) -> Option<Ipv6Addr> {
        // Without an answer it is the one of before.
        self.linux.global6(self.at.index).unwrap_or(self.ip6)
    }

    /// Returns whether Linux has changed something, or a program looks for a neighbour.
    pub(in crate::port::xdp) fn has_news(&self) -> bool {
        !self.wanted.is_empty() || self.linux.has_news()
    }

    /// Reads what Linux has, and puts changes into effect.
    ///
    /// # Errors
    /// If Linux does not answer.
    pub(in crate::port::xdp) fn look(
        &mut self,
        (mac, ip, ip6): (MacAddr, Option<Ipv4Addr>, Option<Ipv6Addr>),
        now: Instant,
    ) -> io::Result<()> {
        let is_other = (self.ip, self.ip6) != (ip, ip6);
        (self.mac, self.ip, self.ip6) = (mac, ip, ip6);
        if is_other {
            // Sockets at the addresses of before are in the way where one of them stays.
            self.holders
                .values_mut()
                .flat_map(|holder| holder.listens.values_mut())
                .for_each(|held| *held = Held::default());
        }
        self.holders.retain(|_, holder| holder.until.is_none_or(|until| now < until));
        self.hold_all();
        self.reserve();
        for ip in self.wanted.take() {
            let _ = self.linux.use_neighbour(self.at.index, ip);
        }
        let mut routes = self.linux.all_routes(self.at.index)?;
        routes.sort_by_key(|route| (core::cmp::Reverse(route.prefix_len), route.priority));
        let neighbours = self.linux.neighbours(self.at.index)?;
        let hosts = self.linux.addresses()?;
        let taken: HashSet<IpAddr> =
            hosts.into_iter().chain(routes.iter().filter_map(|route| route.via)).collect();
        self.taken_changed |= taken != self.taken;
        self.taken = taken;
        let networks = routes.into_iter().map(|route| (route.network, route.prefix_len, route.via));
        self.view = View::new((mac, ip, ip6), Vec::new(), networks, neighbours);
        self.publish();
        Ok(())
    }

    /// Makes Linux find and check the stations of routers.
    pub(in crate::port::xdp) fn use_hops(&mut self) {
        let routes = self.linux.all_routes(self.at.index).unwrap_or_default();
        let routers: HashSet<IpAddr> = routes.into_iter().filter_map(|route| route.via).collect();
        routers.into_iter().for_each(|ip| self.linux.use_unless_permanent(self.at.index, ip));
    }

    /// Holds the ports that are not held yet.
    fn hold_all(&mut self) {
        let own: Vec<IpAddr> = self.own().collect();
        // Those of programs that are expected may be held by an IOKernel that hands over.
        for (ip, holder) in self.holders.iter_mut().filter(|(_, holder)| holder.until.is_none()) {
            for (listen, held) in holder.listens.iter_mut().filter(|(_, held)| !held.is_held()) {
                match Held::new(*listen, own.iter().copied()) {
                    Ok(socket) => *held = socket,
                    Err(why) if self.complained.insert(why.clone()) => {
                        tracing::warn!(port = self.at.port, program = %ip, "a port of a program is not held from Linux: {why}");
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Reserves the range, unless that is done.
    fn reserve(&mut self) {
        if self.reserved.is_some() {
            return;
        }
        match ReservedPorts::new(&self.outgoing.range) {
            Ok(reserved) => self.reserved = reserved,
            Err(error) if self.complained.insert("reserve".to_owned()) => {
                tracing::warn!(
                    port = self.at.port, %error,
                    "cannot reserve the ports of programs: Linux may give one to a connection of its own, whose answers \
                     are then lost; set net.ipv4.ip_local_reserved_ports = {}-{}",
                    self.outgoing.range.start(), self.outgoing.range.end()
                );
            }
            Err(_) => {}
        }
    }

    /// Puts who has which port into effect: in the map, the record and the view.
    fn publish(&mut self) {
        let wanted: BTreeSet<u32> =
            self.holders.values().flat_map(|holder| holder.listens.keys().map(key)).collect();
        let (map, port) = (&self.map, &self.at.port);
        self.entered.retain(|key| wanted.contains(key) || map.remove(*key).is_err());
        for &key in &wanted {
            if !self.entered.contains(&key) {
                match map.set(key, 0) {
                    Ok(()) => _ = self.entered.insert(key),
                    Err(error) => {
                        tracing::error!(port, %error, "frames for a port of a program go to Linux: the map takes no more");
                    }
                }
            }
        }
        let live = self.holders.iter().filter(|(_, holder)| !holder.ended);
        let programs = live.map(|(&ip, holder)| Ports {
            ip,
            part: holder.part,
            listens: holder.listens.keys().copied().collect(),
        });
        let record = Record { program: self.at.program, replaced: 0, programs: programs.collect() };
        if record != self.record {
            match record.write(&self.file) {
                Ok(()) => self.record = record,
                Err(error) if self.complained.insert("record".to_owned()) => {
                    tracing::warn!(port, %error, file = %self.file.display(), "cannot write who has which port: if this IOKernel is killed, connections to programs are reset");
                }
                Err(_) => {}
            }
        }
        self.view.programs = self
            .holders
            .iter()
            .map(|(&ip, holder)| Program {
                ip,
                ip6: holder.ip6,
                outgoing: self.outgoing.part(holder.part),
                listens: holder.listens.keys().map(key).collect::<BTreeSet<u32>>().into_iter().collect(),
            })
            .collect();
        self.latest.set(self.view.clone());
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub(in crate::port::xdp) fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        core::mem::take(&mut self.taken_changed).then(|| self.taken.clone())
    }

    /// Notes that programs wait for the next IOKernel: their ports stay closed to Linux.
    pub(in crate::port::xdp) fn keep_programs(&mut self) {
        self.ending = true;
    }

    /// Leaves what is attached to another IOKernel.
    pub(in crate::port::xdp) fn leave(&mut self) {
        self.left = true;
    }

    /// Notes that this IOKernel serves: no other one goes on with what is attached.
    pub(in crate::port::xdp) fn begin(&mut self) {
        self.at.adopted = false;
    }

    /// Takes the program away from an interface that the port lets go of. The record stays.
    pub(in crate::port::xdp) fn detach(&mut self) {
        // Fails if the interface is gone.
        let _ = self.linux.detach_xdp(self.at.index, self.at.hook);
        self.left = true;
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        if self.left || self.at.adopted {
            return;
        }
        let port = &self.at.port;
        let hook = match self.at.hook {
            Hook::Driver => "xdp",
            Hook::Generic => "xdpgeneric",
        };
        let programs = self.holders.values().filter(|holder| !holder.ended).count();
        if programs > 0 {
            if let Some(reserved) = self.reserved.take() {
                reserved.keep();
            }
            tracing::info!(
                port,
                programs,
                "the ports of these programs, which wait for the next IOKernel, stay closed to Linux; `ip link set {port} {hook} off` opens them"
            );
            return;
        }
        if let Err(error) = self.linux.detach_xdp(self.at.index, self.at.hook) {
            tracing::warn!(port, %error, "cannot take the redirect program away; `ip link set {port} {hook} off` does");
        }
        // It is missing if it could not be written.
        let _ = std::fs::remove_file(&self.file);
    }
}
