//! What a program gets that asks for more than is its own.

use rustix::net::SendFlags;
use rustix::process::{Signal, geteuid};
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;
use tailwater_iokernel_testing::{RawError, RawSpec, register};
use tailwater_ports::tap::TapPort;
use tailwater_shm::control::{self, ProgramClass, Register, ServerMessage};
use tailwater_shm::layout::VERSION;
use tailwater_testkit::{binary, has_two_cpus, run, text, until};
use tailwater_tests::Bench;
use tailwater_tests::attack::{Target, as_user, dial};
use tailwater_tests::tap::{HOST, in_tap_namespace};

/// Users without rights of their own.
const MALLORY: u32 = 65_533;
const BYSTANDER: u32 = 65_532;

/// What one kthread of a batch job asks for.
fn batch(name: &str) -> Register {
    RawSpec::new(name).best_effort().register
}

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
        let request = format!(
            r#"{{"register": {{"version": {VERSION}, "name": "mallory", "kthreads": 1, "guaranteed": 0,
                "class": "latency-critical", "ring-bytes": 32768, "ip": null, "mac": {:?}}}}}"#,
            mac_of_linux()
        );
        rustix::net::send(&connection, request.as_bytes(), SendFlags::NOSIGNAL).unwrap();
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

#[test]
fn another_user_registers_what_a_grant_permits_and_no_more() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let grant = format!(
        "[[grant]]\nusers = {MALLORY}\nnames = \"m-*\"\naddresses = \"10.77.1.0/24\"\nprograms = 2\nguaranteed = 1\n"
    );
    std::fs::write(&file, grant).unwrap();
    let target = Target::start_command_with(&["--config", file.to_str().unwrap()]);
    // Each is offered a place and does not take it.
    let ask = |request: &Register| match register(&target.socket, request) {
        Ok(offer) => Ok(offer),
        Err(RawError::Refused(why)) => Err(why),
        Err(other) => panic!("{other}"),
    };
    let guaranteed = |guaranteed, name| Register { guaranteed, ..batch(name) };
    let at = |host: [u8; 4]| Register { ip: Some(host.into()), ..batch("m-1") };
    let attack = || {
        for (request, words) in [
            (batch("web"), "adds it to `names` of [[grant]] 1"),
            (
                Register { class: ProgramClass::LatencyCritical, ..batch("m-1") },
                "no programs of class latency-critical",
            ),
            (at([10, 77, 2, 1]), "choose one of 10.77.1.0/24, or none"),
        ] {
            let why = ask(&request).expect_err(words);
            assert!(why.contains(words) && why.contains("tailwater.toml"), "{words:?}: {why}");
        }
        let first = ask(&at([10, 77, 1, 1])).unwrap();
        let second = ask(&guaranteed(1, "m-2")).unwrap();
        assert_eq!(first.1.ip.octets(), [10, 77, 1, 1]);
        let why = ask(&batch("m-3")).unwrap_err();
        assert!(why.contains("have 2 of at most 2"), "{why}");
        let rights = target.rights();
        assert!(rights.contains("programs 2 of 2") && rights.contains("guaranteed cores 1 of 1"), "{rights}");
        drop((first, second));
    };
    if as_user(MALLORY, attack).is_none() {
        return;
    }
    let nothing = || {
        let why = ask(&batch("job")).unwrap_err();
        assert!(why.contains(&format!("[[grant]] with users = {BYSTANDER}")), "{why}");
        assert_eq!(target.rights(), why);
    };
    as_user(BYSTANDER, nothing);
    // Root may everything, and the only core that was guaranteed is free again.
    until("the places are free", || ask(&guaranteed(1, "m-1")).is_ok());
    let mut doctor = Command::new(binary("tailwater-cli", "tailwater"));
    let doctor = text(&run(doctor.args(["doctor", "--iokernel", &target.socket]), b"").stdout);
    assert!(doctor.contains("this user: at") && doctor.contains("register any program"), "{doctor}");
}

#[test]
fn the_user_who_started_the_iokernel_by_sudo_needs_no_grant() {
    if !has_two_cpus() || !geteuid().is_root() {
        return eprintln!("skipped: needs two processors and root");
    }
    let target = Target::start_service(&[], &[("SUDO_UID", &MALLORY.to_string())]);
    let service = RawSpec::new("service").register;
    as_user(MALLORY, || drop(register(&target.socket, &service).unwrap()));
    as_user(BYSTANDER, || {
        let refusal = register(&target.socket, &service).err();
        assert!(matches!(&refusal, Some(RawError::Refused(why)) if why.contains("[[grant]]")), "{refusal:?}");
    });
}

#[test]
fn a_signal_has_the_configuration_read_again_and_a_broken_one_changes_nothing() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("");
    let mut target = Target::start_command_with(&["--config", file.to_str().unwrap()]);
    let mut reload = |expected: &str| {
        target.program.signal(Signal::HUP);
        target.program.error_line_with(expected)
    };
    let socket = target.socket.clone();
    let admitted = |kthreads| register(&socket, &Register { kthreads, ..batch("job") }).is_ok();
    assert!(admitted(2));
    write("max-kthreads = 1\nmtu = 1400\n");
    let line = reload("configuration reloaded");
    assert!(line.contains("applied=max-kthreads") && line.contains("need_restart=mtu"), "{line}");
    assert!(!admitted(2) && admitted(1));
    for (broken, words) in [
        ("max-kthreads = 5\nmtuu = 1400\n", "mtuu"),
        ("max-kthreads = 5\n[[grant]]\nusers = \"no-such-user\"\n", "no such account"),
        ("max-kthreads = 5\n[macs]\n\"10.1.2.3\" = \"52:54:00:00:00:01\"\n", "not a host address"),
    ] {
        write(broken);
        let line = reload("configuration not reloaded");
        assert!(line.contains(words), "{words}: {line}");
        assert!(!admitted(2) && admitted(1));
    }
    write(&format!("max-kthreads = 2\nmtu = 1400\n[[grant]]\nusers = {MALLORY}\n"));
    let refused = as_user(MALLORY, || admitted(1)) != Some(true);
    let line = reload("configuration reloaded");
    assert!(line.contains("applied=\"grant, max-kthreads\""), "{line}");
    assert!(refused && admitted(2));
    // Where the test cannot act as another user, that is said.
    assert!(!geteuid().is_root() || as_user(MALLORY, || admitted(1)) != Some(false));
}
