//! Programs behind the IP address of an interface that Linux uses (`--xdp IF,share=ports`): one end
//! of a veth pair; another host has the other end.
//!
//! Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF; without them the tests are skipped with a
//! message.

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tailwater_iokernel_testing::RawSpec;
use tailwater_ports::xdp;
use tailwater_shm::control::{Instance, Register};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{
    PATIENCE, Program, binary, cpu_numbers, eventually, has_two_cpus, socket_name, text, unless_too_busy,
    until,
};
use tailwater_tests::attack::Offer;
use tailwater_tests::{Role, turn, wait_for_predecessor};

use crate::shared_addresses::{self, exchange, under_load};
use crate::takeover_xdp::maps_bound_sockets;

/// The address that Linux and programs share, and the other one it gets later.
const SHARED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LATER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const SHARED6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The other host.
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
const WORDS: &str = "here0,share=ports,fill-checksums,gateway=10.77.0.1";
/// How often the IOKernel is killed; more by `SHARED_PORTS_KILLS`.
const KILLS: u32 = 3;

/// The interface and its IOKernel; takes away what a killed one has left in `/run`.
struct Scene {
    here: Namespace,
    there: Namespace,
    socket: String,
    records: Vec<PathBuf>,
    has_ipv6: bool,
}

impl Drop for Scene {
    fn drop(&mut self) {
        for record in &self.records {
            // Most are gone with the IOKernel.
            let _ = fs::remove_file(record);
        }
    }
}

impl Scene {
    /// Returns a scene of this name; `None`, with the reason printed, if it cannot be made.
    fn new(name: &str) -> Option<Self> {
        if !has_two_cpus() {
            return None;
        }
        let made = xdp::probe().and_then(|_| Ok([Namespace::new()?, Namespace::new()?]));
        let [here, there] = made.inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
        here.join("here0", &there, "there0", 1);
        here.ip(&["addr", "add", "192.0.2.1/24", "dev", "here0"]);
        there.ip(&["addr", "add", "192.0.2.9/24", "dev", "there0"]);
        let has_ipv6 = here.inside(|| {
            fs::read_to_string("/proc/thread-self/net/if_inet6").is_ok_and(|addresses| !addresses.is_empty())
        });
        if has_ipv6 {
            here.ip(&["addr", "add", "2001:db8::1/64", "dev", "here0", "nodad"]);
            there.ip(&["addr", "add", "2001:db8::9/64", "dev", "there0", "nodad"]);
        } else {
            eprintln!("skipped: what needs IPv6, which this kernel has not or has turned off");
        }
        let namespace = here.inside(|| fs::read_link("/proc/thread-self/ns/net")).expect("a namespace");
        let namespace = namespace.to_string_lossy().trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
        let records = ["tailwater-ports-", "tailwater-reserved-ports-"];
        let suffixes = ["-here0", "", ".lock"];
        let records = records.iter().flat_map(|prefix| {
            suffixes.map(|suffix| PathBuf::from(format!("/run/{prefix}{namespace}{suffix}")))
        });
        Some(Self { here, there, socket: socket_name(name), records: records.collect(), has_ipv6 })
    }

    fn iokernel(&self, words: &str, more: &[&str]) -> Program {
        let mut program = self.start(words, more);
        program.error_line_with(" ready ");
        program
    }

    fn start(&self, words: &str, more: &[&str]) -> Program {
        self.start_at(&self.socket, words, more)
    }

    fn start_at(&self, socket: &str, words: &str, more: &[&str]) -> Program {
        self.here.inside(|| Program::start(&mut Self::command(socket, words, more)))
    }

    fn command(socket: &str, words: &str, more: &[&str]) -> Command {
        let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
        let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/busy.toml");
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(["iokernel", "--share-cores", "--managed-cores", &core, "--socket", socket]);
        command.args(["--config", settings, "--xdp", words]).args(more);
        command
    }

    /// Returns the record, or nothing without one.
    fn record(&self) -> String {
        fs::read_to_string(&self.records[0]).unwrap_or_default()
    }

    /// Returns the first and last of the ports of the first program's own connections.
    fn part(&self) -> Value {
        let record: Value = serde_json::from_str(&self.record()).expect("a record");
        record["programs"][0]["outgoing"].clone()
    }

