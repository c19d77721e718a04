//! Which core of the machine does what during a measurement.
//!
//! Owns the choice, a pure function of the cores that this process may use.

/// Maximum number of managed cores: one generator over kernel sockets sends about 300,000 requests
/// a second.
const MAX_MANAGED: usize = 3;

/// Which core does what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorePlan {
    /// All cores that this process may use.
    pub usable: Vec<usize>,
    /// The core of the IOKernel and the generator.
    pub polling: usize,
    /// The cores that service and batch job share.
    pub managed: Vec<usize>,
}

impl CorePlan {
    /// Returns a plan in which the first core polls and up to three others are shared.
    ///
    /// # Errors
    /// If there are fewer than two cores.
    pub fn new(usable: Vec<usize>) -> anyhow::Result<Self> {
        anyhow::ensure!(usable.len() >= 2, "two cores are needed: one polls, the other is shared");
        let managed = usable[1..].iter().copied().take(MAX_MANAGED).collect();
        Ok(Self { polling: usable[0], managed, usable })
    }

    /// Returns the plan in words.
    pub fn describe(&self) -> String {
        let Self { usable, polling, managed } = self;
        let shared = if managed.len() == 1 {
            format!("service and batch share core {}", managed[0])
        } else {
            format!("service (up to {} cores) and batch share cores {managed:?}", managed.len())
        };
        let unused = usable.len() - 1 - managed.len();
        let rest = if unused > 0 { format!("; {unused} more cores are left alone") } else { String::new() };
        format!("core {polling} polls and generates load, {shared}{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_polls_and_up_to_three_are_shared() {
        assert!(CorePlan::new(vec![4]).is_err());
        let two = CorePlan::new(vec![4, 6]).unwrap();
        assert_eq!((two.polling, &two.managed[..]), (4, &[6][..]));
        assert_eq!(two.describe(), "core 4 polls and generates load, service and batch share core 6");
        let eight = CorePlan::new((0..8).collect()).unwrap();
        assert_eq!(eight.managed, [1, 2, 3]);
        assert!(eight.describe().ends_with("4 more cores are left alone"));
    }
}
