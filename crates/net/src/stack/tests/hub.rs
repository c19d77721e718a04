//! Several hosts on one link that loses, repeats and delays frames, in virtual time.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// A link to which every host's frames go, as they would through a hub.
pub(super) struct Hub {
    pub(super) now: Duration,
    pub(super) hosts: Vec<Stack>,
    /// Frames in flight, by arrival and order of sending.
    flying: BTreeMap<(Duration, u64), (usize, Vec<u8>)>,
    sent: u64,
    pub(super) random: Random,
    pub(super) loss_percent: u64,
    pub(super) repeat_percent: u64,
    /// Whether the checksums of frames are vouched for.
    pub(super) checksums: Checksums,
}

/// More events than any test here needs: a storm ends the test.
const MAX_EVENTS: usize = 200_000;

impl Hub {
    pub(super) fn new(hosts: u8, seed: u64, loss_percent: u64, repeat_percent: u64) -> Self {
        let hosts = (1..=hosts).map(|n| Stack::new(config6(n), seed ^ u64::from(n)).unwrap()).collect();
        let random = Random(seed);
        Self {
            now: T0,
            hosts,
            flying: BTreeMap::new(),
            sent: 0,
            random,
            loss_percent,
            repeat_percent,
            checksums: Verify,
        }
    }

    /// Lets host `n` (counted from one) do something, and takes what it sends.
    pub(super) fn with<R>(&mut self, n: u8, act: impl FnOnce(&Stack, &mut Catch) -> R) -> R {
        let from = usize::from(n) - 1;
        let mut catch = Catch::at(self.now);
        let result = act(&self.hosts[from], &mut catch);
        assert_eq!(catch.corked, None, "frames were kept that nothing lets go");
        for frame in catch.frames {
            for to in (0..self.hosts.len()).filter(|&to| to != from) {
                let copies = 1 + u64::from(self.random.percent(self.repeat_percent));
                for _ in 0..copies {
                    if !self.random.percent(self.loss_percent) {
                        let delay = Duration::from_nanos(1000 + self.random.next() % 100_000);
                        self.sent += 1;
                        self.flying.insert((self.now + delay, self.sent), (to, frame.clone()));
                    }
                }
            }
        }
        result
    }

    /// Lets time pass to `until`.
    pub(super) fn run(&mut self, until: Duration) {
        for _ in 0..MAX_EVENTS {
            let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
            let timer = self.hosts.iter().filter_map(Stack::deadline).min();
            let Some(next) = arrival.into_iter().chain(timer).min().filter(|&at| at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (to, frame)) = self.flying.pop_first().unwrap();
                let checksums = self.checksums;
                self.with(to as u8 + 1, |stack, catch| stack.input(catch, &frame, checksums));
            } else {
                for n in 1..=self.hosts.len() as u8 {
                    self.with(n, Stack::poll_timers);
                }
            }
        }
        panic!("{MAX_EVENTS} events and no end");
    }
}

/// A socket of host `n` of a hub, for as long as a test needs it.
fn open(hub: &mut Hub, n: u8, port: u16) {
    hub.with(n, |stack, _| stack.bind_udp(everywhere6(port)).map(|_| ())).unwrap();
}

fn send(hub: &mut Hub, from: u8, port: u16, to: SocketAddr, data: &[u8]) -> Result<(), SendError> {
    hub.with(from, |stack, catch| {
        let endpoint = stack.bind_udp(everywhere(0)).unwrap();
        let result = stack.send_udp(catch, endpoint, everywhere6(port), to, data);
        stack.close_udp(endpoint);
        result
    })
}

#[test]
fn the_first_datagram_between_strangers_arrives() {
    let mut hub = Hub::new(3, 1, 0, 0);
    hub.run(T0 + Duration::from_secs(5));
    open(&mut hub, 2, 9);
    send(&mut hub, 1, 7, at(2, 9), b"hello").unwrap();
    hub.run(T0 + Duration::from_secs(6));
    let counters = hub.hosts[1].counters();
    assert_eq!((counters.udp_received, counters.arp_answered), (1, 1));
    assert_eq!(hub.hosts[0].counters().arp_solicited, 1);
    // Host 2 learned host 1 from its question and need not ask back.
    open(&mut hub, 1, 7);
    send(&mut hub, 2, 9, at(1, 7), b"hello yourself").unwrap();
    hub.run(T0 + Duration::from_secs(7));
    assert_eq!(hub.hosts[0].counters().udp_received, 1);
    assert_eq!(hub.hosts[1].counters().arp_solicited, 0);
}

#[test]
fn neighbours_that_talk_for_an_hour_ask_about_once_a_minute() {
    let mut hub = Hub::new(2, 2, 0, 0);
    open(&mut hub, 2, 9);
    for second in 0..3600 {
        send(&mut hub, 1, 7, at(2, 9), b"tick").unwrap();
        hub.run(T0 + Duration::from_secs(second + 1));
    }
    let received = hub.hosts[1].counters();
    assert_eq!(received.udp_received + received.udp_overflows, 3600);
    let asked = hub.hosts[0].counters().arp_solicited;
    assert!((55..=65).contains(&asked), "{asked} questions in an hour");
}

