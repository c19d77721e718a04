//! What settings of the machine were before, kept in a file until they are so again.
//!
//! Owns the record of one [`Kind`] of settings: one IOKernel at a time holds its lock, and writes
//! down what settings were before it changes them. The next one that holds the lock, or `tailwater
//! doctor --repair`, finds what an IOKernel that crashed has left, and puts it back first.
//! [`Outcome`] says what became of it.
//!
//! | file | |
//! |---|---|
//! | `STATE-FILE` | the record, as JSON; it is there only while settings are changed or could not be put back |
//! | `STATE-FILE.new` | the next record, until it is renamed to `STATE-FILE` |
//! | `STATE-FILE.lock` | the lock, flock(2); empty, and never removed |
//!
//! The record is written once before a step changes settings, however many, and once more if the
//! kernel shows another value than it was given. None of this is synchronised with a disk, because
//! the settings do not outlive the kernel.
//!
//! # Two writers, crash and lie
//!
//! | | |
//! |---|---|
//! | another IOKernel holds the lock | nothing is written; tried again later |
//! | an administrator changes a setting meanwhile | it has another value than the one written last: putting back leaves it as it is, and before each further change [`Undo::is_changed_by_others`] says so |
//! | a setting cannot be put back | its entry and the file stay, for the next IOKernel or `--repair`; its value before stays known |
//! | the setting is gone, with its control group | its entry is dropped |
//! | the kernel refuses the empty value that a setting had before | it gets the value that has the same effect, if there is one |
//! | death while the record is written | the former one is there, whole; nothing of this step was changed |
//! | death between the record and the setting | the setting has its old value: nothing to put back |
//! | death between the setting and its reading back | the record has the word that was written. What the kernel has made of it is recognised by [`Kind::shown`]; a rate that it has rounded is taken for an administrator's |
//! | the disk is full | the record cannot be written: nothing of this step is changed |
//! | a file is of another user, or a link; the record is damaged, or names other files | refused: with the rights of root any file could be written |

#[cfg(test)]
mod tests;

use rustix::fs::{FlockOperation, OFlags, flock, fstat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// A kind of settings, with a record of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// In words, one and many of them.
    pub(crate) what: &'static str,
    /// The configuration key of the state file.
    pub(crate) key: &'static str,
    /// Names of the files that are ever written.
    pub(crate) files: &'static [&'static str],
    /// Returns a value as the kernel below this root shows it at present: two values are the same
    /// if it shows them so.
    pub(crate) shown: fn(&Path, &str) -> String,
    /// Returns the value that has the effect of an empty one, where the kernel refuses that.
    pub(crate) instead_of_empty: fn() -> Option<String>,
}

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    file: PathBuf,
    before: String,
    /// The word written last, and what the kernel made of it; empty if it was never changed.
    written: Vec<String>,
}

/// What became of settings that were to be put back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How many have their former value again.
    pub(crate) put_back: usize,
    /// Those that have another value than the one written here, which stays.
    pub(crate) changed: Vec<PathBuf>,
    /// Those that are still in the record, and why.
    pub(crate) failed: Vec<(PathBuf, String)>,
}

/// What becomes of one setting.
enum Fate {
    /// It has its former value, or is gone.
    Same,
    PutBack,
    ChangedByOthers,
}

/// The record, locked. Settings are put back on drop.
#[derive(Debug)]
pub(crate) struct Undo {
    kind: Kind,
    path: PathBuf,
    root: PathBuf,
    /// Held, never read.
    lock: File,
    entries: Vec<Entry>,
    /// Settings may have been changed since they were last put back.
    dirty: bool,
    /// What became of the settings that a crashed IOKernel had left.
    pub(crate) recovered: Outcome,
}

