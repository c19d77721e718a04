//! The port follows its interface: an interface that is deleted, or moved to another network
//! namespace, takes the sockets' device away for good, and the next one of that name gets new ones.
//!
//! Owns [`Follower`], the control thread's side: it finds out what has become of the interface, and
//! makes a whole port anew, as the start does. And [`Exchange`], by which that port reaches the
//! polling thread, which uses its parts from the next poll on and leaves those it has used before
//! to the control thread: to close a socket takes the kernel milliseconds. While there is no
//! interface the port has no queues: it drops what it is sent, and the switch counts that. What
//! Linux has of an interface that it goes on using is followed by [`Sharing`], which each
//! attachment has anew; addresses of programs go from one to the next.
//!
//! | sockets have lost their device | interface of the name | the port |
//! |---|---|---|
//! | no | the one in use | goes on |
//! | no | none: renamed | goes on, since frames still pass |
//! | no | another one | lets go of the one in use, and takes that one at the next look |
//! | yes | none | is absent until there is one |
//! | yes | any, also one of the same number: moved away and back | takes it at the next look, when the sockets it had are closed |
//!
//! An interface that the port cannot use yet (it is down, its MTU is too small) is tried at each
//! look; each new reason is logged once.

use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Instant;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Listen;
use tailwater_wire::MacAddr;

use super::ports::holders::Keeper;
use super::sharing::{Before, ip4s};
use super::{Share, Sharing, XdpAccount, XdpPort, XdpSpec};
use crate::sys::interface::Interface;
use crate::{Context, Port};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Follower {
    spec: XdpSpec,
    context: Context,
    account: Arc<XdpAccount>,
    exchange: Arc<Exchange>,
    /// `None` while the port is absent.
    used: Option<Used>,
    /// If Linux goes on using the interface, and the port is not absent.
    sharing: Option<Sharing>,
    /// What the last attachment leaves to the next one, while the port is absent.
    before: Before,
    /// Addresses of the programs.
    programs: Vec<IpAddr>,
    /// The interface's own MAC address, as it was told last.
    mac: Option<MacAddr>,
    /// Why an interface of the name could not be used, as it was logged last.
    refused: Option<String>,
}

/// The interface that the port uses.
#[derive(Debug)]
struct Used {
    index: u32,
    /// A socket on it; gone with the port.
    socket: Weak<OwnedFd>,
    is_renamed: bool,
}

/// What has become of the interface in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Same,
    Renamed,
    Replaced,
    Gone,
}

impl Fate {
    /// Returns the fate of interface `index`, where `named` is the one that has the name now.
    fn of(index: u32, is_lost: bool, named: Option<u32>) -> Self {
        match named {
            _ if is_lost => Self::Gone,
            None => Self::Renamed,
            Some(named) if named == index => Self::Same,
            Some(_) => Self::Replaced,
        }
    }
}

impl Used {
    fn of(port: &XdpPort, index: u32) -> Option<Self> {
        let socket = Arc::downgrade(port.queues.first()?.socket());
        Some(Self { index, socket, is_renamed: false })
    }

    /// Returns whether the sockets have lost their device: the kernel leaves each ENETDOWN as its
    /// error when the device is unregistered. Reading takes it.
    fn is_lost(&self) -> bool {
        let Some(socket) = self.socket.upgrade() else { return false };
        sockopt::socket_error(&*socket) == Ok(Err(Errno::NETDOWN))
    }
}

impl Follower {
    /// Returns the follower of a started port on interface `index`.
    pub(super) fn of(port: &XdpPort, context: &Context, index: u32) -> Option<Self> {
        Some(Self {
            spec: port.spec.clone(),
            context: *context,
            account: Arc::clone(&port.account),
            exchange: Arc::clone(&port.exchange),
            used: Some(Used::of(port, index)?),
            sharing: port.sharing.take(),
            before: Before::Nothing,
            programs: Vec::new(),
            mac: port.mac,
            refused: None,
        })
    }

