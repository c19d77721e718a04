//! Ends the registration for restartable sequences, `rseq(2)`, that glibc makes for each OS thread.
//!
//! After each switch to a registered thread, and at each signal, Linux writes the processor's
//! number into the thread's area. On an AMD EPYC that is 0.14 us of the 1.5 us that a switch
//! between two processes by `sched_yield` takes. A kthread is switched to at each hand-off, and
//! reads its core's number from its grant.
//!
//! The area of a thread that has left contains "not registered": `sched_getcpu` asks the kernel
//! then. User threads with thread-local blocks of their own read the same ([`tls`]). A library that
//! registers an area itself (some allocators do) could not do so beside glibc's registration, and
//! can now; it must not do so on a user thread, which changes its OS thread.
//!
//! Nothing depends on success. The thread stays as it was before glibc 2.35, where glibc made no
//! registration (`GLIBC_TUNABLES`) or a longer one, which only newer kernels know, and where the
//! kernel refuses.

use super::{arch, tls};
use libc::c_long;

/// `RSEQ_FLAG_UNREGISTER` (include/uapi/linux/rseq.h).
const UNREGISTER: c_long = 1;
/// The signature that glibc registers with on x86: bytes before each abort handler.
const SIGNATURE: c_long = 0x5305_3053;
/// Bytes of an area as glibc registers it unless the kernel knows more.
pub const AREA: u32 = 32;
/// Linux 6.19, the first version in which the registration is kept: it has another implementation
/// of these sequences, and a fault at the end of a registration was reported in April 2026.
const REWRITTEN: (u32, u32) = (6, 19);

/// Ends the registration of the calling OS thread, at a place outside all restartable sequences.
/// Returns whether there was one that glibc made.
pub fn leave() -> bool {
    let Some(offset) = tls::shape().ok().and_then(tls::Shape::registered_rseq) else { return false };
    let release = rustix::system::uname();
    if version(&release.release().to_string_lossy()).is_none_or(|version| version >= REWRITTEN) {
        return false;
    }
    let area = arch::fs_base().wrapping_add_signed(offset);
    // SAFETY: the kernel compares the arguments with what the thread has registered and refuses
    // others. If they agree, it writes "not registered" to that area and forgets it.
    unsafe { libc::syscall(libc::SYS_rseq, area, AREA, UNREGISTER, SIGNATURE) == 0 }
}

/// Returns the first two numbers of a release of Linux, such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
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
    fn releases_of_linux_are_compared_by_their_first_two_numbers() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("7.0-rc1"), Some((7, 0)));
        assert_eq!([version(""), version("6"), version("six.1")], [None; 3]);
        assert!((5, 4) < REWRITTEN && (6, 19) >= REWRITTEN);
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "the shape of thread-local blocks is found with another FS base")]
    fn a_thread_that_left_has_no_processor_number_and_leaves_once() {
        let shape = tls::shape().expect("glibc has what the runtime needs");
        let Some(offset) = shape.registered_rseq() else {
            println!("skipped: glibc has registered no thread (2.35 and later do), or a longer area");
            return;
        };
        if version(&rustix::system::uname().release().to_string_lossy()) >= Some(REWRITTEN) {
            println!("skipped: Linux 6.19 and later are left alone");
            return;
        }
        let left = std::thread::spawn(move || {
            let before = processor(offset);
            if before > i32::MAX as u32 {
                println!("skipped: this thread is not registered (an old kernel)");
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
