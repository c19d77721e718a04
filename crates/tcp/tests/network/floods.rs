//! Peers who want memory or time rather than data.

use core::time::Duration;

use tailwater_tcp::listen::{Arrival, ListenConfig};
use tailwater_tcp::segment::{Options, SackBlock};
use tailwater_tcp::{
    Answer, Config, Connection, EcnCodepoint, Flags, Flow, Header, InitialNumbers, Instant, Listener,
    Opening, Secret, Segment, Seq, State, Transmit,
};

use crate::dice::Dice;

const NOW: Instant = Instant(1_000_000_000);
const PEER: Seq = Seq(5_000);

fn opening() -> Opening {
    let numbers = InitialNumbers { seq: Seq(u32::MAX - 9_000), timestamp_offset: 0 };
    Opening { local_port: 1_000, remote_port: 80, numbers, path_mss: 1_460, default_mss: 536 }
}

/// A victim, and what its peer says next.
struct Victim {
    connection: Connection,
    now: Instant,
    /// What the peer acknowledges: all that was sent.
    sent_to: Seq,
    segments: u32,
}

impl Victim {
    fn new(config: &Config, window: u16) -> Self {
        let mut connection = Connection::connect(config, &opening(), NOW);
        let mut victim = {
            let mut sent_to = Seq(0);
            let transmit = connection.poll_transmit(NOW, |outgoing| {
                sent_to = outgoing.header.seq + 1;
                Ok(())
            });
            assert_eq!(transmit, Transmit::Sent);
            Self { connection, now: NOW, sent_to, segments: 0 }
        };
        let options = Options { mss: Some(1_460), sack_permitted: true, ..Options::default() };
        let header = Header { options, ..victim.header(Flags::SYN | Flags::ACK, PEER, window) };
        victim.hear(header, &[]);
        assert_eq!(victim.connection.state(), State::Established);
        victim
    }

    fn header(&self, flags: Flags, seq: Seq, window: u16) -> Header {
        Header {
            source: 80,
            destination: 1_000,
            seq,
            ack: self.sent_to,
            flags,
            window,
            options: Options::default(),
        }
    }

    /// Hears a segment and says all it wants to. Returns how many segments that was.
    fn hear(&mut self, header: Header, payload: &[u8]) -> u32 {
        let _ = self.connection.handle_segment(self.now, &Segment { header, payload }, EcnCodepoint::NotEct);
        self.speak()
    }

    fn speak(&mut self) -> u32 {
        for said in 0..1_000 {
            let mut end = self.sent_to;
            let transmit = self.connection.poll_transmit(self.now, |outgoing| {
                end = outgoing.header.seq + outgoing.payload.len() as u32;
                Ok(())
            });
            self.connection.check();
            if transmit != Transmit::Sent {
                return said;
            }
            self.sent_to = self.sent_to.max(end);
            self.segments += 1;
        }
        panic!("never stops: {:?}", self.connection.stats());
    }
}

fn client(number: u32) -> Flow {
    let [_, a, b, c] = number.to_be_bytes();
    Flow {
        local: [10, 0, 0, 2].into(),
        remote: [10, a, b, c].into(),
        local_port: 80,
        remote_port: 1 + (number % 60_000) as u16,
    }
}

#[test]
fn a_flood_of_syns_fills_the_queue_and_no_more_and_real_clients_still_get_in() {
    let config = ListenConfig { syn_queue: 64, ..ListenConfig::default() };
    let mut listener = Listener::new(config, Secret([3; 16]));
    let options = Options { mss: Some(1_460), ..Options::default() };
    for number in 0..50_000 {
        let flow = client(number);
        let header = Header {
            source: flow.remote_port,
            destination: 80,
            seq: Seq(number),
            ack: Seq(0),
            flags: Flags::SYN,
            window: 1_000,
            options,
        };
        let segment = Segment { header, payload: &[] };
        let arrival =
            Arrival { flow, segment, ecn: EcnCodepoint::NotEct, path_mss: 1_460, room: true, iss: None };
        let answer = listener.handle_segment(NOW, &arrival);
        assert!(listener.pending() <= 64);
        if number % 10_000 != 9_999 {
            continue;
        }
        // This one is real, and answers.
        let Answer::Reply(syn_ack) = answer else { panic!("no answer to {number}: {answer:?}") };
        let header = Header { seq: header.seq + 1, ack: syn_ack.seq + 1, flags: Flags::ACK, ..header };
        let header = Header { options: Options::default(), ..header };
        let segment = Segment { header, payload: &[] };
        let answer = listener.handle_segment(NOW, &Arrival { segment, ..arrival });
        assert!(matches!(answer, Answer::Accept(..)), "{number}: {answer:?}");
    }
}

