//! The same bytes to a real memcached and to the store, and the same bytes back.
//!
//! Skipped, with a message, where memcached is not installed. Conversations end with a command
//! whose answer is known, so no wait is for time to pass; answers that depend on the second are not
//! compared. Random conversations have fixed seeds, and print the one that fails.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;

use tailwater_kv::clock::Clock;
use tailwater_kv::server::kernel;
use tailwater_kv::service::{Service, Settings, VERSION};
use tailwater_kv::store::{Config, Store};
use tailwater_testkit::{PATIENCE, Program, is_installed, loopback_address, until};

/// Ends a conversation; nothing else is answered like it.
const END: &[u8] = b"mn\r\n";
const ENDED: &[u8] = b"MN\r\n";

struct Memcached {
    _program: Program,
    address: SocketAddr,
}

/// Starts memcached with the same address for TCP and UDP, which no other program uses; none if it
/// is not installed.
fn memcached() -> Option<Memcached> {
    if !is_installed("memcached", "memcached") {
        return None;
    }
    let address = loopback_address();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new("memcached");
    // -u matters to root only.
    command.args(["-u", "nobody", "-l", &ip, "-p", &port, "-U", &port]);
    let mut program = Program::start(&mut command);
    until("memcached listens", || {
        assert!(program.is_running(), "memcached ended: {}", program.errors());
        TcpStream::connect(address).is_ok()
    });
    Some(Memcached { _program: program, address })
}

/// Starts the store with the same address for TCP and UDP, which no other program uses.
fn ours() -> SocketAddr {
    let config = Config { memory: 64 << 20, max_item: 1 << 20, evict: true, secret: [1, 2] };
    let address = loopback_address();
    let settings = Settings {
        tcp_port: address.port(),
        udp_port: address.port(),
        listen: address.ip().to_string(),
        ..Settings::default()
    };
    let service = Service::new(Store::new(config).unwrap(), settings);
    let listening = kernel::start(&service, Clock::start()).unwrap();
    assert_eq!((listening.tcp, listening.udp), (address, Some(address)));
    address
}

/// Returns what comes back for `request`, up to the answer `ended` or the end of the connection.
fn converse(to: SocketAddr, request: &[u8], ended: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let request = request.to_vec();
    // Both directions at once: answers may be larger than the buffers between.
    let sender = std::thread::spawn(move || drop(writer.write_all(&request)));
    let (mut answer, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    while !answer.ends_with(ended) {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(&bytes[..len]),
            // What was sent after a command that closes.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {:?}", answer.escape_ascii().to_string()),
        }
    }
    sender.join().unwrap();
    answer
}

/// The version is the one thing that differs.
fn versionless(answer: &[u8]) -> String {
    answer.escape_ascii().to_string().replace(VERSION, "1.6.18")
}

#[track_caller]
fn compare(theirs: SocketAddr, ours: SocketAddr, request: &[u8], ended: &[u8], what: &str) {
    let their = versionless(&converse(theirs, request, ended));
    let our = versionless(&converse(ours, request, ended));
    if our != their {
        let same = our.bytes().zip(their.bytes()).take_while(|(our, their)| our == their).count();
        let from = same.saturating_sub(200);
        let near = |text: &str| text[from..text.len().min(same + 100)].to_owned();
        let request = String::from_utf8_lossy(request).replace("wwwwwwww", "");
        panic!(
            "{what}: after {from} bytes\n{:?}, and memcached\n{:?}, to\n{}",
            near(&our),
            near(&their),
            &request[..request.len().min(6000)]
        );
    }
}

fn long(len: usize) -> String {
    "k".repeat(len)
}

