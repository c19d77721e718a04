//! Options of sockets.

use super::socket::{Kind, Settings, Socket};
use super::{error, posix, table};
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use std::io;
use std::time::Duration;

/// Reads the value of an option.
///
/// # Errors
/// `EINVAL` if there are fewer bytes.
///
/// # Safety
/// `value` is null or has `len` bytes; any bytes are a `T`.
unsafe fn value<T: Copy>(value: *const c_void, len: socklen_t) -> io::Result<T> {
    if value.is_null() || (len as usize) < size_of::<T>() {
        return Err(error(libc::EINVAL));
    }
    // SAFETY: by the caller's contract.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Returns a time limit; zero is none.
fn time(time: libc::timeval) -> io::Result<Option<Duration>> {
    let (Ok(seconds), Ok(micros)) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_usec)) else {
        return Err(error(libc::EDOM));
    };
    if micros >= 1_000_000 {
        return Err(error(libc::EDOM));
    }
    let limit = Duration::new(seconds, micros * 1000);
    Ok((!limit.is_zero()).then_some(limit))
}

/// What an option is set to.
enum Change {
    Nodelay(bool),
    Cork(bool),
    Broadcast(bool),
    Ttl(u32),
    ReadTimeout(Option<Duration>),
    WriteTimeout(Option<Duration>),
    ReceiveBuffer(usize),
    SendBuffer(usize),
    Linger(Option<Duration>),
    /// An option that the stack has in any case.
    Nothing,
}

/// Reads an option.
///
/// # Errors
/// `ENOPROTOOPT` for one that is not known, `EINVAL` for a value.
///
/// # Safety
/// `data` is null or has `len` bytes.
unsafe fn read(level: c_int, name: c_int, data: *const c_void, len: socklen_t) -> io::Result<Change> {
    // SAFETY: by the caller's contract.
    let number = || unsafe { value::<c_int>(data, len) };
    let size = || number().and_then(|bytes| usize::try_from(bytes).map_err(|_| error(libc::EINVAL)));
    // SAFETY: as above.
    let limit = || unsafe { value::<libc::timeval>(data, len) }.and_then(time);
    Ok(match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Change::Nodelay(number()? != 0),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Change::Cork(number()? != 0),
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            Change::Ttl(u32::try_from(number()?).map_err(|_| error(libc::EINVAL))?)
        }
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => Change::Broadcast(number()? != 0),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Change::ReadTimeout(limit()?),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Change::WriteTimeout(limit()?),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => Change::ReceiveBuffer(size()?),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => Change::SendBuffer(size()?),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: as above.
            let linger = unsafe { value::<libc::linger>(data, len) }?;
            let seconds = u64::try_from(linger.l_linger).map_err(|_| error(libc::EINVAL))?;
            Change::Linger((linger.l_onoff != 0).then_some(Duration::from_secs(seconds)))
        }
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Change::Nothing,
        _ => return Err(error(libc::ENOPROTOOPT)),
    })
}

/// Applies a change to the runtime's socket.
fn apply(kind: &Kind, change: &Change) -> io::Result<()> {
    match (kind, change) {
        (_, Change::Nothing) => Ok(()),
        (Kind::Stream(stream), Change::Nodelay(on)) => stream.set_nodelay(*on),
        (Kind::Stream(stream), Change::Cork(on)) => stream.set_cork(*on),
        (Kind::Stream(stream), Change::Ttl(ttl)) => stream.set_ttl(*ttl),
        (Kind::Stream(stream), Change::ReadTimeout(limit)) => stream.set_read_timeout(*limit),
        (Kind::Stream(stream), Change::WriteTimeout(limit)) => stream.set_write_timeout(*limit),
        (Kind::Stream(stream), Change::ReceiveBuffer(bytes)) => stream.set_receive_buffer(*bytes),
        (Kind::Stream(stream), Change::SendBuffer(bytes)) => stream.set_send_buffer(*bytes),
        (Kind::Stream(stream), Change::Linger(limit)) => stream.set_linger(*limit),
        (Kind::Udp(udp), Change::Broadcast(on)) => udp.set_broadcast(*on),
        (Kind::Udp(udp), Change::Ttl(ttl)) => udp.set_ttl(*ttl),
        (Kind::Udp(udp), Change::ReadTimeout(limit)) => udp.set_read_timeout(*limit),
        (Kind::Udp(udp), Change::WriteTimeout(limit)) => udp.set_write_timeout(*limit),
        (Kind::Listener(listener), Change::Ttl(ttl)) => listener.set_ttl(*ttl),
        // For the connections that are accepted from now on: see `note`.
        (Kind::Listener(_), Change::Nodelay(_)) => Ok(()),
        _ => Err(error(libc::ENOPROTOOPT)),
    }
}

