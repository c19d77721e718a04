use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns the p99.9 by its definition: sort, and take the smallest value with at least 99.9 % of
/// the values not above it.
fn sorted_p999(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let above = values.len() / 1000;
    values[values.len() - 1 - above]
}

#[test]
fn percentiles_of_a_known_set() {
    let mut recorder = LatencyRecorder::new(0);
    for us in 1..=1000 {
        recorder.count_offered(us);
        recorder.record(us, us * 1000);
    }
    let figures = recorder.finish(SECOND_NS).figures();
    for (got, want) in [
        (figures.p50_us, 500.0),
        (figures.p90_us, 900.0),
        (figures.p99_us, 990.0),
        (figures.p999_us, 999.0),
        (figures.max_us, 1000.0),
        (figures.win_p999_us, 999.0),
    ] {
        let got = got.unwrap();
        assert!((got / want - 1.0).abs() < 0.001, "{got} instead of {want}");
    }
    assert_eq!((figures.offered_rps, figures.achieved_rps, figures.windows), (1000.0, 1000.0, 1));
}

#[test]
fn an_empty_measurement_has_no_latency() {
    let figures = LatencyRecorder::new(5).finish(SECOND_NS).figures();
    assert_eq!((figures.p50_us, figures.win_p999_us, figures.windows), (None, None, 0));
    assert_eq!(Summary::default().figures().achieved_rps, 0.0);
}

#[test]
fn a_stall_moves_the_raw_tail_but_not_the_windowed_one() {
    let mut recorder = LatencyRecorder::new(0);
    for request in 0..100_000u64 {
        // 10 windows of 10,000 requests; in the third, 300 of them wait for a stall.
        let latency_ns = if (25_000..25_300).contains(&request) { 5_000_000 } else { 10_000 };
        recorder.record(request * 10_000, latency_ns);
    }
    recorder.note_stall(250_000_000, 255_000_000);
    let figures = recorder.finish(SECOND_NS).figures();
    assert!(figures.p999_us.unwrap() > 4_900.0);
    assert_eq!(figures.win_p999_us, Some(10.0));
    assert_eq!((figures.windows, figures.windows_cut), (10, 1));
}

#[test]
fn a_window_is_cut_once_however_many_stalls_touch_it() {
    let mut recorder = LatencyRecorder::new(1_000);
    for (from_ns, to_ns, cut) in
        [(0, 10, 1), (2_000, 3_000, 1), (WINDOW_NS, WINDOW_NS + 1_500, 2), (WINDOW_NS * 2, WINDOW_NS * 4, 4)]
    {
        recorder.note_stall(from_ns, to_ns);
        assert_eq!(recorder.cut.count, cut, "after {from_ns}..{to_ns}");
    }
}

#[test]
fn a_latency_beyond_the_range_counts_as_the_largest() {
    let mut recorder = LatencyRecorder::new(0);
    recorder.record(0, u64::MAX);
    let max_us = recorder.finish(1).figures().max_us.unwrap();
    assert!((max_us / 60e6 - 1.0).abs() < 0.001, "{max_us}");
}

#[test]
fn windows_without_completions_do_not_count() {
    let mut recorder = LatencyRecorder::new(0);
    recorder.record(0, 7);
    recorder.record(1000 * WINDOW_NS, 9);
    let summary = recorder.finish(SECOND_NS);
    assert_eq!(summary.windows.p999_ns, [7, 9]);
    assert_eq!(summary.windowed_p999_ns(), Some(9));
}

