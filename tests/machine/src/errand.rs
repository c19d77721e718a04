//! What the host gives to the guest and gets back: one folder that both see.
//!
//! | file | written by | is |
//! |---|---|---|
//! | `errand.json` | the host, before the start | an [`Errand`] |
//! | `booted` | the guest, when it starts the program | empty |
//! | `status` | the guest, once, before it switches itself off | the exit status, 0 to 255 |
//! | `out/` | the program | whatever it leaves there; its path is in `MACHINE_OUT` |
//!
//! A guest that ends without `status` has failed, whatever it printed.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the guest mounts the folder.
pub const FOLDER: &str = "/run/machine";
/// Tag of its 9p share.
pub const TAG: &str = "machine";
/// Tag of the share of the host's root.
pub const ROOT_TAG: &str = "root";

/// A program that the guest runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Errand {
    /// Its path and arguments.
    pub command: Vec<String>,
    /// The folder that it starts in.
    pub folder: PathBuf,
    /// Its environment.
    pub variables: BTreeMap<String, String>,
}

impl Errand {
    /// Writes it for the guest.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder.join("out"))?;
        Ok(fs::write(folder.join("errand.json"), serde_json::to_vec(self)?)?)
    }

    /// Reads it in the guest.
    ///
    /// # Errors
    /// If the host wrote none.
    pub fn read() -> Result<Self> {
        let text = fs::read(Path::new(FOLDER).join("errand.json")).context("no errand")?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Records that the program is about to start, in the guest.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_booted() -> Result<()> {
    Ok(fs::write(Path::new(FOLDER).join("booted"), "")?)
}

/// Returns whether the program has been started.
pub fn has_booted(folder: &Path) -> bool {
    folder.join("booted").exists()
}

/// Records the exit status, in the guest.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_status(status: u8) -> Result<()> {
    Ok(fs::write(Path::new(FOLDER).join("status"), status.to_string())?)
}

/// Removes what the guest of an earlier run recorded.
///
/// # Errors
/// If it cannot be removed.
pub fn forget(folder: &Path) -> Result<()> {
    for name in ["booted", "status"] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{name} of an earlier run"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the exit status that the guest recorded; `None` if it recorded none.
pub fn status(folder: &Path) -> Option<u8> {
    fs::read_to_string(folder.join("status")).ok()?.parse().ok()
}
