//! Which program has which ports, and until when.
//!
//! Owns the table of [`Holder`]s, which goes from one attachment to the next, [`Keeper`], by which
//! it is told of programs, and [`Absence`]: what is kept of it while the interface is gone, when
//! the record for the next IOKernel and the reservation of the range stay true. A port that an
//! instance asked for is the program's until that instance ends; one that the program had with an
//! earlier IOKernel, for [`KEPT`] at least, whichever instance comes back first, or is refused.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tailwater_host::ReservedPorts;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Listen;

use super::held::Held;
use super::record::{Ports, Record};
use crate::xdp::spec::Outgoing;

/// For how long ports are kept for programs of an earlier IOKernel that do not come back: as long
/// as calls of these wait for another one, unless set otherwise.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// A program that has ports.
#[derive(Debug)]
pub(in crate::xdp) struct Holder {
    pub(super) ip6: Option<Ipv6Addr>,
    /// Its part of the range.
    pub(super) outgoing: RangeInclusive<u16>,
    pub(super) listens: BTreeMap<Listen, Listening>,
    pub(super) state: State,
}

/// A port at which a program listens.
#[derive(Debug, Default)]
pub(super) struct Listening {
    pub(super) held: Held,
    /// The instances that asked for it; none if an earlier IOKernel gave it to them.
    pub(super) instances: BTreeSet<RuntimeId>,
    /// Until when it is kept without one, if it is from an earlier IOKernel.
    until: Option<Instant>,
}

impl Listening {
    fn stays(&self, now: Instant) -> bool {
        !self.instances.is_empty() || self.until.is_some_and(|until| now < until)
    }
}

/// How long a program has its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Registered,
    /// It was registered with an earlier IOKernel, and has not come back.
    Expected(Instant),
    /// It is answered for.
    Ended(Instant),
}

/// The programs that have ports, by their addresses.
pub(in crate::xdp) type Holders = BTreeMap<Ipv4Addr, Holder>;

/// Returns whether two parts of the range have no port in common.
fn are_apart(one: &RangeInclusive<u16>, other: &RangeInclusive<u16>) -> bool {
    one.end() < other.start() || other.end() < one.start()
}

/// Returns the first part of the range that has no port of these programs.
fn free_part<'a>(
    outgoing: &Outgoing,
    holders: &(impl Iterator<Item = &'a Holder> + Clone),
) -> Option<RangeInclusive<u16>> {
    let mut parts = (0..outgoing.parts()).map(|number| outgoing.part(number));
    parts.find(|part| holders.clone().all(|holder| are_apart(part, &holder.outgoing)))
}

/// Takes a part of the range that no program has. If there is none, programs that have ended lose
/// theirs for it: those that have ended first, and no more of them than it takes.
pub(super) fn take_part(outgoing: &Outgoing, holders: &mut Holders) -> Option<RangeInclusive<u16>> {
    let ended = |holder: &Holder| match holder.state {
        State::Ended(until) => Some(until),
        State::Registered | State::Expected(_) => None,
    };
    let mut ends: Vec<Instant> = holders.values().filter_map(ended).collect();
    ends.sort_unstable();
    let part = [None].into_iter().chain(ends.into_iter().map(Some)).find_map(|last| {
        let stays = |holder: &&Holder| ended(holder).is_none_or(|end| last < Some(end));
        free_part(outgoing, &holders.values().filter(stays))
    })?;
    holders.retain(|_, holder| are_apart(&part, &holder.outgoing));
    Some(part)
}

