//! The same zone and the same questions to this server and to widely used servers, on kernel
//! sockets. Skips, with a message, those that are not installed.

use crate::common::{name, query, show};
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_dns::linux::Server;
use tailwater_dns::serve::{Limits, Shared};
use tailwater_dns::store::{Source, Store};
use tailwater_testkit::{PATIENCE, Program, is_installed, loopback_address};

const ZONE: &str = r#"
$TTL 300
$ORIGIN example.
@        SOA ns1 hostmaster 7 3600 600 86400 60
         NS  ns1
         NS  ns.elsewhere.org.
         MX  5 mail
         TXT "several" "strings" ""
         CAA 0 issue "ca.example.net"
ns1      A   192.0.2.1
         AAAA 2001:db8::1
mail     A   192.0.2.2
www      CNAME web
web      A   192.0.2.3
         A   192.0.2.4
         TXT "web"
dangling CNAME nothing
away     CNAME www.elsewhere.org.
twice    CNAME www
*.wild   A   192.0.2.5
         MX  1 mail
a.b.wild TXT "below"
*.alias  CNAME web
_sip._udp SRV 1 2 5060 mail
odd      TYPE65280 \# 4 0a0b0c0d
9.2.0.192.in-addr PTR web
sub      NS  ns.sub
         NS  ns.elsewhere.org.
ns.sub   A   192.0.2.53
deep.sub A   192.0.2.54
insub    CNAME host.sub
x.y.z    A   192.0.2.6
"#;

fn start(program: &str, arguments: &[&str], config: &str, folder: &Path) -> Program {
    let file = folder.join("config");
    std::fs::write(&file, config).unwrap();
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    let command = command.env("PATH", path).args(arguments).arg(&file).stdin(Stdio::null());
    Program::spawn(command.stdout(log.try_clone().unwrap()).stderr(log))
}

/// Returns the part of an answer that all authoritative servers agree on: code, AA, the answer in
/// any order, and of the other sections what a resolver uses: the SOA record of a negative answer,
/// and the servers of a delegation with the addresses below it.
fn essence(answer: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = show(answer).iter().map(|line| line.to_lowercase()).collect();
    let head = lines.remove(0);
    let negative = !lines.iter().any(|line| line.starts_with("an ") && !line.contains(" cname "));
    lines.retain(|line| {
        line.starts_with("an ")
            || negative && line.starts_with("ns ")
            || negative && line.starts_with("ar ns.sub.example. ")
    });
    // A delegation's servers, not those of the zone that some servers add to complete answers.
    lines.retain(|line| !line.starts_with("ns example. 300 ns "));
    lines.sort();
    lines.insert(0, head);
    lines
}

fn ask(server: SocketAddr, message: &[u8], patience: Duration) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (deadline, mut buf) = (Instant::now() + patience, [0; 4096]);
    while Instant::now() < deadline {
        let _ = socket.send(message);
        if let Ok(len) = socket.recv(&mut buf) {
            return Some(buf[..len].to_vec());
        }
    }
    None
}

fn compare(program: &str, arguments: &[&str], config: impl FnOnce(&Path, SocketAddr) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("example.zone");
    std::fs::write(&file, ZONE).unwrap();
    let store = Store::open(vec![Source { origin: name("example."), file }]).unwrap();
    let shared = Arc::new(Shared::new(store, Limits::default()));
    let ours = Server::start(&["127.0.0.1:0".parse().unwrap()], 1, &shared).unwrap();
    let other = loopback_address();
    let _other = start(program, arguments, &config(folder.path(), other), folder.path());
    // The server refuses or fails until the zone is loaded.
    let began = Instant::now();
    while ask(other, &query("example.", "SOA"), PATIENCE).is_none_or(|answer| answer[3] & 15 != 0) {
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(began.elapsed() < PATIENCE, "{program} does not serve:\n{log}");
    }
    let mut differences = String::new();
    let mut asked = 0;
    for question in [
        "example.",
        "ns1.example.",
        "NS1.Example.",
        "mail.example.",
        "www.example.",
        "web.example.",
        "twice.example.",
        "dangling.example.",
        "away.example.",
        "wild.example.",
        "x.wild.example.",
        "x.y.wild.example.",
        "*.wild.example.",
        "b.wild.example.",
        "x.b.wild.example.",
        "a.b.wild.example.",
        "x.alias.example.",
        "_sip._udp.example.",
        "_udp.example.",
        "odd.example.",
        "9.2.0.192.in-addr.example.",
        "0.192.in-addr.example.",
        "sub.example.",
        "ns.sub.example.",
        "deep.sub.example.",
        "x.sub.example.",
        "insub.example.",
        "z.example.",
        "y.z.example.",
        "w.y.z.example.",
        "nothing.example.",
        "org.",
        "elsewhere.org.",
        "xexample.",
    ] {
        for rtype in [
            "A",
            "AAAA",
            "NS",
            "SOA",
            "MX",
            "TXT",
            "CNAME",
            "SRV",
            "CAA",
            "PTR",
            "TYPE65280",
            "TYPE65281",
            "DS",
        ] {
            let message = query(question, rtype);
            let [our, their] = [ours.addresses()[0], other]
                .map(|server| essence(&ask(server, &message, PATIENCE).expect("an answer")));
            asked += 1;
            if our != their {
                let _ = writeln!(differences, "{question} {rtype}\n  ours:   {our:?}\n  theirs: {their:?}");
            }
        }
    }
    assert!(differences.is_empty(), "{program} answers differently:\n{differences}");
    println!("{program}: {asked} questions, the same answers");
}

#[test]
fn answers_are_those_of_knot() {
    if is_installed("knotd", "knot") {
        compare("knotd", &["-c"], |folder, address| {
            let (folder, ip, port) = (folder.display(), address.ip(), address.port());
            format!(
                "server:\n  rundir: {folder}\n  listen: {ip}@{port}\n  udp-workers: 1\n  tcp-workers: 1\n  \
                 background-workers: 1\ndatabase:\n  storage: {folder}\nzone:\n- domain: example.\n  storage: {folder}\n  \
                 file: example.zone\n"
            )
        });
    }
}

#[test]
fn answers_are_those_of_nsd() {
    if is_installed("nsd", "nsd") {
        compare("nsd", &["-d", "-c"], |folder, address| {
            let (folder, ip, port) = (folder.display(), address.ip(), address.port());
            format!(
                "server:\n  ip-address: {ip}@{port}\n  username: \"\"\n  chroot: \"\"\n  zonesdir: \"{folder}\"\n  \
                 database: \"\"\n  xfrdir: \"{folder}\"\n  pidfile: \"{folder}/pid\"\n  xfrdfile: \"{folder}/xfrd\"\n  zonelistfile: \
                 \"{folder}/zones\"\n  server-count: 1\n  do-ip6: no\nremote-control:\n  control-enable: no\nzone:\n  \
                 name: example.\n  zonefile: example.zone\n"
            )
        });
    }
}
