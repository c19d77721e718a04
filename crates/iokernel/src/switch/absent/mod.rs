//! Answers for addresses without a program, so that no peer waits for a program that has ended.
//!
//! Owns the addresses of the programs that have ended, the limits on answers, and the reports to
//! programs that are still to be delivered; [`answer`] owns the frames. Decides nothing about
//! frames for addresses that have a program.
//!
//! | event | what happens |
//! |---|---|
//! | a program ends | each other program gets a [report](answer::departure), which ends connections that only wait |
//! | a segment for it | a reset |
//! | a datagram for it | "port unreachable" |
//! | ARP or a neighbour solicitation for it | its MAC address, so that the next packet gets the above |
//!
//! An address is *absent* for [`KEPT_S`] after its program has ended, until another program has it
//! or a host behind a port claims it. If no host but programs and ports with known addresses is on
//! the network, all other addresses are absent, too; but not in the first [`GRACE_S`] of the
//! IOKernel, and not as long after a registration that came to nothing: a program that lost its
//! IOKernel may come back with connections.
//!
//! # Who pays
//! An answer to a program is made in its own turn and takes its own share of its ring. Each program
//! and each port has a [limit](ANSWERS_PER_SECOND) of answers: a flood of frames to absent
//! addresses from one takes nothing from the others, and beyond it a frame costs a look into a
//! table, as any frame that is dropped. Reports are charged with the end of the registration, those
//! that are sent later at the price of those that are sent at once. Firewall rules and rate limits
//! that the program had when it ended hold for answers in its name, but not for reports, which only
//! programs of this machine get.
//!
//! # Crash and lie
//!
//! | step | lie | consequence |
//! |---|---|---|
//! | a frame for an absent address | forged source behind a port | one answer, no longer than the frame and 28 or 48 bytes, within the port's limit |
//! | a report | sent by a program, or from a wire | that of a program is refused and charged ([`inspect`](super::inspect)); that from a wire is not believed, for its frames are not vouched for |
//! | a claim of an absent address | by a host behind a port | the address is not answered for any more, as if it had never been |
//! | a ring that is never read | - | its reports are tried every [`RETRY_MS`] until [`REPORT_S`] have passed; beyond [`MOST_REPORTS_TO_ONE`] they are lost |

mod answer;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tailwater_ports::{Attachment, KEPT_S, MOST_KEPT, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::account::Account;
use tailwater_shm::ring::ReserveError;
use tailwater_shm::{Clock, Cycles};
use tailwater_wire::resolution::{Resolution, resolution, resolved};
use tailwater_wire::{Checksums, MacAddr};

use super::Switch;
use super::check::Heading;
use super::mac::MacTable;
use super::source::{Origin, Private, Source};
use crate::config::Config;
use crate::firewall::stats::FirewallStats;
use crate::firewall::{Direction, Guard, Ruling};
use crate::runtime::{EndReason, Runtime};
use crate::stats::Stats;
use crate::tenant::Key;
use crate::world::{Lender, World};

/// For how long the programs of an earlier IOKernel may come back, in seconds: as long as their
/// places are kept in a takeover.
const GRACE_S: u64 = 30;
/// For how long a report is tried, in seconds.
const REPORT_S: u64 = 60;
/// Answers to a program, or through a port, per second, and at once. One through a TAP device takes
/// 2 us of the polling thread.
const ANSWERS_PER_SECOND: u64 = 5_000;
const ANSWERS_AT_ONCE: u64 = 1_000;
/// Maximum number of reports that wait, and of those to one program.
const MOST_REPORTS: usize = 16_384;
const MOST_REPORTS_TO_ONE: u16 = 64;
/// Number of reports that wait for one program up to which one of them is delivered again: ends of
/// one user's instances are to leave room for those of others.
const MOST_REPEATS_TO_ONE: u16 = MOST_REPORTS_TO_ONE / 4;
/// Time until a report is tried again for which its receiver's ring had no room, in milliseconds.
const RETRY_MS: u64 = 100;
/// How often the end of one of two instances is reported again, a second apart: the other one may
/// not know of it at first, and then answers nothing for the connections of that one.
const REPEATS: u8 = 3;
/// Reports that are tried at once, about 10 us of work.
const REPORTS_AT_ONCE: usize = 64;

/// An address that had a program.
#[derive(Debug)]
struct Kept {
    ip: Ipv4Addr,
    mac: MacAddr,
    /// Its user and grant; `None` for a trusted user.
    owner: Option<Key>,
    /// Its firewall rules when it ended, which hold for answers as they did for its own.
    guard: Option<Box<Guard>>,
    rules: Arc<FirewallStats>,
    /// Answered from then on.
    from: Cycles,
    until: Cycles,
}

/// A report for `to` that the program of `gone` has ended, or one of two instances of it.
#[derive(Debug, Clone, Copy)]
struct Pending {
    to: RuntimeId,
    gone: (IpAddr, MacAddr),
    of_instance: bool,
    until: Cycles,
    /// When it is tried.
    due: Cycles,
    /// It was tried, and its receiver's ring had no room.
    tried: bool,
    /// How often it is delivered again.
    repeats: u8,
}

/// The sender of frames, for its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Payer {
    Runtime(RuntimeId),
    Port(u16),
}

