//! Files whose bytes depend on their contents only: archives, compressed files, checksums.
//!
//! Owns what would differ from one run to the next, which is times, owners and the order of files.
//! tar, gzip and sha256sum do the work.

use anyhow::{Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{copy, create, root, run};

/// Returns the time of the commit in seconds since 1970.
pub(crate) fn commit_time() -> Result<String> {
    let time = run(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))?;
    Ok(String::from_utf8(time)?.trim().to_owned())
}

/// Returns the time of the commit as date(1) prints it in this format.
pub(crate) fn commit_date(format: &str) -> Result<String> {
    let time = format!("@{}", commit_time()?);
    let date = run(Command::new("date").env("LC_ALL", "C").args(["--utc", "--date", &time, format]))?;
    Ok(String::from_utf8(date)?.trim().to_owned())
}

/// Copies a file to its place, with this mode.
pub(crate) fn place(from: &Path, to: &Path, mode: u32) -> Result<()> {
    create(to.parent().context("a file is in a folder")?)?;
    copy(from, to)?;
    set_mode(to, mode)
}

/// Writes a file that everybody may read.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    create(path.parent().context("a file is in a folder")?)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    set_mode(path, 0o644)
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("cannot change the mode of {}", path.display()))
}

/// Lists the files below a folder in the order of their names, without links.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files.extend(list(&entry.path())?);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns what sha256sum prints of these files of a folder.
pub(crate) fn sums<T: AsRef<std::ffi::OsStr>>(folder: &Path, names: &[T]) -> Result<Vec<u8>> {
    run(Command::new("sha256sum").current_dir(folder).args(names))
}

/// Returns the SHA-256 checksum of a file in hexadecimal digits.
pub(crate) fn sum(file: &Path) -> Result<String> {
    let line = String::from_utf8(sums(Path::new("."), &[file])?)?;
    Ok(line.split(' ').next().unwrap_or_default().trim_start_matches('\\').to_owned())
}

/// Returns where the symbols of a program are: gdb and the backtraces of Rust look there.
pub(crate) fn symbols_of(program: &Path) -> Option<PathBuf> {
    let mut name = program.file_name()?.to_owned();
    name.push(".debug");
    Some(program.parent()?.join(".debug").join(name))
}

/// Moves the symbols of a program into a file of their own ([`symbols_of`]), which the program
/// names with its checksum. They are a sixth of it, and serve backtraces only.
pub(crate) fn split_symbols(program: &Path) -> Result<()> {
    let symbols = symbols_of(program).context("a program is in a folder")?;
    create(symbols.parent().context("a file is in a folder")?)?;
    run(Command::new("objcopy").arg("--only-keep-debug").args([program, &symbols]))?;
    set_mode(&symbols, 0o644)?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    run(Command::new("objcopy").arg("--strip-all").arg(link).arg(program)).map(drop)
}

/// Packs `names` of the folder `from` into the archive `to`: files in the order of their names,
/// with the time of the commit and root as their owner.
pub(crate) fn tar(from: &Path, names: &[&str], to: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.current_dir(from).env("LC_ALL", "C").args([
        "--create",
        "--format=ustar",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u+w,go-w,a+rX",
    ]);
    command.arg(format!("--mtime=@{}", commit_time()?)).arg("--file").arg(to).args(names);
    run(&mut command).map(drop)
}

/// Compresses a file in place; returns its new path, which ends in `.gz`.
pub(crate) fn gzip(file: &Path) -> Result<PathBuf> {
    // Without the name and the time of the file (gzip(1)).
    run(Command::new("gzip").args(["--no-name", "--best", "--force"]).arg(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(name.into())
}

/// Makes a folder of one's own anew.
pub(crate) fn renew(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    create(folder)
}

/// Returns whether a program is installed; prints what is not made without it if not.
pub(crate) fn has(program: &str, without: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {without}, since there is no {program}");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_moved_into_a_file_that_the_program_names_the_same_bytes_each_time() {
        if !has("objcopy", "no symbols are moved") {
            return;
        }
        let base = std::env::temp_dir().join(format!("tailwater-xtask-symbols-{}", std::process::id()));
        let own = std::env::current_exe().unwrap();
        let split = |name: &str| {
            let program = base.join(name).join("program");
            place(&own, &program, 0o755).unwrap();
            split_symbols(&program).unwrap();
            let read = |file: &Path| fs::read(file).unwrap();
            (read(&program), read(&symbols_of(&program).unwrap()))
        };
        let (program, symbols) = split("a");
        assert!((program.clone(), symbols.clone()) == split("b"), "the same bytes");
        fs::remove_dir_all(&base).unwrap();
        let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        assert!(has(&program, b"program.debug") && program.len() < fs::metadata(own).unwrap().len() as usize);
        // As a symbol, with its length: this text is in the program, too.
        let symbol = format!("{}split_symbols", "split_symbols".len());
        assert!(has(&symbols, symbol.as_bytes()) && !has(&program, symbol.as_bytes()));
    }

    #[test]
    fn the_same_files_make_the_same_archive() {
        let make = |folder: &Path| {
            // In another order, and at another time.
            for (name, text) in [("t/b/two", "2"), ("t/one", "1")] {
                write(&folder.join(name), text).unwrap();
            }
            let archive = folder.join("t.tar");
            tar(folder, &["t"], &archive).unwrap();
            fs::read(gzip(&archive).unwrap()).unwrap()
        };
        let base = std::env::temp_dir().join(format!("tailwater-xtask-{}", std::process::id()));
        let archives = ["a", "b"].map(|name| make(&base.join(name)));
        assert_eq!(sum(&base.join("a/t/one")).unwrap().len(), 64);
        fs::remove_dir_all(&base).unwrap();
        assert!(archives[0] == archives[1] && !archives[0].is_empty());
    }
}
