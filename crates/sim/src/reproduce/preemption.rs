//! Shinjuku (NSDI'19), figure 6: the multi-queue policy against systems without preemption, under
//! two and three types of requests.
//!
//! Costs are those of the papers' machines. Shinjuku's dispatcher and network thread take two of
//! the 16 hyperthreads, so it has 14 workers where the others have 16; loads are fractions of 16
//! cores for all of them.

use super::{Claim, Options, Reproduction};
use crate::report::Table;
use crate::study::policies::{PolicyRow, PolicyStudy};
use tailwater_plot::{Line, Panel, draw};

/// Hyperthreads of the paper's server, and those that Shinjuku leaves to workers.
const CORES: usize = 16;
const WORKERS: usize = 14;
/// Flows of the paper's load generator.
const FLOWS: u32 = 1920;
/// Loads as fractions of [`CORES`].
const LOADS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
/// Those of a quick run, among them those at which systems are compared.
const QUICK_LOADS: [f64; 3] = [LOW, 0.6, 0.8];
const COSTS: &str = "paper-2019";

const TWO_TYPES: &str = "bimodal:0.5*1us+0.5*100us";
/// A mixture of constants in the simulator's notation has two; this one has three.
const THREE_TYPES: [(&str, f64, &str); 3] =
    [("short", 0.34, "const:1us"), ("middle", 0.33, "const:10us"), ("long", 0.33, "const:100us")];

const IX: &str = "d-FCFS, 16 cores (IX)";
const ZYGOS: &str = "d-FCFS with stealing, 16 cores (ZygOS)";
const SHINJUKU: &str = "multi-queue, 5 us, 14 workers (Shinjuku)";
/// The systems: name, policy, cores.
const SYSTEMS: [(&str, &str, usize); 3] =
    [(IX, "d-fcfs", CORES), (ZYGOS, "steal", CORES), (SHINJUKU, "mq:5us,head", WORKERS)];
/// Slowdown at which throughput is compared; the paper does not state one.
const SLOWDOWN_LIMIT: f64 = 20.0;
const PAPERS_TIMES: f64 = 2.0;
/// "94 % lower slowdown at low load": at this load.
const LOW: f64 = 0.2;
const PAPERS_LOWER: f64 = 0.94;

/// Points of the figure, for its progress.
pub(super) const POINTS: usize = 2 * SYSTEMS.len() * LOADS.len();

/// Two or three types of requests.
#[derive(Clone, Copy)]
enum Types {
    Two,
    Three,
}

impl Types {
    fn title(self) -> &'static str {
        match self {
            Self::Two => "50 % 1 us, 50 % 100 us",
            Self::Three => "a third each of 1, 10 and 100 us",
        }
    }

    /// Runs one policy over all loads; the rows' loads are fractions of [`CORES`].
    fn run(
        self,
        policy: &str,
        cores: usize,
        options: &Options,
        tick: &(dyn Fn() + Sync),
    ) -> anyhow::Result<Vec<PolicyRow>> {
        let scale = CORES as f64 / cores as f64;
        let fractions: &[f64] = if options.quick { &QUICK_LOADS } else { &LOADS };
        let loads: Vec<String> = fractions.iter().map(|load| (load * scale).to_string()).collect();
        let class = match self {
            Self::Two => None,
            Self::Three => Some(toml::from_str::<Three>(&three())?.class),
        };
        let study = PolicyStudy {
            policies: policy.to_owned(),
            service: TWO_TYPES.to_owned(),
            class,
            cores,
            loads: loads.join(","),
            costs: COSTS.to_owned(),
            connections: Some(FLOWS),
            effort: options.effort(),
            ..PolicyStudy::default()
        };
        let mut rows = study.run(tick)?;
        rows.iter_mut().zip(fractions).for_each(|(row, &load)| row.load = load);
        Ok(rows)
    }
}

/// The three types as a scenario file has them.
#[derive(serde::Deserialize)]
struct Three {
    class: crate::mix::Mix,
}

fn three() -> String {
    let class = |(name, share, service): (&str, f64, &str)| {
        format!("[[class]]\nname = '{name}'\nshare = {share}\nservice = '{service}'\n")
    };
    THREE_TYPES.map(class).concat()
}

/// Rows of one system under one mixture.
struct Curve {
    name: String,
    rows: Vec<PolicyRow>,
}

impl Curve {
    /// Returns the p99 of slowdown at a load; infinite without a steady state.
    fn slowdown(&self, load: f64) -> f64 {
        let row = self.rows.iter().find(|row| (row.load - load).abs() < 1e-9);
        row.filter(|row| !row.saturated).map_or(f64::INFINITY, |row| row.slowdown[2].value)
    }

    /// Returns the highest throughput with a p99 of slowdown within the limit, in requests per
    /// second.
    fn within_limit(&self) -> f64 {
        let kept = |row: &&PolicyRow| self.slowdown(row.load) <= SLOWDOWN_LIMIT;
        self.rows.iter().filter(kept).map(|row| row.achieved_rps).fold(0.0, f64::max)
    }

    fn line(&self) -> Line {
        let steady = self.rows.iter().filter(|row| !row.saturated);
        let points = steady.map(|row| (row.offered_rps / 1e3, row.slowdown[2].value)).collect();
        Line::new(self.name.clone(), points)
    }
}

