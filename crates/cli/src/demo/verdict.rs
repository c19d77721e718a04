//! The results of a demo in words.
//!
//! Owns which load is quoted, and the thresholds of a difference. Where Linux was better is
//! reported as plainly as where Tailwater was. Pure.

use super::outcome::{IdealPoint, Outcome, Point, Solo, System};
use tailwater_testbed::bed::BUSY_MACHINE;
use tailwater_testbed::table::number;

/// Two latencies within this factor of each other are the same.
const SAME_LATENCY: f64 = 1.05;

/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

/// The load that is quoted, if both systems sustain it.
const QUOTED_LOAD: f64 = 50.0;

/// Returns the verdict, a sentence or two per line.
pub fn verdict(outcome: &Outcome) -> Vec<String> {
    let pairs = pairs(&outcome.points);
    let mut lines = Vec::new();
    let sustained: Vec<_> = pairs.iter().filter(|(t, l)| !t.saturated && !l.saturated).collect();
    let distance = |load: f64| (load - QUOTED_LOAD).abs();
    match sustained.iter().min_by(|a, b| distance(a.0.load).total_cmp(&distance(b.0.load))) {
        Some((tailwater, linux)) => lines.extend(quote(outcome, tailwater, linux)),
        None => lines.push("At no load did both systems keep up, so there is nothing to compare.".to_owned()),
    }
    lines.push(capacity(&outcome.points));
    lines.push(linux_better(&pairs, outcome.solo));
    let handoff = &outcome.handoff_us;
    if handoff.count > 0 {
        lines.push(format!(
            "The IOKernel moved a core from the running batch job to the service {} times: {} us from decision to service \
             at the median, {} us at p99.",
            handoff.count,
            number(handoff.p50),
            number(handoff.p99)
        ));
    }
    lines.extend(caveats(outcome));
    lines
}

/// Points of both systems at the same load.
fn pairs(points: &[Point]) -> Vec<(&Point, &Point)> {
    let of = |system| points.iter().filter(move |p| p.system == system);
    of(System::Tailwater).filter_map(|t| Some((t, of(System::Linux).find(|l| l.load == t.load)?))).collect()
}

fn quote(outcome: &Outcome, tailwater: &Point, linux: &Point) -> Vec<String> {
    let latency = format!(
        "At {} % load half of the requests are answered within {} us on Tailwater and {} us on Linux ({}); 99.9 % of a \
         typical 100 ms within {} us and {} us ({}).",
        tailwater.load,
        number(tailwater.p50_us),
        number(linux.p50_us),
        compare(tailwater.p50_us, linux.p50_us),
        number(tailwater.win_p999_us),
        number(linux.win_p999_us),
        compare(tailwater.win_p999_us, linux.win_p999_us),
    );
    let ideal = outcome.ideal.iter().find(|i| i.load == tailwater.load);
    let batch = format!(
        "Beside it the batch job runs at {:.2} of its full speed on Tailwater and {:.2} on Linux; without any overhead {:.2} \
         would be left.",
        tailwater.batch_share,
        linux.batch_share,
        ideal.map_or(0.0, |i| i.queue.batch_share)
    );
    let mut lines = vec![latency, batch];
    lines.extend(ideal.and_then(bound));
    lines
}

/// Returns the latency of an ideal system, as a bound for any system on this machine.
fn bound(ideal: &IdealPoint) -> Option<String> {
    let stalled = ideal.stalled.as_ref()?;
    Some(format!(
        "An ideal system on this machine, with the stalls measured before the run, would have had {} us and {} us; on cores \
         that always run, {} us and {} us.",
        number(stalled.p50_us),
        number(stalled.win_p999_us),
        number(ideal.queue.p50_us),
        number(ideal.queue.win_p999_us)
    ))
}

/// Returns which system has the lower latency, and by how much.
fn compare(tailwater_us: f64, linux_us: f64) -> String {
    let ratio = linux_us / tailwater_us;
    if ratio > SAME_LATENCY {
        format!("Tailwater {ratio:.1} times lower")
    } else if ratio < 1.0 / SAME_LATENCY {
        format!("Linux {:.1} times lower", 1.0 / ratio)
    } else {
        "no difference".to_owned()
    }
}

/// Returns the highest load that each system keeps up with.
fn capacity(points: &[Point]) -> String {
    let limit = |system: System| {
        let mut own: Vec<&Point> = points.iter().filter(|p| p.system == system).collect();
        own.sort_by(|a, b| a.load.total_cmp(&b.load));
        let kept = own.iter().take_while(|p| !p.saturated).last();
        match (kept, own.iter().any(|p| p.saturated)) {
            (None, _) => format!("{} keeps up with none of the loads", system.name()),
            (Some(point), true) => {
                format!("{} keeps up with {} % load and no more", system.name(), point.load)
            }
            (Some(point), false) => {
                format!("{} keeps up with all loads, up to {} %", system.name(), point.load)
            }
        }
    };
    format!("{}; {}.", limit(System::Tailwater), limit(System::Linux))
}

