//! The memory of a process with one connection stays under its limit, whatever is stored.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tailwater_testkit::{PATIENCE, Program};

const LIMIT_MIB: u64 = 64;
/// What the process has at its start counts towards the limit up to this part of it.
const START: u64 = 16;
/// For a connection's buffers, its thread, and what the allocator keeps.
const BESIDES_KIB: u64 = 2 << 10;

struct Kv {
    program: Program,
    address: String,
}

impl Kv {
    fn start(limit_mib: u64) -> Self {
        // Inherited: a huge page makes bytes resident that were never touched, where the system
        // gives them to all programs. A refusal shows in the figures.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-kv"));
        let mut program = Program::start(command.args(["--linux", "-p", "0", "-m", &limit_mib.to_string()]));
        let address = program.line_after("listening on ");
        Self { program, address }
    }

    /// Peak memory, in kibibytes (proc_pid_status(5)).
    fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.program.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Xorshift (Marsaglia 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}

#[test]
fn a_process_has_no_more_memory_than_it_was_given() {
    let kv = Kv::start(LIMIT_MIB);
    let mut stream = TcpStream::connect(&kv.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut ask = |request: &[u8]| {
        stream.write_all(&[request, b"mn\r\n"].concat()).unwrap();
        let (mut answer, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
        while !answer.ends_with(b"MN\r\n") {
            let len = stream.read(&mut bytes).unwrap();
            assert!(len > 0, "closed");
            answer.extend_from_slice(&bytes[..len]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    ask(b"get nothing\r\n");
    let empty = kv.peak_kib();
    let mut state = 0x2545_f491_4f6c_dd1d;
    // Five times what fits, in items of all sizes: many small, some large, keys of all lengths.
    let mut stored = 0;
    while stored < (5 * LIMIT_MIB) << 20 {
        let mut request = Vec::new();
        for _ in 0..50 {
            let len = match random(&mut state) % 50 {
                0 => random(&mut state) % 500_000,
                1..=9 => random(&mut state) % 10_000,
                _ => random(&mut state) % 300,
            };
            let key = random(&mut state) % 100_000;
            let name = ["set", "set", "set", "append", "add"][(random(&mut state) % 5) as usize];
            let width = 1 + (key % 250) as usize;
            request.extend_from_slice(format!("{name} {key:0>width$} 0 0 {len} noreply\r\n").as_bytes());
            request.resize(request.len() + len as usize, b'v');
            request.extend_from_slice(b"\r\n");
            stored += len;
        }
        assert_eq!(ask(&request), "MN\r\n");
    }
    let stats = ask(b"stats slabs\r\nstats\r\n");
    let number = |name: &str| -> u64 {
        let line = stats.lines().find(|line| line.split(' ').nth(1) == Some(name)).unwrap();
        line.split(' ').nth(2).unwrap().parse().unwrap()
    };
    assert!(number("evictions") > 1000, "{stats}");
    // All memory is in use, and no byte more.
    assert!(
        number("total_malloced") <= LIMIT_MIB << 20
            && number("total_malloced") > ((LIMIT_MIB << 20) / 10) * 9
    );
    let (peak, limit) = (kv.peak_kib(), LIMIT_MIB << 10);
    println!("{empty} KiB when empty, {peak} KiB when full");
    let over = empty.saturating_sub(limit / START);
    assert!(peak <= limit + over + BESIDES_KIB, "{peak} KiB, of which {empty} KiB when it was empty");
}

#[test]
fn items_of_110_bytes_take_no_more_memory_than_in_memcached() {
    const ITEMS: u64 = 300_000;
    let kv = Kv::start(64);
    let mut stream = TcpStream::connect(&kv.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let empty = kv.peak_kib();
    let mut answer = vec![0; 1 << 16];
    for first in (0..ITEMS).step_by(1000) {
        let lines = (first..first + 1000).map(|i| format!("set key{i:07} 0 0 110 noreply\r\n{i:0>110}\r\n"));
        stream.write_all(lines.collect::<String>().as_bytes()).unwrap();
    }
    stream.write_all(b"stats\r\n").unwrap();
    let mut stats = String::new();
    while !stats.ends_with("END\r\n") {
        let len = stream.read(&mut answer).unwrap();
        stats += std::str::from_utf8(&answer[..len]).unwrap();
    }
    assert!(
        stats.contains("STAT curr_items 300000\r\n") && stats.contains("STAT evictions 0\r\n"),
        "{stats}"
    );
    // memcached 1.6.18 takes 192 bytes for each, and 57 MiB more than when it was empty.
    let grown = kv.peak_kib() - empty;
    assert!(grown <= (57 << 10) + BESIDES_KIB, "{grown} KiB more than when it was empty");
    println!("{empty} KiB when empty, {grown} KiB more with {ITEMS} items");
}
