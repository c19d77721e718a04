//! Follows what changes while a port shares its interface with Linux: the interface's own
//! addresses and MTU, the addresses of programs, routes and the stations of next hops.
//!
//! Owns the maps that the redirect program reads, and the view that the translation uses
//! ([`addresses`](super::addresses)). Runs on the control thread: at once when a program registers
//! or Linux has changed something, and else once a second. The polling thread only reads.
//!
//! # The set of addresses
//! A program's addresses are redirected from its registration on, and for [`KEPT`] after its end,
//! in which the switch answers for it: a peer then does not wait for a program that is gone. After
//! that they are Linux's, which drops frames for them. Addresses that Linux itself has are never
//! redirected, also if it got them later than a program.
//!
//! # Next hops
//! Those of Linux's routes through the interface to routers, by its routing rules
//! ([`ways`](super::ways)); the gateway's own address is the next hop of a family without a default
//! route there. As Linux has no entry for a router that it does not use, and does not check one,
//! each is used once a second in the same way as by a packet. A station that is not known any more,
//! as while a router restarts, stays the last known one.
//!
//! # Crash and lie
//!
//! | step | lie or failure | consequence |
//! |---|---|---|
//! | the IOKernel is killed | - | map and program end with its descriptors, and Linux drops what comes for programs, since it does not have their addresses; their connections go on with the next IOKernel |
//! | an IOKernel takes over | - | it goes on with the maps; addresses in them are kept as those of programs that have ended, until these come back |
//! | a router's station | a host of the wire answers ARP for it | Linux is deceived as without Tailwater; a permanent entry prevents it |
//! | programs that end fill the map | one user starts and ends many | of ended programs the latest [`MOST_ENDED`] addresses are kept; those of registered ones are entered first |
//! | more addresses than the map holds | - | the rest stays Linux's; a line in the log |
//! | Linux answers no question | - | what was known stays in effect; a line in the log, once |

use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_bpf::sys::map::Map;
use tailwater_wire::MacAddr;

use super::addresses::{Gateway, View};
use super::latest::Latest;
use super::linux::{Linux, News};
use super::ports::holders::{Absence, Keeper};
use super::ports::steering::Steering;
use super::program::{self, Owned, Settings};
use super::ways::{Prefix, Way, Ways};
use crate::sys::interface::Interface;
use crate::{KEPT_S, MOST_KEPT};

/// Time between two looks without news.
const PAUSE: Duration = Duration::from_secs(1);
/// Shortest time between two looks.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// For how long addresses of a program that has ended are redirected: as long as the switch answers
/// for them.
const KEPT: Duration = Duration::from_secs(KEPT_S);
/// Maximum number of addresses: three of each program, and of each whose end is still answered for.
const MOST_ADDRESSES: u32 = 8_192;
/// Maximum number of addresses of programs that have ended: three of each that is answered for.
const MOST_ENDED: usize = 3 * MOST_KEPT;
/// Maximum number of routes of a family that are followed, those that Linux would take first; the
/// default routes count beside them.
const MOST_ROUTES: usize = 64;

/// Addresses of the programs, as the redirect program finds them.
pub(super) type Addresses = Map<[u64; 2], u32>;

/// Returns the IPv4 addresses among these.
pub(super) fn ip4s(ips: impl IntoIterator<Item = IpAddr>) -> HashSet<Ipv4Addr> {
    let ip4s = ips.into_iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    ip4s.collect()
}

/// Returns an empty map of addresses.
pub(super) fn address_map() -> Result<Addresses, Errno> {
    Map::hash(MOST_ADDRESSES)
}

