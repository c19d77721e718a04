//! Whether an IOKernel would start with a configuration, and what prevents it.
//!
//! Owns the findings, one for each thing that a start needs. A check opens what the start opens,
//! and closes it again: a TAP device that is not there is made and gone at once. It changes nothing
//! that lasts, and an IOKernel that runs goes on.
//!
//! Neighbours: [`config`](crate::config) checks values, [`machine`] cores, the ports
//! ([`tailwater_ports`]) devices, [`authority`](crate::authority) grants, and
//! [`control::predecessor`](crate::control::predecessor) asks the one that runs.

use rustix::fs::{Access, FileType, access, lstat};
use rustix::process::geteuid;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_host::CoreLocks;
use tailwater_ports::options::PortOptions;
use tailwater_shm::control::{ControlError, Peer, dial};

use crate::authority::{Account, Authority};
use crate::config::{Config, CoreList};
use crate::control::directory::Directory;
use crate::control::predecessor::{Predecessor, process_at};
use crate::firewall::Action;
use crate::kernel::{check_address, network_of};
use crate::machine::{self, Cores};
use crate::real_time::{NoRealTime, real_time};

/// Judgement of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The IOKernel starts, and something is slower than it could be, or has no effect.
    Caution,
    /// The IOKernel does not start.
    Refused,
}

/// One thing that was examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was examined, in one or two words.
    pub subject: &'static str,
    /// How it was found.
    pub verdict: Verdict,
    /// What there is, or what is wrong and what to do.
    pub found: String,
}

impl Finding {
    fn new(subject: &'static str, result: Result<String, String>) -> Self {
        let verdict = if result.is_ok() { Verdict::Ok } else { Verdict::Refused };
        Self { subject, verdict, found: result.unwrap_or_else(|why| why) }
    }

    fn caution(subject: &'static str, found: String) -> Self {
        Self { subject, verdict: Verdict::Caution, found }
    }
}

/// How the IOKernel is to start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    /// It is to take over from the one that runs at its socket.
    pub takeover: bool,
    /// It may use cores that another IOKernel uses.
    pub share_cores: bool,
}

/// Checks what the configuration says by itself, on any machine: values, words of ports, firewall.
#[must_use]
pub fn check_text(config: &Config) -> Vec<Finding> {
    let values = config.check().map(|()| match &config.file {
        Some(file) => format!("{}, and the options", file.display()),
        None => "the options; no file is read".to_owned(),
    });
    let ports = uplink(config).build().and_then(|ports| match ports.first() {
        Some(port) => check_address(config, &**port).map(|()| port.name().to_owned()),
        None => Ok("none: only programs on this machine reach each other".to_owned()),
    });
    vec![
        Finding::new("configuration", values.map_err(|error| error.without_heading())),
        Finding::new("port", ports.map_err(|error| error.to_string())),
        firewall(config),
    ]
}

/// Checks the configuration on this machine: as [`check_text`], and cores, ports, rights, accounts
/// of grants, the control socket, and whether a running IOKernel could be taken over from.
#[must_use]
pub fn check(config: &Config, start: Start) -> Vec<Finding> {
    let mut findings = check_text(config);
    let cores = Cores::detect(config);
    let running = running(config);
    let passes_devices = start.takeover && matches!(running, Running::At(_));
    let has_port = findings.iter().any(|finding| finding.subject == "port" && finding.verdict == Verdict::Ok);
    if has_port {
        // Its words are those of a port; now for its device.
        let device = uplink(config).examine(config.mtu, (config.prefix_len, config.network6), passes_devices);
        findings[1] = Finding::new("port", device.map_err(|error| error.to_string()));
    }
    let used = cores.as_ref().map(|cores| {
        let polled = cores.iokernel.0;
        format!("core {polled} polls; managed cores: {}", CoreList(cores.managed_numbers()))
    });
    findings.insert(1, Finding::new("cores", used.map_err(ToString::to_string)));
    if let Ok(cores) = &cores {
        findings.insert(2, core_locks(config, cores, start, &running));
        findings.push(rank(config, cores));
    }
    findings.push(grants(config));
    findings.extend(place(config, cores.ok().as_ref(), start, &running));
    findings
}

/// Returns the options of the port without the published ports: the caller judges these, since it
/// publishes them.
fn uplink(config: &Config) -> PortOptions {
    PortOptions { publish: Vec::new(), ..config.ports.clone() }
}