    /// Returns whether programs share Linux's addresses there, and [claim](Self::claim) ports.
    pub(crate) fn shares_ports(&self) -> bool {
        self.spec.share == Share::Ports
    }

    /// Notes that these are the addresses of the programs.
    pub(crate) fn set_programs(&mut self, addresses: &[IpAddr]) {
        self.programs = addresses.to_vec();
        self.share();
    }

    fn share(&mut self) {
        let programs = self.programs.iter().copied();
        match (&mut self.sharing, &mut self.before) {
            (Some(sharing), _) => sharing.set_programs(programs),
            (None, Before::Ports(absence)) => absence.set_programs(&ip4s(programs)),
            (None, _) => {}
        }
    }

    /// Returns what has the ports of programs, if they share Linux's addresses.
    fn keeper(&mut self) -> Option<&mut dyn Keeper> {
        match (&mut self.sharing, &mut self.before) {
            (Some(sharing), _) => Some(sharing.steering()?),
            (None, Before::Ports(absence)) => Some(&mut **absence),
            (None, _) => None,
        }
    }

    /// Gives a program the ports that it requests, if programs share Linux's addresses; returns
    /// those for its own connections. `None` if all ports are each program's own.
    ///
    /// # Errors
    /// In words: which port it cannot have, and why.
    pub(crate) fn claim(
        &mut self,
        id: RuntimeId,
        place: (Ipv4Addr, Option<Ipv6Addr>),
        listens: &[Listen],
    ) -> Result<Option<(u16, u16)>, String> {
        if !self.shares_ports() {
            return Ok(None);
        }
        match self.sharing.as_mut().and_then(Sharing::steering) {
            Some(steering) => steering.claim(id, place, listens).map(Some),
            None => Err(format!(
                "there is no interface {} at the moment; try again when there is",
                self.spec.interface
            )),
        }
    }

    /// Takes the ports of an instance that is registered no more, or was refused.
    pub(crate) fn release(&mut self, id: RuntimeId) {
        if let Some(keeper) = self.keeper() {
            keeper.release(id);
        }
    }

    /// Notes that programs wait for the next IOKernel from now on: what they have stays theirs.
    pub(crate) fn keep_programs(&mut self) {
        if let Some(keeper) = self.keeper() {
            keeper.keep_programs();
        }
    }

    /// Leaves to another IOKernel what it has taken over.
    pub(crate) fn leave(&mut self) {
        // The programs end here and go on there.
        self.keep_programs();
        if let Some(steering) = self.sharing.as_mut().and_then(Sharing::steering) {
            steering.leave();
        }
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub(crate) fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        self.sharing.as_mut()?.take_taken()
    }

    /// Returns the interface's own MAC address, which no program may have, if it has changed since
    /// the last call; the polling thread learns of it, too.
    pub(crate) fn take_mac(&mut self) -> Option<MacAddr> {
        let mac = self.sharing.as_ref()?.mac();
        if self.mac.replace(mac) == Some(mac) {
            return None;
        }
        self.exchange.post_mac(mac);
        Some(mac)
    }

    /// Keeps up with what Linux has of the interface, if it is time.
    pub(crate) fn keep_up(&mut self, now: Instant) {
        if let Some(sharing) = &mut self.sharing {
            if let Some(steering) = sharing.steering() {
                steering.begin();
            }
            sharing.follow(now);
        }
    }

    /// Returns whether the port uses an interface.
    pub(crate) fn is_attached(&self) -> bool {
        self.used.is_some()
    }

