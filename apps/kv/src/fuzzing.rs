//! Arbitrary bytes as a client's input: one model for property tests and for fuzzing.
//!
//! Owns a small store behind a connection and a datagram server, and the checks. Whatever is sent,
//! nothing panics, the store's invariants and its memory limit hold, buffers are bounded, a closed
//! connection leaves nothing pinned, and neither the pieces in which bytes arrive nor the turns in
//! which they are executed change the answer.
//! The module is no stable interface for other repositories.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::protocol::{Connection, KEPT, MAX_DATAGRAM, MAX_OUTPUT, Step, UdpServer};
use crate::service::{Registered, Service, Settings};
use crate::store::{Config, Now, Store};

const MEMORY: usize = 256 << 10;
const MAX_ITEM: usize = 32 << 10;
/// Number of further connections: more than are listed.
const PEERS: u16 = 300;
const NOW: Now = Now { seconds: 100, start_unix: 1_700_000_000 };

/// Returns a service over a store so small that items make way.
#[must_use]
pub fn service() -> Arc<Service> {
    service_over(Config { memory: MEMORY, max_item: MAX_ITEM, evict: true, secret: [1, 2] })
}

pub(crate) fn service_over(config: Config) -> Arc<Service> {
    let settings = Settings { max_connections: PEERS.into(), ..Settings::default() };
    Service::new(Store::new(config).expect("the configuration is within bounds"), settings)
}

/// Registers other clients, with addresses as long as possible.
pub(crate) fn peers(service: &Arc<Service>) -> Vec<Registered> {
    let address = |port| SocketAddr::from(([u16::MAX; 8], u16::MAX - port));
    (0..PEERS).filter_map(|port| service.register(address(port), NOW)).collect()
}

/// Sends `bytes` in pieces of up to `piece` bytes over a new connection; returns the answer.
///
/// # Panics
/// If a check fails.
#[must_use]
pub fn answers(service: &Arc<Service>, bytes: &[u8], piece: usize) -> Vec<u8> {
    converse(&mut Connection::new(Arc::clone(service)), bytes, piece)
}

/// Sends `bytes` in pieces of up to `piece` bytes over a connection; returns the answer up to where
/// it waits or closes.
///
/// # Panics
/// If a check fails.
#[must_use]
pub fn converse(connection: &mut Connection, bytes: &[u8], piece: usize) -> Vec<u8> {
    let (mut rest, mut answers) = (bytes, Vec::new());
    while !rest.is_empty() {
        let space = connection.space();
        assert!(!space.is_empty(), "a connection that waits has space");
        let len = rest.len().min(space.len()).min(piece.max(1));
        space[..len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
        connection.received(len);
        loop {
            connection.begin_turn();
            let step = connection.process(NOW);
            assert!(connection.output().len() <= MAX_OUTPUT, "{} bytes of output", connection.output().len());
            answers.extend_from_slice(connection.output());
            connection.sent();
            assert!(connection.output_memory() <= KEPT, "{} bytes are kept", connection.output_memory());
            match step {
                Step::Continue => {}
                Step::Read => break,
                Step::Close => return answers,
            }
        }
    }
    answers
}

/// Runs a client over a stream; the first byte selects the pieces in which the others arrive.
///
/// # Panics
/// If a check fails.
pub fn stream(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (whole, pieces) = (service(), service());
    let _peers = [peers(&whole), peers(&pieces)];
    let at_once = answers(&whole, bytes, usize::MAX);
    let mut divided = Connection::new(Arc::clone(&pieces));
    divided.divide_turns(1 + usize::from(first % 4));
    let in_pieces = converse(&mut divided, bytes, 1 + usize::from(first));
    drop(divided);
    for service in [&whole, &pieces] {
        service.store.check();
        assert_eq!(service.store.totals(NOW).pinned_cells, 0);
    }
    // Counts of bytes and commands are equal only at the end.
    let tells_counts = bytes.windows(5).any(|word| word == b"stats") || bytes.contains(&0x10);
    // A line that is too long ends the connection unless its end is in the buffer, which depends on
    // the pieces.
    let lines_fit = bytes.split(|&c| c == b'\n').all(|line| line.len() <= 2048);
    if !tells_counts && lines_fit {
        assert!(at_once == in_pieces, "pieces or turns change the answer");
    }
}

/// Sends a datagram twice, because the first may change what is stored.
///
/// # Panics
/// If a check fails.
pub fn datagram(data: &[u8]) {
    let service = service();
    let _peers = peers(&service);
    let mut server = UdpServer::new(&service);
    for _ in 0..2 {
        let (mut expected, mut total) = (0u16, None);
        server.handle(data, NOW, |answer| {
            assert!((9..=MAX_DATAGRAM).contains(&answer.len()));
            assert_eq!(answer[..2], data[..2]);
            assert_eq!(u16::from_be_bytes([answer[2], answer[3]]), expected);
            let count = u16::from_be_bytes([answer[4], answer[5]]);
            assert_eq!(*total.get_or_insert(count), count);
            expected += 1;
        });
        assert_eq!(total.unwrap_or(0), expected);
        service.store.check();
        assert_eq!(service.store.totals(NOW).pinned_cells, 0, "a datagram leaves nothing pinned");
    }
}
