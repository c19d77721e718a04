//! Binding the calling thread to one core for the length of a scope.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Guard that binds the calling thread to one core; dropping it restores the previous set of cores.
#[derive(Debug)]
pub struct PinnedThread {
    before: CpuSet,
    /// Affinity belongs to a thread, so the guard must be dropped on the one it was made on.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl PinnedThread {
    /// Binds the calling thread to `core`, numbered as the kernel does.
    ///
    /// # Errors
    /// `InvalidInput` when the core does not exist or this process may not use it; otherwise the
    /// kernel's.
    pub fn new(core: usize) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut only = CpuSet::new();
        if core < CpuSet::MAX_CPU {
            only.set(core);
        }
        match sched_setaffinity(None, &only) {
            Ok(()) => Ok(Self { before, _not_send: std::marker::PhantomData }),
            Err(rustix::io::Errno::INVAL) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("core {core} does not exist or this process may not use it"),
            )),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        // Fails only if those cores went offline since; the kernel has then chosen others.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_is_restored() {
        let before = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|&c| before.is_set(c)).unwrap();
        let pinned = PinnedThread::new(core).unwrap();
        let during = sched_getaffinity(None).unwrap();
        assert!(during.is_set(core) && during.count() == 1);
        drop(pinned);
        assert!(sched_getaffinity(None).unwrap() == before);
    }

    #[test]
    fn a_core_that_does_not_exist_is_named() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            let error = PinnedThread::new(core).unwrap_err();
            assert!(error.to_string().contains(&core.to_string()), "{error}");
        }
    }
}