    /// Starts a program that listens at these ports.
    fn program(&self, role: &str, name: &str, listen: &str) -> Option<Role> {
        self.role(role, name, ("TAILWATER_LISTEN", listen))
    }

    /// Starts a program with this variable in its environment: again while it gets no answer in
    /// time, as from the IOKernel of an emulated machine that gets little of its host. `None`, with
    /// the reason printed, if it never does.
    fn role(&self, role: &str, name: &str, variable: (&str, &str)) -> Option<Role> {
        let variables = [variable, ("TAILWATER_IOKERNEL_WAIT_MS", "0")];
        let start = || self.here.inside(|| Role::try_start(&self.socket, role, name, &variables));
        unless_too_busy(start)
    }

    /// Starts a program that is refused with these words; `None` as [`role`](Self::role).
    #[track_caller]
    fn refused(&self, listen: &str, words: &[&str]) -> Option<()> {
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(["run", "--iokernel", &self.socket, "--listen", listen, "--"]);
        command.arg(binary("tailwater-tests", "role")).arg("echo");
        unless_too_busy(|| {
            let why = text(&self.here.inside(|| Program::start(&mut command)).finish().stderr);
            if words.iter().all(|word| why.contains(word)) { Ok(()) } else { Err(why) }
        })
    }

    /// Returns the number of the program that is attached to the interface, in words.
    fn attached(&self) -> String {
        let shown = self.here.run("ip", &["-d", "link", "show", "here0"]);
        let mut words = shown.split_whitespace().skip_while(|word| !word.starts_with("prog/xdp"));
        words.nth(2).unwrap_or_default().to_owned()
    }

    /// Runs `tailwater doctor --repair`, as a unit does at the end of its IOKernel, or by hand.
    fn repair(&self, service_result: Option<&str>) {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("tailwater.toml");
        let files = |name: &str| format!("[{name}]\nstate-file = {:?}\n", folder.path().join(name));
        fs::write(&config, files("ix") + &files("reserve")).expect("a file");
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(["doctor", "--repair", "--config"]).arg(&config).env_remove("SERVICE_RESULT");
        command.envs(service_result.map(|result| ("SERVICE_RESULT", result)));
        let finished = self.here.inside(|| Program::start(&mut command)).finish();
        assert!(finished.status.success(), "{}", text(&finished.stderr));
    }

    /// Returns the ports that Linux gives to no connection of its own.
    fn reserved(&self) -> String {
        let file = "/proc/sys/net/ipv4/ip_local_reserved_ports";
        self.here.inside(|| fs::read_to_string(file)).expect("it is there").trim().to_owned()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let ip6 = self.has_ipv6.then_some(IpAddr::V6(SHARED6));
        [IpAddr::V4(SHARED)].into_iter().chain(ip6).collect()
    }

    fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = self
            .there
            .inside(|| eventually(&format!("a connection to {to}"), || TcpStream::connect(to).ok()));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Makes a client of the other host send these bytes until they come back.
    fn ask(&self, to: SocketAddr, bytes: &[u8]) {
        self.ask_from(if to.is_ipv4() { IpAddr::V4(HOST) } else { HOST6.into() }, to, bytes);
    }

    /// As [`ask`](Self::ask), of a client with this address.
    fn ask_from(&self, from: IpAddr, to: SocketAddr, bytes: &[u8]) {
        let client = self.there.inside(|| UdpSocket::bind((from, 0)).expect("a free port"));
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        eventually(&format!("an answer from {to}"), || {
            client.send_to(bytes, to).ok()?;
            let mut buffer = [0; 8_192];
            client.recv_from(&mut buffer).ok().filter(|(len, from)| *from == to && buffer[..*len] == *bytes)
        });
    }
}

/// Serves connections to Linux's own server until this process ends: sends all back.
fn serve_linux(listener: TcpListener) {
    std::thread::spawn(move || shared_addresses::serve_linux(&listener));
}

