//! Servers of classified requests: Shinjuku's `init`, `init_per_core`, `classify` and `handle`.

use crate::border::{call, number, sized};
use crate::net::socket::Kind;
use crate::net::{error, table};
use crate::run;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::time::Duration;
use tailwater::dispatch::{
    ClassStats, Frame, Framing, RequestClass, Service, Settings, TcpServer, UdpServer,
};

/// Classes of a server at most.
const CLASSES: usize = 64;

/// A class of requests.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_class {
    /// Name in statistics; NULL for its number.
    pub name: *const c_char,
    /// Target for the 99th percentile of the latency in nanoseconds; 0 for 1 ms.
    pub slo_ns: u64,
}

/// Where a handler puts its reply.
pub struct tw_reply {
    bytes: Vec<u8>,
}

/// What a server does with requests. Initialise it by `TW_SERVICE_INIT`. The functions run on user
/// threads, several at a time; `argument` is passed to each.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_service {
    /// Size of this structure in bytes.
    pub size: usize,
    /// Returns the number of a request's class. Short; NULL: all are of class 0.
    pub classify:
        Option<unsafe extern "C" fn(argument: *mut c_void, request: *const c_void, len: usize) -> usize>,
    /// Executes a request, and puts the reply together by `tw_reply_write`; without one, none is
    /// sent. A poll point in it (`tw_poll`) is where it may be preempted.
    pub handle: Option<
        unsafe extern "C" fn(argument: *mut c_void, request: *const c_void, len: usize, reply: *mut tw_reply),
    >,
    /// Called once by each lane's first thread, with the lane's number; may be NULL.
    pub init_per_core: Option<unsafe extern "C" fn(argument: *mut c_void, lane: usize)>,
    /// For TCP: returns the length of the request that the bytes begin with, 0 if more are needed,
    /// a negative number to close the connection. It has been given the first `seen` of
    /// them before.
    pub frame: Option<
        unsafe extern "C" fn(argument: *mut c_void, bytes: *const c_void, len: usize, seen: usize) -> isize,
    >,
    /// The program's.
    pub argument: *mut c_void,
    /// The policy, as in `tailwater-lab sim`: "mq:5us", "sq:5us", "c-fcfs", "srpt", ...; NULL for
    /// "mq:5us".
    pub policy: *const c_char,
    /// The classes; NULL for one.
    pub classes: *const tw_class,
    /// Number of classes, at most 64.
    pub n_classes: usize,
    /// Requests that may wait at most; 0 for 4,096.
    pub queue: usize,
    /// Dispatchers with a core of their own; 0: each worker schedules itself.
    pub dispatchers: usize,
    /// Usable bytes of the stack of a request; 0 for the runtime's setting.
    pub stack_size: usize,
}

/// A running server, for statistics. Servers run until the process ends.
pub struct tw_server {
    kind: Running,
}

enum Running {
    Udp(UdpServer),
    Tcp(TcpServer),
}

/// What became of the requests of a class.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_class_stats {
    /// Requests that were taken.
    pub accepted: u64,
    /// Requests that found no place.
    pub dropped: u64,
    /// Requests that have ended.
    pub finished: u64,
    /// Times that a request was preempted.
    pub preemptions: u64,
    /// Requests whose latency was above the SLO.
    pub late: u64,
    /// Median of the latency in the server, in nanoseconds.
    pub latency_p50_ns: u64,
    /// 99th percentile of the same.
    pub latency_p99_ns: u64,
}

/// The functions of a `tw_service`.
struct Functions(tw_service);

// SAFETY: C passes the functions and the argument for threads of the server.
unsafe impl Send for Functions {}
// SAFETY: as above: several at a time.
unsafe impl Sync for Functions {}

impl Service for Functions {
    fn init_per_core(&self, core: usize) {
        if let Some(function) = self.0.init_per_core {
            // SAFETY: 1. by its type. 2. The program passed it for this.
            unsafe { call(function as usize, [self.0.argument as usize, core, 0, 0]) };
        }
    }

    fn classify(&self, request: &[u8]) -> usize {
        self.0.classify.map_or(0, |function| {
            let arguments = [self.0.argument as usize, request.as_ptr() as usize, request.len(), 0];
            // SAFETY: as above; the request lives until this returns.
            unsafe { call(function as usize, arguments) }
        })
    }

    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        let Some(function) = self.0.handle else { return };
        let mut out = tw_reply { bytes: core::mem::take(reply) };
        let arguments =
            [self.0.argument as usize, request.as_ptr() as usize, request.len(), (&raw mut out) as usize];
        // SAFETY: as above.
        unsafe { call(function as usize, arguments) };
        *reply = out.bytes;
    }
}

/// Appends bytes to a reply. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_reply_write(reply: *mut tw_reply, data: *const c_void, len: usize) {
    if len > 0 {
        // SAFETY: by C's contract.
        unsafe { (*reply).bytes.extend_from_slice(core::slice::from_raw_parts(data.cast(), len)) };
    }
}

/// Returns the text at `text`, or `default` for a null pointer.
///
/// # Safety
/// `text` is null or ends with a NUL byte.
unsafe fn text_or(text: *const c_char, default: &str) -> io::Result<String> {
    if text.is_null() {
        return Ok(default.to_owned());
    }
    // SAFETY: by the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_owned).map_err(|_| error(libc::EINVAL))
}

