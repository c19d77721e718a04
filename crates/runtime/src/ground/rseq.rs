//! Leaves the kernel's restartable sequences, `rseq(2)`, for which glibc registers each OS thread.
//!
//! After each switch to a registered thread, and for each signal, Linux writes the thread's
//! processor number into its area before it returns to user mode: 0.14 us of the 1.5 us for which
//! two processes pass a core to each other by `sched_yield` on an AMD EPYC. A kthread is switched
//! to at each hand-off of its core and reads its core's number elsewhere.
//!
//! A thread that has left reads "not registered" in its area: `sched_getcpu` asks the kernel then,
//! and allocators with sequences of their own register again or do without. User threads with
//! thread-local blocks of their own read the same ([`tls`]). Nothing depends on success: where the
//! kernel or a filter of system calls refuses, and before glibc 2.35, the thread stays as it was.

use super::{arch, tls};
use libc::c_long;

/// `RSEQ_FLAG_UNREGISTER` (include/uapi/linux/rseq.h).
const UNREGISTER: c_long = 1;
/// The signature that glibc registers with on x86: bytes before each abort handler.
const SIGNATURE: c_long = 0x5305_3053;
/// `AT_RSEQ_FEATURE_SIZE` (include/uapi/linux/auxvec.h): the bytes that the kernel knows.
const FEATURE_SIZE: u64 = 27;
/// Bytes of an area as glibc 2.35 to 2.39 register it, and its alignment.
const FIRST_AREA: usize = 32;

/// Ends the registration of the calling OS thread, which has none of its own code in a sequence.
/// Returns whether there was one that glibc made.
pub fn leave() -> bool {
    let Some(offset) = tls::shape().ok().and_then(tls::Shape::rseq_offset) else { return false };
    let area = arch::fs_base().wrapping_add_signed(offset);
    // SAFETY: reads the process's auxiliary vector.
    let known = unsafe { libc::getauxval(FEATURE_SIZE) } as usize;
    // glibc 2.40 and later register as many bytes as the kernel knows. The kernel refuses a length
    // other than that of the registration.
    let lengths = [FIRST_AREA, known.next_multiple_of(FIRST_AREA)];
    lengths.into_iter().any(|length| unregister(area, length))
}

/// Ends the registration of an area; false if it is not registered by this thread, or not so.
fn unregister(area: usize, length: usize) -> bool {
    // SAFETY: the kernel compares the arguments with what the thread has registered and refuses
    // others. If they agree, it writes "not registered" to that area and forgets it.
    unsafe { libc::syscall(libc::SYS_rseq, area, length, UNREGISTER, SIGNATURE) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `RSEQ_CPU_ID_UNINITIALIZED` (include/uapi/linux/rseq.h): what the kernel leaves behind.
    const UNINITIALIZED: u32 = -1i32 as u32;

    /// Returns the processor number in the calling OS thread's area.
    fn processor(offset: isize) -> u32 {
        let word = arch::fs_base().wrapping_add_signed(offset) + 4;
        // SAFETY: glibc has an area of 20 bytes and more there for each OS thread.
        unsafe { (word as *const u32).read_volatile() }
    }

    #[test]
    fn a_thread_that_left_has_no_processor_number_and_leaves_once() {
        let Some(offset) = tls::shape().expect("glibc has what the runtime needs").rseq_offset() else {
            println!("skipped: this glibc registers no thread (2.35 and later do)");
            return;
        };
        let left = std::thread::spawn(move || {
            let before = processor(offset);
            if before > i32::MAX as u32 {
                println!("skipped: this thread is not registered (GLIBC_TUNABLES, or an old kernel)");
                return;
            }
            assert!(leave(), "glibc had registered it for processor {before}");
            assert_eq!(processor(offset), UNINITIALIZED);
            assert!(!leave(), "once");
            // SAFETY: asks for the processor number.
            assert!(unsafe { libc::sched_getcpu() } >= 0, "the kernel answers instead");
        });
        left.join().expect("the thread's assertions hold");
    }
}
