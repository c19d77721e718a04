//! `tailwater run --posix`: prepares a program that was not written for Tailwater.
//!
//! Owns the look-up of the library that is loaded before the C library, and the check that the
//! program can be served. The library itself is `crates/posix`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The library, which is beside this program, or in `lib/tailwater` beside its folder.
const LIBRARY: &str = "libtailwater_posix.so";

/// `PT_INTERP` (elf(5)): the program names a dynamic linker.
const PT_INTERP: u32 = 3;

/// First bytes of what the Go linker says about a program (`debug/buildinfo`).
const GO: &[u8] = b"\xff Go buildinf:";

/// Returns the value of `LD_PRELOAD` for the program; `beside` is this program's folder.
///
/// # Errors
/// If the library is not there.
pub fn preload(beside: Option<&Path>) -> anyhow::Result<OsString> {
    let folders = beside.into_iter().flat_map(|folder| [folder.to_owned(), folder.join("../lib/tailwater")]);
    let candidates: Vec<PathBuf> = folders.map(|folder| folder.join(LIBRARY)).collect();
    let Some(library) = candidates.iter().find(|file| file.is_file()) else {
        let places: Vec<_> = candidates.iter().map(|file| file.display().to_string()).collect();
        bail!(
            "there is no {LIBRARY} at {}; build it with `cargo build --release -p tailwater-posix`, which puts it beside \
             target/release/tailwater, or copy it beside the installed tailwater",
            places.join(" or ")
        );
    };
    let mut value = library.canonicalize().context("cannot find the library's own path")?.into_os_string();
    if value.as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        bail!(
            "the dynamic linker cannot load {}: a path in LD_PRELOAD has no space or colon",
            library.display()
        );
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

/// Checks that a library can be loaded before the C library of `program`, and that its calls go
/// through the C library. What is no ELF file is a script: its interpreter is what runs.
///
/// # Errors
/// Why not, and what to do.
pub fn check(program: &Path) -> anyhow::Result<()> {
    let metadata = program.metadata().with_context(|| format!("cannot read {}", program.display()))?;
    if metadata.permissions().mode() & 0o6000 != 0 {
        bail!(
            "{} runs as another user or group (set-id), where the dynamic linker loads no libraries of the caller: \
             start it as that user, from a copy without these bits",
            program.display()
        );
    }
    let file = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    match refusal(&file) {
        None => Ok(()),
        Some(reason) => {
            bail!("{} {reason}; it can run on Linux's network, without --posix", program.display())
        }
    }
}

/// Returns why a program cannot be served.
fn refusal(file: &[u8]) -> Option<&'static str> {
    if !file.starts_with(b"\x7fELF") {
        return None;
    }
    if file.get(4) != Some(&2) {
        return Some("is a 32-bit program: Tailwater serves 64-bit ones");
    }
    if file.windows(GO.len()).any(|bytes| bytes == GO) {
        return Some("is a Go program, whose system calls do not go through the C library");
    }
    let types = program_headers(file)?;
    (!types.contains(&PT_INTERP))
        .then_some("is linked statically, so no library can be loaded before its own")
}

/// Returns the types of a 64-bit ELF file's program headers; `None` if it is cut short (the kernel
/// refuses it better).
fn program_headers(file: &[u8]) -> Option<Vec<u32>> {
    let number = |at: usize, bytes: usize| {
        let field = file.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0_usize, |number, &byte| number << 8 | usize::from(byte)))
    };
    let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    (0..count).map(|index| number(first.checked_add(index * size)?, 4).map(|kind| kind as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF header with one program header of type `kind`.
    fn elf(class: u8, kind: u8) -> Vec<u8> {
        let mut file = vec![0; 120];
        file[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        (file[32], file[54], file[56]) = (64, 56, 1);
        file[64] = kind;
        file
    }

    #[test]
    fn programs_that_cannot_be_served_are_refused_with_the_reason() {
        assert_eq!(refusal(b"#!/bin/sh\n"), None);
        assert_eq!(refusal(&elf(2, 3)), None);
        assert!(refusal(&elf(2, 1)).unwrap().contains("statically"));
        assert!(refusal(&elf(1, 3)).unwrap().contains("32-bit"));
        let mut go = elf(2, 3);
        go.extend_from_slice(GO);
        assert!(refusal(&go).unwrap().contains("Go"));
        assert_eq!(refusal(&elf(2, 3)[..60]), None, "cut short");
    }

    #[test]
    fn a_set_id_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        fs::write(&file, "").unwrap();
        assert!(check(&file).is_ok());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(check(&file).unwrap_err().to_string().contains("set-id"));
    }

    #[test]
    fn a_missing_library_is_named_with_how_it_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let why = preload(Some(folder.path())).unwrap_err().to_string();
        assert!(
            why.contains(&folder.path().display().to_string()) && why.contains("-p tailwater-posix"),
            "{why}"
        );
        let library = folder.path().join(LIBRARY);
        fs::write(&library, "").unwrap();
        let value = preload(Some(folder.path())).unwrap();
        assert!(value.to_string_lossy().starts_with(&*library.canonicalize().unwrap().to_string_lossy()));
    }
}