    /// Looks what has become of the interface. If the port lets go of it or takes another one, the
    /// result is copies of the port's new devices, and the polling thread is to be woken.
    pub(crate) fn follow(&mut self, interface: &Interface) -> Option<Vec<OwnedFd>> {
        self.exchange.drop_old();
        let named = interface.index().ok();
        if let Some(used) = &mut self.used {
            // An IOKernel before this one may have taken the sockets' error.
            let is_here = named.is_some() || interface.name_of(used.index).is_some();
            let fate = Fate::of(used.index, used.is_lost() || !is_here, named);
            let was_renamed = core::mem::replace(&mut used.is_renamed, fate == Fate::Renamed);
            match fate {
                Fate::Same => return None,
                Fate::Renamed if was_renamed => return None,
                Fate::Renamed => {
                    self.log_rename(interface);
                    return None;
                }
                Fate::Replaced => self.detach("another interface has its name"),
                Fate::Gone => {
                    self.detach("the interface is gone, deleted or moved to another network namespace");
                }
            }
            // The polling thread still has the sockets; they are closed before the next look.
            return Some(Vec::new());
        }
        self.attach(named?)
    }

    fn log_rename(&self, interface: &Interface) {
        let port = &self.spec.interface;
        let index = self.used.as_ref().map_or(0, |used| used.index);
        let name = interface.name_of(index).unwrap_or_default();
        tracing::warn!(port, name, "the interface has another name now, and the port goes on with it");
    }

    /// Lets go of the interface.
    fn detach(&mut self, why: &str) {
        let port = &self.spec.interface;
        tracing::warn!(port, "{why}: no frames pass until there is an interface {port}, which is then used");
        if let Some(sharing) = self.sharing.take() {
            self.before = sharing.into_programs();
        }
        (self.used, self.refused) = (None, None);
        self.account.absences.fetch_add(1, Ordering::Relaxed);
        self.account.absent.store(true, Ordering::Relaxed);
        self.exchange.post(XdpPort::new(self.spec.clone()));
    }

    /// Takes interface `index`; returns copies of the port's new devices.
    fn attach(&mut self, index: u32) -> Option<Vec<OwnedFd>> {
        match self.make(index) {
            Ok((port, used, devices)) => {
                (self.used, self.sharing, self.refused) = (Some(used), port.sharing.take(), None);
                let before = core::mem::take(&mut self.before);
                if let Some(sharing) = &mut self.sharing {
                    sharing.resume(before);
                }
                self.share();
                self.account.absent.store(false, Ordering::Relaxed);
                self.exchange.post(port);
                let port = &self.spec.interface;
                tracing::info!(port, "there is an interface of that name again: frames pass");
                Some(devices)
            }
            Err(why) => {
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!("an interface of the name is here, and cannot be used yet: {why}");
                    self.refused = Some(why);
                }
                None
            }
        }
    }

    fn make(&self, index: u32) -> Result<(XdpPort, Used, Vec<OwnedFd>), String> {
        let mut port = XdpPort::new(self.spec.clone());
        port.account = Arc::clone(&self.account);
        // The control thread tries again at the next look.
        port.resumes = true;
        port.start(&self.context).map_err(|error| error.to_string())?;
        let copies = port.devices().into_iter().map(|device| fcntl_dupfd_cloexec(device, 0));
        let devices =
            copies.collect::<Result<_, _>>().map_err(|e| format!("cannot copy a descriptor: {e}"))?;
        let used = Used::of(&port, index).ok_or_else(|| format!("{index} has no queue"))?;
        Ok((port, used, devices))
    }
}

/// A place for the parts that the polling thread is to use.
///
/// | word | written by | read by |
/// |---|---|---|
/// | `news` | true by the control thread, false by the polling thread, both with the lock | the polling thread at each poll, relaxed: the lock orders what it announces |
/// | `slot` | each, with the lock, for which the polling thread does not wait | each |
#[derive(Default)]
pub(super) struct Exchange {
    news: AtomicBool,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    next: Option<XdpPort>,
    /// The interface's own, if it has changed since `next` was made.
    mac: Option<MacAddr>,
    /// To be closed by the control thread.
    old: Vec<XdpPort>,
}

impl core::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Exchange").field("news", &self.news).finish_non_exhaustive()
    }
}

