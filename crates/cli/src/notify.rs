//! Messages to the service manager that started this process (sd_notify(3)).
//!
//! Owns the socket that `NOTIFY_SOCKET` names, a path or `@` and an abstract name, and the interval
//! that `WATCHDOG_USEC` asks for. Each message is one datagram. Without these variables nothing is
//! sent; a manager that is gone is no reason to end.
//!
//! Not by the crate `sd-notify`: 0.5.0 takes no abstract name, and each of its messages waits
//! without end for a manager whose socket is full. Here the last message and signs of life wait for
//! nothing: programs have their cores back after them only.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{ClockId, clock_gettime};

/// Maximum wait for a manager whose socket is full of messages.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug)]
pub struct Notifier {
    manager: Option<(UnixDatagram, SocketAddrUnix)>,
    /// How often a sign of life is due: twice in the time after which the manager acts, as
    /// sd_watchdog_enabled(3) recommends.
    pub watchdog_interval: Option<Duration>,
    /// Set once the service ends: from then on no other message begins. One that another thread
    /// sends at that moment may follow.
    has_ended: AtomicBool,
}

impl Notifier {
    /// Returns what the variables of this process name.
    ///
    /// # Errors
    /// If they cannot be understood: a service whose manager hears nothing is killed.
    pub fn from_environment() -> anyhow::Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|text| !text.is_empty());
        let manager = variable("NOTIFY_SOCKET").map(|name| connect(&name)).transpose()?;
        let patience = variable("WATCHDOG_USEC").map(|usec| parse_patience(&usec)).transpose()?;
        // Of another process if it has another number: this one inherited the variables.
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| *pid == *std::process::id().to_string());
        let watchdog_interval =
            patience.filter(|_| is_ours && manager.is_some()).map(|patience| patience / 2);
        Ok(Self { manager, watchdog_interval, has_ended: AtomicBool::new(false) })
    }

    /// The service can be used, or can be used again.
    pub fn ready(&self) {
        self.send("READY=1", SendFlags::empty());
    }

    /// The configuration is read again, until the next [`ready`](Self::ready).
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"), SendFlags::empty());
    }

    /// The process `pid` is the service from now on.
    pub fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}"), SendFlags::empty());
    }

    /// The service works. Does not wait: another sign of life follows.
    pub fn alive(&self) {
        self.send("WATCHDOG=1", SendFlags::DONTWAIT);
    }

    /// Has the manager keep a descriptor under a name, and pass it to the next process of the
    /// service. One that it keeps already stays as it is.
    pub fn store(&self, name: &str, descriptor: BorrowedFd<'_>) {
        self.send_with(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor), SendFlags::empty());
    }

    /// Has the manager close the descriptors of these names, and waits until it has.
    pub fn forget(&self, names: &[String]) {
        for name in names {
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), SendFlags::empty());
        }
        // It closes the descriptor once it has dealt with all messages before
        // (sd_notify_barrier(3)).
        let Ok((done, barrier)) = pipe_with(PipeFlags::CLOEXEC) else { return };
        self.send_with("BARRIER=1", Some(barrier.as_fd()), SendFlags::empty());
        drop(barrier);
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        // At the end, or after an interruption, what is made anew may find its name taken.
        let _ = poll(&mut [PollFd::new(&done, PollFlags::empty())], Some(&patience));
    }

    /// The service ends. Does not wait: the manager sees the end of the process, too.
    pub fn stopping(&self) {
        self.send("STOPPING=1", SendFlags::DONTWAIT);
        self.succeeded();
    }

    /// Another process is the service: this one sends nothing more, and ends.
    pub fn succeeded(&self) {
        // Relaxed: the flag publishes nothing else.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    fn send(&self, message: &str, flags: SendFlags) {
        self.send_with(message, None, flags);
    }

    fn send_with(&self, message: &str, descriptor: Option<BorrowedFd<'_>>, flags: SendFlags) {
        // Relaxed: see `succeeded`.
        let manager = self.manager.as_ref().filter(|_| !self.has_ended.load(Ordering::Relaxed));
        let Some((socket, address)) = manager else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let text = [IoSlice::new(message.as_bytes())];
        let sent = sendmsg_addr(socket, address, &text, &mut control, flags | SendFlags::NOSIGNAL);
        if let Err(error) = sent {
            tracing::debug!(message, %error, "the service manager takes no message");
        }
    }
}

