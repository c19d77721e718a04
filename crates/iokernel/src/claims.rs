//! Which cores the IOKernels of this machine use, so that two do not use the same ones unawares.
//!
//! A claim on core N is the abstract socket `@tailwater-core-N`, which Linux frees when the process
//! ends, however it does. The socket listens: a process that connects to it learns from Linux which
//! process has the claim. Any user can take such a name, so only claims of root and of the caller's
//! own user count. A network namespace has abstract names of its own: IOKernels of two containers
//! may not see each other's claims.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use std::time::Duration;
use tailwater_shm::control;

use crate::machine::Cores;

/// Maximum number of looks at a claim whose owner is about to listen, or has just ended.
const LOOKS: u32 = 20;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Another IOKernel uses a core.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "core {core} is used by another IOKernel, process {pid}: stop it, choose other cores (--core, --managed-cores), \
     or let both use it (--share-cores)"
)]
pub struct CoreClaimed {
    /// The core.
    pub core: u16,
    /// The process of the other IOKernel.
    pub pid: i32,
}

/// Claims on cores; given up on drop, and when the process ends.
#[derive(Debug)]
pub struct Claims {
    _sockets: Vec<OwnedFd>,
}

impl Claims {
    /// Claims the cores of an IOKernel: those that it lends, and its own.
    ///
    /// # Errors
    /// If another IOKernel of this user or of root has claimed one of them.
    pub fn of(cores: &Cores) -> Result<Self, CoreClaimed> {
        Self::take(cores.managed_numbers().into_iter().chain([cores.iokernel.0]))
    }

    /// As [`of`](Self::of), but leaves the IOKernel at `socket` the cores that it has claimed: the
    /// caller is to take over from it.
    ///
    /// # Errors
    /// If a third IOKernel of this user or of root has claimed one of them.
    pub fn beside(socket: &str, cores: &Cores) -> Result<Self, CoreClaimed> {
        // Without an IOKernel there, the takeover fails.
        let pid = control::dial(socket).ok().and_then(|other| Some(socket_peercred(other).ok()?.pid));
        let pid = pid.map(|pid| pid.as_raw_nonzero().get());
        Self::take_beside(pid, cores.managed_numbers().into_iter().chain([cores.iokernel.0]))
    }

    /// Claims cores by number.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn take(cores: impl IntoIterator<Item = u16>) -> Result<Self, CoreClaimed> {
        Self::take_beside(None, cores)
    }

    fn take_beside(
        tolerated: Option<i32>,
        cores: impl IntoIterator<Item = u16>,
    ) -> Result<Self, CoreClaimed> {
        let mut sockets = Vec::new();
        for core in cores {
            match claim(core) {
                Ok(Claim::Taken(socket)) => sockets.push(socket),
                Ok(Claim::Other { pid }) if Some(pid) == tolerated => {}
                Ok(Claim::Other { pid }) => return Err(CoreClaimed { core, pid }),
                Ok(Claim::Stranger { user }) => {
                    tracing::warn!(core, user, "another user claims this core; not heeded");
                }
                Err(error) => tracing::warn!(core, %error, "cannot claim this core"),
            }
        }
        Ok(Self { _sockets: sockets })
    }
}

enum Claim {
    Taken(OwnedFd),
    /// Of an IOKernel whose claims count.
    Other {
        pid: i32,
    },
    /// Of a user whose claims do not count.
    Stranger {
        user: u32,
    },
}

fn claim(core: u16) -> Result<Claim, Errno> {
    let address = SocketAddrUnix::new_abstract_name(format!("tailwater-core-{core}").as_bytes())?;
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    };
    for _ in 0..LOOKS {
        let own = socket()?;
        match bind(&own, &address) {
            Ok(()) => {
                listen(&own, 1)?;
                return Ok(Claim::Taken(own));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error),
        }
        let look = socket()?;
        if connect(&look, &address).is_ok() {
            // The process that listened.
            let owner = socket_peercred(&look)?;
            let counts = owner.uid.is_root() || owner.uid == geteuid();
            return Ok(match counts {
                true => Claim::Other { pid: owner.pid.as_raw_nonzero().get() },
                false => Claim::Stranger { user: owner.uid.as_raw() },
            });
        }
        // Not listening yet, ended just now, or a full backlog of connections like this one.
        std::thread::sleep(LOOK);
    }
    Err(Errno::ADDRINUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_claimed_once_until_the_claim_is_given_up() {
        // No machine has these cores, and no other test claims them.
        let (first, second) = (60_001, 60_002);
        let claims = Claims::take([first]).unwrap();
        let refused = Claims::take([second, first]).unwrap_err();
        assert_eq!(refused, CoreClaimed { core: first, pid: std::process::id() as i32 });
        // What was claimed before the refusal is free again.
        drop(take_in_time(&[second]));
        drop(claims);
        take_in_time(&[first, second]);
    }

    /// Takes cores that were given up. A process that another test is just starting may have a copy
    /// of a claim until it executes its program.
    fn take_in_time(cores: &[u16]) -> Claims {
        let start = std::time::Instant::now();
        loop {
            match Claims::take(cores.iter().copied()) {
                Ok(claims) => return claims,
                Err(refused) => assert!(start.elapsed() < Duration::from_secs(120), "{refused}"),
            }
            std::thread::sleep(LOOK);
        }
    }
}
