//! An IOKernel takes over the AF_XDP sockets of another one: nothing changes on the interface, and
//! no frame is lost that arrives meanwhile.
//!
//! The interface is one end of a veth pair; Linux has the other end in a namespace of its own.
//! Needs CAP_SYS_ADMIN and what AF_XDP needs; without them a message says so and the tests are
//! skipped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use tailwater_ports::options::PortOptions;
use tailwater_ports::{Context, Delivery, Inject, PORT_BUDGET, Port};
use tailwater_shm::{Clock, clock};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{
    PATIENCE, Program, binary, cpu_numbers, eventually, has_two_cpus, socket_name, until,
};
use tailwater_tests::{Role, turn, wait_for_predecessor};
use tailwater_wire::MacAddr;

use crate::two_machines::{two_namespaces, xdp_works};

const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SERVICE_MAC: &str = "02:74:0a:4d:00:02";
/// Datagrams that are under way at a time, fewer than any queue on the way holds.
const BATCH: u32 = 100;
/// Batches until each ring, of 2048 entries, has begun anew.
const BATCHES: u32 = 25;
/// How often an IOKernel takes over.
const TIMES: u32 = 2;

/// Returns the namespaces of the interface `here0` and of Linux; `None`, with the reason printed,
/// if AF_XDP or namespaces cannot be used.
fn joined() -> Option<[Namespace; 2]> {
    maps_bound_sockets().inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
    let [here, there] = if xdp_works() { two_namespaces(1)? } else { return None };
    there.ip(&["addr", "add", "10.77.0.1/16", "dev", "there0"]);
    Some([here, there])
}

/// Returns whether Linux lets another process map the rings of a bound socket: since 6.4.
pub(crate) fn maps_bound_sockets() -> Result<(), String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let why = || format!("no takeover of AF_XDP sockets before Linux 6.4 (this is {})", release.trim());
    (version >= (6, 4)).then_some(()).ok_or_else(why)
}

/// Returns what `ip` shows of the program on the interface.
fn attached(here: &Namespace) -> String {
    let shown = here.run("ip", &["-d", "link", "show", "here0"]);
    let program = shown.lines().find(|line| line.contains("prog/xdp"));
    program.unwrap_or_else(|| panic!("no program: {shown}")).trim().to_owned()
}

/// Stands in for the switch: keeps the UDP frames for the service.
#[derive(Default)]
struct Seen(Vec<Vec<u8>>);

impl Inject for Seen {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        if frame.len() >= 46 && frame[12..14] == [8, 0] && frame[23] == 17 {
            self.0.push(frame.to_vec());
        }
        Delivery::Delivered
    }

    fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }
}

/// Returns a port, and starts it with the devices of another one.
fn start(words: &str, devices: Option<Vec<OwnedFd>>) -> Result<Box<dyn Port>, String> {
    let options = PortOptions { xdp: Some(format!("here0,{words}")), ..PortOptions::default() };
    let mut port = options.build().expect("the words are right").remove(0);
    if let Some(devices) = devices {
        port.inherit(devices).expect("it is checked at the start");
    }
    let context = Context { clock: Clock::from_hz(1_000_000_000), mtu: 1500, prefix_len: 16, network6: None };
    port.start(&context).map(|()| port).map_err(|e| e.to_string())
}

fn devices(port: &dyn Port) -> Option<Vec<OwnedFd>> {
    let copy = |device: std::os::fd::BorrowedFd<'_>| device.try_clone_to_owned().expect("a descriptor");
    Some(port.devices().into_iter().map(copy).collect())
}

fn send(linux: &UdpSocket, numbers: std::ops::Range<u32>) {
    for number in numbers {
        linux.send_to(&number.to_be_bytes(), (SERVICE, 7)).expect("Linux takes a datagram");
    }
}

/// Polls the port until it has seen these datagrams, in any order (Linux may pass them on from
/// several cores), and sends each back.
fn answer(port: &mut dyn Port, linux: &UdpSocket, numbers: std::ops::Range<u32>) {
    let mut seen = Seen::default();
    until("the datagrams arrive", || {
        port.poll(clock::now(), PORT_BUDGET, &mut seen).expect("the port works");
        seen.0.len() >= numbers.len()
    });
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    seen.0.sort_by_key(|frame| number(&frame[42..46]));
    for (frame, wanted) in seen.0.iter_mut().zip(numbers.clone()) {
        assert_eq!(number(&frame[42..46]), wanted);
        for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            (0..len).for_each(|i| frame.swap(a + i, b + i));
        }
        // Until it is known which send chunks the kernel has, frames are dropped.
        until("the frame is taken", || {
            let taken = port.transmit(clock::now(), frame);
            port.flush();
            taken
        });
    }
    let mut answers: Vec<u32> = numbers
        .clone()
        .map(|_| {
            let mut datagram = [0; 4];
            linux.recv(&mut datagram).expect("an answer");
            u32::from_be_bytes(datagram)
        })
        .collect();
    answers.sort_unstable();
    assert!(answers.iter().copied().eq(numbers), "{answers:?}");
}

