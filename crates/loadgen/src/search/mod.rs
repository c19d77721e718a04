//! The search for the highest load within a latency limit, independent of how a load is tried.
//!
//! Owns the notation of limits ([`Slo`]), the judgement of a trial, and the order of trials. It
//! never runs anything: its user tries [`Search::next_rate`], passes the judgement to
//! [`Search::record`], and repeats until there is no rate.
//!
//! # Method
//! *Bracketing* doubles the rate until it misses, or halves it until it is met. *Bisection* in the
//! geometric mean then narrows the bracket to the resolution. Both ends are then tried afresh. If a
//! *recheck* of the upper end meets the limit, the earlier miss was noise, and the search continues
//! above. If a *confirmation* of the lower end misses, that becomes the upper end, and the search
//! continues below. Trials on a shared machine are noisy, so a rate counts as met or missed only if
//! a majority of up to [`SearchPlan::repeats`] trials says so. Only while bracketing upwards one
//! trial that meets the limit is enough, because the confirmation detects luck.
//!
//! # What is judged
//! A lost request counts as one that took for ever. A trial that misses while the generator itself
//! ran behind says nothing about the server; the rate counts as too high, and the result names the
//! generator as the bound.
//!
//! The number of trials is at most [`SearchPlan::max_trials`].

pub mod slo;

use serde::{Deserialize, Serialize};
use tailwater_workload::Rate;

pub use slo::{Judgement, Measure, Slo, SloError, Verdict};

/// Maximum number of times that bracketing halves the first rate before it gives up.
const MAX_HALVINGS: i32 = 10;

/// The parameters of a search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SearchPlan {
    /// The first rate; above 0.
    pub from: Rate,
    /// The highest rate to try; at least `from`.
    pub up_to: Rate,
    /// How close the bracket's ends get, as a part of the lower one; above 0.
    pub resolution: f64,
    /// Trials of which the majority decides; odd, at least 1.
    pub repeats: u32,
    /// Maximum number of trials altogether; at least 1.
    pub max_trials: u32,
}

/// The purpose of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// To find a rate that is too high, or one that is not.
    Bracket,
    /// To narrow the bracket.
    Bisect,
    /// To see whether the lowest rate that missed does so again.
    Recheck,
    /// To see whether the rate found holds.
    Confirm,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The rate tried.
    pub rate: Rate,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its result.
    pub judgement: Judgement,
}

/// The bound of the load found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The limit itself: above, the latency is too high.
    Limit,
    /// The generator: above, it cannot keep its own schedule. The server may take more.
    Generator,
    /// The highest rate that was to be tried. The server may take more.
    Ceiling,
    /// No rate tried was within the limit.
    Nothing,
    /// The trials ran out before the search was over; the load found is not confirmed.
    Trials,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The highest load within the limit; none if even the lowest tried was not.
    pub load: Option<Rate>,
    /// The bound of that load.
    pub bound: Bound,
    /// Up to here every trial met the limit.
    pub always_met_up_to: Option<Rate>,
    /// From here on no trial met the limit. Between the two, it was chance: the spread of the load
    /// found.
    pub never_met_from: Option<Rate>,
    /// All trials, in order.
    pub trials: Vec<Trial>,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Search {
    plan: SearchPlan,
    /// Rates that were met, ascending.
    met: Vec<f64>,
    /// Rates that missed, descending.
    missed: Vec<Missed>,
    current: f64,
    purpose: Purpose,
    votes: Votes,
    trials: Vec<Trial>,
    bound: Option<Bound>,
}

#[derive(Debug, Clone, Copy)]
struct Missed {
    rate: f64,
    /// True if the generator was the cause.
    generator: bool,
    /// True if it was tried afresh, or needs no recheck.
    rechecked: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Votes {
    met: u32,
    missed: u32,
    /// Number of misses caused by the generator.
    generator: u32,
}

impl Search {
    /// Creates a search without trials.
    #[must_use]
    pub fn new(plan: SearchPlan) -> Self {
        Self {
            plan,
            met: Vec::new(),
            missed: Vec::new(),
            current: plan.from.per_second(),
            purpose: Purpose::Bracket,
            votes: Votes::default(),
            trials: Vec::new(),
            bound: None,
        }
    }

    /// Returns the rate to try next; `None` when the search is over.
    #[must_use]
    pub fn next_rate(&self) -> Option<(Rate, Purpose)> {
        // Made of finite rates by halving, doubling and means.
        let rate = Rate::new(self.current).unwrap_or(self.plan.from);
        self.bound.is_none().then_some((rate, self.purpose))
    }

