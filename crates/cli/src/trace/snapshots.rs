//! `tailwater trace --on`: files of what has just happened, whenever something goes wrong.
//!
//! Owns when a file is written, and that neither number nor size grows without bound. It asks the
//! IOKernel for its statistics ten times a second and compares two readings ([`trigger`]); SIGUSR2
//! to this process has a file written, too. The IOKernel takes no part but that it answers, and
//! records as always. Files of this process beyond the number asked for are removed, the oldest
//! first, and each word has files of its own: a program that makes one word fire every second
//! removes no file of another word. Files of others are never touched.
//!
//! [`trigger`]: super::trigger

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::process::geteuid;
use serde_json::{Value, json};
use signal_hook::consts::SIGUSR2;
use tailwater_testbed::core_use::Linux;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::note;

use super::collect::Collector;
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
/// If nothing listens at the socket at first, or the folder cannot be made or is another user's.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR2, Arc::clone(&asked)).context("cannot catch signals")?;
    fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot make the folder {}", args.folder.display()))?;
    check_owner(&args.folder)?;
    let mut before = Some(query::statistics(&args.iokernel)?);
    let mut watch = LinuxWatch::of(before.as_ref().unwrap_or(&Value::Null));
    let mut files = Files::new(&args.folder, args.files.into());
    note!("waiting; SIGUSR2 to process {} has a file written, too", std::process::id());
    let mut not_before = Instant::now();
    while interrupt.sleep_until(Instant::now() + LOOK).is_ok() {
        watch.linux.iter_mut().for_each(Linux::take);
        // What goes wrong until then shows in the next reading, and a signal waits.
        if Instant::now() < not_before {
            continue;
        }
        let now = read(&args.iokernel, before.is_some());
        if let Some(now) = now.as_ref().filter(|now| watch.cores != now["iokernel"]["managed_cores"]) {
            // Another IOKernel has come.
            watch = LinuxWatch::of(now);
        }
        let cause = cause(args, before.as_ref(), now.as_ref(), &asked);
        before = now;
        let Some((name, why)) = cause else { continue };
        not_before = Instant::now() + APART;
        // It may have ended since.
        let document = snapshot(args, &mut watch, &why).context("the record of events cannot be read");
        match document.and_then(|document| files.write(name, &document)) {
            Ok(path) => note!("{why}: wrote {}", path.display()),
            // What goes wrong next may find room.
            Err(error) => note!("{why}: {error:#}"),
        }
    }
    Ok(())
}

/// Refuses a folder whose owner is neither this user nor root: that one could remove files, or put
/// others in their place.
fn check_owner(folder: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(folder).with_context(|| format!("cannot read {}", folder.display()))?.uid();
    anyhow::ensure!(
        owner == 0 || owner == geteuid().as_raw(),
        "{} is of user {owner}: name a folder (--folder) of your own or of root",
        folder.display()
    );
    Ok(())
}

/// The watch of what Linux does.
struct LinuxWatch {
    linux: Option<Linux>,
    /// The watched cores, as the statistics name them.
    cores: Value,
    /// Events that were lost when the last file was written.
    lost: u64,
}

impl LinuxWatch {
    /// Watches the lent cores of an IOKernel with these statistics.
    fn of(statistics: &Value) -> Self {
        let cores = statistics["iokernel"]["managed_cores"].clone();
        Self { linux: watch_linux(statistics, MOST), cores, lost: 0 }
    }
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
fn snapshot(args: &TraceArgs, linux: &mut LinuxWatch, why: &str) -> anyhow::Result<Value> {
    let look_back = |ns| Watch::look_back(&args.iokernel, ns);
    let ns = look_back(args.last.unwrap_or(LAST_NS))?.time_of_last(MOST)?;
    let mut collector = Collector::default();
    let watch = look_back(ns)?.read_into(&mut collector)?;
    let seen = linux.linux.as_ref().map(Linux::seen);
    let mut document =
        perfetto::document(&collector, &watch.names, watch.clock(), watch.anchor(), seen.as_ref());
    document["otherData"]["why"] = json!(why);
    if let Some(seen) = seen {
        let lost = seen.lost.saturating_sub(linux.lost);
        linux.lost = seen.lost;
        document["otherData"]["lost_events_of_linux"] = json!(lost);
        if lost > 0 {
            note!("{lost} events of Linux were lost since the last file");
        }
    }
    Ok(document)
}

/// The files of this process.
struct Files {
    folder: PathBuf,
    most: usize,
    /// By word.
    written: BTreeMap<&'static str, VecDeque<PathBuf>>,
    number: u64,
}

impl Files {
    fn new(folder: &Path, most: usize) -> Self {
        Self { folder: folder.to_owned(), most, written: BTreeMap::new(), number: 0 }
    }

    /// Writes a document to the next file; returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&mut self, name: &'static str, document: &Value) -> anyhow::Result<PathBuf> {
        self.number += 1;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = format!("tailwater-{seconds}-{}-{}-{name}.json", std::process::id(), self.number);
        let path = self.folder.join(file);
        // Others may have put a link into a folder that all may write to.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        fill(file, document)
            .inspect_err(|_| {
                // What is there of it is no document.
                let _ = fs::remove_file(&path);
            })
            .with_context(|| format!("cannot write {}", path.display()))?;
        let written = self.written.entry(name).or_default();
        written.push_back(path.clone());
        while written.len() > self.most
            && let Some(oldest) = written.pop_front()
        {
            // Another process may have taken it away.
            let _ = fs::remove_file(oldest);
        }
        Ok(path)
    }
}

fn fill(file: File, document: &Value) -> anyhow::Result<()> {
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, document)?;
    Ok(file.flush()?)
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
        assert_eq!(paths[3].metadata().unwrap().mode() & 0o777, 0o600);
        // Another word takes the room of none.
        (0..4).for_each(|n| drop(files.write("slo", &json!(n)).unwrap()));
        assert!(paths[2].exists() && paths[3].exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    }

    #[test]
    fn what_does_not_fit_on_the_disk_is_an_error_and_a_folder_of_others_is_refused() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        fill(full, &json!(1)).unwrap_err();
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(&folder.path().join("absent"), 2);
        assert!(files.write("slo", &json!(1)).unwrap_err().to_string().contains("cannot write"));
        check_owner(folder.path()).unwrap();
        check_owner(Path::new("/")).unwrap();
        if std::os::unix::fs::chown(folder.path(), Some(12_345), None).is_err() {
            return eprintln!("skipped: only root makes folders of others");
        }
        let refused = check_owner(folder.path()).map_err(|error| error.to_string());
        // One that is not root cannot remove it.
        std::os::unix::fs::chown(folder.path(), Some(geteuid().as_raw()), None).unwrap();
        assert!(refused.unwrap_err().contains("user 12345"));
    }
}
