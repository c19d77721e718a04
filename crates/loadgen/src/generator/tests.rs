use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tailwater_workload::spin::{Reply, Request};

const MS: u64 = 1_000_000;

fn plan(schedule: &str, arrivals: &str, service: &str) -> Plan {
    let mut plan = Plan::new(schedule.parse().unwrap(), service.parse().unwrap());
    plan.arrivals = arrivals.parse().unwrap();
    plan
}

/// Returns the request as a spin server decodes it.
fn asked(outgoing: &Outgoing) -> Request {
    Request { id: outgoing.request.id, work_ns: outgoing.request.ticket, sent_ns: outgoing.due_ns }
}

fn reply(outgoing: &Outgoing) -> Vec<u8> {
    Reply { request: asked(outgoing), served_ns: 0 }.encode().to_vec()
}

/// Drives a plan in virtual time to its end. Each request is sent when it is due; `fate` returns
/// the arrival times of its replies, in nanoseconds after its due time.
fn run(plan: Plan, seed: u64, mut fate: impl FnMut(Request) -> Vec<u64>) -> Measurement {
    let start_ns = 5 * MS;
    let mut generator = Generator::new(plan, seed, start_ns).unwrap();
    let mut replies: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let mut now_ns = start_ns;
    loop {
        while let Some(outgoing) = generator.poll_due(now_ns) {
            assert_eq!(outgoing.due_ns, now_ns, "polled at each event, nothing is sent late");
            let mut bytes = Vec::new();
            generator.encode(&outgoing, &mut bytes);
            for delay_ns in fate(Request::decode(&bytes).unwrap()) {
                replies.entry(now_ns + delay_ns).or_default().push(reply(&outgoing));
            }
        }
        for bytes in replies.remove(&now_ns).unwrap_or_default() {
            generator.handle_reply(now_ns, 0, &bytes);
        }
        let next_reply = replies.keys().next().copied();
        match generator.next_event_ns().into_iter().chain(next_reply).min() {
            Some(event_ns) => now_ns = event_ns,
            None => return generator.finish(now_ns),
        }
    }
}

/// Returns a server with one queue and one core: replies after the work in front and its own.
fn one_core() -> impl FnMut(Request) -> Vec<u64> {
    let mut free_ns = 0;
    move |request| {
        free_ns = u64::max(free_ns, request.sent_ns) + request.work_ns;
        vec![free_ns - request.sent_ns]
    }
}

#[test]
fn an_ideal_server_measures_as_queueing_theory_says() {
    // M/M/1 at 50 %: time in the system is exponential with mean 10 us / (1 - 0.5).
    let report = run(plan("10s@50k", "poisson", "exp:10us"), 1, one_core()).report();
    let quantile_us = |q: f64| -20.0 * (1.0 - q).ln();
    for (got, q, tolerance) in [
        (report.figures.p50_us, 0.5, 0.02),
        (report.figures.p99_us, 0.99, 0.05),
        (report.figures.p999_us, 0.999, 0.1),
        (report.figures.win_p999_us, 0.999, 0.1),
    ] {
        let got = got.unwrap();
        assert!(
            (got / quantile_us(q) - 1.0).abs() < tolerance,
            "p{}: {got} us, not {}",
            100.0 * q,
            quantile_us(q)
        );
    }
    assert!((report.figures.achieved_rps / 50e3 - 1.0).abs() < 0.01);
    assert_eq!(report.warnings, [""; 0]);
    assert_eq!((report.figures.windows, report.oddities), (100, Oddities::default()));
}

#[test]
fn a_seed_fixes_every_request() {
    let sent = |seed| {
        let mut requests = Vec::new();
        run(plan("100ms@50k", "poisson", "lognormal:10us,sigma=1"), seed, |request| {
            requests.push(request);
            vec![]
        });
        requests
    };
    let first = sent(1);
    assert!(first.len() > 4_000);
    assert_eq!(first, sent(1));
    assert_ne!(first[0], sent(2)[0]);
}

#[test]
fn another_service_time_leaves_the_arrivals_where_they_were() {
    let due = |service| {
        let mut times = Vec::new();
        run(plan("50ms@50k", "poisson", service), 3, |request| {
            times.push(request.sent_ns);
            vec![0]
        });
        times
    };
    assert_eq!(due("const:1us"), due("lognormal:10us,sigma=1"));
}

