//! Servers for tests: the answers of an honest server, and one on the loopback device that is
//! honest or not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use tailwater_workload::content;
use tailwater_workload::keyvalue::{KeyValues, Workload};
use tailwater_workload::rocks::{HEADER_LEN, Header, Operation, ScanSum, Status};
use tailwater_workload::spin;

/// Names to ask for.
pub(crate) const NAMES: &str = "# a list\nwww.example.com 192.0.2.1\nany.example\n\ngone.example nxdomain\n";

/// One of each that can be had over a medium.
pub(crate) fn protocols(medium: Medium) -> Vec<Arc<dyn Protocol>> {
    let mut notations =
        vec!["spin", "echo:40", "memcached:usr,keys=50", "memcached:etc,keys=50,get=0.5", "dns:list"];
    notations.push("rocks:keys=100,scan=0.3,put=0.3,count=20");
    if medium == Medium::Stream {
        notations.push("http:/,/page");
    }
    let make = |notation: &&str| {
        from_name(notation, medium, &"exp:10us".parse().unwrap(), "host", |_| Ok(NAMES.to_owned())).unwrap()
    };
    notations.iter().map(make).collect()
}

/// Returns what an honest server answers to the bytes of one request.
pub(crate) fn answer(name: &str, medium: Medium, request: &[u8]) -> Vec<u8> {
    match name {
        "echo" => request.to_vec(),
        "spin" => {
            let request = spin::Request::decode(request).unwrap();
            spin::Reply { request, served_ns: 1 }.encode().to_vec()
        }
        "rocks" => rocks_answer(request),
        "dns" => dns_answer(medium, request),
        "http" => {
            let path = std::str::from_utf8(request).unwrap().split(' ').nth(1).unwrap();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX: y\r\n\r\n{path}", path.len()).into_bytes()
        }
        "memcached" => {
            let head = if medium == Medium::Datagram { 8 } else { 0 };
            let mut out = request[..head].to_vec();
            let text = &request[head..];
            if text.starts_with(b"set ") {
                out.extend_from_slice(b"STORED\r\n");
            } else {
                out.extend_from_slice(&memcached_value(text));
            }
            out
        }
        _ => unreachable!("{name}"),
    }
}

/// Returns the value that a client of either workload stored; finds the key by its text.
fn memcached_value(get: &[u8]) -> Vec<u8> {
    let asked = get.strip_prefix(b"get ").unwrap().strip_suffix(b"\r\n").unwrap();
    let mut out = [b"VALUE ", asked].concat();
    for workload in [Workload::Usr, Workload::Etc] {
        let store = KeyValues::new(workload, 50, memcached::MAX_UDP_VALUE).unwrap();
        for key in 0..store.keys() {
            let mut text = Vec::new();
            store.write_key(key, &mut text);
            if text == asked {
                out.extend_from_slice(format!(" 0 {}\r\n", store.value_len(key)).as_bytes());
                store.write_value(key, &mut out);
                out.extend_from_slice(b"\r\nEND\r\n");
                return out;
            }
        }
    }
    panic!("a key of no store");
}

fn rocks_answer(request: &[u8]) -> Vec<u8> {
    let asked = Header::decode(request).unwrap();
    let mut body = Vec::new();
    let count = match asked.operation {
        Operation::Get => {
            content::fill(asked.key, 64, &mut body);
            1
        }
        Operation::Put => 1,
        Operation::Scan => {
            let count = asked.count.min(100 - asked.key as u32);
            body.extend(ScanSum::expected(asked.key, count, 64).encode());
            count
        }
    };
    let status = Some(Status::Done);
    let mut out = Header { status, count, body_len: body.len() as u32, ..asked }.encode().to_vec();
    out.extend(body);
    out
}

pub(crate) fn dns_answer(medium: Medium, request: &[u8]) -> Vec<u8> {
    let skip = if medium == Medium::Stream { 2 } else { 0 };
    let mut message = request[skip..].to_vec();
    message[2] = 0x84;
    if message.windows(4).any(|window| window == b"gone") {
        message[3] = 3;
    } else {
        message[7] = 2;
        for last in [9, 1] {
            message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, last]);
        }
    }
    let len = (message.len() as u16).to_be_bytes();
    if medium == Medium::Stream { [&len[..], &message].concat() } else { message }
}

