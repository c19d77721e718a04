//! Locks of the cores that the IOKernels of this machine use, so that no two use the same core by
//! mistake.
//!
//! The lock of core N is the abstract socket `@tailwater-core-N`, which Linux frees when the
//! process ends, however it does. The socket listens: a process that connects to it learns from
//! Linux which process has the lock. Any user can take such a name, so only locks of root and of
//! the caller's own user count. A network namespace has abstract names of its own: IOKernels of two
//! containers may not see each other's locks.
//!
//! Each look leaves a connection in the queue of the lock until the owner accepts it, which a
//! thread of the owner does ([`CoreLocks::keep`]). A lock whose owner cannot be learnt, because its
//! queue is full or it does not listen, is heeded: the owner may be an IOKernel whose locks count.
//!
//! Locks do not pass in a takeover. The new process waits until the old one has ended, and then
//! takes one after the other.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use std::io;
use std::time::{Duration, Instant};
use tailwater_shm::control::Peer;

/// Maximum number of looks at a lock whose owner is about to listen, or has just ended.
const LOOKS: u32 = 20;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Maximum number of looks that wait for the owner; Linux may keep fewer (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Maximum number of looks at one lock that the owner accepts at once.
const ACCEPTS: usize = 256;
/// Time between two rounds of the owner: looks without end cost it little.
const ROUND: Duration = Duration::from_millis(50);
/// After what time locks that are still missing are worth a warning: a takeover takes less.
const PATIENCE: Duration = Duration::from_secs(180);

/// Another IOKernel uses a core.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "core {core} is used by another IOKernel, {}: stop it, choose other cores (--core, --managed-cores), \
     or let both use it (--share-cores)",
    describe(*core, *pid)
)]
pub struct CoreLocked {
    /// The core.
    pub core: u16,
    /// The process of the other IOKernel; `None` if that cannot be learnt.
    pub pid: Option<i32>,
}

fn describe(core: u16, pid: Option<i32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => format!("a process that does not answer (`ss -xlp | grep tailwater-core-{core}` names it)"),
    }
}

/// Locks of cores; given up on drop, and when the process ends.
#[derive(Debug, Default)]
pub struct CoreLocks {
    sockets: Vec<OwnedFd>,
    /// Cores of the IOKernel that this one takes over from.
    missing: Vec<u16>,
}

impl CoreLocks {
    /// Locks the cores of an IOKernel by number: those that it lends, and its own.
    ///
    /// # Errors
    /// If another IOKernel of this user or of root has locked one of them.
    pub fn take(cores: impl IntoIterator<Item = u16>) -> Result<Self, CoreLocked> {
        Self::take_beside(None, cores)
    }

    /// As [`take`](Self::take), but leaves the IOKernel of this process the cores that it has
    /// locked: the caller is to take over from it.
    ///
    /// # Errors
    /// If a third IOKernel of this user or of root has locked one of them.
    pub fn take_beside(
        tolerated: Option<i32>,
        cores: impl IntoIterator<Item = u16>,
    ) -> Result<Self, CoreLocked> {
        let mut locks = Self::default();
        for core in cores {
            match lock(core) {
                Ok(Attempt::Taken(socket)) => locks.sockets.push(socket),
                Ok(Attempt::Other { pid }) if pid.is_some() && pid == tolerated => locks.missing.push(core),
                Ok(Attempt::Other { pid }) => return Err(CoreLocked { core, pid }),
                Ok(Attempt::Stranger { user }) => {
                    tracing::warn!(core, user, "another user has the lock of this core; not heeded");
                }
                Err(error) => tracing::warn!(core, %error, "cannot lock this core"),
            }
        }
        Ok(locks)
    }

    /// Keeps the locks until the process ends, on a thread of its own, which also takes those that
    /// the IOKernel [beside](Self::take_beside) gives up.
    ///
    /// # Errors
    /// If Linux refuses a thread; the locks are given up then.
    pub fn keep(self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("tailwater-locks".to_owned());
        thread.spawn(move || self.serve()).map(drop)
    }

    fn serve(mut self) {
        let start = Instant::now();
        let mut has_warned = false;
        loop {
            self.take_missing();
            if !self.missing.is_empty() && !has_warned && start.elapsed() > PATIENCE {
                has_warned = true;
                tracing::warn!(
                    cores = ?self.missing,
                    "another process still has the locks of these cores; `ss -xlp | grep tailwater-core` names it: stop it"
                );
            }
            self.accept_looks();
            std::thread::sleep(ROUND);
        }
    }

    fn take_missing(&mut self) {
        let sockets = &mut self.sockets;
        self.missing.retain(|&core| match lock(core) {
            Ok(Attempt::Taken(socket)) => {
                sockets.push(socket);
                false
            }
            Ok(Attempt::Stranger { .. }) => false,
            // Not free yet.
            Ok(Attempt::Other { .. }) | Err(_) => true,
        });
    }

