//! Where the C library's code cannot be changed, the runtime does not start, and says why.

use crate::{Case, adopting};
use std::sync::mpsc;
use tailwater::{LibcWaitsError, StartError};

pub const CASES: &[Case] = &[
    ("a_process_with_other_threads_is_refused", other_threads),
    ("shared_thread_local_storage_is_refused", shared_tls),
    ("memory_that_may_not_become_executable_is_refused", protected),
];

fn other_threads() {
    let (sender, receiver) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv());
    let error = adopting(1).run(|| ()).unwrap_err();
    assert!(matches!(error, StartError::LibcWaits(LibcWaitsError::OtherThreads(2))), "{error}");
    assert!(error.to_string().contains("first in main"), "{error}");
    drop(sender);
    let _ = thread.join();
}

fn shared_tls() {
    // SAFETY: nothing runs on user threads.
    let error = unsafe { adopting(1).shared_tls() }.run(|| ()).unwrap_err();
    assert!(error.to_string().contains("shared_tls"), "{error}");
}

/// `PR_SET_MDWE` and `PR_MDWE_REFUSE_EXEC_GAIN` (Linux 6.3).
const SET_MDWE: libc::c_int = 65;
const REFUSE_EXEC_GAIN: libc::c_ulong = 1;

fn protected() {
    // SAFETY: a setting of this process.
    if unsafe { libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) } != 0 {
        println!("skipped: this kernel has no PR_SET_MDWE: {}", std::io::Error::last_os_error());
        return;
    }
    let error = adopting(1).run(|| ()).unwrap_err();
    assert!(matches!(error, StartError::LibcWaits(LibcWaitsError::Patch { .. })), "{error}");
    assert!(error.to_string().contains("MemoryDenyWriteExecute"), "{error}");
    // The library is as it was.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(1).unwrap());
    assert_eq!(receiver.recv(), Ok(1));
}