/// Returns the programs of an earlier IOKernel, with the ports that they had. One whose part is not
/// in the range gets another one, if there is one.
pub(super) fn expected(
    record: &Record,
    (port, outgoing): (&str, &Outgoing),
    ip6_of: impl Fn(Ipv4Addr) -> Option<Ipv6Addr>,
) -> Holders {
    let Outgoing { range, .. } = outgoing;
    let until = Instant::now() + KEPT;
    let mut holders = Holders::new();
    let is_kept = |ports: &Ports| range.contains(&ports.outgoing.0) && range.contains(&ports.outgoing.1);
    let mut programs: Vec<(bool, &Ports)> =
        record.programs.iter().map(|ports| (is_kept(ports), ports)).collect();
    // Those that keep their parts first: the others get what is free beside these.
    programs.sort_by_key(|&(is_kept, _)| !is_kept);
    for (is_kept, ports) in programs {
        let (first, last) = ports.outgoing;
        if !is_kept {
            tracing::warn!(
                port, program = %ports.ip,
                "the connections that this program has opened end: its ports {first}-{last} are not in the range of this IOKernel, {}-{}",
                range.start(), range.end()
            );
        }
        let part = if is_kept { Some(first..=last) } else { free_part(outgoing, &holders.values()) };
        let Some(outgoing) = part else { continue };
        let kept = || Listening { until: Some(until), ..Listening::default() };
        let listens = ports.listens.iter().map(|&listen| (listen, kept())).collect();
        let holder = Holder { ip6: ip6_of(ports.ip), outgoing, listens, state: State::Expected(until) };
        holders.insert(ports.ip, holder);
    }
    holders
}

/// What has the table: [`Steering`](super::steering::Steering), or [`Absence`].
pub(in crate::xdp) trait Keeper {
    /// Returns the table; `None` if its programs wait for the next IOKernel, so that what they have
    /// stays theirs.
    fn holders(&mut self) -> Option<&mut Holders>;

    /// Puts a changed table into effect.
    fn publish(&mut self);

    /// Notes that programs wait for the next IOKernel.
    fn keep_programs(&mut self);

    /// Takes the ports of an instance that is registered no more, or was refused, except those of
    /// the program's other instance, and those that are kept for one.
    fn release(&mut self, id: RuntimeId) {
        if let Some(holders) = self.holders() {
            release(holders, id);
            self.publish();
        }
    }

    /// Takes the ports of programs that are registered no more; they keep their parts of the range
    /// for a time, in which frames for connections of theirs are answered by the switch.
    fn set_programs(&mut self, registered: &HashSet<Ipv4Addr>) {
        if let Some(holders) = self.holders() {
            set_programs(holders, registered);
            self.publish();
        }
    }
}

fn release(holders: &mut Holders, id: RuntimeId) {
    let now = Instant::now();
    for holder in holders.values_mut() {
        holder.listens.retain(|_, place| !place.instances.remove(&id) || place.stays(now));
    }
}

fn set_programs(holders: &mut Holders, registered: &HashSet<Ipv4Addr>) {
    let until = Instant::now() + KEPT;
    for (ip, holder) in holders {
        if registered.contains(ip) {
            holder.state = State::Registered;
        } else if holder.state == State::Registered {
            holder.state = State::Ended(until);
            holder.listens.clear();
        }
    }
}

/// Forgets programs and ports whose time has passed.
pub(super) fn expire(holders: &mut Holders, now: Instant) {
    holders.retain(|_, holder| {
        holder.listens.retain(|_, place| place.stays(now));
        match holder.state {
            State::Registered => true,
            State::Expected(until) | State::Ended(until) => now < until,
        }
    });
}

/// Returns what the next IOKernel has to know of programs that have not ended.
pub(super) fn lasting(holders: &Holders) -> Vec<Ports> {
    let live = holders.iter().filter(|(_, holder)| !matches!(holder.state, State::Ended(_)));
    live.map(|(&ip, holder)| Ports {
        ip,
        outgoing: (*holder.outgoing.start(), *holder.outgoing.end()),
        listens: holder.listens.keys().copied().collect(),
    })
    .collect()
}

/// What programs have while the interface is gone. The range stays reserved.
#[derive(Debug)]
pub(in crate::xdp) struct Absence {
    holders: Holders,
    reserved: Option<ReservedPorts>,
    file: PathBuf,
    /// Number of the program that was attached.
    program: u32,
    /// This IOKernel ends, and its programs wait for the next one.
    ending: bool,
}

impl Absence {
    pub(super) fn new(
        mut holders: Holders,
        reserved: Option<ReservedPorts>,
        (file, program): (PathBuf, u32),
    ) -> Self {
        // The sockets are at addresses that may be gone.
        let places = holders.values_mut().flat_map(|holder| holder.listens.values_mut());
        places.for_each(|place| place.held = Held::default());
        Self { holders, reserved, file, program, ending: false }
    }