fn ports_go_on(mode: &str) {
    let Some([here, there]) = joined() else { return };
    there.ip(&["neigh", "add", &SERVICE.to_string(), "lladdr", SERVICE_MAC, "dev", "there0"]);
    let linux = there.inside(|| UdpSocket::bind((LINUX, 0)).expect("an address of its own"));
    linux.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let words = format!("mode={mode},fill-checksums");
    let start = |words: &str, devices| here.inside(|| start(words, devices));
    let mut port = start(&words, None).expect("it starts");
    let program = attached(&here);
    let mut next = 0;
    let mut batch = || {
        next += BATCH;
        next - BATCH..next
    };
    for _ in 0..TIMES {
        for _ in 0..BATCHES {
            let numbers = batch();
            send(&linux, numbers.clone());
            answer(&mut *port, &linux, numbers);
        }
        // A takeover that fails, and one that comes to nothing, leave the port as it was.
        let why = start(&format!("{words},share,gateway=10.77.0.1"), devices(&*port)).err();
        assert!(why.as_ref().is_some_and(|why| why.contains("another share")), "{why:?}");
        drop(start(&words, devices(&*port)).expect("it starts beside the other one"));
        let numbers = batch();
        send(&linux, numbers.clone());
        answer(&mut *port, &linux, numbers);
        let successor = start(&words, devices(&*port)).expect("it starts beside the other one");
        // Half of them while the other one could still poll, half when none does.
        let numbers = batch();
        let middle = numbers.start + BATCH / 2;
        send(&linux, numbers.start..middle);
        port = successor;
        send(&linux, middle..numbers.end);
        answer(&mut *port, &linux, numbers);
        assert_eq!(attached(&here), program, "the program was attached anew");
    }
    let account = port.account().expect("it has one").to_json();
    assert_eq!((&account["mode"], &account["invalid_descriptors"]), (&mode.into(), &0.into()), "{account:#}");
}

#[test]
fn no_frame_is_lost_between_two_ports_in_the_driver() {
    ports_go_on("native");
}

#[test]
fn no_frame_is_lost_between_two_ports_on_linuxs_packets() {
    ports_go_on("skb");
}

#[test]
fn a_connection_of_linux_outlives_the_iokernel_on_its_interface() {
    if !has_two_cpus() {
        return;
    }
    let Some([here, there]) = joined() else { return };
    let _turn = turn();
    let socket = socket_name("takeover-xdp");
    let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/busy.toml");
    let iokernel = |more: &[&str]| {
        let mut command = Command::new(binary("tailwater-cli", "tailwater"));
        command.args(["iokernel", "--share-cores", "--managed-cores", &core, "--socket", &socket]);
        command.args(["--config", settings, "--xdp", "here0,gateway=10.77.0.1,fill-checksums"]).args(more);
        let mut program = here.inside(|| Program::start(&mut command));
        program.error_line_with(" ready ");
        program
    };
    let mut running = iokernel(&[]);
    let wait = [("TAILWATER_IOKERNEL_WAIT_MS", "0")];
    // Abstract sockets are of a network namespace.
    let service =
        here.inside(|| Role::start_heard(&socket, "tcp-serve", "service", "latency-critical", &wait));
    let mut stream = there.inside(|| eventually("a connection", || TcpStream::connect((service.ip, 7)).ok()));
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let program = attached(&here);
    for time in 1..=TIMES {
        let request: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + time) as u8).collect();
        let sender = std::thread::spawn({
            let (request, mut writer) = (request.clone(), stream.try_clone().expect("a descriptor"));
            move || writer.write_all(&request)
        });
        let successor = iokernel(&["--takeover"]);
        wait_for_predecessor(&mut running, &successor);
        running = successor;
        let mut answer = vec![0; request.len()];
        stream.read_exact(&mut answer).expect("an answer");
        assert!(answer == request, "other bytes came back than were sent");
        sender.join().expect("it does not panic").expect("the connection lives");
        assert_eq!(attached(&here), program, "the program was attached anew");
    }
    assert!(running.errors().contains("goes on with the device"), "{}", running.errors());
    drop(stream);
    // The sockets of the interface made anew are handed over, not those of the one before.
    here.ip(&["link", "del", "here0"]);
    here.join("here0", &there, "there0", 1);
    there.ip(&["addr", "add", "10.77.0.1/16", "dev", "there0"]);
    let connects =
        || there.inside(|| eventually("a connection", || TcpStream::connect((service.ip, 7)).ok()));
    connects();
    let program = attached(&here);
    let successor = iokernel(&["--takeover"]);
    wait_for_predecessor(&mut running, &successor);
    connects();
    assert_eq!(attached(&here), program, "the program was attached anew");
}
