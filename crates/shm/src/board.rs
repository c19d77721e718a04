//! The board: where the kthread that cedes a core wakes the one that gets it.
//!
//! A memory file of the IOKernel's for each user, mapped by all programs of that user, for reading
//! only: a word for each kthread, its [`WakePlace`]. All words are zero for ever, and no program
//! reads them: they are names at which kthreads sleep. A kthread that waits for a core sleeps at
//! two words at once (futex_waitv(2)), that of its own [`Parker`](crate::park::Parker), which the
//! IOKernel wakes, and that of its place. The request to cede names the place of the next owner
//! ([`NextOwner::AtBoard`](crate::NextOwner)), and the kthread that cedes wakes it there. Both are
//! bound to the same core, so that the wake is no interrupt between cores: on a 2-vCPU VM it takes
//! 1 us, and one by the IOKernel 7 to 40.
//!
//! # Crash and lie
//! Programs of one user can end each other, and should not do worse by mistake. None can write to
//! the board, or take its pages out: the file is sealed. But each may wake and move
//! (`FUTEX_REQUEUE`) whatever sleeps there, sleep there itself, and keep the lock of that place of
//! Linux's table busy. So nothing depends on the board alone:
//!
//! | step | peer dies here | peer lies here |
//! |---|---|---|
//! | `Parked`, with the promise to wake the successor | the IOKernel wakes the successor 20 us later | the same |
//! | asleep at the own word and the place | - | moves or takes the wakes of others' kthreads: the same, for these; the own word is in no other program's memory |
//! | asleep | - | wakes others' kthreads without a grant: they sleep again, and after too many such wakes at their own word only, for a while |
//!
//! The IOKernel keeps account of the promises; an [`Account`](crate::account) bounds the wakes.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use rustix::io::Errno;
use rustix::thread::futex;
use std::os::fd::{AsFd, OwnedFd};

use crate::memory::{self, Mapping, MemoryError};

/// Number of places: one for each kthread of a machine.
pub const PLACES: u16 = 4096;
/// Length of the file in bytes.
const LEN: usize = PLACES as usize * size_of::<AtomicU32>();

/// The place of one kthread at the board, below [`PLACES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WakePlace(u16);

impl WakePlace {
    /// Returns the place with this number; `None` if there is none.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < PLACES { Some(Self(number)) } else { None }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Makes the file of a board; `None` where Linux cannot protect it (before 5.1).
///
/// # Errors
/// If the kernel refuses (no memory, too many files).
pub fn create() -> Result<Option<OwnedFd>, MemoryError> {
    let file = memory::create("tailwater-board", LEN)?;
    // All pages, which are charged to this process.
    let system = |source| MemoryError::System { action: "populate", len: LEN, source };
    if rustix::io::pwrite(&file, &[0; LEN], 0).map_err(system)? < LEN {
        return Err(system(Errno::NOSPC));
    }
    memory::freeze(&file)?;
    Ok(memory::is_frozen(&file).then_some(file))
}

/// A board, mapped for reading.
#[derive(Debug)]
pub struct WakeBoard(Mapping);

impl WakeBoard {
    /// Maps the board; `None` where Linux lets no thread sleep at two words (before 5.16, or in a
    /// sandbox that refuses futex_waitv(2)).
    ///
    /// # Errors
    /// If the kernel refuses, or this is no such file.
    pub fn map(file: impl AsFd) -> Result<Option<Self>, MemoryError> {
        let mapping = Mapping::read_only(file, "board")?;
        if mapping.len() != LEN {
            let found = mapping.len();
            return Err(MemoryError::WrongSize { what: "board", expected: LEN, found });
        }
        Ok(can_wait_at_two().then_some(Self(mapping)))
    }

    /// Puts another board in the place of this one; the memory of this one is gone afterwards. A
    /// kthread that sleeps there is woken at its own word only.
    ///
    /// # Errors
    /// If the kernel refuses: then this board is as it was, except after [`MemoryError::Gone`].
    pub fn succeed(&self, next: Self) -> Result<(), MemoryError> {
        // SAFETY: what points into either mapping are pointers to words that only the kernel reads,
        // and both are zero throughout.
        unsafe { self.0.replace(next.0) }
    }

    /// Wakes the kthread that sleeps at this place: one system call, whether there is one or not.
    pub fn wake(&self, place: WakePlace) {
        // SAFETY: as in `word`; the reference is to an atomic that lives as long as the mapping.
        let word = unsafe { self.word(place).as_ref() };
        // Fails if a thread waits there in another way than kthreads do (`FUTEX_WAIT_REQUEUE_PI`).
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// Returns the address of the word of this place.
    pub(crate) fn word(&self, place: WakePlace) -> NonNull<AtomicU32> {
        let first = self.0.base().cast::<AtomicU32>();
        // SAFETY: `WakePlace` is below `PLACES`, and the mapping has as many words.
        let word = unsafe { first.add(usize::from(place.0)) };
        NonNull::new(word).expect("a mapping has an address")
    }
}

/// Returns whether Linux has futex_waitv(2) and lets this thread call it.
fn can_wait_at_two() -> bool {
    // No words at all: an invalid argument, where the call exists.
    let flags = futex::WaitvFlags::empty();
    let answer = futex::waitv(&[], flags, None, rustix::time::ClockId::Monotonic);
    answer == Err(Errno::INVAL)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};

    #[test]
    fn a_program_can_neither_write_to_the_board_nor_take_pages_out() {
        let Some(file) = create().unwrap() else { return eprintln!("skipped: Linux before 5.1") };
        assert_eq!(memory::first_hole(&file), Ok(LEN));
        assert!(Mapping::new(&file, "board").is_err(), "a writable mapping");
        assert_eq!(rustix::io::pwrite(&file, &[1], 0), Err(Errno::PERM));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, flags, 0, 4096), Err(Errno::PERM));
        let board = Mapping::read_only(&file, "board").unwrap();
        // SAFETY: the range is the mapping's, whose only user is this test.
        let writable =
            unsafe { rustix::mm::mprotect(board.base().cast(), LEN, rustix::mm::MprotectFlags::WRITE) };
        assert_eq!(writable, Err(Errno::ACCESS));
    }

    #[test]
    fn a_file_of_another_length_is_no_board() {
        let file = memory::create("tailwater-test", 8192).unwrap();
        assert!(matches!(WakeBoard::map(&file), Err(MemoryError::WrongSize { what: "board", .. })));
    }

    #[test]
    fn there_are_as_many_places_as_words() {
        assert_eq!(WakePlace::new(PLACES), None);
        assert_eq!(WakePlace::new(PLACES - 1).map(WakePlace::number), Some(PLACES - 1));
    }
}
