//! Descriptors: which socket a number is.
//!
//! # Numbers
//! They begin at [`TW_FD_BASE`], far above the kernel's: a descriptor that is passed to a system
//! call by mistake is refused (`EBADF`) instead of being another file. A number that was closed is
//! used again, the last one first.
//!
//! # Closing
//! A call takes a reference to the socket, so a `tw_close` meanwhile lets it end on the socket that
//! it began with.

use super::error;
use super::socket::Socket;
use core::ffi::c_int;
use std::io;
use std::sync::{Arc, OnceLock};
use tailwater::sync::spin::SpinLock;

/// The first descriptor. Programs with arrays by descriptor subtract it.
pub const TW_FD_BASE: c_int = 1 << 30;

/// Descriptors in one piece of the table, which grows piece by piece and never moves.
const PIECE: usize = 1024;
/// Pieces: four million descriptors.
const PIECES: usize = 4096;

type Slot = SpinLock<Option<Arc<Socket>>>;

static TABLE: [OnceLock<Box<[Slot]>>; PIECES] = [const { OnceLock::new() }; PIECES];
static FREE: SpinLock<Free> = SpinLock::new(Free { closed: Vec::new(), next: 0 });

/// Numbers that no socket has.
struct Free {
    closed: Vec<usize>,
    /// The first number that no socket has had.
    next: usize,
}

fn slot(index: usize) -> Option<&'static Slot> {
    Some(&TABLE.get(index / PIECE)?.get()?[index % PIECE])
}

fn index_of(fd: c_int) -> Option<usize> {
    usize::try_from(fd.checked_sub(TW_FD_BASE)?).ok()
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
    let piece = piece.get_or_init(|| (0..PIECE).map(|_| Slot::default()).collect());
    *piece[index % PIECE].lock() = Some(Arc::new(socket));
    Ok(TW_FD_BASE + index as c_int)
}

/// Returns the socket of a descriptor.
///
/// # Errors
/// `EBADF`.
#[inline]
pub fn find(fd: c_int) -> io::Result<Arc<Socket>> {
    let socket = index_of(fd).and_then(slot).and_then(|slot| slot.lock().clone());
    socket.ok_or_else(|| error(libc::EBADF))
}

/// Takes the socket of a descriptor, which is free then.
///
/// # Errors
/// `EBADF`.
pub fn remove(fd: c_int) -> io::Result<Arc<Socket>> {
    let index = index_of(fd).ok_or_else(|| error(libc::EBADF))?;
    let socket = slot(index).and_then(|slot| slot.lock().take()).ok_or_else(|| error(libc::EBADF))?;
    FREE.lock().closed.push(index);
    Ok(socket)
}
