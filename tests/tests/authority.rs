//! What a program gets that asks for more than is its own.

use rustix::net::SendFlags;
use tailwater_iokernel::port::tap::TapPort;
use tailwater_shm::control::{self, ServerMessage};
use tailwater_shm::layout::VERSION;
use tailwater_testkit::{run, text, until};
use tailwater_tests::Bench;
use tailwater_tests::attack::dial;
use tailwater_tests::tap::{HOST, in_tap_namespace};

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// Returns the MAC address that Linux has on the TAP device.
fn mac_of_linux() -> [u8; 6] {
    let mut link = Command::new("ip");
    let shown = text(&run(link.args(["-o", "link", "show", "dev", "tw-test0"]), b"").stdout);
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    let mac = words.next().unwrap_or_else(|| panic!("no MAC address: {shown}"));
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

#[test]
fn no_program_gets_the_mac_address_of_linux_behind_the_tap_device() {
    in_tap_namespace(|| {
        let mut socket = String::new();
        let tap = Box::new(TapPort::new("tw-test0", HOST));
        let bench = Bench::start(|config| socket.clone_from(&config.socket), vec![tap]);
        let connection = dial(&socket);
        let wish = format!(
            r#"{{"register": {{"version": {VERSION}, "name": "mallory", "kthreads": 1, "guaranteed": 0,
                "class": "latency-critical", "ring-bytes": 32768, "ip": null, "mac": {:?}}}}}"#,
            mac_of_linux()
        );
        rustix::net::send(&connection, wish.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let (answer, _) = control::receive::<ServerMessage>(&connection).unwrap();
        let ServerMessage::Refused { why } = answer else { panic!("{answer:?}") };
        assert!(why.contains("unknown field `mac`"), "{why}");
        let service = bench.child("echo", "service", "latency-critical");
        let client = UdpSocket::bind((HOST, 0)).expect("the host's side is configured");
        client.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        client.connect((service.ip, 7)).expect("a route");
        until("Linux gets its answers", || {
            client.send(b"mine").and_then(|_| client.recv(&mut [0; 8])).is_ok_and(|len| len == 4)
        });
    });
}
