//! UDP sockets: which network a datagram takes, and receiving from both.
//!
//! Owns the calls of UDP sockets that have a side in Tailwater, or get one. Each function returns
//! `None` for a call that is the kernel's alone.

use super::events::register_kept;
use super::io::{List, has_control};
use super::kernel_side::{bound, is_reachable, option, takes_both, time_option};
use crate::datagrams::{Datagrams, Peers};
use crate::file::{Errno, File, What, errno};
use crate::start::{self, Call, Transport};
use crate::transfer::Manner;
use crate::{address, ready, real, table};
use core::cell::Cell;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use libc::{
    AF_INET, AF_INET6, AF_UNSPEC, IPPROTO_IP, IPPROTO_IPV6, MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_TRUNC,
    POLLIN, SO_BROADCAST, SO_RCVTIMEO, SO_SNDTIMEO, SOCK_DGRAM, SOCK_NONBLOCK, SOL_SOCKET, SOL_UDP, c_int,
    iovec, msghdr, sockaddr, socklen_t,
};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tailwater::net::UdpSocket;

/// Room for any datagram.
const LARGEST: usize = 1 << 16;
/// Time between two tries to send while the egress ring is full.
const FULL_PAUSE: Duration = Duration::from_micros(50);
/// `MCAST_JOIN_GROUP` (include/uapi/linux/in.h).
const MCAST_JOIN_GROUP: c_int = 42;

thread_local! {
    /// Room for one datagram, of which the program's buffers may have less.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `f` with the file of descriptor `fd`, if it is a UDP socket.
fn with<R>(fd: i32, f: impl FnOnce(&Arc<File>, &Datagrams) -> Option<R>) -> Option<R> {
    let file = table::get(fd).filter(|_| start::may_serve())?;
    match &file.what {
        What::Datagrams(datagrams) => f(&file, datagrams),
        _ => None,
    }
}

/// Returns whether a read of `fd` looks for datagrams of Tailwater's network.
pub fn receives(fd: i32) -> bool {
    with(fd, |_, datagrams| datagrams.for_wait().map(|_| ())).is_some()
}

/// Returns whether a message takes Tailwater's network.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn takes(fd: i32, message: *const msghdr) -> bool {
    // SAFETY: the caller's contract.
    with(fd, |_, datagrams| unsafe { destination(datagrams, message) }).is_some()
}

/// Returns what `get` returns of a socket whose peer is on Tailwater's network.
pub fn connected(fd: i32, get: impl FnOnce(&UdpSocket) -> io::Result<SocketAddr>) -> Option<SocketAddr> {
    with(fd, |_, datagrams| {
        let udp = datagrams.udp().filter(|_| datagrams.peers() == Peers::OfTailwater)?;
        let _call = Call::begin()?;
        get(udp).ok().map(|address| datagrams.show(address))
    })
}

/// Returns and clears the pending error of a socket whose peer is on Tailwater's network.
pub fn take_error(fd: i32) -> Option<Errno> {
    with(fd, |_, datagrams| {
        let udp = datagrams.udp().filter(|_| datagrams.peers() == Peers::OfTailwater)?;
        let _call = Call::begin()?;
        Some(udp.take_error().ok().flatten().map_or(0, |error| errno(&error)))
    })
}

/// Returns the length of the next datagram of Tailwater's network, if there is one.
pub fn unread(fd: i32) -> Option<c_int> {
    with(fd, |_, datagrams| {
        let udp = datagrams.udp()?;
        let _call = Call::begin()?;
        with_room(|room| udp.peek(room)).ok().map(|len| len as c_int)
    })
}

/// Follows an option that the program has set on the kernel's socket.
pub fn note_option(fd: i32, level: c_int, name: c_int) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let joins = matches!(
        (level, name),
        (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP | MCAST_JOIN_GROUP)
            | (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP | MCAST_JOIN_GROUP)
    );
    with(fd, |_, datagrams| {
        if joins {
            start::say_once(&SAID, "multicast groups are joined on Linux's network alone");
        }
        adopt_options(fd, datagrams.udp()?);
        Some(())
    });
}

