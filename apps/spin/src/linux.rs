//! The spin service on kernel UDP sockets: the baseline for Tailwater.
//!
//! Owns a pool of ordinary threads on one shared socket, blocking or spinning, and its termination.
//! Requests are handled by [`crate::handle`], as everywhere. One system call per direction and
//! request, nothing else on the path. The socket holds as many requests as one of Tailwater's does,
//! as far as the system allows ([`tailwater_placement::buffer`]).
//!
//! Termination: a flag, then `shutdown(2)` of the receiving side. On an unconnected UDP socket
//! Linux returns ENOTCONN but does mark the socket and wakes every thread that is blocked on it
//! (`inet_shutdown` in net/ipv4/af_inet.c), so the threads need no timeout, which would cost the
//! baseline a timer, and no second descriptor to poll.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recvfrom, sendto};
use rustix::thread::sched_setaffinity;
use tailwater_placement::buffer::hold_as_many;
use tailwater_placement::{explain, only_core};
use tailwater_workload::spin::REQUEST_LEN;

use crate::Counts;
use crate::work::Spinner;

/// How threads wait for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Blocked in the kernel: the core is free meanwhile, and waking up a sleeping core costs 20 us
    /// and more.
    #[default]
    Blocking,
    /// Polling without sleeping: fastest, and takes the whole core.
    BusyPoll,
}

/// Configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to listen at; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// How threads wait.
    pub mode: Mode,
    /// Threads, at least 1.
    pub threads: usize,
    /// Core that all threads are bound to; `None`: the kernel chooses.
    pub core: Option<usize>,
    /// The calibrated work.
    pub spinner: Spinner,
}

/// A running server; [`Server::stop`] ends it, and so does dropping it.
#[derive(Debug)]
pub struct Server {
    socket: Arc<UdpSocket>,
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    threads: Vec<JoinHandle<Counts>>,
}

impl Server {
    /// Binds the socket and starts the threads.
    ///
    /// # Errors
    /// The kernel's error, with what was attempted: the address is taken or not ours, the core does
    /// not exist, or threads cannot be started.
    pub fn start(config: &Config) -> io::Result<Self> {
        let socket = UdpSocket::bind(config.listen)
            .map_err(|e| explain(&e, &format!("listen on {}", config.listen)))?;
        hold_as_many(&socket).map_err(|e| explain(&e, "size the receive buffer"))?;
        socket.set_nonblocking(config.mode == Mode::BusyPoll)?;
        let (cores, spinner) = (config.core.map(only_core).transpose()?, config.spinner);
        let mut server = Self {
            address: socket.local_addr()?,
            socket: Arc::new(socket),
            stop: Arc::default(),
            threads: Vec::with_capacity(config.threads),
        };
        for index in 0..config.threads.max(1) {
            let (socket, stop) = (Arc::clone(&server.socket), Arc::clone(&server.stop));
            let thread = std::thread::Builder::new().name(format!("spin-{index}")).spawn(move || {
                if let Some(cores) = cores {
                    // Tried on the starting thread before; can fail only if the core goes offline
                    // right now.
                    let _ = sched_setaffinity(None, &cores);
                }
                serve(&socket, spinner, &stop)
            });
            // On failure, dropping `server` ends the threads that did start.
            server.threads.push(thread.map_err(|e| explain(&e, "start a thread"))?);
        }
        Ok(server)
    }

    /// Returns the address it listens at, with the port that the kernel chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends the threads, each after its current request, and returns the sum of their counts.
    ///
    /// # Panics
    /// If a server thread panicked.
    #[must_use]
    pub fn stop(mut self) -> Counts {
        self.wake_to_end();
        let mut sum = Counts::default();
        for thread in self.threads.drain(..) {
            let counts = thread.join().expect("a server thread panicked");
            sum.served += counts.served;
            sum.malformed += counts.malformed;
            sum.unsent += counts.unsent;
        }
        sum
    }