#[test]
fn linux_and_programs_serve_at_one_address() {
    let Some(scene) = Scene::new("shared-ports") else { return };
    let _turn = turn();
    let mut iokernel = scene.iokernel(WORDS, &[]);
    let Some(tcp) = scene.program("tcp-serve", "tcp", "tcp:7") else { return };
    let Some(udp) = scene.program("echo", "udp", "udp:7") else { return };
    let linux = scene.here.inside(|| TcpListener::bind((SHARED, 22)).expect("Linux's own port"));
    serve_linux(linux);
    let mut to_linux = scene.connect((SHARED, 22).into());
    let mut streams: Vec<TcpStream> =
        scene.addresses().into_iter().map(|ip| scene.connect((ip, 7).into())).collect();
    for round in 0..20u32 {
        let request: Vec<u8> = (0..50_000u32).map(|i| (i * 7 + round) as u8).collect();
        for stream in streams.iter_mut().chain([&mut to_linux]) {
            assert!(exchange(stream, &request) == request, "other bytes came back than were sent");
        }
    }
    // In one packet, and in several fragments.
    for ip in scene.addresses() {
        scene.ask((ip, 7).into(), b"who is there");
        scene.ask((ip, 7).into(), &[7; 5_000]);
    }
    // A port that no one has is Linux's to refuse.
    let refused = scene.there.inside(|| TcpStream::connect((SHARED, 9))).map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionRefused));
    // A program calls another host, from its part of the range.
    let server = scene.there.inside(|| UdpSocket::bind((HOST, 9)).expect("its address"));
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let Some(mut call) = scene.role("call", "call", ("PEER", &format!("{HOST}:9"))) else { return };
    let mut buffer = [0; 8_192];
    let (len, from) = server.recv_from(&mut buffer).expect("the call");
    assert!(from.ip() == SHARED && from.port() >= 61_000, "{from}");
    server.send_to(&buffer[..len], from).expect("it has a route");
    assert_eq!(call.line().as_deref(), Some("answered"));
    // One program calls the other by the shared address.
    let Some(mut inner) = scene.role("call", "inner", ("PEER", &format!("{SHARED}:7"))) else { return };
    assert_eq!(inner.line().as_deref(), Some("answered"));
    drop((tcp, udp, call, inner));
    until("the ports are Linux's again", || scene.here.inside(|| TcpListener::bind((SHARED, 7)).is_ok()));
    // One that is registered still would keep the program attached.
    until("all programs have ended", || scene.record().contains(r#""programs":[]"#));
    iokernel.signal(Signal::TERM);
    iokernel.wait();
    let shown = scene.here.run("ip", &["-d", "link", "show", "here0"]);
    assert!(!shown.contains("prog/xdp"), "{shown}");
}

#[test]
fn a_pod_with_one_address_of_its_own_is_reached_by_way_of_a_router_with_a_link_local_address() {
    let Some(scene) = Scene::new("shared-ports-pod") else { return };
    let _turn = turn();
    let far = Ipv4Addr::new(198, 51, 100, 9);
    // As networks of containers make it: the node's end of the pair answers for the router.
    scene.here.ip(&["addr", "flush", "dev", "here0", "scope", "global"]);
    scene.here.ip(&["addr", "add", "192.0.2.1/32", "dev", "here0"]);
    scene.here.ip(&["route", "add", "169.254.1.1", "dev", "here0", "scope", "link"]);
    scene.here.ip(&["route", "add", "default", "via", "169.254.1.1", "dev", "here0"]);
    scene.there.ip(&["addr", "flush", "dev", "there0", "scope", "global"]);
    scene.there.ip(&["addr", "add", "169.254.1.1/32", "dev", "there0"]);
    scene.there.ip(&["addr", "add", "198.51.100.9/32", "dev", "there0"]);
    scene.there.ip(&["route", "add", "192.0.2.1", "dev", "there0"]);
    let far6 = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 9);
    if scene.has_ipv6 {
        scene.here.ip(&["addr", "add", "2001:db8::1/128", "dev", "here0", "nodad"]);
        scene.here.ip(&["route", "add", "default", "via", "fe80::1", "dev", "here0"]);
        scene.there.ip(&["addr", "add", "fe80::1/64", "dev", "there0", "nodad"]);
        scene.there.ip(&["addr", "add", "2001:db8:ffff::9/128", "dev", "there0", "nodad"]);
        scene.there.ip(&["route", "add", "2001:db8::1", "dev", "there0"]);
    }
    let _iokernel = scene.iokernel(WORDS, &[]);
    let Some(_service) = scene.program("echo", "service", "udp:7") else { return };
    scene.ask_from(far.into(), (SHARED, 7).into(), b"who is there");
    if scene.has_ipv6 {
        scene.ask_from(far6.into(), (SHARED6, 7).into(), b"who is there");
    }
    let linux = scene.here.inside(|| TcpListener::bind((SHARED, 22)).expect("Linux's own port"));
    serve_linux(linux);
    assert_eq!(exchange(&mut scene.connect((SHARED, 22).into()), b"still there"), b"still there");
}