/// Gives Tailwater's side the options of the kernel's socket.
fn adopt_options(fd: i32, udp: &UdpSocket) {
    // The kernel has accepted the values.
    let _ = udp.set_broadcast(option(fd, SOL_SOCKET, SO_BROADCAST) == Some(1));
    if let Some(ttl) = option(fd, IPPROTO_IP, libc::IP_TTL).and_then(|ttl| u32::try_from(ttl).ok()) {
        let _ = udp.set_ttl(ttl);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    real::real! { socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int; }
    // SAFETY: no pointers.
    let fd = unsafe { socket(domain, kind, protocol) };
    let is_datagrams = kind & !(SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == SOCK_DGRAM;
    if fd >= 0
        && is_datagrams
        && matches!(domain, AF_INET | AF_INET6)
        && matches!(protocol, 0 | libc::IPPROTO_UDP)
        && start::may_serve()
    {
        let datagrams = Datagrams::new(domain == AF_INET6);
        // Without room in the table the socket is only the kernel's.
        table::put(fd, File::new(What::Datagrams(datagrams), kind & SOCK_NONBLOCK != 0));
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    real::real! { bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int; }
    // SAFETY: the caller's contract.
    let (result, wish) = unsafe { (bind(fd, to, len), address::read(to, len)) };
    if result == 0
        && let Some(wish) = wish.filter(|wish| wish.port() != 0 && is_reachable(wish.ip()))
    {
        with(fd, |_, datagrams| {
            datagrams.serve(wish, takes_both(fd, wish));
            Some(())
        });
    }
    result
}

/// Connects a UDP socket.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: i32, to: *const sockaddr, len: socklen_t) -> Option<Result<c_int, Errno>> {
    with(fd, |file, datagrams| {
        // SAFETY: the caller's contract; the length is compared.
        let (peer, family) = unsafe {
            let has_family = !to.is_null() && len as usize >= size_of::<libc::sa_family_t>();
            (address::read(to, len), has_family.then(|| c_int::from((*to).sa_family)))
        };
        if family == Some(AF_UNSPEC) && datagrams.peers() == Peers::OfTailwater {
            return Some(Err(libc::EAFNOSUPPORT));
        }
        if let Some(peer) = peer
            && let Some(udp) = begin_for(fd, file, datagrams, peer)
        {
            let Some(_call) = Call::begin() else { return Some(Err(libc::ENETDOWN)) };
            let result = udp.connect(canonical(peer)).map(|()| 0).map_err(|error| errno(&error));
            if result.is_ok() {
                datagrams.set_peers(Peers::OfTailwater);
            }
            return Some(result);
        }
        // SAFETY: the caller's contract.
        let result = unsafe { real::connect(fd, to, len) };
        if result == 0 {
            datagrams.set_peers(if family == Some(AF_UNSPEC) { Peers::All } else { Peers::OfKernel });
        }
        Some(if result == 0 { Ok(0) } else { Err(real::errno()) })
    })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns Tailwater's side for a datagram to `to`, which begins it; `None` if that is the
/// kernel's.
fn begin_for<'a>(
    fd: i32,
    file: &Arc<File>,
    datagrams: &'a Datagrams,
    to: SocketAddr,
) -> Option<&'a UdpSocket> {
    if !start::serves(Transport::Udp, to) {
        return None;
    }
    if let Some(begun) = datagrams.begun() {
        return begun;
    }
    // What the runtime serves is known exactly once it runs.
    if !start::ensure() || !start::serves(Transport::Udp, to) {
        return None;
    }
    let _call = Call::begin()?;
    let own = bind_if_needed(fd, datagrams.is_v6)?;
    let udp = datagrams.begin(own, takes_both(fd, own))?;
    adopt_options(fd, udp);
    register_kept(fd, file);
    Some(udp)
}

/// Returns the address of the kernel's socket, which gets a port if it has none: both sides have
/// the same.
fn bind_if_needed(fd: i32, is_v6: bool) -> Option<SocketAddr> {
    let own = bound(fd)?;
    if own.port() != 0 {
        return Some(own);
    }
    let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let ip = if own.ip().is_unspecified() { any } else { own.ip() };
    let (wish, len) = address::to_c(SocketAddr::new(ip, 0));
    // SAFETY: an address of that length.
    let result = unsafe { libc::bind(fd, (&raw const wish).cast(), len as socklen_t) };
    if result == 0 { bound(fd) } else { None }
}

/// Returns where a message goes in Tailwater's network: to an address, or, without one, to the
/// peer. `None` if it takes the kernel's.
///
/// # Safety
/// As sendmsg(2).
unsafe fn destination(datagrams: &Datagrams, message: *const msghdr) -> Option<Option<SocketAddr>> {
    // SAFETY: the caller's contract.
    let (name, len) = unsafe { ((*message).msg_name.cast::<sockaddr>(), (*message).msg_namelen) };
    if name.is_null() || len == 0 {
        return (datagrams.peers() == Peers::OfTailwater).then_some(None);
    }
    // SAFETY: the caller's contract.
    let to = unsafe { address::read(name, len) }?;
    start::serves(Transport::Udp, to).then_some(Some(to))
}

/// Sends a datagram.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn send(fd: i32, message: *const msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    with(fd, |file, datagrams| {
        // SAFETY: the caller's contract.
        let to = unsafe { destination(datagrams, message) }?;
        let udp = match to {
            Some(to) => begin_for(fd, file, datagrams, to)?,
            None => datagrams.udp()?,
        };
        // SAFETY: the caller's contract.
        Some(unsafe { send_by(fd, file, udp, to, message, flags) })
    })
}

