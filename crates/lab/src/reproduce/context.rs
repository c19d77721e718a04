//! The arguments of every figure: options, machine, and for measured figures a testbed, which is
//! made before the first of them.
//!
//! Owns the division of time: a figure has a budget, which its points share ([`Context::pace`]), or
//! points of a fixed length. Owns also the notes that several figures have.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use tailwater_loadgen::Plan;
use tailwater_loadgen::noise::GapFigures;
use tailwater_loadgen::stalls::MachineStalls;
use tailwater_workload::{LoadSchedule, Rate, ServiceTime};

use super::claim::{Claim, Verdict};
use crate::bench::tcp::many::Length;
use tailwater_testbed::bed::{BUSY_MACHINE, OVERHEAD};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::wait::{self, WaitChoice};
use tailwater_testbed::{CorePlan, Testbed, on_linux};

/// Source ports of the generator on Tailwater, unless the figure varies them.
pub const FLOWS: u16 = 64;

/// Load in percent of the trial that chooses how the Linux server waits; both ways keep up there.
const TRIAL_LOAD: f64 = 30.0;

/// Time in which the testbed is made.
pub const RIG: Duration = Duration::from_secs(4);
/// Time a measured figure's points may take in all.
const BUDGET: Duration = Duration::from_secs(200);
/// The same of each round of a quick run.
const QUICK_BUDGET: Duration = Duration::from_secs(12);

/// Options of all figures.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether to do a fraction of the work.
    pub quick: bool,
    /// Rounds of a quick run.
    pub quick_rounds: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Threads of the simulator; 0 for all.
    pub threads: usize,
}

/// The arguments of a figure.
#[derive(Debug)]
pub struct Context {
    pub options: Options,
    pub machine: Machine,
    interrupt: OnceCell<Arc<Interrupt>>,
    rig: OnceCell<Rig>,
}

/// The testbed of measured figures, and its properties.
#[derive(Debug)]
pub struct Rig {
    pub testbed: Testbed,
    /// Iterations of work per millisecond, the same on all servers.
    pub speed: u64,
    /// How the Linux server waits, and why.
    pub wait: WaitChoice,
    /// Noise of each core before the first measurement.
    pub noise: Vec<(usize, GapFigures)>,
    /// The same noise as a trace of stalls.
    pub stalls: MachineStalls,
}

/// The durations of a figure's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub rounds: usize,
    /// Uncounted first part of a point.
    pub warm_up: Duration,
    /// Counted part of a point.
    pub counted: Duration,
}

impl Context {
    /// Returns a context without a testbed.
    pub fn new(options: Options, machine: Machine) -> Self {
        Self { options, machine, interrupt: OnceCell::new(), rig: OnceCell::new() }
    }

    /// Returns the interrupt, which catches signals from the first call on; before, during
    /// simulated figures, they end the process.
    ///
    /// # Errors
    /// If they cannot be caught.
    pub fn interrupt(&self) -> anyhow::Result<&Arc<Interrupt>> {
        if let Some(interrupt) = self.interrupt.get() {
            return Ok(interrupt);
        }
        let interrupt = Arc::new(Interrupt::catch()?);
        Ok(self.interrupt.get_or_init(|| interrupt))
    }

    /// Returns the testbed and its properties. The first call measures the machine's noise,
    /// calibrates the work, and tries how the Linux server should wait.
    pub fn rig(&self) -> anyhow::Result<&Rig> {
        if let Some(rig) = self.rig.get() {
            return Ok(rig);
        }
        let rig = self.make_rig()?;
        Ok(self.rig.get_or_init(|| rig))
    }

    fn make_rig(&self) -> anyhow::Result<Rig> {
        let ms = Duration::from_millis;
        let (solo, noise, length) =
            if self.options.quick { (ms(60), ms(200), ms(300)) } else { (ms(90), ms(1_000), ms(1_000)) };
        let testbed = Testbed::new(self.machine.usable_cores.clone(), Arc::clone(self.interrupt()?), solo)?;
        let probes = testbed.probe_noise(noise)?;
        let gaps = probes.iter().map(|(core, probe)| (*core, probe.gaps.figures())).collect();
        let mut traces = probes.into_iter().map(|(_, probe)| probe.stalls);
        let stalls = MachineStalls { polling: traces.next().unwrap_or_default(), working: traces.collect() };
        let speed = testbed.calibrate()?;
        let pace = Pace { rounds: 1, warm_up: length / 5, counted: length * 4 / 5 };
        let plan = pace.plan(&"exp:10us".parse()?, TRIAL_LOAD, testbed.cores.managed.len())?;
        let wait = wait::choose(&testbed, speed, TRIAL_LOAD, &plan, self.options.seed, |_| ())?;
        Ok(Rig { testbed, speed, wait, noise: gaps, stalls })
    }

