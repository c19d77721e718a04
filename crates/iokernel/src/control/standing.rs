//! Whether a process may have all that this one has.
//!
//! Owns the check of a process that asks for the place of this IOKernel. The same user is not
//! enough: a process of that user in a container, or without the capabilities of this one, would
//! gain rights. The other process can lie about none of this: Linux says which process connected,
//! and what its rights are.

use rustix::process::geteuid;
use std::fs::{read, read_link, read_to_string};
use std::path::PathBuf;
use tailwater_shm::control::Peer;

use super::client::ClientSocket;
use super::process::{self, Folder};

/// What to do about a refusal.
const REMEDY: &str = "start it as that one was started, or stop that one and start this one without --takeover: its \
                      programs wait for it";

/// `CAP_SYS_PTRACE` (linux/capability.h).
const MAY_TRACE: u64 = 1 << 19;

/// The rights of a process besides those of its user.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Privileges {
    /// Permitted capabilities, one bit each.
    capabilities: u64,
    namespaces: Vec<PathBuf>,
    /// Name by which AppArmor or SELinux confines it; empty without either, or if unreadable.
    label: Vec<u8>,
    /// Mode of seccomp(2): no filter, strict or filtered; `None` on Linux without it.
    seccomp: Option<u8>,
}

impl Privileges {
    const NAMESPACES: [&str; 3] = ["pid", "user", "mnt"];

    /// Returns the rights of a process, by its number or `self`.
    ///
    /// # Errors
    /// What cannot be learnt.
    fn of(process: &str) -> Result<Self, String> {
        let unreadable = |what: &str, error| format!("cannot read the {what} of process {process} ({error})");
        let status = read_to_string(format!("/proc/{process}/status"));
        let status = status.map_err(|error| unreadable("capabilities", error))?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapPrm:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let namespace = |kind| read_link(format!("/proc/{process}/ns/{kind}"));
        let namespaces = Self::NAMESPACES.into_iter().map(namespace).collect::<Result<_, _>>();
        Ok(Self {
            capabilities: capabilities.ok_or("Linux names no capabilities")?,
            namespaces: namespaces.map_err(|error| unreadable("namespaces", error))?,
            // Linux without such a module answers EINVAL.
            label: read(format!("/proc/{process}/attr/current")).unwrap_or_default(),
            seccomp: field("Seccomp:").and_then(|mode| mode.parse().ok()),
        })
    }

    /// Returns what a process lacks that has the rights of `self`, for those of `other`.
    fn lacks_of(&self, other: &Self) -> Option<String> {
        let namespaces = Self::NAMESPACES.into_iter().zip(self.namespaces.iter().zip(&other.namespaces));
        // Systemd gives each process of a unit with a file system of its own another mount
        // namespace. That keeps no process out which may trace the other one (ptrace(2)), and so
        // has its memory and descriptors in any case. The capability alone does not permit that:
        // containers have profiles of AppArmor or SELinux and filters of system calls, which the
        // processes of one unit have in common.
        let may_trace = self.capabilities & MAY_TRACE != 0;
        let may_trace = may_trace && self.label == other.label && self.seccomp == other.seccomp;
        let is_apart = |kind| kind != "mnt" || !may_trace;
        let foreign = |(kind, (own, other))| (own != other && is_apart(kind)).then_some(kind);
        if let Some(kind) = namespaces.into_iter().find_map(foreign) {
            let unless = if kind == "mnt" {
                ", and lacks CAP_SYS_PTRACE, or has another security label (/proc/PID/attr/current) or seccomp \
                 mode than that one"
            } else {
                ""
            };
            return Some(format!("it is in another {kind} namespace{unless}"));
        }
        let missing = other.capabilities & !self.capabilities;
        (missing != 0).then(|| format!("it lacks capabilities (CapPrm {missing:x} of proc_pid_status(5))"))
    }
}

/// Checks that the process that connected `socket` has the user, the namespaces and at least the
/// capabilities of this one; another mount namespace only if it may trace this one, by its
/// capabilities, its security label and its seccomp mode.
///
/// # Errors
/// Why it has not, and what to do.
pub(super) fn check(socket: &ClientSocket) -> Result<(), String> {
    let peer = Peer::of(socket).map_err(|e| e.to_string())?;
    let (theirs, ours) = (peer.uid, geteuid().as_raw());
    if theirs != ours {
        return Err(format!(
            "user {theirs} may not take over from the IOKernel of user {ours}; run as that user"
        ));
    }
    let gone = |why: String| format!("cannot look at the process that asks ({why}); {REMEDY}");
    let pid = peer.pid.ok_or_else(|| gone("it is in another PID namespace".to_owned()))?;
    let process = process::at(socket, pid).map_err(|e| gone(e.to_string()))?;
    let folder = Folder::open(pid, ours).map_err(|e| gone(e.to_string()))?;
    let lacks = || Ok::<_, String>(Privileges::of(&pid.to_string())?.lacks_of(&Privileges::of("self")?));
    let lacks = lacks().map_err(gone)?;
    // After the reading: it was of this process.
    process::check(&process, &folder).map_err(|e| gone(e.to_string()))?;
    match lacks {
        Some(lacks) => Err(format!("{lacks}, so that it would gain the rights of that one; {REMEDY}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_fewer_capabilities_or_in_another_namespace_lacks_something() {
        let own = Privileges::of("self").unwrap();
        assert_eq!(own.lacks_of(&own), None);
        let old = Privileges { capabilities: 0b1010, ..own.clone() };
        assert_eq!(Privileges { capabilities: 0b1011, ..own.clone() }.lacks_of(&old), None);
        let lacks = Privileges { capabilities: 0b0011, ..own.clone() }.lacks_of(&old).unwrap();
        assert!(lacks.contains("CapPrm 8 "), "{lacks}");
        for (index, kind) in Privileges::NAMESPACES.into_iter().enumerate() {
            let mut other = Privileges { capabilities: 0, ..own.clone() };
            other.namespaces[index] = "elsewhere".into();
            let old = Privileges { capabilities: 0, ..own.clone() };
            let lacks = other.lacks_of(&old).unwrap();
            assert!(lacks.contains(kind), "{lacks}");
            // It may trace the old one, whose files it does not see.
            let tracer = Privileges { capabilities: MAY_TRACE, ..other.clone() };
            assert_eq!(tracer.lacks_of(&old).is_none(), kind == "mnt", "{kind}");
            // In a container, a profile or a filter may forbid it.
            let confined = Privileges { label: b"docker-default (enforce)\n".to_vec(), ..tracer.clone() };
            assert!(confined.lacks_of(&old).unwrap().contains(kind));
            let filtered = Privileges { seccomp: Some(9), ..tracer.clone() };
            assert!(filtered.lacks_of(&old).unwrap().contains(kind));
            // But it does not get what it lacks.
            let strong = Privileges { capabilities: MAY_TRACE | 1, ..own.clone() };
            assert!(tracer.lacks_of(&strong).is_some());
        }
    }

    #[test]
    fn the_rights_of_a_process_that_does_not_exist_cannot_be_learnt() {
        // No process has a number above 2^22.
        assert!(Privileges::of("99999999").unwrap_err().contains("99999999"));
    }
}