/// Addresses of programs, and until when for one that has ended.
pub(super) type KnownPrograms = HashMap<IpAddr, Option<Instant>>;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Sharing {
    port: String,
    interface: Interface,
    index: u32,
    settings: Arc<Map<u32, Settings>>,
    /// What the interface has.
    owned: Owned,
    /// What the settings say: the same, and in place of an address that the interface has lost
    /// without getting another one, that address, if programs have ports there.
    steered: Owned,
    /// Longest packet of a program, and of the interface.
    mtu: u16,
    carries: u32,
    shared: Shared,
    /// A failure was logged.
    failed: bool,
    next: Option<Instant>,
    looked: Option<Instant>,
}

/// What is followed beside the interface's own addresses.
pub(super) enum Followed {
    Itself,
    /// Programs with IP addresses of their own behind its MAC address.
    Addresses(Arc<Addresses>, Option<Gateway>, Arc<Latest<View>>),
    /// Programs that share its IP addresses.
    Ports(Box<Steering>),
}

/// What is followed, as [`Followed`] has it, with what is known of programs there.
#[derive(Debug)]
enum Shared {
    Itself,
    Addresses(Box<Programs>),
    Ports(Box<Steering>),
}

/// What the next attachment goes on with.
#[derive(Debug, Default)]
pub(super) enum Before {
    #[default]
    Nothing,
    /// Addresses of programs that may have ended.
    Addresses(KnownPrograms),
    /// What programs have that share Linux's addresses.
    Ports(Box<Absence>),
}

/// What is followed beside the interface's own addresses if programs are behind its MAC address.
#[derive(Debug)]
struct Programs {
    map: Arc<Addresses>,
    theirs: KnownPrograms,
    /// Those that the map has.
    entered: HashSet<IpAddr>,
    /// Addresses that Linux has.
    hosts: HashSet<IpAddr>,
    /// Next hops of programs.
    hops: HashSet<IpAddr>,
    /// Next hops that were known, and where.
    stations: HashMap<IpAddr, MacAddr>,
    gateway: Option<Gateway>,
    /// The networks of the programs.
    senders: Vec<Prefix>,
    linux: Linux,
    news: News,
    latest: Arc<Latest<View>>,
    view: View,
    /// It was logged that the map is full.
    full: bool,
    /// No program may have these: Linux's addresses, next hops, and the routers of other senders.
    taken: HashSet<IpAddr>,
    taken_changed: bool,
    /// Which routing rules are not followed, as it was logged last.
    unfollowed: Option<String>,
}

impl Sharing {
    /// Returns one for an interface that is attached, and looks for the first time.
    ///
    /// # Errors
    /// If Linux does not answer, or a map cannot be written.
    pub(super) fn new(
        port: &str,
        index: u32,
        (settings, owned): (Arc<Map<u32, Settings>>, Owned),
        mtu: u16,
        followed: Followed,
    ) -> io::Result<Self> {
        let shared = match followed {
            Followed::Itself => Shared::Itself,
            Followed::Addresses(map, gateway, latest) => {
                Shared::Addresses(Box::new(Programs::new(map, gateway, owned.prefix_len, latest)?))
            }
            Followed::Ports(steering) => Shared::Ports(steering),
        };
        let interface = Interface::new(port)?;
        let mut this = Self {
            port: port.to_owned(),
            carries: interface.mtu()?,
            interface,
            index,
            settings,
            owned,
            steered: owned,
            mtu,
            shared,
            failed: false,
            next: None,
            looked: None,
        };
        this.settings.set(0, this.owned.settings())?;
        let now = Instant::now();
        this.look(now)?;
        this.use_hops();
        this.looked = Some(now);
        Ok(this)
    }

    /// Reads what Linux has for programs, and puts changes into effect.
    fn look(&mut self, now: Instant) -> io::Result<()> {
        let Owned { mac, ip, ip6, .. } = self.owned;
        match &mut self.shared {
            Shared::Itself => Ok(()),
            Shared::Addresses(programs) => programs.look(&self.port, self.index, mac, now),
            Shared::Ports(steering) => steering.look((mac, ip, ip6), now),
        }
    }

