//! Axes: the range shown, ticks with their labels, and the position of a value.
//!
//! Owns arithmetic only. A linear axis has the given ends, or round numbers around its values; a
//! logarithmic one, unless they are given, whole decades.

/// One axis: its range, and whether it is logarithmic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

/// Maximum number of ticks of a linear axis.
const TICKS: f64 = 6.0;
/// Least value of a logarithmic axis, in place of what has no logarithm.
const LEAST: f64 = 1e-9;

impl Axis {
    /// Returns an axis of exactly this range; a range that is empty or not finite becomes one
    /// decade or one unit.
    pub fn fixed(low: f64, high: f64, log: bool) -> Self {
        let low = if log && low.is_finite() { low.max(LEAST) } else { low };
        let ends = (low.is_finite() && high.is_finite() && low < high).then_some((low, high));
        let (low, high) = ends.unwrap_or(if log { (1.0, 10.0) } else { (0.0, 1.0) });
        Self { low, high, log }
    }

    /// Returns an axis that shows all of these values.
    pub fn around(values: impl Iterator<Item = f64> + Clone, log: bool) -> Self {
        let drawn = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let low = drawn.clone().fold(f64::INFINITY, f64::min);
        let high = drawn.fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return Self::fixed(f64::NAN, f64::NAN, log);
        }
        if log {
            let low = libm::pow(10.0, libm::floor(libm::log10(low)));
            let high = libm::pow(10.0, libm::ceil(libm::log10(high)));
            return Self::fixed(low, high.max(10.0 * low), true);
        }
        let step = step(if high > low { high - low } else { high.abs().max(1.0) });
        let (low, high) = (libm::floor(low / step) * step, libm::ceil(high / step) * step);
        Self::fixed(low, if high > low { high } else { low + step }, false)
    }

    /// Returns the upper end.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Returns where a value lies: 0 at the lower end, 1 at the upper end.
    pub fn place(&self, value: f64) -> f64 {
        if self.log {
            let value = libm::log10(value.max(LEAST));
            (value - libm::log10(self.low)) / (libm::log10(self.high) - libm::log10(self.low))
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// Returns the ticks, in order. Those of a logarithmic axis between the decades have no label,
    /// unless it shows less than two decades.
    pub fn ticks(&self) -> Vec<Tick> {
        if self.log { self.log_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(&self) -> Vec<Tick> {
        let step = step(self.high - self.low);
        let first = libm::ceil(self.low / step - 1e-9) as i64;
        let last = libm::floor(self.high / step + 1e-9) as i64;
        (first..=last).map(|n| Tick { value: n as f64 * step, label: Some(label(n as f64 * step)) }).collect()
    }

    fn log_ticks(&self) -> Vec<Tick> {
        let first = libm::floor(libm::log10(self.low) + 1e-9) as i32;
        let last = libm::floor(libm::log10(self.high) + 1e-9) as i32;
        let few = libm::log10(self.high / self.low) < 2.0;
        let mut ticks = Vec::new();
        for decade in first..=last {
            for digit in 1..10 {
                let value = f64::from(digit) * libm::pow(10.0, f64::from(decade));
                let shown = digit == 1 || (few && matches!(digit, 2 | 5));
                if (self.low * 0.999..=self.high * 1.001).contains(&value) {
                    ticks.push(Tick { value, label: shown.then(|| label(value)) });
                }
            }
        }
        ticks
    }
}

/// One tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Its value.
    pub value: f64,
    /// What stands beside it.
    pub label: Option<String>,
}

/// Returns the distance of ticks for a range of this length: 1, 2 or 5 times a power of ten.
fn step(range: f64) -> f64 {
    let rough = range / TICKS;
    let power = libm::pow(10.0, libm::floor(libm::log10(rough)));
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

/// Returns a number in few characters: `0.5`, `250`, `20k`, `5M`.
fn label(value: f64) -> String {
    // Twelve digits after the point are enough for every label and hide what the arithmetic added.
    let round = |value: f64| (value * 1e12).round() / 1e12;
    match value.abs() {
        size if size >= 1e6 => format!("{}M", round(value / 1e6)),
        size if size >= 1e4 => format!("{}k", round(value / 1e3)),
        _ => round(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis) -> Vec<String> {
        axis.ticks().into_iter().filter_map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_ticks_are_round_numbers() {
        assert_eq!(labels(Axis::fixed(0.0, 1.0, false)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(Axis::fixed(10.0, 90.0, false)), ["20", "40", "60", "80"]);
        assert_eq!(labels(Axis::fixed(0.0, 20_000.0, false)), ["0", "5000", "10k", "15k", "20k"]);
        assert_eq!(labels(Axis::fixed(-0.3, 0.3, false)), ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]);
    }

    #[test]
    fn logarithmic_ticks_are_decades_and_more_where_there_are_few() {
        assert_eq!(labels(Axis::fixed(10.0, 10_000.0, true)), ["10", "100", "1000", "10k"]);
        assert_eq!(labels(Axis::fixed(1.0, 10.0, true)), ["1", "2", "5", "10"]);
        assert_eq!(Axis::fixed(1.0, 10.0, true).ticks().len(), 10);
        assert_eq!(labels(Axis::fixed(0.1, 100.0, true)), ["0.1", "1", "10", "100"]);
    }

    #[test]
    fn an_axis_shows_its_values() {
        let axis = Axis::around([3.0, 47.0].into_iter(), false);
        assert!(axis.place(3.0) >= 0.0 && axis.place(47.0) <= 1.0, "{axis:?}");
        let axis = Axis::around([3.0, 470.0, f64::NAN, -1.0].into_iter(), true);
        assert_eq!(axis, Axis { low: 1.0, high: 1000.0, log: true });
        assert!((axis.place(1000.0) - 1.0).abs() < 1e-9 && axis.place(1.0).abs() < 1e-9);
    }

    #[test]
    fn values_without_extent_have_an_axis_all_the_same() {
        for log in [false, true] {
            for values in [vec![], vec![5.0], vec![0.0], vec![f64::NAN], vec![-2.0, -2.0]] {
                let axis = Axis::around(values.iter().copied(), log);
                assert!(axis.low < axis.high && axis.ticks().len() > 1, "{values:?}: {axis:?}");
            }
        }
    }
}
