//! The control group of the ordinary program that runs beside an exclusive thread.
//!
//! Owns a group within one that `reserve.keep-off` names, in which no process may be itself where
//! it hands its controllers on (version 2, Linux, Documentation/admin-guide/cgroup-v2.rst, "No
//! Internal Process Constraint"). In version 1 the process joins the named group: a further one
//! within it could not lose cores.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

/// A group for one process; dropped after that has ended.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    /// Made here, so removed on drop.
    own: bool,
}

impl Group {
    /// Makes a group within `outer`, which is named as `/proc/PID/cgroup` names it.
    ///
    /// # Errors
    /// If there is no such group, or Linux refuses another one there.
    pub fn within(outer: &str) -> anyhow::Result<Self> {
        let (folder, version) = tailwater_host::group_folder(outer)
            .map_err(|why| anyhow::anyhow!("--keep-off {outer}: {why}"))?;
        if version == 1 {
            anyhow::ensure!(folder.is_dir(), "--keep-off {outer}: there is no {}", folder.display());
            return Ok(Self { folder, own: false });
        }
        let folder = folder.join(format!("tailwater-lab-{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("--keep-off {outer}: cannot make {}", folder.display()))?;
        Ok(Self { folder, own: true })
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// If Linux refuses it.
    pub fn add(&self, process: u32) -> anyhow::Result<()> {
        let file = self.folder.join("cgroup.procs");
        fs::write(&file, process.to_string()).with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.own
            && let Err(error) = fs::remove_dir(&self.folder)
        {
            tailwater_testbed::note!("cannot remove {}: {error}", self.folder.display());
        }
    }
}
