//! Benchmarks of the store itself: finding, copying out and storing items, with many more items
//! than fit a cache; a whole command from bytes to bytes; and a command over TCP.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tailwater_kv::clock::Clock;
use tailwater_kv::protocol::Connection;
use tailwater_kv::server::kernel;
use tailwater_kv::service::{Service, Settings};
use tailwater_kv::store::{Config, Expiry, Get, Mode, Now, Put, Store};

const NOW: Now = Now { seconds: 100, start_unix: 1_700_000_000 };
/// Keys in the store; with values of 200 bytes they take 200 MiB.
const KEYS: u64 = 500_000;

fn key(number: u64) -> [u8; 30] {
    let mut key = *b"some-prefix-as-is-common/00000";
    let mut rest = number;
    for digit in key[22..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Xorshift (Marsaglia 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn filled(value: &[u8]) -> Store {
    let config = Config { memory: 512 << 20, max_item: 1 << 20, evict: true, secret: [1, 2] };
    let store = Store::new(config).expect("512 MiB of address space");
    for number in 0..KEYS {
        store.lock(&key(number), NOW).put(&Put::new(Mode::Set, 0, Expiry::NEVER), value);
    }
    store
}

fn items(c: &mut Criterion) {
    let mut group = c.benchmark_group("store");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for len in [2, 200] {
        let store = filled(&vec![7; len]);
        let (mut state, mut out) = (1, Vec::with_capacity(1 << 12));
        group.bench_function(format!("get, {len} bytes"), |b| {
            b.iter(|| {
                let key = key(random(&mut state) % KEYS);
                let mut locked = store.lock(&key, NOW);
                let hit = locked.get(&Get::PLAIN).expect("it is there");
                out.clear();
                locked.append_value(&hit, &mut out);
                black_box(out.len())
            });
        });
        let value = vec![9; len];
        group.bench_function(format!("set, {len} bytes"), |b| {
            b.iter(|| {
                let key = key(random(&mut state) % KEYS);
                store.lock(&key, NOW).put(&Put::new(Mode::Set, 0, Expiry::NEVER), &value)
            });
        });
    }
    group.finish();
}

fn commands(c: &mut Criterion) {
    let settings = Settings { tcp_port: 0, ..Settings::default() };
    let service = Service::new(filled(&[7; 200]), settings);
    let mut connection = Connection::new(Arc::clone(&service));
    let (mut state, mut group) = (1, c.benchmark_group("command"));
    group.throughput(Throughput::Elements(1)).sample_size(20);
    group.bench_function("get, 200 bytes", |b| {
        b.iter(|| {
            let key = key(random(&mut state) % KEYS);
            let space = connection.space();
            space[..4].copy_from_slice(b"get ");
            space[4..34].copy_from_slice(&key);
            space[34..36].copy_from_slice(b"\r\n");
            connection.received(36);
            black_box(connection.process(NOW));
            assert!(connection.output().len() > 200);
            connection.sent();
        });
    });
    group.finish();
}

/// Over the loopback device, on kernel sockets: one at a time, and 32 in a write.
fn tcp(c: &mut Criterion) {
    let settings = Settings { tcp_port: 0, ..Settings::default() };
    let service = Service::new(filled(&[7; 200]), settings);
    let listening = kernel::start(&service, Clock::start()).expect("a free port");
    let mut stream = TcpStream::connect(listening.tcp).expect("it listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let (mut state, mut group) = (1, c.benchmark_group("tcp"));
    for pipeline in [1, 32] {
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        group.throughput(Throughput::Elements(pipeline)).sample_size(20);
        group.bench_function(format!("get, 200 bytes, {pipeline} in a write"), |b| {
            b.iter(|| {
                request.clear();
                for _ in 0..pipeline {
                    request.extend_from_slice(b"get ");
                    request.extend_from_slice(&key(random(&mut state) % KEYS));
                    request.extend_from_slice(b"\r\n");
                }
                stream.write_all(&request).expect("it reads");
                // VALUE, key, flags, length; the value; END.
                answer.resize(pipeline as usize * (6 + 30 + 8 + 202 + 5), 0);
                stream.read_exact(&mut answer).expect("it answers");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, items, commands, tcp);
criterion_main!(benches);
