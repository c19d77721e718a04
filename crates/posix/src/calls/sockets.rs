//! Sockets: how they begin and end, and their addresses.

use super::events::register_kept;
use super::kernel_side::{bound, is_nonblocking, is_reachable, is_tcp, takes_both};
use super::{answer_int, datagrams, options, served};
use crate::file::{Errno, File, Listener, Stream, What, errno};
use crate::start::{self, Call, Transport};
use crate::{address, kept, own, ready, real, table};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use core::time::Duration;
use libc::{POLLIN, POLLOUT, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, c_int, c_long, sockaddr, socklen_t};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tailwater::net::{TcpState, TcpStream, UdpSocket};

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
        let listener = Listener::new(at, takes_both(fd, at), backlog, options::of_kernel(fd));
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
    let limit = listener.options.lock().receive;
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let Some(call) = Call::begin() else { return real::fail(libc::ENETDOWN) };
        match tcp.accept() {
            Ok((tcp, peer)) => {
                let options = *listener.options.lock();
                let stream = Stream::new(tcp, true, &options);
                // SAFETY: the caller's contract.
                return answer_int(unsafe { admit(stream, peer, out, len, flags) });
            }
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
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Err(error) = ready::wait_for(fd, POLLIN, left) {
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
    stream: Stream,
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
    let file = File::new(What::Stream(stream), flags & SOCK_NONBLOCK != 0);
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
    serve(fd, TcpStream::begin_connect(&to).map_err(|error| errno(&error))?)
}

/// Makes the kernel's socket `fd` one of `tcp`, and waits until the handshake is over if it may.
fn serve(fd: i32, tcp: TcpStream) -> Result<c_int, Errno> {
    let nonblocking = is_nonblocking(fd);
    let file = File::new(What::Stream(Stream::new(tcp, false, &options::of_kernel(fd))), nonblocking);
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
