//! Request classes of a simulated service.
//!
//! Owns the mix of classes (share, service-time distribution, SLO) and its notation. The
//! distributions themselves are `workload`'s. A mixture of constants (`bimodal:0.5*1us+0.5*100us`)
//! becomes one class per mode, since the papers report it so (Shinjuku figure 2: short and long
//! requests apart).

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{ClassDemand, ClassInfo, MAX_CLASSES};
use tailwater_workload::random::unit_open_closed;
use tailwater_workload::{Prng, ServiceTime, units::format_duration_ns};

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Name in tables.
    pub name: String,
    /// Share of all requests; the shares of a mix are normalised to 1.
    #[serde(default = "one")]
    pub share: f64,
    /// Its service time.
    pub service: ServiceTime,
    /// Target tail latency in nanoseconds for the multi-queue policy; 0 stands for the default, the
    /// mean service time.
    #[serde(default)]
    pub slo_ns: u64,
}

fn one() -> f64 {
    1.0
}

/// A non-empty list of classes, at most [`MAX_CLASSES`], shares summing to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Class>", into = "Vec<Class>")]
pub struct Mix {
    classes: Vec<Class>,
    /// Cumulative shares.
    through: Vec<f64>,
}

impl Mix {
    /// Returns a mix of these classes.
    ///
    /// # Errors
    ///
    /// If there are none or too many, a share is negative or not a number, all are 0, or a class
    /// never takes any time.
    pub fn new(mut classes: Vec<Class>) -> anyhow::Result<Self> {
        ensure!(!classes.is_empty(), "a workload needs at least one request class");
        ensure!(classes.len() <= MAX_CLASSES, "{} request classes: at most {MAX_CLASSES}", classes.len());
        for class in &classes {
            let (name, share) = (&class.name, class.share);
            ensure!(
                share.is_finite() && share >= 0.0,
                "class `{name}`: a share must be at least 0, not {share}"
            );
            ensure!(
                class.service.mean_ns() > 0.0,
                "class `{name}`: requests that take no time cannot be scheduled"
            );
        }
        let total: f64 = classes.iter().map(|c| c.share).sum();
        ensure!(total > 0.0, "all request classes have share 0: at least one must get requests");
        let mut sum = 0.0;
        let mut through = Vec::with_capacity(classes.len());
        for class in &mut classes {
            class.share /= total;
            sum += class.share;
            through.push(sum);
        }
        Ok(Self { classes, through })
    }

    /// Returns a single class, or one class per mode for `bimodal:` and `modes:` notations.
    ///
    /// # Errors
    ///
    /// If the notation is not one of [`ServiceTime`]'s.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let service: ServiceTime = text.parse().with_context(|| format!("service time `{text}`"))?;
        let canonical = service.to_string();
        match canonical.split_once(':') {
            Some(("bimodal" | "modes", modes)) => {
                Self::new(modes.split('+').map(mode).collect::<Result<_, _>>()?)
            }
            _ => Self::new(vec![Class { name: canonical, share: 1.0, service, slo_ns: 0 }]),
        }
    }

    /// Returns the classes.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Returns the mean service time over all classes.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.classes.iter().map(|c| c.share * c.service.mean_ns()).sum()
    }

    /// Returns the squared coefficient of variation over all classes; infinite for tails without a
    /// variance.
    #[must_use]
    pub fn squared_cv(&self) -> f64 {
        let mean = self.mean_ns();
        let second: f64 = self
            .classes
            .iter()
            .map(|c| c.share * (c.service.variance_ns2() + c.service.mean_ns().powi(2)))
            .sum();
        second / (mean * mean) - 1.0
    }

    /// Draws a class and a service time of at least 1 ns.
    #[inline]
    pub fn sample(&self, prng: &mut Prng) -> (u16, u64) {
        let class = if self.classes.len() == 1 { 0 } else { self.pick(unit_open_closed(prng)) };
        (class as u16, self.classes[class].service.sample_ns(prng).max(1))
    }

    fn pick(&self, uniform: f64) -> usize {
        self.through.iter().position(|&t| uniform <= t).unwrap_or(self.through.len() - 1)
    }

    /// Returns the properties of the classes that dispatch policies use.
    #[must_use]
    pub fn class_info(&self) -> Vec<ClassInfo> {
        let info = |c: &Class| {
            let mean_ns = c.service.mean_ns();
            let slo_ns = if c.slo_ns == 0 { mean_ns.ceil() as u64 } else { c.slo_ns };
            ClassInfo {
                slo_ns: Nanos(slo_ns.max(1)),
                demand: ClassDemand { mean_ns, share: c.share },
                requeue: None,
            }
        };
        self.classes.iter().map(info).collect()
    }

    /// Returns a short description for titles.
    #[must_use]
    pub fn describe(&self) -> String {
        let each = |c: &Class| {
            if c.share >= 1.0 {
                c.service.to_string()
            } else {
                format!("{}% {}", round(c.share * 100.0), c.name)
            }
        };
        self.classes.iter().map(each).collect::<Vec<_>>().join(" + ")
    }
}

