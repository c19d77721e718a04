//! The cache in virtual time.

use super::*;
use crate::Single;
use core::net::Ipv4Addr;
use entry::{FORGET, HOLD_DOWN, PENDING_BYTES, REACHABLE, RETRY, SETTLE, TRIES};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const T0: Duration = Duration::from_secs(1000);

fn address(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + i)
}

/// Three of them may wait.
fn frame(i: u8) -> PendingFrame {
    vec![i; PENDING_BYTES / 3].into()
}

fn unused() -> PendingFrame {
    panic!("no packet has to wait")
}

fn ask_all(i: u32) -> Due<Ipv4Addr> {
    Due::Ask(Question { address: address(i), ask: Ask::All })
}

/// Returns a cache in which neighbour 1 has just become known as `A`.
fn knowing() -> NeighbourCache<Single, Ipv4Addr> {
    let cache = NeighbourCache::<Single, _>::new();
    cache.resolve(address(1), T0, || frame(0));
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0), Heard::Known(VecDeque::from([frame(0)])));
    cache
}

#[test]
fn an_unknown_neighbour_is_asked_for_once_a_second_and_then_fails() {
    let cache = NeighbourCache::<Single, _>::new();
    let (resolution, question) = cache.resolve(address(1), T0, || frame(1));
    assert_eq!(resolution, Resolution::Waits { dropped: 0 });
    assert_eq!(question, Some(Question { address: address(1), ask: Ask::All }));
    let (_, question) = cache.resolve(address(1), T0, || frame(2));
    assert_eq!(question, None, "one question a second is enough");
    assert_eq!(cache.deadline(), Some(T0 + RETRY));
    assert_eq!(cache.poll(T0 + RETRY / 2), []);
    for i in 1..u32::from(TRIES) {
        assert_eq!(cache.poll(T0 + RETRY * i), [ask_all(1)]);
    }
    let failed = T0 + RETRY * u32::from(TRIES);
    assert_eq!(cache.poll(failed), [Due::Failed(VecDeque::from([frame(1), frame(2)]))]);
    assert_eq!(cache.resolve(address(1), failed, unused), (Resolution::Unreachable, None));
    assert_eq!(cache.poll(failed + HOLD_DOWN), []);
    let (resolution, question) = cache.resolve(address(1), failed + HOLD_DOWN, || frame(3));
    assert_eq!(resolution, Resolution::Waits { dropped: 0 });
    assert!(question.is_some(), "after the hold-down it is asked for anew");
}

#[test]
fn an_answer_releases_the_latest_packets_in_order() {
    let cache = NeighbourCache::<Single, _>::new();
    for i in 0..5u8 {
        let (resolution, _) = cache.resolve(address(1), T0, || frame(i));
        assert_eq!(resolution, Resolution::Waits { dropped: usize::from(i >= 3) });
    }
    let released = VecDeque::from([frame(2), frame(3), frame(4)]);
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0), Heard::Known(released));
    assert_eq!(cache.find(address(1)), Some(A));
    assert_eq!(cache.poll(T0 + RETRY * 9), []);
}

#[test]
fn a_doubted_neighbour_is_asked_once_and_used_meanwhile() {
    let cache = knowing();
    assert_eq!(cache.doubt(address(2), T0), None, "a stranger");
    assert_eq!(cache.doubt(address(1), T0 + RETRY / 2), None, "heard a moment ago");
    assert_eq!(cache.find(address(1)), Some(A));
    let at = T0 + RETRY;
    let probe = Question { address: address(1), ask: Ask::Station(A) };
    assert_eq!(cache.doubt(address(1), at), Some(probe));
    assert_eq!(cache.doubt(address(1), at), None, "one question a second is enough");
    assert_eq!(cache.find(address(1)), None);
    assert_eq!(cache.resolve(address(1), at, unused), (Resolution::Go(A), None));
    assert_eq!(cache.poll(at + RETRY), [Due::Ask(probe)]);
    assert_eq!(cache.hear(address(1), B, Evidence::Answer, at + RETRY), Heard::Known(VecDeque::new()));
    assert_eq!(cache.find(address(1)), Some(B), "it has moved");
}

#[test]
fn a_known_neighbour_is_used_while_it_is_probed_and_forgotten_if_it_does_not_answer() {
    let cache = knowing();
    let aged = T0 + REACHABLE;
    assert_eq!(cache.poll(aged), []);
    assert_eq!(cache.find(address(1)), None, "old addresses go through the table");
    let probe = Question { address: address(1), ask: Ask::Station(A) };
    assert_eq!(cache.resolve(address(1), aged, unused), (Resolution::Go(A), Some(probe)));
    assert_eq!(cache.resolve(address(1), aged, unused), (Resolution::Go(A), None));
    assert_eq!(cache.poll(aged + RETRY), [Due::Ask(probe)]);
    assert_eq!(cache.poll(aged + RETRY * 2), [Due::Ask(probe)]);
    assert_eq!(cache.poll(aged + RETRY * 3), []);
    let (resolution, question) = cache.resolve(address(1), aged + RETRY * 3, || frame(1));
    assert_eq!(resolution, Resolution::Waits { dropped: 0 });
    assert_eq!(question.map(|q| q.ask), Some(Ask::All));
}

