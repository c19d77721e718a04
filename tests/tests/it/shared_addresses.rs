//! Programs behind the MAC address of an interface that Linux uses (`--xdp IF,share=addresses`):
//! one end of a veth pair; another host has the other end.
//!
//! Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF; without them the tests are skipped with a
//! message.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::wire::{self, Endpoint};
use tailwater_iokernel_testing::{Behaviour, RawKthread, RawRuntime, RawSpec, Step};
use tailwater_ports::options::PortOptions;
use tailwater_shm::clock;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{PATIENCE, Program, binary, cpu_numbers, eventually, socket_name, until};
use tailwater_tests::{Bench, Role, StopOnDrop, turn, wait_for_predecessor};
use tailwater_wire::MacAddr;

use crate::takeover_xdp::maps_bound_sockets;
use crate::two_machines::{two_namespaces, xdp_works};

/// Linux's address on the interface.
pub(crate) const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The other host, and Linux's router.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
/// Address of the gateway of programs: no host has it.
const GATEWAY: &str = "10.77.0.254";
/// An address of the other host in another network.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// An address of the other host to which Linux has another router, which is not there.
const UNREACHABLE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(crate) const WORDS: &str = "share=addresses,fill-checksums,gateway=10.77.0.254";
/// How often the IOKernel is killed.
const KILLS: u32 = 3;

/// Returns the namespaces of the interface `here0` and of the other host, with addresses and routes
/// of the families that Linux has; `None`, with the reason printed, if they cannot be made.
fn joined() -> Option<[Namespace; 2]> {
    joined_by(1)
}

/// As [`joined`], with this number of queues each way.
pub(crate) fn joined_by(queues: usize) -> Option<[Namespace; 2]> {
    let [here, there] = if xdp_works() { two_namespaces(queues)? } else { return None };
    here.ip(&["addr", "add", "10.77.0.1/16", "dev", "here0"]);
    there.ip(&["addr", "add", "10.77.0.9/16", "dev", "there0"]);
    there.ip(&["addr", "add", "192.0.2.1/32", "dev", "lo"]);
    here.ip(&["route", "add", "default", "via", "10.77.0.9"]);
    if !has_ipv6(&here) {
        eprintln!("skipped: what needs IPv6, which this kernel has not or has turned off");
        return Some([here, there]);
    }
    there.ip(&["addr", "add", "2001:db8::1/128", "dev", "lo", "nodad"]);
    for (namespace, ip, interface) in
        [(&here, "fd00:7477::1/64", "here0"), (&there, "fd00:7477::9/64", "there0")]
    {
        namespace.ip(&["addr", "add", ip, "dev", interface, "nodad"]);
    }
    here.ip(&["-6", "route", "add", "default", "via", "fd00:7477::9"]);
    Some([here, there])
}

/// Returns whether Linux has IPv6 in a namespace: its loopback interface, which is up, then has an
/// address.
fn has_ipv6(namespace: &Namespace) -> bool {
    let addresses = || std::fs::read_to_string("/proc/thread-self/net/if_inet6");
    namespace.inside(|| addresses().is_ok_and(|addresses| !addresses.is_empty()))
}

/// Starts an IOKernel on `here0`.
pub(crate) fn iokernel(here: &Namespace, words: &str) -> Bench {
    let options = PortOptions { xdp: Some(format!("here0,{words}")), ..PortOptions::default() };
    let ports = options.build().expect("the words are right");
    here.inside(|| Bench::start(|config| config.pool_start = Some(Ipv4Addr::new(10, 77, 0, 20)), ports))
}

fn ip6_of(ip: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00_7477 << 96 | u128::from(ip.to_bits() & 0xffff))
}

/// Returns the MAC address that an interface has.
pub(crate) fn mac_of(namespace: &Namespace, interface: &str) -> String {
    let shown = namespace.run("ip", &["-br", "link", "show", interface]);
    let mac = shown.split_whitespace().find(|word| word.matches(':').count() == 5);
    mac.unwrap_or_else(|| panic!("{shown}")).to_owned()
}

/// Returns the MAC address at which the other host has an address.
pub(crate) fn neighbour(there: &Namespace, ip: IpAddr) -> Option<String> {
    let shown = there.run("ip", &["neigh", "show", &ip.to_string(), "dev", "there0"]);
    let mut words = shown.split_whitespace().skip_while(|word| *word != "lladdr");
    words.nth(1).map(str::to_owned)
}

