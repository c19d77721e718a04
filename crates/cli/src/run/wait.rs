//! The wait for an IOKernel that the line before has started.
//!
//! `tailwater iokernel &` returns before the IOKernel listens: it first calibrates its clock, which
//! takes 20 ms. A program that the next line of a script starts would connect too early, and a
//! runtime connects once. Owns the wait and its bound. It decides nothing: after the bound the
//! program starts all the same, and its own attempt fails with the reason.

use std::time::Duration;

use rustix::io::Errno;
use tailwater_shm::control::{ControlError, dial};
use tailwater_testbed::note;

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of pauses: 2 s altogether.
const PAUSES: u32 = 200;

/// Returns when an IOKernel listens at `socket`, after 2 s, or if connecting fails for a reason
/// that time does not change; false if none listens after 2 s. Prints one line if it has to wait.
pub fn for_iokernel(socket: &str) -> bool {
    for pause in 0..PAUSES {
        if !is_absent(socket) {
            return true;
        }
        if pause == 0 {
            let most = (PAUSE * PAUSES).as_secs();
            note!("tailwater run: no IOKernel listens at {socket} yet; waiting for it, at most {most} s");
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Returns whether no process listens at `socket`. The connection that finds one is closed at once,
/// which the IOKernel allows at any point of a conversation.
fn is_absent(socket: &str) -> bool {
    matches!(dial(socket), Err(ControlError::System { source: Errno::NOENT | Errno::CONNREFUSED, .. }))
}
