//! The archive that the guest starts from: this program as `/init`, its libraries, modules.
//!
//! Everything else the guest takes from the host's files, which it mounts.

use crate::guest::{LOWER, ROOT, UPPER};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the modules, which are loaded in the order of their names.
pub const MODULES: &str = "/modules";

/// Writes the archive.
///
/// # Errors
/// If a file cannot be read or written, or ldd(1) fails.
pub fn write(target: &Path, modules: &[PathBuf]) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut files = BTreeMap::from([(PathBuf::from("/init"), program.clone())]);
    for library in libraries(&program)? {
        files.insert(library.clone(), library);
    }
    for (number, module) in modules.iter().enumerate() {
        let name = module.file_name().context("a module")?.to_string_lossy();
        files.insert(Path::new(MODULES).join(format!("{number:03}-{name}")), module.clone());
    }
    let mut archive = Archive { out: BufWriter::new(File::create(target)?), entries: 0 };
    // A path sorts after the folders above it.
    let above = files.keys().flat_map(|path| path.ancestors().skip(1)).filter(|path| path.parent().is_some());
    let folders: BTreeSet<&Path> =
        ["/dev", "/proc", LOWER, UPPER, ROOT].map(Path::new).into_iter().chain(above).collect();
    for folder in folders {
        archive.folder(folder)?;
    }
    for (path, source) in &files {
        let content = fs::read(source).with_context(|| source.display().to_string())?;
        archive.entry(path, FILE, &content)?;
    }
    archive.finish()
}

/// Returns the paths of the shared libraries that a program loads, the loader among them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8(output.stdout)?;
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;

/// An archive of the kernel's format (`newc`, Documentation/driver-api/early-userspace).
struct Archive {
    out: BufWriter<File>,
    entries: u32,
}

impl Archive {
    fn folder(&mut self, path: &Path) -> Result<()> {
        self.entry(path, FOLDER, &[])
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        self.entries += 1;
        let name = String::from_utf8(path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes().to_vec())?;
        let builder = cpio::NewcBuilder::new(&name).ino(self.entries).mode(mode).nlink(1);
        let mut entry = builder.write(&mut self.out, u32::try_from(content.len())?);
        entry.write_all(content)?;
        entry.finish()?;
        Ok(())
    }

    fn finish(self) -> Result<()> {
        cpio::newc::trailer(self.out)?.flush()?;
        Ok(())
    }
}