    /// Withdraws the verdicts on measured numbers if the machine was busy with other programs
    /// before the first measured figure.
    pub fn withhold_if_busy(&self, claims: &mut [Claim]) {
        let lost = self.rig.get().map_or(0.0, Rig::lost_fraction);
        if lost > BUSY_MACHINE {
            withhold(claims, lost);
        }
    }

    /// Fails if a signal has arrived since the first measured figure began.
    ///
    /// # Errors
    /// [`Interrupted`](tailwater_testbed::interrupt::Interrupted).
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.interrupt.get().map_or(Ok(()), |interrupt| interrupt.check())?)
    }

    /// Returns the durations of `points` points in `rounds` rounds; a quick run has its own number
    /// of rounds, and the quick budget for each.
    pub fn pace(&self, points: usize, rounds: usize) -> Pace {
        pace(points, self.rounds(rounds), self.options.quick)
    }

    /// Returns `quick` in a quick run, with its own number of rounds, else `full`.
    pub fn fixed_pace(&self, full: Pace, quick: Pace) -> Pace {
        Pace { rounds: self.rounds(full.rounds), ..self.choose(full, quick) }
    }

    /// Returns the number of rounds: `full` in a full run.
    pub fn rounds(&self, full: usize) -> usize {
        self.choose(full, self.options.quick_rounds)
    }

    /// Returns `quick` in a quick run, else `full`.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.options.quick { quick } else { full }
    }

    /// Returns a figure's `own` notes with those of every measured figure: the machine's noise and,
    /// of a quick run, how few `rounds` it had.
    pub fn notes(&self, own: impl IntoIterator<Item = String>, rounds: usize) -> anyhow::Result<Vec<String>> {
        let noise = self.rig()?.noise_notes();
        let quick = self.options.quick.then(|| quick_note(rounds));
        Ok(own.into_iter().chain(noise).chain(quick).collect())
    }
}

/// Returns the note of a quick run with so many rounds.
fn quick_note(rounds: usize) -> String {
    let rounds = match rounds {
        1 => "one short round. A shape, not a result.".to_owned(),
        several => format!("{several} short rounds."),
    };
    format!("Quick run: {rounds}")
}

/// Withdraws the verdicts on measured numbers, because this part of a core's time was lost.
fn withhold(claims: &mut [Claim], lost: f64) {
    for claim in claims.iter_mut().filter(|claim| !claim.simulated) {
        claim.verdict = Verdict::NotComparable;
        claim.ours = format!(
            "other programs or the host took {:.0} % of a core before the run, so this is no result: {}",
            100.0 * lost,
            claim.ours
        );
    }
}

/// Returns the durations of `points` points in `rounds` rounds, which share a budget.
pub fn pace(points: usize, rounds: usize, quick: bool) -> Pace {
    let ms = Duration::from_millis;
    let (rounds, as_u32) = (rounds.max(1), |count: usize| u32::try_from(count).unwrap_or(u32::MAX));
    let (budget, warm_up, solo, counted) = if quick {
        (QUICK_BUDGET * as_u32(rounds), ms(60), ms(60), ms(100)..ms(600))
    } else {
        (BUDGET, ms(150), ms(90), ms(300)..ms(4_000))
    };
    let each = budget / as_u32(points.max(1) * rounds);
    let left = each.saturating_sub(OVERHEAD + warm_up + 2 * solo);
    Pace { rounds, warm_up, counted: left.clamp(counted.start, counted.end) }
}

impl Pace {
    /// Returns the note on rounds and lengths; `order` is that of the points in a round.
    pub fn note(&self, order: &str) -> String {
        format!("{} round(s), {} ms counted per point; {order}.", self.rounds, self.counted.as_millis())
    }

    /// Returns the length of a point of `bench tcp`.
    pub fn length(&self) -> Length {
        Length { warm_up: self.warm_up, lasts: self.counted }
    }

