//! The connection to an IOKernel: registration. Its loss, and another registration after it, are in
//! [`watch`].
//!
//! Owns the control socket: when this socket closes, the IOKernel ends the registration. All of it
//! runs on ordinary OS threads.

mod instances;
mod watch;

#[cfg(feature = "signal")]
pub use instances::{end_earlier, is_replaced};

use crate::config::{Config, OnIoKernelLoss};
use crate::error::AttachError;
use crate::net::{self, Ipv6Config, Mode, NetConfig};
use crate::records::iokernel::{IoKernel, WakePlaces};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::sync::mpsc::channel;
use std::time::Duration;
use tailwater_shm::board::WakeBoard;
use tailwater_shm::control::{self, ClientMessage, ControlError, Instance, Register, ServerMessage, Welcome};
use tailwater_shm::layout::{Region, RuntimeEnds, VERSION};
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::MAX_PACKET;

/// Maximum time until the IOKernel answers at the start of a program. Its control thread is never
/// busy for long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A registration with an IOKernel.
#[derive(Debug)]
pub struct Connection {
    /// The present registration, or the last one.
    registration: Registration,
    path: String,
    /// What was asked for.
    request: Register,
    /// CPUs of the process before it left the managed ones; `None` if they cannot be read.
    allowed: Option<CpuSet>,
    /// Those to which its threads that are no kthreads were moved last.
    others: Option<CpuSet>,
    on_loss: OnIoKernelLoss,
    /// How long another IOKernel is waited for; `None`: for ever.
    wait: Option<Duration>,
}

/// The socket of a registration, which ends with it, and what the IOKernel said.
#[derive(Debug)]
struct Registration {
    control: OwnedFd,
    welcome: Welcome,
}

/// What an IOKernel sends with its welcome.
struct Accepted {
    welcome: Welcome,
    region: Mapping,
    doorbell: OwnedFd,
    places: Option<WakePlaces>,
}

/// Returns the error that a failed exchange with the IOKernel at `socket` is.
fn failed(socket: &str) -> impl Fn(ControlError) -> AttachError {
    move |error| {
        let socket = socket.to_owned();
        match error {
            ControlError::Closed => AttachError::Closed { socket },
            ControlError::WouldBlock => AttachError::NoAnswer { socket },
            ControlError::System { action, source, hint, .. } => {
                AttachError::Socket { socket, action, source: source.into(), hint }
            }
            ControlError::OtherUser { theirs, ours, .. } => AttachError::OtherUser { socket, theirs, ours },
            ControlError::Address { why, .. } => AttachError::Socket {
                socket,
                action: "use this address",
                source: Errno::INVAL.into(),
                hint: format!("; {why}"),
            },
            error @ (ControlError::Malformed { .. }
            | ControlError::TooLong
            | ControlError::Descriptors
            | ControlError::TooOften) => AttachError::Protocol { socket, what: error.to_string() },
        }
    }
}

fn broken(socket: &str, what: String) -> AttachError {
    AttachError::Protocol { socket: socket.to_owned(), what }
}

fn unusable<E: std::error::Error + Send + Sync + 'static>(socket: &str) -> impl Fn(E) -> AttachError {
    move |error| AttachError::Memory { socket: socket.to_owned(), source: Box::new(error) }
}