impl Payer {
    fn of(origin: Origin) -> Self {
        match origin {
            Origin::Runtime(id, _) => Self::Runtime(id),
            Origin::Port(number) => Self::Port(number),
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Absent {
    config: Config,
    clock: Clock,
    /// Only programs, and ports with known addresses, are on the network.
    closed: bool,
    /// First moment of the IOKernel.
    began: Option<Cycles>,
    /// Programs that were sent `Ready`.
    begun: HashSet<RuntimeId>,
    /// By key of the MAC address.
    kept: HashMap<u64, Kept>,
    /// Answers, each as the time in which another one is granted.
    answers: HashMap<Payer, Account>,
    /// Answers for the port that is being polled.
    to_port: Vec<Vec<u8>>,
    reports: VecDeque<Pending>,
    /// How many of them are for each program.
    unread: HashMap<RuntimeId, u16>,
}

impl Absent {
    pub(super) fn new(config: &Config, clock: Clock, ports: &[Box<dyn Port>]) -> Self {
        let is_known = |port: &dyn Port| matches!(port.attachment(), Attachment::Station { ip: Some(_), .. });
        Self {
            config: config.clone(),
            clock,
            closed: ports.iter().all(|port| is_known(&**port)),
            began: None,
            begun: HashSet::new(),
            kept: HashMap::new(),
            answers: HashMap::new(),
            to_port: Vec::new(),
            reports: VecDeque::new(),
            unread: HashMap::new(),
        }
    }

    /// Returns the settings of the network.
    #[inline(always)]
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Notes the first moment of the IOKernel.
    #[inline(always)]
    pub(super) fn note_time(&mut self, now: Cycles) {
        if self.began.is_none() {
            self.began = Some(now);
        }
    }

    fn seconds(&self, seconds: u64) -> Cycles {
        self.clock.from_ns(seconds * 1_000_000_000)
    }

    /// Handles the start of a program with this address. Reports that one of two instances has
    /// ended stay: the other one has the address still, and a peer that is to ask it again may have
    /// connections of the ended one.
    pub(super) fn attach(&mut self, mac: MacAddr) {
        self.kept.remove(&mac.key());
        self.drop_reports(|report| report.gone.1 == mac && !report.of_instance);
    }

    /// Has a report delivered. One that does not read its ring loses reports, not the others.
    fn queue(&mut self, report: Pending) {
        let unread = self.unread.entry(report.to).or_default();
        if *unread < MOST_REPORTS_TO_ONE && self.reports.len() < MOST_REPORTS {
            *unread += 1;
            self.reports.push_back(report);
        }
    }

    /// Returns whether a report that was delivered is delivered again.
    fn is_repeated(&self, report: &Pending) -> bool {
        report.repeats > 0 && self.unread.get(&report.to).is_some_and(|&unread| unread <= MOST_REPEATS_TO_ONE)
    }

    fn note_delivered(&mut self, to: RuntimeId) {
        if let Some(unread) = self.unread.get_mut(&to) {
            *unread -= 1;
            if *unread == 0 {
                self.unread.remove(&to);
            }
        }
    }

    fn drop_reports(&mut self, mut is_over: impl FnMut(&Pending) -> bool) {
        let Self { reports, unread, .. } = self;
        reports.retain(|report| {
            let stays = !is_over(report);
            if !stays && let Some(unread) = unread.get_mut(&report.to) {
                *unread -= 1;
            }
            stays
        });
        unread.retain(|_, unread| *unread > 0);
    }

    /// Notes that a program was sent `Ready`: it has no connections from before.
    pub(super) fn begin(&mut self, id: RuntimeId) {
        self.begun.insert(id);
    }

    /// Forgets a program that has ended. Returns whether it was sent `Ready`.
    fn leave(&mut self, id: RuntimeId) -> bool {
        let begun = self.begun.remove(&id);
        self.answers.remove(&Payer::Runtime(id));
        self.drop_reports(|report| report.to == id);
        begun
    }

    /// Keeps the address of a program that has ended. Returns whether others are to be told.
    fn keep(&mut self, ended: &mut Runtime, now: Cycles) -> bool {
        let begun = self.leave(ended.id);
        self.kept.retain(|_, kept| now < kept.until);
        if self.kept.len() >= MOST_KEPT {
            self.make_room();
        }
        // One that was never ready lives, as a rule, and tries again.
        let from = if begun { now } else { now + self.seconds(GRACE_S) };
        let until = from + self.seconds(KEPT_S);
        let (ip, mac, owner) = (ended.ip, ended.mac, ended.key);
        let (guard, rules) = (ended.guard.take(), Arc::clone(&ended.rules));
        self.kept.insert(mac.key(), Kept { ip, mac, owner, guard, rules, from, until });
        begun
    }

    /// Forgets the oldest address of the user who has the most.
    fn make_room(&mut self) {
        let mut counts: HashMap<Option<Key>, usize> = HashMap::new();
        self.kept.values().for_each(|kept| *counts.entry(kept.owner).or_default() += 1);
        let most = counts.values().max().copied();
        let theirs = self.kept.iter().filter(|(_, kept)| counts.get(&kept.owner).copied() == most);
        if let Some(oldest) = theirs.min_by_key(|(_, kept)| kept.until).map(|(&key, _)| key) {
            self.kept.remove(&oldest);
        }
    }

    /// Returns whether the rules of the program that had this address let a packet to or from it
    /// pass; counts it if they do not.
    fn permits(
        &mut self,
        mac: MacAddr,
        direction: Direction,
        packet: &[u8],
        stats: &Stats,
        now: Cycles,
    ) -> bool {
        let Some(Kept { guard: Some(guard), rules, .. }) = self.kept.get_mut(&mac.key()) else { return true };
        match guard.judge(direction, packet, packet.len(), now, rules) {
            Ruling::Pass => return true,
            Ruling::Denied => stats.switch.dropped_denied.add(1),
            Ruling::Limited => stats.switch.dropped_limited.add(1),
        }
        false
    }

    /// Returns whether the address may be absent: no frame for another one needs a closer look.
    #[inline(always)]
    pub(super) fn may_be_absent(&self, key: u64) -> bool {
        self.closed || (!self.kept.is_empty() && self.kept.contains_key(&key))
    }

    /// Returns the station of an absent address, beside those that programs and ports have.
    fn station(
        &self,
        ip: IpAddr,
        (macs, ips): (&MacTable, &HashMap<Ipv4Addr, MacAddr>),
        now: Cycles,
    ) -> Option<MacAddr> {
        let (mac, ip) = station_of(&self.config, ip)?;
        if macs.find(mac.key()).is_some() || ip.is_some_and(|ip| ips.contains_key(&ip)) {
            return None;
        }
        if let Some(kept) = self.kept.get(&mac.key()) {
            let is_it = ip.is_none_or(|ip| ip == kept.ip);
            return (is_it && kept.from <= now && now < kept.until).then_some(kept.mac);
        }
        let began = self.began?;
        let all = self.closed && now.saturating_sub(began) >= self.seconds(GRACE_S);
        (all && self.config.is_host(ip?)).then_some(mac)
    }

    /// Charges an answer to `origin`; false if it has had too many.
    fn may_answer(&mut self, origin: Origin, now: Cycles) -> bool {
        let each = self.seconds(1) / ANSWERS_PER_SECOND;
        let account = self.answers.entry(Payer::of(origin)).or_default();
        account.take(each, ANSWERS_AT_ONCE * each, now)
    }

    /// Forgets an address that another host claims.
    fn forget(&mut self, ip: IpAddr) {
        let config = &self.config;
        self.kept.retain(|_, kept| {
            ip != IpAddr::V4(kept.ip)
                && IpAddr::V6(kept.mac.link_local()) != ip
                && config.ip6_of(kept.ip).map(IpAddr::V6) != Some(ip)
        });
    }
}

impl Switch {
    /// Answers a frame whose destination has no program, if it is for an absent address. Returns
    /// whether it is.
    #[cold]
    pub(super) fn refuse_absent<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        heading: Heading,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> bool {
        let shown = source.shown();
        let question = match resolution(shown) {
            Some(Resolution::Question { target, .. }) => Some(target),
            _ => None,
        };
        let target = question.or_else(|| answer::destination(shown));
        let Some(mac) = target.and_then(|ip| self.absent.station(ip, (&self.macs, &self.ips), now)) else {
            return false;
        };
        if mac.key() != heading.destination {
            return false;
        }
        if question.is_some() {
            self.resolve_absent(origin, source, world, lender, now);
            return true;
        }
        if !self.absent.may_answer(origin, now) {
            world.stats.switch.absent_limited.add(1);
            return true;
        }
        self.slow = true;
        let checksums = match origin {
            Origin::Runtime(..) => Checksums::Trust,
            Origin::Port(_) => Checksums::Verify,
        };
        let Self { absent, buffer, .. } = self;
        let mut may = |direction, frame: &[u8]| absent.permits(mac, direction, frame, &world.stats, now);
        let Some(frame) = source.copy(buffer).filter(|frame| may(Direction::Ingress, frame)) else {
            return true;
        };
        match answer::refusal(frame, checksums) {
            Some(frame) if may(Direction::Egress, &frame) => {
                self.send_answer(origin, frame, world, lender, now);
            }
            Some(_) => {}
            None => world.stats.switch.dropped_unknown.add(1),
        }
        true
    }

    /// Answers ARP or a neighbour solicitation about an absent address. Forgets the addresses that
    /// hosts behind ports claim: a host that asks claims the address it asks from.
    pub(super) fn resolve_absent<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) {
        if !self.absent.closed && self.absent.kept.is_empty() {
            return;
        }
        match resolution(source.shown()) {
            Some(Resolution::Question { target, by, station }) => {
                if matches!(origin, Origin::Port(_)) {
                    self.absent.forget(by);
                }
                let Some(mac) = self.absent.station(target, (&self.macs, &self.ips), now) else { return };
                if !self.absent.may_answer(origin, now) {
                    world.stats.switch.absent_limited.add(1);
                } else if let Some(answer) = resolved(target, mac, (by, station)) {
                    self.send_answer(origin, answer.to_vec(), world, lender, now);
                }
            }
            Some(Resolution::Claim(ip)) if matches!(origin, Origin::Port(_)) => self.absent.forget(ip),
            _ => {}
        }
    }

    /// Sends an answer to where its cause came from. A port that is being polled gets it after
    /// that.
    fn send_answer(
        &mut self,
        origin: Origin,
        frame: Vec<u8>,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) {
        world.stats.switch.answered_absent.add(1);
        match origin {
            Origin::Runtime(id, _) => {
                let hash = super::check::packet_hash(&frame);
                self.deliver::<false, _>((origin, id), &Private::own(&frame), hash, world, lender, now);
            }
            Origin::Port(_) => self.absent.to_port.push(frame),
        }
    }

    /// Sends the answers for a port that has been polled.
    pub(super) fn flush_answers(&mut self, number: u16, world: &mut World, now: Cycles) {
        for frame in core::mem::take(&mut self.absent.to_port) {
            // One that the port has no room for is lost, as any frame.
            self.transmit(number, Origin::Port(number), &Private::own(&frame), world, now);
        }
    }

    /// Handles the end of a program, which has been detached: tells the other programs, and answers
    /// for its address from now on. Returns how many times as long as this call it takes to tell
    /// them all: those beyond [`REPORTS_AT_ONCE`] are told later, and some again.
    pub(crate) fn note_end(
        &mut self,
        ended: &mut Runtime,
        reason: &EndReason,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> u32 {
        // Then it has the address.
        let other = world.runtimes.other_instance(ended.id, ended.ip).map(|other| other.id);
        let is_told = match other {
            Some(_) => self.absent.leave(ended.id),
            // At the end of the IOKernel, programs wait for the next one.
            None => *reason != EndReason::Shutdown && self.absent.keep(ended, now),
        };
        if !is_told || *reason == EndReason::Shutdown {
            return 1;
        }
        let until = now + self.absent.seconds(REPORT_S);
        let (of_instance, repeats) = (other.is_some(), if other.is_some() { REPEATS } else { 0 });
        let waiting = self.absent.reports.len();
        let told = world.runtimes.iter().filter(|runtime| !runtime.is_ended && Some(runtime.id) != other);
        for to in told.map(|runtime| runtime.id) {
            let ips = [Some(IpAddr::V4(ended.ip)), self.absent.config.ip6_of(ended.ip).map(IpAddr::V6)];
            for ip in ips.into_iter().flatten().chain([ended.mac.link_local().into()]) {
                let gone = (ip, ended.mac);
                let report = Pending { to, gone, of_instance, until, due: now, tried: false, repeats };
                self.absent.queue(report);
            }
        }
        let reports = self.absent.reports.len() - waiting;
        self.report_ends(world, lender, now);
        reports.div_ceil(REPORTS_AT_ONCE).max(1) as u32 * (1 + u32::from(repeats))
    }

    /// Delivers reports that wait, some at a time.
    pub(crate) fn report_ends(&mut self, world: &mut World, lender: &mut impl Lender, now: Cycles) {
        for _ in 0..self.absent.reports.len().min(REPORTS_AT_ONCE) {
            let Some(mut report) = self.absent.reports.pop_front() else { return };
            if now >= report.until {
                self.absent.note_delivered(report.to);
                continue;
            }
            if report.due <= now {
                report.tried = !put_report(report, world, lender, now);
                if !report.tried && !self.absent.is_repeated(&report) {
                    self.absent.note_delivered(report.to);
                    continue;
                }
                let second = self.absent.seconds(1);
                report.due = now + if report.tried { second * RETRY_MS / 1_000 } else { second };
                report.repeats -= u8::from(!report.tried);
            }
            self.absent.reports.push_back(report);
        }
    }
}

/// Returns the MAC address of a program at `ip`, whether or not there is one, and its IPv4 address
/// unless `ip` is a link-local one.
pub(super) fn station_of(config: &Config, ip: IpAddr) -> Option<(MacAddr, Option<Ipv4Addr>)> {
    let ip4 = match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => match MacAddr::from_link_local(ip) {
            Some(mac) => return Some((mac, None)),
            None => ip4_of(config, ip)?,
        },
    };
    Some((config.macs.of(ip4), Some(ip4)))
}

/// Returns the IPv4 address to which an IPv6 address of the network corresponds.
pub(super) fn ip4_of(config: &Config, ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let host = ip.to_bits() as u32 & !(u32::MAX << (32 - u32::from(config.prefix_len)));
    let ip4 = Ipv4Addr::from_bits(config.network.to_bits() | host);
    (config.ip6_of(ip4) == Some(ip)).then_some(ip4)
}

/// Puts a report into a ring of its receiver; false if there is no room. Firewall rules do not
/// apply: it is the IOKernel's own.
fn put_report(report: Pending, world: &mut World, lender: &mut impl Lender, now: Cycles) -> bool {
    let Some(runtime) = world.runtimes.get(report.to).filter(|runtime| !runtime.is_ended) else {
        return true;
    };
    let own = match report.gone.0 {
        IpAddr::V4(_) => Some(IpAddr::V4(runtime.ip)),
        IpAddr::V6(gone) => {
            let near = gone.is_unicast_link_local();
            runtime.identity.ipv6().find(|ip| ip.is_unicast_link_local() == near).map(IpAddr::V6)
        }
    };
    let frame = own.and_then(|own| answer::departure(report.of_instance, report.gone, (own, runtime.mac)));
    let Some(frame) = frame else { return true };
    // Once: a program that does not empty its ring is lent no core for it again and again.
    if !report.tried && runtime.groups.is_unserved() {
        lender.wakeup(world, report.to, now);
    }
    let Some(runtime) = world.runtimes.get_mut(report.to) else { return true };
    let hash = super::check::packet_hash(&frame);
    let kthread = runtime.groups.kthread(hash);
    let ingress = &mut runtime.kthreads[usize::from(kthread)].ingress;
    match Private::own(&frame).put(ingress, hash, now) {
        Ok(()) => {
            world.stats.switch.departures.add(1);
            true
        }
        Err(ReserveError::Full) => false,
        Err(ReserveError::Lie(lie)) => {
            world.mark_ended(report.to, EndReason::IngressLie { kthread, lie });
            true
        }
    }
}
