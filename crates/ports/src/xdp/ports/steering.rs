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
//! Those of Linux's routes by its routing rules ([`ways`](crate::xdp::ways)), and stations from its
//! table of neighbours. A neighbour that Linux does not know is found by it when a program sends
//! there; the routers of the routes are used once a second, so that Linux checks them.
//!
//! # Crash and lie
//!
//! | step | lie or failure | consequence |
//! |---|---|---|
//! | the IOKernel is killed, also while it starts | - | the redirect program stays attached and drops what is for ports of programs, so Linux resets no connection; the next IOKernel puts its own in its place, with the ports of the [record](super::record), and peers send again |
//! | it ends in good order | programs are registered, and wait for the next one | the same, and the log says so |
//! | it ends in good order | no program is registered | program, record and reservation are taken away |
//! | its start fails after the program is attached | - | as at an end in good order |
//! | `/run` cannot be written | - | the log says so: if the IOKernel is killed, the next start is refused until the program is taken away by hand; at an end in good order it is taken away |
//! | the program is taken away by hand while no IOKernel runs | - | the next one does not believe the record |
//! | the interface is moved to another network namespace | - | the program goes with it, and passes all frames to Linux |
//! | another IOKernel starts on the interface, without a takeover | - | it finds the sockets of this one on the queues, and ends before it attaches |
//! | the interface goes and comes back | - | programs have what they had; what has ended meanwhile is not kept, and a program of Linux that has taken a port of the range keeps no interface from them |
//! | an instance that replaces another one is refused, or ends | - | the other one's ports stay, also those that it had before the interface was away or with an earlier IOKernel |
//! | an IOKernel takes over | - | it goes on with the program and the maps; ports are held once more when the other has ended |
//! | the next IOKernel has another `part=`, or another `range=` | - | programs keep the parts that they had, as far as they are in the range; of others the log says that their connections end |
//! | a program of Linux asks for a reserved port by its number | - | the port stays the programs', and the log says who has it |
//! | programs do not come back | - | their ports are Linux's after [`KEPT`](super::holders::KEPT) |
//! | a program is killed | - | its listening ports are Linux's, which answers with resets; what comes for connections it had opened is answered by the switch for [`KEPT`](super::holders::KEPT), or until its part of the range is needed |
//! | a program asks for a port that Linux or another program has, or one of the range | - | it is refused, with who has it |
//! | Linux takes a port meanwhile, while no IOKernel holds it | - | the program keeps it on the wire; the log names the port and who has it |
//! | the interface gets another address | - | ports are held there, and frames leave with it: peers may reset connections of the old address |
//! | the interface loses its address for a while | - | ports stay closed to Linux at that address, and connections go on when it is back |
//! | Linux answers no question | - | what was known stays in effect; a line in the log, once |

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_bpf::sys::map::Map;
use tailwater_host::ReservedPorts;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Listen;
use tailwater_wire::MacAddr;

use super::attachment::Attachment;
use super::held::{Held, Unheld};
use super::holders::{self, Absence, Holder, Holders, Keeper, State, expected};
use super::record::{Record, UNRECORDED};
use super::{Latest, Program, View, Wanted};
use crate::xdp::linux::{Linux, News};
use crate::xdp::program::ports::port_key;
use crate::xdp::spec::Outgoing;
use crate::xdp::ways::Prefix;

/// Maximum number of ports at which programs listen.
pub(in crate::xdp) const MOST_PORTS: u32 = 16_384;
/// Maximum number of datagrams whose later fragments are redirected.
pub(in crate::xdp) const MOST_FRAGMENTED: u32 = 4_096;

/// Ports at which programs listen, as the redirect program finds them.
pub(in crate::xdp) type PortMap = Map<u32, u32>;