/// Lines of each command, right and wrong.
fn scripts() -> Vec<String> {
    let (k250, k251) = (long(250), long(251));
    let many: Vec<String> = (0..2000).map(|i| format!("k{i}")).collect();
    let many = many.join(" ");
    let huge = "x".repeat((1 << 20) + 1);
    let large = "y".repeat(900_000);
    [
        "get\r\nget \r\ngets\r\ngat\r\ngat 5\r\ngat x k\r\n",
        // One by one: such an error makes memcached forget answers that it has not sent yet.
        &format!("get {k250}\r\nget {k251}\r\n"),
        &format!("get a {k251}\r\n"),
        &format!("gets {k251} a\r\n"),
        &format!("set {k250} 1 0 1\r\nx\r\nget {k250}\r\ndelete {k250}\r\nset {k251} 0 0 1\r\nx\r\n"),
        "set a 0 0\r\nset a 0 0 1 noreply\r\nb\r\nget a\r\nset a 0 0 -1\r\nset a x 0 1\r\nb\r\n",
        "set a 0 x 1\r\nb\r\nset a -1 0 1\r\nb\r\nset a 4294967296 0 1\r\nb\r\nget a\r\n",
        "set a 4294967295 0 1\r\nb\r\nget a\r\nset a 0 0 2\r\nbcd\r\nset a 0 0 1 nope\r\nb\r\nget a\r\n",
        &format!("set a 0 0 1048577\r\n{huge}\r\nget a\r\n"),
        &format!("set a 3 0 900000\r\n{large}\r\nget a\r\nappend a 0 0 3\r\nend\r\nget a a\r\ndelete a\r\n"),
        &format!("add a 3 0 900000\r\n{large}\r\nadd a 3 0 900000\r\n{large}\r\ndelete a\r\n"),
        "set n 0 0 1\r\n5\r\nincr n 1\r\nincr n x\r\nincr n -1\r\nincr n\r\nincr n 18446744073709551615\r\n",
        "incr n 18446744073709551616\r\ndecr n 100\r\nincr zz 1\r\nincr n 10\r\ndecr n 9\r\nget n\r\n",
        "set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\nset n 0 0 21\r\n184467440737095516150\r\nincr n 1\r\n",
        "set n 7 0 2\r\n99\r\nincr n 1\r\ngets n\r\nincr n 1 noreply\r\nget n\r\nset n 0 0 0\r\n\r\nincr n 1\r\n",
        "set s 0 0 3\r\nabc\r\nincr s 1\r\nappend s 5 0 1\r\nd\r\nprepend s 0 0 1\r\nz\r\nget s\r\nappend zz 0 0 1\r\nd\r\n",
        "replace zz 0 0 1\r\nx\r\nadd s 0 0 1\r\nx\r\nreplace s 9 0 1\r\nx\r\nget s\r\n",
        "touch s\r\ntouch s x\r\ntouch s 5\r\ntouch zz 5\r\ntouch s 0 noreply\r\ntouch s -1\r\nget s\r\n",
        "set s 0 0 1\r\nx\r\ndelete s 0\r\ndelete s 0 noreply\r\ndelete s 5\r\ndelete s noreply\r\ndelete\r\ndelete s x y z\r\n",
        "flush_all x\r\nflush_all 1 2 3\r\nverbosity\r\nverbosity 1\r\nverbosity x\r\nverbosity 1 noreply\r\n",
        "verbosity noreply\r\nverbosity 1 2 3\r\nversion\r\nversion x\r\nfoo\r\n\r\n \r\n get a\r\nget a\nGET a\r\ngetx a\r\n",
        "quit\r\nversion\r\n",
        // A browser's request.
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "set a 0 0 1\r\nb\r\nget a\r\nPOST /x HTTP/1.0\r\nversion\r\n",
        "OPTIONS * HTTP/2\r\nversion\r\n",
        "GET /\r\nfoo http/1.1\r\nversion\r\n",
        "cache_memlimit\r\ncache_memlimit 1\r\ncache_memlimit 64\r\ncache_memlimit 64 noreply\r\n",
        "cache_memlimit 4000000000\r\n",
        "lru_crawler\r\nlru_crawler metadump\r\nlru_crawler sleep x\r\nlru_crawler sleep 1000001\r\nlru_crawler tocrawl x\r\nstats cachedump\r\nstats cachedump 1\r\nstats cachedump 64 0\r\n",
        "stats cachedump x 0\r\nstats cachedump 1 x\r\n",
        "quit x\r\n",
        "shutdown\r\n\0\0\r\nstats foo\r\nstats detail\r\nstats reset\r\n",
        "cas a 0 0 1\r\ncas a 0 0 1 x\r\nb\r\ncas zz 0 0 1 5\r\nb\r\nset a 0 0 1\r\nb\r\ncas a 0 0 1 1\r\nb\r\n",
        "cas a 0 0 1 0\r\nb\r\ncas a 0 0 1 18446744073709551616\r\nb\r\nget a\r\n",
        "set e 0 -1 1\r\nx\r\nget e\r\nset e 0 100000000 1\r\nx\r\nget e\r\nset sp  0 0  1 \r\nx\r\nget  sp  sp \r\n",
        &format!("get {many}\r\ngets {many}\r\n"),
        &format!("set k7 1 0 2\r\nhi\r\nset k1999 1 0 2\r\nho\r\nget {many}\r\n"),
        &format!("set a 0 0 1 {}\r\n{}\r\n", "x ".repeat(30), "x".repeat(1000)),
        "gat 100 a zz a\r\ngats 0 a\r\ngat 0 a b c d e f g h i j k l m n o p q r s t u v w x y z a\r\n",
        "mg\r\nmg a\r\nmg zz v\r\nmg a v k O1 q f t s u\r\nmg a v v\r\nmg a b\r\nmg a y\r\nmg a T\r\nmg a Tx\r\n",
        "ms vv 2\r\nhi\r\nmg vv h\r\nmg vv h\r\nmg vv u h\r\nmg zz q k\r\nmg zz k O9 v\r\nms\r\nmd\r\nma\r\nme\r\nme zz\r\n",
        &format!("mg {k250} v\r\nmg {k251} v\r\nms {k251} 2\r\nhi\r\nmg a O{k250}\r\nms a 2 O{k250}\r\nhi\r\n"),
        "ms a 2 T0 F5 c k Oq b\r\nhi\r\nms YQ== 2 b k c\r\nhi\r\nmg YQ== b k v\r\nmg a k v\r\nms a\r\nms a x\r\nms a -1\r\n",
        "ms a 2 MZ\r\nhi\r\nms a 2 ME\r\nhi\r\nms a 2 MA\r\nhi\r\nms a 2 MP\r\nho\r\nms zz 2 MR\r\nhi\r\nms a 2 MS\r\nhi\r\n",
        "ms a 2 C1\r\nhi\r\nms a 2 C1 I\r\nhi\r\nmg a v t f k s\r\nmg a v t f k s\r\nms zz 2 C1\r\nhi\r\nms a 2 q\r\nhi\r\n",
        "ms a 2\r\nhix\r\nms a 3 F99999999999\r\nabc\r\nms a 2 S5\r\nhi\r\nms zz 2 C5 q\r\nhi\r\nms a 2 Fx\r\nhi\r\n",
        "ms nn 0\r\n\r\nmg nn v\r\nmg nn s\r\nmg viv N0 v\r\nmg viv N0 v t\r\nmd viv\r\nms a 2 MEE\r\nhi\r\n",
        "md a q\r\nmd a\r\nmd zz k O1\r\nms a 1\r\n1\r\nmd a I\r\nmg a v\r\nmg a v\r\nmd a C1\r\nmd a x\r\nmd zz q\r\n",
        "ms m 2\r\n10\r\nma m\r\nma m v t k\r\nma m MD D10 v\r\nma cc N0 J13 v\r\nma cc v\r\nma m Dx\r\nma m MX\r\nma m N\r\n",
        "ma m T0 C1\r\nms s 1\r\nx\r\nma s\r\nma cc q v\r\nma cc M+ v\r\nma cc M- v\r\nma cc Mincr v\r\nma zz q\r\nma zz v\r\n",
        "ma x N0 t k v O1 J18446744073709551615\r\nma x v D2\r\nma x v MD D5\r\nma x D18446744073709551616\r\n",
        "mg  a   v\r\nmg a v  \r\nms a 1  \r\nx\r\nmg a P1 L2 v\r\nmg a a a a a a a a a a a a a a a a a a a a a a a\r\n",
    ]
    .map(str::to_owned)
    .into()
}

