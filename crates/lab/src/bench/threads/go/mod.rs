//! The Go program, compiled from sources inside this program if the machine has a Go toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tailwater_testbed::folder::Folder;

const SOURCES: [(&str, &str); 3] = [
    ("go.mod", "module threads\n\ngo 1.22\n"),
    ("main.go", include_str!("main.go")),
    ("stamp_amd64.s", include_str!("stamp_amd64.s")),
];

/// The compiled program; its folder is removed when this is dropped.
#[derive(Debug)]
pub struct GoProgram {
    folder: Folder,
    /// The toolchain's version.
    pub version: String,
}

impl GoProgram {
    /// Compiles the program; `None` without a toolchain.
    ///
    /// # Errors
    /// If the toolchain fails.
    pub fn build() -> Result<Option<Self>> {
        let Ok(version) = go().arg("version").output() else { return Ok(None) };
        let folder = Folder::new()?;
        for (name, text) in SOURCES {
            std::fs::write(folder.path().join(name), text).context("cannot write the Go program")?;
        }
        let built = go()
            .args(["build", "-o", "threads", "."])
            .current_dir(folder.path())
            .output()
            .context("cannot run go build")?;
        ensure!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr).trim());
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        Ok(Some(Self { folder, version }))
    }

    /// Returns its absolute path.
    pub fn path(&self) -> PathBuf {
        Path::new(self.folder.path()).join("threads")
    }
}

/// Returns the installed toolchain, which must not fetch another and must ignore the user's Go
/// workspace.
fn go() -> Command {
    let mut command = Command::new("go");
    command.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("GOWORK", "off").env("GOFLAGS", "");
    command
}
