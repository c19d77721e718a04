//! Name servers with the same zone: this project's on Tailwater and on Linux, NSD and Knot DNS.
//!
//! Owns the zone, the names that a generator asks for, and each server's configuration: one process
//! or thread for datagrams for each shared core, all files in its own folder, rate limits off, no
//! records that were not asked for, and sockets that hold as many queries as Tailwater's where that
//! can be set. NSD and Knot DNS run from the system's programs, never as the system's services.

use std::fmt::Write as _;
use std::sync::Arc;

use tailwater_loadgen::protocol::{Dns, Protocol};
use tailwater_placement::buffer::BYTES;

use tailwater_testbed::program::{FOLDER, File, Host, PORT, Program, find};

/// Number of names, each with an address.
pub const NAMES: u32 = 10_000;

/// Number of names that are asked for as often and do not exist.
pub const ABSENT: u32 = 1_000;

/// The zone's file in a server's folder.
const ZONE: &str = "example.zone";

/// Returns the zone, in master format (RFC 1035, section 5).
fn zone() -> String {
    let mut text =
        "$ORIGIN example.\n$TTL 300\n@ SOA ns1 hostmaster 1 3600 600 86400 60\n NS ns1\nns1 A 192.0.2.1\n"
            .to_owned();
    for host in 0..NAMES {
        let _ = writeln!(text, "h{host} A {}", address(host));
    }
    text
}

fn address(host: u32) -> std::net::Ipv4Addr {
    // The private network 10.0.0.0/8 (RFC 1918).
    (0x0a00_0000 + host).into()
}

/// Returns the requests of a generator: every name equally often, with each answer checked.
///
/// # Panics
/// Never: the list is valid.
pub fn questions() -> Arc<dyn Protocol> {
    let mut list = String::new();
    for host in 0..NAMES {
        let _ = writeln!(list, "h{host}.example {}", address(host));
    }
    for host in 0..ABSENT {
        let _ = writeln!(list, "no{host}.example nxdomain");
    }
    Arc::new(Dns::from_list(&list).expect("the list is valid"))
}

