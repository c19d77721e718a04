//! Both ends of a link without a connection: what a primary writes, and what its backup answers.

use std::io::{self, BufReader, Cursor, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::apply::{Applier, Ended};
use super::backup::Replica;
use super::origin::Origin;
use super::primary::Sender;
use super::wire::{self, ACK, Ack, AckState, Invalid, Message};
use super::{Copy, OnLoss, SEND, Secret, Settings};
use crate::clock::Clock;
use crate::service::Service;
use crate::store::{
    Config, Crawl, Expiry, Horizon, Image, Journal, MAX_KEY, Mode, Pinned, Put, Room, Stored,
};

fn service(config: Config, role: impl FnOnce(&mut Settings)) -> Arc<Service> {
    let service = crate::fuzzing::service_over(config);
    let secret = Secret::decode(&"7e".repeat(16)).unwrap();
    let (timeout, on_loss) = (Duration::from_secs(3600), OnLoss::Refuse);
    let mut settings = Settings { backups: Vec::new(), on_loss, timeout, port: None, secret };
    role(&mut settings);
    service.replicate(settings).unwrap();
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

fn sender<T: Write>(service: &Service, clock: Clock, stream: T) -> Sender<'_, T> {
    Sender {
        replication: service.replication.get().unwrap(),
        journal: service.store.journal().unwrap(),
        backup: 0,
        clock,
        stream,
        sleep: |_| panic!("no client keeps it waiting"),
        out: Vec::new(),
        sent: 0,
        time: i64::MIN,
        copy: Some(Crawl::default()),
        keys: Vec::new(),
    }
}

fn image(expires: Option<i64>, value_len: usize) -> Image {
    let (stale, token_sent, binary_key) = (false, false, false);
    Image { flags: 0, cas: 1, expires, stale, token_sent, binary_key, value_len }
}

/// Appends an item's message and value.
fn push_item(bytes: &mut Vec<u8>, key: &str, image: Image) {
    Message::Item(key.as_bytes(), image).encode(bytes);
    bytes.resize(bytes.len() + image.value_len, b'v');
}

/// What is read.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Item(String),
    Time(i64),
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
            Message::Time(unix) => Sent::Time(unix),
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
    let (store, replica): (_, &Replica) = (&service.store, &service.replication.get().unwrap().replica);
    let session = replica.admit(Origin::begin(1)).unwrap();
    let stream = Scripted { input: Cursor::new(bytes), output: Vec::new() };
    let (input, value) = (BufReader::new(stream), Vec::new());
    let mut applier =
        Applier { store, replica, session, clock, input, number: 0, time: i64::MIN, since_ack: 0, value };
    let Err(ended) = applier.run();
    let acks = applier.input.get_ref().output.chunks(ACK);
    (ended, acks.map(|ack| Ack::decode(ack.try_into().unwrap()).unwrap()).collect())
}

#[test]
fn changes_are_sent_between_the_items_of_a_copy() {
    let (service, clock) = (primary(), Clock::start());
    let before = clock.now().unix();
    for item in 0..400 {
        set(&service, clock, &format!("old{item}"), 4000);
    }
    let journal = service.store.journal().unwrap();
    journal.attach(0, drop);
    let stream = Changing { service: &service, journal, clock, bytes: Vec::new(), changes: Vec::new() };
    let mut sender = sender(&service, clock, stream);
    sender.run().unwrap();
    let Changing { bytes, changes, .. } = sender.stream;
    let messages = decode(&bytes);
    let complete = messages.iter().find(|(_, sent)| *sent == Sent::Complete).unwrap().0;
    // A backup knows the second in which the first item may have been stored.
    let early = messages.iter().find(|(_, sent)| matches!(sent, Sent::Time(_) | Sent::Item(_)));
    assert!(matches!(early, Some((_, Sent::Time(unix))) if (before..=clock.now().unix()).contains(unix)));
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
        push_item(&mut bytes, &format!("key{number}"), image(None, value_len));
    }
    let (backup, clock) = (backup(LARGE), Clock::start());
    let (ended, acks) = apply(&backup, clock, bytes);
    assert!(matches!(ended, Ended::Io(_)), "{ended}");
    // 1.8 MB, one for each 256 KiB.
    assert_eq!(acks, vec![Ack { number: 0, state: AckState::Copying }; 6]);
    assert_eq!(keys(&backup, clock).len(), 50);
}

