//! The same as lines, for a pipe or a file.

use tailwater_testbed::table::{Table, number};

use crate::view::{Owner, Sort, View};

/// Returns everything but what is zero.
pub fn describe(view: &View, sort: Sort, filter: &str) -> String {
    let mut text = format!("{}\n\n", view.head);
    let mut table =
        Table::new(&format!("core | {}", Owner::ALL.map(|owner| format!("{} %", owner.name())).join(" | ")));
    for core in &view.cores {
        let shares = core.shares.iter().map(|share| format!("{:.0}", share * 100.0));
        table.row(std::iter::once(core.number.to_string()).chain(shares));
    }
    text += &table.to_string();
    let mut table = Table::new(
        "program | kind | cores | core s/s | queued | p50 us | p99 us | rx/s | tx/s | drop/s | preempted/s",
    );
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let whole = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    for program in view.sorted(sort, false, filter) {
        table.row([
            program.name.clone(),
            program.kind.to_owned(),
            whole(program.cores),
            format!("{:.2}", program.used),
            whole(program.queued),
            optional(program.p50),
            optional(program.p99),
            format!("{:.0}", program.rx),
            format!("{:.0}", program.tx),
            format!("{:.0}", program.dropped),
            format!("{:.0}", program.preempted),
        ]);
    }
    text += &format!(
        "\n{}",
        if view.programs.is_empty() { "no program is registered\n".to_owned() } else { table.to_string() }
    );
    for taker in &view.takers {
        text += &format!("\nran on lent cores: {taker}");
    }
    for handoff in &view.handoffs {
        if let Some((p50, p99)) = handoff.percentiles {
            text += &format!(
                "\nhand-off {}: {:.0}/s, p50 up to {p50} us, p99 up to {p99} us",
                handoff.kind, handoff.rate
            );
        }
    }
    for (reason, rate) in &view.drops {
        text += &format!("\ndropped {reason}: {rate:.0}/s");
    }
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{document, taken};

    #[test]
    fn lines_have_cores_programs_handoffs_and_drops() {
        let view = taken(View::between(&document(2, 0), &document(2, 1_000_000_000), 1.0));
        let text = describe(&view, Sort::Used, "");
        for part in [
            "IOKernel 0.1.0 on core 0",
            Owner::Service.name(),
            "swaptions",
            "480",
            "hand-off polling: 100000/s, p50 up to 5 us",
            "dropped full: 100/s",
            "ran on lent cores: stress?[2J[4711] 12.3 % of core 1",
        ] {
            assert!(text.contains(part), "`{part}` is missing:\n{text}");
        }
        assert!(!text.contains('\x1b') && !text.contains("signal"), "{text}");
        assert!(describe(&View::default(), Sort::Used, "").contains("no program"));
    }
}
