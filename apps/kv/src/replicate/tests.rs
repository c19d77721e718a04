//! Both ends of a link without a connection: what a primary writes, and what its backup answers.

use std::io::{self, BufReader, Cursor, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::apply::{Applier, Ended};
use super::backup::Replica;
use super::origin::Origin;
use super::primary::Sender;
use super::wire::{self, ACK, Ack, AckState, Invalid, Message};
use super::{Copy, OnLoss, Replication, SEND, Secret, Settings};
use crate::server::Clock;
use crate::service::Service;
use crate::store::{Config, Crawl, Expiry, Horizon, Journal, MAX_KEY, Mode, Put};

fn service(config: Config, role: impl FnOnce(&mut Settings)) -> Arc<Service> {
    let service = crate::fuzzing::service_over(config);
    let secret = Secret::decode(&"7e".repeat(16)).unwrap();
    let (timeout, on_loss) = (Duration::from_secs(3600), OnLoss::Refuse);
    let mut settings = Settings { backups: Vec::new(), on_loss, timeout, port: None, secret };
    role(&mut settings);
    Replication::prepare(&service, settings).unwrap();
    service
}

const LARGE: Config = Config { memory: 64 << 20, max_item: 1 << 20, evict: true, secret: [3, 4] };

fn primary() -> Arc<Service> {
    service(LARGE, |settings| settings.backups = vec![([127, 0, 0, 1], 1).into()])
}

fn backup(config: Config) -> Arc<Service> {
    service(config, |settings| settings.port = Some(0))
}

fn set(service: &Service, clock: Clock, key: &str, len: usize) -> u64 {
    let horizon = Horizon::default();
    let put = Put::new(Mode::Set, 0, Expiry::NEVER);
    service.store.lock(key.as_bytes(), clock.now()).within(&horizon).put(&put, &vec![b'v'; len]);
    horizon.wrote()
}

fn keys(service: &Service, clock: Clock) -> Vec<Vec<u8>> {
    let (mut keys, mut progress) = (Vec::new(), Crawl::default());
    while service.store.dump(&mut progress, clock.now(), |key, _| keys.push(key.to_vec())) {}
    keys.sort();
    keys
}

/// The connection of a primary: changes its store when so many bytes were sent, and ends it after
/// the copy.
struct Changing<'a> {
    service: &'a Service,
    journal: &'a Journal,
    clock: Clock,
    bytes: Vec<u8>,
    /// Key and number of each change, and the bytes sent before.
    changes: Vec<(String, u64, usize)>,
}

impl Write for Changing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        let (sent, round) = (self.bytes.len(), self.changes.len());
        if round < 3 && sent >= (round + 1) * 4 * SEND {
            let key = format!("new{round}");
            let number = set(self.service, self.clock, &key, 100);
            self.changes.push((key, number, sent));
        } else if matches!(self.bytes[..], [.., b'C', b'M', _, _, _, _, _, _, _, _]) {
            self.journal.detach(0);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is read: a message, and where it begins.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Item(String),
    Mark(u64),
    Complete,
    Other,
}

fn decode(bytes: &[u8]) -> Vec<(usize, Sent)> {
    let (mut at, mut messages, mut key) = (0, Vec::new(), [0; MAX_KEY]);
    while at < bytes.len() {
        let begin = at;
        let message = wire::read::<Invalid>(&mut key, |to| {
            to.copy_from_slice(&bytes[at..at + to.len()]);
            at += to.len();
            Ok(())
        });
        let sent = match message.unwrap() {
            Message::Item(key, image) => {
                at += image.value_len;
                Sent::Item(String::from_utf8(key.to_vec()).unwrap())
            }
            Message::Mark(number) => Sent::Mark(number),
            Message::Complete => Sent::Complete,
            _ => Sent::Other,
        };
        messages.push((begin, sent));
    }
    messages
}

