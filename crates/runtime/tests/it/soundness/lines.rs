//! Lines that sessions print, and how the parent recognises them: each carries a checksum of its
//! own bytes.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The line before the first one; before it the test harness may print.
const BEGIN: &str = "=== sessions\n";
/// Prefix of the last line; then the number of lines on standard output and error, and a summary.
const TOTAL: &str = "total ";

/// Prefix of a report of the stall detector; a backtrace follows, each line indented. On a busy
/// machine three sessions may wait in the kernel for the lock of standard output, whose holder is
/// runnable and has no kthread: the detector resolves that, and reports it.
const REPORT: &str = "tailwater: ";

static PRINTED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

pub fn begin() {
    print!("\n{BEGIN}");
    eprint!("\n{BEGIN}");
}

/// Prints one line to standard output and, now and then, one to standard error.
pub fn print(id: u64, round: u64) {
    // Long lines too: a pipe takes at most 4096 bytes atomically (pipe(7), PIPE_BUF); standard
    // output flushes at 1024.
    let filler = "x".repeat(((id * 31 + round * 17) % 200) as usize);
    let text = format!("{id} {round} {filler}");
    println!("{text} {}", sum(&text));
    PRINTED[0].fetch_add(1, Ordering::Relaxed);
    if round.is_multiple_of(4) {
        // In one write: the report of a stall, which takes no lock, does not fall into the line.
        let line = format!("{text} {}\n", sum(&text));
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        PRINTED[1].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns whether each stream has got a line.
pub fn on_both_streams() -> bool {
    PRINTED.iter().all(|count| count.load(Ordering::Relaxed) > 0)
}

pub fn end(summary: &str) {
    let [out, err] = [0, 1].map(|stream: usize| PRINTED[stream].load(Ordering::Relaxed));
    println!("{TOTAL}{out} {summary}");
    eprintln!("{TOTAL}{err} {summary}");
}

fn sum(text: &str) -> u64 {
    text.bytes().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn is_whole(line: &str) -> bool {
    line.rsplit_once(' ').is_some_and(|(text, last)| last.parse() == Ok(sum(text)))
}

/// Contents of one pipe.
#[derive(Debug, Default)]
pub struct Found {
    /// Whole lines.
    pub lines: u64,
    /// Number of lines that the child reports to have printed.
    pub expected: u64,
    /// The child's summary.
    pub summary: String,
    /// Everything else.
    pub other: String,
}

/// Reads one pipe to its end.
#[derive(Debug)]
pub struct Reader(JoinHandle<Found>);

impl Reader {
    pub fn start(name: &str, pipe: impl std::io::Read + Send + 'static) -> Self {
        let read = move || sort(&super::read_all(pipe));
        Self(std::thread::Builder::new().name(name.to_owned()).spawn(read).unwrap())
    }

    pub fn finish(self) -> Found {
        self.0.join().unwrap()
    }
}

fn sort(text: &str) -> Found {
    let mut found = Found::default();
    let Some((_, text)) = text.split_once(BEGIN) else {
        return Found { other: text.to_owned(), ..found };
    };
    let mut in_report = false;
    for line in text.lines() {
        in_report = line.starts_with(REPORT) || in_report && line.starts_with(' ');
        if in_report {
            continue;
        }
        if let Some(total) = line.strip_prefix(TOTAL) {
            let (expected, summary) = total.split_once(' ').unwrap();
            (found.expected, found.summary) = (expected.parse().unwrap(), summary.to_owned());
        } else if is_whole(line) {
            found.lines += 1;
        } else {
            found.other.push_str(line);
            found.other.push('\n');
        }
    }
    found
}

#[test]
fn torn_lines_are_found() {
    let text = "1 2 xxx";
    let line = format!("{text} {}", sum(text));
    let found =
        sort(&format!("noise{BEGIN}{line}\n{line}{line}\n{}\n{TOTAL}3 all\n", &line[..line.len() - 1]));
    assert_eq!((found.lines, found.expected, found.summary.as_str()), (1, 3, "all"));
    assert_eq!(found.other.lines().count(), 2);
}

#[test]
fn a_report_of_a_stall_is_no_torn_line() {
    let text = "1 2 xxx";
    let line = format!("{text} {}", sum(text));
    let found =
        sort(&format!("{BEGIN}{line}\ntailwater: a stall\n   0: main\n{line}\n   torn\n{TOTAL}2 all\n"));
    assert_eq!((found.lines, found.expected, found.other.as_str()), (2, 2, "   torn\n"));
}
