//! The file with the process id, for scripts that stop the service (`-P`).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::OFlags;

/// A file with this process's id. Dropping it removes the file.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file, in place of one of the same name.
    ///
    /// # Errors
    /// If it cannot be written, or is a symbolic link: root would write where the link's owner
    /// points to.
    pub fn write(path: &Path) -> anyhow::Result<Self> {
        let written = (|| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            let mut file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
            writeln!(file, "{}", std::process::id())
        })();
        written.with_context(|| {
            format!("cannot write the process id to {}; give -P a file that can be written", path.display())
        })?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // One that is gone, or may not be removed, is no reason to end otherwise.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let error = PidFile::write(&link).unwrap_err();
        assert!(format!("{error:#}").contains("give -P"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        let file = PidFile::write(&target).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!target.exists());
    }
}
