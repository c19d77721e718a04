//! Programs in Go, compiled from sources inside this program if the machine has a Go toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tailwater_testbed::folder::Folder;

/// A compiled program; its folder is removed when this is dropped.
#[derive(Debug)]
pub struct GoProgram {
    folder: Folder,
    name: &'static str,
    /// The toolchain's version.
    pub version: String,
}

impl GoProgram {
    /// Compiles the module `name` from these files and texts; `None` without a toolchain.
    pub fn build(name: &'static str, sources: &[(&str, &str)]) -> Result<Option<Self>> {
        let Ok(version) = go().arg("version").output() else { return Ok(None) };
        let folder = Folder::new()?;
        let module = format!("module {name}\n\ngo 1.22\n");
        for (file, text) in [("go.mod", module.as_str())].iter().chain(sources) {
            std::fs::write(folder.path().join(file), text).context("cannot write the Go program")?;
        }
        let built = go()
            .args(["build", "-o", name, "."])
            .current_dir(folder.path())
            .output()
            .context("cannot run go build")?;
        ensure!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr).trim());
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        Ok(Some(Self { folder, name, version }))
    }

    /// Returns its absolute path.
    pub fn path(&self) -> PathBuf {
        Path::new(self.folder.path()).join(self.name)
    }
}

/// Returns the installed toolchain, which must not fetch another and must ignore the user's Go
/// workspace.
fn go() -> Command {
    let mut command = Command::new("go");
    command.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("GOWORK", "off").env("GOFLAGS", "");
    command
}