#[test]
fn lines_are_answered_as_memcached_answers_them() {
    let Some(memcached) = memcached() else { return };
    let ours = ours();
    for (number, script) in scripts().iter().enumerate() {
        let request = [script.as_bytes(), END].concat();
        compare(memcached.address, ours, &request, ENDED, &format!("script {number}"));
    }
    let nonsense = "x".repeat(3000);
    compare(memcached.address, ours, &nonsense.into_bytes(), ENDED, "a line without end");
}

/// Xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn key(&mut self) -> String {
        format!("key{}", self.below(6))
    }

    /// Returns a key that is counted with and never read: a number that shrinks is padded with
    /// spaces, but not by memcached while an answer with the old value is on its way.
    fn counter(&mut self) -> String {
        format!("n{}", self.below(3))
    }

    fn value(&mut self) -> String {
        match self.below(6) {
            0 => String::new(),
            1..=3 => self.below(1 << 40).to_string(),
            4 => "v".repeat(self.below(300) as usize),
            _ => "w".repeat(self.below(40_000) as usize),
        }
    }

    fn line(&mut self) -> String {
        let (key, value, silent) = (self.key(), self.value(), ["", "", " noreply"][self.below(3) as usize]);
        let len = value.len();
        let stored = if self.below(3) == 0 { self.counter() } else { self.key() };
        let counter = self.counter();
        let name = ["set", "add", "replace", "append", "prepend"][self.below(5) as usize];
        match self.below(16) {
            0..=3 => format!("{name} {stored} {} 0 {len}{silent}\r\n{value}\r\n", self.below(1000)),
            4 => format!("cas {key} 1 0 {len} {}{silent}\r\n{value}\r\n", self.below(200)),
            5 | 6 => format!("get {key} {} {}\r\n", self.key(), self.key()),
            7 => format!("gets {key} {}\r\n", self.key()),
            8 => format!(
                "{} {counter} {}{silent}\r\n",
                ["incr", "decr"][self.below(2) as usize],
                self.below(1 << 50)
            ),
            9 => format!("delete {key}{silent}\r\n"),
            10 => format!("touch {key} {}{silent}\r\n", [0, -1, 1000][self.below(3) as usize]),
            11 => format!("gats 0 {key}\r\n"),
            12 => format!(
                "ms {key} {len} M{} c k{}\r\n{value}\r\n",
                ["E", "A", "P", "R", "S"][self.below(5) as usize],
                ["", " q", " C50", " C90 I"][self.below(4) as usize]
            ),
            13 => format!("mg {key} v c f s k{}\r\n", ["", " q", " N0", " T0", " u"][self.below(5) as usize]),
            14 => format!("md {key} k{}\r\n", ["", " q", " I", " C70"][self.below(4) as usize]),
            _ => format!("ma {counter} v c{}\r\n", ["", " MD D100", " N0 J7", " T0"][self.below(4) as usize]),
        }
    }
}