/// A store that does not evict, of a few shards.
fn tight() -> Config {
    let secret = Secret::decode(&"7e".repeat(16)).unwrap().hash_keys();
    Config { memory: 4 << 20, max_item: 64 << 10, evict: false, secret }
}

#[test]
fn a_full_store_that_does_not_evict_fits_into_the_same_memory() {
    let clock = Clock::start();
    let full = service(tight(), |settings| settings.backups = vec![([127, 0, 0, 1], 1).into()]);
    assert!(full.store.room().shards > 1);
    let (mut refused, put) = (0, Put::new(Mode::Set, 0, Expiry::NEVER));
    for number in 0.. {
        let (key, value) = (format!("key{number}"), vec![b'v'; number * 7919 % 40_000]);
        let stored = full.store.lock(key.as_bytes(), clock.now()).put(&put, &value);
        refused += u32::from(stored == Stored::NoMemory);
        if refused == 300 {
            break;
        }
    }
    let journal = full.store.journal().unwrap();
    journal.attach(0, drop);
    // No key of it is changed.
    let changes = (0..3).map(|_| (String::new(), 0, 0)).collect();
    let stream = Changing { service: &full, journal, clock, bytes: Vec::new(), changes };
    let mut sender = sender(&full, clock, stream);
    sender.run().unwrap();
    let copied = backup(tight());
    let (ended, acks) = apply(&copied, clock, sender.stream.bytes);
    assert!(matches!(ended, Ended::Io(_)), "{ended}");
    assert_eq!(acks.last().map(|ack| ack.state), Some(AckState::InStep));
    assert_eq!(keys(&copied, clock), keys(&full, clock));
}

#[test]
fn stores_that_do_not_evict_must_share_a_hash_function() {
    let other = crate::fuzzing::service_over(Config { secret: [1, 2], ..tight() });
    let (secret, timeout) = (Secret::decode(&"7e".repeat(16)).unwrap(), Duration::from_secs(1));
    let settings = Settings { backups: Vec::new(), on_loss: OnLoss::Refuse, timeout, port: Some(0), secret };
    assert!(other.replicate(settings).unwrap_err().to_string().contains("hash keys"));
}

/// One shard, in which a value that is received piece by piece is a large part.
const ONE_SHARD: Config = Config { memory: 512 << 10, max_item: 64 << 10, evict: true, secret: [3, 4] };

#[test]
fn dead_items_make_room_in_a_store_that_does_not_evict() {
    let clock = Clock::start();
    for large in [1000, 40_000] {
        let store = backup(Config { evict: false, secret: tight().secret, ..ONE_SHARD });
        let mut bytes = vec![b'R'];
        push_item(&mut bytes, "living", image(None, 1000));
        // More than fit, if they lived; the oldest item, which is looked at first, does.
        for number in 0..600 {
            push_item(&mut bytes, &format!("dead{number}"), image(Some(1), 1000));
        }
        push_item(&mut bytes, "last", image(None, large));
        let (ended, acks) = apply(&store, clock, bytes);
        assert!(matches!(ended, Ended::Io(_)), "{ended}");
        assert_eq!(keys(&store, clock), [b"last".to_vec(), b"living".to_vec()]);
        // Two for 768 KiB, and one for each time that no room was found.
        assert!(acks.len() > 2, "{large}: {acks:?}");
    }
}

