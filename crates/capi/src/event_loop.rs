//! Event loops: conditions in batches, data on loan (the runtime's `events`).
//!
//! A loop belongs to one thread at a time; `tw_loop_wake` alone may be called by others. A handler
//! of `tw_loop_run` calls functions of the loop while the runtime's `run` has it borrowed: they use
//! the borrow that the handler was given, which [`tw_loop`] keeps for that time.

use crate::border::{call, limit, number};
use crate::net::socket::Kind;
use crate::net::transfer::bytes;
use crate::net::{address, error, table};
use crate::run;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::ptr;
use libc::{sockaddr, sockaddr_storage, socklen_t, ssize_t};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use tailwater::events::{Batch, CommandError, Condition, EventLoop, Handle, LoopWaker, Token};
use tailwater::net::SharedBytes;

/// A client has connected to a listener, which has the token `token`; `address` is the client's.
/// Answer by `tw_loop_accept` or `tw_loop_close`; nothing else is reported of it before.
pub const TW_INCOMING: u32 = 1;
/// A connection that `tw_loop_connect` began is established.
pub const TW_CONNECTED: u32 = 2;
/// A connection has `count` new bytes.
pub const TW_RECEIVED: u32 = 3;
/// A datagram has arrived; `address` is its sender's. Its data is on loan until the next round.
pub const TW_DATAGRAM: u32 = 4;
/// A connection that did not take all bytes of a send has room for `count` bytes again; after
/// `tw_loop_report_acknowledged` also one whose peer has acknowledged something.
pub const TW_WINDOW: u32 = 5;
/// The peer has ended its stream, and all its data was reported. This side may still send.
pub const TW_EOF: u32 = 6;
/// An earlier datagram was not delivered, because of `error`. The socket goes on.
pub const TW_UNDELIVERED: u32 = 7;
/// A connection is over: both sides have ended their streams, or it has failed with `error`. Its
/// data can be read in this round; its handle is invalid after that.
pub const TW_CLOSED: u32 = 8;
/// `tw_loop_wake` was called, once or more.
pub const TW_WOKEN: u32 = 9;

/// Conditions of a round at most.
pub const TW_LOOP_BATCH: usize = 256;
/// Conditions of a round of `tw_loop_run`.
const RUN_BATCH: usize = 64;

/// A loop's name for a socket, unique in the process. That of a closed socket stays invalid.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_handle {
    /// The library's.
    opaque: [MaybeUninit<u64>; 2],
}

const _: () = assert!(size_of::<Handle>() == size_of::<tw_handle>());
const _: () = assert!(align_of::<Handle>() <= align_of::<tw_handle>());

impl From<Handle> for tw_handle {
    fn from(handle: Handle) -> Self {
        let mut this = Self { opaque: [const { MaybeUninit::zeroed() }; 2] };
        // SAFETY: it has the size and the alignment, as checked above; its words may have padding.
        unsafe { (&raw mut this).cast::<Handle>().write(handle) };
        this
    }
}

impl tw_handle {
    fn get(self) -> Handle {
        // SAFETY: a handle is two numbers, of any value; C copies one that a loop has stored.
        unsafe { (&raw const self).cast::<Handle>().read() }
    }
}

/// What has happened to a socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_condition {
    /// `TW_INCOMING`, `TW_RECEIVED` and the others.
    pub kind: u32,
    /// Number of the error for `TW_CLOSED` and `TW_UNDELIVERED`, positive; 0 for none.
    pub error: c_int,
    /// The program's name for the socket; for `TW_INCOMING` that of the listener.
    pub token: u64,
    /// The loop's name for the socket; for `TW_INCOMING` that of the new connection.
    pub handle: tw_handle,
    /// Data on loan: all that a connection has received and `tw_loop_consume` has not returned,
    /// oldest first, or a datagram. Valid until the next round, or until the socket is closed.
    pub data: *const c_void,
    /// Bytes at `data`.
    pub len: usize,
    /// New bytes at the end of `data` for `TW_RECEIVED`, room for `TW_WINDOW`.
    pub count: usize,
    /// Of the peer, for `TW_INCOMING` and `TW_DATAGRAM`; undefined for others.
    pub address: MaybeUninit<sockaddr_storage>,
    /// Bytes of `address`; 0 if it is undefined.
    pub address_len: socklen_t,
    /// For `TW_WINDOW`, bytes sent that the peer has acknowledged since the last such condition.
    pub acknowledged: usize,
}

