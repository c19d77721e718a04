//! The `rocks` program: killed or ended and then restarted, it still has the data it should, on
//! Tailwater and on kernel sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::common::Rocks;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tailwater_testkit::{PATIENCE, memory_folder, until};
use tailwater_workload::rocks::{HEADER_LEN, Header, Operation, ScanSum, Status};

/// A running program on kernel sockets; killed when dropped.
struct Server {
    rocks: Rocks,
    address: SocketAddr,
}

impl Server {
    fn start(path: &Path, options: &[&str]) -> Self {
        let words = ["--linux", "--listen", "127.0.0.1:0", "--threads", "2", "--path"];
        let rocks = Rocks::start(|command| command.args(words).arg(path).args(options));
        Self { address: rocks.address.parse().unwrap(), rocks }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

fn request(operation: Operation, key: u64, count: u32, body: &[u8]) -> Vec<u8> {
    let header = Header { body_len: body.len() as u32, ..Header::request(operation, key + 9, key, count) };
    [&header.encode()[..], body].concat()
}

fn ask(stream: &mut TcpStream, request: &[u8]) -> (Header, Vec<u8>) {
    stream.write_all(request).unwrap();
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).unwrap();
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(header.id, header.key + 9);
    (header, body)
}

fn put(stream: &mut TcpStream, key: u64, value: &[u8]) {
    assert_eq!(ask(stream, &request(Operation::Put, key, 0, value)).0.status, Some(Status::Done));
}

#[test]
fn what_was_put_is_there_after_an_end_and_with_a_log_after_a_kill() {
    let folder = memory_folder();
    let path = folder.path().join("db");
    let server = Server::start(&path, &["--load", "1000", "--value", "32"]);
    let mut stream = server.connect();
    put(&mut stream, 5_000, b"ended");
    assert_eq!(ask(&mut stream, &request(Operation::Scan, 0, 1_000, b"")).0.count, 1_000);
    let last = server.rocks.end();
    assert_eq!(last, "2 served, 0 refused, 0 failed, 0 malformed, 0 unsent, 0 dropped\n");

    let server = Server::start(&path, &[]);
    put(&mut server.connect(), 5_001, b"ended unseen");
    server.rocks.end_unseen();

    let server = Server::start(&path, &["--wal"]);
    put(&mut server.connect(), 6_000, b"killed");
    drop(server);

    let server = Server::start(&path, &[]);
    let mut stream = server.connect();
    assert_eq!(ask(&mut stream, &request(Operation::Get, 5_000, 0, b"")).1, b"ended");
    assert_eq!(ask(&mut stream, &request(Operation::Get, 5_001, 0, b"")).1, b"ended unseen");
    assert_eq!(ask(&mut stream, &request(Operation::Get, 6_000, 0, b"")).1, b"killed");
    let (header, body) = ask(&mut stream, &request(Operation::Scan, 10, 100, b""));
    assert_eq!((header.count, ScanSum::decode(&body)), (100, Some(ScanSum::expected(10, 100, 32))));
}

#[test]
fn datagrams_and_bad_connections_are_handled_on_kernel_sockets() {
    let folder = memory_folder();
    let server = Server::start(&folder.path().join("db"), &["--max-scan", "10", "--max-value", "10"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 2_000];
    let mut status = |request: Vec<u8>| {
        socket.send(b"not a request").unwrap();
        socket.send(&request).unwrap();
        let len = socket.recv(&mut bytes).unwrap();
        Header::decode(&bytes[..len]).unwrap().status.unwrap()
    };
    assert_eq!(status(request(Operation::Put, 1, 0, b"one")), Status::Done);
    assert_eq!(status(request(Operation::Get, 1, 0, b"")), Status::Done);
    assert_eq!(status(request(Operation::Get, 2, 0, b"")), Status::NotFound);
    assert_eq!(status(request(Operation::Scan, 0, 11, b"")), Status::Refused);
    assert_eq!(status(request(Operation::Put, 2, 0, b"longer than ten")), Status::Refused);
    let mut stream = server.connect();
    put(&mut stream, 3, b"three");
    stream.write_all(&[0; HEADER_LEN]).unwrap();
    assert_eq!(stream.read(&mut bytes).unwrap_or(0), 0, "the connection is closed");
    let idle = server.connect();
    let last = server.rocks.end();
    drop(idle);
    assert_eq!(last, "4 served, 2 refused, 0 failed, 6 malformed, 0 unsent, 0 dropped\n");
}

/// Ticks of 10 ms that a process has run (proc_pid_stat(5): utime and stime).
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_descriptors_the_server_waits_and_accepts_again_when_it_has_some() {
    let folder = memory_folder();
    let server = Server::start(&folder.path().join("db"), &[]);
    let id = server.rocks.program.pid();
    put(&mut server.connect(), 1, b"one");
    let highest = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str()?.parse::<u64>().ok()
    });
    let most = highest.max().unwrap() + 3;
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    prlimit(Pid::from_raw(id as i32), Resource::Nofile, limit).unwrap();
    // The kernel accepts them all, the server cannot.
    let mut connections: Vec<_> = (0..most).map(|_| server.connect()).collect();
    put(&mut connections[0], 2, b"two");
    // The database's threads may still have work, and a second of a busy machine may last longer.
    until("a second in which it runs for less than 20 of 100 ticks", || {
        let before = ticks(id);
        std::thread::sleep(Duration::from_secs(1));
        ticks(id) - before < 20
    });
    drop(connections);
    put(&mut server.connect(), 3, b"three");
}

#[test]
fn the_program_on_tailwater_ends_on_a_signal_and_keeps_what_was_loaded() {
    let folder = memory_folder();
    let path = folder.path().join("db");
    for options in [&["--load", "1000"][..], &["--dispatch", "c-fcfs"]] {
        let rocks = Rocks::start(|command| {
            let command = command.args(["--listen", "127.0.0.1:0", "--path"]).arg(&path).args(options);
            command.env("TAILWATER_KTHREADS", "1")
        });
        let rest = rocks.end();
        let lines: Vec<_> = rest.lines().collect();
        assert_eq!(lines[0], "0 served, 0 refused, 0 failed, 0 malformed, 0 unsent, 0 dropped");
        for (line, class) in lines[1..].iter().zip(["GET", "PUT", "SCAN"]) {
            assert!(line.starts_with(&format!("class {class}: 0 accepted, ")), "{line}");
        }
        assert_eq!(lines.len(), 4, "{rest}");
    }
    let store = tailwater_rocks::Store::open(&tailwater_rocks::store::Config::new(&path)).unwrap();
    assert_eq!(store.scan(0, 5_000, || ()).unwrap().sum, ScanSum::expected(0, 1_000, 64));
}