#[test]
fn resets_and_fins_with_wrong_numbers_neither_end_a_connection_nor_are_all_answered() {
    let mut victim = Victim::new(&Config::default(), 1_000);
    let mut dice = Dice(1);
    let mut answers = 0;
    for _ in 0..50_000 {
        let flags = if dice.one_in(2) { Flags::RST } else { Flags::FIN | Flags::ACK };
        let seq = PEER + 1 + dice.between(1, (1 << 31) - 2) as u32;
        answers += victim.hear(victim.header(flags, seq, 1_000), &[]);
    }
    assert_eq!(victim.connection.state(), State::Established);
    // A FIN ahead of its time is answered like data out of order; the rest by at most ten
    // challenges.
    assert!(answers <= 50_000, "{answers}");
    assert!(victim.connection.stats().challenge_acks <= 10, "{:?}", victim.connection.stats());
    assert!(victim.connection.stats().heap_bytes < 64 << 10);
}

#[test]
fn resets_fins_and_stray_acks_to_a_listener_leave_nothing_behind() {
    let mut listener = Listener::new(ListenConfig::default(), Secret([3; 16]));
    let kinds = [
        Flags::RST,
        Flags::RST | Flags::ACK,
        Flags::FIN,
        Flags::FIN | Flags::ACK,
        Flags::SYN | Flags::FIN,
        Flags::SYN | Flags::ACK,
        Flags::ACK,
        Flags::empty(),
    ];
    for number in 0..50_000 {
        let (flow, flags) = (client(number / 8), kinds[number as usize % 8]);
        let header = Header {
            source: flow.remote_port,
            destination: 80,
            seq: Seq(number),
            ack: Seq(number.wrapping_mul(2_654_435_761)),
            flags,
            window: 1_000,
            options: Options::default(),
        };
        let segment = Segment { header, payload: &[] };
        let arrival =
            Arrival { flow, segment, ecn: EcnCodepoint::NotEct, path_mss: 1_460, room: true, iss: None };
        match listener.handle_segment(NOW, &arrival) {
            Answer::Ignore => {}
            // Only what acknowledges something is told that there is nothing (RFC 9293 section
            // 3.10.7.2).
            Answer::Reply(answer) => {
                assert!(
                    answer.flags == Flags::RST && flags.contains(Flags::ACK) && !flags.contains(Flags::RST)
                );
            }
            accepted @ Answer::Accept(..) => panic!("{flags:?}: {accepted:?}"),
        }
        assert_eq!((listener.pending(), listener.next_timeout()), (0, None));
    }
}

