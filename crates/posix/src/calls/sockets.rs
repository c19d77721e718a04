//! Sockets: how they begin, their addresses and options.

use super::events::register_kept;
use super::kernel_side::{bound, is_nonblocking, is_reachable, is_tcp, option, takes_both};
use super::{answer_int, datagrams, served};
use crate::file::{Errno, File, Listener, Stream, What, errno};
use crate::start::{self, Call, Transport};
use crate::{address, kept, own, ready, real, table};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use libc::{
    IPPROTO_TCP, POLLIN, POLLOUT, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOCK_CLOEXEC,
    SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET, TCP_INFO, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY,
    TCP_USER_TIMEOUT, c_int, c_long, c_void, linger, sockaddr, socklen_t, timeval,
};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, PoisonError};
use tailwater::net::{TcpInfo, TcpKeepalive, TcpState, TcpStream, UdpSocket};

/// A socket that is not connected, whose copies are the descriptors of accepted connections; -1
/// before the first.
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);
/// Lowest number of the placeholder itself: programs expect low ones.
const LOWEST: c_long = 512;

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if served(fd).is_some_and(|(file, _call)| file.stream().is_some()) {
        return real::fail(libc::EINVAL);
    }
    // SAFETY: no pointers.
    let result = unsafe { real::listen(fd, backlog) };
    if result == 0
        && start::may_serve()
        && is_tcp(fd)
        && table::get(fd).is_none()
        && let Some(at) = bound(fd).filter(|at| is_reachable(at.ip()))
    {
        let backlog = u32::try_from(backlog).unwrap_or(1).max(1);
        let listener = Listener::new(at, takes_both(fd, at), backlog);
        table::put(fd, File::new(What::Listener(listener), is_nonblocking(fd)));
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { accept4(fd, out, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, out: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let file = table::get(fd).filter(|_| start::may_serve());
    let Some(file) = file else {
        // SAFETY: the caller's contract.
        return unsafe { super::io::at_kernel(fd, POLLIN, 0, || real::accept4(fd, out, len, flags)) };
    };
    let tcp = match &file.what {
        What::Listener(listener) => listener.tailwater().map(|tcp| (listener, tcp)),
        What::Datagrams(_) => None,
        What::Stream(_) | What::Set(_) => return real::fail(libc::EINVAL),
    };
    let Some((listener, tcp)) = tcp else {
        // SAFETY: as above.
        return unsafe { super::io::at_kernel(fd, POLLIN, 0, || real::accept4(fd, out, len, flags)) };
    };
    loop {
        let Some(call) = Call::begin() else { return real::fail(libc::ENETDOWN) };
        match tcp.accept() {
            // SAFETY: the caller's contract.
            Ok((stream, peer)) => return answer_int(unsafe { admit(stream, peer, out, len, flags) }),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return real::fail(errno(&error)),
        }
        // SAFETY: as above.
        if let Some(accepted) = unsafe { accept_from_kernel(fd, listener, out, len, flags) } {
            return accepted;
        }
        if file.nonblocking.load(Relaxed) {
            return real::fail(libc::EAGAIN);
        }
        if let Err(error) = ready::wait_for(fd, POLLIN, None) {
            return real::fail(error);
        }
        drop(call);
    }
}

/// Accepts a client of Linux, if there is one, without waiting.
///
/// # Safety
/// As accept(2) for `out` and `len`.
unsafe fn accept_from_kernel(
    fd: i32,
    listener: &Listener,
    out: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let _accepts = listener.accepts.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready::kernel_is_ready(fd, POLLIN) {
        return None;
    }
    // SAFETY: the caller's contract.
    let accepted = unsafe { real::accept4(fd, out, len, flags) };
    (accepted >= 0 || real::errno() != libc::EAGAIN).then_some(accepted)
}

/// Gives an accepted connection a descriptor.
///
/// # Safety
/// As accept(2) for `out` and `len`.
unsafe fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    out: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let command = if flags & SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: no pointers.
    let fd = unsafe { real::fcntl(placeholder()?, command, 0) };
    if fd < 0 {
        return Err(real::errno());
    }
    // SAFETY: the caller's contract.
    unsafe { address::write(peer, out, len) };
    let file = File::new(What::Stream(Stream::new(stream, true)), flags & SOCK_NONBLOCK != 0);
    if table::put(fd, file) {
        return Ok(fd);
    }
    // SAFETY: the descriptor is new, and no other code has it.
    unsafe { real::close(fd) };
    Err(libc::EMFILE)
}

fn placeholder() -> Result<i32, Errno> {
    let known = PLACEHOLDER.load(Relaxed);
    if known >= 0 {
        return Ok(known);
    }
    // SAFETY: no pointers; the descriptors are new.
    unsafe {
        let low = libc::socket(libc::AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if low < 0 {
            return Err(real::errno());
        }
        let high = real::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST);
        let kept = if high < 0 { low } else { high };
        if high >= 0 {
            real::close(low);
        }
        own::add(kept);
        // Another thread may have made one, too: one of them stays unused.
        PLACEHOLDER.store(kept, Relaxed);
        Ok(kept)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    if let Some((file, _call)) = served(fd) {
        return answer_int(connect_again(fd, &file));
    }
    // SAFETY: the caller's contract.
    if let Some(result) = unsafe { datagrams::connect(fd, to, len) } {
        return answer_int(result);
    }
    // SAFETY: as above.
    let address = unsafe { address::read(to, len) };
    if let Some(address) = address.filter(|&address| start::serves(Transport::Tcp, address) && is_tcp(fd))
        && start::ensure()
        && start::serves(Transport::Tcp, address)
    {
        return answer_int(begin(fd, address));
    }
    // Its registrations stay the kernel's.
    kept::forget(fd);
    // SAFETY: as above.
    unsafe { super::io::at_kernel(fd, 0, 0, || real::connect(fd, to, len)) }
}

/// Connects socket `fd` of the kernel, which becomes a served one.
fn begin(fd: i32, to: SocketAddr) -> Result<c_int, Errno> {
    let _call = Call::begin().ok_or(libc::ENETDOWN)?;
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    let tcp = TcpStream::begin_connect(&to).map_err(|error| errno(&error))?;
    let stream = Stream::new(tcp, false);
    adopt_options(fd, &stream);
    let nonblocking = is_nonblocking(fd);
    let file = File::new(What::Stream(stream), nonblocking);
    if !table::put(fd, Arc::clone(&file)) {
        return Err(libc::EMFILE);
    }
    register_kept(fd, &file);
    if nonblocking {
        return Err(libc::EINPROGRESS);
    }
    finish(fd, &file)
}

/// Waits until the handshake is over.
fn finish(fd: i32, file: &File) -> Result<c_int, Errno> {
    let stream = file.stream().ok_or(libc::EISCONN)?;
    let limit = Some(stream.send_ns.load(Relaxed)).filter(|&ns| ns > 0).map(Duration::from_nanos);
    ready::wait_for(fd, POLLOUT, limit)
        .map_err(|error| if error == libc::EAGAIN { libc::EINPROGRESS } else { error })?;
    let _call = Call::begin().ok_or(libc::ENETDOWN)?;
    stream.connected.store(true, Relaxed);
    match stream.tcp.take_error() {
        Ok(Some(error)) => Err(errno(&error)),
        _ => Ok(0),
    }
}

/// Connects a socket that was connected before: the first call after the handshake learns its
/// result, as on Linux.
fn connect_again(fd: i32, file: &File) -> Result<c_int, Errno> {
    let Some(stream) = file.stream() else { return Err(libc::EISCONN) };
    if stream.connected.load(Relaxed) {
        return Err(libc::EISCONN);
    }
    if file.readiness() & POLLOUT == 0 && file.nonblocking.load(Relaxed) {
        return Err(libc::EALREADY);
    }
    finish(fd, file)
}

/// Gives a new connection the options that were set on the kernel's socket.
fn adopt_options(fd: i32, stream: &Stream) {
    for (level, name) in [
        (IPPROTO_TCP, TCP_NODELAY),
        (SOL_SOCKET, SO_KEEPALIVE),
        (IPPROTO_TCP, TCP_KEEPIDLE),
        (IPPROTO_TCP, TCP_KEEPINTVL),
        (IPPROTO_TCP, TCP_KEEPCNT),
        (IPPROTO_TCP, TCP_USER_TIMEOUT),
    ] {
        if let Some(value) = option(fd, level, name)
            && (value != 0 || name == TCP_NODELAY)
        {
            // The kernel has accepted the value.
            let _ = set_int(stream, level, name, value);
        }
    }
    for (name, ns) in [(SO_RCVTIMEO, &stream.receive_ns), (SO_SNDTIMEO, &stream.send_ns)] {
        let mut time = timeval { tv_sec: 0, tv_usec: 0 };
        let mut len = size_of::<timeval>() as socklen_t;
        // SAFETY: room for a timeval.
        let result = unsafe { real::getsockopt(fd, SOL_SOCKET, name, (&raw mut time).cast(), &raw mut len) };
        if result == 0 {
            set_time(ns, time);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some((file, _call)) = served(fd) else {
        // SAFETY: no pointers.
        return unsafe { real::shutdown(fd, how) };
    };
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return real::fail(libc::EINVAL),
    };
    match &file.what {
        What::Stream(stream) => {
            answer_int(stream.tcp.shutdown(how).map(|()| 0).map_err(|error| errno(&error)))
        }
        // SAFETY: no pointers. Tailwater's listener ends with the descriptor.
        What::Listener(_) => unsafe { real::shutdown(fd, libc::SHUT_RDWR) },
        What::Datagrams(_) | What::Set(_) => real::fail(libc::ENOTSOCK),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Some((file, _call)) = served(fd)
        && let Some(stream) = file.stream()
        && let Ok(own) = stream.tcp.local_addr()
    {
        // SAFETY: the caller's contract.
        unsafe { address::write(own, out, len) };
        return 0;
    }
    if let Some(own) = datagrams::connected(fd, UdpSocket::local_addr) {
        // SAFETY: as above.
        unsafe { address::write(own, out, len) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { real::getsockname(fd, out, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(fd: c_int, out: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Some((file, _call)) = served(fd)
        && let Some(stream) = file.stream()
    {
        let is_over = matches!(stream.tcp.info().state, TcpState::SynSent | TcpState::Closed);
        if is_over {
            return real::fail(libc::ENOTCONN);
        }
        if let Ok(peer) = stream.tcp.peer_addr() {
            // SAFETY: the caller's contract.
            unsafe { address::write(peer, out, len) };
            return 0;
        }
    }
    if let Some(peer) = datagrams::connected(fd, UdpSocket::peer_addr) {
        // SAFETY: as above.
        unsafe { address::write(peer, out, len) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { real::getpeername(fd, out, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some((file, _call)) = served(fd)
        && let Some(stream) = file.stream()
    {
        // SAFETY: the caller's contract; the length is compared for each type.
        let result = unsafe {
            match (level, name) {
                (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO) if len as usize >= size_of::<timeval>() => {
                    let ns = if name == SO_RCVTIMEO { &stream.receive_ns } else { &stream.send_ns };
                    set_time(ns, value.cast::<timeval>().read_unaligned());
                    Some(Ok(0))
                }
                (SOL_SOCKET, SO_LINGER) if len as usize >= size_of::<linger>() => {
                    let wish = value.cast::<linger>().read_unaligned();
                    let time = (wish.l_onoff != 0).then(|| Duration::from_secs(wish.l_linger.max(0) as u64));
                    Some(stream.tcp.set_linger(time).map(|()| 0).map_err(|error| errno(&error)))
                }
                _ if len as usize >= size_of::<c_int>() => {
                    set_int(stream, level, name, value.cast::<c_int>().read_unaligned())
                }
                _ => None,
            }
        };
        if let Some(result) = result {
            return answer_int(result);
        }
    }
    // An option that Tailwater's sockets do not have has no effect, and the kernel's answer.
    // SAFETY: as above.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0 {
        datagrams::note_option(fd, level, name);
    }
    result
}

fn set_time(ns: &AtomicU64, time: timeval) {
    let time =
        Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64);
    ns.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
}

/// Sets an int option; `None` if Tailwater's sockets do not have it.
fn set_int(stream: &Stream, level: c_int, name: c_int, value: c_int) -> Option<Result<c_int, Errno>> {
    let tcp = &stream.tcp;
    let seconds = Duration::from_secs(value.max(0) as u64);
    let keepalive = || tcp.keepalive().ok().flatten();
    let change_keepalive = |change: &dyn Fn(&mut TcpKeepalive)| {
        let mut probing = keepalive();
        probing.iter_mut().for_each(change);
        tcp.set_keepalive(probing)
    };
    let result = match (level, name) {
        (IPPROTO_TCP, TCP_NODELAY) => tcp.set_nodelay(value != 0),
        (IPPROTO_TCP, TCP_USER_TIMEOUT) => {
            tcp.set_user_timeout((value > 0).then(|| Duration::from_millis(value as u64)))
        }
        (SOL_SOCKET, SO_KEEPALIVE) => {
            tcp.set_keepalive((value != 0).then(|| keepalive().unwrap_or_default()))
        }
        (IPPROTO_TCP, TCP_KEEPIDLE) => change_keepalive(&|it| it.idle = seconds),
        (IPPROTO_TCP, TCP_KEEPINTVL) => change_keepalive(&|it| it.interval = seconds),
        (IPPROTO_TCP, TCP_KEEPCNT) => change_keepalive(&|it| it.probes = value.clamp(1, 127) as u8),
        _ => return None,
    };
    Some(result.map(|()| 0).map_err(|error| errno(&error)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some((file, _call)) = served(fd)
        && let Some(stream) = file.stream()
        // SAFETY: the caller's contract.
        && unsafe { get(stream, level, name, value, len) }
    {
        return 0;
    }
    if (level, name) == (SOL_SOCKET, SO_ERROR)
        && let Some(error) = datagrams::take_error(fd)
    {
        // SAFETY: as above.
        unsafe { give(&error, value, len) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// Writes an option; returns false if the kernel's answer is as good.
///
/// # Safety
/// As getsockopt(2).
unsafe fn get(stream: &Stream, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> bool {
    let tcp = &stream.tcp;
    let time = |ns: &AtomicU64| {
        let us = ns.load(Relaxed) / 1000;
        timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 }
    };
    // SAFETY: the caller's contract.
    unsafe {
        match (level, name) {
            (SOL_SOCKET, SO_ERROR) => {
                let error = tcp.take_error().ok().flatten().map_or(0, |error| errno(&error));
                give(&error, value, len);
            }
            (SOL_SOCKET, SO_RCVTIMEO) => give(&time(&stream.receive_ns), value, len),
            (SOL_SOCKET, SO_SNDTIMEO) => give(&time(&stream.send_ns), value, len),
            (SOL_SOCKET, SO_LINGER) => {
                let time = tcp.linger().ok().flatten();
                let seconds = time.map_or(0, |time| time.as_secs() as c_int);
                give(&linger { l_onoff: time.is_some().into(), l_linger: seconds }, value, len);
            }
            (SOL_SOCKET, SO_KEEPALIVE) => {
                give(&c_int::from(tcp.keepalive().ok().flatten().is_some()), value, len);
            }
            (IPPROTO_TCP, TCP_NODELAY) => give(&c_int::from(tcp.nodelay().unwrap_or(false)), value, len),
            (IPPROTO_TCP, TCP_INFO) => give(&info(&tcp.info()), value, len),
            _ => return false,
        }
    }
    true
}

/// Writes as much of `from` as there is room for.
///
/// # Safety
/// As getsockopt(2) for `value` and `len`.
unsafe fn give<T>(from: &T, value: *mut c_void, len: *mut socklen_t) {
    // SAFETY: the caller's contract.
    unsafe {
        let room = (*len as usize).min(size_of::<T>());
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(from).cast::<u8>(), value.cast(), room);
        *len = room as socklen_t;
    }
}

/// The first part of Linux's `tcp_info` (include/uapi/linux/tcp.h), which all versions have.
#[repr(C)]
struct Info {
    bytes: [u8; 8],
    rto_us: u32,
    ato_us: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    times: [u32; 4],
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt_us: u32,
    rttvar_us: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt_us: u32,
    rcv_space: u32,
    total_retrans: u32,
}

fn info(tcp: &TcpInfo) -> Info {
    let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    // TCP_ESTABLISHED and so on (include/net/tcp_states.h).
    let state = match tcp.state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        TcpState::TimeWait => 6,
        TcpState::Closed => 7,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Closing => 11,
    };
    Info {
        bytes: [state, 0, tcp.retransmits, tcp.probes, 0, 0, 0, 0],
        rto_us: us(tcp.rto),
        ato_us: us(tcp.ato),
        snd_mss: tcp.snd_mss,
        rcv_mss: tcp.rcv_mss,
        unacked: tcp.unacked,
        sacked: tcp.sacked,
        lost: tcp.lost,
        retrans: tcp.retrans,
        fackets: 0,
        times: [0; 4],
        pmtu: tcp.pmtu,
        rcv_ssthresh: tcp.rcv_wnd,
        rtt_us: tcp.rtt.map_or(0, us),
        rttvar_us: tcp.rttvar.map_or(0, us),
        snd_ssthresh: tcp.snd_ssthresh.unwrap_or(i32::MAX as u32),
        snd_cwnd: tcp.snd_cwnd,
        advmss: tcp.advmss,
        reordering: 0,
        rcv_rtt_us: 0,
        rcv_space: tcp.rcv_space,
        total_retrans: tcp.total_retrans,
    }
}