    fn wake_to_end(&self) {
        self.stop.store(true, Relaxed);
        // ENOTCONN is the expected answer, see the module's header; it wakes the threads all the
        // same.
        let _: Result<(), Errno> = rustix::net::shutdown(&*self.socket, Shutdown::Read);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.wake_to_end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs one thread of the server.
fn serve(socket: &UdpSocket, spinner: Spinner, stop: &AtomicBool) -> Counts {
    let origin = Instant::now();
    let now_ns = || origin.elapsed().as_nanos() as u64;
    let mut counts = Counts::default();
    // One byte more than a request, so that a longer datagram is seen to be too long.
    let mut bytes = [0; REQUEST_LEN + 1];
    while !stop.load(Relaxed) {
        // Not std's `recv_from`, which cannot represent a receipt without a sender, with which
        // `shutdown` ends the call.
        let (len, client) = match recvfrom(socket, &mut bytes, RecvFlags::empty()) {
            Ok((len, _, Some(client))) => (len, client),
            Err(Errno::AGAIN) => {
                std::hint::spin_loop();
                continue;
            }
            // Ended, interrupted, or an earlier reply found its port closed.
            Ok((_, _, None)) | Err(_) => continue,
        };
        match crate::handle(&bytes[..len], &spinner, now_ns, &mut || {}) {
            Ok(reply) if sendto(socket, &reply, SendFlags::empty(), &client).is_ok() => counts.served += 1,
            Ok(_) => counts.unsent += 1,
            Err(_) => counts.malformed += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;
    use tailwater_workload::spin::{Reply, Request};

    /// One iteration per nanosecond: about right anywhere.
    fn spinner() -> Spinner {
        Spinner::with_speed(1_000_000)
    }

    fn start(mode: Mode, threads: usize) -> Server {
        let listen = "127.0.0.1:0".parse().unwrap();
        Server::start(&Config { listen, mode, threads, core: None, spinner: spinner() }).unwrap()
    }

    /// Sends `requests` one after the other and checks each reply.
    fn ask(server: &Server, requests: u64) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.local_addr()).unwrap();
        socket.set_read_timeout(Some(tailwater_testkit::PATIENCE)).unwrap();
        let mut bytes = [0; 64];
        for id in 0..requests {
            let request = Request { id, work_ns: 1_000, sent_ns: 17 };
            socket.send(b"not a request").unwrap();
            socket.send(&request.encode()).unwrap();
            let len = socket.recv(&mut bytes).unwrap();
            let reply = Reply::decode(&bytes[..len]).unwrap();
            assert_eq!(reply.request, request);
            assert!(reply.served_ns > 0);
        }
    }

    #[test]
    fn requests_are_answered_and_counted_in_both_modes() {
        for mode in [Mode::Blocking, Mode::BusyPoll] {
            let server = start(mode, 2);
            ask(&server, 20);
            let counts = server.stop();
            assert_eq!((counts.served, counts.unsent), (20, 0), "{mode:?}");
            assert_eq!(counts.malformed, 20, "{mode:?}");
        }
    }

    #[test]
    fn the_socket_holds_as_many_requests_as_tailwaters() {
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        let expected = hold_as_many(&plain).unwrap();
        let server = start(Mode::Blocking, 1);
        let size = rustix::net::sockopt::socket_recv_buffer_size(&*server.socket).unwrap();
        assert_eq!(size, rustix::net::sockopt::socket_recv_buffer_size(&plain).unwrap(), "{expected}");
    }

    #[test]
    fn idle_blocked_threads_end_when_told() {
        // Joins four threads that no datagram ever wakes; a hang here is the failure.
        assert_eq!(start(Mode::Blocking, 4).stop(), Counts::default());
        drop(start(Mode::Blocking, 4));
    }

    #[test]
    fn impossible_configurations_are_refused_with_the_reason() {
        let server = start(Mode::Blocking, 1);
        let listen = server.local_addr();
        let config = Config { listen, mode: Mode::Blocking, threads: 1, core: None, spinner: spinner() };
        let error = Server::start(&config).unwrap_err();
        assert!(error.to_string().contains(&server.local_addr().to_string()), "{error}");
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            let listen = "127.0.0.1:0".parse().unwrap();
            let error = Server::start(&Config { listen, core: Some(core), ..config.clone() }).unwrap_err();
            assert!(error.to_string().contains(&format!("core {core}")), "{error}");
        }
    }
}