/// Lists where Linux was better. Each batch share is of the speed alone on its own system; both are
/// converted to the speed alone on Linux to be compared.
fn linux_better(pairs: &[(&Point, &Point)], solo: Solo) -> String {
    let speed = if solo.linux > 0.0 { solo.tailwater / solo.linux } else { 1.0 };
    let mut found = Vec::new();
    for (tailwater, linux) in pairs.iter().filter(|(_, linux)| !linux.saturated) {
        let mut better = Vec::new();
        let lower = |a: f64, b: f64| a * SAME_LATENCY < b;
        if lower(linux.p50_us, tailwater.p50_us) {
            better.push("p50");
        }
        if lower(linux.win_p999_us, tailwater.win_p999_us) {
            better.push("windowed p99.9");
        }
        if linux.batch_share > speed * tailwater.batch_share + SAME_SHARE {
            better.push("batch share");
        }
        if !better.is_empty() {
            found.push(format!("{} % ({})", linux.load, better.join(", ")));
        }
    }
    if found.is_empty() {
        "Linux was better nowhere: not in p50, windowed p99.9 or batch share at any load it sustained."
            .to_owned()
    } else {
        format!("Linux was better at {}.", found.join(", "))
    }
}

/// Cautions that limit the other sentences.
fn caveats(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    let taken = outcome.noise.iter().max_by(|a, b| a.gaps.lost_fraction.total_cmp(&b.gaps.lost_fraction));
    if let Some(noise) = taken.filter(|noise| noise.gaps.lost_fraction > BUSY_MACHINE) {
        lines.push(format!(
            "Caution: before anything of the demo ran, other programs or the host took {:.0} % of core {}. Run it again on a \
             quiet machine; these figures compare little but luck.",
            100.0 * noise.gaps.lost_fraction,
            noise.core
        ));
    }
    let late: Vec<&Point> = outcome.points.iter().filter(|p| p.late_part() > 0.01 && !p.saturated).collect();
    if let Some(worst) = late.iter().max_by(|a, b| a.late_part().total_cmp(&b.late_part())) {
        lines.push(format!(
            "Caution: in {} of {} points the generator sent over 1 % of the requests late ({:.1} % on {} at {} %); their \
             latencies include that.",
            late.len(),
            outcome.points.len(),
            100.0 * worst.late_part(),
            worst.system.name(),
            worst.load
        ));
    }
    let (windows, cut) = outcome.points.iter().fold((0, 0), |(w, c), p| (w + p.windows, c + p.windows_cut));
    if cut * 2 > windows {
        lines.push(format!(
            "Caution: this machine is noisy. {cut} of {windows} windows of 100 ms were cut by stalls of over 200 us, so even \
             the windowed p99.9 contains the machine's noise."
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::outcome::QueueFigures;
    use super::*;

    fn point(system: System, load: f64, p50_us: f64, batch_share: f64, saturated: bool) -> Point {
        Point {
            system,
            service: "exp:10us".to_owned(),
            load,
            offered_rps: load * 1e3,
            achieved_rps: load * 1e3,
            p50_us,
            p99_us: p50_us * 5.0,
            p999_us: p50_us * 9.0,
            win_p999_us: p50_us * 8.0,
            batch_share,
            solo_rate: 1e6,
            lost: 0,
            late: 0,
            saturated,
            completed: 1000,
            windows: 10,
            windows_cut: 0,
            duration_s: 1.0,
            work: None,
            account: Vec::new(),
            speed: None,
        }
    }

    #[test]
    fn the_faster_system_is_named_whichever_it_is() {
        assert_eq!(compare(10.0, 30.0), "Tailwater 3.0 times lower");
        assert_eq!(compare(30.0, 10.0), "Linux 3.0 times lower");
        assert_eq!(compare(10.0, 10.3), "no difference");
    }

    #[test]
    fn capacity_is_the_last_load_before_the_first_saturated_one() {
        let points = [
            point(System::Tailwater, 50.0, 10.0, 0.4, false),
            point(System::Tailwater, 90.0, 20.0, 0.1, false),
            point(System::Linux, 50.0, 20.0, 0.4, false),
            point(System::Linux, 90.0, 20.0, 0.1, true),
        ];
        let text = capacity(&points);
        assert!(text.contains("Tailwater keeps up with all loads"), "{text}");
        assert!(text.contains("Linux keeps up with 50 % load"), "{text}");
    }

    #[test]
    fn where_linux_is_better_it_is_said() {
        let tailwater = point(System::Tailwater, 10.0, 30.0, 0.80, false);
        let linux = point(System::Linux, 10.0, 10.0, 0.85, false);
        let even = Solo { tailwater: 1e6, linux: 1e6 };
        let text = linux_better(&[(&tailwater, &linux)], even);
        assert!(text.contains("10 % (p50, windowed p99.9, batch share)"), "{text}");
        assert!(linux_better(&[(&linux, &tailwater)], even).contains("nowhere"));
        let slower = Solo { tailwater: 0.8e6, linux: 1e6 };
        let text = linux_better(&[(&linux, &tailwater)], slower);
        assert!(text.contains("10 % (batch share)"), "0.68 of its full speed there against 0.80: {text}");
    }

    #[test]
    fn the_machines_stalls_are_named_as_a_bound() {
        let figures = |win_p999_us| QueueFigures {
            p50_us: 13.9,
            p99_us: 92.0,
            p999_us: 138.0,
            win_p999_us,
            batch_share: 0.5,
            offered_rps: 5e4,
            achieved_rps: 5e4,
            lost: 0,
        };
        let mut point = IdealPoint { load: 50.0, queue: figures(132.0), stalled: Some(figures(250.0)) };
        let text = bound(&point).unwrap();
        assert!(text.contains("13.9 us and 250 us"), "{text}");
        assert!(text.contains("13.9 us and 132 us"), "{text}");
        assert!(point.table_rows().contains("250"));
        point.stalled = None;
        assert_eq!(bound(&point), None);
        assert!(point.table_rows().ends_with("stood still while it was probed"), "{}", point.table_rows());
    }
}