/// Sends a datagram on Tailwater's network.
///
/// # Safety
/// As sendmsg(2).
unsafe fn send_by(
    fd: i32,
    file: &File,
    udp: &UdpSocket,
    to: Option<SocketAddr>,
    message: *const msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's contract.
    if unsafe { has_control_of_udp(message) } {
        return Err(libc::EINVAL);
    }
    // SAFETY: as above.
    let mut list = unsafe { List::of((*message).msg_iov, (*message).msg_iovlen)? };
    // SAFETY: as above.
    let parts = unsafe { list.for_writing() };
    let joined: Vec<u8>;
    let data: &[u8] = match &*parts {
        [] => &[],
        [part] => part,
        parts => {
            joined = parts.iter().flat_map(|part| part.iter().copied()).collect();
            &joined
        }
    };
    let waits = Manner::of(file, flags).waits;
    let until = waits.then(|| time_option(fd, SO_SNDTIMEO)).flatten().map(|limit| Instant::now() + limit);
    loop {
        let call = Call::begin().ok_or(libc::ENETDOWN)?;
        let result = match to {
            Some(to) => udp.send_to(data, canonical(to)),
            None => udp.send(data),
        };
        match result {
            // The egress ring is full for as long as the IOKernel needs to take from it.
            Err(error) if waits && error.kind() == ErrorKind::WouldBlock => {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(libc::EAGAIN);
                }
                tailwater::time::sleep(FULL_PAUSE);
            }
            result => return result.map_err(|error| errno(&error)),
        }
        drop(call);
    }
}

/// Returns whether a message asks for segments or the like, which Tailwater's sockets do not make.
///
/// # Safety
/// As sendmsg(2).
unsafe fn has_control_of_udp(message: *const msghdr) -> bool {
    // SAFETY: the caller's contract.
    unsafe { has_control(message, |control| (*control).cmsg_level == SOL_UDP) }
}

/// Returns a message of one list of buffers.
fn message(buffers: *const iovec, count: usize, name: *mut sockaddr, len: socklen_t) -> msghdr {
    // SAFETY: a msghdr may be all zeros.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (buffers.cast_mut(), count);
    (message.msg_name, message.msg_namelen) = (name.cast(), len);
    message
}

/// Sends a datagram to the peer.
///
/// # Safety
/// As writev(2).
pub unsafe fn write(fd: i32, buffers: *const iovec, count: usize) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    unsafe { send(fd, &message(buffers, count, core::ptr::null_mut(), 0), 0) }
}

/// Sends a datagram of one buffer.
///
/// # Safety
/// As sendto(2).
pub unsafe fn send_to(
    fd: i32,
    buffer: &iovec,
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    unsafe { send(fd, &message(buffer, 1, to.cast_mut(), len), flags) }
}

/// Receives a datagram into a list of buffers.
///
/// # Safety
/// As readv(2).
pub unsafe fn read(
    fd: i32,
    buffers: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    unsafe { receive(fd, &mut message(buffers, count, core::ptr::null_mut(), 0), flags) }
}