fn slowdown_panel(title: &str, curves: &[Curve]) -> Panel {
    Panel {
        title: title.to_owned(),
        x_label: "thousand requests/s".to_owned(),
        y_label: "p99 slowdown".to_owned(),
        log_y: true,
        y_range: Some((1.0, 1000.0)),
        lines: curves.iter().map(Curve::line).collect(),
        ..Panel::default()
    }
}

fn push(table: &mut Table, workload: &str, curves: &[Curve]) {
    for curve in curves {
        for row in &curve.rows {
            table.push(vec![
                workload.to_owned(),
                curve.name.clone(),
                row.load.to_string(),
                format!("{:.0}", row.offered_rps),
                format!("{:.0}", row.achieved_rps),
                format!("{:.3}", row.slowdown[2].value),
                row.saturated.to_string(),
            ]);
        }
    }
}

const COLUMNS: [&str; 7] =
    ["workload", "system", "load", "offered_rps", "achieved_rps", "p99_slowdown", "saturated"];

pub(super) fn figure6(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let (mut data, mut panels, mut claims) = (Table::new(&COLUMNS), Vec::new(), Vec::new());
    for types in [Types::Two, Types::Three] {
        let mut curves = Vec::new();
        for (name, policy, cores) in SYSTEMS {
            curves.push(Curve { name: name.to_owned(), rows: types.run(policy, cores, options, tick)? });
        }
        push(&mut data, types.title(), &curves);
        panels.push(slowdown_panel(types.title(), &curves));
        claims.extend(judge(types, &curves));
    }
    Ok(Reproduction {
        title: "Shinjuku figure 6: request types with SLOs of their own".to_owned(),
        data,
        svg: draw("Several types of requests, paper-2019 costs (Shinjuku, figure 6)", &panels),
        claims,
    })
}

/// Judges one mixture; the curves are those of [`SYSTEMS`].
fn judge(types: Types, curves: &[Curve]) -> [Claim; 2] {
    let [ix, zygos, own] = [0, 1, 2].map(|index| curves[index].slowdown(LOW));
    let low =
        format!("p99 slowdown at {:.0} % load: IX {ix:.1}, ZygOS {zygos:.1}, own {own:.1}", 100.0 * LOW);
    let rates = [0, 1, 2].map(|index| curves[index].within_limit() / 1e3);
    let times = rates[2] / rates[0].max(rates[1]);
    let most = format!(
        "of the loads tried with a p99 slowdown of at most {SLOWDOWN_LIMIT}, thousand/s: IX {:.0}, ZygOS {:.0}, own {:.0}",
        rates[0], rates[1], rates[2]
    );
    let title = types.title();
    [
        Claim::new(
            &format!("{title}: 94 % lower slowdown at low load than IX and ZygOS"),
            low,
            own <= (1.0 - PAPERS_LOWER) * ix.min(zygos),
        ),
        Claim::new(&format!("{title}: over twice their throughput"), most, times > PAPERS_TIMES),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Estimate;

    fn row(load: f64, slowdown: f64, rps: f64) -> PolicyRow {
        let of = |value| Estimate { value, error: 0.0 };
        PolicyRow {
            policy: String::new(),
            load,
            offered_rps: rps,
            achieved_rps: rps,
            saturated: false,
            mean_ns: of(0.0),
            latency_ns: [of(0.0); 4],
            slowdown: [of(slowdown); 4],
            class_p99_ns: Vec::new(),
            busy: 0.0,
            overhead: 0.0,
            preemptions: 0.0,
            steals: 0.0,
            events: 0,
        }
    }

    /// Returns a curve with `slowdown` up to a load, and 100 beyond it.
    fn curve(slowdown: f64, up_to: f64) -> Curve {
        let of = |load: f64| row(load, if load <= up_to { slowdown } else { 100.0 }, 1e6 * load);
        Curve { name: String::new(), rows: LOADS.map(of).to_vec() }
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let holds = |curves: &[Curve]| judge(Types::Two, curves).map(|claim| claim.holds);
        assert_eq!(holds(&[curve(18.0, 0.5), curve(18.0, 0.1), curve(1.0, 0.8)]), [true, false]);
        assert_eq!(holds(&[curve(9.0, 0.3), curve(9.0, 0.1), curve(2.0, 0.8)]), [false, true]);
        assert_eq!(holds(&[curve(9.0, 0.4), curve(9.0, 0.1), curve(2.0, 0.8)]), [false, false]);
    }

    #[test]
    fn three_types_are_a_third_each() {
        let mix = toml::from_str::<Three>(&three()).unwrap().class;
        assert_eq!(mix.classes().len(), 3);
        assert!((mix.mean_ns() - 36_640.0).abs() < 1.0, "{}", mix.mean_ns());
    }
    #[test]
    fn the_multi_queue_policy_keeps_short_requests_from_waiting_at_high_load() {
        let options = Options { quick: true, seed: 1, threads: 2 };
        let result = figure6(&options, &|| ()).unwrap();
        assert_eq!(result.data.rows().len(), 2 * SYSTEMS.len() * QUICK_LOADS.len());
        let at = |system: &str| {
            let own = |row: &&Vec<String>| row[1] == system && row[2] == "0.8";
            let row = result.data.rows().iter().find(own).unwrap();
            row[5].parse::<f64>().unwrap()
        };
        assert!(at(SHINJUKU) < at(ZYGOS) / 5.0 && at(ZYGOS) < at(IX) / 5.0, "{}", result.claims_text());
    }
}