    /// Makes Linux find and check the stations of next hops.
    fn use_hops(&mut self) {
        match &mut self.shared {
            Shared::Itself => {}
            Shared::Addresses(programs) => programs.use_hops(self.index),
            Shared::Ports(steering) => steering.use_hops(),
        }
    }

    /// Returns who has which port, if programs share the interface's own addresses.
    pub(super) fn steering(&mut self) -> Option<&mut Steering> {
        match &mut self.shared {
            Shared::Ports(steering) => Some(steering),
            Shared::Itself | Shared::Addresses(_) => None,
        }
    }

    /// Enters the addresses of the programs that are registered, and keeps those of others for a
    /// time.
    pub(crate) fn set_programs(&mut self, programs: impl IntoIterator<Item = IpAddr>) {
        match &mut self.shared {
            Shared::Itself => {}
            Shared::Addresses(own) => {
                own.set(programs, Instant::now());
                own.enter(&self.port);
            }
            Shared::Ports(steering) => steering.set_programs(&ip4s(programs)),
        }
    }

    /// Returns the interface's own MAC address.
    pub(super) fn mac(&self) -> MacAddr {
        self.owned.mac
    }

    /// Returns what the next attachment goes on with.
    pub(super) fn into_programs(self) -> Before {
        match self.shared {
            Shared::Itself => Before::Nothing,
            Shared::Addresses(programs) => Before::Addresses(programs.theirs),
            Shared::Ports(mut steering) => {
                // Where it cannot be taken away, as from an interface in another network namespace,
                // it passes all frames to Linux.
                let nothing = Owned { mac: MacAddr::default(), ip: None, ip6: None, ..self.owned };
                let _ = self.settings.set(0, nothing.settings());
                Before::Ports(Box::new(steering.detach()))
            }
        }
    }

    /// Goes on with what an earlier attachment had: its programs that have ended are answered for
    /// still.
    pub(super) fn resume(&mut self, before: Before) {
        match (&mut self.shared, before) {
            (Shared::Addresses(programs), Before::Addresses(before)) => programs.theirs.extend(before),
            (Shared::Ports(steering), Before::Ports(absence)) => steering.resume(*absence),
            (_, Before::Nothing) => {}
            (shared, before) => unreachable!("{before:?} of another way to share than {shared:?}"),
        }
    }

    /// Looks at what Linux has, if it is time or something has changed.
    pub(crate) fn follow(&mut self, now: Instant) {
        let early = self.looked.is_some_and(|at| now.saturating_duration_since(at) < LEAST_PAUSE);
        let due = self.next.is_none_or(|next| now >= next);
        let news = || match &self.shared {
            Shared::Itself => false,
            Shared::Addresses(programs) => programs.news.has_any(),
            Shared::Ports(steering) => steering.has_news(),
        };
        if early || !(due || news()) {
            return;
        }
        self.looked = Some(now);
        if due {
            self.next = Some(now + PAUSE);
        }
        self.follow_own();
        if due {
            self.use_hops();
        }
        match self.look(now) {
            Ok(()) => self.failed = false,
            Err(error) if !core::mem::replace(&mut self.failed, true) => {
                tracing::warn!(port = self.port, %error, "cannot read Linux's addresses and routes; the last known ones stay in effect");
            }
            Err(_) => {}
        }
    }

    /// Returns what the settings are to say. Ports of programs stay closed to Linux at an address
    /// that is gone: it may come back, as when a network manager starts again, and Linux, which has
    /// it before this thread knows, would answer the peers of programs with resets.
    fn steered(&self, owned: Owned) -> Owned {
        let Shared::Ports(_) = self.shared else { return owned };
        let (ip, ip6) = (owned.ip.or(self.steered.ip), owned.ip6.or(self.steered.ip6));
        Owned { ip, ip6, ..owned }
    }

