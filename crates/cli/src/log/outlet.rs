//! A file for log lines that never waits for its reader for long.
//!
//! Owns standard error as the log writes it. A pipe whose reader has stopped fills up, and an
//! ordinary write then waits for ever: of the process that programs wait for in a takeover, or of
//! the thread that serves registrations. So a line waits for a limited time, and those after it for
//! none, until the reader goes on. Files other than pipes and sockets have no such reader.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};

/// Maximum length that is written at a time: Linux takes it as a whole where poll(2) reports room
/// (`PIPE_BUF` of pipe(7)).
const ATOMIC: usize = 4096;

/// See the module documentation. Each write is a line.
#[derive(Debug)]
pub(super) struct Outlet<F> {
    file: F,
    /// How long a line waits for the reader.
    patience: Duration,
    /// The last line was not taken.
    is_stuck: bool,
    /// What is left of a line that was taken in part.
    rest: Vec<u8>,
}

impl<F: AsFd> Outlet<F> {
    pub(super) fn new(file: F, patience: Duration) -> Self {
        Self { file, patience, is_stuck: false, rest: Vec::new() }
    }

    /// Writes until the deadline; returns how many bytes were taken.
    fn push(&self, bytes: &[u8], deadline: Instant) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let next = &bytes[taken..bytes.len().min(taken + ATOMIC)];
            if !self.has_room(deadline) {
                break;
            }
            match write_now(&self.file, next) {
                Ok(count) => taken += count,
                // Another process has taken the room, or a signal has come.
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                // It is closed. A log that cannot be written has no other place to say so.
                Err(_) => return bytes.len(),
            }
        }
        taken
    }

    /// Waits until the file takes a line; returns false at the deadline.
    fn has_room(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&limit)) {
                Err(Errno::INTR) if !left.is_zero() => {}
                // Also after an error, which the write then has.
                result => return result != Ok(0) && result != Err(Errno::INTR),
            }
        }
    }
}

/// Writes what a pipe or socket takes at once, whatever the flags of its open file, which other
/// processes share. Waits where Linux cannot do so: for other files, and before Linux 6.4.
fn write_now(file: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    if matches!(kind, FileType::Fifo | FileType::Socket) {
        // The offset that stands for none (preadv2(2)).
        match pwritev2(&file, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) => {}
            result => return result,
        }
    }
    write(file, bytes)
}

impl<F: AsFd> Write for Outlet<F> {
    /// Writes a line as a whole, or fails and writes nothing of it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let deadline = Instant::now() + if self.is_stuck { Duration::ZERO } else { self.patience };
        let before = std::mem::take(&mut self.rest);
        let taken = self.push(&before, deadline);
        if taken < before.len() {
            self.rest = before[taken..].to_vec();
            self.is_stuck = true;
            return Err(Errno::AGAIN.into());
        }
        let taken = self.push(line, deadline);
        self.is_stuck = taken < line.len();
        if taken == 0 {
            return Err(Errno::AGAIN.into());
        }
        self.rest = line[taken..].to_vec();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;
    use rustix::io::read;
    use rustix::pipe::{PipeFlags, pipe_with};

    /// Reads all that is in a pipe.
    fn drain(reader: &OwnedFd, all: &mut Vec<u8>) {
        let mut some = [0; 65_536];
        while let Ok(count @ 1..) = read(reader, &mut some) {
            all.extend_from_slice(&some[..count]);
        }
    }

    #[test]
    fn a_line_for_a_reader_that_has_stopped_is_lost_and_the_next_is_not_once_it_goes_on() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        while write(&writer, &[b'x'; ATOMIC]).is_ok() {}
        let mut outlet = Outlet::new(&writer, Duration::from_millis(1));
        for _ in 0..2 {
            assert_eq!(outlet.write(b"lost\n").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        let mut all = Vec::new();
        drain(&reader, &mut all);
        assert_eq!(outlet.write(b"kept\n").unwrap(), 5);
        drain(&reader, &mut all);
        all.retain(|&byte| byte != b'x');
        assert_eq!(all, b"kept\n");
    }

    #[test]
    fn a_line_that_is_taken_in_part_goes_on_before_the_next_one() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut outlet = Outlet::new(&writer, Duration::ZERO);
        // Longer than any pipe of an unprivileged user.
        let long = [&[b'y'; 2 << 20][..], b"\n"].concat();
        assert_eq!(outlet.write(&long).unwrap(), long.len());
        assert!(outlet.write(b"lost\n").is_err());
        let mut all = Vec::new();
        loop {
            drain(&reader, &mut all);
            if outlet.write(b"kept\n").is_ok() {
                break;
            }
        }
        drain(&reader, &mut all);
        assert!(all == [&long[..], b"kept\n"].concat());
    }
}
