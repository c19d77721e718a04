//! The lines of the log that wait for their reader.
//!
//! Owns a queue of [`LINES`] and the thread that writes them. A pipe whose reader has stopped fills
//! up, and a write then waits for ever: of the polling thread, of the thread that serves
//! registrations, or of the process that programs wait for in a takeover. These threads only queue
//! a line. A line for a full queue is lost; the next one that is queued carries their number.
//!
//! `tracing-appender` has such a queue, too. It does not report the lines it drops, and brings nine
//! more crates, most of them for files that are named by date.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// Maximum number of lines that wait: some 100 KiB.
const LINES: usize = 1024;

/// Time between two looks of a thread that waits for the last line to be written.
const LOOK: Duration = Duration::from_millis(1);

/// See the module documentation. Each write is a line.
#[derive(Debug)]
pub(super) struct Queue {
    lines: SyncSender<Line>,
    // Relaxed: counters that publish nothing.
    /// Lines that were lost since the last one that was queued.
    lost: AtomicU64,
    /// Lines that are queued and not written.
    waiting: AtomicU64,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    /// Lines that were lost directly before this one.
    lost: u64,
}

impl Queue {
    /// Returns a queue whose lines are written to `file`, and `report` is called with the number of
    /// lost lines where they would have been.
    ///
    /// # Errors
    /// If the kernel refuses a thread.
    pub(super) fn start(file: Arc<File>, report: impl Fn(u64) + Send + 'static) -> io::Result<Arc<Self>> {
        let (lines, queued) = sync_channel(LINES);
        let queue = Arc::new(Self { lines, lost: AtomicU64::new(0), waiting: AtomicU64::new(0) });
        // The thread ends with the queue.
        let counts = Arc::downgrade(&queue);
        let serve = move |queued: Receiver<Line>| {
            for line in queued {
                if line.lost > 0 {
                    report(line.lost);
                }
                write_whole(&file, &line.text);
                if let Some(queue) = counts.upgrade() {
                    queue.waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        std::thread::Builder::new().name("tailwater-log".to_owned()).spawn(move || serve(queued))?;
        Ok(queue)
    }

    /// Waits until all lines are written, for `patience` at most.
    pub(super) fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.waiting.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }
}

impl Write for &Queue {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(Line { text: text.to_vec(), lost }).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line with one call where the file takes it, so that lines of several processes on one
/// terminal do not mix. Waits for a reader, also where another process has made the open file
/// non-blocking. A log that cannot be written has no other place to say so.
fn write_whole(mut file: &File, mut text: &[u8]) {
    while !text.is_empty() {
        match file.write(text) {
            Ok(0) => return,
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Fails only where the next write does.
                let _ = poll(&mut [PollFd::new(file, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use rustix::io::ioctl_fionbio;
    use tailwater_testkit::until;

    use super::*;

    /// Returns a queue on a pipe, which is non-blocking for its writer or not.
    fn on_a_pipe(is_nonblocking: bool) -> (io::PipeReader, Arc<Queue>) {
        let (reader, writer) = io::pipe().unwrap();
        ioctl_fionbio(&writer, is_nonblocking).unwrap();
        let file = Arc::new(File::from(OwnedFd::from(writer)));
        let direct = Arc::clone(&file);
        let report = move |lines| write_whole(&direct, format!("{lines} lost\n").as_bytes());
        (reader, Queue::start(file, report).unwrap())
    }

    #[test]
    fn lines_for_a_reader_that_has_stopped_are_lost_and_counted_where_they_would_have_been() {
        // With its end of line, half of what a pipe of an unprivileged user can hold.
        let long = [&[b'x'; (1 << 15) - 1][..], b"\n"].concat();
        for is_nonblocking in [false, true] {
            let (mut reader, queue) = on_a_pipe(is_nonblocking);
            while queue.lost.load(Ordering::Relaxed) < 3 {
                assert_eq!((&*queue).write(&long).unwrap(), long.len());
            }
            // Gives up: the reader has stopped.
            queue.flush(Duration::from_millis(1));
            let all = std::thread::spawn(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).map(|_| all)
            });
            until("the queue is empty", || queue.waiting.load(Ordering::Relaxed) == 0);
            assert_eq!((&*queue).write(b"kept\n").unwrap(), 5);
            queue.flush(tailwater_testkit::PATIENCE);
            drop(queue);
            let all = String::from_utf8(all.join().unwrap().unwrap()).unwrap();
            let mut lines = all.lines().filter(|line| line.len() != long.len() - 1);
            let lost: u64 = lines.next().unwrap().strip_suffix(" lost").unwrap().parse().unwrap();
            assert!(lost >= 3);
            assert_eq!((lines.next(), lines.next()), (Some("kept"), None));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nothing() {
        let queue = Queue::start(Arc::new(File::options().write(true).open("/dev/full").unwrap()), |_| ());
        let queue = queue.unwrap();
        assert!((&*queue).write(b"lost\n").is_ok());
        until("the line is given up", || queue.waiting.load(Ordering::Relaxed) == 0);
    }
}