#[test]
fn ports_that_others_have_are_refused_with_who_has_them() {
    let Some(scene) = Scene::new("shared-ports-refused") else { return };
    let _turn = turn();
    let used = scene.here.inside(|| UdpSocket::bind((SHARED, 61_234)).expect("a free port"));
    let why = text(&scene.start(WORDS, &[]).finish().stderr);
    assert!(why.contains("udp:61234 of ") && why.contains("range="), "{why}");
    drop(used);
    let words = format!("{WORDS},range=61000-61199,part=100");
    let mut iokernel = scene.iokernel(&words, &[]);
    assert_eq!(scene.reserved(), "61000-61199");
    let linux = scene.here.inside(|| TcpListener::bind((SHARED, 6_379)).expect("Linux's own port"));
    let process = format!("process {}", std::process::id());
    let Some(()) = scene.refused("tcp:6379", &["tcp:6379 of ", &process]) else { return };
    drop(linux);
    let Some(first) = scene.program("echo", "first", "udp:7,tcp:6379") else { return };
    let taken = scene.here.inside(|| TcpListener::bind((SHARED, 6_379))).map(drop);
    assert_eq!(taken.map_err(|error| error.kind()), Err(std::io::ErrorKind::AddrInUse));
    let Some(()) = scene.refused("udp:7", &["udp:7", &first.ip.to_string()]) else { return };
    let Some(()) = scene.refused("tcp:61007", &["61000-61199", "range="]) else { return };
    let Some(_second) = scene.program("echo", "second", "udp:8") else { return };
    let Some(()) = scene.refused("udp:9", &["part="]) else { return };
    // So is the interface itself, to another IOKernel.
    let attached = scene.attached();
    for more in [&[][..], &["--check"]] {
        let finished = scene.start_at(&socket_name("shared-ports-other"), &words, more).finish();
        let why = text(&finished.stderr) + &text(&finished.stdout);
        assert!(why.contains("here0") && why.contains("another process has an AF_XDP socket"), "{why}");
        assert!(!finished.status.success(), "{why}");
    }
    assert_eq!(scene.attached(), attached);
    scene.ask((SHARED, 7).into(), b"still there");
    // What is reserved stays so for the next start of a service, whose programs wait for it.
    iokernel.kill();
    // The next one starts also if a program of Linux asks for a reserved port, and programs keep
    // the ports that they had, whatever the length of a part is now.
    let used = scene.here.inside(|| UdpSocket::bind((SHARED, 61_150)).expect("a free port"));
    let mut iokernel = scene.iokernel(&words.replace("part=100", "part=40"), &[]);
    assert!(iokernel.errors().contains("udp:61150 of "), "{}", iokernel.errors());
    scene.ask((SHARED, 7).into(), b"still there");
    let Some(()) = scene.refused("udp:9", &["part="]) else { return };
    drop(used);
    iokernel.kill();
    scene.repair(Some("signal"));
    assert_eq!(scene.reserved(), "61000-61199");
    scene.repair(None);
    assert_eq!(scene.reserved(), "");
}

#[test]
fn programs_follow_the_interface_to_another_address() {
    let Some(scene) = Scene::new("shared-ports-address") else { return };
    let _turn = turn();
    let _iokernel = scene.iokernel(WORDS, &[]);
    let Some(_udp) = scene.program("echo", "udp", "udp:7") else { return };
    let Some(_tcp) = scene.program("tcp-serve", "tcp", "tcp:7") else { return };
    scene.ask((SHARED, 7).into(), b"before");
    let change = || {
        // In this order: Linux removes the other addresses of a network with the first one.
        scene.here.ip(&["addr", "del", "192.0.2.1/24", "dev", "here0"]);
        scene.here.ip(&["addr", "add", "192.0.2.77/24", "dev", "here0"]);
        scene.ask((LATER, 7).into(), b"after");
        assert_eq!(exchange(&mut scene.connect((LATER, 7).into()), b"who is there"), b"who is there");
    };
    if scene.has_ipv6 {
        // Under load at the other address, which both keep.
        serve_linux(scene.here.inside(|| TcpListener::bind((SHARED6, 22)).expect("Linux's own port")));
        let mut to_linux = scene.connect((SHARED6, 22).into());
        under_load(&mut to_linux, |linux_goes_on| {
            under_load(&mut scene.connect((SHARED6, 7).into()), |goes_on| {
                goes_on("before");
                change();
                goes_on("after the change");
                linux_goes_on("after the change");
            });
        });
    } else {
        change();
    }
    let taken = scene.here.inside(|| UdpSocket::bind((LATER, 7))).map(drop);
    assert_eq!(taken.map_err(|error| error.kind()), Err(std::io::ErrorKind::AddrInUse));
}

