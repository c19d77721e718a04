//! Optional properties of the machine: ports, locked memory, whole cores.

use std::fs::{self, OpenOptions};
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use tailwater_iokernel::{Config, Cores};

use super::part::{Part, Status};

/// Capabilities that ports need.
const NET_ADMIN: (CapabilitySet, &str) = (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN");
const NET_RAW: (CapabilitySet, &str) = (CapabilitySet::NET_RAW, "CAP_NET_RAW");
const IPC_LOCK: (CapabilitySet, &str) = (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK");
const BPF: (CapabilitySet, &str) = (CapabilitySet::BPF, "CAP_BPF");

/// Locked memory of one queue of an AF_XDP port with the default options.
const QUEUE_BYTES: u64 = tailwater_ports::xdp::QUEUE_BYTES;

/// Examines a machine of which this process may use `cores`, for an IOKernel with these settings.
pub fn examine(cores: &[usize], config: &Config) -> Vec<Part> {
    let capabilities = effective();
    vec![
        tap(capabilities),
        xdp(capabilities),
        locked_memory(capabilities),
        hyperthreads(cores),
        clock_rates(&config.ix.state_file, cores),
        cpusets(),
        other_programs(config),
    ]
}

/// Judges what other programs get beside the IOKernel.
fn other_programs(config: &Config) -> Part {
    let name = "other programs";
    let cores = match Cores::detect(config) {
        Ok(cores) => cores,
        Err(why) => return Part { name, status: Status::Caution, found: why.to_string() },
    };
    let lent: Vec<u16> = cores.managed.cores().iter().map(|core| core.id.0).collect();
    let share = config.neighbour_share;
    let mut found = tailwater_iokernel::neighbours(cores.iokernel.0, &lent, share);
    if share > 0 && tailwater_host::groups_sessions() {
        found +=
            "; Linux groups sessions: a batch job ranks below those of others if it leads its own (setsid)";
    }
    let real_time =
        if share > 0 { tailwater_iokernel::real_time(config, config.ports.has_local_peer()) } else { Ok(()) };
    let status = match real_time {
        Err(why) => {
            found += &format!("; {why}");
            Status::Caution
        }
        Ok(()) => Status::Ok,
    };
    Part { name, status, found }
}

/// Returns the effective capabilities of this thread.
fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Names of those of `wanted` that are not in the set.
fn lacking(held: CapabilitySet, wanted: &[(CapabilitySet, &'static str)]) -> Vec<&'static str> {
    wanted.iter().filter(|(one, _)| !held.contains(*one)).map(|&(_, name)| name).collect()
}

fn tap(capabilities: CapabilitySet) -> Part {
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    let lacking = lacking(capabilities, &[NET_ADMIN]);
    let (status, found) = match device {
        Err(error) => (
            Status::Absent,
            format!(
                "/dev/net/tun: {error}; `iokernel --tap` needs it: modprobe tun, in a container --device /dev/net/tun"
            ),
        ),
        Ok(_) if !lacking.is_empty() => (
            Status::Absent,
            format!("{} is lacking, which `iokernel --tap` needs: run it as root", lacking.join(", ")),
        ),
        Ok(_) => (Status::Ok, "a device can be made".to_owned()),
    };
    Part { name: "TAP (optional)", status, found }
}

fn xdp(capabilities: CapabilitySet) -> Part {
    let (status, found) = match tailwater_ports::xdp::probe() {
        Ok(what) => (Status::Ok, what),
        Err(what) => {
            let lacking = lacking(capabilities, &[NET_RAW, NET_ADMIN, BPF]);
            let remedy = match lacking.is_empty() {
                true => String::new(),
                false => format!("; lacking: {}", lacking.join(", ")),
            };
            (Status::Absent, format!("{what}{remedy}; `iokernel --xdp` needs it"))
        }
    };
    Part { name: "AF_XDP (optional)", status, found }
}

fn locked_memory(capabilities: CapabilitySet) -> Part {
    let limit = if lacking(capabilities, &[IPC_LOCK]).is_empty() {
        None
    } else {
        getrlimit(Resource::Memlock).current
    };
    let (status, found) = judge_locked_memory(limit);
    Part { name: "locked memory", status, found }
}

/// Judges a limit in bytes; `None` is none.
fn judge_locked_memory(limit: Option<u64>) -> (Status, String) {
    match limit {
        None => (Status::Ok, "not limited".to_owned()),
        Some(bytes) if bytes >= QUEUE_BYTES => {
            let queues = bytes / QUEUE_BYTES;
            (Status::Ok, format!("{} KiB, enough for {queues} queues of an AF_XDP port", bytes >> 10))
        }
        Some(bytes) => (
            Status::Absent,
            format!(
                "{} KiB; a queue of an AF_XDP port locks {} KiB: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a \
                 systemd unit",
                bytes >> 10,
                QUEUE_BYTES >> 10
            ),
        ),
    }
}

/// Says whether the policies with steps could set clock rates.
fn clock_rates(state_file: &Path, cores: &[usize]) -> Part {
    let numbers: Vec<u16> = cores.iter().map(|&core| core as u16).collect();
    let (&polled, lent) = numbers.split_first().unwrap_or((&0, &[]));
    let (status, found) = match tailwater_host::clock_rates(state_file, lent, polled) {
        Ok(rates) => {
            (Status::Ok, format!("{rates}; policies ix-consolidation and ix-energy set them as root"))
        }
        Err(why) => {
            (Status::Absent, format!("{why}; policies ix-consolidation and ix-energy move cores only"))
        }
    };
    Part { name: "clock rates", status, found }
}

/// Says whether ordinary threads could be kept off requested cores.
fn cpusets() -> Part {
    let (status, found) = match tailwater_host::cpusets() {
        Ok(how) => (Status::Ok, format!("{how}; reserve.keep-off uses them as root")),
        Err(why) => (Status::Absent, format!("{why}; reserve.keep-off has no effect")),
    };
    Part { name: "cpusets (optional)", status, found }
}

fn hyperthreads(cores: &[usize]) -> Part {
    let siblings = |core: &usize| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")).ok()
    };
    let lists: Vec<String> = cores.iter().filter_map(siblings).map(|list| list.trim().to_owned()).collect();
    let (status, found) = judge_hyperthreads(lists);
    Part { name: "hyperthreads", status, found }
}

/// Judges the lists of siblings of all usable cores, as in `0,4` or `0-1`.
fn judge_hyperthreads(mut lists: Vec<String>) -> (Status, String) {
    lists.sort();
    lists.dedup();
    lists.retain(|list| list.contains([',', '-']));
    if lists.is_empty() {
        return (Status::Ok, "no usable core has a sibling".to_owned());
    }
    let found = format!(
        "siblings {}; two programs on siblings share one core's time, and the polling IOKernel slows its own sibling: \
         leave that one out (`iokernel --core 0 --managed-cores ...`)",
        lists.join(" and ")
    );
    (Status::Caution, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let held = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        assert_eq!(lacking(held, &[NET_ADMIN, NET_RAW]), [""; 0]);
        assert_eq!(lacking(held, &[NET_RAW, BPF, IPC_LOCK]), ["CAP_BPF", "CAP_IPC_LOCK"]);
        assert_eq!(lacking(CapabilitySet::empty(), &[NET_ADMIN]), ["CAP_NET_ADMIN"]);
    }

    #[test]
    fn too_little_locked_memory_is_named_with_what_a_queue_needs() {
        assert_eq!(judge_locked_memory(None).0, Status::Ok);
        assert_eq!(judge_locked_memory(Some(3 * QUEUE_BYTES)).0, Status::Ok);
        let (status, found) = judge_locked_memory(Some(64 << 10));
        assert_eq!(status, Status::Absent);
        assert!(found.starts_with("64 KiB; a queue") && found.contains("ulimit -l"), "{found}");
    }

    #[test]
    fn siblings_are_named_once_each() {
        let lists = |lists: &[&str]| judge_hyperthreads(lists.iter().map(|&list| list.to_owned()).collect());
        assert_eq!(lists(&["0", "1"]).0, Status::Ok);
        let (status, found) = lists(&["0,2", "1,3", "0,2", "1,3"]);
        assert_eq!(status, Status::Caution);
        assert!(found.starts_with("siblings 0,2 and 1,3; "), "{found}");
        assert!(lists(&["0-1", "0-1"]).1.starts_with("siblings 0-1; "));
    }
}