/// Makes a client of the other host send a datagram until it comes back.
pub(crate) fn ask(there: &Namespace, to: SocketAddr) {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    ask_from(there, any, to);
}

/// As [`ask`], from one of the other host's addresses.
fn ask_from(there: &Namespace, from: IpAddr, to: SocketAddr) {
    let client = there.inside(|| UdpSocket::bind((from, 0)).expect("a free port"));
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    eventually(&format!("an answer from {to}"), || {
        // An address may still be tentative, or the neighbour unresolved.
        client.send_to(b"who is there", to).ok()?;
        let mut buffer = [0; 64];
        client
            .recv_from(&mut buffer)
            .ok()
            .filter(|(len, from)| *from == to && &buffer[..*len] == b"who is there")
    });
}

/// Returns the bytes that come back over a connection.
pub(crate) fn exchange(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    let mut writer = stream.try_clone().expect("a descriptor");
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(request).expect("the connection lives"));
        let mut answer = vec![0; request.len()];
        stream.read_exact(&mut answer).expect("an answer");
        answer
    })
}

/// Uses a connection without a pause while `run` goes on, which gets a wait until it has been used
/// again. Returns how long the exchanges took, the longest last.
pub(crate) fn under_load(stream: &mut TcpStream, run: impl FnOnce(&dyn Fn(&str))) -> Vec<Duration> {
    let request: Vec<u8> = (0..2_000u32).map(|i| (i * 7) as u8).collect();
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        let load = scope.spawn(|| {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert!(exchange(stream, &request) == request);
                times.push(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
            }
            times.sort_unstable();
            times
        });
        run(&|when| {
            let before = count.load(Ordering::Relaxed);
            let is_used = || count.load(Ordering::Relaxed) > before + 20 || load.is_finished();
            until(&format!("the connection is used {when}"), is_used);
        });
        drop(stop);
        load.join().expect("the connection lives on")
    })
}

/// Serves connections to Linux's own server until the listener is gone: sends all back.
pub(crate) fn serve_linux(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            let mut writer = stream.try_clone().expect("a descriptor");
            // Ends with the connection.
            let _ = std::io::copy(&mut stream, &mut writer);
        });
    }
}

pub(crate) fn connect(there: &Namespace, to: SocketAddr) -> TcpStream {
    let stream =
        there.inside(|| eventually(&format!("a connection to {to}"), || TcpStream::connect(to).ok()));
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

#[test]
fn linux_and_programs_serve_behind_one_mac_address() {
    let Some([here, there]) = joined() else { return };
    let bench = iokernel(&here, WORDS);
    let echo = here.inside(|| bench.child("echo", "echo", "latency-critical"));
    let tcp = here.inside(|| bench.child("tcp-serve", "tcp", "latency-critical"));
    let listener = here.inside(|| TcpListener::bind((LINUX, 7)).expect("Linux's own address"));
    std::thread::spawn(move || serve_linux(&listener));
    let mut to_linux = connect(&there, (LINUX, 7).into());
    let mut to_program = connect(&there, (tcp.ip, 7).into());
    let mut to_program6 = has_ipv6(&there).then(|| connect(&there, (ip6_of(tcp.ip), 7).into()));
    for round in 0..20u32 {
        let request: Vec<u8> = (0..50_000u32).map(|i| (i * 7 + round) as u8).collect();
        for stream in [&mut to_linux, &mut to_program].into_iter().chain(&mut to_program6) {
            assert!(exchange(stream, &request) == request, "other bytes came back than were sent");
        }
    }
    ask(&there, (echo.ip, 7).into());
    if has_ipv6(&there) {
        ask(&there, (ip6_of(echo.ip), 7).into());
    }
    // The program asks in its turn, with one name behind the wire for all.
    let server = there.inside(|| UdpSocket::bind((HOST, 7)).expect("the other host's address"));
    answer_while(&server, || {
        let mut asks = here.inside(|| bench.child(&format!("ask {HOST} 20"), "asks", "latency-critical"));
        assert!(asks.line().is_some_and(|line| line.starts_with("answered 20 ")));
    });
    let mac = Some(mac_of(&here, "here0"));
    let ips = [IpAddr::V4(LINUX), echo.ip.into(), tcp.ip.into()];
    let ip6s = [IpAddr::V6(ip6_of(echo.ip)), ip6_of(tcp.ip).into()];
    for ip in ips.into_iter().chain(ip6s.into_iter().filter(|_| has_ipv6(&there))) {
        assert_eq!(neighbour(&there, ip), mac, "{ip} {}", there.run("ip", &["neigh"]));
    }
    // Only groups beside its own addresses are accepted, unlike in promiscuous mode.
    let shown = here.run("ip", &["-d", "link", "show", "here0"]);
    assert!(shown.contains("promiscuity 0") && shown.contains("prog/xdp"), "{shown}");
}

/// Sends datagrams back to their senders while `run` runs.
pub(crate) fn answer_while(server: &UdpSocket, run: impl FnOnce()) {
    server.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 4096];
            while !over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = server.recv_from(&mut buffer) {
                    // The interface may be changing; the client asks again.
                    let _ = server.send_to(&buffer[..len], from);
                }
            }
        });
        let _stop = StopOnDrop(&over);
        run();
    });
}

