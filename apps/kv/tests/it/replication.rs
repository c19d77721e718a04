//! A primary and its backup on a standalone runtime, over the runtime's own loopback network. Both
//! have one clock, so that their items can be compared whole.
//!
//! Between the two is a gate, which ends and refuses connections when it is told to.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tailwater::net::{TcpListener, TcpStream};
use tailwater::sync::Mutex;
use tailwater_kv::clock::Clock;
use tailwater_kv::replicate::{self, Copy, Link, OnLoss, PromotionRefused, Replication, Secret};
use tailwater_kv::server::{Running, user_threads};
use tailwater_kv::service::{Service, Settings};
use tailwater_kv::store::{Config, Image, Now, Store};
use tailwater_testkit::{PATIENCE, own_process};

const LOST: &str = "SERVER_ERROR a backup is lost: writes are refused until it is back\r\n";
const BACKUP: &str = "SERVER_ERROR this is a backup: write to the primary, or promote it with SIGUSR1\r\n";

struct Node {
    service: Arc<Service>,
    listening: Running,
    clock: Clock,
}

fn start(clock: Clock, backups: Vec<SocketAddr>, on_loss: OnLoss, port: Option<u16>) -> Node {
    // So large that nothing is evicted; each store has a hash function of its own.
    let config =
        Config { memory: 128 << 20, max_item: 1 << 20, evict: true, secret: [u64::from(port.is_some()), 2] };
    let settings = Settings { tcp_port: 0, ..Settings::default() };
    let secret = Secret::decode(&"5a".repeat(16)).unwrap();
    let service = Service::new(Store::new(config).unwrap(), settings);
    let replication = replicate::Settings { backups, on_loss, timeout: PATIENCE, port, secret };
    service.replicate(replication).unwrap();
    let listening = user_threads::start(&service, clock).unwrap();
    Node { service, listening, clock }
}

impl Node {
    fn replication(&self) -> &Replication {
        self.service.replication.get().unwrap()
    }

