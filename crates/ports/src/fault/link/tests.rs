//! Links in virtual time: determinism by seed, order, rates and bounds.

use super::*;
use proptest::prelude::*;

fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[..4].try_into().unwrap())
}

/// Sends frames `gap_ns` apart, and returns each arrival with its time.
fn run(spec: LinkSpec, seed: u64, frames: u32, gap_ns: u64) -> (Vec<(u64, Vec<u8>)>, LinkCounters) {
    let (mut link, mut arrived) = (Link::new(spec, seed), Vec::new());
    let mut drain = |link: &mut Link, until: u64| {
        while let Some(at) = link.next_arrival().filter(|&at| at <= until) {
            arrived.push((at, link.poll(at).expect("a frame is due")));
        }
    };
    for i in 0..frames {
        let now = u64::from(i) * gap_ns;
        drain(&mut link, now);
        link.offer(now, &[&i.to_le_bytes()[..], &[0; 96]].concat());
        link.check();
    }
    drain(&mut link, u64::MAX);
    link.check();
    (arrived, link.counters())
}

#[test]
fn a_link_without_faults_passes_everything_at_once_and_unchanged() {
    let (arrived, counters) = run(LinkSpec::default(), 1, 100, 10);
    assert_eq!(counters.passed, 100);
    assert!(arrived.iter().zip(0..).all(|((at, frame), i)| *at == u64::from(i) * 10 && number(frame) == i));
}

#[test]
fn chances_are_met_over_many_frames() {
    let percent = |n: u32| n * 10_000_000;
    let spec = LinkSpec {
        loss_ppb: percent(10),
        duplicate_ppb: percent(5),
        corrupt_ppb: percent(2),
        reorder_ppb: percent(3),
        ..LinkSpec::default()
    };
    let n = 100_000;
    let (arrived, c) = run(spec, 7, n, 1_000);
    let near = |count: u64, share: f64| {
        let expected = f64::from(n) * share;
        (count as f64 - expected).abs() < 5.0 * expected.sqrt()
    };
    assert!(near(c.lost, 0.10) && near(c.duplicated, 0.045), "{c:?}");
    assert!(near(c.corrupted, 0.0189) && near(c.reordered, 0.02835), "{c:?}");
    let damaged = arrived.iter().filter(|(_, frame)| frame[4..].iter().any(|&byte| byte != 0)).count();
    assert!(damaged as u64 > c.corrupted * 9 / 10, "{damaged} of {}", c.corrupted);
}

#[test]
fn delay_and_jitter_keep_the_order_and_reordering_does_not() {
    let spec = LinkSpec { delay_ns: 5_000_000, jitter_ns: 2_000_000, ..LinkSpec::default() };
    let (arrived, _) = run(spec, 3, 1000, 100_000);
    for (i, (at, frame)) in (0u64..).zip(&arrived) {
        assert_eq!(u64::from(number(frame)), i);
        let took = at - i * 100_000;
        assert!((5_000_000..=7_000_000).contains(&took), "frame {i} took {took} ns");
    }
    let spec = LinkSpec { reorder_ppb: 100_000_000, ..LinkSpec::default() };
    let (arrived, counters) = run(spec, 3, 1000, 100_000);
    let overtaken = arrived.windows(2).filter(|pair| number(&pair[0].1) > number(&pair[1].1)).count();
    assert!(overtaken > 0 && overtaken as u64 <= counters.reordered, "{overtaken}, {counters:?}");
}

#[test]
fn the_rate_is_kept_and_its_queue_drops_at_the_end() {
    // 100 bytes at 8 Mbit/s take 100 us; one is sent every 10 us.
    let spec = LinkSpec { rate_bps: 8_000_000, queue_frames: 5, ..LinkSpec::default() };
    let (arrived, counters) = run(spec, 3, 1000, 10_000);
    assert!(arrived.windows(2).all(|pair| pair[1].0 - pair[0].0 == 100_000));
    assert_eq!(counters.passed + counters.queue_full, 1000);
    // Ten milliseconds of sending, then the queue and the frame being sent.
    assert!((100..=107).contains(&counters.passed), "{counters:?}");
    // The sixth waits for five whole frames: the queue's depth is the longest wait.
    let longest = arrived.iter().map(|(at, frame)| at - u64::from(number(frame)) * 10_000).max().unwrap();
    assert!((500_000..=600_000).contains(&longest), "{longest}");
}

#[test]
fn memory_is_bounded_whatever_the_delay() {
    let mut link = Link::new(LinkSpec { delay_ns: u64::MAX / 4, ..LinkSpec::default() }, 1);
    for i in 0..MAX_HELD as u64 + 10 {
        link.offer(i, &[0; 60]);
    }
    link.check();
    assert_eq!(link.counters().held_full, 10);
}

proptest! {
    #[test]
    fn the_same_seed_and_times_give_the_same_fates(
        seed: u64,
        chances in prop::array::uniform4(0..=CERTAIN_PPB),
        (delay_ns, jitter_ns, reorder_delay_ns) in (0..10_000_000u64, 0..10_000_000u64, 0..10_000_000u64),
        rate_bps in prop_oneof![Just(0u64), 1_000_000..1_000_000_000u64],
        queue_frames in 0..20u32,
    ) {
        let [loss_ppb, duplicate_ppb, corrupt_ppb, reorder_ppb] = chances;
        let spec = LinkSpec {
            loss_ppb, duplicate_ppb, corrupt_ppb, reorder_ppb, reorder_delay_ns, delay_ns, jitter_ns, rate_bps, queue_frames,
        };
        let first = run(spec, seed, 200, 50_000);
        prop_assert_eq!(&first, &run(spec, seed, 200, 50_000));
        let (arrived, counters) = first;
        prop_assert_eq!(arrived.len() as u64, counters.passed);
        prop_assert!(arrived.is_sorted_by_key(|(at, _)| *at));
    }
}