/// A loop over any number of sockets, for one thread: conditions in batches, handled to completion.
pub struct tw_loop {
    /// The loop, or the borrow of it that a handler has.
    events: Cell<*mut EventLoop>,
    batch: Cell<Batch>,
    waker: LoopWaker,
    /// In `tw_loop_run`.
    is_running: Cell<bool>,
}

/// Bytes that many connections send without a copy for each.
pub struct tw_shared {
    bytes: SharedBytes,
}

/// Returns the `errno` of a refused command.
fn refusal(refused: CommandError) -> c_int {
    match refused {
        CommandError::UnknownHandle => libc::EBADF,
        CommandError::WrongKind => libc::EOPNOTSUPP,
        CommandError::NotAccepted => libc::ENOTCONN,
        CommandError::Accepted => libc::EISCONN,
        CommandError::ShutDown => libc::EPIPE,
        CommandError::Over => libc::ESHUTDOWN,
        CommandError::Full => libc::ENOBUFS,
        CommandError::Refused(kind) => number(&kind.into()),
        _ => libc::EINVAL,
    }
}

fn status(result: Result<(), CommandError>) -> c_int {
    result.map_or_else(|refused| -refusal(refused), |()| 0)
}

fn length(result: Result<usize, CommandError>) -> isize {
    result.map_or_else(|refused| -refusal(refused) as isize, |len| len as isize)
}

/// Returns the runtime's loop.
///
/// # Safety
/// 1. `this` is a loop that lives, used by this thread only.
/// 2. No other result of this function is in use.
unsafe fn events<'a>(this: *const tw_loop) -> &'a mut EventLoop {
    // SAFETY: by the caller's contract; within a handler the pointer is the borrow that it has.
    unsafe { &mut *(*this).events.get() }
}

/// Makes a loop without sockets. Free it by `tw_loop_free`. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_loop_new() -> *mut tw_loop {
    let events = EventLoop::new();
    let waker = events.waker();
    let events = Cell::new(Box::into_raw(Box::new(events)));
    Box::into_raw(Box::new(tw_loop { events, batch: Cell::default(), waker, is_running: Cell::new(false) }))
}

/// Frees a loop outside its handlers, and closes its sockets. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_free(events: *mut tw_loop) {
    if !events.is_null() {
        // SAFETY: by C's contract; both come from boxes.
        unsafe {
            assert!(
                !(*events).is_running.get(),
                "a handler frees its loop: let it return a number other than 0, and free the loop behind \
                 tw_loop_run"
            );
            let this = Box::from_raw(events);
            drop(Box::from_raw(this.events.get()));
        }
    }
}

/// Adds the socket of a descriptor, with the program's name for it: a UDP socket, a TCP socket that
/// listens, or a connection. Stores the loop's name for it in `*handle`, which may be NULL. The
/// loop keeps the socket also if the descriptor is closed; other uses of the descriptor take data
/// away. Several loops may have one listener: each client is reported by one of them. Never
/// switches threads.
///
/// Returns 0, `-EBADF`, `-EALREADY` for a connection that is not established yet, or `-ENOTCONN`
/// for a TCP socket that neither listens nor is connected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_add(
    events: *mut tw_loop,
    fd: c_int,
    token: u64,
    handle: *mut tw_handle,
) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    let events = unsafe { self::events(events) };
    let token = Token(token as usize);
    let added = table::find(fd).and_then(|socket| match socket.transfers()? {
        Kind::Udp(udp) => Ok(events.bind(udp.try_clone()?, token)),
        Kind::Listener(listener) => Ok(events.listen(listener.try_clone()?, token)),
        Kind::Stream(stream) if stream.peer_addr().is_err() => Err(error(libc::EALREADY)),
        Kind::Stream(stream) => Ok(events.register(stream.try_clone()?, token)),
    });
    // SAFETY: by C's contract.
    unsafe { store(added, handle) }
}

