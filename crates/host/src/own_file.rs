//! A file by which one process leaves something to the next one of its user.
//!
//! Owns how such a file is opened and replaced: only one that this user has is read, since what it
//! says is believed, and a process that is killed leaves the former one or the new one, whole. It
//! is not synchronised with a disk.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a file of this user's that is no link.
///
/// # Errors
/// Linux's; [`ErrorKind::Other`] if it is another user's, or no file.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Nonblocking: a pipe in its place is refused below.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user, or is no file"));
    }
    Ok(file)
}

/// Replaces a file, or makes it; readable for this user only.
///
/// # Errors
/// Linux's; the former file is there then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = beside(path, ".new");
    // One that a crash has left, or a link in its place.
    remove(&next)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    file.write_all(bytes).and_then(|()| fs::rename(&next, path)).inspect_err(|_| {
        // Nothing reads it.
        let _ = fs::remove_file(&next);
    })
}

/// Removes a file, if it is there.
///
/// # Errors
/// Linux's.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the path with a suffix to its last name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_replaced_as_a_whole_whatever_a_crash_has_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "theirs").unwrap();
        symlink(&elsewhere, folder.path().join("list.new")).unwrap();
        for text in ["one", "two"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "theirs");
        assert!(!folder.path().join("list.new").exists());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_link_and_what_is_no_file_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("list"), folder.path().join("link"));
        replace(&path, b"ours").unwrap();
        symlink(&path, &link).unwrap();
        let read = |path: &Path| open(OpenOptions::new().read(true), path);
        assert!(read(&path).is_ok() && read(&link).is_err());
        let why = read(folder.path()).unwrap_err().to_string();
        assert!(why.contains("no file"), "{why}");
    }
}
