//! Former values of the machine's settings, kept in a file until they are restored.
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
//! # Settings that are made again
//!
//! The cpuset of a control group that is removed and made again is another setting of the same
//! name, with a value of its own. Its entry has the number of the file (`inode`), by which the two
//! are told apart ([`Kind::made_anew`]). The kernel's file systems of settings give a number of 64
//! bits, and never twice (Linux, fs/kernfs/dir.c, `__kernfs_new_node`). A version of Tailwater that
//! does not know the number ignores it in a record, and a record without numbers is read: settings
//! are then told apart by their values alone. In a takeover the old IOKernel puts its settings back
//! before the new one has the lock, so that only a crash leaves a record to another version.
//!
//! # Two writers, crash and lie
//!
//! | | |
//! |---|---|
//! | another IOKernel holds the lock | nothing is written; tried again later |
//! | an administrator changes a setting meanwhile | it has another value than the one written last: putting back leaves it as it is, and before each further change [`Undo::is_changed_by_others`] says so |
//! | a setting cannot be put back | its entry and the file stay, for the next IOKernel or `--repair`; its value before stays known |
//! | the setting is gone, with its control group | its entry is dropped; no error |
//! | it is made again, before or after a crash | it has its own value, which stays; before it is changed here, that replaces the entry |
//! | it is made again just before it is written | the file that is opened has another number: nothing is written |
//! | the kernel refuses the empty value that a setting had before | it gets the value that has the same effect, if there is one |
//! | death while the record is written | the former one is there, whole; nothing of this step was changed |
//! | death between the record and the setting | the setting has its old value: nothing to put back |
//! | death between the setting and its reading back | the record has the word that was written. What the kernel has made of it is recognised by [`Kind::shown`]; a rate that it has rounded is taken for an administrator's |
//! | the disk is full | the record cannot be written: nothing of this step is changed |
//! | a file is of another user, or a link; the record is damaged, or names other files | refused: with the rights of root any file could be written |

#[cfg(test)]
mod tests;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::own_file::{self, beside};

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
    /// A file that is removed and made again is another setting, with a value of its own.
    pub(crate) made_anew: bool,
    /// Returns the value that has the effect of an empty one, where the kernel refuses that.
    pub(crate) instead_of_empty: fn() -> Option<String>,
}

/// Number of a file; `None` where it does not matter, or is not known.
pub(crate) type Inode = Option<u64>;

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    file: PathBuf,
    before: String,
    /// The word written last, and what the kernel made of it; empty if it was never changed.
    written: Vec<String>,
    /// Number of the file; absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Inode,
}

/// The result of putting settings back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Number of settings that have their former value again.
    pub(crate) put_back: usize,
    /// Those that have another value than the one written here, which stays.
    pub(crate) changed: Vec<PathBuf>,
    /// Those that are still in the record, and why.
    pub(crate) failed: Vec<(PathBuf, String)>,
}

/// The result for one setting.
enum Fate {
    /// It has its former value, or is gone. What was made again in its place has its own.
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

impl Kind {
    /// Returns the number of a file of this kind; `None` if there is none.
    pub(crate) fn inode(self, path: &Path) -> Inode {
        fs::metadata(path).ok().and_then(|metadata| self.inode_in(&metadata))
    }

    fn inode_in(self, metadata: &Metadata) -> Inode {
        self.made_anew.then(|| metadata.ino())
    }

    /// Returns the value of a setting, and the number of its file.
    fn read(self, path: &Path) -> io::Result<(String, Inode)> {
        let mut file = File::open(path)?;
        let (inode, mut value) = (self.inode_in(&file.metadata()?), String::new());
        file.read_to_string(&mut value)?;
        Ok((value.trim().to_owned(), inode))
    }

    /// Writes a word and a newline, without which an empty word would not be written at all, to the
    /// file with this number.
    fn write(self, path: &Path, inode: Inode, word: &str) -> io::Result<()> {
        write_or_instead(word, self.instead_of_empty, |word| {
            let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
            if is_another(inode, self.inode_in(&file.metadata()?)) {
                return Err(Errno::NODEV.into());
            }
            file.write_all(format!("{word}\n").as_bytes())
        })
    }
}

/// Returns whether two files of one name are known to be different ones.
fn is_another(one: Inode, other: Inode) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// Returns whether an error says that a setting is gone: also one whose file was open.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::NODEV)
}

/// Writes a word; in place of an empty one that the kernel refuses, the one that has its effect.
fn write_or_instead(
    word: &str,
    instead_of_empty: impl FnOnce() -> Option<String>,
    write: impl Fn(&str) -> io::Result<()>,
) -> io::Result<()> {
    match write(word) {
        Err(error) if word.is_empty() && !is_gone(&error) => {
            instead_of_empty().map_or(Err(error), |instead| write(&instead))
        }
        result => result,
    }
}

