//! Why a program was slow: a verdict from what was seen of it.
//!
//! Pure: a function from [`Evidence`] to [`Verdict`]. Each cause has a cost in time, by which
//! causes are compared; what costs less than [`LEAST`] of the time watched is none. The wait of
//! requests for something else is a cause only if there is no other, since whatever delays a
//! program makes its requests wait, too. Names are other programs' and are made harmless where they
//! are shown.

use tailwater_testbed::text::plain;

/// Part of the time watched below which a cost is no cause.
const LEAST: f64 = 0.02;
/// Part of the time of requests from which the stage in which they spend most is a cause.
const MUCH: f64 = 0.3;
/// Requests below which their stages say nothing.
const FEW: u64 = 5;

/// A cost in nanoseconds of which one thing is the chief cause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost {
    /// In nanoseconds.
    pub ns: u64,
    /// What caused most of it, as it names itself.
    pub chief: String,
    /// More about that.
    pub detail: String,
}

/// Where the traced requests spent their time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Requests that were answered.
    pub answered: u64,
    /// All of their time.
    pub all_ns: u64,
    /// They waited for something in the program, or for another host.
    pub blocked_ns: u64,
    /// They waited for a core.
    pub core_ns: u64,
    /// Part of that: for one whose holder needed the preempt signal.
    pub unpolled_ns: u64,
    /// Part of that: for one whose holder heeded not even that.
    pub bypassed_ns: u64,
    /// Part of that: for their kthread, which had been woken on it, to start.
    pub start_ns: u64,
    /// They waited for others: in a ring, a socket, a run queue or a dispatcher.
    pub queue_ns: u64,
    /// They ran.
    pub run_ns: u64,
}

/// What was seen of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Name of the program.
    pub name: String,
    /// Length of the watch.
    pub time_ns: u64,
    /// Other programs ran while its kthreads waited for their cores, or while kthreads that were to
    /// cede a core to it did. The chief of them, and its control group.
    pub taken: Cost,
    /// Control groups of it used up their quota. The chief of them.
    pub throttled: Cost,
    /// The host took time from the cores: the most of one. The core.
    pub stolen: Cost,
    /// It waited for cores whose holders needed the preempt signal. The chief of these programs.
    pub unpolled: Cost,
    /// The same if that program is the watched one itself: others waited for it.
    pub own_unpolled: bool,
    /// Kthreads of it waited in the kernel for a lock while they held their cores.
    pub locked: Cost,
    /// The same in another system call, which is the chief.
    pub in_calls: Cost,
    /// Requests to it.
    pub requests: Requests,
    /// What is not known, in words.
    pub unknown: Vec<String>,
}

/// A cause of delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// An ordinary program on its core.
    Neighbour,
    /// The quota of a control group.
    Quota,
    /// The host.
    Host,
    /// A program that reaches no poll point.
    NoPollPoints,
    /// A lock of the C library or of `std`, for which the kernel makes a core wait.
    Lock,
    /// Another system call that blocks.
    BlockingCall,
    /// Another host, or another part of the program.
    Peer,
    /// No core was free.
    Cores,
    /// Its own work.
    OwnWork,
    /// Nothing was found.
    Nothing,
}

/// The cause and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The chief cause.
    pub cause: Cause,
    /// One paragraph.
    pub text: String,
}

/// Returns the verdict.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut costs = costs(evidence);
    // The greatest first; of equal ones that which stands first there.
    costs.sort_by_key(|(_, cost, _)| core::cmp::Reverse(cost.ns));
    let is_cause = |ns: u64| ns as f64 >= LEAST * evidence.time_ns as f64 && ns > 0;
    costs.retain(|(_, cost, _)| is_cause(cost.ns));
    // Kthreads that a quota stops could run on, so they count as waiting while others run.
    if costs.iter().any(|(cause, ..)| *cause == Cause::Quota) {
        costs.retain(|(cause, ..)| *cause != Cause::Neighbour);
    }
    let name = plain(&evidence.name);
    let seconds = evidence.time_ns as f64 / 1e9;
    let (cause, mut text) = match costs.first() {
        Some((cause, _, text)) => (*cause, format!("{name}, in {seconds:.1} s: {text}")),
        None => {
            let (cause, text) = of_requests(&evidence.requests, &name);
            (cause, format!("{name}, in {seconds:.1} s: {text}"))
        }
    };
    for (_, _, sentence) in costs.iter().skip(1) {
        text += &format!(" Besides: {sentence}");
    }
    for unknown in &evidence.unknown {
        text += &format!(" Not known: {}.", plain(unknown));
    }
    Verdict { cause, text }
}

