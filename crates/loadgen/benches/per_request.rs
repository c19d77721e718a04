//! Cost of the generator itself per request, by protocol, without sockets: drawing, encoding and
//! entering a request, and finding, matching and checking its answer. It must be below a kernel's
//! cost of sending and receiving, or the generator would measure itself.
//!
//! `cargo bench -p tailwater-loadgen` prints a table; in test mode each protocol runs once.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwater_loadgen::lanes::Lanes;
use tailwater_loadgen::protocol::{Echo, Medium, Memcached, Protocol, Request, Rocks, Spin};
use tailwater_loadgen::{Generator, Outgoing, Plan};
use tailwater_workload::keyvalue::{KeyValues, MAX_VALUE_BYTES, Workload};
use tailwater_workload::rocks::{self, Header, Operation, Status};
use tailwater_workload::spin;

/// Requests in flight at a time.
const BATCH: usize = 64;
/// Keys of the stores: few enough that mainly the generator's own memory is touched.
const KEYS: u64 = 10_000;

/// A server's answer to a request.
type Answer = Box<dyn Fn(&Request, &[u8]) -> Vec<u8>>;

fn cases() -> Vec<(&'static str, Arc<dyn Protocol>, Answer)> {
    let spin = Spin::new("exp:10us".parse().expect("a service time"));
    let spin_answer = |_: &Request, asked: &[u8]| {
        let request = spin::Request::decode(asked).expect("a request");
        spin::Reply { request, served_ns: 0 }.encode().to_vec()
    };
    let rocks_answer = |request: &Request, asked: &[u8]| {
        let asked = Header::decode(asked).expect("a request");
        debug_assert_eq!(asked.operation, Operation::Get);
        let header = Header { status: Some(Status::Done), id: request.id, count: 1, body_len: 64, ..asked };
        let mut bytes = header.encode().to_vec();
        rocks::write_value(asked.key, 64, &mut bytes);
        bytes
    };
    let store = |workload| Memcached::new(workload, KEYS, Medium::Stream).expect("a store");
    vec![
        ("spin", Arc::new(spin), Box::new(spin_answer)),
        (
            "echo:64",
            Arc::new(Echo::new(64).expect("a size")),
            Box::new(|_: &Request, asked: &[u8]| asked.to_vec()),
        ),
        ("rocks GET", Arc::new(Rocks::new(KEYS, 64).expect("a store")), Box::new(rocks_answer)),
        ("memcached:usr", Arc::new(store(Workload::Usr)), memcached_answer(Workload::Usr)),
        ("memcached:etc", Arc::new(store(Workload::Etc)), memcached_answer(Workload::Etc)),
    ]
}

fn memcached_answer(workload: Workload) -> Answer {
    let store = KeyValues::new(workload, KEYS, MAX_VALUE_BYTES).expect("a store");
    Box::new(move |request: &Request, _: &[u8]| {
        let key = request.ticket >> 1;
        if request.ticket & 1 == 1 {
            return b"STORED\r\n".to_vec();
        }
        let mut bytes = b"VALUE ".to_vec();
        store.write_key(key, &mut bytes);
        bytes.extend_from_slice(format!(" 0 {}\r\n", store.value_len(key)).as_bytes());
        store.write_value(key, &mut bytes);
        bytes.extend_from_slice(b"\r\nEND\r\n");
        bytes
    })
}

/// Returns the time of `batches` batches over one connection.
fn measure(protocol: &Arc<dyn Protocol>, answer: &Answer, batches: usize) -> Duration {
    // A request each 1 us of virtual time.
    let mut plan = Plan::new("1000s@1M".parse().expect("a schedule"), "const:0ns".parse().expect("one"));
    plan.arrivals = "const".parse().expect("arrivals");
    let mut generator = Generator::with_protocol(plan.clone(), Arc::clone(protocol), Medium::Stream, 1, 0)
        .expect("a plan that can be run");
    // The same requests once more, from which the answers are made.
    let mut twin =
        Generator::with_protocol(plan, Arc::clone(protocol), Medium::Stream, 1, 0).expect("the same");
    let mut lanes = Lanes::new(1, BATCH, protocol.ids(Medium::Stream));
    lanes.handle_up(0);
    let mut spent = Duration::ZERO;
    for batch in 1..=batches {
        let now_ns = (batch * BATCH) as u64 * 1_000;
        let requests: Vec<Outgoing> = std::iter::from_fn(|| twin.poll_due(now_ns)).collect();
        let begin = Instant::now();
        lanes.poll_due(&mut generator, now_ns, BATCH, |_| {});
        let sent = black_box(lanes.to_send(0)).len();
        lanes.handle_sent(0, sent);
        spent += begin.elapsed();
        let mut answers = Vec::new();
        for outgoing in &requests {
            let mut asked = Vec::new();
            twin.encode(outgoing, &mut asked);
            answers.extend(answer(&outgoing.request, &asked));
            twin.handle_connection_loss(outgoing.sequence, now_ns);
        }
        let begin = Instant::now();
        lanes.handle_bytes(0, now_ns, black_box(&answers), &mut generator).expect("right answers");
        spent += begin.elapsed();
    }
    let measurement = generator.finish((batches * BATCH) as u64 * 1_000);
    let counts = measurement.summary.counts();
    assert_eq!((counts.completed, counts.lost), ((batches * BATCH) as u64, 0), "all were answered rightly");
    spent
}

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let batches = if measured { 20_000 } else { 1 };
    for (name, protocol, answer) in cases() {
        measure(&protocol, &answer, batches / 10 + 1);
        let spent = measure(&protocol, &answer, batches);
        let each = spent.as_nanos() as f64 / (batches * BATCH) as f64;
        if measured {
            println!("{name:16} {each:6.0} ns a request, {:5.1} million a second", 1e3 / each);
        }
    }
}