#[test]
fn an_answered_probe_makes_a_neighbour_fresh() {
    let cache = knowing();
    let aged = T0 + REACHABLE;
    cache.poll(aged);
    cache.resolve(address(1), aged, unused);
    assert_eq!(cache.hear(address(1), B, Evidence::Answer, aged), Heard::Known(VecDeque::new()));
    assert_eq!(cache.find(address(1)), Some(B));
    assert_eq!(cache.deadline(), Some(aged + RETRY), "the probe's timer still has to be looked at");
    assert_eq!(cache.poll(aged + RETRY), []);
    assert_eq!(cache.deadline(), Some(aged + REACHABLE));
}

#[test]
fn a_weak_answer_replaces_no_station_that_is_known() {
    let weak = |cache: &NeighbourCache<Single, Ipv4Addr>, mac, now| {
        cache.hear(address(1), mac, Evidence::WeakAnswer, now)
    };
    let known = || Heard::Known(VecDeque::new());
    let cache = knowing();
    assert_eq!(weak(&cache, B, T0 + SETTLE), Heard::Ignored, "reachable");
    assert!(cache.doubt(address(1), T0 + SETTLE).is_some());
    assert_eq!(weak(&cache, B, T0 + SETTLE), Heard::Ignored, "probed");
    assert_eq!(cache.resolve(address(1), T0 + SETTLE, unused).0, Resolution::Go(A));
    assert_eq!(weak(&cache, A, T0 + SETTLE), known(), "the same station");
    cache.poll(T0 + SETTLE + REACHABLE);
    assert_eq!(cache.find(address(1)), None);
    assert_eq!(weak(&cache, B, T0 + SETTLE + REACHABLE), Heard::Ignored, "stale");
    // Without a known station it is evidence as any other.
    let cache = NeighbourCache::new();
    cache.resolve(address(1), T0, || frame(0));
    assert_eq!(weak(&cache, B, T0), Heard::Known(VecDeque::from([frame(0)])));
}

#[test]
fn an_unused_neighbour_is_forgotten_in_the_end() {
    let cache = knowing();
    cache.poll(T0 + REACHABLE);
    cache.poll(T0 + REACHABLE + FORGET);
    assert_eq!(cache.deadline(), None);
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0 + REACHABLE + FORGET), Heard::Stranger);
}

#[test]
fn an_address_changes_at_most_once_a_second() {
    let cache = knowing();
    assert_eq!(cache.hear(address(1), B, Evidence::Answer, T0 + SETTLE / 2), Heard::Ignored);
    assert_eq!(cache.find(address(1)), Some(A));
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0 + SETTLE / 2), Heard::Known(VecDeque::new()));
    assert_eq!(cache.hear(address(1), B, Evidence::Answer, T0 + SETTLE), Heard::Known(VecDeque::new()));
    assert_eq!(cache.find(address(1)), Some(B));
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0 + SETTLE + SETTLE / 2), Heard::Ignored);
}

#[test]
fn evidence_ends_the_hold_down() {
    let cache = NeighbourCache::<Single, _>::new();
    cache.resolve(address(1), T0, || frame(1));
    for i in 1..=u32::from(TRIES) {
        cache.poll(T0 + RETRY * i);
    }
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, T0 + RETRY * 3), Heard::Known(VecDeque::new()));
    assert_eq!(cache.find(address(1)), Some(A));
}

#[test]
fn strangers_are_remembered_only_when_introduced_and_only_while_there_is_room() {
    let cache = knowing();
    assert_eq!(cache.hear(address(2), B, Evidence::Answer, T0), Heard::Stranger);
    assert_eq!(cache.find(address(2)), None);
    for i in 2..=CAPACITY as u32 {
        assert_eq!(cache.hear(address(i), B, Evidence::Request, T0), Heard::Known(VecDeque::new()));
    }
    assert_eq!(cache.hear(address(9999), B, Evidence::Request, T0), Heard::Ignored);
    assert_eq!(
        cache.hear(address(1), A, Evidence::Request, T0),
        Heard::Known(VecDeque::new()),
        "the known stay known"
    );
}

#[test]
fn a_neighbour_that_a_packet_needs_pushes_out_the_oldest() {
    let cache = knowing();
    for i in 2..=CAPACITY as u32 {
        cache.hear(address(i), B, Evidence::Request, T0 + Duration::from_nanos(i.into()));
    }
    let now = T0 + RETRY;
    let (resolution, _) = cache.resolve(address(9999), now, || frame(1));
    assert_eq!(resolution, Resolution::Waits { dropped: 0 });
    assert_eq!(cache.find(address(1)), None);
    assert_eq!(cache.hear(address(1), A, Evidence::Answer, now), Heard::Stranger);
    assert_eq!(cache.find(address(CAPACITY as u32)), Some(B));
}

#[test]
fn a_cache_full_of_unanswered_questions_takes_no_more() {
    let cache = NeighbourCache::<Single, _>::new();
    for i in 0..CAPACITY as u32 {
        cache.resolve(address(i), T0, || frame(0));
    }
    assert_eq!(cache.resolve(address(9999), T0, unused), (Resolution::Unreachable, None));
}