/// Stores a handle, and returns 0; or returns a negative error number.
///
/// # Safety
/// `handle` is null or valid.
unsafe fn store(made: io::Result<Handle>, handle: *mut tw_handle) -> c_int {
    match made {
        Ok(made) => {
            if !handle.is_null() {
                // SAFETY: by the caller's contract.
                unsafe { handle.write(made.into()) };
            }
            0
        }
        Err(failure) => -number(&failure),
    }
}

/// Begins a TCP connection; `TW_CONNECTED` or `TW_CLOSED` reports what became of it. What is sent
/// before leaves when it is established. `handle` may be NULL. Never switches threads.
///
/// Returns 0, or a negative error number: `-EINVAL` or `-EAFNOSUPPORT` for the address,
/// `-ENETDOWN`, `-EADDRNOTAVAIL`, `-ENOBUFS`; `-ENXIO` if there is no runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_connect(
    events: *mut tw_loop,
    peer: *const sockaddr,
    len: socklen_t,
    token: u64,
    handle: *mut tw_handle,
) -> c_int {
    if !run::is_running() {
        return -libc::ENXIO;
    }
    // SAFETY: by C's contract.
    let peer = unsafe { address::read(peer, len) };
    // SAFETY: 1. and 2. by C's contract.
    let events = unsafe { self::events(events) };
    // SAFETY: by C's contract.
    unsafe { store(peer.and_then(|peer| events.connect(peer, Token(token as usize))), handle) }
}

/// Accepts a connection that `TW_INCOMING` has reported, and names it. Never switches threads.
///
/// Returns 0, `-EBADF` for a handle of no socket, `-EISCONN` if it was accepted before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_accept(events: *mut tw_loop, handle: tw_handle, token: u64) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.accept(handle.get(), Token(token as usize)))
}

/// Returns the data on loan that C sees with a condition.
fn lent(events: &EventLoop, condition: &Condition) -> (*const c_void, usize) {
    let data = match *condition {
        Condition::Datagram { handle, range, .. } => events.datagram(handle, range),
        Condition::Received { handle, .. }
        | Condition::Window { handle, .. }
        | Condition::Eof { handle, .. }
        | Condition::Closed { handle, .. } => events.data(handle),
        _ => Ok(&[][..]),
    };
    let data = data.unwrap_or_default();
    (data.as_ptr().cast(), data.len())
}

