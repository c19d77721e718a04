//! The control socket: how a runtime registers and gets its memory.
//!
//! A Unix `SOCK_SEQPACKET` socket carries one JSON message per packet. The conversation of a
//! runtime is
//!
//! ```text
//! runtime                                   IOKernel
//!   Register{name, kthreads, limits, ..} ->
//!                                        <-  Welcome{addresses} +
//!                                              [region, doorbell, board]
//!                                            or Refused{why}
//!   Kthreads{tids}                       ->    (threads exist, bound nowhere, about to park)
//!                                        <-  Ready
//!                                            or Refused{why}
//!   ... the socket stays open; closing it, by exit or crash, ends the registration ...
//! ```
//!
//! `Capture` requests copies of frames instead, and is answered with `Capturing` and a memory file
//! whose first ingress ring carries them, until the socket is closed. `Trace` requests the steps of
//! sampled requests, until the socket is closed, and `Recorded` what the IOKernel has recorded
//! before; both are answered with `Tracing` and the file of its recorder. `RequestCores` requests
//! cores for a registered runtime. `Stats` requests the IOKernel's counters as JSON, at any time,
//! and `Rights` what the client's user may do. An address that begins with `@` is in Linux's
//! abstract namespace and needs no file.
//!
//! The conversation need not be fast. The receiver bounds each message ([`MAX_MESSAGE`]); unknown
//! fields are refused, so that a misspelt one is noticed.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg,
    sendmsg, socket_with,
};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

mod handover;
mod listen;
mod peer;
mod socket_file;

pub use handover::{
    Estate, Handover, HandoverPort, HandoverProgram, Network, TAKEOVER_STEPS, Takeover, document_from_file,
    document_to_file,
};
pub use listen::{Listen, ListenError, MAX_LISTEN, Transport, parse_listens};
pub use peer::Peer;
pub use socket_file::SocketFile;

/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = 192 * 1024;
/// Maximum number of descriptors with one message: of an AF_XDP port with 16 queues in a takeover,
/// and some more.
pub const MAX_FDS: usize = 48;

/// Maximum length of a program's name in characters.
pub const MAX_NAME: usize = 64;

/// Returns whether a text can be a program's name: 1 to [`MAX_NAME`] printable ASCII characters,
/// the first and the last of them no blanks. Other characters may be invisible, reorder the line
/// they are printed in, or look like those of another name.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_graphic() || c == b' ';
    let has_outer_blank = text.starts_with(' ') || text.ends_with(' ');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain) && !has_outer_blank
}

/// Maximum time until a connection that has been requested waits to be accepted.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of characters of a text that quotes a peer's message.
const MAX_QUOTED: usize = 200;

/// How the allocator treats a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramClass {
    /// May take burstable cores from best-effort runtimes at once.
    #[default]
    LatencyCritical,
    /// Gets the cores that are left.
    BestEffort,
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientMessage {
    /// Registers a runtime.
    Register(Register),
    /// Linux thread ids of its kthreads, by index, in the PID namespace of the program.
    Kthreads {
        /// One id per kthread.
        tids: Vec<i32>,
    },
    /// Requests the counters; from any client.
    Stats,
    /// Requests what the client's user may do; from any client.
    Rights,
    /// Requests copies of frames; from a client of the IOKernel's user, or of root.
    Capture(CaptureRequest),
    /// Requests a trace of single requests; from a client of the IOKernel's user, or of root.
    Trace(TraceRequest),
    /// Requests what the IOKernel recorded last; from the same.
    Recorded,
    /// Requests cores for a registered runtime, besides what that requests itself; from a client of
    /// the runtime's user, of the IOKernel's, or of root.
    RequestCores(CoreRequest),
    /// Requests what an IOKernel needs to take the place of this one; from a client of its user.
    Takeover(Takeover),
    /// The client, which has had [`ServerMessage::Handover`], can serve: this IOKernel is to end.
    Succeed,
    /// The earlier instance of this runtime is to end in good order: the later one serves.
    EndEarlier,
}

/// On which side of a runtime or port a frame is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Received: to the runtime, or in through the port.
    Rx,
    /// Sent: from the runtime, or out through the port.
    Tx,
}