/// Opens a file of this user's that is no link.
fn open_own(options: &mut OpenOptions, path: &Path, kind: Kind) -> io::Result<File> {
    own_file::open(options, path).map_err(|error| match error.kind() {
        ErrorKind::Other => {
            io::Error::other(format!("{}: {error}; remove it, or set {}", path.display(), kind.key))
        }
        _ => error,
    })
}

impl Entry {
    /// Returns whether the present value is one written here.
    fn is_written(&self, kind: Kind, root: &Path, present: &str) -> bool {
        self.written.iter().any(|written| is_same(kind, root, written, present))
    }

    /// Returns whether this is of a file that was removed and made again since.
    fn is_stale(&self, kind: Kind) -> bool {
        self.inode.is_some() && is_another(self.inode, kind.inode(&self.file))
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
    let is_ours = |entry: &Entry| {
        kind.read(&entry.file).is_ok_and(|(present, inode)| {
            !is_another(entry.inode, inode) && entry.is_written(kind, root, &present)
        })
    };
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
            Err(Errno::WOULDBLOCK) => return Ok(None),
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
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.file == file && !entry.is_stale(self.kind));
        entry.map(|entry| entry.before.as_str())
    }

    /// Returns whether a setting has another value than the one written here.
    pub(crate) fn is_changed_by_others(&self, file: &Path) -> bool {
        let entry = self.entries.iter().find(|entry| entry.file == file && !entry.written.is_empty());
        entry.is_some_and(|entry| {
            self.kind.read(file).is_ok_and(|(present, inode)| {
                !is_another(entry.inode, inode) && !self.is_written(entry, &present)
            })
        })
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
                && let Ok((before, inode)) = self.kind.read(&file)
            {
                self.enter(&file, before, inode);
            }
        }
    }

    /// Returns the position of a setting's entry. Makes one with its present value if there is
    /// none, or only that of an earlier file of this name.
    fn enter(&mut self, file: &Path, present: String, inode: Inode) -> usize {
        self.entries.retain(|entry| entry.file != file || !is_another(entry.inode, inode));
        self.entries.iter().position(|entry| entry.file == file).unwrap_or_else(|| {
            self.entries.push(Entry { file: file.to_owned(), before: present, written: Vec::new(), inode });
            self.entries.len() - 1
        })
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
                Ok(true) => due.push((file, word)),
                Ok(false) => {}
                Err(error) => failed.push((file.clone(), error)),
            }
        }
        if due.is_empty() {
            return Ok(failed);
        }
        self.dirty = true;
        self.keep()?;
        let mut is_complete = true;
        for (file, word) in due {
            let Some(at) = self.entries.iter().position(|entry| entry.file == *file) else { continue };
            let inode = self.entries[at].inode;
            match self.kind.write(file, inode, word).and_then(|()| self.kind.read(file)) {
                Ok((present, _)) => {
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

    /// Enters a word that is to be written. Returns false if the setting is so.
    fn prepare(&mut self, file: &Path, word: &str) -> io::Result<bool> {
        let (present, inode) = self.kind.read(file)?;
        let at = self.enter(file, present.clone(), inode);
        let entry = &self.entries[at];
        if entry.written.first().is_some_and(|last| last == word) && self.is_written(entry, &present) {
            return Ok(false);
        }
        let written = &mut self.entries[at].written;
        // It is if it could not be written the last time.
        if !written.iter().any(|other| other == word) {
            written.push(word.to_owned());
        }
        Ok(true)
    }

    /// Replaces the record, or removes it if it is empty.
    fn keep(&self) -> io::Result<()> {
        if self.entries.is_empty() {
            return own_file::remove(&self.path);
        }
        own_file::replace(&self.path, &serde_json::to_vec(&self.entries)?)
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
        let Entry { file, before, written, inode } = entry;
        if written.is_empty() {
            return Ok(Fate::Same);
        }
        let (present, present_inode) = match self.kind.read(file) {
            Err(error) if is_gone(&error) => return Ok(Fate::Same),
            present => present?,
        };
        let is_instead = |instead: String| before.is_empty() && self.is_same(&present, &instead);
        if is_another(*inode, present_inode)
            || self.is_same(&present, before)
            || (self.kind.instead_of_empty)().is_some_and(is_instead)
        {
            return Ok(Fate::Same);
        }
        if !self.is_written(entry, &present) {
            return Ok(Fate::ChangedByOthers);
        }
        match self.kind.write(file, *inode, &(self.kind.shown)(&self.root, before)) {
            Err(error) if is_gone(&error) => Ok(Fate::Same),
            written => written.map(|()| Fate::PutBack),
        }
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