/// Writes a condition where C reads it.
///
/// # Safety
/// `out` is valid for writing.
unsafe fn show(events: &EventLoop, condition: &Condition, out: *mut tw_condition) {
    let failure = |kind: io::ErrorKind| number(&kind.into());
    let (kind, token, count, error, address) = match *condition {
        Condition::Incoming { listener, peer, .. } => (TW_INCOMING, listener, 0, 0, Some(peer)),
        Condition::Connected { token, .. } => (TW_CONNECTED, token, 0, 0, None),
        Condition::Received { token, fresh, .. } => (TW_RECEIVED, token, fresh, 0, None),
        Condition::Datagram { token, from, .. } => (TW_DATAGRAM, token, 0, 0, Some(from)),
        Condition::Window { token, room, .. } => (TW_WINDOW, token, room, 0, None),
        Condition::Eof { token, .. } => (TW_EOF, token, 0, 0, None),
        Condition::Undelivered { token, reason, .. } => (TW_UNDELIVERED, token, 0, failure(reason), None),
        Condition::Closed { token, reason, .. } => (TW_CLOSED, token, 0, reason.map_or(0, failure), None),
        // Others are of a later version of the runtime, which is built together with this crate.
        _ => (TW_WOKEN, Token(0), 0, 0, None),
    };
    let handle =
        condition.handle().map_or(tw_handle { opaque: [const { MaybeUninit::zeroed() }; 2] }, Into::into);
    let (data, len) = lent(events, condition);
    // SAFETY: by the caller's contract; the address has room for any.
    unsafe {
        (&raw mut (*out).kind).write(kind);
        (&raw mut (*out).error).write(error);
        (&raw mut (*out).token).write(token.0 as u64);
        (&raw mut (*out).handle).write(handle);
        (&raw mut (*out).data).write(data);
        (&raw mut (*out).len).write(len);
        (&raw mut (*out).count).write(count);
        (&raw mut (*out).address_len).write(0);
        (&raw mut (*out).acknowledged).write(match *condition {
            Condition::Window { acknowledged, .. } => acknowledged,
            _ => 0,
        });
        if let Some(peer) = address {
            (&raw mut (*out).address_len).write(size_of::<sockaddr_storage>() as socklen_t);
            address::write(peer, (&raw mut (*out).address).cast(), &raw mut (*out).address_len);
        }
    }
}

/// Ends the round and begins the next: what was sent in it leaves, and data that it lent is taken
/// back. Waits for `timeout_ns` nanoseconds at most (`TW_FOREVER`: for ever), and stores up to
/// `capacity` conditions, at most `TW_LOOP_BATCH`. Returns as soon as there is one: a small
/// capacity lets the first reply of a round leave sooner under load. Switches threads.
///
/// A command on one socket may close another one of the same batch, whose conditions then have an
/// invalid handle.
///
/// Returns their number; 0 after the timeout. `-EINVAL` for a capacity of 0. Within a handler of
/// `tw_loop_run` it ends the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_poll(
    events: *mut tw_loop,
    conditions: *mut tw_condition,
    capacity: usize,
    timeout_ns: u64,
) -> c_int {
    if capacity == 0 || conditions.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: 1. and 2. by C's contract.
    let (this, events) = unsafe { (&*events, self::events(events)) };
    events.set_batch(capacity.min(TW_LOOP_BATCH)).expect("it is in range");
    let mut batch = this.batch.take();
    events.poll(&mut batch, limit(timeout_ns));
    for (index, condition) in batch.iter().enumerate() {
        // SAFETY: by C's contract there is room for `capacity`, and the batch has no more.
        unsafe { show(events, &condition, conditions.add(index)) };
    }
    let len = batch.len();
    this.batch.set(batch);
    len as c_int
}

/// Polls for ever, and calls `handler(argument, events, condition)` with each condition, in rounds
/// of up to 64, until it returns another number than 0, which is the result. Those of a socket that
/// a handler has closed are dropped; conditions that no handler has seen are the next round's. A
/// handler may be preempted, but not wait: on a user thread a call that would wait ends the
/// process, and so does one that frees the loop. Switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_run(
    events: *mut tw_loop,
    handler: Option<
        unsafe extern "C" fn(
            argument: *mut c_void,
            events: *mut tw_loop,
            condition: *const tw_condition,
        ) -> c_int,
    >,
    argument: *mut c_void,
) -> c_int {
    let Some(handler) = handler else { return -libc::EINVAL };
    let handler = handler as usize;
    // SAFETY: 1. and 2. by C's contract.
    let (this, own) = unsafe { (&*events, self::events(events)) };
    let outer = this.events.get();
    own.set_batch(RUN_BATCH).expect("it is in range");
    // A handler may run its loop for conditions that it has not seen, and is a handler after that.
    let was_running = this.is_running.replace(true);
    let result = own.run(|inner, condition| {
        let mut seen = MaybeUninit::<tw_condition>::uninit();
        // SAFETY: it is room for one.
        unsafe { show(inner, &condition, seen.as_mut_ptr()) };
        this.events.set(ptr::from_mut(inner));
        let arguments = [argument as usize, events as usize, seen.as_ptr() as usize, 0];
        // SAFETY: 1. by the type of the parameter. 2. The program passed it for this.
        let result = unsafe { call(handler, arguments) } as c_int;
        this.events.set(outer);
        if result == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(result) }
    });
    this.is_running.set(was_running);
    result
}