/// Notes a change for the runtime's socket that does not exist yet.
fn note(settings: &mut Settings, change: &Change) -> io::Result<()> {
    match change {
        Change::Nothing => {}
        Change::Nodelay(on) => settings.nodelay = *on,
        Change::Broadcast(on) => settings.broadcast = *on,
        Change::Ttl(ttl) => settings.ttl = Some(*ttl),
        Change::ReadTimeout(limit) => settings.read_timeout = *limit,
        Change::WriteTimeout(limit) => settings.write_timeout = *limit,
        Change::ReceiveBuffer(bytes) => settings.receive_buffer = Some(*bytes),
        Change::SendBuffer(bytes) => settings.send_buffer = Some(*bytes),
        Change::Cork(_) | Change::Linger(_) => return Err(error(libc::ENOTCONN)),
    }
    Ok(())
}

fn set(socket: &Socket, change: &Change) -> io::Result<()> {
    if !socket.is_tcp && matches!(change, Change::Nodelay(_) | Change::Cork(_)) {
        return Err(error(libc::ENOPROTOOPT));
    }
    match socket.kind() {
        None => note(&mut socket.settings.lock(), change),
        Some(kind) => {
            apply(kind, change)?;
            match kind {
                Kind::Listener(_) => note(&mut socket.settings.lock(), change),
                _ => Ok(()),
            }
        }
    }
}

/// As `setsockopt`, for `TCP_NODELAY`, `TCP_CORK`, `IP_TTL`, `IPV6_UNICAST_HOPS`, `SO_BROADCAST`,
/// `SO_RCVTIMEO`, `SO_SNDTIMEO`, `SO_RCVBUF`, `SO_SNDBUF`, `SO_LINGER`; `SO_REUSEADDR` has no
/// effect. May switch threads.
///
/// Errors: `ENOPROTOOPT` for another option, or one that the socket has not; `ENOTCONN` for
/// `TCP_CORK` and `SO_LINGER` before there is a connection; `EINVAL`, `EDOM`, `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    data: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: by C's contract.
    let change = unsafe { read(level, name, data, len) };
    posix(change.and_then(|change| set(&*table::find(fd)?, &change)).map(|()| 0))
}

fn get(socket: &Socket, level: c_int, name: c_int) -> io::Result<c_int> {
    let bytes = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    match (level, name, socket.kind()) {
        (libc::SOL_SOCKET, libc::SO_ERROR, Some(kind)) => {
            let failure = match kind {
                Kind::Udp(udp) => udp.take_error()?,
                Kind::Stream(stream) => stream.take_error()?,
                Kind::Listener(listener) => listener.take_error()?,
            };
            Ok(failure.map_or(0, |failure| crate::border::number(&failure)))
        }
        (libc::SOL_SOCKET, libc::SO_ERROR, None) => Ok(0),
        (libc::SOL_SOCKET, libc::SO_TYPE, _) => {
            Ok(if socket.is_tcp { libc::SOCK_STREAM } else { libc::SOCK_DGRAM })
        }
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, kind) => Ok(matches!(kind, Some(Kind::Listener(_))).into()),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, Some(Kind::Stream(stream))) => {
            Ok(bytes(stream.receive_buffer()?))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(Kind::Stream(stream))) => Ok(bytes(stream.send_buffer()?)),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, Some(Kind::Stream(stream))) => Ok(stream.nodelay()?.into()),
        _ => Err(error(libc::ENOPROTOOPT)),
    }
}

/// As `getsockopt`, for `SO_ERROR`, `SO_TYPE`, `SO_ACCEPTCONN`, `SO_RCVBUF`, `SO_SNDBUF`,
/// `TCP_NODELAY`: all of type `int`. Never switches threads.
///
/// Errors: `ENOPROTOOPT`, `EINVAL`, `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    data: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: by C's contract.
    if data.is_null() || len.is_null() || unsafe { (*len as usize) < size_of::<c_int>() } {
        return posix(Err(error(libc::EINVAL)));
    }
    posix(table::find(fd).and_then(|socket| get(&socket, level, name)).map(|found| {
        // SAFETY: by C's contract, and there is room, as was checked.
        unsafe {
            data.cast::<c_int>().write_unaligned(found);
            len.write(size_of::<c_int>() as socklen_t);
        }
        0
    }))
}

/// Sets whether calls on a socket return `EAGAIN` instead of waiting, as `fcntl` does with
/// `O_NONBLOCK`. Never switches threads.
///
/// Errors: `EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_set_nonblocking(fd: c_int, nonblocking: bool) -> c_int {
    posix(table::find(fd).and_then(|socket| {
        socket.settings.lock().nonblocking = nonblocking;
        socket.kind().map_or(Ok(()), |kind| kind.set_nonblocking(nonblocking))?;
        Ok(0)
    }))
}
