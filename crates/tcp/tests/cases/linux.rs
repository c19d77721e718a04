//! Linux as the stack, in a network namespace, in real time.

use crate::namespace::{ADDRESSES, DEVICE, enter, ip};
use crate::packet::Packet;
use crate::run::{Host, Read};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;
use tailwater_wire::{Addresses, IpProtocol, checksum};

/// What Linux must not carry over from one case to the next, and what the scripts rely on.
const SETTINGS: &[(&str, &str)] =
    &[("tcp_no_metrics_save", "1"), ("tcp_fastopen", "3"), ("tcp_syn_linear_timeouts", "0")];

/// The peers of the cases, one each.
const PEERS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 0);

/// A namespace with a device, for one case after the other.
pub struct Namespace {
    device: OwnedFd,
    cases: u16,
}

impl Namespace {
    /// Moves this thread into a namespace of its own.
    ///
    /// # Errors
    /// What is missing.
    pub fn enter() -> Result<Self, String> {
        let device = enter(1)?;
        ip(&["route", "add", &format!("{PEERS}/16"), "dev", DEVICE])?;
        for (name, value) in SETTINGS {
            // Older kernels do not have all of them.
            let _ = std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
        }
        Ok(Self { device, cases: 0 })
    }

    /// Returns the stack for one more case, on ports of its own.
    pub fn host(&mut self) -> Linux<'_> {
        self.cases += 1;
        // Path MTUs of earlier cases.
        let _ = std::fs::write("/proc/sys/net/ipv4/route/flush", "1");
        Linux {
            device: &self.device,
            ports: (10_000 + self.cases, 40_000 + self.cases),
            peer: Ipv4Addr::from_bits(PEERS.to_bits() + u32::from(self.cases)),
            began: Instant::now(),
            out: VecDeque::new(),
            sent: Vec::new(),
            listener: None,
            socket: None,
        }
    }
}

pub struct Linux<'a> {
    device: &'a OwnedFd,
    ports: (u16, u16),
    /// The peer's address: Linux remembers cookies by address.
    peer: Ipv4Addr,
    began: Instant,
    out: VecDeque<Packet>,
    /// The beginnings of packets sent, for ICMP errors to quote.
    sent: Vec<Vec<u8>>,
    listener: Option<OwnedFd>,
    socket: Option<OwnedFd>,
}

impl Drop for Linux<'_> {
    fn drop(&mut self) {
        // A reset that ends the case's connection leaves no timer behind.
        if let Some(socket) = &self.socket {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}

fn name(error: Errno) -> &'static str {
    match error {
        Errno::CONNREFUSED => "refused",
        Errno::CONNRESET => "reset",
        Errno::TIMEDOUT => "timed-out",
        Errno::HOSTUNREACH => "host-unreachable",
        Errno::NETUNREACH => "network-unreachable",
        Errno::PIPE => "broken-pipe",
        Errno::AGAIN => "block",
        _ => "another error",
    }
}

fn said(error: Errno) -> String {
    error.to_string()
}