#[test]
fn the_way_to_other_networks_is_linuxs_and_followed_when_the_router_changes() {
    let Some([here, there]) = joined() else { return };
    let bench = iokernel(&here, WORDS);
    let server = there.inside(|| UdpSocket::bind((FAR, 7)).expect("the far address"));
    let ask_far = |name: &str| {
        let mut asks = here.inside(|| bench.child(&format!("ask {FAR} 20"), name, "latency-critical"));
        let line = asks.line();
        assert!(
            line.as_ref().is_some_and(|line| line.starts_with("answered 20 ")),
            "{line:?} {:#}",
            bench.stats()
        );
    };
    if has_ipv6(&there) {
        // With a datagram of several fragments.
        let server6 = there.inside(|| UdpSocket::bind((FAR6, 7)).expect("the far address"));
        answer_while(&server6, || {
            let peer = format!("[{FAR6}]:7");
            let mut call =
                here.inside(|| bench.child_with("call", "six", "latency-critical", &[("PEER", &peer)]));
            assert_eq!(call.line().as_deref(), Some("answered"), "{:#}", bench.stats());
        });
    }
    answer_while(&server, || {
        ask_far("before");
        let account = bench.stats()["ports"][1]["account"].clone();
        assert!(account["gateway_answers"].as_u64() > Some(0), "{account:#}");
        change_router(&there);
        ask_far("after");
    });
}

/// Gives the router another MAC address.
fn change_router(there: &Namespace) {
    there.ip(&["link", "set", "there0", "down"]);
    there.ip(&["link", "set", "there0", "address", "02:00:00:00:00:77"]);
    there.ip(&["link", "set", "there0", "up"]);
    // The router asks for Linux, which learns its new address by that.
    let router = there.inside(|| UdpSocket::bind((HOST, 0)).expect("a free port"));
    router.send_to(b"", (LINUX, 9)).expect("it has a route");
}

#[test]
fn a_router_with_the_gateways_address_is_reached_by_linuxs_entry_also_after_it_has_asked() {
    let Some([here, there]) = joined() else { return };
    there.ip(&["addr", "add", "198.51.100.1/32", "dev", "lo"]);
    // No host has this next hop.
    here.ip(&["route", "add", "198.51.100.0/24", "via", "10.77.0.99"]);
    let bench = iokernel(&here, "share=addresses,fill-checksums,gateway=10.77.0.9");
    let echo = here.inside(|| bench.child("echo", "echo", "latency-critical"));
    // The router asks for the program, whose answer has to find it.
    ask(&there, (echo.ip, 7).into());
    // Where Linux's next hop is unknown nothing leaves: it is not sent to who has asked instead.
    let client = there.inside(|| UdpSocket::bind((UNREACHABLE, 0)).expect("the other host's address"));
    client.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    until("an answer has no next hop", || {
        client.send_to(b"who is there", (echo.ip, 7)).expect("it has a route");
        assert!(client.recv(&mut [0; 64]).is_err(), "the answer went past Linux's routes");
        bench.stats()["ports"][1]["account"]["no_next_hop"].as_u64() > Some(0)
    });
    ask_from(&there, FAR.into(), (echo.ip, 7).into());
    change_router(&there);
    // From now on it asks no more, so that the program hears of the change from nobody.
    let mac = mac_of(&here, "here0");
    there.ip(&["neigh", "replace", &echo.ip.to_string(), "lladdr", &mac, "dev", "there0"]);
    ask_from(&there, FAR.into(), (echo.ip, 7).into());
}

