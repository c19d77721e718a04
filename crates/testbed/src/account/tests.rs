use proptest::prelude::*;
use serde_json::json;

use tailwater_bpf::core_time::Strangers;

use super::traced::{kthreads_of, tids};
use super::*;

fn look(ns: &Value, service: [u64; 3], stat: &str) -> Snapshot {
    traced_look(ns, service, stat, Err("refused here".into()))
}

fn traced_look(
    ns: &Value,
    service: [u64; 3],
    stat: &str,
    traced: Result<Vec<CoreTime>, Arc<str>>,
) -> Snapshot {
    let [thread, stack, scheduler] = service;
    let stats = json!({ "account": [{ "core": 3, "ns": ns, "samples": {
        "service": { "thread": thread, "stack": stack, "scheduler": scheduler },
        "batch": { "thread": 0, "stack": 0, "scheduler": 0 } } }] });
    Snapshot::parse(&stats, stat, 100.0, traced).unwrap()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

fn sum(shares: &Shares) -> f64 {
    shares.percent().iter().flatten().sum::<f64>() / 100.0
}

#[test]
fn shares_follow_phases_and_samples_and_add_up_with_what_the_host_took() {
    let before = json!({ "free": 7_000, "service": 5, "batch": 0, "cede": 0, "start": 0 });
    let after = json!({ "free": 200_007_000u64, "service": 400_000_005u64, "batch": 300_000_000u64,
        "cede": 40_000_000u64, "start": 60_000_000u64 });
    let from = look(&before, [10, 10, 10], "cpu  9 9 9 9 9 9 9 9\ncpu3 1 1 1 1 1 10 10 50 0 0\n");
    let to = look(&after, [70, 40, 20], "cpu3 1 1 1 1 1 11 11 56 0 0\ncpu30 0 0 0 0 0 99 99 99\n");
    let shares = &between(&from, &to)[0];
    assert!(near(sum(shares), 1.0), "{shares:?}");
    // 20 ms in interrupts and 60 ms of the host, of 800 ms that the core was lent.
    assert!(near(shares.kernel, 0.02) && near(shares.steal, 0.06) && near(shares.free, 0.2), "{shares:?}");
    assert!(near(shares.service_threads, 0.9 * 0.4 * 0.6) && near(shares.service_stack, 0.9 * 0.4 * 0.3));
    assert!(near(shares.service_scheduler, 0.9 * 0.4 * 0.1) && near(shares.handoff_cede, 0.9 * 0.04));
    // No sample: all of it counts as user threads.
    assert!(near(shares.batch_threads, 0.9 * 0.3) && near(shares.sampling_error, 0.9 * 0.3));
    assert!(near(shares.held_by_batch(), 0.3), "{shares:?}");
    assert!(shares.other.is_none() && shares.by_ticks.as_deref() == Some("refused here"));
}

#[test]
fn tracepoints_replace_the_ticks_and_tell_other_programs() {
    let phases = |ms: [u64; 4]| {
        let [free, wake, service, batch] = ms.map(|ms| ms * 1_000_000);
        json!({ "free": free, "wake": wake, "service": service, "batch": batch })
    };
    let nothing = CoreTime { core: 3, ..CoreTime::default() };
    let ms = |interrupts: u64, kernel: u64, programs: u64| Strangers {
        interrupts: interrupts * 1_000_000,
        kernel: kernel * 1_000_000,
        programs: programs * 1_000_000,
    };
    // In a second the core is free for 300 ms, in 210 of which it is idle, and a wake takes 100
    // ms. Programs run for 60 ms of these, interrupts take 20, and nothing tells of which.
    let time = CoreTime {
        core: 3,
        kthreads: 540_000_000,
        idle: 310_000_000,
        taken: ms(10, 10, 50),
        free: ms(20, 0, 60),
    };
    let ticks = "cpu3 0 0 0 0 0 30 30 6 0 0\n";
    let from = traced_look(&phases([0; 4]), [0; 3], "cpu3 0 0 0 0 0 0 0 0\n", Ok(vec![nothing]));
    let to = traced_look(&phases([300, 100, 400, 200]), [9, 0, 0], ticks, Ok(vec![time]));
    let shares = &between(&from, &to)[0];
    assert!(near(sum(shares), 1.0) && near(shares.free, 0.3) && near(shares.steal, 0.06), "{shares:?}");
    assert!(near(shares.other.unwrap(), 0.05 + 0.06 * 0.25), "{shares:?}");
    assert!(near(shares.kernel, 0.02 + 0.02 * 0.25), "{shares:?}");
    let rest = (1.0 - 0.3 - 0.02 - 0.07 - 0.06) / (1.0 - 0.3 - 0.02);
    assert!(near(shares.service_threads, rest * 0.4) && near(shares.handoff_wake, rest * 0.08));
    // What other programs did, the batch job did not hold.
    let lent = 1.0 - 0.3 - 0.02 - 0.07 - 0.06;
    let held = rest * 0.2 * (1.0 - 0.3 - shares.other.unwrap()) / lent;
    assert!((shares.held_by_batch() - held).abs() < 0.02, "{} {held}", shares.held_by_batch());
    // Where the core was never free, all of it was taken.
    let to = traced_look(&phases([0, 0, 600, 400]), [9, 0, 0], ticks, Ok(vec![time]));
    let shares = &between(&from, &to)[0];
    assert!(near(sum(shares), 1.0) && near(shares.other.unwrap(), 0.11), "{shares:?}");
}

proptest! {
    #[test]
    fn shares_add_up_and_none_is_negative(
        phases in prop::array::uniform4(0..1_000_000_000u64),
        times in prop::array::uniform8(0..1_000_000_000u64),
        (irq, steal) in (0..200u64, 0..200u64),
        traced in any::<bool>(),
    ) {
        let ns = |phases: [u64; 4]| {
            let [free, wake, service, batch] = phases;
            json!({ "free": free, "wake": wake, "service": service, "batch": batch })
        };
        let time = |times: [u64; 8]| {
            let [kthreads, idle, a, b, c, d, e, f] = times;
            let taken = Strangers { interrupts: a, kernel: b, programs: c };
            let free = Strangers { interrupts: d, kernel: e, programs: f };
            CoreTime { core: 3, kthreads, idle, taken, free }
        };
        let times = [[0; 8], times].map(|times| if traced { Ok(vec![time(times)]) } else { Err("".into()) });
        let [then, now] = times;
        let from = traced_look(&ns([0; 4]), [0; 3], "cpu3 0 0 0 0 0 0 0 0\n", then);
        let to = traced_look(&ns(phases), [1; 3], &format!("cpu3 0 0 0 0 0 {irq} 0 {steal}\n"), now);
        for shares in between(&from, &to) {
            prop_assert!((sum(&shares) - 1.0).abs() < 1e-9, "{:?}", shares);
            prop_assert!(shares.percent().iter().flatten().all(|&part| part > -1e-9), "{:?}", shares);
            let held = shares.held_by_batch();
            prop_assert!((-1e-9..=1.0 + 1e-9).contains(&held), "{} {:?}", held, shares);
        }
    }
}

#[test]
fn a_core_without_time_and_an_answer_without_account_are_no_account() {
    let one = look(&json!({ "free": 5 }), [0; 3], "");
    assert_eq!(between(&one, &one), []);
    assert!(Snapshot::parse(&json!({}), "", 100.0, Ok(Vec::new())).is_err());
    let more = look(&json!({ "free": 9 }), [0; 3], "cpu3 0 0 0 0 0 0 0 500\n");
    let shares = &between(&one, &more)[0];
    assert!(near(shares.free, 1.0) && near(shares.steal, 0.0), "{shares:?}");
}

#[test]
fn kthreads_are_those_of_all_programs_or_none() {
    let both = json!({ "runtimes": [{ "pid": 4, "kthreads": 2, "threads": [5, 6] },
        { "pid": 7, "kthreads": 1, "threads": [8] }] });
    assert_eq!(tids(&kthreads_of(&both).unwrap()), [5, 6, 8]);
    let older = json!({ "runtimes": [{ "pid": 4, "kthreads": 2 }] });
    assert!(kthreads_of(&older).is_err() && Tracepoints::watch(&older).read(&older).is_err());
}

#[test]
fn rows_name_core_and_error() {
    let shares =
        Shares { core: 3, service_threads: 0.25, free: 0.75, sampling_error: 0.002, ..Shares::default() };
    let text = table("load", [("50 %".to_owned(), &shares)]);
    assert!(text.contains("50 %") && text.contains("25.0") && text.contains("+- 0.2"), "{text}");
    assert!(!text.contains("by clock ticks"), "{text}");
    let shares = Shares { by_ticks: Some("needs this".into()), ..shares };
    let text = table("load", [("50 %".to_owned(), &shares)]);
    assert!(text.ends_with("\nkernel by clock ticks: needs this\n") && text.contains(" - "), "{text}");
}