fn with_zone(program: Program, config: Option<(&'static str, String)>) -> Program {
    let mut files = vec![File { name: ZONE, text: zone().into() }];
    files.extend(config.map(|(name, text)| File { name, text: text.into() }));
    Program { files, ..program }
}

/// Returns the server of this project on Tailwater.
pub fn dns() -> Program {
    let words = ["--listen", &format!("0.0.0.0:{PORT}"), "--zone", &format!("example.={FOLDER}/{ZONE}")];
    with_zone(Program::new(Host::Tailwater, "dns", &words, questions()), None)
}

/// Returns the server of this project on kernel sockets and kernel threads.
pub fn dns_on_linux(threads: usize) -> Program {
    let (listen, zone) = (format!("127.0.0.1:{PORT}"), format!("example.={FOLDER}/{ZONE}"));
    let words = ["--linux", "--listen", &listen, "--threads", &threads.to_string(), "--zone", &zone];
    with_zone(Program::new(Host::Linux, "dns", &words, questions()), None)
}

/// NSD; `None` where it is not installed.
pub fn nsd(threads: usize) -> Option<Program> {
    let path = find("nsd")?;
    let config = format!(
        r#"server:
  ip-address: 127.0.0.1@{PORT}
  server-count: {threads}
  username: ""
  chroot: ""
  zonesdir: "{FOLDER}"
  database: ""
  pidfile: ""
  xfrdir: "{FOLDER}"
  xfrdfile: ""
  zonelistfile: "{FOLDER}/zones"
  logfile: "{FOLDER}/log"
  receive-buffer-size: {BYTES}
  do-ip6: no
  rrl-ratelimit: 0
  minimal-responses: yes
remote-control:
  control-enable: no
zone:
  name: example.
  zonefile: {ZONE}
"#
    );
    let words = ["-d", "-c", &format!("{FOLDER}/nsd.conf")];
    Some(with_zone(Program::foreign(&path, &words, questions()), Some(("nsd.conf", config))))
}

/// Knot DNS; `None` where it is not installed.
pub fn knot(threads: usize) -> Option<Program> {
    let path = find("knotd")?;
    let config = format!(
        "server:
  rundir: {FOLDER}
  listen: 127.0.0.1@{PORT}
  udp-workers: {threads}
  tcp-workers: 1
  background-workers: 1
database:
  storage: {FOLDER}
log:
- target: {FOLDER}/log
  any: error
zone:
- domain: example.
  storage: {FOLDER}
  file: {ZONE}
"
    );
    let words = ["-c", &format!("{FOLDER}/knot.conf")];
    Some(with_zone(Program::foreign(&path, &words, questions()), Some(("knot.conf", config))))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::sync::atomic::AtomicBool;

    use rustix::process::{Pid, Signal, kill_process_group};
    use tailwater_loadgen::kernel_udp::contact_server;
    use tailwater_loadgen::protocol::{Medium, Request, Verdict};
    use tailwater_testkit::{PATIENCE, loopback_address};

    use super::*;

    /// A server and the processes it started, which end when this is dropped.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let group = Pid::from_raw(self.0.id().cast_signed()).unwrap();
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.0.wait();
        }
    }

    /// Starts the server and asks for every `step`-th name.
    fn answers_are_right(program: Option<Program>, name: &str, step: usize) {
        let Some(program) = program else {
            println!("skipped: {name} is not installed");
            return;
        };
        let address = loopback_address();
        let prepared = program.prepare(address.port()).unwrap();
        let folder = prepared.folder.as_ref().unwrap().path().to_owned();
        // An address of this test's own, which no parallel test can have taken.
        let file = ["nsd.conf", "knot.conf"].map(|name| folder.join(name)).into_iter().find(|f| f.exists());
        let config = std::fs::read_to_string(file.as_ref().unwrap()).unwrap();
        assert!(config.contains(" 127.0.0.1@"), "{config}");
        let config = config.replace(" 127.0.0.1@", &format!(" {}@", address.ip()));
        std::fs::write(file.unwrap(), config).unwrap();
        let (path, words) = prepared.arguments.split_first().unwrap();
        let server = Server(Command::new(path).args(words).process_group(0).spawn().unwrap());
        let stop = AtomicBool::new(false);
        contact_server(&*program.protocol, address, PATIENCE, &stop).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 512];
        for ticket in (0..u64::from(NAMES + ABSENT)).step_by(step) {
            let request = Request { id: ticket, ticket, due_ns: 0 };
            let mut query = Vec::new();
            program.protocol.encode(&request, Medium::Datagram, &mut query);
            socket.send(&query).unwrap();
            let len = socket.recv(&mut answer).unwrap();
            let verdict = program.protocol.check(&request, &answer[..len], Medium::Datagram);
            assert_eq!(verdict, Verdict::Right, "{name}, {ticket}: {:x?}", &answer[..len]);
        }
        drop(server);
        drop(prepared);
        assert!(!folder.exists());
    }

    /// Asks over 200 names in a second, which the server's default rate limit would refuse.
    #[test]
    fn nsd_answers_as_the_generator_expects() {
        answers_are_right(nsd(1), "nsd", 7);
    }

    #[test]
    fn knot_answers_as_the_generator_expects() {
        answers_are_right(knot(1), "knotd", 7);
    }

    #[test]
    fn ours_is_given_the_zone_in_its_folder() {
        let prepared = dns().prepare(5000).unwrap();
        let own = prepared.folder.as_ref().unwrap().path().display().to_string();
        assert_eq!(
            prepared.arguments,
            ["--listen", "0.0.0.0:5000", "--zone", &format!("example.={own}/{ZONE}")]
        );
        let read = std::fs::read_to_string(prepared.folder.as_ref().unwrap().path().join(ZONE)).unwrap();
        assert_eq!(read.lines().count(), 5 + NAMES as usize);
    }
}