#[test]
fn items_that_are_dead_by_the_primarys_clock_make_room() {
    let clock = Clock::start();
    let dies = clock.now().unix() + 100_000;
    let config = Config { evict: false, secret: tight().secret, ..ONE_SHARD };
    let (probe, put) = (backup(config), Put::new(Mode::Set, 0, Expiry::NEVER));
    let fit = (0..1000).take_while(|number| {
        let key = format!("dead{number:03}");
        let stored = probe.store.lock(key.as_bytes(), clock.now()).put(&put, &[b'v'; 1000]);
        matches!(stored, Stored::Stored { .. })
    });
    let fit = fit.count();
    for (passes, large) in [(true, 1000), (true, 40_000), (false, 1000)] {
        let store = backup(config);
        let mut bytes = vec![b'R'];
        push_item(&mut bytes, "living", image(Some(dies + 1), 1000));
        // They fill the store, and live by the clock of the backup.
        for number in 1..fit {
            push_item(&mut bytes, &format!("dead{number:03}"), image(Some(dies), 1000));
        }
        Message::Time(dies - i64::from(!passes)).encode(&mut bytes);
        push_item(&mut bytes, "last", image(None, large));
        let (ended, _) = apply(&store, clock, bytes);
        if passes {
            assert!(matches!(ended, Ended::Io(_)), "{ended}");
            assert_eq!(keys(&store, clock), [b"last".to_vec(), b"living".to_vec()]);
        } else {
            assert!(matches!(ended, Ended::NoRoom), "{ended}");
        }
    }
}

#[test]
fn a_sweep_is_of_one_keys_shard() {
    let clock = Clock::start();
    let store = &backup(tight()).store;
    for number in 0..100 {
        let put = Put::new(Mode::Set, 0, Expiry::decode(-1, clock.now()));
        store.lock(format!("dead{number}").as_bytes(), clock.now()).put(&put, b"v");
    }
    let (mut bucket, mut steps) = (0, 1);
    while !store.sweep(b"dead0", &mut bucket, clock.now()) {
        steps += 1;
    }
    let left = store.totals(clock.now()).items;
    assert!(steps > 1 && (1..100).contains(&left), "{steps} {left}");
}

/// Has clients pin as much as they may; returns what they hold.
fn pin_all(service: &Service, clock: Clock) -> Vec<Pinned> {
    (0..100)
        .map_while(|number| {
            let key = format!("slow{number}");
            set(service, clock, &key, 20_000);
            let mut locked = service.store.lock(key.as_bytes(), clock.now());
            let (_, hit) = locked.image().unwrap();
            locked.pin(&hit)
        })
        .collect()
}

#[test]
fn slow_clients_keep_no_memory_from_a_link() {
    let clock = Clock::start();
    let backup = backup(ONE_SHARD);
    let held = pin_all(&backup, clock);
    assert!((5..100).contains(&held.len()), "{}", held.len());
    let mut bytes = vec![b'R'];
    push_item(&mut bytes, "large", image(None, 60_000));
    let (ended, _) = apply(&backup, clock, bytes);
    assert!(matches!(ended, Ended::Io(_)), "{ended}");
    assert_eq!(keys(&backup, clock), [b"large".to_vec()]);
    held.into_iter().for_each(|pinned| backup.store.release(pinned));
    // At the primary, where each value is sent piece by piece.
    let primary = service(ONE_SHARD, |settings| settings.backups = vec![([127, 0, 0, 1], 1).into()]);
    set(&primary, clock, "large", 60_000);
    let held = pin_all(&primary, clock);
    let journal = primary.store.journal().unwrap();
    journal.attach(0, drop);
    let changes = (0..3).map(|_| (String::new(), 0, 0)).collect();
    let stream = Changing { service: &primary, journal, clock, bytes: Vec::new(), changes };
    let mut sender = sender(&primary, clock, stream);
    sender.run().unwrap();
    let sent = decode(&sender.stream.bytes);
    assert!(sent.iter().any(|(_, sent)| *sent == Sent::Item("large".to_owned())), "{sent:?}");
    held.into_iter().for_each(|pinned| primary.store.release(pinned));
    for service in [&backup, &primary] {
        service.store.check();
        assert_eq!(service.store.totals(clock.now()).pinned_cells, 0);
    }
}

#[test]
fn what_holds_a_full_store_depends_on_its_shards() {
    let room = |shards, cells| Room { shards, cells };
    let primary = room(4, 100);
    assert!(primary.holds(primary) && !primary.holds(room(4, 101)));
    // All items of one of its shards may be in one shard of the other.
    assert!(room(8, 100).holds(primary) && !room(8, 99).holds(primary));
    assert!(room(2, 200).holds(primary) && !room(2, 199).holds(primary));
    assert!(!room(1, u64::MAX).holds(room(u64::MAX, u64::MAX)) && !room(0, 5).holds(primary));
}
