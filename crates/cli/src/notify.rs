//! Messages to the service manager that started this process (sd_notify(3)).
//!
//! Owns the socket that `NOTIFY_SOCKET` names, a path or `@` and an abstract name, and the interval
//! that `WATCHDOG_USEC` asks for. Each message is one datagram. Without these variables nothing is
//! sent; a manager that is gone is no reason to end. What the threads of the IOKernel itself say
//! waits neither for the manager nor for a message of another thread: a manager whose socket is
//! full does not hear it.

use std::env::VarError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use rustix::time::{ClockId, clock_gettime};

/// Maximum wait for a manager whose socket is full of messages.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug)]
pub struct Notifier {
    manager: Option<(OwnedFd, SocketAddrUnix)>,
    /// The manager restarts a service that is silent for this long.
    patience: Option<Duration>,
    /// Set once the service ends: from then on no other message begins. One that another thread
    /// sends at that moment may follow.
    stopping: AtomicBool,
}

impl Notifier {
    /// Returns what the variables of this process name.
    ///
    /// # Errors
    /// If they cannot be understood: a service whose manager hears nothing is killed.
    pub fn from_environment() -> anyhow::Result<Self> {
        let manager = variable("NOTIFY_SOCKET")?.map(|name| connect(&name)).transpose()?;
        let usec = variable("WATCHDOG_USEC")?;
        let patience = usec.map(|usec| parse_patience(&usec)).transpose()?;
        // Of another process if it has another number: this one inherited the variables.
        let own = std::process::id().to_string();
        let is_ours = variable("WATCHDOG_PID")?.is_none_or(|pid| pid == own);
        Ok(Self { manager, patience: patience.filter(|_| is_ours), stopping: AtomicBool::new(false) })
    }

    /// Returns how often a sign of life is due: twice in the time after which the manager acts, as
    /// sd_watchdog_enabled(3) recommends.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.patience.filter(|_| self.manager.is_some()).map(|patience| patience / 2)
    }

    /// The service can be used, or can be used again.
    pub fn ready(&self) {
        self.send_unless_stopping("READY=1");
    }

    /// The configuration is read again, until the next [`ready`](Self::ready).
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send_unless_stopping(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// The process `pid` is the service from now on.
    pub fn main_process(&self, pid: u32) {
        self.send_unless_stopping(&format!("MAINPID={pid}"));
    }

    /// Another process is the service: this one says nothing more, and ends.
    pub fn succeeded(&self) {
        // Relaxed: the flag publishes nothing else.
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The service ends. Does not wait: programs have their cores back after this only.
    pub fn stopping(&self) {
        self.succeeded();
        // The manager sees the end of the process if it does not hear of it.
        self.send_with("STOPPING=1", SendFlags::DONTWAIT);
    }

    /// Sends a message, and waits for a manager whose socket is full.
    fn send_unless_stopping(&self, message: &str) {
        // Relaxed: see `succeeded`.
        if !self.stopping.load(Ordering::Relaxed) {
            self.send_with(message, SendFlags::empty());
        }
    }

    /// The service works.
    pub fn alive(&self) {
        // Another one follows, and nothing waits for the manager meanwhile.
        self.send_with("WATCHDOG=1", SendFlags::DONTWAIT);
    }

    fn send_with(&self, message: &str, flags: SendFlags) {
        let Some((socket, address)) = &self.manager else { return };
        if let Err(error) = sendto(socket, message.as_bytes(), flags | SendFlags::NOSIGNAL, address) {
            tracing::debug!(message, %error, "the service manager takes no message");
        }
    }
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(text)) => bail!("{name}={} is not text", text.display()),
    }
}

fn connect(name: &str) -> anyhow::Result<(OwnedFd, SocketAddrUnix)> {
    let address = match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddrUnix::new_abstract_name(abstract_name.as_bytes()),
        None if name.starts_with('/') => SocketAddrUnix::new(name),
        None => bail!("NOTIFY_SOCKET={name} is neither an absolute path nor an abstract address (@NAME)"),
    };
    let address = address.with_context(|| format!("NOTIFY_SOCKET={name} is no address of a socket"))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).map(|()| socket));
    Ok((socket.context("cannot make a socket for the service manager")?, address))
}

fn parse_patience(usec: &str) -> anyhow::Result<Duration> {
    match usec.parse() {
        Ok(usec @ 1..) => Ok(Duration::from_micros(usec)),
        _ => bail!("WATCHDOG_USEC={usec} is not a number of microseconds above 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn addresses_are_absolute_paths_or_abstract_names() {
        for good in ["/run/systemd/notify", "@manager"] {
            assert!(connect(good).is_ok(), "{good}");
        }
        for bad in ["run/notify", "vsock:2:1234", &format!("/{}", "x".repeat(200))] {
            let error = connect(bad).unwrap_err().to_string();
            assert!(error.contains("NOTIFY_SOCKET="), "{error}");
        }
    }

    #[test]
    fn signs_of_life_are_due_twice_in_the_managers_patience() {
        assert_eq!(parse_patience("200000").unwrap(), Duration::from_millis(200));
        for bad in ["0", "", "-1", "1s"] {
            assert!(parse_patience(bad).is_err(), "{bad}");
        }
        let stopping = AtomicBool::new(false);
        let mut notifier = Notifier { manager: None, patience: Some(Duration::from_secs(1)), stopping };
        assert_eq!(notifier.watchdog_interval(), None, "nothing can be sent");
        notifier.manager = Some(connect("@manager").unwrap());
        assert_eq!(notifier.watchdog_interval(), Some(Duration::from_millis(500)));
        // Nothing listens there, which is no error.
        notifier.alive();
    }

    /// Returns a manager's socket, full of signs of life, and one that waits for it without end.
    fn full(name: &str) -> (UnixDatagram, Notifier) {
        let name = tailwater_testkit::socket_name(name);
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name[1..]).unwrap()).unwrap();
        manager.set_nonblocking(true).unwrap();
        let (socket, address) = connect(&name).unwrap();
        set_socket_timeout(&socket, Timeout::Send, None).unwrap();
        let flags = SendFlags::DONTWAIT;
        while sendto(&socket, b"WATCHDOG=1", flags, &address).is_ok() {}
        let manager_of = Some((socket, address));
        (manager, Notifier { manager: manager_of, patience: None, stopping: AtomicBool::new(false) })
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