/// Stores where the data of a connection that is on loan lies, oldest first, in one piece. It stays
/// there until the next round, or until the socket is closed. Never switches threads.
///
/// Returns its length, or `-EBADF` for a handle of no socket, `-EOPNOTSUPP` for one that is no
/// connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_data(
    events: *mut tw_loop,
    handle: tw_handle,
    data: *mut *const c_void,
) -> ssize_t {
    // SAFETY: 1. and 2. by C's contract.
    length(unsafe { self::events(events) }.data(handle.get()).map(|bytes| {
        // SAFETY: by C's contract.
        unsafe { data.write(bytes.as_ptr().cast()) };
        bytes.len()
    }))
}

/// Ends the loan of the first `bytes` of a connection's data: the peer may send as many more after
/// this round. Never switches threads.
///
/// Returns 0, `-EINVAL` if fewer are on loan, `-EBADF`, `-EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_consume(events: *mut tw_loop, handle: tw_handle, bytes: usize) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.consume(handle.get(), bytes))
}

/// Returns 1 if `TW_EOF` or `TW_CLOSED` was reported of a connection, 0 if not, `-EBADF` or
/// `-EOPNOTSUPP`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_is_eof(events: *mut tw_loop, handle: tw_handle) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    let is_eof = unsafe { self::events(events) }.is_eof(handle.get());
    is_eof.map_or_else(|refused| -refusal(refused), c_int::from)
}

/// Sends as many bytes as there is room for. They are copied, and leave at the end of the round. If
/// those are not all, `TW_WINDOW` reports when there is room. Never switches threads.
///
/// Returns the number of bytes taken, or a negative error number: `-EPIPE` after
/// `tw_loop_shutdown`, `-ESHUTDOWN` if the connection is over, `-ENOTCONN` if it waits to be
/// accepted, `-EBADF`, `-EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_send(
    events: *mut tw_loop,
    handle: tw_handle,
    data: *const c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: by C's contract.
    let piece = IoSlice::new(unsafe { bytes(data, len) });
    // SAFETY: 1. and 2. by C's contract.
    length(unsafe { self::events(events) }.send(handle.get(), &[piece]))
}

/// As `tw_loop_send`, with several pieces; `-EINVAL` for a negative count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_sendv(
    events: *mut tw_loop,
    handle: tw_handle,
    pieces: *const libc::iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: by C's contract.
    let Some(pieces) = (unsafe { slices(pieces, count) }) else { return -libc::EINVAL as isize };
    // SAFETY: 1. and 2. by C's contract.
    length(unsafe { self::events(events) }.send(handle.get(), pieces))
}