/// Returns each cause with its cost and its sentence.
fn costs(evidence: &Evidence) -> Vec<(Cause, &Cost, String)> {
    let Evidence { taken, throttled, stolen, unpolled, own_unpolled, locked, in_calls, .. } = evidence;
    let part = |cost: &Cost| format!("{:.1} %", 100.0 * cost.ns as f64 / evidence.time_ns.max(1) as f64);
    let chief = |cost: &Cost| plain(&cost.chief);
    let detail = |cost: &Cost| plain(&cost.detail);
    vec![
        (
            Cause::Quota,
            throttled,
            format!(
                "Linux stopped it for {} of the time, because the control group {} had used up its quota of \
                 processor time ({}). Raise or remove the quota (cpu.max, cpu.cfs_quota_us, CPUQuota=, a \
                 container's CPU limit).",
                part(throttled),
                chief(throttled),
                detail(throttled)
            ),
        ),
        (
            Cause::Lock,
            locked,
            format!(
                "its kthreads waited in the kernel for a lock for {} of the time, while they held their \
                 cores: a std or C library mutex or condition variable that user threads share. Use \
                 tailwater::sync, or call the code by tailwater::blocking.",
                part(locked)
            ),
        ),
        (
            Cause::BlockingCall,
            in_calls,
            format!(
                "its kthreads were in a blocking system call ({}) for {} of the time, while they held their \
                 cores. Call it by tailwater::blocking, or use tailwater::net and tailwater::time.",
                chief(in_calls),
                part(in_calls)
            ),
        ),
        (
            Cause::Neighbour,
            taken,
            format!(
                "other programs ran on its cores for {} of the time while kthreads waited for these, most of \
                 it {} of control group {}. Keep it off the managed cores (taskset, a cpuset), or give the \
                 IOKernel other cores (managed-cores).",
                part(taken),
                chief(taken),
                detail(taken)
            ),
        ),
        (Cause::NoPollPoints, unpolled, without_poll_points(unpolled, *own_unpolled, &part(unpolled))),
        (
            Cause::Host,
            stolen,
            format!(
                "the host took {} of the time of {} (steal in /proc/stat). Run on a machine whose virtual \
                 CPUs are not shared, or judge by windows without steal.",
                part(stolen),
                chief(stolen)
            ),
        ),
    ]
}

/// Returns the sentence about code without poll points: of the cost's chief, or the program's own.
fn without_poll_points(cost: &Cost, is_own: bool, part: &str) -> String {
    let remedy = "Add tailwater::poll() to its loops, or #[tailwater::preemptible].";
    if is_own {
        return format!(
            "it gives cores up only after the preempt signal, for which others waited {part} of the time. \
             {remedy}"
        );
    }
    format!(
        "it waited {part} of the time for cores that {} gave up only after the preempt signal: it runs code \
         without poll points. {remedy}",
        plain(&cost.chief)
    )
}

