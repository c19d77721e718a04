//! A pipeline: one thread reads lines, several process them, one writes the results in the order of
//! the input.
//!
//! ```text
//! seq 1000000 | cargo run -p tailwater --release --example pipeline -- 4
//! ```
//!
//! For each line, a number, the output has its smallest prime factor. Reading and writing go
//! through `tailwater::blocking`, in batches, because they wait in the kernel; everything between
//! is user threads and channels. Channels are bounded, so a slow stage slows the reader down and
//! memory stays small whatever the input.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use tailwater::sync::channel::{Receiver, Sender, bounded};
use tailwater::thread;

/// Lines per batch: makes the cost of a channel, and of `blocking`, small compared with the work.
const BATCH: usize = 256;
/// Batches between two stages.
const DEPTH: usize = 16;

/// Lines and their position in the input.
type Batch = (u64, Vec<String>);

#[tailwater::main]
fn main() -> io::Result<()> {
    let workers = match std::env::args().nth(1).map(|text| text.parse()) {
        Some(Ok(workers @ 1..)) => workers,
        Some(_) => return Err(io::Error::other("usage: pipeline [NUMBER OF WORKERS]")),
        None => thread::available_parallelism()?.get(),
    };
    let (lines, to_work) = bounded(DEPTH);
    let (results, to_write) = bounded(DEPTH);
    thread::scope(|s| {
        let reader = s.spawn(move || read(&lines));
        for _ in 0..workers {
            let (to_work, results) = (to_work.clone(), results.clone());
            s.spawn(move || work(&to_work, &results));
        }
        // The writer ends when the last sender is dropped, and a reader without receivers ends as
        // well.
        drop((to_work, results));
        let written = write(&to_write);
        drop(to_write);
        written.and(reader.join().expect("the reader does not panic"))
    })
}

fn read(lines: &Sender<Batch>) -> io::Result<()> {
    for number in 0.. {
        let batch: Vec<String> =
            tailwater::blocking(|| io::stdin().lock().lines().take(BATCH).collect::<io::Result<_>>())?;
        if batch.is_empty() || lines.send((number, batch)).is_err() {
            break;
        }
    }
    Ok(())
}

fn work(from: &Receiver<Batch>, to: &Sender<Batch>) {
    for (number, batch) in from {
        let answers = batch.iter().map(|line| answer(line)).collect();
        if to.send((number, answers)).is_err() {
            return;
        }
    }
}

fn answer(line: &str) -> String {
    let Ok(number) = line.trim().parse::<u64>() else { return format!("{line}: not a number") };
    let factor = (2..).take_while(|f| f * f <= number).find(|f| {
        // A poll point lets others have the core; it costs about a nanosecond.
        tailwater::poll();
        number.is_multiple_of(*f)
    });
    format!("{number}: {}", factor.unwrap_or(number))
}

/// Writes batches in order; early ones wait. Their number is bounded by the workers and the
/// channels' capacity.
fn write(from: &Receiver<Batch>) -> io::Result<()> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for (number, batch) in from {
        early.insert(number, batch);
        while let Some(batch) = early.remove(&next) {
            let text = batch.join("\n") + "\n";
            tailwater::blocking(|| io::stdout().lock().write_all(text.as_bytes()))?;
            next += 1;
        }
    }
    Ok(())
}