/// Returns C's pieces; `None` for a negative count.
///
/// # Safety
/// There are so many pieces, which no other code changes meanwhile.
unsafe fn slices<'a>(pieces: *const libc::iovec, count: c_int) -> Option<&'a [IoSlice<'a>]> {
    match usize::try_from(count).ok()? {
        0 => Some(&[]),
        // SAFETY: by the caller's contract; `IoSlice` has the layout of `iovec` on Unix.
        count => Some(unsafe { core::slice::from_raw_parts(pieces.cast::<IoSlice<'a>>(), count) }),
    }
}

/// Makes bytes for `tw_loop_send_shared`, copied from `data`. Give them up by `tw_shared_free`.
/// Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_shared_new(data: *const c_void, len: usize) -> *mut tw_shared {
    // SAFETY: by C's contract.
    let bytes = unsafe { bytes(data, len) };
    Box::into_raw(Box::new(tw_shared { bytes: SharedBytes::from(bytes.to_vec()) }))
}

/// Gives bytes up; connections keep what they have taken until it is acknowledged. Never switches
/// threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_shared_free(shared: *mut tw_shared) {
    if !shared.is_null() {
        // SAFETY: by C's contract.
        drop(unsafe { Box::from_raw(shared) });
    }
}

/// As `tw_loop_send`, for the bytes of `shared` from `offset` on, without a copy: the connection
/// keeps a reference until the peer has acknowledged them. Worth it from 2 KiB on; less is copied.
/// `-EINVAL` for an offset beyond the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_send_shared(
    events: *mut tw_loop,
    handle: tw_handle,
    shared: *const tw_shared,
    offset: usize,
) -> ssize_t {
    // SAFETY: by C's contract.
    let bytes = unsafe { &(*shared).bytes };
    if offset > bytes.len() {
        return -libc::EINVAL as isize;
    }
    // SAFETY: 1. and 2. by C's contract.
    length(unsafe { self::events(events) }.send_shared(handle.get(), &bytes.slice(offset..)))
}

/// Sets whether each acknowledgment of a connection is reported by `TW_WINDOW`, also while every
/// send has room: for programs that bound what is on the way to a peer. Several acknowledgments may
/// share a condition, and while more than three quarters of the send buffer are in use they wait.
/// Never switches threads.
///
/// Returns 0, `-EBADF` for a handle of no socket, `-EOPNOTSUPP` for one that is no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_report_acknowledged(
    events: *mut tw_loop,
    handle: tw_handle,
    report: bool,
) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.report_acknowledged(handle.get(), report))
}

/// Sends a datagram at once, to `to`, or to the socket's own peer if that is NULL. Never switches
/// threads.
///
/// Returns 0, or a negative error number: `-ENOBUFS` if the egress ring is full (send it in a later
/// round, or drop it), `-EINVAL` or `-EAFNOSUPPORT` for the address, `-EBADF`, `-EOPNOTSUPP`, and
/// those of `tw_sendto`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_sendto(
    events: *mut tw_loop,
    handle: tw_handle,
    data: *const c_void,
    len: usize,
    to: *const sockaddr,
    to_len: socklen_t,
) -> c_int {
    let to: io::Result<Option<SocketAddr>> = if to.is_null() {
        Ok(None)
    } else {
        // SAFETY: by C's contract.
        unsafe { address::read(to, to_len) }.map(Some)
    };
    let to = match to {
        Ok(to) => to,
        Err(failure) => return -number(&failure),
    };
    // SAFETY: by C's contract.
    let piece = IoSlice::new(unsafe { bytes(data, len) });
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.send_to(handle.get(), to, &[piece]))
}

/// Ends this side's stream behind what was sent. When the peer has ended its own, `TW_CLOSED`
/// reports that. Never switches threads.
///
/// Returns 0, or a negative error number, as `tw_loop_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_shutdown(events: *mut tw_loop, handle: tw_handle) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.shutdown(handle.get()))
}

/// Closes a socket, or rejects one that waits to be accepted. Nothing more is reported of it,
/// except what the present batch has already. What was sent is delivered; if data that was received
/// is not consumed, the peer gets a reset instead. Never switches threads.
///
/// Returns 0, or `-EBADF` for a handle of no socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_close(events: *mut tw_loop, handle: tw_handle) -> c_int {
    // SAFETY: 1. and 2. by C's contract.
    status(unsafe { self::events(events) }.close(handle.get()))
}

/// Has the loop report `TW_WOKEN`, in its next round. May be called by any thread. Never switches
/// threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_loop_wake(events: *const tw_loop) {
    // SAFETY: by C's contract it lives; the waker is for all threads, and set once.
    let waker = unsafe { &(*events).waker };
    waker.wake();
}