fn firewall(config: &Config) -> Finding {
    let firewall = &config.firewall;
    let found = firewall.check().map(|()| {
        let word = |action| if action == Action::Allow { "passes" } else { "is dropped" };
        let (egress, ingress) = (word(firewall.egress), word(firewall.ingress));
        let (rules, limits) = (firewall.rules.len(), firewall.limits.len());
        format!("rules: {rules}, limits: {limits}; what no rule matches {egress} out, {ingress} in")
    });
    Finding::new("firewall", found.map_err(|(key, value, expected)| format!("{key} = {value}: {expected}")))
}

/// Judges whether other IOKernels use the cores.
fn core_locks(config: &Config, cores: &Cores, start: Start, running: &Running) -> Finding {
    let subject = "other IOKernels";
    if start.share_cores {
        return Finding::caution(
            subject,
            "--share-cores: whether one uses these cores is not checked".to_owned(),
        );
    }
    // The one at the same socket would hand its cores over.
    let locks = match running {
        Running::At(_) => {
            CoreLocks::take_beside(process_at(&config.socket, &AtomicBool::new(false)), cores.numbers())
        }
        _ => CoreLocks::take(cores.numbers()),
    };
    let found = locks.map(|_| "no other one uses these cores".to_owned());
    Finding::new(subject, found.map_err(|locked| locked.to_string()))
}

/// Judges the rights to rank above other programs.
fn rank(config: &Config, cores: &Cores) -> Finding {
    let subject = "rights";
    let words = machine::neighbours(cores.iokernel.0, &cores.managed_numbers(), config.neighbour_share);
    let others = format!("other programs get {words}");
    if config.is_dedicated() {
        return Finding::new(subject, Ok(others));
    }
    match real_time(config, config.ports.has_local_peer()) {
        Ok(()) => Finding::new(subject, Ok(others)),
        Err(why @ NoRealTime::LocalPeer) => Finding::new(subject, Ok(format!("{others}; {why}"))),
        Err(why) => Finding::caution(subject, format!("{others}; {why}")),
    }
}

/// Judges the accounts of grants.
fn grants(config: &Config) -> Finding {
    let subject = "grants";
    if let Err(error) = Authority::resolve(config) {
        return Finding::new(subject, Err(error.without_heading()));
    }
    let list = |accounts: &[Account]| accounts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let covered = config.grant.iter().map(|grant| match (&*list(&grant.users), &*list(&grant.groups)) {
        (users, "") => format!("users {users}"),
        ("", groups) => format!("groups {groups}"),
        (users, groups) => format!("users {users}, groups {groups}"),
    });
    let covered: Vec<String> = covered.collect();
    if covered.is_empty() {
        return Finding::new(subject, Ok("none: programs of root and of this user only".to_owned()));
    }
    let covered = covered.join("; ");
    match geteuid().is_root() {
        true => Finding::new(subject, Ok(covered)),
        false => Finding::caution(
            subject,
            format!("{covered}: without effect, for only an IOKernel of root serves other users"),
        ),
    }
}

/// What is at the control socket's address.
enum Running {
    Free,
    /// An IOKernel that trusts this user, with its process.
    At(Option<i32>),
    /// The address cannot be used.
    Unusable(String),
}

/// Looks for an IOKernel at the address of the configuration.
fn running(config: &Config) -> Running {
    use rustix::io::Errno;
    match dial(&config.socket) {
        Ok(socket) => Running::At(Peer::of(&socket).ok().and_then(|peer| peer.pid)),
        Err(ControlError::System {
            action: "connect", source: Errno::NOENT | Errno::CONNREFUSED, ..
        }) => may_bind(&config.socket).map_or_else(Running::Unusable, |()| Running::Free),
        Err(error) => Running::Unusable(error.to_string()),
    }
}

/// Checks that a socket may be made at `path`, where no process listens.
fn may_bind(path: &str) -> Result<(), String> {
    if path.starts_with('@') {
        return Ok(());
    }
    if lstat(path).is_ok_and(|found| !FileType::from_raw_mode(found.st_mode).is_socket()) {
        return Err(format!("{path} is a file and no socket: remove it, or choose another --socket"));
    }
    let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        format!(
            "folder {}: {error}; make it, or choose a --socket in a folder you may write",
            folder.display()
        )
    })
}