/// Returns the cause that the stages of requests show when nothing else does.
fn of_requests(requests: &Requests, name: &str) -> (Cause, String) {
    let Requests { answered, all_ns, blocked_ns, core_ns, queue_ns, run_ns, .. } = *requests;
    let part = |ns: u64| ns as f64 / all_ns.max(1) as f64;
    let percent = |ns: u64| format!("{:.0} %", 100.0 * part(ns));
    let mean = all_ns as f64 / answered.max(1) as f64 / 1e3;
    if answered < FEW {
        let text = format!(
            "no cause was found, and only {answered} requests came through a port. `tailwater trace --program \
             {name} --sample 1` follows every one; `tailwater info {name}` says why it has no core."
        );
        return (Cause::Nothing, text);
    }
    let most = blocked_ns.max(core_ns).max(queue_ns).max(run_ns);
    let is_most = |ns: u64| ns == most && part(ns) >= MUCH;
    match () {
        () if is_most(blocked_ns) => (
            Cause::Peer,
            format!(
                "its requests took {mean:.0} us on average, {} of which they waited for a slow peer: another \
                 host, or a timer, channel or lock of another thread. Look at what it calls.",
                percent(blocked_ns)
            ),
        ),
        () if is_most(core_ns) => (
            Cause::Cores,
            format!(
                "its requests took {mean:.0} us on average, {} of which they waited for a core, and the \
                 programs that held the cores ceded in time. Give it a guaranteed core, or the IOKernel more cores.",
                percent(core_ns)
            ),
        ),
        () if is_most(queue_ns) || is_most(run_ns) => (
            Cause::OwnWork,
            format!(
                "its requests took {mean:.0} us on average: {} waiting for its other requests, {} running. \
                 Give it more kthreads and cores, or shorter requests; `tailwater trace` shows single ones.",
                percent(queue_ns),
                percent(run_ns)
            ),
        ),
        () => (
            Cause::Nothing,
            format!(
                "nothing was found: {answered} requests took {mean:.0} us on average, and no stage of them \
                 much of it. `tailwater trace --program {name}` shows single ones."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(ns: u64, chief: &str) -> Cost {
        Cost { ns, chief: chief.to_owned(), detail: "/group\x1b".to_owned() }
    }

    fn idle() -> Evidence {
        Evidence { name: "web".to_owned(), time_ns: 1_000, ..Evidence::default() }
    }

    fn requests(blocked_ns: u64, core_ns: u64, queue_ns: u64, run_ns: u64) -> Requests {
        Requests {
            answered: 50,
            all_ns: 100_000,
            blocked_ns,
            core_ns,
            queue_ns,
            run_ns,
            ..Requests::default()
        }
    }

    #[test]
    fn each_cause_is_named_with_its_culprit_and_its_remedy() {
        let with = |change: fn(&mut Evidence)| {
            let mut evidence = idle();
            change(&mut evidence);
            evidence
        };
        let table: [(Evidence, Cause, &[&str]); 12] = [
            (
                with(|it| it.taken = cost(300, "stress[9]")),
                Cause::Neighbour,
                &["stress[9]", "30.0 %", "taskset"],
            ),
            (with(|it| it.throttled = cost(300, "/web")), Cause::Quota, &["/web", "quota", "cpu.max"]),
            (with(|it| it.stolen = cost(300, "core 1")), Cause::Host, &["core 1", "steal"]),
            (with(|it| it.unpolled = cost(300, "xz")), Cause::NoPollPoints, &["xz", "tailwater::poll()"]),
            (
                with(|it| (it.unpolled, it.own_unpolled) = (cost(300, "web"), true)),
                Cause::NoPollPoints,
                &["others waited 30.0 %", "tailwater::poll()"],
            ),
            (with(|it| it.locked = cost(300, "futex")), Cause::Lock, &["mutex", "tailwater::sync"]),
            (
                with(|it| it.in_calls = cost(300, "read")),
                Cause::BlockingCall,
                &["read", "tailwater::blocking"],
            ),
            (with(|it| it.requests = requests(90_000, 0, 0, 9)), Cause::Peer, &["90 %", "slow peer"]),
            (with(|it| it.requests = requests(0, 90_000, 0, 9)), Cause::Cores, &["a core", "guaranteed"]),
            (with(|it| it.requests = requests(0, 0, 90_000, 9)), Cause::OwnWork, &["90 %", "kthreads"]),
            (with(|it| it.requests = requests(0, 0, 9, 90_000)), Cause::OwnWork, &["90 % running"]),
            (idle(), Cause::Nothing, &["0 requests", "tailwater trace --program web"]),
        ];
        for (evidence, cause, parts) in table {
            let verdict = judge(&evidence);
            assert_eq!(verdict.cause, cause, "{evidence:?}\n{}", verdict.text);
            assert!(verdict.text.starts_with("web, in "), "{}", verdict.text);
            for part in parts {
                assert!(verdict.text.contains(part), "`{part}` is missing: {}", verdict.text);
            }
            assert_eq!(verdict.text.lines().count(), 1, "one paragraph");
        }
    }

    #[test]
    fn the_greatest_cost_is_the_cause_and_others_are_named_beside_it() {
        let mut evidence = idle();
        evidence.taken = cost(100, "stress[9]");
        evidence.unpolled = cost(400, "xz");
        // Below the least, and requests that wait because of the others.
        evidence.stolen = cost(19, "core 1");
        evidence.requests = requests(90_000, 0, 0, 0);
        let Verdict { cause, text } = judge(&evidence);
        assert_eq!(cause, Cause::NoPollPoints);
        let besides = text.split(" Besides: ").nth(1).expect("another cause");
        assert!(["10.0 %", "stress[9]", "taskset"].iter().all(|part| besides.contains(part)), "{text}");
        assert!(!text.contains("core 1") && !text.contains("slow peer"), "{text}");
        // Those that name nobody have a sentence, too.
        (evidence.taken, evidence.own_unpolled) = (Cost::default(), true);
        evidence.locked = Cost { ns: 700, ..Cost::default() };
        let Verdict { cause, text } = judge(&evidence);
        assert_eq!(cause, Cause::Lock);
        assert!(text.contains(" Besides: it gives cores up only after the preempt signal"), "{text}");
        evidence.unpolled.ns = 900;
        let text = judge(&evidence).text;
        assert!(text.contains(" Besides: its kthreads waited in the kernel for a lock"), "{text}");
    }

    #[test]
    fn who_ran_while_a_quota_stopped_the_program_is_no_cause() {
        let mut evidence = idle();
        (evidence.throttled, evidence.taken) = (cost(100, "/web"), cost(800, "stress[9]"));
        let Verdict { cause, text } = judge(&evidence);
        assert!(cause == Cause::Quota && !text.contains("stress"), "{text}");
    }

    #[test]
    fn names_do_nothing_to_a_terminal_and_what_is_unknown_is_said() {
        let mut evidence = idle();
        (evidence.name, evidence.taken) = ("w\x1b[2J".to_owned(), cost(900, "x\nz"));
        evidence.unknown = vec!["who ran there: needs CAP_BPF".to_owned()];
        let text = judge(&evidence).text;
        assert!(text.starts_with("w?[2J, in ") && text.contains("x?z") && !text.contains('\x1b'), "{text}");
        assert!(text.ends_with("Not known: who ran there: needs CAP_BPF."), "{text}");
    }

    #[test]
    fn a_watch_of_no_time_finds_nothing() {
        let evidence = Evidence { time_ns: 0, ..idle() };
        assert_eq!(judge(&evidence).cause, Cause::Nothing);
    }
}