#[test]
fn no_program_gets_or_uses_an_address_of_the_machine_or_its_router() {
    let Some([here, there]) = joined() else { return };
    let bench = iokernel(&here, WORDS);
    let echo = here.inside(|| bench.child("echo", "echo", "latency-critical"));
    for (name, ip) in
        [("linux", LINUX), ("router", HOST), ("gateway", GATEWAY.parse().unwrap()), ("twin", echo.ip)]
    {
        let mut spec = RawSpec::new(name);
        spec.register.ip = Some(ip);
        let refused = here.inside(|| RawRuntime::start(bench.socket(), &spec, |_| Box::new(Echo::default())));
        let why = refused.err().unwrap_or_else(|| panic!("{ip} was given away")).to_string();
        assert!(why.contains(&ip.to_string()) && why.contains("belongs to"), "{why}");
    }
    // An address that Linux gets later is refused from then on.
    here.ip(&["addr", "add", "10.77.0.77/32", "dev", "here0"]);
    let later = Ipv4Addr::new(10, 77, 0, 77);
    until("the address is refused", || {
        let mut spec = RawSpec::new("later");
        spec.register.ip = Some(later);
        here.inside(|| RawRuntime::start(bench.socket(), &spec, |_| Box::new(Echo::default()))).is_err()
    });
    forge(&bench, &here, &there, &echo);
}

/// Sends one frame in the name of each of these addresses to the other host, and then one in its
/// own.
struct Forger {
    names: Vec<Ipv4Addr>,
    to: Endpoint,
}

impl Behaviour for Forger {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        if kthread.submitted().swap(0, Ordering::Acquire) == 0 {
            return Step::Nothing;
        }
        let welcome = &kthread.shared.welcome;
        let own = Endpoint { mac: MacAddr(welcome.mac), ip: welcome.ip, port: 9 };
        let mut frames: Vec<Vec<u8>> =
            self.names.iter().map(|&ip| wire::udp(Endpoint { ip, ..own }, self.to, b"forged")).collect();
        // ARP that says so.
        frames.extend(self.names.iter().map(|&ip| wire::arp_request(Endpoint { ip, ..own }, self.to)));
        frames.push(wire::udp(own, self.to, b"honest"));
        for frame in frames {
            let mut slot = kthread.egress.reserve(frame.len()).expect("room for a few frames");
            slot.write(0, &frame);
            slot.commit(0, 0, clock::now());
        }
        kthread.ring_from_core();
        Step::Busy
    }

    fn has_work(&self, kthread: &RawKthread) -> bool {
        kthread.submitted().load(Ordering::Relaxed) > 0
    }
}

/// Has a program send frames in the names of Linux, of the router and of another program: none
/// leaves, and its own do.
fn forge(bench: &Bench, here: &Namespace, there: &Namespace, other: &Role) {
    let mac = mac_of(there, "there0");
    let mut bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    let mac = MacAddr([(); 6].map(|()| bytes.next().expect("six bytes")));
    let names = vec![LINUX, HOST, other.ip, FAR];
    let server = there.inside(|| UdpSocket::bind((HOST, 9)).expect("the other host's address"));
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let forger = || Box::new(Forger { names: names.clone(), to: Endpoint { mac, ip: HOST, port: 9 } });
    let spec = RawSpec::new("intruder");
    let intruder =
        here.inside(|| RawRuntime::start(bench.socket(), &spec, |_| forger())).expect("it registers");
    intruder.submit(0);
    let mut buffer = [0; 64];
    let (len, from) = server.recv_from(&mut buffer).expect("a datagram");
    assert_eq!((&buffer[..len], from.ip()), (&b"honest"[..], intruder.ip().into()));
    let runtimes = bench.stats()["runtimes"].clone();
    let own = runtimes.as_array().expect("an array").iter().find(|runtime| runtime["name"] == "intruder");
    let spoofed = own.expect("it is registered")["counters"]["tx_spoofed"].as_u64();
    assert_eq!(spoofed, Some(2 * names.len() as u64), "{runtimes:#}");
    // The other host has learnt nothing wrong.
    ask(there, (other.ip, 7).into());
    server.send_to(b"", (LINUX, 9)).expect("it has a route");
    let mac = Some(mac_of(here, "here0"));
    until("Linux answers", || neighbour(there, LINUX.into()).is_some());
    for ip in [LINUX, other.ip] {
        assert_eq!(neighbour(there, ip.into()), mac, "{ip} {}", there.run("ip", &["neigh"]));
    }
}

