//! The sender against a random peer and path: everything arrives in the end, and the sender's count
//! of data in flight is right whenever the peer's reports are.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Steps after which an unfinished stream counts as stuck.
const MAX_STEPS: u32 = 40_000;

#[derive(Clone, Debug)]
struct Path {
    algorithm: Algorithm,
    sack: bool,
    stamps: bool,
    /// In percent.
    loss: u32,
    ack_loss: u32,
    reordering: u32,
    duplication: u32,
    marks: u32,
    delay_us: u64,
    bytes: u32,
    seed: u64,
}

fn path() -> impl Strategy<Value = Path> {
    let algorithm = prop_oneof![Just(Algorithm::NewReno), Just(Algorithm::Cubic), Just(Algorithm::Dctcp)];
    let faults = (0_u32..30, 0_u32..30, 0_u32..40, 0_u32..10, 0_u32..10);
    let rest = (10_u64..200_000, 1_u32..150_000, any::<u64>());
    (algorithm, any::<bool>(), any::<bool>(), faults, rest).prop_map(
        |(algorithm, sack, stamps, faults, rest)| {
            let (loss, ack_loss, reordering, duplication, marks) = faults;
            let (delay_us, bytes, seed) = rest;
            Path {
                algorithm,
                sack,
                stamps,
                loss,
                ack_loss,
                reordering,
                duplication,
                marks,
                delay_us,
                bytes,
                seed,
            }
        },
    )
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.next() % 100 < u64::from(percent)
    }
}

#[derive(Debug)]
enum Packet {
    Data { from: u32, to: u32, stamp: Instant },
    Ack { ack: u32, sack: Vec<(u32, u32)>, echo: Instant },
}

/// Both ends and what is between them; positions count from the first byte of data.
struct World {
    path: Path,
    bed: Bed,
    dice: Dice,
    wire: BTreeMap<(Instant, u64), Packet>,
    packets: u64,
    /// The peer: what it has acknowledged, what it holds beyond that, and the last timestamp in
    /// order.
    received: u32,
    beyond: Vec<bool>,
    echo: Instant,
}

impl World {
    fn new(path: Path) -> Self {
        let bed = Bed::new(path.algorithm, path.sack, path.stamps);
        let beyond = vec![false; path.bytes as usize];
        let dice = Dice(path.seed);
        Self { path, bed, dice, wire: BTreeMap::new(), packets: 0, received: 0, beyond, echo: Instant(0) }
    }

    fn throw(&mut self, packet: Packet, loss: u32) {
        if self.dice.percent(loss) {
            return;
        }
        let mut at = self.bed.now + us(self.path.delay_us);
        if self.dice.percent(self.path.reordering) {
            at = at + us(self.dice.next() % (self.path.delay_us * 2));
        }
        self.packets += 1;
        self.wire.insert((at, self.packets), packet);
    }

    fn data(&mut self, range: Range) {
        let (from, to) = (range.start - DATA, range.end - DATA);
        let copies = if self.dice.percent(self.path.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            self.throw(Packet::Data { from, to, stamp: self.bed.now }, self.path.loss);
        }
    }

    fn transmit(&mut self) {
        for _ in 0..2_000 {
            let (now, sent) = (self.bed.now, self.bed.sender.nxt() - DATA);
            let left = self.path.bytes - sent;
            if let Some(range) = self.bed.sender.next_retransmission(left > 0) {
                assert!(range.len() <= MSS && range.start >= self.bed.sender.una());
                self.bed.sender.on_retransmitted(range, now);
                self.data(range);
            } else {
                let bytes = left.min(MSS);
                if bytes == 0 || self.bed.sender.may_send_new(now) < bytes {
                    self.bed.sender.check();
                    return;
                }
                let range = Range::new(DATA + sent, bytes);
                self.bed.sender.on_sent(range, now);
                self.data(range);
            }
        }
        panic!("transmits without end: {:?}", self.bed.sender);
    }

    fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Data { from, to, stamp } => {
                let held = self.beyond[from as usize..to as usize].iter().all(|held| *held);
                if from <= self.received {
                    self.echo = self.echo.max(stamp);
                }
                self.beyond[from as usize..to as usize].fill(true);
                while self.beyond.get(self.received as usize) == Some(&true) {
                    self.received += 1;
                }
                let mut sack = Vec::new();
                if self.path.sack {
                    if held {
                        sack.push((from, to));
                    }
                    sack.extend(self.blocks(from));
                }
                let packet = Packet::Ack { ack: self.received, sack, echo: self.echo };
                self.throw(packet, self.path.ack_loss);
            }
            Packet::Ack { ack, sack, echo } => {
                let sack: Vec<_> =
                    sack.iter().map(|&(from, to)| Range { start: DATA + from, end: DATA + to }).collect();
                let info = AckInfo {
                    ack: DATA + ack,
                    sack: &sack,
                    echoed: self.path.stamps.then_some(echo),
                    ecn_echo: self.dice.percent(self.path.marks),
                    may_be_duplicate: true,
                };
                let una = self.bed.sender.una();
                let acked = self.bed.sender.on_ack(&info, self.bed.now).expect("sent");
                assert_eq!(self.bed.sender.una(), una + acked.acked);
                self.bed.sender.check();
            }
        }
    }

    /// Returns at most three ranges beyond the acknowledged data, the one around `newest` first.
    fn blocks(&self, newest: u32) -> Vec<(u32, u32)> {
        let (mut blocks, mut at) = (Vec::new(), self.received as usize);
        while let Some(start) = self.beyond[at..].iter().position(|held| *held).map(|gap| at + gap) {
            let end = self.beyond[start..]
                .iter()
                .position(|held| !held)
                .map_or(self.beyond.len(), |len| start + len);
            blocks.push((start as u32, end as u32));
            at = end;
        }
        blocks.sort_by_key(|&(start, end)| !(start..end).contains(&newest));
        blocks.truncate(3);
        blocks
    }

    fn run(&mut self) {
        for _ in 0..MAX_STEPS {
            self.transmit();
            if self.bed.sender.una() == DATA + self.path.bytes {
                assert!(self.bed.sender.next_timeout().is_none() && self.bed.sender.in_flight() == 0);
                return;
            }
            let timer = self.bed.sender.next_timeout().expect("something is unacknowledged");
            match self.wire.first_key_value() {
                Some((&(at, number), _)) if at <= timer => {
                    self.bed.now = self.bed.now.max(at);
                    let packet = self.wire.remove(&(at, number)).expect("the first");
                    self.arrive(packet);
                }
                _ => {
                    self.bed.now = self.bed.now.max(timer);
                    assert_ne!(
                        self.bed.sender.on_timeout(self.bed.now),
                        Timeout::None,
                        "a timer for nothing"
                    );
                    self.bed.sender.check();
                }
            }
        }
        panic!("stuck: {:?}", self.bed.sender);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_byte_is_delivered_whatever_the_path_does(path in path()) {
        World::new(path).run();
    }

    #[test]
    fn a_path_without_faults_is_never_sent_anything_twice(
        path in path(),
        stamps: bool,
    ) {
        let path = Path { loss: 0, ack_loss: 0, reordering: 0, duplication: 0, stamps, ..path };
        // The handshake measured 100 ms; on a path longer than twice that, a spurious time-out is
        // not the sender's mistake.
        let path = Path { delay_us: path.delay_us.min(90_000), ..path };
        let bytes = path.bytes.div_ceil(MSS);
        let mut world = World::new(path);
        world.run();
        prop_assert!(world.packets <= u64::from(2 * bytes), "{} packets for {bytes} segments", world.packets);
    }

    /// Applies arbitrary acknowledgements of sent data: nothing breaks, and the counts are right.
    #[test]
    fn no_acknowledgement_breaks_the_accounts(
        sack: bool,
        acks in prop::collection::vec(
            (0_u32..40, prop::collection::vec((0_u32..60_000, 0_u32..9_000), 0..5), any::<bool>(), 0_u64..300_000),
            1..60,
        ),
    ) {
        let mut bed = Bed::new(Algorithm::Cubic, sack, true);
        for (advance, blocks, mark, wait) in acks {
            bed.fill();
            bed.wait(us(wait));
            bed.sender.on_timeout(bed.now);
            bed.resend();
            let una = bed.sender.una();
            let blocks: Vec<_> = blocks.iter().map(|&(at, len)| Range::new(DATA + at, len)).collect();
            let info = AckInfo {
                ack: una + advance * 333,
                sack: &blocks,
                echoed: Some(Instant(bed.now.0 / 2)),
                ecn_echo: mark,
                may_be_duplicate: mark,
            };
            match bed.sender.on_ack(&info, bed.now) {
                Ok(acked) => prop_assert_eq!(acked.acked, advance * 333),
                Err(AckError::Unsent { ack, nxt }) => prop_assert!(ack > nxt),
            }
            bed.sender.check();
        }
    }
}
