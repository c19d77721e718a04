//! `tailwater trace --on`: files of what has just happened, whenever something goes wrong.
//!
//! Owns when a file is written, and that neither number nor size grows without bound. It asks the
//! IOKernel for its statistics ten times a second and compares two readings ([`trigger`]); SIGUSR2
//! to this process has a file written, too. The IOKernel takes no part but that it answers, and
//! records as always. Files of this process beyond the number asked for make room for the next, the
//! oldest first; those of others are never touched.
//!
//! [`trigger`]: super::trigger

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::{Value, json};
use signal_hook::consts::SIGUSR2;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::note;

use super::collect::Collector;
use super::linux::Linux;
use super::watch::Watch;
use super::{TraceArgs, perfetto, watch_linux};
use crate::query;

/// Time between two readings.
const LOOK: Duration = Duration::from_millis(100);
/// Least time between two files: what goes wrong without end would fill them at once.
const APART: Duration = Duration::from_secs(1);
/// What is looked back to without `--last`.
const LAST_NS: u64 = 500_000_000;
/// Events and slices of Linux in a file, each: some 20 MB together.
const MOST: usize = 1 << 16;

/// Writes files until it is interrupted.
///
/// # Errors
/// If nothing listens at the socket at first, or no file can be written.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR2, Arc::clone(&asked)).context("cannot catch signals")?;
    fs::create_dir_all(&args.output)
        .with_context(|| format!("cannot make the folder {}", args.output.display()))?;
    let mut linux = watch_linux(&args.iokernel, MOST)?;
    let mut before = Some(query::statistics(&args.iokernel)?);
    let mut files = Files::new(&args.output, args.files.into());
    note!("waiting; SIGUSR2 to process {} has a file written, too", std::process::id());
    let mut not_before = Instant::now();
    while interrupt.sleep_until(Instant::now() + LOOK).is_ok() {
        linux.iter_mut().for_each(Linux::take);
        // What goes wrong until then shows in the next reading, and a signal waits.
        if Instant::now() < not_before {
            continue;
        }
        let now = read(&args.iokernel, before.is_some());
        let cause = cause(args, before.as_ref(), now.as_ref(), &asked);
        before = now;
        let Some((name, why)) = cause else { continue };
        not_before = Instant::now() + APART;
        match snapshot(args, linux.as_ref(), &why) {
            Ok(document) => {
                let path = files.write(name, &document)?;
                note!("{why}: wrote {}", path.display());
            }
            // It may have ended since.
            Err(error) => note!("{why}: the record of events cannot be read: {error:#}"),
        }
    }
    Ok(())
}

/// Returns the statistics; prints once that there are none.
fn read(iokernel: &str, were_there: bool) -> Option<Value> {
    match query::statistics(iokernel) {
        Ok(statistics) => Some(statistics),
        Err(error) => {
            if were_there {
                note!("{error:#}; tried again until it answers");
            }
            None
        }
    }
}

/// Returns for what a file is written, as a word and in words.
fn cause(
    args: &TraceArgs,
    before: Option<&Value>,
    now: Option<&Value>,
    asked: &AtomicBool,
) -> Option<(&'static str, String)> {
    let now = now?;
    // Relaxed: the flag publishes nothing else.
    if asked.swap(false, Ordering::Relaxed) {
        return Some(("asked", "SIGUSR2 arrived".to_owned()));
    }
    let before = before?;
    args.on.iter().find_map(|trigger| Some((trigger.name(), trigger.fired(before, now)?)))
}

/// Returns the document of what was recorded last.
fn snapshot(args: &TraceArgs, linux: Option<&Linux>, why: &str) -> anyhow::Result<Value> {
    let look_back = |ns| Watch::look_back(&args.iokernel, ns);
    let ns = look_back(args.last.unwrap_or(LAST_NS))?.time_of_last(MOST)?;
    let mut collector = Collector::default();
    let watch = look_back(ns)?.read_into(&mut collector)?;
    let seen = linux.map(Linux::seen);
    let mut document =
        perfetto::document(&collector, &watch.names, watch.clock(), watch.anchor(), seen.as_ref());
    document["otherData"]["why"] = json!(why);
    Ok(document)
}

/// The files of this process.
struct Files {
    folder: PathBuf,
    most: usize,
    written: VecDeque<PathBuf>,
    number: u64,
}

impl Files {
    fn new(folder: &Path, most: usize) -> Self {
        Self { folder: folder.to_owned(), most, written: VecDeque::new(), number: 0 }
    }

    /// Writes a document to the next file; returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&mut self, name: &str, document: &Value) -> anyhow::Result<PathBuf> {
        while self.written.len() >= self.most
            && let Some(oldest) = self.written.pop_front()
        {
            // Another process may have taken it away.
            let _ = fs::remove_file(oldest);
        }
        self.number += 1;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = format!("tailwater-{seconds}-{}-{}-{name}.json", std::process::id(), self.number);
        let path = self.folder.join(file);
        // Root may write into a folder of others, who may have put a link there.
        let file = File::create_new(&path).map(BufWriter::new);
        let written = file.map_err(anyhow::Error::from).and_then(|mut file| {
            serde_json::to_writer(&mut file, document)?;
            Ok(file.flush()?)
        });
        written.with_context(|| format!("cannot write {}", path.display()))?;
        self.written.push_back(path.clone());
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_file_of_this_process_makes_room_and_no_other_does() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tailwater-0-other.json"), "").unwrap();
        let mut files = Files::new(folder.path(), 2);
        let paths: Vec<PathBuf> = (0..4).map(|n| files.write("eviction", &json!(n)).unwrap()).collect();
        assert!(!paths[0].exists() && !paths[1].exists() && paths[2].exists() && paths[3].exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert_eq!(fs::read_to_string(&paths[3]).unwrap(), "3");
        assert!(paths[3].to_str().unwrap().ends_with("-4-eviction.json"));
    }
}
