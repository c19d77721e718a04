//! Files that commands write.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Writes `content` to the file `path`, to its last byte.
///
/// # Errors
/// If the file cannot be written, or its content not be made.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    write_to(path, |path| File::create(path), content)
}

/// As [`write`], to a file that only its owner may read if it is new, and through no symbolic link:
/// the command may be root's, and the folder another user's.
///
/// # Errors
/// As `write`, and if `path` is a symbolic link.
pub fn write_private(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let open = |path: &Path| match options.open(path) {
        // A loop of links in the folders above is the same error.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) && path.is_symlink() => {
            let why = "it is a symbolic link, through which nothing is written: name the file itself";
            Err(std::io::Error::new(error.kind(), why))
        }
        result => result,
    };
    write_to(path, open, content)
}

fn write_to(
    path: &Path,
    open: impl FnOnce(&Path) -> std::io::Result<File>,
    content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let attempt = || -> anyhow::Result<()> {
        let mut out = BufWriter::new(open(path)?);
        content(&mut out)?;
        Ok(out.flush()?)
    };
    attempt().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_private_file_is_its_owners_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        write_private(&file, |out| Ok(out.write_all(b"one")?)).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let refused = write_private(&link, |out| Ok(out.write_all(b"two")?)).unwrap_err();
        assert!(format!("{refused:#}").contains("symbolic link"), "{refused:#}");
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        let looped = folder.path().join("loop");
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        let refused = write_private(&looped.join("file"), |_| Ok(())).unwrap_err();
        assert!(!format!("{refused:#}").contains("it is a symbolic link"), "{refused:#}");
    }

    #[test]
    fn a_disk_that_is_full_for_the_last_bytes_is_an_error() {
        let error = write(Path::new("/dev/full"), |out| Ok(out.write_all(b"{}")?)).unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error:#}");
    }
}
