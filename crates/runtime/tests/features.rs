//! What a program has with the features it was built with. `.ci/run` builds this test with none,
//! with each alone, and with all.

use std::process::Command;
use tailwater::net::UdpSocket;
use tailwater::{RuntimeBuilder, thread};

tailwater::allocator!();

const CHILD: &str = "TAILWATER_TEST_CHILD";

fn echo_over_udp() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let service = thread::spawn(move || {
        let mut buf = [0; 100];
        let (len, from) = server.recv_from(&mut buf).unwrap();
        server.send_to(&buf[..len], from).unwrap();
    });
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(b"there and back", address).unwrap();
    let mut buf = [0; 100];
    let (len, from) = client.recv_from(&mut buf).unwrap();
    assert_eq!((&buf[..len], from), (&b"there and back"[..], address));
    service.join().unwrap();
}

#[cfg(feature = "tcp")]
fn echo_over_tcp() {
    use std::io::{Read, Write};
    use tailwater::net::{TcpListener, TcpStream};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let service = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"there and back").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "there and back");
    service.join().unwrap();
}

#[test]
fn an_echo_service_works() {
    let run = RuntimeBuilder::new().kthreads(2).run(|| {
        echo_over_udp();
        #[cfg(feature = "tcp")]
        echo_over_tcp();
        assert!(tailwater::debug::counters().switches > 0);
    });
    run.unwrap();
}

/// Starts a runtime with `variable` set to `value`, in a process of its own; returns what that
/// printed.
fn start_with(variable: &str, value: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["a_variable_of_a_feature_that_is_left_out_is_refused", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env(variable, value);
    String::from_utf8(tailwater_testkit::run(&mut command, b"").stderr).unwrap()
}

#[test]
fn a_variable_of_a_feature_that_is_left_out_is_refused() {
    if std::env::var_os(CHILD).is_some() {
        match RuntimeBuilder::new().kthreads(1).run(|| ()) {
            Ok(()) => eprintln!("started"),
            Err(error) => eprintln!("{error}"),
        }
        return;
    }
    for (variable, value, feature, is_in, accepted) in [
        (
            "TAILWATER_CONFIG",
            "/nonexistent",
            "config-file",
            cfg!(feature = "config-file"),
            "cannot read /nonexistent",
        ),
        ("TAILWATER_DUMP_SIGNAL", "usr1", "debug", cfg!(feature = "debug"), "started"),
        ("TAILWATER_TCP_CONNECTIONS", "10", "tcp", cfg!(feature = "tcp"), "started"),
    ] {
        let said = start_with(variable, value);
        let refused =
            format!("{variable} is set, and this program was built without the feature `{feature}`");
        assert!(said.contains(if is_in { accepted } else { &refused }), "{said}");
    }
}
