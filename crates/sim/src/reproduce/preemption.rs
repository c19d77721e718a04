//! Shinjuku (NSDI'19), figure 6: the multi-queue policy against systems without preemption, under
//! two and three types of requests.
//!
//! Costs are those of the papers' machines. Shinjuku's dispatcher and network thread take two of
//! the 16 hyperthreads, so it has 14 workers where the others have 16; loads are fractions of 16
//! cores for all of them.

use super::curves::{self, CORES, Curve, PAPERS_COSTS, System, WORKERS, Workload, slowdown};
use super::{Claim, Drawing, Options, Reproduction};
use crate::mix::Mix;
use tailwater_plot::table::Table;

/// Loads as fractions of [`CORES`].
const LOADS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
/// Those of a quick run, among them those at which systems are compared.
const QUICK_LOADS: [f64; 3] = [LOW, 0.6, 0.8];

const TWO_TYPES: &str = "bimodal:0.5*1us+0.5*100us";
/// A mixture of constants in the simulator's notation has two; this one has three.
const THREE_TYPES: [(&str, f64, &str); 3] =
    [("short", 0.34, "const:1us"), ("middle", 0.33, "const:10us"), ("long", 0.33, "const:100us")];

const IX: &str = "d-FCFS, 16 cores (IX)";
const ZYGOS: &str = "d-FCFS with stealing, 16 cores (ZygOS)";
const SHINJUKU: &str = "multi-queue, 5 us, 14 workers (Shinjuku)";
const SYSTEMS: [System; 3] = [
    System { name: IX, policy: "d-fcfs", workers: CORES },
    System { name: ZYGOS, policy: "steal", workers: CORES },
    System { name: SHINJUKU, policy: "mq:5us,head", workers: WORKERS },
];
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

    fn classes(self) -> anyhow::Result<Mix> {
        match self {
            Self::Two => Mix::parse(TWO_TYPES),
            Self::Three => Ok(toml::from_str::<Three>(&three())?.class),
        }
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

pub(super) fn figure6(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let (mut data, mut panels, mut claims) = (Table::new(curves::COLUMNS), Vec::new(), Vec::new());
    for types in [Types::Two, Types::Three] {
        let workload = Workload {
            name: types.title(),
            classes: types.classes()?,
            costs: PAPERS_COSTS,
            cores: CORES,
            loads: if options.quick { &QUICK_LOADS } else { &LOADS },
            effort: options.effort(),
        };
        let systems = workload.run(&SYSTEMS, tick)?;
        workload.push(&mut data, &systems);
        panels.push(curves::panel(types.title(), "p99 slowdown", (1.0, 1000.0), &systems, slowdown));
        claims.extend(judge(types, &systems));
    }
    Ok(Reproduction {
        title: "Shinjuku figure 6: request types with SLOs of their own".to_owned(),
        data,
        drawing: Drawing::new("Several types of requests, paper-2019 costs (Shinjuku, figure 6)", &panels),
        claims,
    })
}

/// Judges one mixture; the curves are those of [`SYSTEMS`].
fn judge(types: Types, curves: &[Curve]) -> [Claim; 2] {
    let [ix, zygos, own] = [0, 1, 2].map(|index| curves[index].at(LOW, slowdown));
    let low =
        format!("p99 slowdown at {:.0} % load: IX {ix:.1}, ZygOS {zygos:.1}, own {own:.1}", 100.0 * LOW);
    let rates = [0, 1, 2].map(|index| curves[index].within(SLOWDOWN_LIMIT, slowdown) / 1e3);
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
    use crate::reproduce::curves::tests::row;

    /// Returns a curve with `slowdown` up to a load, and 100 beyond it.
    fn curve(slowdown: f64, up_to: f64) -> Curve {
        let of = |load: f64| row(load, if load <= up_to { slowdown } else { 100.0 }, 1e6 * load);
        Curve { name: "", rows: LOADS.map(of).to_vec() }
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
            row[8].parse::<f64>().unwrap()
        };
        assert!(at(SHINJUKU) < at(ZYGOS) / 5.0 && at(ZYGOS) < at(IX) / 5.0, "{}", result.claims_text());
    }
}