/// Judges the control socket, and a takeover from the IOKernel that runs there.
fn place(config: &Config, cores: Option<&Cores>, start: Start, running: &Running) -> Vec<Finding> {
    let socket = &config.socket;
    let subject = "control socket";
    let pid = match (running, start.takeover) {
        (Running::Unusable(why), _) => return vec![Finding::new(subject, Err(why.clone()))],
        (Running::Free, false) => {
            return vec![Finding::new(subject, Ok(format!("{socket}: no IOKernel runs there")))];
        }
        (Running::Free, true) => {
            let why = format!("no IOKernel runs at {socket} to take over from; start without --takeover");
            return vec![Finding::new("takeover", Err(why))];
        }
        (Running::At(pid), _) => pid.map_or_else(String::new, |pid| format!(", process {pid}")),
    };
    let takeover = match cores {
        Some(cores) => would_take_over(config, cores),
        None => Err("the cores cannot be used".to_owned()),
    };
    let takeover = takeover
        .map(|()| format!("would take over from the IOKernel at {socket}{pid}"))
        .map_err(|why| format!("would not take over from the IOKernel at {socket}{pid}: {why}"));
    if start.takeover {
        return vec![Finding::new("takeover", takeover)];
    }
    let why = format!(
        "an IOKernel runs at {socket}{pid}: stop it, choose another --socket, or take over from it (--takeover)"
    );
    // Advice only: this start is refused in any case.
    let takeover = match takeover {
        Ok(found) => Finding::new("takeover", Ok(format!("with --takeover this one {found}"))),
        Err(why) => Finding::caution("takeover", format!("with --takeover this one {why}")),
    };
    vec![Finding::new(subject, Err(why)), takeover]
}

/// Asks the IOKernel that runs, and lets it go on.
fn would_take_over(config: &Config, cores: &Cores) -> Result<(), String> {
    let mut ports = config.ports.build().map_err(|error| error.to_string())?;
    let authority = Authority::resolve(config).map_err(|error| error.to_string())?;
    let managed = cores.managed_numbers().len() as u32;
    let mut directory = Directory::new(config, authority, managed, machine::memory_bytes());
    let network = network_of(config, &ports);
    let mut predecessor = Predecessor::ask(config, network, &AtomicBool::new(false))?;
    predecessor.pass_devices(&mut ports).map_err(|error| error.to_string())?;
    predecessor.keep_places(&mut directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(findings: &[Finding]) -> Vec<&'static str> {
        findings.iter().filter(|f| f.verdict == Verdict::Refused).map(|f| f.subject).collect()
    }

    fn config(text: &str) -> Config {
        Config { socket: tailwater_testkit::socket_name("check"), ..Config::from_toml(text).unwrap() }
    }

    const SHARED: Start = Start { takeover: false, share_cores: true };

    #[test]
    fn what_the_machine_lacks_is_named() {
        for (text, subject, part) in [
            ("core = 1023", "cores", "1023"),
            ("managed-cores = \"1022-1023\"", "cores", "1022"),
            ("[ports]\nxdp = \"no-such-if\"", "port", "no-such-if"),
            ("[ports]\npcap = \"replay=/no/such/file\"", "port", "/no/such/file"),
            ("[[grant]]\nusers = \"no-such-user-here\"", "grants", "no-such-user-here"),
        ] {
            let findings = check(&config(text), SHARED);
            let found = findings.iter().find(|finding| finding.subject == subject).unwrap();
            assert_eq!(found.verdict, Verdict::Refused, "{text}: {findings:?}");
            assert!(found.found.contains(part), "{text}: {}", found.found);
            // By its text alone it is a configuration.
            assert_eq!(refused(&check_text(&config(text))), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_socket_where_none_can_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, part) in
            [(file.display().to_string(), "no socket"), ("/no/such/folder/s".to_owned(), "/no/such/folder")]
        {
            let findings = check(&Config { socket: path, ..Config::default() }, SHARED);
            let found = findings.iter().find(|finding| finding.subject == "control socket").unwrap();
            assert!(found.verdict == Verdict::Refused && found.found.contains(part), "{findings:?}");
        }
    }

    #[test]
    fn a_takeover_needs_one_that_runs() {
        let findings = check(&config(""), Start { takeover: true, share_cores: true });
        let found = findings.iter().find(|finding| finding.subject == "takeover").unwrap();
        assert!(found.verdict == Verdict::Refused && found.found.contains("without --takeover"), "{found:?}");
    }
}
