//! A temporary folder: the files of one child process, removed with them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// Maximum number of names that are tried: processes that were killed leave folders behind.
const MAX_TRIES: u32 = 1000;

/// A folder of its own, readable by this user only; removed with its content when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder in the system's folder for temporary files.
    ///
    /// # Errors
    /// If the kernel refuses it, or a thousand of its names are taken.
    pub fn new() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        for _ in 0..MAX_TRIES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("tailwater-{}-{number}", std::process::id()));
            // Fails for a name that exists, so no other process has the folder.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make the folder {}", path.display()));
                }
            }
        }
        anyhow::bail!("{} is full of folders tailwater-*: remove them", parent.display())
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays behind; the measurement is valid all the same.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folders_differ_are_private_and_go_with_their_content() {
        let (one, two) = (Folder::new().unwrap(), Folder::new().unwrap());
        assert_ne!(one.path(), two.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::create_dir(one.path().join("in")).unwrap();
        fs::write(one.path().join("in/file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