#[test]
fn connections_go_on_when_the_interface_has_its_address_again() {
    let Some(scene) = Scene::new("shared-ports-back") else { return };
    let _turn = turn();
    let mut iokernel = scene.iokernel(WORDS, &[]);
    let Some(_tcp) = scene.program("tcp-serve", "tcp", "tcp:7") else { return };
    let mut stream = scene.connect((SHARED, 7).into());
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream, b"at it"), b"at it");
        scene.here.ip(&["addr", "del", "192.0.2.1/24", "dev", "here0"]);
        iokernel.error_line_with("the interface has other addresses");
        scene.here.ip(&["addr", "add", "192.0.2.1/24", "dev", "here0"]);
        // This arrives while Linux has the address and the IOKernel does not know.
        assert_eq!(exchange(&mut stream, b"back"), b"back");
        iokernel.error_line_with("the interface has other addresses");
    }
}

#[test]
fn frames_of_programs_follow_linuxs_routing_rules() {
    let Some(scene) = Scene::new("shared-ports-rules") else { return };
    let _turn = turn();
    scene.there.ip(&["addr", "add", "198.51.100.9/32", "dev", "there0"]);
    scene.here.ip(&["rule", "add", "from", "192.0.2.1", "table", "77"]);
    let mut iokernel = scene.iokernel(WORDS, &[]);
    let Some(_service) = scene.program("echo", "service", "udp:7") else { return };
    // No other table has a route there.
    let route = ["route", "add", "198.51.100.0/24", "via", "192.0.2.9", "dev", "here0", "table", "77"];
    scene.here.ip(&route);
    scene.ask_from(Ipv4Addr::new(198, 51, 100, 9).into(), (SHARED, 7).into(), b"by the rule");
    // One that no frame decides is named.
    scene.here.ip(&["rule", "add", "uidrange", "0-9", "table", "78", "priority", "700"]);
    iokernel.error_line_with("priority 700");
}

#[test]
fn ports_of_an_instance_that_ends_or_is_refused_are_not_left_to_the_programs_other_one() {
    let Some(scene) = Scene::new("shared-ports-instance") else { return };
    let _turn = turn();
    let _iokernel = scene.iokernel(WORDS, &[]);
    let ask = |listen: &str| {
        let listen = vec![listen.parse().expect("a port")];
        let request = RawSpec::new("mine").best_effort().register;
        let request = Register { listen, instance: Instance::Latest, ..request };
        scene.here.inside(|| Offer::ask(&scene.socket, &request)).expect("a place")
    };
    let is_free = |port| scene.here.inside(|| TcpListener::bind((SHARED, port)).is_ok());
    let _first = ask("tcp:7").take().expect("it is registered");
    let second = ask("tcp:8");
    assert!(!is_free(7) && !is_free(8));
    drop(second);
    until("the port of the second instance is Linux's again", || is_free(8));
    // The record is written after that.
    until("the next IOKernel would not take the port either", || !scene.record().contains("tcp:8"));
    assert!(!is_free(7) && scene.record().contains("tcp:7"));
}

#[test]
fn an_interface_that_moves_away_is_linuxs_there_and_the_programs_when_it_is_back() {
    let Some(scene) = Scene::new("shared-ports-moved") else { return };
    let _turn = turn();
    let iokernel = scene.iokernel(WORDS, &[]);
    let Some(_udp) = scene.program("echo", "udp", "tcp:7,udp:7") else { return };
    scene.ask((SHARED, 7).into(), b"before");
    let elsewhere = Namespace::new().expect("as before");
    let bring_up = |namespace: &Namespace| {
        namespace.ip(&["link", "set", "here0", "up"]);
        namespace.ip(&["addr", "add", "192.0.2.1/24", "dev", "here0"]);
    };
    elsewhere.take(&scene.here, "here0");
    bring_up(&elsewhere);
    until("Linux answers there", || {
        let to = (SHARED, 7).into();
        let refused = scene.there.inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(200)));
        refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    scene.here.take(&elsewhere, "here0");
    bring_up(&scene.here);
    scene.ask((SHARED, 7).into(), b"after");
    drop(iokernel);
}

