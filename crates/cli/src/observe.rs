//! `tailwater top` and `tailwater metrics`: started as `tailwater-observe`, which is installed
//! beside this program.
//!
//! Owns the way there. This program may have privileges, and contains neither a screen nor a web
//! server.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tailwater_testbed::observe::PROGRAM;

/// Becomes `tailwater-observe` with the arguments of this program, which are checked already.
///
/// # Errors
/// If it is not there; never returns otherwise.
pub fn run() -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let program = beside(&own)?;
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn beside(own: &Path) -> anyhow::Result<PathBuf> {
    let program = own.with_file_name(PROGRAM);
    anyhow::ensure!(
        program.is_file(),
        "{} is not there: install it beside `tailwater`; in a checkout, `cargo build --release -p {PROGRAM}` builds it",
        program.display()
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_looked_for_beside_this_one_and_its_absence_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("tailwater");
        let error = beside(&own).unwrap_err().to_string();
        assert!(error.contains("cargo build") && error.contains("tailwater-observe"), "{error}");
        std::fs::write(folder.path().join(PROGRAM), "").unwrap();
        assert_eq!(beside(&own).unwrap(), folder.path().join(PROGRAM));
    }
}
