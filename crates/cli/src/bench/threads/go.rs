//! The Go side: a program of its own, compiled from sources inside this one when the machine has a Go toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

const SOURCES: [(&str, &str); 3] = [
    ("go.mod", "module threads\n\ngo 1.22\n"),
    ("main.go", include_str!("go/main.go")),
    ("stamp_amd64.s", include_str!("go/stamp_amd64.s")),
];

/// The compiled program; its folder is removed when this is dropped.
#[derive(Debug)]
pub struct GoProgram {
    folder: TempDir,
    /// As the toolchain calls itself.
    pub version: String,
}

impl GoProgram {
    /// Compiles it; `None` if there is no toolchain.
    ///
    /// # Errors
    /// When there is one and it fails.
    pub fn build() -> Result<Option<Self>> {
        let Ok(version) = go().arg("version").output() else { return Ok(None) };
        let folder = tempfile::tempdir().context("cannot make a folder for the Go program")?;
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

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        Path::new(self.folder.path()).join("threads")
    }
}

/// The toolchain that is there: it is not to fetch another, nor to look at the operator's workspace.
fn go() -> Command {
    let mut command = Command::new("go");
    command.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("GOWORK", "off").env("GOFLAGS", "");
    command
}
