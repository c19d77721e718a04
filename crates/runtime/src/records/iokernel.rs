//! The IOKernel as a runtime sees it: the region of shared memory, the doorbell that wakes it, and
//! the place at the board, all of which it sent at the registration.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering, fence};
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::sync::OnceLock;
use tailwater_shm::board::{WakeBoard, WakePlace};
use tailwater_shm::control::ProgramClass;
use tailwater_shm::layout::{ASLEEP_BESIDE_FREE_CORES, AWAKE, Region};
use tailwater_shm::memory::MemoryError;
use tailwater_shm::priority;

/// See the module documentation. Lives as long as the process, also when the IOKernel has ended.
#[derive(Debug)]
pub struct IoKernel {
    /// The runtime's region.
    pub region: Region,
    /// How the IOKernel treats this runtime.
    pub class: ProgramClass,
    /// True if kthreads are to take the highest rank of ordinary threads.
    raise: AtomicBool,
    /// Number of cores that the IOKernel manages.
    managed_cores: AtomicUsize,
    doorbell: OwnedFd,
    /// The board, once an IOKernel has sent one.
    board: OnceLock<WakeBoard>,
    /// Place of kthread 0 there, or [`NO_PLACE`].
    first_place: AtomicU16,
}

/// The runtime has no place at the board.
const NO_PLACE: u16 = u16::MAX;

/// The board and the places of the runtime's kthreads there, as an IOKernel has sent them.
#[derive(Debug)]
pub struct WakePlaces {
    /// The board.
    pub board: WakeBoard,
    /// Place of kthread 0.
    pub first: u16,
}

impl IoKernel {
    /// Puts the parts together.
    pub fn new(
        region: Region,
        class: ProgramClass,
        raise: bool,
        managed_cores: usize,
        doorbell: OwnedFd,
    ) -> Self {
        let (raise, managed_cores) = (AtomicBool::new(raise), AtomicUsize::new(managed_cores));
        let (board, first_place) = (OnceLock::new(), AtomicU16::new(NO_PLACE));
        Self { region, class, raise, managed_cores, doorbell, board, first_place }
    }