#[test]
fn latency_counts_from_the_due_time_and_late_sending_shows() {
    let mut generator = Generator::new(plan("1s@1k", "const", "const:1us"), 1, 0).unwrap();
    // Due at 0.5 ms, 1.5 ms, 2.5 ms...; the loop is held up until 2.0 ms.
    generator.observe_spin(2 * MS);
    let first = generator.poll_due(2 * MS).unwrap();
    assert_eq!(first.due_ns, MS / 2);
    let outcome = generator.handle_reply(2 * MS + 1_000, 0, &reply(&first));
    assert_eq!(outcome, ReplyOutcome::Completed { latency_ns: 3 * MS / 2 + 1_000 });
    assert!(generator.poll_due(2 * MS).is_some());
    assert_eq!(generator.poll_due(2 * MS), None);
    assert_eq!(generator.next_due_ns(), Some(5 * MS / 2));
    assert!(generator.poll_due(5 * MS / 2 + 5_000).is_some(), "5 us are still in time");
    let measurement = generator.finish(3 * MS);
    assert_eq!(measurement.summary.counts().late, 2);
    assert_eq!(measurement.oddities.worst_behind_ns, 3 * MS / 2);
    let report = measurement.report();
    assert!(
        report.warnings[0].contains("2 of 3") && report.warnings[0].contains("1500 us"),
        "{:?}",
        report.warnings
    );
    assert_eq!(report.figures.windows_cut, 1, "the hold-up is a stall");
}

#[test]
fn a_request_without_a_reply_in_time_is_lost() {
    let mut plan = plan("100ms@1k", "const", "const:1us");
    plan.timeout_ns = 10 * MS;
    let mut number = 0;
    let measurement = run(plan, 1, |_| {
        number += 1;
        match number % 4 {
            0 => vec![],
            1 => vec![10 * MS],
            2 => vec![10 * MS + 1],
            _ => vec![50 * MS],
        }
    });
    let counts = measurement.summary.counts();
    assert_eq!((counts.offered, counts.completed, counts.lost), (100, 25, 75));
    assert_eq!(measurement.oddities.stale, 50);
    assert!(measurement.report().warnings[0].contains("75 of 100"));
}

#[test]
fn strange_datagrams_are_counted_and_change_nothing() {
    let mut generator = Generator::new(plan("1s@1k", "const", "const:1us"), 1, 0).unwrap();
    let mut other_run = Generator::new(plan("1s@1k", "const", "const:1us"), 2, 0).unwrap();
    let (first, second) = (generator.poll_due(2 * MS).unwrap(), generator.poll_due(2 * MS).unwrap());
    let foreign = other_run.poll_due(MS).unwrap();
    for (outgoing, want) in [
        (&second, ReplyOutcome::Completed { latency_ns: MS / 2 }),
        (&second, ReplyOutcome::Duplicate),
        (&foreign, ReplyOutcome::Unknown),
        (&first, ReplyOutcome::Completed { latency_ns: 3 * MS / 2 }),
        (&first, ReplyOutcome::Stale),
    ] {
        assert_eq!(generator.handle_reply(2 * MS, 0, &reply(outgoing)), want);
    }
    for bytes in [&[][..], &asked(&first).encode(), &[0; 40], &[0xff; 2000]] {
        assert_eq!(generator.handle_reply(2 * MS, 0, bytes), ReplyOutcome::Malformed);
    }
    let measurement = generator.finish(2 * MS);
    assert_eq!(measurement.summary.counts().completed, 2);
    let want = Oddities { duplicate: 1, stale: 1, unknown: 1, malformed: 4, ..Oddities::default() };
    assert_eq!(Oddities { worst_behind_ns: 0, ..measurement.oddities }, want);
}

#[test]
fn requests_beyond_the_table_are_lost_without_blocking() {
    let mut plan = plan("1s@1k", "const", "const:1us");
    plan.timeout_ns = 2_000 * MS;
    let protocol = Arc::new(Spin::new(plan.service.clone()));
    let mut generator = Generator::with_slots(plan, protocol, Medium::Datagram, 1, 0, 8);
    let mut poll_all = |now_ns| {
        let mut sent = Vec::new();
        // Each call drops at most a batch, so 1000 due requests are through after 16 fruitless
        // ones.
        for _ in 0..8 + 1_000 / OVERFLOW_BATCH + 1 {
            sent.extend(generator.poll_due(now_ns));
        }
        sent
    };
    let sent = poll_all(100 * MS);
    assert_eq!(sent.len(), 8);
    assert_eq!(poll_all(1_000 * MS), []);
    // Answering all frees the table.
    for outgoing in &sent {
        generator.handle_reply(1_000 * MS, 0, &reply(outgoing));
    }
    assert!(generator.is_done());
    let measurement = generator.finish(1_000 * MS);
    let counts = measurement.summary.counts();
    assert_eq!((counts.offered, counts.completed, counts.lost), (1_000, 8, 992));
    assert_eq!(measurement.oddities.overflowed, 992);
    assert!(measurement.report().warnings.iter().any(|w| w.contains("in flight")));
}