/// Fields of `struct tcp_info` (linux/tcp.h): name, offset, bytes.
const INFO: &[(&str, usize, usize)] = &[
    ("snd_mss", 16, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("pmtu", 60, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("total_retrans", 100, 4),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("notsent_bytes", 144, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivered", 192, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
];

/// Returns `struct tcp_info`, as much of it as this kernel has.
fn tcp_info(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut info = vec![0_u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the buffer and its length live across the call, which writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    info.truncate(len as usize);
    (result == 0).then_some(info)
}

/// Sets an option of TCP that is a number.
fn set_tcp(socket: &OwnedFd, option: libc::c_int, value: &str) -> Result<(), String> {
    let value: libc::c_int = value.parse().map_err(|_| format!("{value:?} is no number"))?;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value lives across the call, which reads its four bytes.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

impl Linux<'_> {
    fn socket(&self, port: u16, options: &[&str]) -> Result<OwnedFd, String> {
        let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, kind, None).map_err(said)?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(said)?;
        // A script's writes fit.
        sockopt::set_socket_send_buffer_size(&socket, 1 << 20).map_err(said)?;
        let mut algorithm = "cubic";
        for option in options {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                // Linux counts its own overhead, about as much again.
                "rcvbuf" => {
                    let bytes: usize = value.parse().map_err(|_| format!("{option:?}"))?;
                    sockopt::set_socket_recv_buffer_size(&socket, bytes).map_err(said)?;
                }
                "nodelay" => sockopt::set_tcp_nodelay(&socket, true).map_err(said)?,
                "fastopen" if value.is_empty() => set_tcp(&socket, libc::TCP_FASTOPEN_CONNECT, "1")?,
                "fastopen" => set_tcp(&socket, libc::TCP_FASTOPEN, value)?,
                "maxseg" => set_tcp(&socket, libc::TCP_MAXSEG, value)?,
                "ecn" => {
                    std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").map_err(|error| error.to_string())?;
                }
                "reno" => algorithm = "reno",
                "accepts-ecn" | "cubic" | "full" => {}
                _ => return Err(format!("no option {option:?}")),
            }
        }
        sockopt::set_tcp_congestion(&socket, algorithm).map_err(said)?;
        rustix::net::bind(&socket, &SocketAddr::from((ADDRESSES[1], port))).map_err(said)?;
        Ok(socket)
    }

    fn connection(&self) -> Result<&OwnedFd, String> {
        self.socket.as_ref().ok_or_else(|| "there is no connection".into())
    }

    /// Takes what the device has.
    fn collect(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(len) = rustix::io::read(self.device, &mut buffer) {
            let packet = &buffer[..len];
            if packet.first() != Some(&0x45) || packet.get(9) != Some(&6) {
                continue;
            }
            let Some(segment) = Packet::read(&packet[20..], packet[1]) else { continue };
            if (segment.source, segment.destination) == self.ports {
                self.sent.push(packet[..packet.len().min(28)].to_vec());
                self.out.push_back(segment);
            }
        }
    }

    fn send_ip(&self, protocol: u8, ecn: u8, payload: &[u8]) {
        let mut packet = vec![0x45, ecn];
        packet.extend((20 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend(self.peer.octets());
        packet.extend(ADDRESSES[1].octets());
        let sum = checksum(&packet).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend(payload);
        match rustix::io::write(self.device, &packet) {
            // A full queue of the device's, or no memory, is a loss like any other.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
            Err(error) => panic!("the device takes no packet: {error}"),
        }
    }
}

impl Host for Linux<'_> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn ports(&self) -> (u16, u16) {
        self.ports
    }

    fn listen(&mut self, options: &[&str]) -> Result<(), String> {
        let socket = self.socket(self.ports.0, options)?;
        rustix::net::listen(&socket, 5).map_err(said)?;
        self.listener = Some(socket);
        Ok(())
    }

    fn connect(&mut self, options: &[&str]) -> Result<(), String> {
        let socket = self.socket(self.ports.0, options)?;
        match rustix::net::connect(&socket, &SocketAddr::from((self.peer, self.ports.1))) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(said(error)),
        }
        self.socket = Some(socket);
        Ok(())
    }

    fn accept(&mut self) -> bool {
        let Some(listener) = &self.listener else { return false };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(listener, flags) else { return false };
        self.socket = Some(socket);
        true
    }

    fn write(&mut self, data: &[u8]) -> Result<usize, &'static str> {
        let Some(socket) = &self.socket else { return Err("no connection") };
        rustix::net::send(socket, data, SendFlags::NOSIGNAL).map_err(name)
    }

    fn write_more(&mut self, data: &[u8]) -> Result<usize, &'static str> {
        let Some(socket) = &self.socket else { return Err("no connection") };
        rustix::net::send(socket, data, SendFlags::NOSIGNAL | SendFlags::MORE).map_err(name)
    }

    fn writable(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut asked = [PollFd::new(socket, PollFlags::OUT)];
        poll(&mut asked, Some(&none)).is_ok() && asked[0].revents().contains(PollFlags::OUT)
    }

    fn info(&mut self, field: &str) -> Option<u64> {
        let (_, at, len) = *INFO.iter().find(|(name, ..)| *name == field)?;
        let info = tcp_info(self.socket.as_ref()?)?;
        let bytes = info.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn read(&mut self) -> Read {
        let Some(socket) = &self.socket else { return Read::Error("no connection") };
        let mut buffer = vec![0; 1 << 20];
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((0, _)) => Read::End,
            Ok((len, _)) => Read::Data(buffer[..len].to_vec()),
            Err(Errno::AGAIN) => Read::Block,
            Err(error) => Read::Error(name(error)),
        }
    }

    fn call(&mut self, what: &str) -> Result<(), String> {
        let (name, value) = what.split_once('=').unwrap_or((what, ""));
        if name == "close-listener" {
            self.listener = None;
            return Ok(());
        }
        let socket = self.connection()?;
        let second = Duration::from_secs(1);
        match name {
            "shutdown-read" => rustix::net::shutdown(socket, Shutdown::Read).map_err(said)?,
            "shutdown-write" => rustix::net::shutdown(socket, Shutdown::Write).map_err(said)?,
            "close" => self.socket = None,
            "abort" => {
                sockopt::set_socket_linger(socket, Some(Duration::ZERO)).map_err(said)?;
                self.socket = None;
            }
            "nodelay" => sockopt::set_tcp_nodelay(socket, true).map_err(said)?,
            "cork" => sockopt::set_tcp_cork(socket, true).map_err(said)?,
            "uncork" => sockopt::set_tcp_cork(socket, false).map_err(said)?,
            "lowat" => set_tcp(socket, libc::TCP_NOTSENT_LOWAT, value)?,
            "keepalive" => {
                sockopt::set_tcp_keepidle(socket, second).map_err(said)?;
                sockopt::set_tcp_keepintvl(socket, second).map_err(said)?;
                sockopt::set_tcp_keepcnt(socket, 2).map_err(said)?;
                sockopt::set_socket_keepalive(socket, true).map_err(said)?;
            }
            "user-timeout" => {
                let limit = value.parse().map_err(|_| format!("{what:?}"))?;
                sockopt::set_tcp_user_timeout(socket, limit).map_err(said)?;
            }
            _ => return Err(format!("no call {what:?}")),
        }
        Ok(())
    }

    fn state(&mut self) -> String {
        let Some(socket) = &self.socket else { return "Closed".into() };
        let info = tcp_info(socket);
        let names = [
            "none",
            "Established",
            "SynSent",
            "SynReceived",
            "FinWait1",
            "FinWait2",
            "TimeWait",
            "Closed",
            "CloseWait",
            "LastAck",
            "Listen",
            "Closing",
        ];
        let state = info.and_then(|info| info.first().copied()).unwrap_or(0);
        names.get(usize::from(state)).copied().unwrap_or("none").into()
    }

    fn deliver(&mut self, packet: &Packet) {
        let mut bytes = packet.emit();
        let addresses = Addresses::V4 { source: self.peer, destination: ADDRESSES[1] };
        let sum = addresses.pseudo_header(IpProtocol::TCP, bytes.len()).bytes(&bytes).finish();
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        self.send_ip(6, packet.ecn, &bytes);
    }

    fn icmp(&mut self, what: &str, seq: u32) -> Result<(), String> {
        self.collect();
        let (kind, code, mtu) = match what.split_once('=').unwrap_or((what, "")) {
            ("network", _) => (3, 0, 0),
            ("host", _) => (3, 1, 0),
            ("protocol", _) => (3, 2, 0),
            ("port", _) => (3, 3, 0),
            ("prohibited", _) => (3, 13, 0),
            ("hops", _) => (11, 0, 0),
            ("mtu", mtu) => (3, 4, mtu.parse::<u16>().map_err(|_| format!("{what:?}"))?),
            _ => return Err(format!("no error {what:?}")),
        };
        let mut quote = self.sent.last().ok_or("nothing was sent")?.clone();
        quote[24..28].copy_from_slice(&seq.to_be_bytes());
        let mut icmp = vec![kind, code, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(quote);
        let sum = checksum(&icmp).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        self.send_ip(1, 0, &icmp);
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Option<Packet> {
        loop {
            self.collect();
            if let Some(packet) = self.out.pop_front() {
                return Some(packet);
            }
            let left = until.checked_sub(self.now()).filter(|left| !left.is_zero())?;
            let timeout = Timespec::try_from(left).expect("a short time");
            let _ = poll(&mut [PollFd::new(&self.device.as_fd(), PollFlags::IN)], Some(&timeout));
        }
    }
}
