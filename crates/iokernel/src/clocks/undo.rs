//! What clock settings were before, kept in a file until they are so again.
//!
//! Owns the state file: one IOKernel at a time holds its lock, and writes down what a setting was
//! before it changes it. The next one that holds the lock finds what an IOKernel that crashed has
//! left, and puts it back first.
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

/// Names of the files that are ever written.
const SETTINGS: [&str; 4] = ["scaling_max_freq", "energy_performance_preference", "boost", "no_turbo"];

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
pub(super) struct Undo {
    file: File,
    entries: Vec<Entry>,
}

fn read(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

fn write(file: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(file)?.write_all(word.as_bytes())
}

impl Undo {
    /// Locks the state file and puts back what a crashed IOKernel has left below `root`. Returns
    /// `None` if another one holds the lock.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub(super) fn lock(path: &Path, root: &Path) -> io::Result<Option<Self>> {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.custom_flags(nofollow).open(path)?;
        if fstat(&file)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user; remove it, or set ix.state-file"));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut entries: Vec<Entry> = if text.is_empty() { Vec::new() } else { serde_json::from_str(&text)? };
        entries.retain(|entry| is_setting(&entry.file, root));
        let mut undo = Self { file, entries };
        undo.put_back();
        Ok(Some(undo))
    }

    /// Changes a setting; what it was before is in the state file then.
    ///
    /// # Errors
    /// If it cannot be read or written, or its former value not be kept.
    pub(super) fn set(&mut self, file: &Path, word: &str) -> io::Result<()> {
        let present = read(file)?;
        let at = match self.entries.iter().position(|entry| entry.file == file) {
            Some(at) => at,
            None => {
                let (file, before) = (file.to_owned(), present);
                self.entries.push(Entry { file, before, written: Vec::new() });
                self.entries.len() - 1
            }
        };
        self.entries[at].written.push(word.to_owned());
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
    /// than the one written here.
    pub(super) fn put_back(&mut self) {
        while let Some(Entry { file, before, written }) = self.entries.pop() {
            let present = read(&file).unwrap_or_default();
            if present == before {
                continue;
            }
            let name = file.display();
            if !written.contains(&present) {
                tracing::warn!(file = %name, present, before, "another program has changed a clock setting, which stays");
            } else if let Err(error) = write(&file, &before) {
                tracing::warn!(file = %name, before, %error, "cannot put a clock setting back");
            }
        }
        if let Err(error) = self.keep() {
            tracing::warn!(%error, "cannot empty the file of clock settings");
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Returns whether a path is one that is ever written.
fn is_setting(file: &Path, root: &Path) -> bool {
    let named = file.file_name().is_some_and(|name| SETTINGS.iter().any(|setting| *setting == name));
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let climbs = file.components().any(|part| part == Component::ParentDir);
    named && !climbs && (file.starts_with(&root))
}