    /// Returns a point's plan at `percent` of `cores` cores, spread over [`FLOWS`] flows.
    pub fn plan(&self, service: &ServiceTime, percent: f64, cores: usize) -> anyhow::Result<Plan> {
        Ok(self.plan_at(Rate::for_load(percent / 100.0, cores as f64, service.mean_ns())?, service))
    }

    /// Returns a point's plan at `rate`, spread over [`FLOWS`] flows.
    pub fn plan_at(&self, rate: Rate, service: &ServiceTime) -> Plan {
        let length = self.warm_up + self.counted;
        Plan {
            warm_up_ns: self.warm_up.as_nanos() as u64,
            flows: FLOWS,
            ..Plan::new(LoadSchedule::constant(rate, length.as_nanos() as u64), service.clone())
        }
    }
}

impl Rig {
    /// Returns the largest part of a core's time that was lost before the first measurement.
    fn lost_fraction(&self) -> f64 {
        self.noise.iter().map(|(_, gaps)| gaps.lost_fraction).fold(0.0, f64::max)
    }

    /// Returns the conditions of every figure whose systems take turns, a sentence per line.
    pub fn notes(&self, pace: &Pace, quick: bool) -> Vec<String> {
        let mut notes = vec![
            self.cores_note(),
            pace.note("systems take turns at every load, in one session (one autogroup)"),
        ];
        notes.extend(self.noise_notes());
        notes.extend(quick.then(|| quick_note(pace.rounds)));
        notes
    }

    /// Returns which core does what.
    pub fn cores_note(&self) -> String {
        let CorePlan { polling, managed, .. } = &self.testbed.cores;
        let managed: Vec<String> = managed.iter().map(usize::to_string).collect();
        format!("Core {polling} polls and generates load; shared core(s): {}.", managed.join(", "))
    }

    /// Returns the conditions of the spin server on Linux: how it waits, and how long its queue is.
    pub fn linux_notes(&self) -> [String; 2] {
        [format!("Linux service: {}.", self.wait.why), on_linux::queue_note()]
    }

    /// Returns the machine's noise before the run, a sentence per core.
    pub fn noise_notes(&self) -> Vec<String> {
        let note = |(core, gaps): &(usize, GapFigures)| {
            format!(
                "Before the run core {core} stood still {:.0} times a second for over 50 us (longest {:.0} us, {:.1} % of its \
                 time).",
                gaps.gaps_per_s,
                gaps.longest_us,
                100.0 * gaps.lost_fraction
            )
        };
        self.noise.iter().map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_share_the_budget() {
        let many = pace(54, 3, false);
        assert_eq!(many.rounds, 3);
        assert!((many.counted + OVERHEAD + many.warm_up) * 162 <= BUDGET, "{many:?}");
        assert!(pace(4, 3, false).counted >= Duration::from_secs(3));
        let quick = pace(18, 1, true);
        assert_eq!((quick.rounds, pace(18, 3, true).counted), (1, quick.counted), "rounds are equally long");
        assert!((quick.counted + OVERHEAD + quick.warm_up) * 18 <= QUICK_BUDGET, "{quick:?}");
    }

    #[test]
    fn a_busy_machine_withdraws_measured_verdicts_only() {
        let mut claims = [
            Claim::new("paper", "measured".to_owned(), true),
            Claim::new("paper", "simulated".to_owned(), true).simulated(),
        ];
        withhold(&mut claims, 0.2);
        assert_eq!(claims.each_ref().map(|claim| claim.verdict), [Verdict::NotComparable, Verdict::Reached]);
        assert!(claims[0].ours.contains("20 % of a core") && claims[0].ours.ends_with("measured"));
        assert_eq!(claims[1].ours, "simulated");
    }

    #[test]
    fn notes_state_how_little_was_measured() {
        let pace = Pace { rounds: 3, warm_up: Duration::ZERO, counted: Duration::from_millis(200) };
        assert_eq!(pace.note("in turn"), "3 round(s), 200 ms counted per point; in turn.");
        assert_eq!(quick_note(1), "Quick run: one short round. A shape, not a result.");
        assert_eq!(quick_note(3), "Quick run: 3 short rounds.");
    }

    #[test]
    fn nothing_is_too_short_to_be_measured() {
        assert_eq!(pace(10_000, 3, false).counted, Duration::from_millis(300));
        assert_eq!(pace(0, 0, false).rounds, 1);
    }
}
