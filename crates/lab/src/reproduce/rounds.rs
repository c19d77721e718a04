//! Points that are measured in interleaved rounds.
//!
//! Owns the order: in each round every point is measured once, in the opposite order in every
//! second round, so that a change of the machine's speed affects all alike. Owns also the two
//! tables of points with a sample for each round.

use super::context::Context;
use super::figure::{Figure, Spread, Table, cell};
use tailwater_testbed::progress::Progress;

/// Returns the order of `count` points in a round; reversed in every second round, so that no
/// point is always first.
pub fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| if round % 2 == 1 { count - 1 - place } else { place })
}

/// Calls `measure` with the number of each point and of the round, in all rounds.
pub fn in_turn(
    figure: &Figure,
    context: &Context,
    (count, rounds): (usize, usize),
    mut measure: impl FnMut(usize, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let progress = Progress::new(figure.name, (count * rounds) as u64);
    for round in 0..rounds {
        for index in turns(count, round) {
            measure(index, round)?;
            context.check()?;
            progress.advance();
        }
    }
    Ok(())
}

/// A point, and a sample for each round.
#[derive(Debug, Clone)]
pub struct Point<K, S> {
    pub key: K,
    pub samples: Vec<S>,
}

impl<K, S> Point<K, S> {
    /// Returns a point without samples.
    pub fn new(key: K) -> Self {
        Self { key, samples: Vec::new() }
    }

    /// Returns a value over the rounds.
    pub fn spread(&self, value: impl Fn(&S) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Median of a value; NaN without samples.
    pub fn median(&self, value: impl Fn(&S) -> f64) -> f64 {
        self.spread(value).map_or(f64::NAN, |spread| spread.median)
    }
}

/// A value of samples, NaN where one has none.
pub type Value<S> = fn(&S) -> f64;

/// Returns a table with a row for each point and round: the cells of the key under `head`, the
/// number of the round, and each value with so many digits behind the point.
pub fn data<K, S>(
    points: &[Point<K, S>],
    head: &str,
    key: impl Fn(&K) -> Vec<String>,
    values: &[(&str, usize, Value<S>)],
) -> Table {
    let names: String = values.iter().map(|(name, ..)| format!(" | {name}")).collect();
    let mut table = Table::new(&format!("{head} | round{names}"));
    for point in points {
        for (round, sample) in point.samples.iter().enumerate() {
            let cells = values.iter().map(|(_, digits, value)| match value(sample) {
                number if number.is_nan() => String::new(),
                number => format!("{number:.digits$}"),
            });
            table.row(key(&point.key).into_iter().chain([round.to_string()]).chain(cells));
        }
    }
    table
}

/// Returns a table with a row for each point: the cells of the key under `head`, and the median of
/// each value with its extremes.
pub fn summary<K, S>(
    points: &[Point<K, S>],
    head: &str,
    key: impl Fn(&K) -> Vec<String>,
    values: &[(&str, Value<S>)],
) -> Table {
    let names: String = values.iter().map(|(name, _)| format!(" | {name}")).collect();
    let mut table = Table::new(&format!("{head}{names}"));
    for point in points {
        let cells = values.iter().map(|(_, value)| cell(point.spread(value)));
        table.row(key(&point.key).into_iter().chain(cells));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_is_in_the_opposite_order() {
        let order = |round| turns(3, round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2)], [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
    }

    #[test]
    fn a_point_has_a_row_for_each_round_and_one_of_medians() {
        let point = Point { key: "a", samples: vec![30.0, f64::NAN, 10.0] };
        let key = |key: &&str| vec![(*key).to_owned()];
        let data = data(std::slice::from_ref(&point), "system", key, &[("us", 1, |us| *us)]);
        assert_eq!(data.to_csv(), "system,round,us\na,0,30.0\na,1,\na,2,10.0\n");
        let summary = summary(&[point], "system", key, &[("ms", |us| us / 1e3)]);
        assert_eq!(summary.to_csv(), "system,ms\na,0.03 (0.01 to 0.03)\n");
    }
}
