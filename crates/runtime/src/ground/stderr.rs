//! Writing to standard error without `std`'s lock, which a user thread may hold that is stalled or
//! preempted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::io::IoSlice;
use std::time::{Duration, Instant};

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
    let mut rest = &text.as_bytes()[..text.len().min(ATOMIC)];
    let deadline = Instant::now() + limit;
    // Standard error may be closed; then nothing is ready.
    let stderr = std::io::stderr();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        match poll(&mut fds, Some(&limit)) {
            Ok(1) => {}
            Err(Errno::INTR) if !left.is_zero() => continue,
            _ => return,
        }
        match write_now(&stderr, rest) {
            Ok(written) if written >= rest.len() => return,
            Ok(written) => rest = &rest[written..],
            // Another process has taken the room.
            Err(Errno::AGAIN | Errno::INTR) if !left.is_zero() => {}
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return print_bytes(rest),
        }
    }
}

/// Writes what a pipe or socket takes at once, whatever the flags of its open file, which other
/// processes share.
///
/// # Errors
/// [`Errno::AGAIN`] if there is no room; [`Errno::OPNOTSUPP`] for other files, which are taken to
/// have no reader that may stop, and before Linux 6.4.
fn write_now(file: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    if !matches!(kind, FileType::Fifo | FileType::Socket) {
        return Err(Errno::OPNOTSUPP);
    }
    // The offset that stands for none (preadv2(2)).
    pwritev2(file, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let full = loop {
            match write_now(&writer, &[b'x'; 1000]) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if full == Errno::OPNOTSUPP {
            return eprintln!("skipped: this Linux writes to no pipe without waiting");
        }
        assert_eq!(full, Errno::AGAIN);
        let mut some = [0; 65_536];
        rustix::io::read(&reader, &mut some).unwrap();
        assert_eq!(write_now(&writer, b"room"), Ok(4));
    }
}