    /// Follows the interface's own addresses and its MTU.
    fn follow_own(&mut self) {
        let (port, mtu) = (&self.port, self.mtu);
        let (carries, mac, ip) = (self.interface.mtu(), self.interface.mac(), self.interface.ip());
        // They are read by name, which another interface may have taken.
        if self.interface.index() != Ok(self.index) {
            return;
        }
        if let Ok(carries) = carries
            && core::mem::replace(&mut self.carries, carries) != carries
            && carries < mtu.into()
        {
            tracing::warn!(
                port,
                carries,
                "packets of programs have up to {mtu} bytes, and the interface drops longer ones than it carries; `ip link set {port} mtu {mtu}`"
            );
        }
        let Ok(mac) = mac else { return };
        let ip6 = self.steering().and_then(Steering::own_ip6);
        let owned = Owned { mac, ip, ip6, ..self.owned };
        let steered = self.steered(owned);
        if owned == self.owned || self.settings.set(0, steered.settings()).is_err() {
            return;
        }
        self.steered = steered;
        let ip = owned.ip.map_or_else(|| "none".to_owned(), |ip| ip.to_string());
        tracing::info!(port = self.port, %mac, ip, "the interface has other addresses");
        self.owned = owned;
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub(crate) fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        match &mut self.shared {
            Shared::Itself => None,
            Shared::Addresses(programs) => {
                core::mem::take(&mut programs.taken_changed).then(|| programs.taken.clone())
            }
            Shared::Ports(steering) => steering.take_taken(),
        }
    }
}

impl Programs {
    fn new(
        map: Arc<Addresses>,
        gateway: Option<Gateway>,
        prefix_len: u8,
        latest: Arc<Latest<View>>,
    ) -> io::Result<Self> {
        // Those of an IOKernel that ran before.
        let before = map.entries(MOST_ADDRESSES as usize)?;
        let entered: HashSet<IpAddr> = before.into_iter().map(|(key, _)| program::address(key)).collect();
        let until = Instant::now() + KEPT;
        Ok(Self {
            senders: gateway.map_or_else(Vec::new, |gateway| gateway.networks(prefix_len)),
            map,
            theirs: entered.iter().map(|&ip| (ip, Some(until))).collect(),
            entered,
            hosts: HashSet::new(),
            hops: HashSet::new(),
            stations: HashMap::new(),
            gateway,
            linux: Linux::new()?,
            news: News::new()?,
            latest,
            view: View::default(),
            full: false,
            taken: HashSet::new(),
            // What an earlier attachment has told is out of date, also if there is nothing now.
            taken_changed: true,
            unfollowed: None,
        })
    }

    fn set(&mut self, programs: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let registered: HashSet<IpAddr> = programs.into_iter().collect();
        for (ip, until) in &mut self.theirs {
            if until.is_none() && !registered.contains(ip) {
                *until = Some(now + KEPT);
            }
        }
        self.theirs.extend(registered.into_iter().map(|ip| (ip, None)));
        self.forget_earliest();
    }

    /// Keeps to the maximum of addresses of ended programs.
    fn forget_earliest(&mut self) {
        let ended = self.theirs.iter().filter_map(|(&ip, &until)| Some((until?, ip)));
        let mut ended: Vec<(Instant, IpAddr)> = ended.collect();
        let excess = ended.len().saturating_sub(MOST_ENDED);
        if excess > 0 {
            ended.select_nth_unstable(excess - 1);
            ended[..excess].iter().for_each(|(_, ip)| _ = self.theirs.remove(ip));
        }
    }