    /// Ends the looks that wait; waits for the first one if no lock is missing.
    fn accept_looks(&self) {
        let mut watched: Vec<_> =
            self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After an error, the next round looks again.
        let _ = poll(&mut watched, (!self.missing.is_empty()).then_some(&now));
        for socket in &self.sockets {
            let look = |_: &usize| accept_with(socket, SocketFlags::CLOEXEC).is_ok();
            (0..ACCEPTS).take_while(look).for_each(drop);
        }
    }
}

enum Attempt {
    Taken(OwnedFd),
    /// Of an IOKernel whose locks count.
    Other {
        /// `None` if Linux does not say.
        pid: Option<i32>,
    },
    /// Of a user whose locks do not count.
    Stranger {
        user: u32,
    },
}

fn lock(core: u16) -> Result<Attempt, Errno> {
    let address = SocketAddrUnix::new_abstract_name(format!("tailwater-core-{core}").as_bytes())?;
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    };
    for _ in 0..LOOKS {
        let own = socket()?;
        match bind(&own, &address) {
            Ok(()) => {
                listen(&own, BACKLOG)?;
                return Ok(Attempt::Taken(own));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error),
        }
        let look = socket()?;
        if connect(&look, &address).is_ok() {
            // The process that listened.
            let owner = Peer::of(&look)?;
            let counts = owner.uid == 0 || owner.uid == geteuid().as_raw();
            return Ok(match counts {
                true => Attempt::Other { pid: owner.pid },
                false => Attempt::Stranger { user: owner.uid },
            });
        }
        // Not listening yet, ended just now, or a full queue of connections like this one.
        std::thread::sleep(LOOK);
    }
    Ok(Attempt::Other { pid: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tailwater_testkit::{eventually, until};

    #[test]
    fn a_core_is_locked_once_until_the_lock_is_given_up() {
        let (first, second) = (unused_core(), unused_core());
        let locks = CoreLocks::take([first]).unwrap();
        let refused = CoreLocks::take([second, first]).unwrap_err();
        assert_eq!(refused, CoreLocked { core: first, pid: Some(std::process::id() as i32) });
        // What was locked before the refusal is free again.
        drop(take_in_time(&[second]));
        drop(locks);
        take_in_time(&[first, second]);
    }

    /// Returns a core that no machine has and no other test locks, also not one in another PID
    /// namespace that shares this network: a socket that is open until this process ends is bound
    /// to a name with its number.
    fn unused_core() -> u16 {
        static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
        let socket = new_socket();
        let reserve = |core: &u16| {
            let name = format!("tailwater-test-core-{core}");
            bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).is_ok()
        };
        let core = (60_001..u16::MAX).find(reserve).expect("a number is free");
        RESERVED.lock().unwrap().push(socket);
        core
    }

    fn address(core: u16) -> SocketAddrUnix {
        SocketAddrUnix::new_abstract_name(format!("tailwater-core-{core}").as_bytes()).unwrap()
    }

    fn new_socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn a_lock_whose_owner_cannot_be_learnt_is_heeded() {
        let core = unused_core();
        let silent = new_socket();
        bind(&silent, &address(core)).unwrap();
        let refused = CoreLocks::take([core]).unwrap_err();
        assert_eq!(refused, CoreLocked { core, pid: None });
        assert!(refused.to_string().contains(&format!("ss -xlp | grep tailwater-core-{core}")), "{refused}");
    }

    #[test]
    fn a_lock_is_heeded_with_a_full_queue_of_looks_which_the_owner_accepts() {
        let core = unused_core();
        let locks = CoreLocks::take([core]).unwrap();
        let look = || connect(new_socket(), &address(core));
        let full = (0..=BACKLOG + 1).find_map(|_| look().err());
        assert_eq!(full, Some(Errno::AGAIN));
        assert_eq!(CoreLocks::take([core]).unwrap_err(), CoreLocked { core, pid: None });
        locks.keep().unwrap();
        until("the owner accepts a look", || {
            CoreLocks::take([core]).unwrap_err().pid == Some(std::process::id() as i32)
        });
    }

    #[test]
    fn cores_of_the_one_before_are_taken_one_by_one_when_it_gives_them_up() {
        let (first, second) = (unused_core(), unused_core());
        let (one, other) = (CoreLocks::take([first]).unwrap(), CoreLocks::take([second]).unwrap());
        let mut locks = CoreLocks::take_beside(Some(std::process::id() as i32), [first, second]).unwrap();
        locks.take_missing();
        assert_eq!((locks.sockets.len(), &*locks.missing), (0, &[first, second][..]));
        for (given_up, left) in [(one, vec![second]), (other, vec![])] {
            drop(given_up);
            // A process that another test is just starting may have a copy.
            until("the core is taken", || {
                locks.take_missing();
                locks.missing == left
            });
        }
        assert_eq!(locks.sockets.len(), 2);
    }

    /// Takes cores that were given up. A process that another test is just starting may have a copy
    /// of a lock until it executes its program.
    fn take_in_time(cores: &[u16]) -> CoreLocks {
        eventually("the cores are free", || CoreLocks::take(cores.iter().copied()).ok())
    }
}
