//! What the next IOKernel on an interface has to know if this one is killed.
//!
//! Owns a file in `/run` for each network namespace and interface, which is there while the
//! redirect program is attached: the number of that program, by which the next IOKernel knows it as
//! its own, and who had which ports, which stay closed to Linux until these programs are back. If
//! another program is attached, or none that should be, it was taken away by hand, or the interface
//! was made anew while no IOKernel ran: the record is not believed.
//! It is replaced as a whole, before a program is attached: an IOKernel that is killed at any
//! moment leaves no program that the next one does not know. Numbers of programs are not used again
//! until the machine starts anew, and `/run` does not outlive that.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tailwater_host::own_file;
use tailwater_shm::control::Listen;

const FOLDER: &str = "/run";
/// What a record that cannot be written means.
pub(in crate::xdp) const UNRECORDED: &str = "if this IOKernel is killed, connections of its programs are lost, and the next one is refused \
     until the redirect program is taken away (`ip link set INTERFACE xdp off`, in skb mode `xdpgeneric off`); let it write to /run";

/// Ports of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Ports {
    pub(super) ip: Ipv4Addr,
    /// First and last of its ports for outgoing connections.
    pub(super) outgoing: (u16, u16),
    pub(super) listens: Vec<Listen>,
}

/// See the module documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Record {
    /// Number of the program that is attached, or will be next; 0 for none.
    pub(super) program: u32,
    /// Number of the one in whose place it is put, or 0 if there is none then; `None` once it is
    /// attached.
    #[serde(default)]
    pub(super) replaced: Option<u32>,
    pub(super) programs: Vec<Ports>,
}

impl Record {
    /// Returns the file for an interface of the calling thread's network namespace.
    pub(super) fn path(interface: &str) -> io::Result<PathBuf> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        Ok(Path::new(FOLDER).join(format!("tailwater-ports-{namespace}-{interface}")))
    }

    /// Reads the record of an interface; an empty one if there is none, or none that this user has
    /// written.
    pub(super) fn read(path: &Path) -> Self {
        let file = own_file::open(fs::OpenOptions::new().read(true), path);
        file.ok().and_then(|file| serde_json::from_reader(BufReader::new(file)).ok()).unwrap_or_default()
    }

    /// Returns whether the attached program of this number, or none if it is 0, is what an IOKernel
    /// has left. If it is not, another process has changed it since.
    pub(super) fn knows(&self, attached: u32) -> bool {
        self.program == attached || self.replaced == Some(attached)
    }

    /// Returns whether the record of an interface is of another user, and so not believed.
    pub(in crate::xdp) fn is_of_another_user(interface: &str) -> bool {
        Self::path(interface).and_then(fs::metadata).is_ok_and(|found| found.uid() != geteuid().as_raw())
    }

    /// Returns whether this process may write records.
    pub(in crate::xdp) fn can_be_written() -> bool {
        accessat(CWD, FOLDER, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }

    /// Replaces the record.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        own_file::replace(path, &serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tailwater-ports-1-eth0.5");
        assert_eq!(Record::read(&path), Record::default());
        let listens = vec!["tcp:6379".parse().unwrap()];
        let mut record = Record {
            program: 7,
            replaced: None,
            programs: vec![Ports { ip: Ipv4Addr::new(10, 77, 0, 2), outgoing: (61_000, 61_099), listens }],
        };
        record.write(&path).unwrap();
        assert_eq!(Record::read(&path), record);
        assert!(record.knows(7) && !record.knows(0) && !record.knows(6));
        record.replaced = Some(6);
        assert!(record.knows(7) && record.knows(6) && !record.knows(0));
        record.replaced = Some(0);
        assert!(record.knows(7) && record.knows(0));
        fs::write(&path, "{").unwrap();
        assert_eq!(Record::read(&path), Record::default());
    }
}