    /// Makes the map have the addresses of programs that are not Linux's.
    fn enter(&mut self, port: &str) {
        let wanted = |ip: &IpAddr| self.theirs.contains_key(ip) && !self.hosts.contains(ip);
        let gone: Vec<IpAddr> = self.entered.iter().copied().filter(|ip| !wanted(ip)).collect();
        let mut new: Vec<IpAddr> =
            self.theirs.keys().copied().filter(|ip| wanted(ip) && !self.entered.contains(ip)).collect();
        for ip in gone {
            if self.map.remove(program::key(ip)).is_ok() {
                self.entered.remove(&ip);
            }
        }
        // Those of registered programs first: false is before true.
        new.sort_by_key(|ip| self.theirs[ip].is_some());
        let mut full = false;
        for ip in new {
            match self.map.set(program::key(ip), 0) {
                Ok(()) => _ = self.entered.insert(ip),
                // It is tried again at each look.
                Err(error) => {
                    if !full && !self.full {
                        tracing::error!(port, %ip, %error, "frames for this and other addresses of programs go to Linux: the map takes no more");
                    }
                    full = true;
                }
            }
        }
        self.full = full;
    }

    /// Reads what Linux has, and puts changes into effect.
    fn look(&mut self, port: &str, index: u32, own: MacAddr, now: Instant) -> io::Result<()> {
        let hosts = self.linux.addresses()?;
        let mut ways = self.linux.ways(index, &self.senders)?;
        ways.note(port, &mut self.unfollowed);
        let routers = core::mem::take(&mut ways.routers);
        let ways = self.gateway.map_or_else(Vec::new, |gateway| followed(gateway, ways));
        let hops: HashSet<IpAddr> = ways.iter().map(|way| way.via).collect();
        for &via in &hops {
            if let Some(known) = self.linux.neighbour(index, via)?
                && self.stations.insert(via, known.mac) != Some(known.mac)
            {
                tracing::info!(port, next_hop = %via, mac = %known.mac, "frames of programs to their gateway go there");
            }
        }
        for ip in hosts.iter().filter(|ip| self.theirs.get(ip) == Some(&None) && !self.hosts.contains(ip)) {
            tracing::error!(port, %ip, "Linux has the address of a program, and gets its frames from now on; remove one of them");
        }
        let taken: HashSet<IpAddr> =
            hosts.iter().copied().chain(hops.iter().copied()).chain(routers).collect();
        self.taken_changed |= taken != self.taken;
        (self.taken, self.hosts, self.hops) = (taken, hosts, hops.clone());
        self.theirs.retain(|_, until| until.is_none_or(|until| now < until));
        self.enter(port);
        // A next hop is reached by its own station, whichever route has its address.
        let itself =
            hops.into_iter().map(|via| Way { from: Prefix::all(via.is_ipv4()), to: Prefix::one(via), via });
        let station = |way: Way<IpAddr>| {
            let Way { from, to, via } = way;
            Way { from, to, via: self.stations.get(&via).copied() }
        };
        let view = View { own, ways: itself.chain(ways).map(station).collect() };
        if view != self.view {
            self.view = view.clone();
            self.latest.set(view);
        }
        Ok(())
    }

    /// Makes Linux find and check the stations of next hops.
    fn use_hops(&mut self, index: u32) {
        for &ip in self.hops.difference(&self.hosts) {
            self.linux.use_unless_permanent(index, ip);
        }
    }
}

/// Returns the ways to routers that are followed, and one to the gateway itself for a family
/// without a default route.
fn followed(gateway: Gateway, ways: Ways) -> Vec<Way<IpAddr>> {
    let mut longer = [0; 2];
    let mut followed: Vec<Way<IpAddr>> =
        ways.ways.into_iter().filter_map(|Way { from, to, via }| Some(Way { from, to, via: via? })).collect();
    followed.retain(|way| {
        let longer = &mut longer[usize::from(way.to.is_ipv4)];
        *longer += usize::from(way.to.len() > 0);
        way.to.len() == 0 || *longer <= MOST_ROUTES
    });
    for via in [Some(gateway.ip.into()), gateway.ip6.map(IpAddr::V6)].into_iter().flatten() {
        let all = Prefix::all(IpAddr::is_ipv4(&via));
        if !followed.iter().any(|way| (way.from, way.to) == (all, all)) {
            followed.push(Way { from: all, to: all, via });
        }
    }
    followed
}

#[cfg(test)]
mod tests;