/// Lines of one random conversation.
const LINES: u64 = 40;

/// Returns the number of random lines; `TAILWATER_KV_OPERATIONS` sets another, for a longer run.
fn operations() -> u64 {
    std::env::var("TAILWATER_KV_OPERATIONS").map_or(60 * LINES, |number| number.parse().expect("a number"))
}

/// Both begin empty and give out the same version numbers, so that answers are equal to the last
/// byte.
#[test]
fn random_lines_are_answered_as_memcached_answers_them() {
    let Some(memcached) = memcached() else { return };
    let ours = ours();
    for seed in 1..=operations() / LINES {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let script: String = (0..LINES).map(|_| random.line()).collect();
        let request = [script.as_bytes(), END].concat();
        compare(memcached.address, ours, &request, ENDED, &format!("Random({seed} * 0x9e3779b97f4a7c15)"));
    }
}

/// Returns a packet of the binary protocol.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend([0xde, 0xad, 0xbe, opcode]);
    bytes.extend(cas.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

/// Returns a no-op that nothing else looks like, and its answer.
fn last_packet() -> (Vec<u8>, Vec<u8>) {
    let (mut request, mut answer) = (packet(10, &[], &[], &[], 0), packet(10, &[], &[], &[], 0));
    request[12..16].copy_from_slice(b"last");
    answer[12..16].copy_from_slice(b"last");
    answer[0] = 0x81;
    (request, answer)
}

fn counting(delta: u64, initial: u64, expiry: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expiry.to_be_bytes()].concat()
}

