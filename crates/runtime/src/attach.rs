//! The connection to an IOKernel: registration, and detection of its loss.
//!
//! Owns the control socket for the life of the process: when this socket closes, the IOKernel ends
//! the registration, and the runtime continues without the IOKernel. All of it runs on ordinary OS
//! threads.

use crate::config::{Config, OnIoKernelLoss};
use crate::error::{AttachError, StartError};
use crate::ground::stderr::print;
use crate::net::{self, Ipv6Config, Mode, NetConfig};
use crate::records::loan::Loan;
use crate::records::runtime::Runtime;
use core::sync::atomic::Ordering;
use rustix::fd::OwnedFd;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::time::Duration;
use tailwater_shm::control::{self, ClientMessage, ControlError, Register, ServerMessage, Welcome};
use tailwater_shm::layout::{Region, RuntimeEnds, VERSION};
use tailwater_shm::memory::Mapping;

/// Maximum time until the IOKernel answers. Its control thread is never busy for long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A registration with an IOKernel.
#[derive(Debug)]
pub struct Connection {
    welcome: Welcome,
    control: OwnedFd,
    path: String,
    /// CPUs of the process before it left the managed ones; `None` if they cannot be read.
    allowed: Option<CpuSet>,
    on_loss: OnIoKernelLoss,
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
    pub fn register(path: &str, config: &Config) -> Result<(Self, Loan, Vec<RuntimeEnds>), AttachError> {
        let control = control::dial(path).map_err(failed(path))?;
        rustix::net::sockopt::set_socket_timeout(
            &control,
            rustix::net::sockopt::Timeout::Recv,
            Some(ANSWER_TIMEOUT),
        )
        .map_err(|source| AttachError::Socket {
            socket: path.to_owned(),
            action: "limit how long an answer may take",
            source: source.into(),
            hint: "",
        })?;
        let register = Register {
            version: VERSION,
            name: config.name.clone(),
            kthreads: config.kthreads,
            guaranteed: config.guaranteed,
            class: config.class.into(),
            ring_bytes: config.ring_bytes,
            ip: config.ip,
        };
        control::send(&control, &ClientMessage::Register(register), &[]).map_err(failed(path))?;
        let (welcome, fds) = match answer(&control, path)? {
            (ServerMessage::Welcome(welcome), fds) => (welcome, fds),
            (other, _) => {
                return Err(broken(path, format!("unexpected answer to the registration: {other:?}")));
            }
        };
        let [region, doorbell] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| broken(path, format!("{} descriptors came with the welcome, not 2", fds.len())))?;
        let region = Mapping::new(region, "region").map_err(unusable(path))?;
        let (region, ends) = Region::attach(region).map_err(unusable(path))?;
        if region.spec().kthreads() != config.kthreads {
            return Err(broken(path, "the region is not for as many kthreads as requested".to_owned()));
        }
        let path = path.to_owned();
        let loan = Loan::new(region, config.class.into(), welcome.dedicated, doorbell);
        let allowed = sched_getaffinity(None).ok();
        Ok((Self { welcome, control, path, allowed, on_loss: config.on_iokernel_loss }, loan, ends))
    }

    /// Returns the error for addresses that the network stack refuses.
    pub fn refuse_network(&self, error: &net::ConfigError) -> AttachError {
        broken(&self.path, format!("the addresses in the welcome: {error}"))
    }

    /// Returns the addresses for the network stack.
    pub fn net_config(&self) -> NetConfig {
        let welcome = &self.welcome;
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
            mode: Mode::Attached,
            ..NetConfig::standalone(welcome.ip)
        }
    }

    /// Sends the thread ids of the kthreads to the IOKernel, which may grant cores from then on,
    /// and moves the process's other threads off the managed cores.
    ///
    /// # Errors
    /// If the IOKernel refused the threads or ended.
    pub fn announce(&self, tids: Vec<i32>) -> Result<(), AttachError> {
        self.leave_managed_cores();
        control::send(&self.control, &ClientMessage::Kthreads { tids }, &[]).map_err(failed(&self.path))?;
        match answer(&self.control, &self.path)? {
            (ServerMessage::Ready, _) => Ok(()),
            (other, _) => Err(broken(&self.path, format!("unexpected answer to the kthreads: {other:?}"))),
        }
    }

    /// Keeps the calling thread (and those it starts) off the managed cores, unless there are no
    /// others.
    fn leave_managed_cores(&self) {
        let Some(mut cores) = self.allowed else { return };
        for &core in &self.welcome.managed_cores {
            cores.unset(core as usize);
        }
        if cores.count() > 0 {
            // If this fails, the kthreads share their cores with this thread.
            let _ = sched_setaffinity(None, &cores);
        }
    }

    /// Lets the kthreads run on all cores of the process again. An IOKernel that ends a
    /// registration does that itself, after it has sent the reason; one that is killed leaves each
    /// kthread bound to the core that it was lent last.
    fn unbind(&self, runtime: &Runtime) {
        let Some(allowed) = &self.allowed else { return };
        for kthread in &runtime.kthreads {
            let tid = Pid::from_raw(kthread.os_tid.load(Ordering::Relaxed));
            // If this is refused, the kthread shares the core that it has.
            let _ = sched_setaffinity(tid, allowed);
        }
    }

    /// Starts the thread that waits for the loss of the IOKernel.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn watch(&'static self, runtime: &'static Runtime) -> Result<(), StartError> {
        let watch = move || {
            let _ = rustix::net::sockopt::set_socket_timeout(
                &self.control,
                rustix::net::sockopt::Timeout::Recv,
                None,
            );
            // The IOKernel sends nothing more, so this call returns when the connection ends.
            let why = match control::receive::<ServerMessage>(&self.control) {
                Ok((ServerMessage::Refused { why }, _)) => why,
                Ok(_) => "it broke the protocol".to_owned(),
                Err(ControlError::Closed) => {
                    self.unbind(runtime);
                    "it ended".to_owned()
                }
                Err(e) => e.to_string(),
            };
            let reaction = match self.on_loss {
                OnIoKernelLoss::Continue => "Continuing on ordinary cores, without network.",
                OnIoKernelLoss::Exit => "Exiting: start one, and this program again.",
            };
            // Not `eprintln!`: a user thread that was preempted while it held the lock of standard
            // error gets no core before `orphan`.
            print(&format!("tailwater: lost the IOKernel at {}: {why}. {reaction}\n", self.path));
            if self.on_loss == OnIoKernelLoss::Exit {
                // Not `exit`: its handlers may wait for locks in the same way.
                // SAFETY: the call asks for nothing.
                unsafe { libc::_exit(OnIoKernelLoss::EXIT_STATUS) }
            }
            runtime.orphan();
            // Last: it takes the locks of all connections, and a thread that holds one may have
            // been parked.
            net::set_link_down();
        };
        std::thread::Builder::new()
            .name("tailwater/watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|source| StartError::System { action: "start the watch thread", source })
    }
}

fn answer(control: &OwnedFd, path: &str) -> Result<(ServerMessage, Vec<OwnedFd>), AttachError> {
    match control::receive(control).map_err(failed(path))? {
        (ServerMessage::Refused { why }, _) => Err(AttachError::Refused { socket: path.to_owned(), why }),
        answer => Ok(answer),
    }
}