/// Reads what C says of a service.
///
/// # Errors
/// `EINVAL`.
///
/// # Safety
/// `service` is null, or valid as its documentation says.
unsafe fn read(service: *const tw_service) -> io::Result<(Functions, Settings)> {
    // SAFETY: 1. by the caller's contract. 2. Numbers and addresses, also of functions, which may
    // be null.
    let (service, checked) = unsafe { sized(service) };
    checked.map_err(error)?;
    let without_classes = service.classes.is_null() && service.n_classes > 0;
    if service.handle.is_none() || service.n_classes > CLASSES || without_classes {
        return Err(error(libc::EINVAL));
    }
    if !run::is_running() {
        return Err(error(libc::ENXIO));
    }
    // SAFETY: by the caller's contract.
    let policy = unsafe { text_or(service.policy, "mq:5us") }?;
    let policy = policy.parse().map_err(|_| error(libc::EINVAL))?;
    let mut settings = Settings::new(policy).dispatchers(service.dispatchers);
    for index in 0..service.n_classes {
        // SAFETY: by the caller's contract there are so many classes.
        let class = unsafe { service.classes.add(index).read() };
        // SAFETY: as above.
        let mut named = RequestClass::new(unsafe { text_or(class.name, &index.to_string()) }?);
        if class.slo_ns > 0 {
            named = named.slo(Duration::from_nanos(class.slo_ns));
        }
        settings = settings.class(named);
    }
    if service.queue > 0 {
        settings = settings.queue(service.queue);
    }
    if service.stack_size > 0 {
        settings = settings.stack_size(service.stack_size);
    }
    Ok((Functions(service), settings))
}

/// Returns the framing of a service.
fn framing(functions: &Functions) -> io::Result<Framing> {
    let function = functions.0.frame.ok_or_else(|| error(libc::EINVAL))? as usize;
    let argument = functions.0.argument as usize;
    Ok(Framing::new(move |bytes, seen| {
        // SAFETY: 1. by the type of the field. 2. The program passed it for this.
        let len = unsafe { call(function, [argument, bytes.as_ptr() as usize, bytes.len(), seen]) };
        match len as isize {
            0 => Frame::Partial,
            len @ 1.. => Frame::Request(len as usize),
            _ => Frame::Malformed,
        }
    }))
}

fn serve(fd: c_int, functions: Functions, settings: Settings) -> io::Result<Running> {
    match table::find(fd)?.transfers()? {
        Kind::Udp(udp) => Ok(Running::Udp(UdpServer::start(udp.try_clone()?, functions, settings)?)),
        Kind::Listener(listener) => {
            let framing = framing(&functions)?;
            Ok(Running::Tcp(TcpServer::start(listener.try_clone()?, framing, functions, settings)?))
        }
        Kind::Stream(_) => Err(error(libc::EISCONN)),
    }
}

/// Starts a server of classified requests behind `fd`, a bound UDP socket or a TCP socket that
/// listens, and returns; short requests do not wait behind long ones. The server keeps the socket
/// also if the descriptor is closed. `service` is copied, and what its `argument` points to has to
/// live as long as the process. `*server`, which may be NULL, is set to a handle for statistics.
/// May switch threads.
///
/// Returns 0, or a negative error number: `-EINVAL` for a field or a policy, `-ENOTCONN` for a TCP
/// socket that does not listen, `-ENOMEM`, `-EBADF`; `-EBUSY` or `-ENOTSUP` if there is no core for
/// a dispatcher of its own; `-ENXIO` if there is no runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_serve(
    fd: c_int,
    service: *const tw_service,
    server: *mut *mut tw_server,
) -> c_int {
    // SAFETY: by C's contract.
    let running = unsafe { read(service) }.and_then(|(functions, settings)| serve(fd, functions, settings));
    match running {
        Ok(kind) => {
            if !server.is_null() {
                // SAFETY: by C's contract.
                unsafe { server.write(Box::into_raw(Box::new(tw_server { kind }))) };
            }
            0
        }
        Err(failure) => -number(&failure),
    }
}

/// Stores what became of the requests of each class, at most `capacity`, and returns the number of
/// classes. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_server_stats(
    server: *const tw_server,
    stats: *mut tw_class_stats,
    capacity: usize,
) -> usize {
    // SAFETY: by C's contract.
    let classes = match unsafe { &(*server).kind } {
        Running::Udp(server) => server.stats(),
        Running::Tcp(server) => server.stats(),
    };
    for (index, class) in classes.iter().take(capacity).enumerate() {
        // SAFETY: by C's contract there is room for so many.
        unsafe { stats.add(index).write(counted(class)) };
    }
    classes.len()
}

fn counted(class: &ClassStats) -> tw_class_stats {
    let quantile = |q| u64::try_from(class.latency.quantile(q).as_nanos()).unwrap_or(u64::MAX);
    tw_class_stats {
        accepted: class.accepted,
        dropped: class.dropped,
        finished: class.finished,
        preemptions: class.preemptions,
        late: class.late,
        latency_p50_ns: quantile(0.5),
        latency_p99_ns: quantile(0.99),
    }
}