/// Which frames are captured. With neither name, each frame once where it enters the switch; with
/// both, the frames of either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CaptureRequest {
    /// Frames from and to the runtime of this name, also when it registers later.
    pub runtime: Option<String>,
    /// Frames in and out through this port.
    pub port: Option<String>,
    /// Only frames in this direction.
    pub direction: Option<Direction>,
    /// Maximum bytes of each frame, 14 to 9018.
    pub snap: u16,
    /// Size in bytes of the ring that holds the frames, a power of two.
    pub ring_bytes: u32,
}

/// Which requests are traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TraceRequest {
    /// Of this many frames with data that ports bring to the runtime, or to all, one is traced; at
    /// least 1.
    pub every: u32,
    /// Only frames for the runtime of this name, also when it registers later.
    pub runtime: Option<String>,
}

/// Cores that are requested for a runtime until it ends, in place of those requested so before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CoreRequest {
    /// Name of the runtime.
    pub runtime: String,
    /// Number of cores at each priority, 0 first. At each the larger of this and of what the
    /// runtime requests itself counts.
    pub cores: [u8; 8],
}

/// The answer to a watcher; the memory file is sent with it. A record's flow hash is the frame's
/// full length, its stamp the time at which the frame was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Capturing {
    /// Number of the capture in the statistics.
    pub id: u64,
    /// A moment on the clock of the stamps.
    pub cycles: u64,
    /// The same moment in nanoseconds since 1970.
    pub unix_ns: u64,
}

/// A runtime's request for registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Register {
    /// [`crate::layout::VERSION`] of the runtime's build, which the IOKernel has to
    /// [serve](crate::Version::serves).
    pub version: u32,
    /// Name in statistics; 1 to 64 printable ASCII characters, unique.
    pub name: String,
    /// Number of kthreads: the maximum number of cores it can use at once.
    pub kthreads: u16,
    /// Cores it is entitled to without being preempted.
    pub guaranteed: u16,
    /// Allocation class.
    pub class: ProgramClass,
    /// Size of each packet ring in bytes.
    pub ring_bytes: u32,
    /// Requested address; `None` lets the IOKernel choose.
    pub ip: Option<Ipv4Addr>,
    /// `ip` is the address that a previous IOKernel chose for this program, which has not asked for
    /// one itself.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub returns: bool,
    /// Whether another instance of the program may have its name and address at the same time.
    #[serde(default, skip_serializing_if = "Instance::is_only")]
    pub instance: Instance,
    /// Ports at which it listens, for an IOKernel whose programs share the addresses of Linux; at
    /// most [`MAX_LISTEN`]. Others ignore it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<Listen>,
}

/// How a runtime stands to another instance of the same program, which has its name and address.
/// There are two at most. Frames for the address go to the later one, which passes on those that
/// are not for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Instance {
    /// There is no other. In a registration: and there may be none.
    #[default]
    Only,
    /// There is no other that it knows of. It takes the place of one that runs, and lets another
    /// one take its own.
    Latest,
    /// It has taken the place of one that has not ended yet.
    Replaces,
    /// Another one has taken its place.
    Replaced,
}

impl Instance {
    /// Returns whether it lets no other instance be.
    #[must_use]
    pub fn is_only(&self) -> bool {
        *self == Self::Only
    }
}

/// A message of the IOKernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ServerMessage {
    /// Registration accepted; region, doorbell and, where there is one, the board are sent with
    /// this message, in this order.
    Welcome(Welcome),
    /// Kthreads accepted: cores may be granted from now on.
    Ready,
    /// How the runtime stands to another instance from now on. Sent to one that has registered as
    /// another than [`Instance::Only`], at any time after `Ready`.
    Instance(Instance),
    /// The runtime is to end in good order: the instance that replaces it serves.
    End,
    /// Not accepted; the socket is closed after this.
    Refused {
        /// What was wrong and what to do.
        why: String,
    },
    /// The counters, as a JSON document.
    Stats(serde_json::Value),
    /// What the client's user may do.
    Rights {
        /// In words.
        may: String,
    },
    /// The cores are requested from now on.
    CoresRequested {
        /// Largest number of cores that the runtime may own by requests.
        limit: u16,
    },
    /// Frames are copied from now on.
    Capturing(Capturing),
    /// The file is that of a [`crate::trace::Recorder`]. If a trace was requested, requests are
    /// traced from the moment of this message on.
    Tracing(Capturing),
    /// What the client needs to take the place of this IOKernel, which goes on until
    /// [`ClientMessage::Succeed`].
    Handover(Handover),
    /// This IOKernel ends, come what may. It closes the connection when it serves no program any
    /// more.
    Leaving,
}