fn packets() -> Vec<Vec<u8>> {
    let flags = [0, 0, 0, 7, 0, 0, 0, 0];
    let zero = [0; 4];
    let large = vec![b'l'; 100_000];
    let huge = vec![b'h'; (1 << 20) + 1];
    let n = |delta, initial, expiry| counting(delta, initial, expiry);
    vec![
        packet(1, &flags, b"k", b"v", 0),
        [packet(0, &[], b"k", b"", 0), packet(12, &[], b"k", b"", 0), packet(9, &[], b"zz", b"", 0)].concat(),
        [packet(0, &[], b"zz", b"", 0), packet(12, &[], b"zz", b"", 0), packet(13, &[], b"zz", b"", 0)]
            .concat(),
        [
            packet(2, &flags, b"k", b"v", 0),
            packet(3, &flags, b"zz", b"v", 0),
            packet(14, &[], b"zz", b"v", 0),
        ]
        .concat(),
        [packet(14, &[], b"k", b"w", 0), packet(15, &[], b"k", b"u", 0), packet(0, &[], b"k", b"", 0)]
            .concat(),
        [
            packet(1, &flags, b"k", b"v", 1),
            packet(1, &flags, b"zz", b"v", 1),
            packet(2, &flags, b"k", b"v", 1),
        ]
        .concat(),
        [packet(3, &flags, b"zz", b"v", 9), packet(14, &[], b"k", b"v", 99)].concat(),
        [packet(5, &n(1, 10, u32::MAX), b"n", b"", 0), packet(5, &n(1, 10, 0), b"n", b"", 0)].concat(),
        [packet(5, &n(1, 10, 0), b"n", b"", 0), packet(6, &n(100, 0, 0), b"n", b"", 0)].concat(),
        [packet(5, &n(1, 0, 0), b"k", b"", 0), packet(5, &n(1, 0, 0), b"n", b"", 77)].concat(),
        [packet(0x15, &n(1, 0, 0), b"n", b"", 0), packet(0x15, &n(1, 0, u32::MAX), b"m", b"", 0)].concat(),
        [packet(4, &[], b"n", b"", 5), packet(4, &[], b"n", b"", 0), packet(4, &[], b"n", b"", 0)].concat(),
        [packet(0x14, &[], b"n", b"", 0), packet(0x14, &[], b"k", b"", 0)].concat(),
        [packet(1, &flags, b"k", b"v", 0), packet(0x1c, &[0, 0, 0, 99], b"k", b"", 0)].concat(),
        [
            packet(0x1d, &zero, b"k", b"", 0),
            packet(0x23, &zero, b"k", b"", 0),
            packet(0x1c, &zero, b"zz", b"", 0),
        ]
        .concat(),
        [
            packet(0x1d, &zero, b"zz", b"", 0),
            packet(0x1e, &zero, b"zz", b"", 0),
            packet(0x23, &zero, b"zz", b"", 0),
        ]
        .concat(),
        packet(0x24, &zero, b"zz", b"", 0),
        [
            packet(0x11, &flags, b"q", b"v", 0),
            packet(0x12, &flags, b"q", b"v", 0),
            packet(0x13, &flags, b"zz", b"v", 0),
        ]
        .concat(),
        [
            packet(0x19, &[], b"zz", b"v", 0),
            packet(0x1a, &[], b"q", b"u", 0),
            packet(0x0d, &[], b"q", b"", 0),
        ]
        .concat(),
        [
            packet(1, &flags, b"large", &large, 0),
            packet(0, &[], b"large", b"", 0),
            packet(14, &[], b"large", &large, 0),
        ]
        .concat(),
        packet(0, &[], b"large", b"", 0),
        packet(1, &flags, b"k", &huge, 0),
        packet(0x10, &[], b"foo", b"", 0),
        packet(0x10, &[], b"reset", b"", 0),
        // SASL is off; and an unknown command.
        packet(0x20, &[], b"", b"", 0),
        packet(0x55, &[], b"", b"", 0),
        // Wrong lengths, which end the connection.
        packet(0, &zero, b"k", b"", 0),
        packet(0, &[], b"k", b"v", 0),
        packet(0, &[], b"", b"", 0),
        packet(1, &[], b"k", b"v", 0),
        packet(1, &flags, b"", b"v", 0),
        packet(10, &[], b"k", b"", 0),
        packet(4, &zero, b"k", b"", 0),
        packet(5, &[], b"k", b"", 0),
        packet(14, &flags, b"k", b"v", 0),
        packet(7, &[], b"", b"", 0),
        packet(0x17, &[], b"", b"", 0),
        packet(8, &[0], b"", b"", 0),
        packet(0, &[], &[b'k'; 251], b"", 0),
        packet(0x1c, &[], b"k", b"", 0),
    ]
}