#[test]
fn peers_that_never_open_their_window_cost_what_was_queued_and_a_probe_a_minute() {
    // Sockstress: many connections whose window stays closed, every probe answered, for an hour.
    const QUEUED: usize = 10_000;
    let mut victims: Vec<_> = (0..200).map(|_| Victim::new(&Config::default(), 0)).collect();
    let end = NOW + Duration::from_hours(1);
    for victim in &mut victims {
        victim.connection.send(&[1; QUEUED]).expect("room");
        victim.speak();
        while let Some(at) = victim.connection.next_timeout().filter(|&at| at <= end) {
            victim.now = victim.now.max(at);
            let _ = victim.connection.handle_timeout(victim.now);
            if victim.speak() > 0 {
                victim.hear(victim.header(Flags::ACK, PEER + 1, 0), &[]);
            }
        }
        // As long as it answers it is alive (RFC 9293 section 3.8.6.1).
        assert_eq!((victim.connection.state(), victim.connection.error()), (State::Established, None));
        assert!(victim.segments <= 100, "{} segments", victim.segments);
    }
    let heap: usize = victims.iter().map(|victim| victim.connection.stats().heap_bytes).sum();
    assert!(heap <= victims.len() * (QUEUED.next_power_of_two() + 256), "{heap} bytes");
    // No connection waits for a peer after its application has gone.
    for victim in &mut victims {
        victim.now = end;
        let _ = victim.connection.release(end);
        while !victim.connection.is_closed() {
            let at = victim.connection.next_timeout().expect("an end");
            victim.now = victim.now.max(at);
            assert!(victim.now <= end + Duration::from_mins(6), "{:?}", victim.connection.state());
            let _ = victim.connection.handle_timeout(victim.now);
            if victim.speak() > 0 {
                victim.hear(victim.header(Flags::ACK, PEER + 1, 0), &[]);
            }
        }
        assert_eq!(victim.connection.stats().heap_bytes, 0);
    }
}

#[test]
fn a_flood_of_segments_out_of_order_costs_no_more_than_the_buffer() {
    let config = Config { receive_buffer: 64 << 10, ..Config::default() };
    let mut victim = Victim::new(&config, 1_000);
    let mut dice = Dice(2);
    let payload = [7; 100];
    for _ in 0..50_000 {
        let len = dice.between(1, 100) as usize;
        let seq = PEER + 2 + dice.below(1 << 17) as u32;
        victim.hear(victim.header(Flags::ACK, seq, 1_000), &payload[..len]);
        let heap = victim.connection.stats().heap_bytes;
        assert!(heap <= 256 << 10, "{heap} bytes");
    }
    assert_eq!(victim.connection.readable_bytes(), 0, "the first byte never came");
}

#[test]
fn sacks_of_single_bytes_cost_bounded_work_and_memory() {
    let config = Config { send_buffer: 1 << 20, ..Config::default() };
    let mut victim = Victim::new(&config, u16::MAX);
    victim.connection.send(&vec![1; 1 << 20]).expect("room");
    victim.speak();
    let first = victim.header(Flags::ACK, PEER + 1, u16::MAX).ack;
    let una = first + (u32::MAX - (14_600 - 1));
    let mut dice = Dice(3);
    for round in 0..20_000 {
        let mut header = victim.header(Flags::ACK, PEER + 1, u16::MAX);
        header.ack = una;
        for _ in 0..3 {
            let start = una + dice.below(14_000) as u32;
            header.options.sack.push(SackBlock { start, end: start + 1 });
        }
        let said = victim.hear(header, &[]);
        assert!(said <= 100, "{said} segments for one, in round {round}");
    }
    assert_eq!(victim.connection.state(), State::Established);
}

#[test]
fn a_window_of_one_byte_or_none_does_not_make_small_segments_without_end() {
    // Sockstress and the silly window: the peer acknowledges, and opens by one byte each time.
    let mut victim = Victim::new(&Config::default(), 0);
    victim.connection.send(&[1; 100_000]).expect("room");
    victim.speak();
    for _ in 0..2_000 {
        let Some(at) = victim.connection.next_timeout() else {
            panic!(
                "the window is not probed: {:?} {:?}",
                victim.connection.state(),
                victim.connection.stats()
            );
        };
        victim.now = victim.now.max(at);
        let _ = victim.connection.handle_timeout(victim.now);
        victim.speak();
        if victim.connection.is_closed() {
            break;
        }
        victim.hear(victim.header(Flags::ACK, PEER + 1, 1), &[]);
    }
    let stats = victim.connection.stats();
    assert!(victim.segments <= 8_000, "{} segments: {stats:?}", victim.segments);
    assert!(stats.heap_bytes <= 512 << 10, "{stats:?}");
}