    /// Returns what goes on with the next interface of the name.
    pub(super) fn end(mut self) -> (Holders, Option<ReservedPorts>) {
        (core::mem::take(&mut self.holders), self.reserved.take())
    }
}

impl Keeper for Absence {
    fn holders(&mut self) -> Option<&mut Holders> {
        (!self.ending).then_some(&mut self.holders)
    }

    fn keep_programs(&mut self) {
        self.ending = true;
    }

    /// Brings the record up to date, which is that of the program which was attached.
    fn publish(&mut self) {
        let record = Record::read(&self.file);
        let programs = lasting(&self.holders);
        if record.replaced != Some(self.program) || record.programs == programs {
            return;
        }
        // One that cannot be written was complained of.
        let _ = if programs.is_empty() {
            std::fs::remove_file(&self.file)
        } else {
            Record { programs, ..record }.write(&self.file)
        };
    }
}

impl Drop for Absence {
    fn drop(&mut self) {
        if self.ending
            && !lasting(&self.holders).is_empty()
            && let Some(reserved) = self.reserved.take()
        {
            reserved.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_keep_their_ports_whatever_the_parts_are_now_and_get_others_outside_of_the_range() {
        let ip = |host| Ipv4Addr::new(10, 77, 0, host);
        let listens = vec!["tcp:7".parse().unwrap()];
        let of = |host, outgoing| Ports { ip: ip(host), outgoing, listens: listens.clone() };
        // The first one is not in the range: the others are served before it.
        let programs = vec![of(2, (60_000, 60_099)), of(3, (61_050, 61_149)), of(4, (61_000, 61_019))];
        let record = Record { program: 7, replaced: None, programs };
        let outgoing = Outgoing { range: 61_000..=61_199, part: 20 };
        let holders = expected(&record, ("here0", &outgoing), |_| None);
        let part = |host| holders[&ip(host)].outgoing.clone();
        assert_eq!((part(2), part(3), part(4)), (61_020..=61_039, 61_050..=61_149, 61_000..=61_019));
        assert!(holders.values().all(|holder| holder.listens.keys().eq(&listens)));
        assert_eq!(free_part(&outgoing, &holders.values()), Some(61_160..=61_179));
        // Without room the program loses its place.
        let outgoing = Outgoing { range: 61_000..=61_149, part: 50 };
        let holders = expected(&record, ("here0", &outgoing), |_| None);
        assert!(holders.contains_key(&ip(3)) && !holders.contains_key(&ip(2)));
        assert_eq!(free_part(&outgoing, &holders.values()), None);
    }

    #[test]
    fn programs_that_have_ended_lose_their_parts_only_for_one_that_is_free_then() {
        let now = Instant::now();
        let state = |seconds: u64| State::Ended(now + Duration::from_secs(seconds));
        let holder = |outgoing, state| Holder { ip6: None, outgoing, listens: BTreeMap::new(), state };
        let all = |parts: [(RangeInclusive<u16>, State); 4]| -> Holders {
            let holders = (2..)
                .zip(parts)
                .map(|(host, (outgoing, state))| (Ipv4Addr::new(10, 77, 0, host), holder(outgoing, state)));
            holders.collect()
        };
        let hosts = |holders: &Holders| holders.keys().map(|ip| ip.octets()[3]).collect::<Vec<u8>>();
        let outgoing = Outgoing { range: 61_000..=61_199, part: 100 };
        // The first one to end is beside one that runs: the place of the two after it is enough.
        let mut holders = all([
            (61_000..=61_049, State::Registered),
            (61_050..=61_099, state(1)),
            (61_100..=61_149, state(2)),
            (61_150..=61_199, state(3)),
        ]);
        assert_eq!(take_part(&outgoing, &mut holders), Some(61_100..=61_199));
        assert_eq!(hosts(&holders), [2, 3]);
        // None is enough: they stay.
        let mut holders = all([
            (61_000..=61_049, State::Registered),
            (61_050..=61_099, state(1)),
            (61_100..=61_149, State::Registered),
            (61_150..=61_199, state(3)),
        ]);
        assert_eq!(take_part(&outgoing, &mut holders), None);
        assert_eq!(hosts(&holders), [2, 3, 4, 5]);
    }
}