/// Time between two attempts to hold a port that Linux has.
const HOLD_PAUSE: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub(in crate::xdp) struct Steering {
    at: Attachment,
    outgoing: Outgoing,
    map: Arc<PortMap>,
    /// Those that the map has.
    entered: BTreeSet<u32>,
    holders: Holders,
    mac: MacAddr,
    ip: Option<Ipv4Addr>,
    ip6: Option<Ipv6Addr>,
    linux: Linux,
    news: News,
    latest: Arc<Latest<View>>,
    wanted: Arc<Wanted>,
    view: View,
    record: Record,
    reserved: Option<ReservedPorts>,
    /// What was logged once: a failed reservation or record, ports that Linux has.
    complained: BTreeSet<String>,
    unheld: HashSet<Unheld>,
    /// When to try again to hold what Linux has.
    next_hold: Option<Instant>,
    /// This IOKernel ends, and its programs wait for the next one.
    ending: bool,
    /// Routers of the ways out.
    routers: HashSet<IpAddr>,
    /// Which routing rules are not followed, as it was logged last.
    unfollowed: Option<String>,
    /// Linux's addresses and the routers of all its routes, which no program may have.
    taken: HashSet<IpAddr>,
    taken_changed: bool,
}

pub(super) fn key(listen: &Listen) -> u32 {
    port_key(listen.transport.number(), listen.port)
}