/// The connection of a backup.
struct Scripted {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Scripted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.input.read(to)
    }
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Applies messages; returns why that ended, and the acknowledgments.
fn apply(service: &Service, clock: Clock, bytes: Vec<u8>) -> (Ended, Vec<Ack>) {
    let replica: &Replica = &service.replication.get().unwrap().replica;
    let session = replica.admit(Origin::begin(1)).unwrap();
    let stream = Scripted { input: Cursor::new(bytes), output: Vec::new() };
    let input = BufReader::new(stream);
    let mut applier =
        Applier { service, replica, session, clock, input, number: 0, since_ack: 0, value: Vec::new() };
    let Err(ended) = applier.run();
    let acks = applier.input.get_ref().output.chunks(ACK);
    (ended, acks.map(|ack| Ack::decode(ack.try_into().unwrap()).unwrap()).collect())
}

#[test]
fn changes_are_sent_between_the_items_of_a_copy() {
    let (service, clock) = (primary(), Clock::start());
    for item in 0..400 {
        set(&service, clock, &format!("old{item}"), 4000);
    }
    let journal = service.store.journal().unwrap();
    journal.attach(0, drop);
    let stream = Changing { service: &service, journal, clock, bytes: Vec::new(), changes: Vec::new() };
    let mut sender = Sender {
        service: &service,
        journal,
        backup: 0,
        clock,
        stream,
        sleep: |_| panic!("no client holds memory"),
        out: Vec::new(),
        sent: 0,
        copy: Some(Crawl::default()),
        keys: Vec::new(),
    };
    sender.run().unwrap();
    let Changing { bytes, changes, .. } = sender.stream;
    let messages = decode(&bytes);
    let complete = messages.iter().find(|(_, sent)| *sent == Sent::Complete).unwrap().0;
    assert_eq!(changes.len(), 3, "the copy is longer than the last change is late");
    for (key, number, after) in &changes {
        let later = messages.iter().filter(|(at, _)| at >= after);
        let (at, _) = later
            .skip_while(|(_, sent)| *sent != Sent::Item(key.clone()))
            .find(|(_, sent)| matches!(sent, Sent::Mark(mark) if mark >= number))
            .unwrap();
        assert!(*at < after + 3 * SEND, "{key} is marked {} bytes later", at - after);
        assert!(*at < complete, "{key} can be answered during the copy");
    }
    // A backup that takes all of it has all of it, and says so after each mark.
    let copied = backup(LARGE);
    let marks = messages.iter().filter(|(_, sent)| matches!(sent, Sent::Mark(_))).count();
    let (ended, acks) = apply(&copied, clock, bytes);
    assert!(matches!(ended, Ended::Io(_)), "{ended}");
    assert!(acks.len() >= marks, "{} acknowledgments of {marks} marks", acks.len());
    assert_eq!(acks.last().map(|ack| ack.state), Some(AckState::InStep));
    assert_eq!(copied.replication.get().unwrap().copy(), Copy::Complete);
    assert_eq!(keys(&copied, clock), keys(&service, clock));
}

#[test]
fn many_items_without_a_mark_are_acknowledged_meanwhile() {
    let (small, large) = (20_000, 100_000);
    let items = [small; 40].into_iter().chain([large; 10]);
    let mut bytes = vec![b'R'];
    for (number, value_len) in items.enumerate() {
        let image = crate::store::Image {
            flags: 0,
            cas: 1,
            expires: None,
            stale: false,
            token_sent: false,
            binary_key: false,
            value_len,
        };
        Message::Item(format!("key{number}").as_bytes(), image).encode(&mut bytes);
        bytes.resize(bytes.len() + value_len, b'v');
    }
    let (backup, clock) = (backup(LARGE), Clock::start());
    let (ended, acks) = apply(&backup, clock, bytes);
    assert!(matches!(ended, Ended::Io(_)), "{ended}");
    // 1.8 MB, one for each 256 KiB.
    assert_eq!(acks, vec![Ack { number: 0, state: AckState::Copying }; 6]);
    assert_eq!(keys(&backup, clock).len(), 50);
}