    fn link(&self) -> Link {
        self.replication().backups()[0].1
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.listening.tcp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns all items.
    fn items(&self) -> Vec<(Vec<u8>, Image, Vec<u8>)> {
        let (mut keys, mut progress) = (BTreeSet::new(), tailwater_kv::store::Crawl::default());
        let now = self.clock.now();
        while self.service.store.dump(&mut progress, now, |key, _| {
            keys.insert(key.to_vec());
        }) {}
        let item = |key: Vec<u8>| {
            let mut locked = self.service.store.lock(&key, now);
            let (image, hit) = locked.image()?;
            let mut value = Vec::new();
            locked.append_value(&hit, &mut value);
            drop(locked);
            Some((key, image, value))
        };
        keys.into_iter().filter_map(item).collect()
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tailwater::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a request, and a `mn` behind it; returns what was answered before `MN`.
fn ask(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(format!("{request}mn\r\n").as_bytes()).unwrap();
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"MN\r\n") {
        let len = stream.read(&mut bytes).unwrap();
        assert!(len > 0, "the connection ended after {request:?}");
        answer.extend_from_slice(&bytes[..len]);
    }
    answer.truncate(answer.len() - 4);
    String::from_utf8(answer).unwrap()
}

/// A port before a backup.
struct Gate {
    address: SocketAddr,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    fn before(backup: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Self {
            address: listener.local_addr().unwrap(),
            open: Arc::new(AtomicBool::new(true)),
            streams: Arc::default(),
        };
        let (open, streams) = (Arc::clone(&gate.open), Arc::clone(&gate.streams));
        tailwater::thread::spawn(move || {
            loop {
                let (here, _) = listener.accept().unwrap();
                let there = TcpStream::connect(backup).unwrap();
                let mut kept = streams.lock().unwrap();
                if !open.load(SeqCst) {
                    continue;
                }
                kept.extend([here.try_clone().unwrap(), there.try_clone().unwrap()]);
                let back = (there.try_clone().unwrap(), here.try_clone().unwrap());
                for (from, to) in [(here, there), back] {
                    tailwater::thread::spawn(move || forward(from, to));
                }
            }
        });
        gate
    }

    fn shut(&self) {
        self.open.store(false, SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A process has one runtime, so this is one test.
#[test]
fn every_answered_write_is_at_every_live_backup() {
    own_process(|| {
        let replicated = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            the_effect_of_every_command_is_at_the_backup();
            a_lost_backup_refuses_writes_and_is_brought_up_to_date();
            without_backups_writes_go_on_where_that_is_asked_for();
            strangers_change_nothing();
        });
        replicated.unwrap();
    });
}

fn pair(on_loss: OnLoss) -> (Node, Node, Gate) {
    let clock = Clock::start();
    let backup = start(clock, Vec::new(), OnLoss::Refuse, Some(0));
    let gate = Gate::before(backup.listening.backup.unwrap());
    let primary = start(clock, vec![gate.address], on_loss, None);
    wait_until("the backup is in step", || primary.link() == Link::InStep);
    (primary, backup, gate)
}

/// A generator of numbers below a bound (Knuth, MMIX).
fn random(seed: &mut u64, bound: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % bound
}

/// Returns a command that changes something, or may.
fn command(seed: &mut u64) -> String {
    let key = format!("key{}", random(seed, 20));
    let len = [1, 60, 5_000, 20_000, 50_000][random(seed, 5) as usize];
    let value = "v".repeat(len);
    let number = random(seed, 1000);
    match random(seed, 16) {
        0 => format!("set {key} {number} 0 {len}\r\n{value}\r\n"),
        1 => format!("add {key} 0 {} {len}\r\n{value}\r\n", 1000 + number),
        2 => format!("replace {key} 0 0 {len}\r\n{value}\r\n"),
        3 => format!("append {key} 0 0 3\r\nend\r\n"),
        4 => format!("prepend {key} 0 0 {len}\r\n{value}\r\n"),
        5 => format!("set {key} 0 0 3\r\n{}\r\n", 100 + number % 900),
        6 => format!("incr {key} {number}\r\n"),
        7 => format!("decr {key} {number}\r\n"),
        8 => format!("delete {key}\r\n"),
        9 => format!("touch {key} {}\r\n", 2000 + number),
        10 => format!("gat {} {key}\r\n", 3000 + number),
        11 => format!("ma {key} N{} J{number} D3 T500 v\r\n", 4000 + number),
        12 => format!("mg {key} N700 R900 c\r\n"),
        13 => format!("md {key} I T{}\r\n", 600 + number),
        14 => format!("ms {key} 3 C{number} I F5\r\nxyz\r\n"),
        _ if number < 50 => "flush_all\r\n".to_owned(),
        // Larger than an item may be, which removes the present one.
        _ if number < 100 => format!("set {key} 0 0 1100000\r\n{}\r\n", "l".repeat(1_100_000)),
        _ => format!("set {key} 0 -1 3\r\nxyz\r\n"),
    }
}

fn the_effect_of_every_command_is_at_the_backup() {
    let (primary, backup, _gate) = pair(OnLoss::Refuse);
    let clients: Vec<_> = (0..4)
        .map(|client: u64| {
            let mut stream = primary.client();
            tailwater::thread::spawn(move || {
                let mut seed = 0x5eed_0000 + client;
                for _ in 0..150 {
                    ask(&mut stream, &command(&mut seed));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let items = primary.items();
    assert!(items.len() > 5, "{}", items.len());
    // All were answered, so nothing is on its way.
    assert!(items == backup.items(), "the same items, versions and expirations");
    // One client at a time: each answer finds its effect there.
    let (mut stream, mut seed) = (primary.client(), 77);
    for _ in 0..80 {
        let command = command(&mut seed);
        ask(&mut stream, &command);
        let shown = &command[..command.len().min(40)];
        assert!(primary.items() == backup.items(), "after {shown:?}");
    }
    // Binary: set, delete, and a counter that is created.
    let key = |opcode: u8, extras: &[u8], value: &[u8]| {
        let body = (extras.len() + 3 + value.len()) as u8;
        let head = [0x80, opcode, 0, 3, extras.len() as u8, 0, 0, 0, 0, 0, 0, body, 0, 0, 0, 0];
        [&head[..], &[0; 8], extras, b"bin", value].concat()
    };
    let mut binary = primary.client();
    for (packet, answer) in
        [(key(1, &[0; 8], b"value"), 24), (key(4, &[], &[]), 24), (key(5, &[0; 20], &[]), 24 + 8)]
    {
        binary.write_all(&packet).unwrap();
        binary.read_exact(&mut vec![0; answer]).unwrap();
        assert!(primary.items() == backup.items());
    }
    assert!(backup.items().iter().any(|(key, ..)| key == b"bin"));
    // A flush that is scheduled happens at both.
    assert_eq!(ask(&mut stream, "flush_all 1\r\n"), "OK\r\n");
    wait_until("the flush has happened", || primary.items().is_empty() && backup.items().is_empty());
}

fn a_lost_backup_refuses_writes_and_is_brought_up_to_date() {
    let (primary, backup, gate) = pair(OnLoss::Refuse);
    let (mut client, mut reader) = (primary.client(), backup.client());
    assert_eq!(ask(&mut client, "set a 0 0 1\r\n1\r\nset old 0 0 1\r\n1\r\n"), "STORED\r\nSTORED\r\n");
    assert_eq!(ask(&mut reader, "get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    for change in [
        "set a 0 0 1\r\n2\r\n",
        "delete a\r\n",
        "incr a 1\r\n",
        "touch a 0\r\n",
        "gat 0 a\r\n",
        "flush_all\r\n",
    ] {
        assert_eq!(ask(&mut reader, change), BACKUP);
    }
    for change in ["ms a 1\r\n2\r\n", "md a\r\n", "ma a\r\n", "mg a T0\r\n", "mg a N0\r\n"] {
        assert_eq!(ask(&mut reader, change), BACKUP);
    }
    // A client of a backup cannot renew an item, and does not keep others from being asked to.
    assert_eq!(ask(&mut client, "set s 0 0 1\r\n1\r\nmd s I\r\n"), "STORED\r\nHD\r\n");
    assert_eq!(ask(&mut reader, "mg s\r\n"), "HD X\r\n");
    assert_eq!(ask(&mut client, "mg s\r\nmd s\r\n"), "HD X W\r\nHD\r\n");
    gate.shut();
    wait_until("the backup is lost", || primary.link() == Link::Lost);
    assert_eq!(
        ask(&mut client, "set a 0 0 5\r\n22222\r\nget a\r\n"),
        format!("{LOST}VALUE a 0 1\r\n1\r\nEND\r\n")
    );
    assert_eq!(
        ask(&mut client, "set a 0 0 1 noreply\r\n3\r\ndelete a\r\nget a\r\n"),
        format!("{LOST}VALUE a 0 1\r\n1\r\nEND\r\n")
    );
    let mut quiet = primary.client();
    quiet.write_all(b"\x80\x14\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0a").unwrap();
    let mut head = [0; 24];
    quiet.read_exact(&mut head).unwrap();
    assert_eq!(head[6..8], [0, 0x86], "a temporary failure, although the command is quiet");
    // An item that only the backup has is gone with the copy.
    backup.service.store.lock(b"stranger", backup.clock.now()).restore(&image(), b"x").unwrap();
    gate.open.store(true, SeqCst);
    wait_until("the backup is back", || primary.link() == Link::InStep);
    assert_eq!((primary.items() == backup.items(), backup.items().len()), (true, 2));
    assert_eq!(ask(&mut client, "set a 0 0 1\r\n4\r\n"), "STORED\r\n");
    assert_eq!(ask(&mut reader, "get a\r\n"), "VALUE a 0 1\r\n4\r\nEND\r\n");
    assert_eq!(backup.replication().copy(), Copy::Complete);
    assert_eq!(backup.replication().promote(backup.clock), Ok(()));
    let again = backup.replication().promote(backup.clock);
    assert_eq!(again, Err(PromotionRefused::IsPrimary));
    // Its primary notices at its next change, and what was answered before is there.
    let (mut last, mut answer) = (primary.client(), Vec::new());
    last.write_all(b"set a 0 0 1\r\n5\r\nquit\r\n").unwrap();
    last.read_to_end(&mut answer).unwrap();
    // Without an answer the outcome is unknown.
    assert!(answer.is_empty() || answer == LOST.as_bytes(), "{answer:?}");
    wait_until("the primary has noticed", || primary.link() == Link::Lost);
    assert_eq!(ask(&mut client, "set a 0 0 1\r\n6\r\n"), LOST);
    assert_eq!(ask(&mut reader, "get a\r\nset a 0 0 1\r\n7\r\n"), "VALUE a 0 1\r\n4\r\nEND\r\nSTORED\r\n");
}

fn image() -> Image {
    Image {
        flags: 0,
        cas: 1,
        expires: None,
        stale: false,
        token_sent: false,
        binary_key: false,
        value_len: 1,
    }
}

fn without_backups_writes_go_on_where_that_is_asked_for() {
    let (primary, backup, gate) = pair(OnLoss::Degrade);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let mut stream = primary.client();
            tailwater::thread::spawn(move || {
                for round in 0..200 {
                    let value = format!("{round:0>900}");
                    let set = format!("set w{writer}.{round} 0 0 900\r\n{value}\r\n");
                    assert_eq!(ask(&mut stream, &set), "STORED\r\n");
                }
            })
        })
        .collect();
    // The link goes and comes while they write: each time, a copy is made beside new changes.
    for _ in 0..5 {
        gate.shut();
        wait_until("the backup is lost", || primary.link() == Link::Lost);
        assert!(ask(&mut primary.client(), "stats replication\r\n").contains("STAT 0:state lost\r\n"));
        gate.open.store(true, SeqCst);
        wait_until("the backup is back", || primary.link() == Link::InStep);
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(primary.items().len(), 800);
    assert!(primary.items() == backup.items(), "all that was answered is there, however it came");
    let stats = ask(&mut backup.client(), "stats replication\r\n");
    assert_eq!(stats, "STAT role backup\r\nSTAT copy complete\r\nEND\r\n");
}

fn verdict_without_secret(address: SocketAddr) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"TWKVREP\x02................")?;
    stream.read_exact(&mut [0; 24])?;
    stream.write_all(&[0; 117])?;
    let mut verdict = Vec::new();
    stream.read_to_end(&mut verdict)?;
    assert!(verdict.is_empty() || verdict.len() == 17, "it ends the connection after its verdict");
    verdict.first().copied().ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

fn strangers_change_nothing() {
    let (primary, backup, _gate) = pair(OnLoss::Refuse);
    let address = backup.listening.backup.unwrap();
    assert_eq!(ask(&mut primary.client(), "set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    for garbage in
        [&b"flush_all\r\nflush_all\r\nflush_all\r\n"[..], b"TWKVREP\x03................", &[0; 5000]]
    {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The connection may end while this is sent, and by a reset.
        let _ = stream.write_all(garbage);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // The right preface, and no proof; again if the machine stands still during a handshake.
    wait_until("the secret is wrong", || verdict_without_secret(address).is_ok_and(|verdict| verdict == 1));
    // Another primary with the secret, while this one is connected.
    let other = start(primary.clock, vec![address], OnLoss::Degrade, None);
    assert_eq!(ask(&mut other.client(), "set a 0 0 1\r\n2\r\n"), "STORED\r\n");
    assert_eq!(ask(&mut primary.client(), "set b 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!((other.link(), primary.link()), (Link::Lost, Link::InStep));
    assert!(primary.items() == backup.items());
    // A scheduled flush outlives its primary.
    let late = primary.clock.now().seconds + 100_000;
    assert_eq!(ask(&mut primary.client(), "flush_all 100000\r\n"), "OK\r\n");
    backup.replication().promote(backup.clock).unwrap();
    let scheduled = backup.service.store.journal().unwrap().scheduled().unwrap();
    assert!(scheduled <= late + 1000 && scheduled > Now::FIRST + 1000, "{scheduled}");
}