#[test]
fn more_requests_than_the_tail_can_tell_apart_overestimate() {
    let mut window = Window::new();
    let count = 2 * 1000 * TAIL_LEN as u64;
    for value in 0..count {
        window.push(value);
    }
    assert_eq!(window.take_p999().0, Some(count - TAIL_LEN as u64));
    assert_eq!(window.take_p999(), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_window_agrees_with_sorting(values in prop::collection::vec(0u64..1_000_000, 1..20_000), lost in 0..30usize) {
        let mut window = Window::new();
        values.iter().for_each(|&v| window.push(v));
        window.lost = lost as u64;
        let settled = [&values[..], &vec![NEVER_NS; lost]].concat();
        prop_assert_eq!(window.take_p999(), (Some(sorted_p999(values)), Some(sorted_p999(settled))));
        prop_assert_eq!(window.tail.capacity(), TAIL_LEN);
    }

    #[test]
    fn merging_is_recording_into_one(
        first in prop::collection::vec(1u64..1_000_000, 0..500),
        second in prop::collection::vec(1u64..1_000_000, 0..500),
    ) {
        let run = |values: &[u64], shift: u64| {
            let mut recorder = LatencyRecorder::new(0);
            for &value in values {
                recorder.count_offered(shift);
                recorder.record(shift + value, value);
            }
            recorder.count_lost(shift + WINDOW_NS - 1);
            recorder.count_late();
            recorder.finish(WINDOW_NS)
        };
        let mut merged = run(&first, 0);
        merged.merge(&run(&second, 0));
        let mut reversed = run(&second, 0);
        reversed.merge(&run(&first, 0));
        prop_assert_eq!(merged.figures(), reversed.figures());
        let mut one = LatencyRecorder::new(0);
        for (shift, values) in [(0, &first), (WINDOW_NS, &second)] {
            for &value in values {
                one.count_offered(shift);
                one.record(shift + value, value);
            }
            one.count_lost(shift + WINDOW_NS - 1);
            one.count_late();
        }
        prop_assert_eq!(merged.figures(), one.finish(2 * WINDOW_NS).figures());
    }
}

/// Returns the summary of a recorder with intervals that has seen these requests: (time of
/// completion or loss, latency, or none for a lost one).
fn recorded(requests: &[(u64, Option<u64>)]) -> Summary {
    let mut recorder = LatencyRecorder::with_intervals(0, WINDOW_NS);
    for &(now_ns, latency_ns) in requests {
        recorder.count_offered(now_ns);
        match latency_ns {
            Some(latency_ns) => recorder.record(now_ns, latency_ns),
            None => recorder.count_lost(now_ns),
        }
    }
    recorder.finish(SECOND_NS)
}

#[test]
fn what_falls_due_or_is_lost_while_nothing_is_answered_is_in_its_own_interval() {
    let mut recorder = LatencyRecorder::with_intervals(0, WINDOW_NS);
    for ms in 0..1000u64 {
        let now_ns = ms * 1_000_000;
        recorder.count_offered(now_ns);
        // The system is frozen from 300 to 600 ms; requests due in that time are given up on 200 ms
        // later.
        if !(300..600).contains(&ms) {
            recorder.record(now_ns, 10_000);
        }
        if (500..800).contains(&ms) {
            recorder.count_lost(now_ns);
        }
    }
    let summary = recorder.finish(SECOND_NS);
    let seen: Vec<(u64, u64, u64, u64)> = summary
        .intervals()
        .list
        .iter()
        .map(|i| (i.index, i.counts.offered, i.counts.completed, i.counts.lost))
        .collect();
    let lost = |index| if (5..8).contains(&index) { 100 } else { 0 };
    let completed = |index| if (3..6).contains(&index) { 0 } else { 100 };
    let want: Vec<_> = (0..10).map(|index| (index, 100, completed(index), lost(index))).collect();
    assert_eq!(seen, want);
}

#[test]
fn a_lost_request_never_came_in_the_windowed_tail_that_counts_it() {
    // Every window of 1000 requests loses 2 of them, and answers the others at once.
    let all = |lost: u64| {
        let requests: Vec<_> =
            (0..10_000u64).map(|i| (i * 100_000, (i % 1000 >= lost).then_some(50_000))).collect();
        recorded(&requests)
    };
    assert_eq!(all(2).windowed_settled_p999_ns(), Some(NEVER_NS));
    assert_eq!(all(2).windowed_p999_ns(), Some(50_000), "of those that were answered");
    // One of a thousand is above the p99.9.
    assert_eq!(all(1).windowed_settled_p999_ns(), Some(50_000));
    let nothing_answered = recorded(&[(0, None), (5, None)]);
    assert_eq!(nothing_answered.windowed_settled_p999_ns(), Some(NEVER_NS));
    assert_eq!((nothing_answered.windowed_p999_ns(), nothing_answered.figures().windows), (None, 0));
    assert_eq!(Summary::default().windowed_settled_p999_ns(), None);
}

proptest! {
    #[test]
    fn generators_side_by_side_report_what_one_would_have(
        mut requests in prop::collection::vec(
            (0..SECOND_NS, prop::option::weighted(0.9, 1..50_000_000u64), any::<bool>()), 1..300
        )
    ) {
        requests.sort_unstable();
        let of = |keep: &dyn Fn(bool) -> bool| {
            let kept: Vec<_> = requests.iter().filter(|r| keep(r.2)).map(|r| (r.0, r.1)).collect();
            recorded(&kept)
        };
        let one = of(&|_| true);
        let mut merged = of(&|side| side);
        merged.merge_parallel(&of(&|side| !side));
        prop_assert_eq!(merged.histogram(), one.histogram());
        prop_assert_eq!(merged.counts(), one.counts());
        prop_assert_eq!(merged.duration_ns(), one.duration_ns());
        for (got, want) in [
            (merged.windowed_p999_ns(), one.windowed_p999_ns()),
            (merged.windowed_settled_p999_ns(), one.windowed_settled_p999_ns()),
        ] {
            let (got, want) = (got.unwrap_or(0), want.unwrap_or(0));
            prop_assert!(got <= want && want as f64 <= got as f64 * 1.001 + 1.0, "{} for {}", got, want);
        }
    }

    #[test]
    fn a_written_summary_reads_back(
        mut requests in prop::collection::vec(
            (0..SECOND_NS, prop::option::weighted(0.9, 1..50_000_000u64)), 0..300
        )
    ) {
        requests.sort_unstable();
        let summary = recorded(&requests);
        let text = serde_json::to_string(&summary).unwrap();
        let back: Summary = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(back.histogram(), summary.histogram());
        prop_assert_eq!(back.figures(), summary.figures());
        prop_assert_eq!(back.windowed_settled_p999_ns(), summary.windowed_settled_p999_ns());
    }
}