fn read(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// Writes a word and a newline, without which an empty word would not be written at all. In place
/// of an empty one that the kernel refuses, writes the one that has its effect.
fn write(kind: Kind, file: &Path, word: &str) -> io::Result<()> {
    let write = |word: &str| {
        OpenOptions::new().write(true).truncate(true).open(file)?.write_all(format!("{word}\n").as_bytes())
    };
    write_or_instead(word, kind.instead_of_empty, write)
}

fn write_or_instead(
    word: &str,
    instead_of_empty: impl FnOnce() -> Option<String>,
    write: impl Fn(&str) -> io::Result<()>,
) -> io::Result<()> {
    match write(word) {
        Err(error) if word.is_empty() => instead_of_empty().map_or(Err(error), |instead| write(&instead)),
        result => result,
    }
}

/// Returns the path with a suffix to its last name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a file of this user's that is no link.
fn open_own(options: &mut OpenOptions, path: &Path, kind: Kind) -> io::Result<File> {
    // Nonblocking: a pipe in its place is refused below.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let is_own = fstat(&file)?.st_uid == geteuid().as_raw() && file.metadata()?.is_file();
    if !is_own {
        let (path, key) = (path.display(), kind.key);
        let why = format!("{path} belongs to another user, or is no file; remove it, or set {key}");
        return Err(io::Error::other(why));
    }
    Ok(file)
}

impl Entry {
    /// Returns whether the present value is one written here.
    fn is_written(&self, kind: Kind, root: &Path, present: &str) -> bool {
        self.written.iter().any(|written| is_same(kind, root, written, present))
    }
}

/// Returns whether the kernel shows two values as the same.
fn is_same(kind: Kind, root: &Path, one: &str, other: &str) -> bool {
    let shown = |value| (kind.shown)(root, value);
    one == other || shown(one) == shown(other)
}

/// Returns the values that settings had before an IOKernel changed them, by file: those of the
/// record that still have the value written last. Empty if there is no record that can be read.
/// Takes no lock, for a record is replaced as a whole.
pub(crate) fn originals(kind: Kind, path: &Path, root: &Path) -> BTreeMap<PathBuf, String> {
    let entries = load(kind, path, root).unwrap_or_default().into_iter();
    let is_ours =
        |entry: &Entry| read(&entry.file).is_ok_and(|present| entry.is_written(kind, root, &present));
    entries.filter(is_ours).map(|entry| (entry.file, entry.before)).collect()
}

impl Undo {
    /// Locks the record and puts back what a crashed IOKernel has left below `root`. Returns `None`
    /// if another one holds the lock.
    ///
    /// # Errors
    /// If the files cannot be used.
    pub(crate) fn lock(kind: Kind, path: &Path, root: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let lock = open_own(options, &beside(path, ".lock"), kind)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (path, root) = (path.to_owned(), root.to_owned());
        let (entries, recovered) = (Vec::new(), Outcome::default());
        let mut undo = Self { kind, path, root, lock, entries, dirty: false, recovered };
        // Unlocks if it fails.
        undo.entries = load(kind, &undo.path, &undo.root)?;
        undo.recovered = undo.put_back();
        Ok(Some(undo))
    }

    /// Returns what a setting that was changed here was before.
    pub(crate) fn before(&self, file: &Path) -> Option<&str> {
        self.entries.iter().find(|entry| entry.file == file).map(|entry| entry.before.as_str())
    }

    /// Returns whether a setting has another value than the one written here.
    pub(crate) fn is_changed_by_others(&self, file: &Path) -> bool {
        let entry = self.entries.iter().find(|entry| entry.file == file && !entry.written.is_empty());
        entry.is_some_and(|entry| read(file).is_ok_and(|present| !self.is_written(entry, &present)))
    }

    /// Leaves a setting that others have changed to them: it is not put back, whatever value it has
    /// then.
    pub(crate) fn leave(&mut self, file: &Path) {
        for entry in self.entries.iter_mut().filter(|entry| entry.file == file) {
            entry.written.clear();
        }
    }

    fn is_same(&self, one: &str, other: &str) -> bool {
        is_same(self.kind, &self.root, one, other)
    }

    fn is_written(&self, entry: &Entry, present: &str) -> bool {
        entry.is_written(self.kind, &self.root, present)
    }

    /// Keeps the values of settings before any of them is changed, for the change of one may alter
    /// what another one shows. The last of them is the first to be put back. Those that cannot be
    /// read are left out.
    pub(crate) fn note(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        for file in files {
            if self.before(&file).is_none()
                && let Ok(before) = read(&file)
            {
                self.entries.push(Entry { file, before, written: Vec::new() });
            }
        }
    }

    /// Changes settings, in this order, each unless it is so since the last change; what they were
    /// before is in the record then. Returns those that could not be changed, and why.
    ///
    /// # Errors
    /// If the record cannot be written. Then either nothing was changed, or everything is, and what
    /// the kernel has made of it is not in the record.
    pub(crate) fn set(&mut self, words: &[(PathBuf, String)]) -> io::Result<Vec<(PathBuf, io::Error)>> {
        let (mut failed, mut due) = (Vec::new(), Vec::new());
        for (file, word) in words {
            match self.prepare(file, word) {
                Ok(Some(at)) => due.push((at, word)),
                Ok(None) => {}
                Err(error) => failed.push((file.clone(), error)),
            }
        }
        if due.is_empty() {
            return Ok(failed);
        }
        self.dirty = true;
        self.keep()?;
        let mut is_complete = true;
        for (at, word) in due {
            let file = &self.entries[at].file;
            match write(self.kind, file, word).and_then(|()| read(file)) {
                Ok(present) => {
                    is_complete &= self.is_same(word, &present);
                    self.entries[at].written = vec![word.clone(), present];
                }
                Err(error) => failed.push((file.clone(), error)),
            }
        }
        if !is_complete {
            self.keep()?;
        }
        Ok(failed)
    }

    /// Enters a word that is to be written. Returns the position of its entry; `None` if the
    /// setting is so.
    fn prepare(&mut self, file: &Path, word: &str) -> io::Result<Option<usize>> {
        let present = read(file)?;
        let at = match self.entries.iter().position(|entry| entry.file == file) {
            Some(at) => at,
            None => {
                self.entries.push(Entry {
                    file: file.to_owned(),
                    before: present.clone(),
                    written: Vec::new(),
                });
                self.entries.len() - 1
            }
        };
        let entry = &self.entries[at];
        if entry.written.first().is_some_and(|last| last == word) && self.is_written(entry, &present) {
            return Ok(None);
        }
        let written = &mut self.entries[at].written;
        // It is if it could not be written the last time.
        if !written.iter().any(|other| other == word) {
            written.push(word.to_owned());
        }
        Ok(Some(at))
    }

    /// Replaces the record, or removes it if it is empty.
    fn keep(&self) -> io::Result<()> {
        if self.entries.is_empty() {
            return remove_if_there(&self.path);
        }
        let next = beside(&self.path, ".new");
        remove_if_there(&next)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
        let written = file.write_all(&serde_json::to_vec(&self.entries)?);
        written.and_then(|()| fs::rename(&next, &self.path)).inspect_err(|_| {
            // Nothing reads it.
            let _ = fs::remove_file(&next);
        })
    }

    /// Gives each setting its former value, the last changed first, unless it has another value
    /// than the one written here. One that fails is tried again after others were put back, on
    /// which it may depend; entries of those that fail stay in the record.
    pub(crate) fn put_back(&mut self) -> Outcome {
        let (what, had_entries) = (self.kind.what, !self.entries.is_empty());
        let mut outcome = Outcome::default();
        loop {
            let done = outcome.put_back;
            outcome.failed.clear();
            for entry in core::mem::take(&mut self.entries).into_iter().rev() {
                match self.restore(&entry) {
                    Ok(Fate::Same) => {}
                    Ok(Fate::PutBack) => outcome.put_back += 1,
                    Ok(Fate::ChangedByOthers) => outcome.changed.push(entry.file),
                    Err(error) => {
                        outcome.failed.push((entry.file.clone(), error.to_string()));
                        self.entries.push(entry);
                    }
                }
            }
            self.entries.reverse();
            if outcome.failed.is_empty() || outcome.put_back == done {
                break;
            }
        }
        for file in &outcome.changed {
            tracing::warn!(file = %file.display(), what, "another program has changed a setting, which stays");
        }
        for (file, error) in &outcome.failed {
            tracing::warn!(
                file = %file.display(), what, error,
                "cannot put a setting back: the state file keeps what it was, for `tailwater doctor --repair` as root"
            );
        }
        if had_entries && let Err(error) = self.keep() {
            // What it names too much has its former value, and is left alone by the next one.
            tracing::warn!(file = %self.path.display(), what, %error, "cannot write the state file");
        }
        self.dirty = false;
        outcome
    }

    fn restore(&self, entry: &Entry) -> io::Result<Fate> {
        let Entry { file, before, written } = entry;
        if written.is_empty() {
            return Ok(Fate::Same);
        }
        let present = match read(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Fate::Same),
            present => present?,
        };
        let is_instead = |instead: String| before.is_empty() && self.is_same(&present, &instead);
        if self.is_same(&present, before) || (self.kind.instead_of_empty)().is_some_and(is_instead) {
            return Ok(Fate::Same);
        }
        if !self.is_written(entry, &present) {
            return Ok(Fate::ChangedByOthers);
        }
        write(self.kind, file, &(self.kind.shown)(&self.root, before))?;
        Ok(Fate::PutBack)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.dirty {
            self.put_back();
        }
        // A process that was forked and has not called exec yet has the descriptor, too. Cannot
        // fail.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Reads the record; empty if there is none.
fn load(kind: Kind, path: &Path, root: &Path) -> io::Result<Vec<Entry>> {
    let mut text = String::new();
    match open_own(OpenOptions::new().read(true), path, kind) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?.read_to_string(&mut text)?,
    };
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| {
        let what = kind.what;
        io::Error::other(format!(
            "it is damaged ({error}): set the {what} that it names by hand, and remove it"
        ))
    })?;
    if let Some(Entry { file, .. }) = entries.iter().find(|entry| !is_setting(kind, &entry.file, root)) {
        let (file, root, what) = (file.display(), root.display(), kind.what);
        return Err(io::Error::other(format!("it names {file}, none of the {what} below {root}: remove it")));
    }
    Ok(entries)
}

/// Returns whether a path is one that is ever written.
fn is_setting(kind: Kind, file: &Path, root: &Path) -> bool {
    let named = file.file_name().is_some_and(|name| kind.files.iter().any(|setting| *setting == name));
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let climbs = file.components().any(|part| part == Component::ParentDir);
    named && !climbs && (file.starts_with(&root))
}