/// A granted registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Welcome {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Length of the network prefix, 0 to 32.
    pub prefix_len: u8,
    /// The gateway to other networks, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// Its IPv6 addressing; `None` on a network without IPv6.
    pub ipv6: Option<Ipv6Place>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Maximum length of an IP packet on the network in bytes. Between programs it is
    /// [`MAX_PACKET`](crate::ring::MAX_PACKET).
    pub mtu: u16,
    /// Cores that the IOKernel manages.
    pub managed_cores: Vec<u16>,
    /// True if kthreads are to take the highest rank of ordinary threads
    /// ([`raise_thread`](crate::priority::raise_thread)): the machine is dedicated, or the IOKernel
    /// gives them other ranks while other programs compete for the cores. False where it may not.
    pub raise: bool,
    /// The place of kthread 0 at the [board](crate::board); those of the others follow. `None` if
    /// the program is of minor version 0, or there is no board or no such row of places for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u16>,
    /// First and last port of those that its own connections and unbound sockets are to use. `None`
    /// if all ports are its own; where they are not, a program of a minor version below 4 is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<(u16, u16)>,
}

/// A runtime's place in the IPv6 network. Besides `ip` it has the link-local address with the
/// interface identifier that RFC 4291 appendix A derives from its MAC address; the IOKernel lets it
/// send from these two only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ipv6Place {
    /// Its address.
    pub ip: Ipv6Addr,
    /// Length of the network prefix, 0 to 128.
    pub prefix_len: u8,
    /// The gateway to other networks, if there is one.
    pub gateway: Option<Ipv6Addr>,
}

/// Why a message could not be exchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The other side is gone.
    #[error("the connection was closed by the other side")]
    Closed,
    /// A non-blocking socket has no message.
    #[error("no message waits")]
    WouldBlock,
    /// A system call failed.
    #[error("control socket {path}: cannot {action}: {source}{hint}")]
    System {
        /// Address concerned, empty when connected.
        path: String,
        /// What was attempted.
        action: &'static str,
        /// The kernel's error.
        source: Errno,
        /// What to do, empty or with a leading "; ".
        hint: String,
    },
    /// No socket can have this address.
    #[error("control socket `{path}`: {why}")]
    Address {
        /// The address.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The IOKernel at the address is of a user who is not trusted.
    #[error(
        "control socket {path}: user {theirs} listens there, neither root nor this program's user {ours}; \
         if that IOKernel is meant, write {path},user={theirs}"
    )]
    OtherUser {
        /// The address.
        path: String,
        /// User of the IOKernel.
        theirs: u32,
        /// User of this program.
        ours: u32,
    },
    /// Not a message of this protocol.
    #[error("a {len}-byte message is not one this version understands: {why}")]
    Malformed {
        /// Its length.
        len: usize,
        /// The parser's message.
        why: String,
    },
    /// More bytes than [`MAX_MESSAGE`].
    #[error("a message of more than {MAX_MESSAGE} bytes")]
    TooLong,
    /// More requests than the IOKernel answers.
    #[error(
        "clients of this user have taken too much of the IOKernel's time with too many questions; ask again in a second"
    )]
    TooOften,
    /// A message with descriptors where none are received.
    #[error("a message with descriptors; the IOKernel receives none")]
    Descriptors,
}

fn system(path: &str, action: &'static str) -> impl Fn(Errno) -> ControlError {
    move |source| {
        let hint = match (action, source) {
            ("connect", Errno::NOENT | Errno::CONNREFUSED) if socket_file::is_other(path) => {
                "; that is a file and no socket"
            }
            ("connect", Errno::NOENT | Errno::CONNREFUSED) => {
                let hint = format!("; start one with `tailwater iokernel --socket {path}`");
                return ControlError::System { path: path.to_owned(), action, source, hint };
            }
            ("connect", Errno::AGAIN) => {
                "; as many connections as Linux keeps wait there, and none is accepted: is the IOKernel stopped?"
            }
            ("bind", Errno::ADDRINUSE) => "; another IOKernel runs there: stop it or choose another --socket",
            ("connect", Errno::ACCESS | Errno::PERM) => {
                "; that IOKernel is not open to this user: its administrator adds a [[grant]] for the user to its \
                 configuration and reloads it"
            }
            (_, Errno::ACCESS | Errno::PERM) => "; choose a --socket in a directory you may write",
            _ => "",
        };
        ControlError::System { path: path.to_owned(), action, source, hint: hint.to_owned() }
    }
}

