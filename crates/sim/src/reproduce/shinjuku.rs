//! Shinjuku (NSDI'19): the policy simulations of section 2 and the connection count of section 3.5.
//!
//! The paper does not state the number of cores of its simulation; we use 16, its server's
//! hyperthreads. Processor sharing has the paper's slice of 0.1 us, preemption the shortest quantum
//! it evaluates, 5 us. Preempted requests go to the head for the light tail and to the tail
//! otherwise (the paper's rule of thumb, section 3.4).

use super::{Claim, Drawing, Options, Reproduction};
use crate::study::connections::{ConnectionRow, ConnectionStudy};
use crate::study::policies::{PolicyRow, PolicyStudy, curves};
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

/// Loads per curve.
pub(super) const LOADS: usize = 10;
const LOAD_RANGE: &str = "0.05,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9";
const CORES: usize = 16;

fn study(options: &Options, policies: &str, service: &str) -> PolicyStudy {
    PolicyStudy {
        policies: policies.to_owned(),
        service: service.to_owned(),
        cores: CORES,
        loads: LOAD_RANGE.to_owned(),
        effort: options.effort(),
        ..PolicyStudy::default()
    }
}

/// Returns the row of a policy (by the start of its notation) at a load.
fn at<'a>(rows: &'a [PolicyRow], policy: &str, load: f64) -> &'a PolicyRow {
    let found = rows.iter().find(|r| r.policy.starts_with(policy) && (r.load - load).abs() < 1e-9);
    found.expect("the figure runs this policy at this load")
}

/// Returns the p99 in microseconds; infinite without a steady state.
fn p99(row: &PolicyRow) -> f64 {
    if row.saturated { f64::INFINITY } else { row.latency_ns[2].value / 1e3 }
}

fn names(lines: Vec<Line>) -> Vec<Line> {
    let name = |l: &Line| match l.name.split(':').next() {
        Some("d-fcfs") => "d-FCFS",
        Some("c-fcfs") => "c-FCFS",
        Some("ps") => "PS (0.1 us)",
        Some("sq") => "c-PRE-SQ (5 us)",
        _ => "c-PRE-MQ (5 us)",
    };
    lines.into_iter().map(|l| Line { name: name(&l).to_owned(), ..l }).collect()
}

fn panel(title: &str, y_label: &str, range: (f64, f64), lines: Vec<Line>) -> Panel {
    Panel::new(title, "load (%)", y_label, names(lines)).log_y().within(range)
}

fn data(columns: &[(&str, &[PolicyRow])]) -> Table {
    let mut table = Table::new("workload | policy | load | p99_us | p99_error_us | p99_slowdown | saturated");
    for (name, rows) in columns {
        for r in *rows {
            table.row([
                (*name).to_owned(),
                r.policy.clone(),
                r.load.to_string(),
                format!("{:.3}", r.latency_ns[2].value / 1e3),
                format!("{:.3}", r.latency_ns[2].error / 1e3),
                format!("{:.3}", r.slowdown[2].value),
                r.saturated.to_string(),
            ]);
        }
    }
    table
}

pub(super) fn figure1(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let run = |place: &str, service: &str| {
        study(options, &format!("d-fcfs c-fcfs ps:100ns sq:5us,{place}"), service).run(tick)
    };
    let exponential = run("head", "exp:1us")?;
    // Mean 1 us and standard deviation 10 us: sigma^2 = ln(1 + 10^2).
    let log_normal = run("tail", "lognormal:1us,sigma=2.148283125929963")?;
    let bimodal = run("tail", "bimodal:0.995*500ns+0.005*500us")?;
    let p99_of = |rows: &[PolicyRow]| curves(rows, p99);
    let panels = [
        panel("Exponential, mean 1 us", "p99 latency (us)", (1.0, 100.0), p99_of(&exponential)),
        panel("Log-normal, mean 1 us, sd 10 us", "p99 latency (us)", (1.0, 1000.0), p99_of(&log_normal)),
        panel("99.5% 0.5 us, 0.5% 500 us", "p99 latency (us)", (0.1, 1e4), p99_of(&bimodal)),
    ];
    Ok(Reproduction {
        title: "Shinjuku figure 1: dispatch policies without overheads, 16 cores".to_owned(),
        data: data(&[("exponential", &exponential), ("log-normal", &log_normal), ("bimodal", &bimodal)]),
        drawing: Drawing::new("Dispatch policies without overheads, 16 cores (Shinjuku, figure 1)", &panels),
        claims: claims1(&exponential, &log_normal, &bimodal),
    })
}

fn claims1(exponential: &[PolicyRow], log_normal: &[PolicyRow], bimodal: &[PolicyRow]) -> Vec<Claim> {
    let four = |rows: &[PolicyRow], load: f64| {
        let [d, c, ps, pre] = ["d-fcfs", "c-fcfs", "ps", "sq"].map(|p| p99(at(rows, p, load)));
        let text = format!(
            "p99 at {:.0}% load: d-FCFS {d:.1}, c-FCFS {c:.1}, PS {ps:.1}, c-PRE-SQ {pre:.1} us",
            load * 100.0
        );
        (d, c, ps, pre, text)
    };
    let (ed, ec, ep, _, exponential_text) = four(exponential, 0.8);
    let (ld, lc, _, _, log_text) = four(log_normal, 0.8);
    let (_, bc, bp, _, bimodal_text) = four(bimodal, 0.7);
    let excess = [(exponential, 0.8), (log_normal, 0.8), (bimodal, 0.7)].map(|(rows, load)| {
        let (_, c, ps, pre, _) = four(rows, load);
        pre - c.min(ps)
    });
    let worst = excess.into_iter().fold(f64::MIN, f64::max);
    vec![
        Claim::new(
            "exponential: d-FCFS suffers at moderate and high load",
            exponential_text.clone(),
            ed > 2.0 * ec,
        ),
        Claim::new(
            "exponential: c-FCFS is optimal, PS slightly worse",
            exponential_text,
            ec <= ep && ep < 2.5 * ec,
        ),
        Claim::new("log-normal: c-FCFS is significantly better than d-FCFS", log_text, lc * 2.0 < ld),
        Claim::new(
            "bimodal: c-FCFS is significantly worse than PS, which handles it well",
            bimodal_text,
            bc > 5.0 * bp,
        ),
        Claim::new(
            "preemption (c-PRE) achieves the best of PS and c-FCFS",
            format!("p99 at most {worst:.1} us above the better of the two: less than its quantum of 5 us"),
            worst < 5.0,
        ),
    ]
}

