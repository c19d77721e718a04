//! Options of TCP sockets: setsockopt(2) and getsockopt(2).
//!
//! Owns which of Linux's options a connection of Tailwater has, and what a connection gets from the
//! kernel's socket: that which is connected, or the listener that it comes from. All others are the
//! kernel's socket's, without effect on a connection.

use super::kernel_side::{option, time_option};
use super::{answer_int, datagrams, served};
use crate::file::{Errno, Options, Stream, What, as_ns, errno};
use crate::{real, table};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use libc::{
    IPPROTO_TCP, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, TCP_CORK, TCP_INFO,
    TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY, TCP_USER_TIMEOUT, c_int, c_void, linger,
    socklen_t, timeval,
};
use std::io;
use tailwater::net::{TcpInfo, TcpKeepalive, TcpState};

/// Seconds that `TCP_KEEPIDLE` and `TCP_KEEPINTVL` take, and probes that `TCP_KEEPCNT` does
/// (include/net/tcp.h).
const PROBE_SECONDS: RangeInclusive<c_int> = 1..=32_767;
const PROBES: RangeInclusive<c_int> = 1..=127;

/// Returns what the connections of the kernel's socket `fd` get from it.
pub fn of_kernel(fd: i32) -> Options {
    let of_tcp = |name| option(fd, IPPROTO_TCP, name).unwrap_or(0);
    let is_set = |level, name| option(fd, level, name).is_some_and(|value| value != 0);
    let mut probing = TcpKeepalive::default();
    for name in [TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT] {
        if is_taken(name, of_tcp(name)) {
            change_probing(&mut probing, name, of_tcp(name));
        }
    }
    Options {
        nodelay: is_set(IPPROTO_TCP, TCP_NODELAY),
        cork: is_set(IPPROTO_TCP, TCP_CORK),
        keepalive: is_set(SOL_SOCKET, SO_KEEPALIVE),
        probing,
        user_timeout_ms: of_tcp(TCP_USER_TIMEOUT),
        linger: linger_of_kernel(fd),
        receive: time_option(fd, SO_RCVTIMEO),
        send: time_option(fd, SO_SNDTIMEO),
    }
}

/// Returns whether Linux takes this value of `TCP_KEEPIDLE`, `TCP_KEEPINTVL` or `TCP_KEEPCNT`.
fn is_taken(name: c_int, value: c_int) -> bool {
    if name == TCP_KEEPCNT { PROBES } else { PROBE_SECONDS }.contains(&value)
}

/// Changes how a peer is probed by one of these options, with a value that Linux takes.
fn change_probing(probing: &mut TcpKeepalive, name: c_int, value: c_int) {
    let seconds = Duration::from_secs(value as u64);
    match name {
        TCP_KEEPIDLE => probing.idle = seconds,
        TCP_KEEPINTVL => probing.interval = seconds,
        _ => probing.probes = value as u8,
    }
}

fn linger_of_kernel(fd: i32) -> Option<Duration> {
    let mut value = linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of::<linger>() as socklen_t;
    // SAFETY: room for a linger.
    let result =
        unsafe { real::getsockopt(fd, SOL_SOCKET, SO_LINGER, (&raw mut value).cast(), &raw mut len) };
    if result == 0 { linger_time(value) } else { None }
}

fn linger_time(value: linger) -> Option<Duration> {
    (value.l_onoff != 0).then(|| Duration::from_secs(value.l_linger.max(0) as u64))
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
                    let time = linger_time(value.cast::<linger>().read_unaligned());
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
        if let Some(file) = table::get(fd)
            && let What::Listener(listener) = &file.what
        {
            // Read under the lock: of two changes at once the later reading has both.
            let mut options = listener.options.lock();
            *options = of_kernel(fd);
        }
    }
    result
}

fn set_time(ns: &AtomicU64, time: timeval) {
    let time =
        Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64);
    ns.store(as_ns(Some(time)), Relaxed);
}

/// Sets an int option; `None` if Tailwater's sockets do not have it.
fn set_int(stream: &Stream, level: c_int, name: c_int, value: c_int) -> Option<Result<c_int, Errno>> {
    let tcp = &stream.tcp;
    let result = match (level, name) {
        (IPPROTO_TCP, TCP_NODELAY) => tcp.set_nodelay(value != 0),
        (IPPROTO_TCP, TCP_CORK) => tcp.set_cork(value != 0),
        (IPPROTO_TCP, TCP_USER_TIMEOUT) if value < 0 => return Some(Err(libc::EINVAL)),
        (IPPROTO_TCP, TCP_USER_TIMEOUT) => stream.set_user_timeout(value),
        (SOL_SOCKET, SO_KEEPALIVE) => tcp.set_keepalive((value != 0).then(|| *stream.probing.lock())),
        (IPPROTO_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL | TCP_KEEPCNT) => {
            if !is_taken(name, value) {
                return Some(Err(libc::EINVAL));
            }
            set_probing(stream, name, value)
        }
        _ => return None,
    };
    Some(result.map(|()| 0).map_err(|error| errno(&error)))
}

/// Sets how the peer is probed, now or once `SO_KEEPALIVE` is on.
fn set_probing(stream: &Stream, name: c_int, value: c_int) -> io::Result<()> {
    let probing = {
        let mut kept = stream.probing.lock();
        change_probing(&mut kept, name, value);
        *kept
    };
    if stream.tcp.keepalive()?.is_some() { stream.tcp.set_keepalive(Some(probing)) } else { Ok(()) }
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
            (IPPROTO_TCP, TCP_CORK) => give(&c_int::from(tcp.cork().unwrap_or(false)), value, len),
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => give(&stream.user_timeout_ms.load(Relaxed), value, len),
            (IPPROTO_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL | TCP_KEEPCNT) => {
                let probing = *stream.probing.lock();
                let number = match name {
                    TCP_KEEPIDLE => probing.idle.as_secs() as c_int,
                    TCP_KEEPINTVL => probing.interval.as_secs() as c_int,
                    _ => probing.probes.into(),
                };
                give(&number, value, len);
            }
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