fn address(path: &str) -> Result<SocketAddrUnix, ControlError> {
    let wrong = |why| ControlError::Address { path: path.to_owned(), why };
    // For an empty path Linux chooses an abstract name, at which no program would look.
    if matches!(path, "" | "@") {
        return Err(wrong("it has no name; write a path such as /run/tailwater/socket, or @NAME"));
    }
    match path.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        None => SocketAddrUnix::new(path),
    }
    .map_err(|_| wrong("it may have at most 108 bytes, none of which is 0"))
}

/// Checks that an IOKernel could listen at `path`, or, with `,user=UID` after it, be dialled there.
///
/// # Errors
/// [`ControlError::Address`].
pub fn check_address(path: &str) -> Result<(), ControlError> {
    let (path, _) = split_user(path);
    if path.contains(",user=") {
        let why = "after ,user= comes the number of a user, as of `id -u NAME`";
        return Err(ControlError::Address { path: path.to_owned(), why });
    }
    address(path).map(|_| ())
}

/// Connects to the IOKernel that listens at `path`, if it is root's or the caller's own: any user
/// can take an abstract address, and an IOKernel gives a program its memory and its packets. A
/// `path` that ends in `,user=UID` names one more user whose IOKernel is trusted. Waits up to 10 s
/// where as many connections as Linux keeps wait to be accepted.
///
/// # Errors
/// If no IOKernel listens there, it is another user's, or the kernel refuses.
pub fn dial(path: &str) -> Result<OwnedFd, ControlError> {
    dial_within(path, DIAL_TIMEOUT)
}

/// As [`dial`], but waits no longer than `patience`.
///
/// # Errors
/// As [`dial`]; the kernel's error is [`Errno::AGAIN`] after `patience`.
pub fn dial_within(path: &str, patience: Duration) -> Result<OwnedFd, ControlError> {
    let deadline = Instant::now() + patience;
    loop {
        // Zero is no limit.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match dial_once(path, left) {
            // A signal that comes more often than that would put the end off for ever.
            Err(ControlError::System { source: Errno::INTR, .. }) if Instant::now() < deadline => {}
            result => return result,
        }
    }
}

fn dial_once(path: &str, patience: Duration) -> Result<OwnedFd, ControlError> {
    let (path, named) = split_user(path);
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system(path, "make a socket"))?;
    let address = address(path)?;
    set_socket_timeout(&fd, Timeout::Send, Some(patience))
        .and_then(|()| connect(&fd, &address))
        .and_then(|()| set_socket_timeout(&fd, Timeout::Send, None))
        .map_err(system(path, "connect"))?;
    // The user who called listen(2); another process may hold that socket by now.
    let theirs = Peer::of(&fd).map_err(system(path, "learn whose it is"))?.uid;
    let ours = geteuid().as_raw();
    if theirs == 0 || theirs == ours || named == Some(theirs) {
        return Ok(fd);
    }
    Err(ControlError::OtherUser { path: path.to_owned(), theirs, ours })
}

/// Splits `,user=UID` off a socket's address.
fn split_user(path: &str) -> (&str, Option<u32>) {
    let split = path.rsplit_once(",user=").and_then(|(path, user)| Some((path, user.parse().ok()?)));
    split.map_or((path, None), |(path, user)| (path, Some(user)))
}

/// Maximum number of connections that wait to be accepted, or as many as Linux keeps
/// (`net.core.somaxconn`, 4096 by default): all programs of an IOKernel that ends connect at once.
const BACKLOG: i32 = 4096;

/// Listens at `path`; connections are accepted without blocking. `prepare` sets options before the
/// first connection, which accepted sockets inherit. A socket file that no process listens at any
/// more is replaced.
///
/// # Errors
/// If the address is taken or the kernel refuses.
pub fn serve(path: &str, prepare: impl FnOnce(&OwnedFd)) -> Result<OwnedFd, ControlError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system(path, "make a socket"))?;
    prepare(&fd);
    let address = address(path)?;
    let lock = socket_file::lock(path);
    let mut bound = bind(&fd, &address);
    if bound == Err(Errno::ADDRINUSE)
        && lock.as_ref().is_some_and(|lock| socket_file::remove_dead(path, lock))
    {
        bound = bind(&fd, &address);
    }
    bound.map_err(system(path, "bind"))?;
    listen(&fd, BACKLOG).map_err(system(path, "listen"))?;
    Ok(fd)
}