fn connect(name: &OsStr) -> anyhow::Result<(UnixDatagram, SocketAddrUnix)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        [b'/', ..] => SocketAddrUnix::new(name),
        _ => Err(Errno::INVAL),
    };
    let wrong = || format!("NOTIFY_SOCKET={} is no absolute path or @NAME of a socket", name.display());
    let socket = UnixDatagram::unbound().context("cannot make a socket for the service manager")?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok((socket, address.with_context(wrong)?))
}

fn parse_patience(usec: &OsStr) -> anyhow::Result<Duration> {
    let usec = usec.to_string_lossy();
    let number: NonZeroU64 = usec
        .parse()
        .with_context(|| format!("WATCHDOG_USEC={usec} is not a number of microseconds above 0"))?;
    Ok(Duration::from_micros(number.get()))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rustix::net::sendto;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    /// Returns a manager that hears a notifier, and the notifier.
    pub fn manager(name: &str) -> (UnixDatagram, Notifier) {
        let name = tailwater_testkit::socket_name(name);
        let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        (UnixDatagram::bind_addr(&address).unwrap(), notifier(&name))
    }

    fn notifier(name: &str) -> Notifier {
        let manager = Some(connect(name.as_ref()).unwrap());
        Notifier { manager, watchdog_interval: None, has_ended: AtomicBool::new(false) }
    }

    #[test]
    fn addresses_are_absolute_paths_or_abstract_names() {
        for good in ["/run/systemd/notify", "@manager"] {
            assert!(connect(good.as_ref()).is_ok(), "{good}");
        }
        for bad in ["run/notify", "vsock:2:1234", &format!("/{}", "x".repeat(200))] {
            let error = connect(bad.as_ref()).unwrap_err().to_string();
            assert!(error.contains("NOTIFY_SOCKET="), "{error}");
        }
        // Nothing listens there, which is no error.
        notifier("@no manager").alive();
    }

    #[test]
    fn the_managers_patience_is_a_number_above_0() {
        assert_eq!(parse_patience("200000".as_ref()).unwrap(), Duration::from_millis(200));
        for bad in ["0", "-1", "1s"] {
            assert!(parse_patience(bad.as_ref()).is_err(), "{bad}");
        }
    }

    /// Returns a manager's socket, full of signs of life, and one that waits for it without end.
    fn full(name: &str) -> (UnixDatagram, Notifier) {
        let (manager, notifier) = manager(name);
        manager.set_nonblocking(true).unwrap();
        let (socket, address) = notifier.manager.as_ref().unwrap();
        socket.set_write_timeout(None).unwrap();
        while sendto(socket, b"WATCHDOG=1", SendFlags::DONTWAIT, address).is_ok() {}
        (manager, notifier)
    }

    /// Reads all that has been sent.
    fn drain(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 256];
        let next =
            || manager.recv(&mut buffer).ok().map(|len| String::from_utf8_lossy(&buffer[..len]).into());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn the_end_waits_neither_for_the_manager_nor_for_a_message_of_another_thread() {
        for ends in [Notifier::stopping, Notifier::succeeded] {
            let (manager, notifier) = full("end");
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let reload = scope.spawn(|| {
                    tell.send(rustix::thread::gettid()).unwrap();
                    notifier.reloading();
                });
                let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
                // It waits for the manager.
                while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                    std::thread::yield_now();
                }
                // Would not return if it waited.
                ends(&notifier);
                drain(&manager);
                reload.join().unwrap();
            });
            drain(&manager);
            notifier.ready();
            assert_eq!(drain(&manager), [""; 0], "after the end");
        }
    }

    #[test]
    fn the_end_is_the_last_that_the_manager_hears() {
        let (manager, notifier) = full("last");
        drain(&manager);
        notifier.stopping();
        notifier.ready();
        assert_eq!(drain(&manager), ["STOPPING=1"]);
    }
}
