//! Writing to standard error without `std`'s lock, which a user thread may hold that is stalled or
//! preempted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::time::Duration;

/// Maximum length that is written without blocking where poll(2) reports room: `PIPE_BUF` of
/// pipe(7).
const ATOMIC: usize = 4096;

/// Writes `text`, unless standard error is closed.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// As [`print`], but waits for `limit` at most until standard error takes the text, which is lost
/// otherwise: a pipe may be full, and its reader may have stopped. Cuts long texts.
pub fn print_within(text: &str, limit: Duration) {
    let bytes = &text.as_bytes()[..text.len().min(ATOMIC)];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // Standard error may be closed; then nothing is ready.
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    if retry_on_intr(|| poll(&mut fds, Some(&limit))) == Ok(1) {
        print_bytes(bytes);
    }
}

/// Writes `bytes`, unless standard error is closed. For signal handlers too.
pub fn print_bytes(mut rest: &[u8]) {
    while !rest.is_empty() {
        // SAFETY: the bytes are `rest`.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written @ 1..) => rest = &rest[written..],
            // Standard error is closed.
            _ => return,
        }
    }
}
