//! Ports that Linux gives to no connection of its own (ip-sysctl, `ip_local_reserved_ports`).
//!
//! Owns the reservation of one range in a network namespace: it is added to what is reserved
//! already, and put back at the end. Another program may still ask for such a port by its number.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::undo::{Kind, Undo};

/// Where Linux has the setting.
pub(crate) const ROOT: &str = "/proc/sys/net/ipv4";
/// Name of the setting.
const FILE: &str = "ip_local_reserved_ports";

pub(crate) const KIND: Kind = Kind {
    what: "reserved ports",
    key: "another interface",
    files: &[FILE],
    shown: |_, value| value.trim().to_owned(),
    made_anew: false,
    instead_of_empty: || None,
};

/// Where the records of all network namespaces are, and how their names begin.
const FOLDER: &str = "/run";
const PREFIX: &str = "tailwater-reserved-ports-";

/// A range that is reserved until this is dropped.
#[derive(Debug)]
pub struct ReservedPorts {
    undo: Undo,
}

impl ReservedPorts {
    /// Reserves a range in the network namespace of the calling thread. Returns `None` if another
    /// process has done so, until it ends.
    ///
    /// # Errors
    /// If the setting or its record cannot be written.
    pub fn new(range: &RangeInclusive<u16>) -> io::Result<Option<Self>> {
        let Some(undo) = Undo::lock(KIND, &record()?, Path::new(ROOT))? else { return Ok(None) };
        let mut this = Self { undo };
        this.reserve(Path::new(ROOT), range)?;
        Ok(Some(this))
    }

    fn reserve(&mut self, root: &Path, range: &RangeInclusive<u16>) -> io::Result<()> {
        let file = root.join(FILE);
        let present = fs::read_to_string(&file)?;
        let own = format!("{}-{}", range.start(), range.end());
        let word = match present.trim() {
            "" => own,
            others => format!("{others},{own}"),
        };
        let failed = self.undo.set(&[(file, word)])?;
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Leaves the range reserved, with its record, for the next process.
    pub fn keep(self) {
        // The lock goes with the process.
        core::mem::forget(self);
    }
}

/// Returns the record of this network namespace.
pub(crate) fn record() -> io::Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(FOLDER).join(format!("{PREFIX}{namespace}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_added_to_those_that_are_reserved_and_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let (file, state) = (root.join(FILE), root.join("state"));
        for (before, during) in
            [("\n", "61000-61099\n"), ("8080,9000-9009\n", "8080,9000-9009,61000-61099\n")]
        {
            fs::write(&file, before).unwrap();
            let undo = Undo::lock(KIND, &state, &root).unwrap().unwrap();
            let mut reserved = ReservedPorts { undo };
            reserved.reserve(&root, &(61_000..=61_099)).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), during);
            drop(reserved);
            assert_eq!(fs::read_to_string(&file).unwrap().trim(), before.trim());
            assert!(!state.exists());
        }
    }
}