#[test]
fn a_request_that_cannot_be_sent_is_lost_once() {
    let mut generator = Generator::new(plan("2ms@1k", "const", "const:1us"), 1, 0).unwrap();
    let first = generator.poll_due(MS).unwrap();
    generator.handle_send_failure(&first, MS);
    let second = generator.poll_due(2 * MS).unwrap();
    generator.handle_reply(2 * MS, 0, &reply(&second));
    assert!(generator.is_done());
    let measurement = generator.finish(2 * MS);
    let counts = measurement.summary.counts();
    assert_eq!((counts.offered, counts.completed, counts.lost), (2, 1, 1));
    assert_eq!(measurement.oddities.send_failed, 1);
}

#[test]
fn a_wrong_answer_is_counted_and_its_request_lost() {
    let mut generator = Generator::new(plan("4ms@1k", "const", "const:1us"), 1, 0).unwrap();
    let requests: Vec<Outgoing> = std::iter::from_fn(|| generator.poll_due(4 * MS)).collect();
    for (outgoing, (work_ns, sent_ns)) in requests.iter().zip([(0, 0), (1, 0), (0, 1)]) {
        let mut request = asked(outgoing);
        (request.work_ns, request.sent_ns) = (request.work_ns + work_ns, request.sent_ns + sent_ns);
        let bytes = Reply { request, served_ns: 0 }.encode();
        let right = (work_ns, sent_ns) == (0, 0);
        let outcome = generator.handle_reply(4 * MS, 0, &bytes);
        assert_eq!(matches!(outcome, ReplyOutcome::Completed { .. }), right, "{outcome:?}");
        assert_eq!(outcome == ReplyOutcome::Wrong, !right);
        assert_eq!(
            generator.handle_reply(4 * MS, 0, &bytes),
            if generator.is_waiting(0) { ReplyOutcome::Duplicate } else { ReplyOutcome::Stale }
        );
    }
    generator.handle_reply(4 * MS, 0, &reply(&requests[3]));
    assert!(generator.is_done());
    let measurement = generator.finish(4 * MS);
    let counts = measurement.summary.counts();
    assert_eq!((counts.offered, counts.completed, counts.lost), (4, 2, 2));
    assert_eq!(measurement.oddities.wrong, 2);
    assert!(measurement.report().warnings.iter().any(|w| w.contains("wrongly")));
}

#[test]
fn ids_of_sixteen_bits_name_the_last_request_of_a_flow() {
    let mut plan = plan("100s@10k", "const", "const:1us");
    plan.flows = 3;
    plan.timeout_ns = 1_000_000 * MS;
    let protocol = protocol();
    let mut generator = Generator::with_protocol(plan, protocol.clone(), Medium::Datagram, 1, 0).unwrap();
    // The number of distinguishable requests of 3 flows: 2 x 65536.
    let requests: Vec<Outgoing> = std::iter::from_fn(|| generator.poll_due(100_000 * MS)).collect();
    assert_eq!(requests.len(), 2 << 16);
    for outgoing in requests.iter().rev().step_by(97).chain(&requests[..10]) {
        let answer = [&(outgoing.request.id as u16).to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], b"STORED\r\n"];
        let outcome = generator.handle_reply(100_000 * MS, outgoing.flow, &answer.concat());
        assert!(matches!(outcome, ReplyOutcome::Completed { .. }), "{outgoing:?}: {outcome:?}");
    }
}

/// Returns a protocol that only stores.
fn protocol() -> Arc<dyn Protocol> {
    crate::protocol::from_name(
        "memcached:usr,get=0",
        Medium::Datagram,
        &"exp:1us".parse().unwrap(),
        "",
        |_| unreachable!("no file"),
    )
    .unwrap()
}

#[test]
fn the_warm_up_is_sent_but_not_counted() {
    let mut plan = plan("200ms@1k", "const", "const:1us");
    plan.warm_up_ns = 50 * MS;
    let mut sent = 0;
    let measurement = run(plan, 1, |request| {
        sent += 1;
        // Slow while warming up.
        vec![if request.sent_ns < 55 * MS { 20 * MS } else { 1_000 }]
    });
    let report = measurement.report();
    assert_eq!((sent, measurement.summary.counts().offered), (200, 150));
    assert!(report.figures.max_us.unwrap() < 1.1, "{report:?}");
    assert!((report.figures.achieved_rps - 1_000.0).abs() < 1e-6);
}