fn round(percent: f64) -> f64 {
    (percent * 1000.0).round() / 1000.0
}

fn mode(text: &str) -> anyhow::Result<Class> {
    let Some((share, time)) = text.split_once('*') else { bail!("`{text}` is not of the form share*time") };
    let ns = tailwater_workload::units::parse_duration_ns(time)?;
    let share = share.parse().with_context(|| format!("share `{share}` is not a number"))?;
    Ok(Class { name: format_duration_ns(ns), share, service: ServiceTime::constant(ns), slo_ns: 0 })
}

impl TryFrom<Vec<Class>> for Mix {
    type Error = anyhow::Error;
    fn try_from(classes: Vec<Class>) -> anyhow::Result<Self> {
        Self::new(classes)
    }
}

impl From<Mix> for Vec<Class> {
    fn from(mix: Mix) -> Self {
        mix.classes
    }
}

impl std::str::FromStr for Mix {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Self> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bimodal_service_time_becomes_two_classes_with_its_moments() {
        let mix = Mix::parse("bimodal:0.995*500ns+0.005*500us").unwrap();
        assert_eq!(mix.classes().len(), 2);
        let whole: ServiceTime = "bimodal:0.995*500ns+0.005*500us".parse().unwrap();
        assert!((mix.mean_ns() - whole.mean_ns()).abs() < 1e-6);
        assert!((mix.squared_cv() / whole.squared_cv() - 1.0).abs() < 1e-9);
        assert_eq!(mix.describe(), "99.5% 500ns + 0.5% 500us");
    }

    #[test]
    fn classes_are_drawn_in_their_shares() {
        let mix = Mix::parse("modes:0.2*1us+0.3*2us+0.5*3us").unwrap();
        let mut prng = tailwater_workload::random::stream(5, 0);
        let mut count = [0u32; 3];
        for _ in 0..100_000 {
            let (class, ns) = mix.sample(&mut prng);
            assert_eq!(ns, 1_000 * (u64::from(class) + 1));
            count[usize::from(class)] += 1;
        }
        for (got, want) in count.iter().zip([20_000.0, 30_000.0, 50_000.0]) {
            assert!((f64::from(*got) - want).abs() < 600.0, "{count:?}");
        }
    }

    #[test]
    fn mixes_without_work_are_refused() {
        let class = |share: f64, text: &str| Class {
            name: "x".into(),
            share,
            service: text.parse().unwrap(),
            slo_ns: 0,
        };
        for (classes, fragment) in [
            (vec![], "at least one"),
            (vec![class(0.0, "exp:1us")], "share 0"),
            (vec![class(-1.0, "exp:1us")], "at least 0"),
            (vec![class(1.0, "const:0ns")], "no time"),
        ] {
            let message = Mix::new(classes).unwrap_err().to_string();
            assert!(message.contains(fragment), "{message}");
        }
    }
}