impl Steering {
    /// Returns one for an attachment, with the ports of programs that were there before.
    ///
    /// # Errors
    /// If Linux does not answer, or the map.
    pub(in crate::xdp) fn new(
        at: Attachment,
        outgoing: &Outgoing,
        map: Arc<PortMap>,
        (latest, wanted): (Arc<Latest<View>>, Arc<Wanted>),
        ip6_of: impl Fn(Ipv4Addr) -> Option<Ipv6Addr>,
    ) -> io::Result<Self> {
        let record = Record::read(&at.file);
        let holders = expected(&record, (&at.port, outgoing), ip6_of);
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
            news: News::new()?,
            latest,
            wanted,
            view: View::default(),
            record,
            reserved: None,
            complained: BTreeSet::new(),
            unheld: HashSet::new(),
            next_hold: None,
            ending: false,
            routers: HashSet::new(),
            unfollowed: None,
            taken: HashSet::new(),
            taken_changed: true,
        })
    }

    /// Gives an instance of a program its ports; returns the program's part of the range.
    ///
    /// # Errors
    /// In words: which port it cannot have, who has it, and what to do.
    pub(in crate::xdp) fn claim(
        &mut self,
        id: RuntimeId,
        (ip, ip6): (Ipv4Addr, Option<Ipv6Addr>),
        listens: &[Listen],
    ) -> Result<(u16, u16), String> {
        let mut held = BTreeMap::new();
        for &listen in listens {
            held.insert(listen, self.hold(ip, listen)?);
        }
        let outgoing = match self.holders.get(&ip) {
            Some(holder) => holder.outgoing.clone(),
            None => self.take_part()?,
        };
        let ports = (*outgoing.start(), *outgoing.end());
        let new = Holder { ip6, outgoing, listens: BTreeMap::new(), state: State::Registered };
        let holder = self.holders.entry(ip).or_insert(new);
        // Two instances of a program have one address, and the ports of both: those of one that is
        // not back yet stay.
        (holder.ip6, holder.state) = (ip6, State::Registered);
        for (listen, socket) in held {
            let place = holder.listens.entry(listen).or_default();
            place.instances.insert(id);
            // A socket that is there already stays.
            if let Some(socket) = socket {
                place.held = socket;
            }
        }
        self.publish();
        Ok(ports)
    }

    /// Returns a socket at a port that a program requests; `None` if it has one, or will when an
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
                Some(place) if place.held.is_held() || holder.state != State::Registered => return Ok(None),
                _ => {}
            }
        }
        Held::new(listen, self.own()).map(Some).map_err(|unheld| unheld.explain())
    }

    fn own(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.ip.map(IpAddr::V4), self.ip6.map(IpAddr::V6)].into_iter().flatten()
    }

    /// Takes a part of the range for a program.
    fn take_part(&mut self) -> Result<RangeInclusive<u16>, String> {
        let Outgoing { range, part } = &self.outgoing;
        holders::take_part(&self.outgoing, &mut self.holders).ok_or_else(|| {
            format!(
                "{} programs have ports for outgoing connections, and no part of {part} is free in {}-{}; stop one, or \
                 give the IOKernel's port a longer range= or a smaller part=",
                self.holders.len(),
                range.start(),
                range.end()
            )
        })
    }

    /// Returns the IPv6 address that programs share.
    pub(in crate::xdp) fn own_ip6(&mut self) -> Option<Ipv6Addr> {
        // Without an answer it is the one of before.
        self.linux.global6(self.at.index).unwrap_or(self.ip6)
    }

    /// Returns whether Linux has changed something, or a program looks for a neighbour.
    pub(in crate::xdp) fn has_news(&self) -> bool {
        !self.wanted.is_empty() || self.news.has_any()
    }

    /// Reads what Linux has, and puts changes into effect.
    ///
    /// # Errors
    /// If Linux does not answer.
    pub(in crate::xdp) fn look(
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
                .for_each(|place| place.held = Held::default());
        }
        holders::expire(&mut self.holders, now);
        if is_other || self.next_hold.is_none_or(|next| now >= next) {
            self.next_hold = Some(now + HOLD_PAUSE);
            self.hold_all();
        }
        self.reserve();
        for ip in self.wanted.take() {
            let _ = self.linux.use_neighbour(self.at.index, ip);
        }
        let own: Vec<Prefix> = self.own().map(Prefix::one).collect();
        let ways = self.linux.ways(self.at.index, &own)?;
        ways.note(&self.at.port, &mut self.unfollowed);
        let neighbours = self.linux.neighbours(self.at.index)?;
        let hosts = self.linux.addresses()?;
        self.routers = ways.ways.iter().filter_map(|way| way.via).collect();
        let taken: HashSet<IpAddr> = hosts.into_iter().chain(ways.routers).collect();
        self.taken_changed |= taken != self.taken;
        self.taken = taken;
        self.view = View::new((mac, ip, ip6), Vec::new(), &ways.ways, neighbours);
        self.publish();
        Ok(())
    }

    /// Makes Linux find and check the stations of routers.
    pub(in crate::xdp) fn use_hops(&mut self) {
        for &ip in &self.routers {
            self.linux.use_unless_permanent(self.at.index, ip);
        }
    }

    /// Holds the ports that are not held yet.
    fn hold_all(&mut self) {
        let own: Vec<IpAddr> = self.own().collect();
        // Those of programs that are expected may be held by an IOKernel that hands over.
        let registered = self.holders.iter_mut().filter(|(_, holder)| holder.state == State::Registered);
        for (ip, holder) in registered {
            for (listen, place) in holder.listens.iter_mut().filter(|(_, place)| !place.held.is_held()) {
                match Held::new(*listen, own.iter().copied()) {
                    Ok(socket) => {
                        place.held = socket;
                        self.unheld.retain(|unheld| unheld.listen != *listen);
                    }
                    // Who has it is looked for once: it takes a look at all processes.
                    Err(unheld) if self.unheld.insert(unheld) => {
                        let why = unheld.explain();
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

    /// Puts the ports at which programs listen into the map.
    fn fill_map(&mut self) {
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
    }

    /// Writes who has which port for the next IOKernel.
    fn write_record(&mut self) {
        let port = &self.at.port;
        let programs = holders::lasting(&self.holders);
        let record = Record { program: self.at.program, replaced: None, programs };
        if record != self.record {
            match record.write(&self.at.file) {
                Ok(()) => self.record = record,
                Err(error) if self.complained.insert("record".to_owned()) => {
                    tracing::warn!(port, %error, file = %self.at.file.display(), "cannot write who has which port: {UNRECORDED}");
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub(in crate::xdp) fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        core::mem::take(&mut self.taken_changed).then(|| self.taken.clone())
    }

    /// Leaves what is attached to another IOKernel.
    pub(in crate::xdp) fn leave(&mut self) {
        self.at.leave();
    }

    /// Notes that this IOKernel serves: no other one goes on with what is attached.
    pub(in crate::xdp) fn begin(&mut self) {
        self.at.begin();
    }

    /// Takes the program away from an interface that the port lets go of; returns what programs
    /// have until there is another one.
    pub(in crate::xdp) fn detach(&mut self) -> Absence {
        self.at.let_go();
        let of = (self.at.file.clone(), self.at.program);
        Absence::new(core::mem::take(&mut self.holders), self.reserved.take(), of)
    }

    /// Goes on with what programs had of the interface before.
    pub(in crate::xdp) fn resume(&mut self, absence: Absence) {
        let reserved;
        (self.holders, reserved) = absence.end();
        self.reserved = reserved.or(self.reserved.take());
        self.next_hold = None;
        self.publish();
    }
}

impl Keeper for Steering {
    fn holders(&mut self) -> Option<&mut Holders> {
        (!self.ending).then_some(&mut self.holders)
    }

    /// Puts who has which port into effect: in the map, the record and the view.
    fn publish(&mut self) {
        self.fill_map();
        self.write_record();
        self.view.programs = self
            .holders
            .iter()
            .map(|(&ip, holder)| Program {
                ip,
                ip6: holder.ip6,
                outgoing: holder.outgoing.clone(),
                listens: holder.listens.keys().map(key).collect::<BTreeSet<u32>>().into_iter().collect(),
            })
            .collect();
        self.latest.set(self.view.clone());
    }

    /// Their ports stay closed to Linux.
    fn keep_programs(&mut self) {
        self.ending = true;
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // The rest is done as the attachment is dropped.
        if self.at.stays()
            && let Some(reserved) = self.reserved.take()
        {
            reserved.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::interface::Interface;
    use crate::xdp::ports::attachment::tests::{Removed, program, xdp_namespaces};
    use tailwater_bpf::sys::Hook;

    #[test]
    fn an_instance_that_is_refused_takes_no_port_of_another_one_after_an_absence_or_a_kill() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        let ip = Ipv4Addr::new(10, 77, 0, 2);
        let (tcp, udp): (Listen, Listen) = ("tcp:80".parse().unwrap(), "udp:9".parse().unwrap());
        let (first, second) = (RuntimeId(1), RuntimeId(2));
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let file = Record::path("here0").unwrap();
            let _removed = Removed(file.clone());
            let make = || {
                let at = Attachment::new("here0", index, &program(), Hook::Generic).unwrap();
                let outgoing = Outgoing { range: 61_000..=61_199, part: 20 };
                let map = Arc::new(PortMap::hash(MOST_PORTS).unwrap());
                Steering::new(at, &outgoing, map, Default::default(), |_| None).unwrap()
            };
            let has = |it: &Steering, listen| it.map.get(key(listen)).unwrap().is_some();
            let registered = HashSet::from([ip]);
            let mut steering = make();
            steering.claim(first, (ip, None), &[tcp]).unwrap();
            steering.set_programs(&registered);
            // The interface goes and comes back.
            let absence = steering.detach();
            steering = make();
            steering.resume(absence);
            steering.set_programs(&registered);
            steering.claim(second, (ip, None), &[tcp, udp]).unwrap();
            steering.release(second);
            assert!(has(&steering, &tcp) && !has(&steering, &udp));
            steering.release(first);
            assert!(!has(&steering, &tcp));
            // As after a kill.
            steering.claim(first, (ip, None), &[tcp, udp]).unwrap();
            steering.keep_programs();
            drop(steering);
            let mut steering = make();
            steering.set_programs(&registered);
            steering.claim(first, (ip, None), &[tcp]).unwrap();
            steering.release(first);
            assert!(has(&steering, &tcp) && has(&steering, &udp));
            holders::expire(&mut steering.holders, Instant::now() + holders::KEPT);
            steering.publish();
            assert!(!has(&steering, &tcp) && !has(&steering, &udp));
            // What ends while there is no interface is not waited for.
            let mut absence = steering.detach();
            assert!(file.exists());
            absence.set_programs(&HashSet::new());
            assert!(!file.exists());
        });
    }
}