/// Listens with a socket of [`serve`] that another process has passed on: clients that connect from
/// now on learn that it is this one's.
///
/// # Errors
/// The kernel's error.
pub fn listen_instead(listener: &OwnedFd) -> Result<(), ControlError> {
    listen(listener, BACKLOG).map_err(system("", "listen"))
}

/// Sends one message and up to [`MAX_FDS`] descriptors.
///
/// # Errors
/// [`ControlError::Closed`] if the peer is gone, [`ControlError::TooLong`], or the kernel's error.
///
/// # Panics
/// With more than [`MAX_FDS`] descriptors.
pub fn send<M: Serialize>(
    socket: impl AsFd,
    message: &M,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ControlError> {
    send_encoded(socket, &encode(message), fds)
}

/// Returns a message as it is sent.
///
/// # Panics
/// If it is no message of this module.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    serde_json::to_vec(message).expect("control messages have string keys only")
}

/// As [`send`], of a message that is encoded already.
///
/// # Errors
/// As [`send`].
///
/// # Panics
/// As [`send`].
pub fn send_encoded(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
    assert!(fds.len() <= MAX_FDS, "{} descriptors with one message", fds.len());
    if bytes.len() > MAX_MESSAGE {
        return Err(ControlError::TooLong);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "the buffer holds MAX_FDS descriptors");
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(ControlError::Closed),
        Err(Errno::AGAIN) => Err(ControlError::WouldBlock),
        Err(source) => Err(system("", "send")(source)),
    }
}

/// Receives one message and the descriptors that came with it.
///
/// # Errors
/// [`ControlError::Closed`], [`ControlError::WouldBlock`] on a non-blocking socket,
/// [`ControlError::Malformed`], [`ControlError::TooLong`], or the kernel's error.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, Vec<OwnedFd>), ControlError> {
    let mut bytes = vec![0; MAX_MESSAGE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break message.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ControlError::WouldBlock),
            Err(Errno::CONNRESET) => return Err(ControlError::Closed),
            Err(source) => return Err(system("", "receive")(source)),
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match len {
        0 => Err(ControlError::Closed),
        len if len > MAX_MESSAGE => Err(ControlError::TooLong),
        len => serde_json::from_slice(&bytes[..len])
            .map(|message| (message, fds))
            .map_err(|e| ControlError::Malformed { len, why: printable(&e.to_string()) }),
    }
}

/// Returns the beginning of a peer's text, or of one that quotes it, with all but printable ASCII
/// escaped: nothing in it ends a line, controls a terminal or changes the order of what is read.
#[must_use]
pub fn printable(text: &str) -> String {
    let escaped: String = text.chars().take(MAX_QUOTED).flat_map(char::escape_default).collect();
    let plain = escaped.replace("\\\"", "\"").replace("\\'", "'");
    if text.chars().nth(MAX_QUOTED).is_some() { plain + "..." } else { plain }
}

/// As [`receive`], of a client that is not trusted: a message with descriptors stays unread in the
/// socket. A descriptor that is received must be closed, and closing takes as long as its sender
/// likes: a TCP socket with `SO_LINGER` waits for its peer.
///
/// # Errors
/// As [`receive`], and [`ControlError::Descriptors`].
pub fn receive_bare<M: DeserializeOwned>(socket: impl AsFd) -> Result<M, ControlError> {
    if next_has_descriptors(&socket) {
        return Err(ControlError::Descriptors);
    }
    receive(socket).map(|(message, _)| message)
}