#[test]
fn programs_come_and_go_while_others_are_asked() {
    let Some([here, there]) = joined() else { return };
    let bench = iokernel(&here, WORDS);
    let tcp = here.inside(|| bench.child("tcp-serve", "tcp", "latency-critical"));
    let mut stream = connect(&there, (tcp.ip, 7).into());
    let request: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    for round in 0..5 {
        let echo = here.inside(|| bench.child("echo", &format!("echo{round}"), "latency-critical"));
        assert!(exchange(&mut stream, &request) == request);
        ask(&there, (echo.ip, 7).into());
        let ip = echo.ip;
        drop(echo);
        assert!(exchange(&mut stream, &request) == request);
        // A program that has ended is answered for.
        let client = there.inside(|| UdpSocket::bind((HOST, 0)).expect("a free port"));
        client.connect((ip, 7)).expect("a route");
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        until("its port is unreachable", || {
            let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
            client.send(b"late").is_err_and(refused) || client.recv(&mut [0; 8]).is_err_and(refused)
        });
    }
}

#[test]
fn datagrams_find_programs_on_linuxs_packets_too() {
    let Some([here, there]) = joined() else { return };
    let bench = iokernel(&here, &format!("{WORDS},mode=skb"));
    let echo = here.inside(|| bench.child("echo", "echo", "latency-critical"));
    let linux = here.inside(|| UdpSocket::bind((LINUX, 7)).expect("Linux's own address"));
    answer_while(&linux, || {
        let ip6 = has_ipv6(&there).then(|| ip6_of(echo.ip).into());
        for to in [IpAddr::V4(echo.ip), LINUX.into()].into_iter().chain(ip6) {
            ask(&there, (to, 7).into());
        }
    });
    assert_eq!(bench.stats()["ports"][1]["account"]["mode"], "skb");
}

#[test]
fn connections_live_on_when_the_iokernel_is_killed_or_replaced_under_load() {
    let Some([here, there]) = joined() else { return };
    let _turn = turn();
    let socket = socket_name("shared-addresses");
    let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/busy.toml");
    let iokernel = |more: &[&str]| {
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(["iokernel", "--share-cores", "--managed-cores", &core, "--socket", &socket]);
        command.args(["--config", settings, "--xdp", &format!("here0,{WORDS}")]).args(more);
        let mut program = here.inside(|| Program::start(&mut command));
        program.error_line_with(" ready ");
        program
    };
    let mut running = iokernel(&[]);
    let wait = [("TAILWATER_IOKERNEL_WAIT_MS", "0")];
    let service = here.inside(|| Role::start(&socket, "tcp-serve", "service", &wait));
    let listener = here.inside(|| TcpListener::bind((LINUX, 7)).expect("Linux's own address"));
    std::thread::spawn(move || serve_linux(&listener));
    let mut to_linux = connect(&there, (LINUX, 7).into());
    let mut to_program = connect(&there, (service.ip, 7).into());
    let times = under_load(&mut to_program, |goes_on| {
        for _ in 0..KILLS {
            goes_on("before a kill");
            running.kill();
            // Linux's own traffic goes on without an IOKernel.
            assert_eq!(exchange(&mut to_linux, b"still there"), b"still there");
            running = iokernel(&[]);
        }
        goes_on("after the kills");
        // One that takes over goes on with program and maps, where Linux lets it.
        if maps_bound_sockets().inspect_err(|why| eprintln!("skipped: {why}")).is_ok() {
            let successor = iokernel(&["--takeover"]);
            wait_for_predecessor(&mut running, &successor);
            running = successor;
            goes_on("after a takeover");
            assert!(running.errors().contains("goes on with the device"), "{}", running.errors());
            let newcomer = here.inside(|| Role::start(&socket, "echo", "newcomer", &wait));
            ask(&there, (newcomer.ip, 7).into());
        }
    });
    println!("longest exchange over {KILLS} kills: {:?}", times.last());
}