impl Connection {
    /// Registers with the IOKernel at `path` and maps the memory it sends. Returns the connection,
    /// the shared memory, and for each kthread the runtime's ends of its rings.
    ///
    /// # Errors
    /// If no IOKernel listens there, it refused the registration (with the reason), or the memory
    /// has another version.
    pub fn register(path: &str, config: &Config) -> Result<(Self, IoKernel, Vec<RuntimeEnds>), AttachError> {
        let request = Register {
            version: VERSION,
            name: config.name.clone(),
            kthreads: config.kthreads,
            guaranteed: config.guaranteed,
            class: config.class.into(),
            ring_bytes: config.ring_bytes,
            ip: config.ip,
            returns: false,
            instance: if config.replace { Instance::Latest } else { Instance::Only },
            listen: config.listen.clone(),
        };
        let control = dial(path, ANSWER_TIMEOUT)?;
        let Accepted { welcome, region, doorbell, places } = ask(&control, path, &request)?;
        let (region, ends) = Region::attach(region).map_err(unusable(path))?;
        if region.spec().kthreads() != config.kthreads {
            return Err(broken(path, "the region is not for as many kthreads as requested".to_owned()));
        }
        let iokernel =
            IoKernel::new(region, config.class.into(), welcome.raise, welcome.managed_cores.len(), doorbell);
        iokernel.set_wake_places(places).map_err(unusable(path))?;
        let allowed = sched_getaffinity(None).ok();
        // A core of this thread's own mask is one of its cpuset: no thread has to try it out.
        let has_one = allowed
            .as_ref()
            .is_some_and(|allowed| welcome.managed_cores.iter().any(|&core| allowed.is_set(core.into())));
        if !has_one && !may_use_any(&welcome.managed_cores) {
            let cores = welcome.managed_cores.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            return Err(AttachError::NoCore { socket: path.to_owned(), cores });
        }
        let connection = Self {
            others: allowed.map(|allowed| unmanaged(allowed, &welcome)),
            allowed,
            registration: Registration { control, welcome },
            path: path.to_owned(),
            request,
            on_loss: config.on_iokernel_loss,
            wait: config.iokernel_wait,
        };
        Ok((connection, iokernel, ends))
    }

    /// Returns the error for addresses that the network stack refuses.
    pub fn refuse_network(&self, error: &net::ConfigError) -> AttachError {
        broken(&self.path, format!("the addresses in the welcome: {error}"))
    }

    /// Returns the addresses for the network stack.
    pub fn net_config(&self) -> NetConfig {
        let welcome = &self.registration.welcome;
        let ipv6 = welcome.ipv6.map(|place| Ipv6Config {
            ip: place.ip,
            prefix: place.prefix_len,
            gateway: place.gateway,
        });
        NetConfig {
            prefix: welcome.prefix_len,
            gateway: welcome.gateway,
            ipv6,
            mac: welcome.mac,
            mtu: welcome.mtu,
            local_mtu: MAX_PACKET,
            mode: Mode::Attached,
            ..NetConfig::standalone(welcome.ip)
        }
    }

    /// Returns the first and the last port of those that connections are to use; `None`: all.
    pub fn outgoing(&self) -> Option<(u16, u16)> {
        self.registration.welcome.outgoing
    }

    /// Sends the thread ids of the kthreads to the IOKernel, which may grant cores from then on,
    /// and moves the calling thread (and those it starts) off the managed cores.
    ///
    /// # Errors
    /// If the IOKernel refused the threads or ended.
    pub fn announce(&self, tids: Vec<i32>) -> Result<(), AttachError> {
        if let Some(cores) = &self.others {
            // If this fails, the kthreads share their cores with this thread.
            let _ = sched_setaffinity(None, cores);
        }
        if !self.request.instance.is_only() {
            // Until the IOKernel says otherwise: from the first frame on, those for another
            // instance are passed on.
            instances::note(Instance::Replaces);
            instances::keep(&self.registration.control);
        }
        announce(&self.registration.control, &self.path, tids)
    }
}

/// Returns false if there are such cores, and Linux lets no thread of this process run on one of
/// them: its cpuset has none. What Linux says is tried out on a thread that sleeps, which does not
/// run there.
fn may_use_any(cores: &[u16]) -> bool {
    // Then no cpuset is at fault.
    if cores.is_empty() {
        return true;
    }
    let mut wanted = CpuSet::new();
    cores.iter().for_each(|&core| wanted.set(core.into()));
    let ((tell, told), (wake, sleep)) = (channel(), channel::<()>());
    let sleeper = std::thread::Builder::new().name("tailwater-probe".to_owned()).spawn(move || {
        let before = sched_getaffinity(None);
        // Both fail only if the other end is gone.
        let _ = tell.send((gettid(), before));
        let _ = sleep.recv();
    });
    let (Ok(sleeper), Ok((tid, Ok(before)))) = (sleeper, told.recv()) else { return true };
    let result = sched_setaffinity(Some(tid), &wanted);
    // Back, so that it need not run on a managed core to end.
    let _ = sched_setaffinity(Some(tid), &before);
    drop(wake);
    let _ = sleeper.join();
    result != Err(Errno::INVAL)
}

