//! What settings of the machine were before, kept in a file until they are so again.
//!
//! Owns the state file of one [`Kind`] of settings: one IOKernel at a time holds its lock, and
//! writes down what a setting was before it changes it. The next one that holds the lock, or
//! `tailwater doctor --repair`, finds what an IOKernel that crashed has left, and puts it back
//! first.
//!
//! # Two writers, crash and lie
//!
//! | | |
//! |---|---|
//! | another IOKernel holds the lock | nothing is written; tried again later |
//! | an administrator changes a setting meanwhile | it has another value than the one written last: it is left as it is |
//! | death between the entry and the setting | the setting has its old value: nothing to put back |
//! | death between the setting and its reading back | the entry has the word that was written |
//! | the file is of another user, a link, or names other files | refused: with the rights of root any file could be written |

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// A kind of settings, with a state file of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// In words, one and many of them.
    pub(crate) what: &'static str,
    /// The configuration key of the state file.
    pub(crate) key: &'static str,
    /// Names of the files that are ever written.
    pub(crate) files: &'static [&'static str],
}

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    file: PathBuf,
    before: String,
    /// The word written last, and what the kernel made of it.
    written: Vec<String>,
}

/// The state file, locked. Settings are put back on drop.
#[derive(Debug)]
pub(crate) struct Undo {
    kind: Kind,
    file: File,
    entries: Vec<Entry>,
    /// How many settings of a crashed IOKernel were put back when the file was locked.
    pub(crate) repaired: usize,
}

fn read(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// Writes a word and a newline, without which an empty word would not be written at all.
fn write(file: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(file)?.write_all(format!("{word}\n").as_bytes())
}

impl Undo {
    /// Locks the state file and puts back what a crashed IOKernel has left below `root`. Returns
    /// `None` if another one holds the lock.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub(crate) fn lock(kind: Kind, path: &Path, root: &Path) -> io::Result<Option<Self>> {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.custom_flags(nofollow).open(path)?;
        if fstat(&file)?.st_uid != geteuid().as_raw() {
            let why = format!("it belongs to another user; remove it, or set {}", kind.key);
            return Err(io::Error::other(why));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut entries: Vec<Entry> = if text.is_empty() { Vec::new() } else { serde_json::from_str(&text)? };
        entries.retain(|entry| is_setting(kind, &entry.file, root));
        let mut undo = Self { kind, file, entries, repaired: 0 };
        undo.repaired = undo.put_back();
        Ok(Some(undo))
    }

    /// Returns what a setting that was changed here was before.
    pub(crate) fn before(&self, file: &Path) -> Option<&str> {
        self.entries.iter().find(|entry| entry.file == file).map(|entry| entry.before.as_str())
    }

    /// Returns whether a setting has another value than the one written here.
    pub(crate) fn is_changed_by_others(&self, file: &Path) -> bool {
        let entry = self.entries.iter().find(|entry| entry.file == file);
        entry.is_some_and(|entry| read(file).is_ok_and(|present| !entry.written.contains(&present)))
    }

    /// Keeps the values of settings before any of them is changed, for the change of one may alter
    /// what another one shows. The last of them is the first to be put back. Those that cannot be
    /// read are left out.
    ///
    /// # Errors
    /// If the values cannot be kept.
    pub(crate) fn note(&mut self, files: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
        let known = self.entries.len();
        for file in files {
            if self.before(&file).is_none()
                && let Ok(before) = read(&file)
            {
                self.entries.push(Entry { file, before, written: Vec::new() });
            }
        }
        if self.entries.len() > known { self.keep() } else { Ok(()) }
    }

    /// Changes a setting, unless it is so since the last change; what it was before is in the state
    /// file then.
    ///
    /// # Errors
    /// If it cannot be read or written, or its former value not be kept.
    pub(crate) fn set(&mut self, file: &Path, word: &str) -> io::Result<()> {
        let present = read(file)?;
        let at = match self.entries.iter().position(|entry| entry.file == file) {
            Some(at) => at,
            None => {
                let (file, before) = (file.to_owned(), present.clone());
                self.entries.push(Entry { file, before, written: Vec::new() });
                self.entries.len() - 1
            }
        };
        let written = &mut self.entries[at].written;
        if written.first().is_some_and(|last| last == word) && written.contains(&present) {
            return Ok(());
        }
        written.push(word.to_owned());
        self.keep()?;
        write(file, word)?;
        self.entries[at].written = vec![word.to_owned(), read(file)?];
        self.keep()
    }

    fn keep(&mut self) -> io::Result<()> {
        let text = if self.entries.is_empty() { Vec::new() } else { serde_json::to_vec(&self.entries)? };
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&text)
    }

    /// Gives each setting its former value, the last changed first, unless it has another value
    /// than the one written here. Returns how many were changed.
    fn put_back(&mut self) -> usize {
        let (what, mut count) = (self.kind.what, 0);
        while let Some(Entry { file, before, written }) = self.entries.pop() {
            if written.is_empty() {
                // Noted and never changed.
                continue;
            }
            // Gone if the file is.
            let Some(present) = read(&file).ok().filter(|present| *present != before) else { continue };
            let name = file.display();
            if !written.contains(&present) {
                tracing::warn!(file = %name, present, before, what, "another program has changed a setting, which stays");
            } else if let Err(error) = write(&file, &before) {
                tracing::warn!(file = %name, before, what, %error, "cannot put a setting back");
            } else {
                count += 1;
            }
        }
        if let Err(error) = self.keep() {
            tracing::warn!(what, %error, "cannot empty the state file");
        }
        count
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Returns whether a path is one that is ever written.
fn is_setting(kind: Kind, file: &Path, root: &Path) -> bool {
    let named = file.file_name().is_some_and(|name| kind.files.iter().any(|setting| *setting == name));
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let climbs = file.components().any(|part| part == Component::ParentDir);
    named && !climbs && (file.starts_with(&root))
}
