//! Ports that Linux gives to no connection of its own (ip-sysctl, `ip_local_reserved_ports`).
//!
//! Owns the reservation of one range in a network namespace: it is added to what is reserved
//! already, and put back at the end. Another program may still ask for such a port by its number.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::ranges;
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
    /// Reserves a range in the network namespace of the calling thread. Returns `None` while
    /// another process has done so.
    ///
    /// # Errors
    /// If the setting or its record cannot be written, or another process has reserved other ports
    /// in this way, which one at a time does.
    pub fn new(range: &RangeInclusive<u16>) -> io::Result<Option<Self>> {
        let Some(undo) = Undo::lock(KIND, &record()?, Path::new(ROOT))? else {
            let other = "another IOKernel of this network namespace has reserved the range of its interface";
            return if Self::covers(range)? { Ok(None) } else { Err(io::Error::other(other)) };
        };
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

    /// Returns whether Linux gives no port of a range to connections of its own in the network
    /// namespace of the calling thread: what has one has asked for it.
    ///
    /// # Errors
    /// If the setting cannot be read.
    pub fn covers(range: &RangeInclusive<u16>) -> io::Result<bool> {
        Ok(covers(&fs::read_to_string(Path::new(ROOT).join(FILE))?, range))
    }

    /// Leaves the range reserved, with its record, for the next process.
    pub fn keep(self) {
        // The lock goes with the process.
        core::mem::forget(self);
    }
}

/// Returns whether a range is reserved: Linux writes those that meet as one.
fn covers(present: &str, range: &RangeInclusive<u16>) -> bool {
    ranges(present).any(|word| word.start() <= range.start() && range.end() <= word.end())
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
    use tailwater_testkit::namespace::in_namespace;

    #[test]
    fn another_processs_range_is_no_reservation_of_this_one() {
        in_namespace(|| {
            // Its record outlives the namespace otherwise.
            let (other, file) = (61_000..=61_099, record().unwrap());
            let reserved = match ReservedPorts::new(&other) {
                Ok(reserved) => reserved.expect("no other process is there"),
                Err(error) => return eprintln!("skipped: {error}"),
            };
            assert!(ReservedPorts::new(&other).unwrap().is_none());
            assert!(ReservedPorts::covers(&other).unwrap());
            let why = ReservedPorts::new(&(62_000..=62_099)).expect_err("it is not reserved");
            assert!(why.to_string().contains("another IOKernel"), "{why}");
            drop(reserved);
            let mut lock = file.into_os_string();
            lock.push(".lock");
            let _ = fs::remove_file(lock);
        });
        assert!(covers("80,60999-61099\n", &(61_000..=61_099)) && !covers("\n", &(7..=7)));
    }

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