#[test]
fn an_iokernel_that_cannot_write_its_record_says_so_and_leaves_nothing_at_its_end() {
    let Some(scene) = Scene::new("shared-ports-unrecorded") else { return };
    let _turn = turn();
    let wrapped = |more: &[&str]| {
        let inner = Scene::command(&scene.socket, WORDS, more);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount -t tmpfs -o ro none /run && exec \"$0\" \"$@\""]);
        command.arg(inner.get_program()).args(inner.get_args());
        scene.here.inside(|| Program::start(&mut command))
    };
    let checked = wrapped(&["--check"]).finish();
    let said = text(&checked.stdout) + &text(&checked.stderr);
    assert!(said.contains("/run") && said.contains("xdp off"), "{said}");
    let mut iokernel = wrapped(&[]);
    iokernel.error_line_with(" ready ");
    assert!(iokernel.errors().contains("xdp off"), "{}", iokernel.errors());
    let Some(_udp) = scene.program("echo", "udp", "udp:7") else { return };
    scene.ask((SHARED, 7).into(), b"who is there");
    iokernel.signal(Signal::TERM);
    iokernel.wait();
    assert_eq!(scene.attached(), "");
    let _next = scene.iokernel(WORDS, &[]);
    scene.ask((SHARED, 7).into(), b"who is there");
}

#[test]
fn no_connection_is_reset_when_the_iokernel_is_killed_or_replaced_under_load() {
    let Some(scene) = Scene::new("shared-ports-killed") else { return };
    let _turn = turn();
    let kills = std::env::var("SHARED_PORTS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let mut running = scene.iokernel(WORDS, &[]);
    let Some(_service) = scene.program("tcp-serve", "service", "tcp:7") else { return };
    serve_linux(scene.here.inside(|| TcpListener::bind((SHARED, 22)).expect("Linux's own port")));
    let mut to_linux = scene.connect((SHARED, 22).into());
    let mut to_program = scene.connect((SHARED, 7).into());
    let times = under_load(&mut to_program, |goes_on| {
        for _ in 0..kills {
            goes_on("before a kill");
            running.kill();
            // Without an IOKernel Linux's own traffic goes on, and frames of the program's
            // connection are dropped: a reset would end it.
            for _ in 0..20 {
                assert_eq!(exchange(&mut to_linux, b"still there"), b"still there");
            }
            let refused = scene
                .there
                .inside(|| TcpStream::connect_timeout(&(SHARED, 7).into(), Duration::from_millis(20)));
            assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(std::io::ErrorKind::TimedOut));
            // One that is killed as soon as its program is attached leaves it to the next one.
            let attached = scene.attached();
            let mut starting = scene.start(WORDS, &[]);
            until("the next program is attached", || {
                assert!(starting.is_running(), "{}", starting.errors());
                scene.attached() != attached
            });
            starting.kill();
            running = scene.iokernel(WORDS, &[]);
        }
        goes_on("after the kills");
        if maps_bound_sockets().inspect_err(|why| eprintln!("skipped: {why}")).is_ok() {
            // With other parts of the range: the program keeps its own.
            let part = scene.part();
            let successor = scene.iokernel(&format!("{WORDS},part=100"), &["--takeover"]);
            wait_for_predecessor(&mut running, &successor);
            running = successor;
            goes_on("after a takeover");
            assert_eq!((scene.part(), part.is_array()), (part, true));
            assert!(running.errors().contains("goes on with the device"), "{}", running.errors());
        }
        // One that ends in good order leaves what its programs need to the next one.
        running.signal(Signal::TERM);
        running.wait();
        running = scene.iokernel(WORDS, &[]);
        goes_on("after a restart");
    });
    let longest = &times[times.len().saturating_sub(kills as usize)..];
    println!("longest exchanges over {kills} kills: {longest:?}");
}