#[test]
fn packets_are_answered_as_memcached_answers_them() {
    let Some(memcached) = memcached() else { return };
    let ours = ours();
    let (last, ended) = last_packet();
    for (number, packets) in packets().into_iter().enumerate() {
        let request = [packets, last.clone()].concat();
        compare(memcached.address, ours, &request, &ended, &format!("packets {number}"));
    }
}

/// Datagrams that come back for one, up to the number that the first announces.
fn ask(socket: &UdpSocket, to: SocketAddr, request: &[u8]) -> Vec<Vec<u8>> {
    socket.send_to(request, to).unwrap();
    let (mut answers, mut bytes) = (Vec::new(), [0; 2000]);
    loop {
        let len = socket.recv(&mut bytes).unwrap();
        answers.push(bytes[..len].to_vec());
        if answers.len() == usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) {
            return answers;
        }
    }
}

#[test]
fn datagrams_are_answered_as_memcached_answers_them() {
    let Some(memcached) = memcached() else { return };
    let ours = ours();
    let large = format!("set big 0 0 5000\r\n{}\r\nset a 0 0 1\r\nb\r\nmn\r\n", "x".repeat(5000));
    compare(memcached.address, ours, large.as_bytes(), ENDED, "what is asked for");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let header = [0, 7, 0, 0, 0, 1, 0, 0];
    let requests: [&[u8]; 9] = [
        b"get a\r\n",
        b"get big\r\n",
        b"gets big\r\n",
        b"foo\r\n",
        b"mg a v\r\n",
        b"set u 0 0 5\r\nhello\r\n",
        b"incr zz 1\r\n",
        b"delete u\r\n",
        &packet(0, &[], b"a", b"", 0),
    ];
    for request in requests {
        let datagram = [&header, request].concat();
        let theirs = ask(&socket, memcached.address, &datagram);
        assert_eq!(ask(&socket, ours, &datagram), theirs, "{}", request.escape_ascii());
    }
    // Neither answers what is no request of one datagram: the next answer is that of the next
    // request.
    for wrong in [&[0, 7, 0, 0, 0, 2, 0, 0, b'm', b'n', b'\r', b'\n'][..], b"abc", &header] {
        for to in [memcached.address, ours] {
            socket.send_to(wrong, to).unwrap();
            let after = ask(&socket, to, &[&[0, 9, 0, 0, 0, 1, 0, 0], END].concat());
            assert_eq!(after, [[&[0, 9, 0, 0, 0, 1, 0, 0], ENDED].concat()]);
        }
    }
    assert!(VERSION.starts_with("1.6"));
}
