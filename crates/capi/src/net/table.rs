//! Descriptors: which socket a number is.
//!
//! # Numbers
//! They begin at [`TW_FD_BASE`], far above the kernel's: a descriptor that is passed to a system
//! call by mistake is refused (`EBADF`) instead of being another file. A number that was closed is
//! used again, the last one first.
//!
//! # Closing
//! A call keeps the socket that it began with: it ends as if a `tw_close` meanwhile had not been.
//! Most calls do that without counting: see `owner`. A socket is dropped with its last reference;
//! the table has one of an open socket.
//!
//! | word of a slot | written by | read by |
//! |---|---|---|
//! | `state` | all, by read-modify-writes: a reference is taken with Acquire, which pairs with the Release of `insert`, and given up with Release, which pairs with the Acquire of the last one | |
//! | `bias` | the thread that becomes the owner, from null; the one that closes, to null | `find` |
//! | `last`, `streak` | calls that count, relaxed: a hint | the same |
//! | `socket` | `insert`, and the thread that gives up the last reference | holders of a reference, and the owner in a call |

use super::error;
use super::owner::{self, Owner};
use super::socket::Socket;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::io;
use std::sync::OnceLock;
use tailwater::internals::SpinLock;

/// The first descriptor. Programs with arrays by descriptor subtract it.
pub const TW_FD_BASE: c_int = 1 << 30;

/// Descriptors in one piece of the table, which grows piece by piece and never moves.
const PIECE: usize = 1024;
/// Pieces: four million descriptors.
const PIECES: usize = 4096;

/// Bit of a slot's state: the descriptor is open. The others count references.
const OPEN: u32 = 1 << 31;
/// Calls of one thread in succession, without another thread's, that make it the owner.
const STREAK: u32 = 64;

/// See the module documentation.
pub(super) struct Slot {
    state: AtomicU32,
    streak: AtomicU32,
    bias: AtomicPtr<Owner>,
    last: AtomicUsize,
    socket: UnsafeCell<MaybeUninit<Socket>>,
}

// SAFETY: the words are atomic; the socket is shared, as `Arc` would, and dropped by any thread.
unsafe impl Sync for Slot {}
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Socket>();
};

static TABLE: [OnceLock<Box<[Slot; PIECE]>>; PIECES] = [const { OnceLock::new() }; PIECES];
static FREE: SpinLock<Free> = SpinLock::new(Free { closed: Vec::new(), next: 0 });

/// Numbers that no socket has.
struct Free {
    closed: Vec<usize>,
    /// The first number that no socket has had.
    next: usize,
}

impl Slot {
    fn empty() -> Self {
        Self {
            state: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            bias: AtomicPtr::new(ptr::null_mut()),
            last: AtomicUsize::new(0),
            socket: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Takes a reference; false if the descriptor is not open.
    fn count(&self) -> bool {
        let counted = |state| (state & OPEN != 0).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, counted).is_ok()
    }

    /// Notes a call that counts; the thread becomes the owner if it has made all the latest ones.
    /// The caller has a reference.
    fn note(&self, me: usize) {
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.streak.store(0, Ordering::Relaxed);
            return;
        }
        let streak = self.streak.load(Ordering::Relaxed).saturating_add(1);
        self.streak.store(streak, Ordering::Relaxed);
        if streak == STREAK {
            self.be_owned(me);
        }
    }