#[test]
fn a_host_that_comes_back_with_another_station_is_found_at_once() {
    let mut hub = Hub::new(2, 3, 0, 0);
    open(&mut hub, 2, 9);
    send(&mut hub, 1, 7, at(2, 9), b"one").unwrap();
    hub.run(T0 + Duration::from_secs(5));
    assert_eq!(hub.hosts[1].counters().udp_received, 1);
    hub.hosts[1] = Stack::new(NetConfig { mac: mac(0x22).0, ..config(2) }, 3).unwrap();
    open(&mut hub, 2, 9);
    hub.run(T0 + Duration::from_secs(6));
    send(&mut hub, 1, 7, at(2, 9), b"two").unwrap();
    hub.run(T0 + Duration::from_secs(7));
    assert_eq!(hub.hosts[1].counters().udp_received, 1, "its announcement moved it");
}

#[test]
fn strangers_meet_over_ipv6_stay_in_touch_and_find_who_moved() {
    let mut hub = Hub::new(3, 4, 0, 0);
    hub.run(T0 + Duration::from_secs(5));
    open(&mut hub, 2, 9);
    for second in 0..600 {
        send(&mut hub, 1, 7, at6(2, 9), b"tick").unwrap();
        hub.run(T0 + Duration::from_secs(6 + second));
    }
    let received = hub.hosts[1].counters();
    assert_eq!(received.udp_received + received.udp_overflows, 600);
    let asked = hub.hosts[0].counters().nd_solicited;
    assert_eq!(received.nd_answered, asked);
    assert!((9..=11).contains(&asked), "{asked} questions in ten minutes");
    assert_eq!(hub.hosts[2].counters().nd_answered, 0);
    // Host 2 comes back with another station and says so.
    hub.hosts[1] = Stack::new(NetConfig { mac: mac(0x22).0, ..config6(2) }, 3).unwrap();
    open(&mut hub, 2, 9);
    hub.run(T0 + Duration::from_secs(610));
    send(&mut hub, 1, 7, at6(2, 9), b"found").unwrap();
    hub.run(T0 + Duration::from_secs(611));
    assert_eq!(hub.hosts[1].counters().udp_received, 1);
    assert_eq!(hub.hosts[0].counters().nd_solicited, asked);
}

#[test]
fn pieces_that_a_link_loses_repeats_and_reorders_make_whole_datagrams_or_none() {
    let mut hub = Hub::new(2, 5, 3, 10);
    open(&mut hub, 2, 9);
    let mut sent = 0;
    for round in 0..200u64 {
        let to = if round % 2 == 0 { at(2, 9) } else { at6(2, 9) };
        sent += u64::from(send(&mut hub, 1, 7, to, &vec![round as u8; 4000]).is_ok());
        hub.run(T0 + Duration::from_millis(500 * (round + 1)));
    }
    hub.run(T0 + Duration::from_secs(200));
    let counters = hub.hosts[1].counters();
    let received = counters.udp_received + counters.udp_overflows;
    // Three pieces of each, 3 % of them lost.
    assert!((sent * 8 / 10..=sent).contains(&received), "{received} of {sent}");
    assert_eq!(counters.reassembled, received);
    assert!(counters.reassemblies_failed > 0);
    assert_eq!((counters.bad_checksums, counters.malformed), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever a link loses and repeats, what arrives was sent; on a good link everything arrives
    /// again.
    #[test]
    fn a_lossy_link_loses_datagrams_and_nothing_else(seed: u64, loss in 0u64..40, repeats in 0u64..30) {
        let mut hub = Hub::new(4, seed, loss, repeats);
        for n in 1..=4 {
            open(&mut hub, n, 9);
        }
        let mut sent = 0u64;
        for round in 0..60u64 {
            for from in 1..=4u8 {
                let to = 1 + (u64::from(from) + hub.random.next() % 3) as u8 % 4;
                let data = [from, to, round as u8];
                sent += u64::from(send(&mut hub, from, 9, at(to, 9), &data).is_ok());
            }
            hub.run(T0 + Duration::from_millis(500 * (round + 1)));
        }
        hub.run(T0 + Duration::from_secs(60));
        prop_assert!(hub.flying.is_empty());
        let sum = |hub: &Hub, count: fn(&crate::NetCounters) -> u64| {
            hub.hosts.iter().map(|host| count(&host.counters())).sum::<u64>()
        };
        let received = sum(&hub, |c| c.udp_received);
        if loss == 0 && repeats == 0 {
            prop_assert_eq!(received, sent);
        }
        // Each datagram takes part in at most one repetition.
        prop_assert!(received <= 2 * sent, "{received} of {sent}");
        // By now no host is held down for a resolution that failed on the bad link.
        (hub.loss_percent, hub.repeat_percent) = (0, 0);
        for from in 1..=4 {
            for to in (1..=4).filter(|&to| to != from) {
                prop_assert!(send(&mut hub, from, 9, at(to, 9), b"good").is_ok());
                hub.run(hub.now + Duration::from_secs(1));
            }
        }
        prop_assert_eq!(sum(&hub, |c| c.udp_received), received + 12);
        let refused = sum(&hub, |c| c.malformed + c.bad_checksums + c.martian_sources + c.udp_no_socket);
        prop_assert_eq!(refused, 0);
    }
}
