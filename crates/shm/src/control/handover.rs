//! Messages from an IOKernel to its successor in a takeover.
//!
//! Owns the messages of a takeover, and the list of programs, which does not fit into a message: a
//! user may be in 65,536 groups. It is in a memory file, of which only the two IOKernels have a
//! descriptor.

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Register;

/// Maximum length of the list of programs in bytes.
const MAX_LIST: u64 = 1 << 30;

/// Number of the steps and messages of a takeover in this build; see [`Takeover::steps`].
pub const TAKEOVER_STEPS: u32 = 3;

/// The request of an IOKernel that is to take the place of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Takeover {
    /// [`crate::layout::VERSION`] of its build.
    pub version: u32,
    /// [`TAKEOVER_STEPS`] of its build: it may differ where all that programs see is the same. The
    /// first builds sent none.
    #[serde(default)]
    pub steps: u32,
    /// The network it is to serve.
    pub network: Network,
    /// MAC addresses that its configuration enters, by the IPv4 addresses of programs.
    pub macs: BTreeMap<Ipv4Addr, String>,
    /// Maximum number of kthreads that it permits a program.
    pub max_kthreads: u16,
}

/// The network of an IOKernel's programs, which keep their addresses in a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Network {
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Length of its prefix, 0 to 32.
    pub prefix_len: u8,
    /// The gateway to other networks, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// Its IPv6 network; `None` without IPv6.
    pub ip6: Option<Ipv6Addr>,
    /// Maximum length of an IP packet in bytes.
    pub mtu: u16,
}

impl core::fmt::Display for Network {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { ip, prefix_len, gateway, ip6, mtu } = self;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        let (gateway, ip6) =
            (or_none(gateway.map(|ip| ip.to_string())), or_none(ip6.map(|ip| ip.to_string())));
        write!(f, "{ip}/{prefix_len} (gateway: {gateway}, IPv6: {ip6}, MTU: {mtu})")
    }
}

/// What an IOKernel hands to its successor. The descriptors sent with this message are the
/// listening control socket, the memory file with the [`Estate`], a pidfd of the process if its
/// number is there, then those of the ports, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Handover {
    /// The number of the process, for messages; `None` if Linux gives it no descriptor of itself. A
    /// listening socket names the process that called listen(2) last, which may have ended.
    pub process: Option<i32>,
    /// All its ports.
    pub ports: Vec<HandoverPort>,
}

/// A port in [`Handover`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HandoverPort {
    /// Its name.
    pub name: String,
    /// Number of its descriptors.
    pub descriptors: u16,
}

/// What the successor of an IOKernel keeps for its programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Estate {
    /// The registered programs, in the order of their registration numbers.
    pub programs: Vec<HandoverProgram>,
}

/// A program in an [`Estate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HandoverProgram {
    /// Its registration, as it was ruled on.
    pub register: Register,
    /// The address that it has.
    pub ip: Ipv4Addr,
    /// The number of the grant to whose limits it counts, from 0.
    pub grant: Option<usize>,
    /// Its user when it connected.
    pub uid: u32,
    /// All groups of its user then.
    pub groups: Vec<u32>,
}

impl Estate {
    /// Returns a memory file with this list, as a JSON document.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        document_to_file("tailwater-estate", self)
    }

    /// Reads a file of [`to_file`](Self::to_file).
    ///
    /// # Errors
    /// If it is another kind of file, or the kernel refuses.
    pub fn from_file(file: OwnedFd) -> io::Result<Self> {
        document_from_file(file)
    }
}

/// Returns a memory file with a JSON document; `name` shows in `/proc/PID/fd`.
///
/// # Errors
/// The kernel's error.
pub fn document_to_file(name: &str, document: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(document)?)?;
    Ok(file.into())
}

/// Reads a file of [`document_to_file`], 1 GiB at most.
///
/// # Errors
/// If it is another kind of file, or the kernel refuses.
pub fn document_from_file<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let (mut file, mut bytes) = (File::from(file), Vec::new());
    file.rewind()?;
    file.take(MAX_LIST).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::control::{Instance, ProgramClass};

    #[test]
    fn an_estate_is_read_as_it_was_written() {
        let register = Register {
            version: 1,
            name: "web".to_owned(),
            kthreads: 2,
            guaranteed: 1,
            class: ProgramClass::BestEffort,
            ring_bytes: 32_768,
            ip: Some(Ipv4Addr::new(10, 77, 0, 2)),
            returns: false,
            instance: Instance::Only,
            listen: Vec::new(),
        };
        let ip = Ipv4Addr::new(10, 77, 0, 2);
        let program = HandoverProgram { register, ip, grant: Some(0), uid: 7, groups: (0..65_536).collect() };
        let estate = Estate { programs: vec![program; 3] };
        assert_eq!(Estate::from_file(estate.to_file().unwrap()).unwrap(), estate);
        let empty = File::from(memfd_create("empty", MemfdFlags::CLOEXEC).unwrap());
        assert!(Estate::from_file(empty.into()).is_err());
    }
}