    #[cold]
    fn be_owned(&self, me: usize) {
        let Some(owner) = owner::of(me) else { return };
        let owner = ptr::from_ref(owner).cast_mut();
        let null = ptr::null_mut();
        if self.bias.compare_exchange(null, owner, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return;
        }
        // Pairs with `remove`, which closes first and then takes the owner away: one of the two
        // sees the other's step. If both do, that of `remove` counts.
        if self.state.load(Ordering::SeqCst) & OPEN == 0 {
            let _ = self.bias.compare_exchange(owner, null, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Returns whether a thread is still the owner of the descriptor.
    #[inline]
    pub(super) fn is_owned_by(&self, owner: &Owner) -> bool {
        // SeqCst: see `Owner::is_outside`.
        ptr::eq(self.bias.load(Ordering::SeqCst), owner)
    }
}

#[inline]
fn slot(index: usize) -> Option<&'static Slot> {
    Some(&TABLE.get(index / PIECE)?.get()?[index % PIECE])
}

#[inline]
fn index_of(fd: c_int) -> usize {
    // A number below the base is one far behind the end of the table.
    fd.wrapping_sub(TW_FD_BASE) as u32 as usize
}

/// Gives up a reference to the socket of a slot; the last one drops it.
pub(super) fn release(index: usize) {
    let slot = slot(index).expect("the slot has a socket");
    if slot.state.fetch_sub(1, Ordering::Release) != 1 {
        return;
    }
    // Pairs with the Release of the others.
    slot.state.load(Ordering::Acquire);
    // SAFETY: the descriptor is closed and this was the last reference, so no thread uses the
    // socket; `insert` has put it there.
    unsafe { (*slot.socket.get()).assume_init_drop() };
    FREE.lock().closed.push(index);
}

/// Returns empty slots, which are made on the heap: they are larger than a thread's stack.
fn new_piece() -> Box<[Slot; PIECE]> {
    let slots: Box<[Slot]> = (0..PIECE).map(|_| Slot::empty()).collect();
    slots.try_into().unwrap_or_else(|_| unreachable!("so many were collected"))
}

/// Gives a socket a descriptor.
///
/// # Errors
/// `EMFILE` if all are in use.
pub fn insert(socket: Socket) -> io::Result<c_int> {
    let index = {
        let mut free = FREE.lock();
        free.closed.pop().unwrap_or_else(|| {
            free.next += 1;
            free.next - 1
        })
    };
    let Some(piece) = TABLE.get(index / PIECE) else {
        FREE.lock().closed.push(index);
        return Err(error(libc::EMFILE));
    };
    let slot = &piece.get_or_init(new_piece)[index % PIECE];
    // SAFETY: the slot is free, and no other thread has its number.
    unsafe { (*slot.socket.get()).write(socket) };
    slot.last.store(0, Ordering::Relaxed);
    // Release: pairs with the Acquire of `count`.
    slot.state.store(OPEN | 1, Ordering::Release);
    Ok(TW_FD_BASE + index as c_int)
}

/// The socket of a descriptor, for the time of a call.
#[derive(Debug)]
pub struct Found {
    index: usize,
    socket: &'static Socket,
    /// The calling thread, if it has not counted.
    owner: Option<&'static Owner>,
}

impl Deref for Found {
    type Target = Socket;

    #[inline]
    fn deref(&self) -> &Socket {
        self.socket
    }
}

impl Drop for Found {
    #[inline]
    fn drop(&mut self) {
        match self.owner {
            Some(owner) => owner.leave(),
            None => release(self.index),
        }
    }
}

/// Returns the socket of a descriptor.
///
/// # Errors
/// `EBADF`.
#[inline]
pub fn find(fd: c_int) -> io::Result<Found> {
    let index = index_of(fd);
    let Some(slot) = slot(index) else { return Err(error(libc::EBADF)) };
    // SAFETY: owners are never freed. Acquire: pairs with the exchange in `be_owned`.
    let owner = unsafe { slot.bias.load(Ordering::Acquire).as_ref() };
    let owner = owner.filter(|owner| owner.enter(index, slot));
    if owner.is_none() {
        if !slot.count() {
            return Err(error(libc::EBADF));
        }
        slot.note(owner::me());
    }
    // SAFETY: the socket was put there before the descriptor was open, and is not dropped before
    // the result is.
    Ok(Found { index, socket: unsafe { (*slot.socket.get()).assume_init_ref() }, owner })
}

/// Closes a descriptor: no call finds it from now on.
///
/// # Errors
/// `EBADF`.
pub fn remove(fd: c_int) -> io::Result<()> {
    let index = index_of(fd);
    let Some(slot) = slot(index) else { return Err(error(libc::EBADF)) };
    let closed = |state| (state & OPEN != 0).then_some(state & !OPEN);
    if slot.state.fetch_update(Ordering::SeqCst, Ordering::Relaxed, closed).is_err() {
        return Err(error(libc::EBADF));
    }
    // SAFETY: owners are never freed. SeqCst: pairs with `be_owned`.
    let owner = unsafe { slot.bias.swap(ptr::null_mut(), Ordering::SeqCst).as_ref() };
    if owner.is_none_or(|owner| owner.is_outside(index)) {
        release(index);
    }
    Ok(())
}