/// Returns whether the next message that waits in `socket` has descriptors.
fn next_has_descriptors(socket: impl AsFd) -> bool {
    let (mut start, mut no_space) = ([0], RecvAncillaryBuffer::default());
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    // A peek for which there is no space opens no descriptor and reports that some were left.
    recvmsg(socket, &mut [IoSliceMut::new(&mut start)], &mut no_space, flags)
        .is_ok_and(|message| message.flags.contains(ReturnFlags::CTRUNC))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::net::accept;
    use tailwater_testkit::socket_name;

    fn pair(name: &str) -> (OwnedFd, OwnedFd) {
        let path = socket_name(name);
        let listener = serve(&path, |_| ()).unwrap();
        let client = dial(&path).unwrap();
        (client, accept(&listener).unwrap())
    }

    #[test]
    fn a_user_to_whom_a_socket_is_closed_needs_a_grant_and_no_other_socket() {
        let refused = |action| system("/run/tailwater/socket", action)(Errno::ACCESS).to_string();
        let dialled = refused("connect");
        assert!(dialled.contains("[[grant]]") && !dialled.contains("--socket"), "{dialled}");
        assert!(refused("bind").contains("--socket"), "one that listens chooses its own");
    }

    #[test]
    fn messages_and_descriptors_arrive() {
        let (client, server) = pair("fds");
        let file = crate::memory::create("tailwater-test", 4096).unwrap();
        send(&client, &ClientMessage::Kthreads { tids: vec![1, 2] }, &[file.as_fd(), file.as_fd()]).unwrap();
        let (message, fds) = receive::<ClientMessage>(&server).unwrap();
        assert_eq!(message, ClientMessage::Kthreads { tids: vec![1, 2] });
        assert_eq!(fds.len(), 2);
    }

    #[test]
    fn a_message_with_descriptors_stays_unread_where_none_are_received() {
        let (client, server) = pair("bare");
        let file = crate::memory::create("tailwater-test", 4096).unwrap();
        send(&client, &ClientMessage::Stats, &[]).unwrap();
        send(&client, &ClientMessage::Stats, &[file.as_fd()]).unwrap();
        assert!(matches!(receive_bare(&server), Ok(ClientMessage::Stats)));
        for _ in 0..2 {
            let refused = receive_bare::<ClientMessage>(&server);
            assert!(matches!(refused, Err(ControlError::Descriptors)), "{refused:?}");
        }
        assert_eq!(receive::<ClientMessage>(&server).unwrap().1.len(), 1);
    }

    #[test]
    fn garbage_and_misspelt_fields_are_malformed() {
        let (client, server) = pair("garbage");
        for text in ["", "{", "{\"register\":{}}", "{\"kthreads\":{\"tids\":[],\"tid\":1}}", "\u{0}\u{ff}"] {
            if text.is_empty() {
                continue;
            }
            rustix::net::send(&client, text.as_bytes(), SendFlags::empty()).unwrap();
            assert!(
                matches!(receive::<ClientMessage>(&server), Err(ControlError::Malformed { .. })),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_a_message_has_in_it_is_quoted_shortly_and_in_printable_ascii() {
        let (client, server) = pair("quoted");
        for field in ["\u{1b}[31m\u{202e}\r\u{200b}\n 2026 INFO", &"x".repeat(100_000)] {
            let text = serde_json::json!({ "register": { field: 1 } }).to_string();
            rustix::net::send(&client, text.as_bytes(), SendFlags::empty()).unwrap();
            let error = receive::<ClientMessage>(&server).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
            assert!(error.bytes().all(|c| c.is_ascii_graphic() || c == b' '), "{error:?}");
            assert!(error.len() < 400, "{error}");
        }
    }

    #[test]
    fn an_address_may_name_a_user() {
        assert_eq!(split_user("@tailwater"), ("@tailwater", None));
        assert_eq!(split_user("@tailwater,user=1000"), ("@tailwater", Some(1000)));
        assert_eq!(split_user("/run/a,user=b"), ("/run/a,user=b", None));
    }

    #[test]
    fn a_missing_iokernel_is_named_with_the_remedy() {
        let error = dial("@tailwater-no-listener-here").unwrap_err().to_string();
        assert!(error.contains("tailwater iokernel"), "{error}");
    }

    #[test]
    fn a_connection_for_which_there_is_no_room_is_not_awaited_for_ever() {
        let path = socket_name("full");
        let listener = serve(&path, |_| ()).unwrap();
        // Linux keeps as many as this, and one more.
        listen(&listener, 1).unwrap();
        let dial = || dial_within(&path, Duration::from_millis(1));
        let waiting: Vec<OwnedFd> = (0..2).map(|_| dial().unwrap()).collect();
        let error = dial().unwrap_err().to_string();
        assert!(error.contains("is the IOKernel stopped"), "{error}");
        drop(accept(&listener).unwrap());
        dial().unwrap();
        drop(waiting);
    }

    #[test]
    fn a_closed_peer_is_told_apart_from_an_error() {
        let (client, server) = pair("closed");
        drop(client);
        assert!(matches!(receive::<ClientMessage>(&server), Err(ControlError::Closed)));
        assert!(matches!(send(&server, &ServerMessage::Ready, &[]), Err(ControlError::Closed)));
    }
}
