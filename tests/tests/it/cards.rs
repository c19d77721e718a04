//! What an administrator does to the interface of an AF_XDP port that Linux uses, too, while both
//! serve: one end of a veth pair; another host has the other end.
//!
//! With real drivers (`tests/machine`, `.ci/full machine`) the two ends are cards, and the same
//! holds. Needs what AF_XDP needs; without it the tests are skipped with a message.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use tailwater_ports::card::{Card, keep_tags};
use tailwater_ports::options::PortOptions;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::until;
use tailwater_tests::{Bench, Role};

use crate::shared_addresses::{
    LINUX, WORDS, answer_while, ask, connect, exchange, iokernel, joined_by, mac_of, neighbour, serve_linux,
    under_load,
};
use crate::two_machines::receive_queues;

/// Queues of the interface, where it is a veth pair.
const QUEUES: usize = 3;
/// Flows of each kind: with several queues, cards spread them.
const FLOWS: usize = 32;

/// A service and Linux behind one MAC address, with a connection to each.
struct Scene {
    to_linux: TcpStream,
    to_service: TcpStream,
    // The programs end before their IOKernel, and that before the namespaces.
    service: Role,
    echo: Role,
    bench: Bench,
    here: Namespace,
    there: Namespace,
}

impl Scene {
    /// Returns `None`, with the reason printed, where it cannot be made.
    fn new() -> Option<Self> {
        let [here, there] = joined_by(QUEUES)?;
        let bench = iokernel(&here, WORDS);
        let echo = here.inside(|| bench.child("echo", "echo", "latency-critical"));
        let service = here.inside(|| bench.child("tcp-serve", "service", "latency-critical"));
        let listener = here.inside(|| TcpListener::bind((LINUX, 7)).expect("Linux's own address"));
        std::thread::spawn(move || serve_linux(&listener));
        let to_linux = connect(&there, (LINUX, 7).into());
        let to_service = connect(&there, (service.ip, 7).into());
        Some(Self { to_linux, to_service, service, echo, bench, here, there })
    }

    /// Checks that both serve the connections that they have, and datagrams.
    fn check(&mut self) {
        let request: Vec<u8> = (0..50_000u32).map(|i| (i * 7) as u8).collect();
        for stream in [&mut self.to_linux, &mut self.to_service] {
            assert!(exchange(stream, &request) == request, "other bytes came back than were sent");
        }
        ask(&self.there, (self.echo.ip, 7).into());
    }

    fn account(&self) -> serde_json::Value {
        self.bench.stats()["ports"][1]["account"].clone()
    }
}

#[test]
fn many_flows_over_a_port_of_several_queues_reach_programs_and_linux() {
    let Some(mut scene) = Scene::new() else { return };
    scene.check();
    let queues = receive_queues(&scene.here, "here0");
    assert_eq!(scene.account()["queues"].as_array().map(Vec::len), Some(queues));
    let linux = scene.here.inside(|| UdpSocket::bind((LINUX, 7)).expect("Linux's own address"));
    answer_while(&linux, || {
        // Each from a port of its own.
        for _ in 0..FLOWS {
            ask(&scene.there, (scene.echo.ip, 7).into());
            ask(&scene.there, (LINUX, 7).into());
        }
    });
    let mut streams: Vec<TcpStream> =
        (0..FLOWS).map(|_| connect(&scene.there, (scene.service.ip, 7).into())).collect();
    for stream in &mut streams {
        assert_eq!(exchange(stream, b"who is there"), b"who is there");
    }
}

#[test]
fn both_serve_on_when_the_mtu_changes_and_the_interface_goes_down_and_up() {
    let Some(mut scene) = Scene::new() else { return };
    scene.check();
    for words in [&["mtu", "2000"][..], &["mtu", "1500"], &["down"], &["up"]] {
        scene.here.ip(&[&["link", "set", "here0"], words].concat());
        if words != ["down"] {
            scene.check();
        }
    }
    assert_eq!(scene.account()["absences"], 0, "the port has let go of its interface");
}

#[test]
fn both_serve_on_behind_another_mac_address() {
    let Some(mut scene) = Scene::new() else { return };
    scene.check();
    let before = mac_of(&scene.here, "here0");
    scene.here.ip(&["link", "set", "here0", "address", "02:00:00:00:00:88"]);
    let ips = [IpAddr::V4(LINUX), scene.echo.ip.into(), scene.service.ip.into()];
    until("the other host finds all at the new address", || {
        // It asks anew, as it would after a time.
        scene.there.ip(&["neigh", "flush", "dev", "there0"]);
        scene.check();
        ips.iter().all(|&ip| neighbour(&scene.there, ip).as_deref() == Some("02:00:00:00:00:88"))
    });
    scene.here.ip(&["link", "set", "here0", "address", &before]);
    scene.there.ip(&["neigh", "flush", "dev", "there0"]);
    scene.check();
}

#[test]
fn programs_serve_on_under_load_while_linux_has_another_address() {
    let Some(mut scene) = Scene::new() else { return };
    scene.check();
    let Scene { to_service, here, there, echo, .. } = &mut scene;
    let other = Ipv4Addr::new(10, 77, 0, 3);
    let replace = |one: Ipv4Addr, by: Ipv4Addr| {
        for (what, ip) in [("del", one), ("add", by)] {
            here.ip(&["addr", what, &format!("{ip}/16"), "dev", "here0"]);
        }
    };
    under_load(to_service, |goes_on| {
        goes_on("before");
        replace(LINUX, other);
        goes_on("while Linux has another address");
        ask(there, (echo.ip, 7).into());
        let linux = here.inside(|| UdpSocket::bind((other, 7)).expect("Linux's own address"));
        answer_while(&linux, || ask(there, (other, 7).into()));
        replace(other, LINUX);
        goes_on("afterwards");
    });
    // So does Linux's connection, which was silent meanwhile.
    scene.check();
}

#[test]
fn a_vlan_of_linux_goes_on_and_is_named_where_the_card_hides_its_tags_from_the_program() {
    let Some(mut scene) = Scene::new() else { return };
    for (namespace, card, ip) in
        [(&scene.here, "here0", "10.78.0.1/24"), (&scene.there, "there0", "10.78.0.9/24")]
    {
        let words = ["link", "add", "link", card, "name", "vlan5", "type", "vlan", "id", "5"];
        let made = namespace.inside(|| Command::new("ip").args(words).output()).expect("`ip` can be started");
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return eprintln!("skipped: no VLAN can be made (module 8021q): {why}");
        }
        namespace.ip(&["addr", "add", ip, "dev", "vlan5"]);
        namespace.ip(&["link", "set", "vlan5", "up"]);
    }
    let tagged: Ipv4Addr = "10.78.0.1".parse().expect("an address");
    let linux = scene.here.inside(|| UdpSocket::bind((tagged, 7)).expect("Linux's own address"));
    answer_while(&linux, || ask(&scene.there, (tagged, 7).into()));
    scene.check();
    let options = PortOptions { xdp: Some(format!("here0,{WORDS}")), ..PortOptions::default() };
    let card = scene.here.inside(|| Card::read("here0")).expect("it is there");
    let found = scene
        .here
        .inside(|| options.examine(1500, (16, "fd00:7477::".parse().expect("a network")), true))
        .expect("the interface can be used");
    let remedy = keep_tags("here0", &card.driver);
    assert_eq!(found.contains(&remedy), card.strips_tags == Some(true), "{found}");
}