impl Exchange {
    #[inline(always)]
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, port: XdpPort) {
        let mut slot = self.lock();
        let unused = slot.next.replace(port);
        slot.mac = None;
        self.news.store(true, Ordering::Relaxed);
        drop(slot);
        drop(unused);
    }

    fn post_mac(&self, mac: MacAddr) {
        let mut slot = self.lock();
        slot.mac = Some(mac);
        self.news.store(true, Ordering::Relaxed);
    }

    fn drop_old(&self) {
        let old = core::mem::take(&mut self.lock().old);
        drop(old);
    }
}

impl XdpPort {
    /// Goes on with the parts that the control thread has made, if they can be had at once.
    #[cold]
    pub(super) fn renew(&mut self) {
        let exchange = Arc::clone(&self.exchange);
        let mut slot = match exchange.slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is held for a moment; the next poll looks again.
            Err(TryLockError::WouldBlock) => return,
        };
        exchange.news.store(false, Ordering::Relaxed);
        let mac = slot.mac.take();
        let Some(mut fresh) = slot.next.take() else {
            self.mac = mac.or(self.mac);
            return;
        };
        // The shares of the senders are by these counts, which never go back.
        self.sent.resize(self.sent.len().max(self.queues.len()), 0);
        for (sent, queue) in self.sent.iter_mut().zip(&self.queues) {
            *sent = queue.backlog().0;
        }
        for (&sent, queue) in self.sent.iter().zip(&mut fresh.queues) {
            queue.count_from(sent);
        }
        (self.mac, self.is_veth) = (mac.or(fresh.mac), fresh.is_veth);
        core::mem::swap(&mut self.attached, &mut fresh.attached);
        core::mem::swap(&mut self.translation, &mut fresh.translation);
        core::mem::swap(&mut self.queues, &mut fresh.queues);
        core::mem::swap(&mut self.events, &mut fresh.events);
        self.first = 0;
        slot.old.push(fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_lets_go_only_of_an_interface_that_has_lost_its_sockets_or_its_name() {
        for (is_lost, named, fate) in [
            (false, Some(3), Fate::Same),
            (false, None, Fate::Renamed),
            (false, Some(4), Fate::Replaced),
            (true, None, Fate::Gone),
            // Moved to another namespace and back between two looks.
            (true, Some(3), Fate::Gone),
            (true, Some(4), Fate::Gone),
        ] {
            assert_eq!(Fate::of(3, is_lost, named), fate, "{is_lost} {named:?}");
        }
    }

    #[test]
    fn another_mac_address_and_kind_of_interface_are_taken_over_with_the_port() {
        let (told, of_port) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let mut port = XdpPort::new("here0".parse().unwrap());
        port.exchange.post_mac(told);
        port.renew();
        assert_eq!((port.mac(), port.has_local_peer()), (Some(told), false));
        let mut next = XdpPort::new("here0".parse().unwrap());
        (next.mac, next.is_veth) = (Some(of_port), true);
        port.exchange.post_mac(told);
        port.exchange.post(next);
        port.renew();
        assert_eq!((port.mac(), port.has_local_peer()), (Some(of_port), true));
    }

    #[test]
    fn what_the_polling_thread_has_not_taken_is_replaced_and_what_it_used_is_left_to_the_other() {
        let mut port = XdpPort::new("no-such-if".parse().unwrap());
        assert!(!port.exchange.has_news());
        port.exchange.post(XdpPort::new("first".parse().unwrap()));
        port.exchange.post(XdpPort::new("second".parse().unwrap()));
        assert!(port.exchange.has_news());
        port.renew();
        assert!(!port.exchange.has_news());
        let old = |port: &XdpPort| {
            port.exchange.lock().old.iter().map(|port| port.spec.interface.clone()).collect::<Vec<_>>()
        };
        assert_eq!(old(&port), ["second"]);
        port.exchange.drop_old();
        assert!(old(&port).is_empty());
        // Held by the other thread: the news stay.
        port.exchange.post(XdpPort::new("third".parse().unwrap()));
        let exchange = Arc::clone(&port.exchange);
        let held = exchange.lock();
        port.renew();
        drop(held);
        assert!(port.exchange.has_news());
    }
}