/// Receives a datagram into one buffer, and its sender.
///
/// # Safety
/// As recvfrom(2).
pub unsafe fn receive_from(
    fd: i32,
    buffer: &iovec,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's contract.
    unsafe {
        let has_room = !from.is_null() && !len.is_null();
        let (from, room) = if has_room { (from, *len) } else { (core::ptr::null_mut(), 0) };
        let mut message = message(buffer, 1, from, room);
        let result = receive(fd, &raw mut message, flags);
        if has_room && matches!(result, Some(Ok(_))) {
            *len = message.msg_namelen;
        }
        result
    }
}

/// Receives a datagram.
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn receive(fd: i32, message: *mut msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    with(fd, |file, datagrams| {
        let udp = datagrams.for_wait()?;
        // SAFETY: the caller's contract.
        Some(unsafe { receive_by(fd, file, datagrams, udp, message, flags) })
    })
}

/// Receives a datagram from either network.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receive_by(
    fd: i32,
    file: &File,
    datagrams: &Datagrams,
    udp: &UdpSocket,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    // Linux's answers where there is no such data.
    if flags & MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    let mut kernel_first = datagrams.is_kernel_turn();
    loop {
        let call = Call::begin().ok_or(libc::ENETDOWN)?;
        // SAFETY: the caller's contract.
        let result = unsafe {
            let of_kernel = || receive_kernel(fd, datagrams, message, flags);
            let of_tailwater = || receive_tailwater(datagrams, udp, message, flags);
            if kernel_first { of_kernel().or_else(of_tailwater) } else { of_tailwater().or_else(of_kernel) }
        };
        if let Some(result) = result {
            return result;
        }
        if !Manner::of(file, flags).waits {
            return Err(libc::EAGAIN);
        }
        kernel_first = false;
        ready::wait_for(fd, POLLIN, time_option(fd, SO_RCVTIMEO))?;
        drop(call);
    }
}

/// Receives a datagram of the kernel, if there is one.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receive_kernel(
    fd: i32,
    datagrams: &Datagrams,
    message: *mut msghdr,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    if datagrams.peers() == Peers::OfTailwater {
        return None;
    }
    // SAFETY: the caller's contract.
    let received = unsafe { real::recvmsg(fd, message, flags | MSG_DONTWAIT) };
    match usize::try_from(received) {
        Ok(received) => Some(Ok(received)),
        Err(_) => Some(real::errno()).filter(|&error| error != libc::EAGAIN).map(Err),
    }
}

/// Receives a datagram of Tailwater's network, if there is one.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receive_tailwater(
    datagrams: &Datagrams,
    udp: &UdpSocket,
    message: *mut msghdr,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    with_room(|room| match if flags & MSG_PEEK != 0 { udp.peek_from(room) } else { udp.recv_from(room) } {
        // SAFETY: the caller's contract.
        Ok((len, from)) => Some(unsafe { give(&room[..len], datagrams.show(from), message, flags) }),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(errno(&error))),
    })
}

/// Calls `receive` with room for the largest datagram. A handler of a signal may receive, too, so
/// the room is taken meanwhile.
fn with_room<R>(receive: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut room = ROOM.take();
    room.resize(LARGEST, 0);
    let result = receive(&mut room);
    ROOM.set(room);
    result
}

/// Writes a datagram and its sender to a message.
///
/// # Safety
/// As recvmsg(2).
unsafe fn give(data: &[u8], from: SocketAddr, message: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    unsafe {
        let mut list = List::of((*message).msg_iov, (*message).msg_iovlen)?;
        let mut left = data;
        for buffer in list.for_reading() {
            let (now, later) = left.split_at(left.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            left = later;
        }
        let (name, mut len) = ((*message).msg_name.cast(), (*message).msg_namelen);
        address::write(from, name, &raw mut len);
        (*message).msg_namelen = if name.is_null() { 0 } else { len };
        (*message).msg_controllen = 0;
        (*message).msg_flags = if left.is_empty() { 0 } else { MSG_TRUNC };
        Ok(if flags & MSG_TRUNC != 0 { data.len() } else { data.len() - left.len() })
    }
}