#[test]
fn a_run_cut_short_reports_the_time_it_reached() {
    let mut generator = Generator::new(plan("10s@1k", "const", "const:1us"), 1, 0).unwrap();
    for now_ms in 1..=1_000 {
        while let Some(outgoing) = generator.poll_due(now_ms * MS) {
            generator.handle_reply(now_ms * MS, 0, &reply(&outgoing));
        }
    }
    let measurement = generator.finish(1_000 * MS);
    let report = measurement.report();
    assert!(report.interrupted && (report.figures.offered_rps - 1_000.0).abs() < 1e-6, "{report:?}");
    assert!(report.warnings.iter().any(|w| w.contains("ended before")));
}

#[test]
fn flows_take_turns() {
    let mut plan = plan("10ms@1k", "const", "const:1us");
    plan.flows = 3;
    let mut generator = Generator::new(plan, 1, 0).unwrap();
    let flows: Vec<u16> = std::iter::from_fn(|| generator.poll_due(10 * MS)).map(|o| o.flow).collect();
    assert_eq!(flows, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn a_report_reads_back_and_merging_adds_up() {
    let mut measurement = run(plan("1s@10k", "poisson", "exp:10us"), 1, one_core());
    let other = run(plan("1s@10k", "poisson", "exp:10us"), 2, one_core());
    let sum = measurement.summary.counts().offered + other.summary.counts().offered;
    measurement.merge(&other);
    let report = measurement.report();
    assert!((report.figures.offered_rps - sum as f64 / 2.0).abs() < 1e-6, "{report:?}");
    assert_eq!(report.figures.windows, 20);
    let json = serde_json::to_string(&report).unwrap();
    assert!(json.contains("\"win_p999_us\""), "{json}");
    assert_eq!(serde_json::from_str::<crate::Report>(&json).unwrap(), report);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_request_ends_exactly_once(
        seed: u64,
        fates in prop::collection::vec(prop::collection::vec(0u64..30 * MS, 0..4), 1..20),
    ) {
        let mut plan = plan("20ms@20k", "poisson", "exp:1us");
        plan.timeout_ns = 15 * MS;
        let mut number = 0;
        let mut in_time = 0;
        let mut sent = 0;
        let measurement = run(plan, seed, |_| {
            let fate = fates[number % fates.len()].clone();
            number += 1;
            sent += 1;
            in_time += u64::from(fate.iter().any(|&delay| delay <= 15 * MS));
            fate
        });
        let counts = measurement.summary.counts();
        prop_assert_eq!((counts.offered, counts.completed), (sent, in_time));
        prop_assert_eq!(counts.lost, sent - in_time);
        prop_assert!(!measurement.interrupted);
    }

    #[test]
    fn any_datagram_is_taken_in(bytes in prop::collection::vec(any::<u8>(), 0..64), now_ns: u64) {
        let mut generator = Generator::new(plan("1s@1k", "const", "const:1us"), 1, 0).unwrap();
        generator.poll_due(MS);
        generator.handle_reply(now_ns, 0, &bytes);
        prop_assert_eq!(generator.next_due_ns(), Some(3 * MS / 2));
    }
}

#[test]
fn requests_of_the_first_class_are_also_kept_apart() {
    let mut plan = plan("1s@10k", "poisson", "bimodal:0.9*1us+0.1*100us");
    plan.first_class = true;
    plan.intervals = true;
    plan.warm_up_ns = 100 * MS;
    // Every eighth request is not answered.
    let mut sent = 0;
    let measurement = run(plan, 1, |request| {
        sent += 1;
        if sent % 8 == 0 { Vec::new() } else { vec![2 * request.work_ns] }
    });
    let first = measurement.first_class.as_ref().unwrap();
    let (all, own) = (measurement.summary.counts(), first.counts());
    let share = own.offered as f64 / all.offered as f64;
    assert!((0.87..0.93).contains(&share), "{share}");
    assert_eq!(own.completed + own.lost, own.offered);
    assert_eq!(all.completed + all.lost, all.offered);
    assert!(0 < own.lost && own.lost < all.lost, "{own:?} {all:?}");
    assert!(first.latency_ns(1.0).unwrap() < 3_000);
    assert!(measurement.summary.latency_ns(1.0).unwrap() >= 200_000);
    let [short, long] = measurement.by_class_ns(0.0).unwrap().map(Option::unwrap);
    assert!(short < 3_000 && long >= 190_000, "{short} {long}");
    let by_interval: u64 = first.intervals().list.iter().map(|one| one.counts.completed).sum();
    assert_eq!(by_interval, own.completed);
}