    /// Gives the runtime this place at a board, instead of its former one.
    ///
    /// # Errors
    /// If the memory of the board cannot take the place of the old one's; see
    /// [`WakeBoard::succeed`].
    pub fn set_wake_places(&self, places: Option<WakePlaces>) -> Result<(), MemoryError> {
        // Relaxed: a kthread that reads a place of another board sleeps there or wakes no thread,
        // and the IOKernel wakes the next owner.
        self.first_place.store(NO_PLACE, Ordering::Relaxed);
        let Some(WakePlaces { board, first }) = places else { return Ok(()) };
        match self.board.get() {
            Some(old) => old.succeed(board)?,
            None => drop(self.board.set(board)),
        }
        self.first_place.store(first, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the board and the place of kthread `index` there, if it has one.
    #[inline]
    pub fn wake_place(&self, index: u16) -> Option<(&WakeBoard, WakePlace)> {
        // Relaxed: as in `set_wake_places`.
        let first = self.first_place.load(Ordering::Relaxed);
        Some((self.board.get()?, WakePlace::new(first.checked_add(index)?)?))
    }

    /// Returns the board, if this runtime can wake kthreads there.
    #[inline]
    pub fn board(&self) -> Option<&WakeBoard> {
        self.wake_place(0).map(|(board, _)| board)
    }

    /// Gives the calling kthread the rank in which it starts.
    pub fn rank_kthread(&self) {
        // Relaxed: the value says nothing about other memory.
        if self.raise.load(Ordering::Relaxed) {
            priority::raise_thread();
        }
    }

    /// Returns the number of cores that the IOKernel manages.
    pub fn managed_cores(&self) -> usize {
        // Relaxed: as above.
        self.managed_cores.load(Ordering::Relaxed)
    }

    /// Replaces the number of managed cores, the rank and the doorbell by those of a later
    /// registration.
    ///
    /// # Errors
    /// The kernel's error; then nothing has changed.
    pub fn renew(&self, raise: bool, managed_cores: usize, doorbell: &OwnedFd) -> io::Result<()> {
        // SAFETY: the call has no memory operands. Both descriptors are open for its duration, and
        // the number that is reused belongs to `self.doorbell` before and after it.
        if unsafe { libc::dup3(doorbell.as_raw_fd(), self.doorbell.as_raw_fd(), libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.raise.store(raise, Ordering::Relaxed);
        self.managed_cores.store(managed_cores, Ordering::Relaxed);
        Ok(())
    }

    /// Records that the IOKernel has ended: no doorbell is rung for it any more.
    pub fn end(&self) {
        // Relaxed: a kthread that sees it late rings once more. An IOKernel that was killed while
        // it slept has left `asleep` set, and no IOKernel writes this word again.
        self.region.asleep().store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the IOKernel if it sleeps, from a kthread that has a core. A service's kthread finds
    /// it awake: it does not sleep while one has a core.
    #[inline]
    pub fn ring_doorbell_from_core(&self) {
        if self.class == ProgramClass::BestEffort {
            self.ring_doorbell();
        }
    }

    /// True if the IOKernel sleeps and a core is free.
    #[inline]
    pub fn sleeps_beside_free_cores(&self) -> bool {
        // Relaxed: a hint, which is read again at each look.
        self.region.asleep().load(Ordering::Relaxed) == ASLEEP_BESIDE_FREE_CORES
    }

    /// Wakes the IOKernel if it sleeps. Called after work was published that needs a core.
    pub fn ring_doorbell(&self) {
        // Store-load: the publication before `asleep`; pairs with the IOKernel's fence before its
        // last look.
        fence(Ordering::SeqCst);
        if self.region.asleep().load(Ordering::Relaxed) != AWAKE {
            // A full counter means that the doorbell rings already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use tailwater_shm::layout::{ASLEEP, RegionSpec};

    #[test]
    fn an_iokernel_that_came_later_is_woken_by_its_own_doorbell_only() {
        let spec = RegionSpec::new(1, 32 * 1024).unwrap();
        let (region, ..) = Region::create("region", spec, 1_000_000_000).unwrap();
        let [old, new] = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let heard = [old.try_clone().unwrap(), new.try_clone().unwrap()];
        let iokernel = IoKernel::new(region, ProgramClass::BestEffort, false, 1, old);
        iokernel.renew(true, 2, &new).unwrap();
        drop(new);
        iokernel.region.asleep().store(ASLEEP, Ordering::Relaxed);
        iokernel.ring_doorbell();
        assert_eq!(heard.map(|bell| rustix::io::read(&bell, &mut [0; 8]).is_ok()), [false, true]);
        assert!(iokernel.managed_cores() == 2 && iokernel.raise.into_inner());
    }

    #[test]
    fn a_runtime_has_the_wake_places_of_its_latest_iokernel() {
        let board = || tailwater_shm::board::create().unwrap().and_then(|file| WakeBoard::map(file).unwrap());
        let spec = RegionSpec::new(1, 32 * 1024).unwrap();
        let (region, ..) = Region::create("region", spec, 1_000_000_000).unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let iokernel = IoKernel::new(region, ProgramClass::BestEffort, false, 1, bell);
        let place = |index| iokernel.wake_place(index).map(|(_, place)| place.number());
        assert_eq!(place(0), None);
        for first in [7, 300] {
            let Some(board) = board() else { return eprintln!("skipped: this kernel has no board") };
            iokernel.set_wake_places(Some(WakePlaces { board, first })).unwrap();
            assert_eq!([place(0), place(2)], [Some(first), Some(first + 2)]);
        }
        iokernel.set_wake_places(None).unwrap();
        assert!(iokernel.board().is_none());
    }

    #[test]
    fn no_doorbell_is_rung_for_an_iokernel_that_was_killed_asleep() {
        let spec = RegionSpec::new(1, 32 * 1024).unwrap();
        let (region, ..) = Region::create("region", spec, 1_000_000_000).unwrap();
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let heard = doorbell.try_clone().unwrap();
        let rung = || rustix::io::read(&heard, &mut [0; 8]).is_ok();
        let iokernel = IoKernel::new(region, ProgramClass::BestEffort, false, 1, doorbell);
        for asleep in [ASLEEP, ASLEEP_BESIDE_FREE_CORES] {
            iokernel.region.asleep().store(asleep, Ordering::Relaxed);
            iokernel.ring_doorbell_from_core();
            assert!(rung());
            iokernel.end();
            iokernel.ring_doorbell_from_core();
            assert!(!iokernel.sleeps_beside_free_cores() && !rung());
        }
    }
}