/// Returns which of the `allowed` cores an IOKernel leaves to threads that are no kthreads: all if
/// it manages all.
fn unmanaged(allowed: CpuSet, welcome: &Welcome) -> CpuSet {
    let mut cores = allowed;
    for &core in &welcome.managed_cores {
        cores.unset(core as usize);
    }
    if cores.count() > 0 { cores } else { allowed }
}

/// Connects to the IOKernel at `path`, which is to take no longer than `limit`, nor is any answer.
fn dial(path: &str, limit: Duration) -> Result<OwnedFd, AttachError> {
    let control = control::dial_within(path, limit).map_err(failed(path))?;
    limit_answers(&control, path, limit)?;
    Ok(control)
}

fn limit_answers(control: &OwnedFd, path: &str, limit: Duration) -> Result<(), AttachError> {
    // Zero is no limit.
    let limit = limit.max(Duration::from_millis(1));
    set_socket_timeout(control, Timeout::Recv, Some(limit)).map_err(|source| AttachError::Socket {
        socket: path.to_owned(),
        action: "limit how long an answer may take",
        source: source.into(),
        hint: String::new(),
    })
}

/// Asks for a registration, and maps the memory that the IOKernel sends.
fn ask(control: &OwnedFd, path: &str, request: &Register) -> Result<Accepted, AttachError> {
    control::send(control, &ClientMessage::Register(request.clone()), &[]).map_err(failed(path))?;
    let (welcome, fds) = match answer(control, path)? {
        (ServerMessage::Welcome(welcome), fds) => (welcome, fds),
        (other, _) => return Err(broken(path, format!("unexpected answer to the registration: {other:?}"))),
    };
    let count = fds.len();
    let mut fds = fds.into_iter();
    let (Some(region), Some(doorbell), board, None) = (fds.next(), fds.next(), fds.next(), fds.next()) else {
        return Err(broken(path, format!("{count} descriptors came with the welcome, not 2 or 3")));
    };
    let region = Mapping::new(region, "region").map_err(unusable(path))?;
    let places = match (board, welcome.place) {
        // Without a board the IOKernel wakes the kthreads.
        (Some(board), Some(first)) => {
            WakeBoard::map(board).ok().flatten().map(|board| WakePlaces { board, first })
        }
        _ => None,
    };
    Ok(Accepted { welcome, region, doorbell, places })
}

/// Sends the thread ids of the kthreads, and waits until the IOKernel is ready to lend them cores.
fn announce(control: &OwnedFd, path: &str, tids: Vec<i32>) -> Result<(), AttachError> {
    control::send(control, &ClientMessage::Kthreads { tids }, &[]).map_err(failed(path))?;
    match answer(control, path)? {
        (ServerMessage::Ready, _) => Ok(()),
        (other, _) => Err(broken(path, format!("unexpected answer to the kthreads: {other:?}"))),
    }
}

fn answer(control: &OwnedFd, path: &str) -> Result<(ServerMessage, Vec<OwnedFd>), AttachError> {
    match control::receive(control).map_err(failed(path))? {
        (ServerMessage::Refused { why }, _) => Err(AttachError::Refused { socket: path.to_owned(), why }),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_socket_can_have_is_an_invalid_setting_and_no_refusal() {
        let error = failed("")(tailwater_shm::control::dial("").unwrap_err());
        assert!(error.to_string().contains("@NAME"), "{error}");
        let AttachError::Socket { source, .. } = error else { panic!("{error}") };
        assert_eq!(Errno::from_io_error(&source), Some(Errno::INVAL));
    }

    #[test]
    fn a_core_that_linux_gives_no_thread_of_this_process_is_told_from_one_that_it_does() {
        let allowed = sched_getaffinity(None).unwrap();
        let own = (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap() as u16;
        // No machine of the tests has as many.
        let none = (CpuSet::MAX_CPU - 1) as u16;
        assert!(may_use_any(&[own]) && may_use_any(&[none, own]));
        assert!(!may_use_any(&[none]));
        assert_eq!(sched_getaffinity(None), Ok(allowed));
    }
}