    /// Records the judgement of trying [`Search::next_rate`]. Does nothing once the search is over.
    pub fn record(&mut self, judgement: Judgement) {
        let Some((rate, purpose)) = self.next_rate() else { return };
        match judgement.verdict {
            Verdict::Met => self.votes.met += 1,
            Verdict::Missed => self.votes.missed += 1,
            Verdict::GeneratorBehind => {
                self.votes.missed += 1;
                self.votes.generator += 1;
            }
        }
        self.trials.push(Trial { rate, purpose, judgement });
        if let Some(met) = self.decision() {
            self.settle(met);
            self.choose();
        }
        if self.bound.is_none() && self.trials.len() >= self.plan.max_trials as usize {
            self.bound = Some(Bound::Trials);
        }
    }

    /// Returns the result so far.
    #[must_use]
    pub fn found(&self) -> Found {
        let rates = |keep: fn(&Trial) -> bool| self.trials.iter().filter(move |t| keep(t)).map(|t| t.rate);
        let lowest = |a: Rate, b: Rate| if b < a { b } else { a };
        let highest = |a: Rate, b: Rate| if b > a { b } else { a };
        let is_met = |trial: &Trial| trial.judgement.verdict == Verdict::Met;
        let first_missed = rates(|t| t.judgement.verdict != Verdict::Met).reduce(lowest);
        let last_met = rates(|t| t.judgement.verdict == Verdict::Met).reduce(highest);
        let below = |rate: Rate| first_missed.is_none_or(|missed| rate < missed);
        let above = |rate: Rate| last_met.is_none_or(|met| rate > met);
        Found {
            load: self.met.last().and_then(|&rate| Rate::new(rate).ok()),
            bound: self.bound.unwrap_or(Bound::Trials),
            always_met_up_to: self
                .trials
                .iter()
                .filter(|t| is_met(t) && below(t.rate))
                .map(|t| t.rate)
                .reduce(highest),
            never_met_from: self
                .trials
                .iter()
                .filter(|t| !is_met(t) && above(t.rate))
                .map(|t| t.rate)
                .reduce(lowest),
            trials: self.trials.clone(),
        }
    }

    /// Returns true if the current rate is met, once that is decided.
    fn decision(&self) -> Option<bool> {
        let majority = self.plan.repeats / 2 + 1;
        let Votes { met, missed, .. } = self.votes;
        let upwards = self.purpose == Purpose::Bracket && self.missed.is_empty();
        if met >= majority || (upwards && met > 0 && missed == 0) {
            Some(true)
        } else if missed >= majority {
            Some(false)
        } else {
            None
        }
    }

    fn settle(&mut self, met: bool) {
        let rate = self.current;
        let generator = 2 * self.votes.generator > self.votes.missed;
        match (met, self.purpose) {
            (true, Purpose::Confirm) => {
                self.bound = Some(match self.missed.last() {
                    None => Bound::Ceiling,
                    Some(missed) if missed.generator => Bound::Generator,
                    Some(_) => Bound::Limit,
                });
            }
            (true, purpose) => {
                if purpose == Purpose::Recheck {
                    self.missed.pop();
                }
                self.met.push(rate);
            }
            (false, Purpose::Recheck) => {
                self.missed.pop();
                self.missed.push(Missed { rate, generator, rechecked: true });
            }
            (false, purpose) => {
                let rechecked = purpose == Purpose::Confirm;
                if rechecked {
                    self.met.pop();
                }
                self.missed.push(Missed { rate, generator, rechecked });
            }
        }
        self.votes = Votes::default();
    }

    /// Chooses the next trial by the rates met and missed.
    fn choose(&mut self) {
        let (from, up_to) = (self.plan.from.per_second(), self.plan.up_to.per_second());
        (self.current, self.purpose) = match (self.met.last().copied(), self.missed.last()) {
            (Some(low), Some(high)) if high.rate > low * (1.0 + self.plan.resolution) => {
                (between(low, high.rate), Purpose::Bisect)
            }
            (Some(_), Some(high)) if !high.rechecked => (high.rate, Purpose::Recheck),
            (Some(low), Some(_)) => (low, Purpose::Confirm),
            (Some(low), None) if low >= up_to => (low, Purpose::Confirm),
            (Some(low), None) => ((2.0 * low).min(up_to), Purpose::Bracket),
            (None, Some(high)) => (high.rate / 2.0, Purpose::Bracket),
            (None, None) => (from, Purpose::Bracket),
        };
        if self.bound.is_none() && self.current < from / 2f64.powi(MAX_HALVINGS) {
            self.bound = Some(Bound::Nothing);
        }
    }
}

/// Returns the geometric mean, in the three digits that a person reads if that is still between the
/// two.
fn between(low: f64, high: f64) -> f64 {
    let mean = (low * high).sqrt();
    let readable: f64 = format!("{mean:.2e}").parse().unwrap_or(mean);
    if low < readable && readable < high { readable } else { mean }
}

#[cfg(test)]
mod tests;