pub(super) fn figure2(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let rows = study(options, "d-fcfs c-fcfs ps:100ns mq:5us,head", "bimodal:0.5*1us+0.5*100us").run(tick)?;
    let class =
        |r: &PolicyRow, i: usize| if r.saturated { f64::INFINITY } else { r.class_p99_ns[i].value / 1e3 };
    let panels = [
        panel("1 us requests", "p99 latency (us)", (1.0, 1000.0), curves(&rows, |r| class(r, 0))),
        panel("100 us requests", "p99 latency (us)", (100.0, 10_000.0), curves(&rows, |r| class(r, 1))),
        panel("All requests", "p99 slowdown", (1.0, 1000.0), curves(&rows, |r| r.slowdown[2].value)),
    ];
    let mut table = Table::new("policy | load | short_p99_us | long_p99_us | p99_slowdown | saturated");
    for r in &rows {
        let mut cells = vec![r.policy.clone(), r.load.to_string()];
        cells.extend([class(r, 0), class(r, 1), r.slowdown[2].value].map(|v| format!("{v:.3}")));
        cells.push(r.saturated.to_string());
        table.row(cells);
    }
    let point = |policy, i| class(at(&rows, policy, 0.8), i);
    let slowdown = |policy| at(&rows, policy, 0.8).slowdown[2].value;
    let [sd, sc, sp, sm] = ["d-fcfs", "c-fcfs", "ps", "mq"].map(|p| point(p, 0));
    let [_, lc, lp, lm] = ["d-fcfs", "c-fcfs", "ps", "mq"].map(|p| point(p, 1));
    let short = format!(
        "p99 of 1 us requests at 80% load: d-FCFS {sd:.0}, c-FCFS {sc:.0}, PS {sp:.1}, c-PRE-MQ {sm:.1} us"
    );
    let long = format!("p99 of 100 us requests at 80% load: c-FCFS {lc:.0}, PS {lp:.0}, c-PRE-MQ {lm:.0} us");
    let (penalty, benefit) = (sc / sp, lp / lc);
    Ok(Reproduction {
        title: "Shinjuku figure 2: 50% 1 us and 50% 100 us requests, 16 cores".to_owned(),
        data: table,
        drawing: Drawing::new("50% 1 us and 50% 100 us requests, 16 cores (Shinjuku, figure 2)", &panels),
        claims: vec![
            Claim::new(
                "d-FCFS and c-FCFS heavily penalise 1 us requests",
                short,
                sd > 10.0 * sp && sc > 10.0 * sp,
            ),
            Claim::new(
                "c-FCFS is marginally better than PS for 100 us requests",
                long.clone(),
                lc < lp && lp < 3.0 * lc,
            ),
            Claim::new(
                "the penalty on short requests dwarfs the benefit to long ones",
                format!(
                    "c-FCFS: {penalty:.0} times PS for short ones, PS {benefit:.1} times c-FCFS for long ones"
                ),
                penalty > 5.0 * benefit,
            ),
            Claim::new(
                "the multi-queue policy achieves the best of both",
                format!(
                    "{long}; p99 slowdown {:.1} (PS {:.1}, c-FCFS {:.0})",
                    slowdown("mq"),
                    slowdown("ps"),
                    slowdown("c-fcfs")
                ),
                lm < 1.5 * lc && slowdown("mq") < slowdown("c-fcfs") / 5.0,
            ),
        ],
    })
}

pub(super) fn figure4(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let trials = if options.quick { 150 } else { 2_000 };
    let study = ConnectionStudy {
        trials,
        seed: options.seed,
        threads: options.threads,
        ..ConnectionStudy::default()
    };
    let rows = study.run(tick)?;
    let points = rows.iter().map(|r| (r.queues as f64, r.connections as f64)).collect();
    let panel = Panel::new(
        "imbalance below 10% with probability 90%",
        "queues (cores)",
        "connections",
        vec![Line::new("simulated", points)],
    )
    .within((0.0, 20_000.0));
    let of = |queues| rows.iter().find(|r: &&ConnectionRow| r.queues == queues).map_or(0, |r| r.connections);
    let (even, most) = (study.balanced(2, 300), of(24));
    Ok(Reproduction {
        title: "Shinjuku figure 4: connections needed for balance under RSS".to_owned(),
        data: crate::study::connections::table(&rows),
        drawing: Drawing::new("Connections needed for balance under RSS (Shinjuku, figure 4)", &[panel]),
        claims: vec![
            Claim::new(
                "24 queues need 16,000 connections",
                format!("{most} connections"),
                (14_000..=18_500).contains(&most),
            ),
            Claim::new(
                "300 connections balance 2 dispatchers",
                format!("with 300 connections the imbalance is below 10% with probability {even:.3}"),
                even > 0.88,
            ),
        ],
    })
}
