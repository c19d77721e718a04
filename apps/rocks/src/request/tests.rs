//! Every operation, and every kind of invalid request.

use proptest::prelude::*;
use tailwater_workload::rocks::ScanSum;

use super::*;
use crate::store::Config;

struct Bench {
    store: Store,
    limits: Limits,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tailwater_testkit::memory_folder();
        let store = Store::open(&Config::new(&folder.path().join("db"))).unwrap();
        Self { store, limits: Limits { scan: 100, value: 70_000, ..Limits::default() }, _folder: folder }
    }

    /// Returns the reply's header without id and key, which are checked, and its body.
    fn ask(&self, operation: Operation, key: u64, count: u32, body: &[u8]) -> (Status, u32, Vec<u8>) {
        let header = Header { body_len: body.len() as u32, ..Header::request(operation, 77, key, count) };
        let bytes = [&header.encode()[..], body].concat();
        let mut reply = b"what was there".to_vec();
        let status = handle(&bytes, &self.store, &self.limits, MAX_DATAGRAM, &mut || (), &mut reply).unwrap();
        let answer = Header::decode(&reply).unwrap();
        assert_eq!((answer.operation, answer.id, answer.key), (operation, 77, key));
        assert_eq!(answer.status, Some(status));
        assert_eq!(answer.body_len as usize, reply.len() - HEADER_LEN);
        (status, answer.count, reply[HEADER_LEN..].to_vec())
    }
}

#[test]
fn each_operation_is_answered() {
    use Operation::{Get, Put, Scan};
    let bench = Bench::new();
    assert_eq!(bench.ask(Get, 5, 0, b""), (Status::NotFound, 0, vec![]));
    assert_eq!(bench.ask(Put, 5, 0, b"five"), (Status::Done, 1, vec![]));
    assert_eq!(bench.ask(Put, 9, 0, b""), (Status::Done, 1, vec![]));
    assert_eq!(bench.ask(Get, 5, 0, b""), (Status::Done, 1, b"five".to_vec()));
    assert_eq!(bench.ask(Get, 9, 0, b""), (Status::Done, 1, vec![]));
    let sum = |keys, value_bytes| ScanSum { keys, value_bytes }.encode().to_vec();
    assert_eq!(bench.ask(Scan, 0, 100, b""), (Status::Done, 2, sum(14, 4)));
    assert_eq!(bench.ask(Scan, 6, 1, b""), (Status::Done, 1, sum(9, 0)));
    assert_eq!(bench.ask(Scan, 10, 100, b""), (Status::Done, 0, sum(0, 0)));
    assert_eq!(bench.ask(Scan, 0, 0, b""), (Status::Done, 0, sum(0, 0)));
}

#[test]
fn what_is_too_much_or_makes_no_sense_is_refused() {
    use Operation::{Get, Put, Scan};
    let bench = Bench::new();
    let refused = (Status::Refused, 0, vec![]);
    assert_eq!(bench.ask(Scan, 0, 101, b""), refused);
    assert_eq!(bench.ask(Scan, 0, 1, b"body"), refused);
    assert_eq!(bench.ask(Get, 0, 1, b""), refused);
    assert_eq!(bench.ask(Get, 0, 0, b"body"), refused);
    assert_eq!(bench.ask(Put, 0, 1, b"x"), refused);
    assert_eq!(bench.ask(Put, 0, 0, &vec![1; 70_001]), refused);
    assert_eq!(bench.ask(Get, 0, 0, b"").0, Status::NotFound, "nothing was stored");
    // Stored over TCP, for example; no datagram holds it.
    assert_eq!(bench.ask(Put, 1, 0, &vec![1; MAX_DATAGRAM - HEADER_LEN + 1]).0, Status::Done);
    assert_eq!(bench.ask(Get, 1, 0, b""), refused);
}

#[test]
fn what_is_no_request_is_not_done() {
    let bench = Bench::new();
    let request = Header { body_len: 1, ..Header::request(Operation::Put, 1, 2, 0) };
    let reply = Header { status: Some(Status::Done), ..request };
    let put = request.encode();
    for bytes in
        [&put[..], &[&put[..], b"ab"].concat(), &[&reply.encode()[..], b"a"].concat(), b"", &put[..31]]
    {
        let mut out = Vec::new();
        let result = handle(bytes, &bench.store, &bench.limits, MAX_MESSAGE, &mut || (), &mut out);
        assert_eq!(result, Err(NoRequest));
    }
    assert_eq!(bench.ask(Operation::Get, 2, 0, b"").0, Status::NotFound);
}

#[test]
fn any_bytes_give_a_reply_of_the_protocol_or_none() {
    let bench = Bench::new();
    proptest!(|(mut bytes in prop::collection::vec(any::<u8>(), 0..64), operation in 0..5u8, plausible: bool)| {
        if plausible && bytes.len() >= HEADER_LEN {
            bytes[..8].copy_from_slice(&[b'T', b'W', b'r', b'k', 1, operation, 0, 0]);
            let body_len = (bytes.len() - HEADER_LEN) as u32;
            bytes[28..32].copy_from_slice(&body_len.to_le_bytes());
        }
        let mut reply = Vec::new();
        if let Ok(status) = handle(&bytes, &bench.store, &bench.limits, MAX_DATAGRAM, &mut || (), &mut reply) {
            let answer = Header::decode(&reply).unwrap();
            prop_assert_eq!(answer.status, Some(status));
            prop_assert_eq!(answer.body_len as usize, reply.len() - HEADER_LEN);
        }
    });
}
