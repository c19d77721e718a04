//! Files that commands write.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tailwater_testbed::exit::EndsWith2;

/// Writes `content` to the file `path`, to its last byte.
///
/// # Errors
/// If the file cannot be written, or its content not be made.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    write_to(path, |path| File::create(path), content)
}

/// Checks that [`write`] can write these files, and that no two are one: before a measurement,
/// which would be lost. A file that is not there is made and removed again; a pipe or device is
/// left alone.
///
/// # Errors
/// The first that cannot be written, or is there twice.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    let mut checked: Vec<&Path> = Vec::new();
    for path in paths {
        if path.metadata().is_ok_and(|found| is_special(&found)) {
            continue;
        }
        if checked.contains(&path) {
            return Err(EndsWith2::wrap(anyhow::anyhow!("{} is named for two files", path.display())));
        }
        check_one(path, OpenOptions::new().write(true))?;
        checked.push(path);
    }
    Ok(())
}

/// As [`check`], of a file for [`write_private`].
///
/// # Errors
/// If it cannot be written, or is a symbolic link.
pub fn check_private(path: &Path) -> anyhow::Result<()> {
    match path.symlink_metadata().is_ok_and(|found| !found.is_symlink() && is_special(&found)) {
        true => Ok(()),
        false => check_one(path, &mut private()),
    }
}

/// Returns whether a file is a pipe or a device, which is opened once only: its reader may take the
/// end of a check for the end of the content.
fn is_special(found: &Metadata) -> bool {
    !found.is_file() && !found.is_dir()
}

fn check_one(path: &Path, options: &mut OpenOptions) -> anyhow::Result<()> {
    let is_new = path.symlink_metadata().is_err();
    open_with(path, options.create(true)).with_context(|| format!("cannot write {}", path.display()))?;
    if is_new {
        // One that stays is empty, and is written later.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
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
    write_to(path, |path| open_with(path, private().create(true).truncate(true)), content)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

fn open_with(path: &Path, options: &OpenOptions) -> std::io::Result<File> {
    match options.open(path) {
        // A loop of links in the folders above is the same error.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) && path.is_symlink() => {
            let why = "it is a symbolic link, through which nothing is written: name the file itself";
            Err(std::io::Error::new(error.kind(), why))
        }
        result => result,
    }
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
    fn files_are_checked_before_they_are_written_and_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, link] = ["old", "new", "link"].map(|name| folder.path().join(name));
        std::fs::write(&old, "mine").unwrap();
        check([&*old, &*new, Path::new("/dev/null"), Path::new("/dev/null")]).unwrap();
        check_private(&new).unwrap();
        check_private(Path::new("/dev/null")).unwrap();
        assert!(std::fs::read(&old).unwrap() == b"mine" && !new.exists());
        let twice = check([&*old, &*old]).unwrap_err().to_string();
        assert!(twice.contains("old") && twice.contains("two files"), "{twice}");
        let absent = format!("{:#}", check([&*new.join("file")]).unwrap_err());
        assert!(absent.contains("cannot write") && absent.contains("No such file"), "{absent}");
        assert!(check([folder.path()]).is_err(), "a folder");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        assert!(format!("{:#}", check_private(&link).unwrap_err()).contains("symbolic link"));
    }

    #[test]
    fn a_disk_that_is_full_for_the_last_bytes_is_an_error() {
        let error = write(Path::new("/dev/full"), |out| Ok(out.write_all(b"{}")?)).unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error:#}");
    }
}