/// Returns the length of the first request in `bytes`, if it is all there.
pub(crate) fn request_len(name: &str, bytes: &[u8]) -> Option<usize> {
    let line = || bytes.windows(2).position(|window| window == b"\r\n").map(|at| at + 2);
    let len = match name {
        "echo" => 40,
        "spin" => spin::REQUEST_LEN,
        "rocks" => HEADER_LEN + Header::decode(bytes).ok()?.body_len as usize,
        "dns" => 2 + usize::from(u16::from_be_bytes(*bytes.first_chunk()?)),
        "http" => bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4,
        "memcached" if bytes.starts_with(b"set ") => {
            let head = std::str::from_utf8(&bytes[..line()?]).unwrap();
            line()? + head.trim().rsplit(' ').next()?.parse::<usize>().unwrap() + 2
        }
        "memcached" => line()?,
        _ => unreachable!("{name}"),
    };
    (bytes.len() >= len).then_some(len)
}

/// The fate of a request at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answer,
    /// It is answered with a changed bit.
    Lie,
    /// It is not answered.
    Drop,
    /// Ends the connection.
    Close,
}

/// A server on the loopback device, over UDP and TCP on the same port. `fate` is given the number
/// of each request, from 0.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(name: &'static str, fate: fn(u64) -> Fate) -> Self {
        // A port that is free for TCP is seldom taken for UDP; another is tried then.
        let (listener, socket) = (0..100)
            .find_map(|_| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let socket = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
                Some((listener, socket))
            })
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let datagrams = {
            let (stop, requests) = (Arc::clone(&stop), Arc::clone(&requests));
            std::thread::spawn(move || serve_datagrams(name, &socket, fate, &requests, &stop))
        };
        let accepted = {
            let (stop, requests) = (Arc::clone(&stop), Arc::clone(&requests));
            std::thread::spawn(move || {
                let mut connections = Vec::new();
                while let Ok((stream, _)) = listener.accept() {
                    if stop.load(Relaxed) {
                        break;
                    }
                    let (stop, requests) = (Arc::clone(&stop), Arc::clone(&requests));
                    connections.push(std::thread::spawn(move || {
                        // Ends with the connection.
                        let _ = serve_stream(name, stream, fate, &requests, &stop);
                    }));
                }
                connections.into_iter().for_each(|thread| thread.join().unwrap());
            })
        };
        Self { address, requests, stop, threads: vec![datagrams, accepted] }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the answer with one bit changed that matters, and that leaves its end where it was.
pub(crate) fn lie(name: &str, medium: Medium, mut answer: Vec<u8>) -> Vec<u8> {
    let last = answer.len() - 1;
    let at = match name {
        // The work, and the key.
        "spin" | "rocks" => 16,
        // The name in the question.
        "dns" if medium == Medium::Stream => 15,
        "dns" => 13,
        // Before the end of the line.
        "memcached" => last - 2,
        _ => last,
    };
    answer[at] ^= 1;
    answer
}

fn serve_datagrams(
    name: &str,
    socket: &UdpSocket,
    fate: fn(u64) -> Fate,
    requests: &AtomicU64,
    stop: &AtomicBool,
) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut bytes = vec![0; 1 << 16];
    while !stop.load(Relaxed) {
        let Ok((len, client)) = socket.recv_from(&mut bytes) else { continue };
        let answer = answer(name, Medium::Datagram, &bytes[..len]);
        let _ = match fate(requests.fetch_add(1, Relaxed)) {
            Fate::Answer => socket.send_to(&answer, client),
            Fate::Lie => socket.send_to(&lie(name, Medium::Datagram, answer), client),
            Fate::Drop | Fate::Close => Ok(0),
        };
    }
}

fn serve_stream(
    name: &str,
    mut stream: TcpStream,
    fate: fn(u64) -> Fate,
    requests: &AtomicU64,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (mut input, mut piece) = (Vec::new(), [0; 4096]);
    while !stop.load(Relaxed) {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(len) => input.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        while let Some(len) = request_len(name, &input) {
            let request: Vec<u8> = input.drain(..len).collect();
            let answer = answer(name, Medium::Stream, &request);
            match fate(requests.fetch_add(1, Relaxed)) {
                Fate::Answer => stream.write_all(&answer)?,
                Fate::Lie => stream.write_all(&lie(name, Medium::Stream, answer))?,
                Fate::Drop => {}
                Fate::Close => return Ok(()),
            }
        }
    }
    Ok(())
}
