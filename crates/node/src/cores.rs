//! What the statistics of an IOKernel mean for the resources of a node.
//!
//! Pure. Programs of pods are told from others by their names, which have a slash: the agent names
//! them `NAMESPACE/POD/CONTAINER`.

use std::collections::VecDeque;

use serde_json::Value;
use tailwater_shm::control::MAX_NAME;

/// One look at the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Numbers of the cores that the IOKernel lends.
    pub managed: Vec<u64>,
    /// Cores guaranteed to programs that are no pods'.
    pub guaranteed_outside: u64,
    /// Cores that services have at the moment.
    pub held: u64,
}

impl Look {
    /// Reads the statistics; `None` if they have another form.
    #[must_use]
    pub fn of(statistics: &Value) -> Option<Self> {
        let managed = statistics["iokernel"]["managed_cores"].as_array()?;
        let runtimes = statistics["runtimes"].as_array()?;
        let of_pod = |runtime: &Value| runtime["name"].as_str().is_some_and(|name| name.contains('/'));
        let outside = runtimes.iter().filter(|runtime| !of_pod(runtime));
        let services = runtimes.iter().filter(|runtime| runtime["class"] == "latency-critical");
        Some(Self {
            managed: managed.iter().filter_map(Value::as_u64).collect(),
            guaranteed_outside: outside.filter_map(|runtime| runtime["guaranteed"].as_u64()).sum(),
            held: services.filter_map(|runtime| runtime["counters"]["cores"].as_u64()).sum(),
        })
    }

    /// Returns the number of cores that pods may be guaranteed.
    #[must_use]
    pub fn for_pods(&self) -> u64 {
        (self.managed.len() as u64).saturating_sub(self.guaranteed_outside)
    }

    /// Returns the lent cores as a list of Linux (cpuset(7)).
    #[must_use]
    pub fn cpuset(&self) -> String {
        let numbers: Vec<String> = self.managed.iter().map(u64::to_string).collect();
        numbers.join(",")
    }
}

/// The cores that services had at the last looks.
#[derive(Debug)]
pub struct Window {
    most: usize,
    managed: Vec<u64>,
    held: VecDeque<u64>,
}

impl Window {
    /// Returns an empty one of so many looks, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), managed: Vec::new(), held: VecDeque::new() }
    }

    /// Enters a look; returns the cores that services left over, on the average of the looks at the
    /// same lent cores, to the nearest whole one.
    pub fn enter(&mut self, look: &Look) -> u64 {
        if self.managed != look.managed {
            self.managed.clone_from(&look.managed);
            self.held.clear();
        }
        self.held.truncate(self.most - 1);
        self.held.push_front(look.held);
        let (sum, looks) = (self.held.iter().sum::<u64>(), self.held.len() as u64);
        let all = look.managed.len() as u64 * looks;
        (2 * all.saturating_sub(sum) + looks) / (2 * looks)
    }
}

/// Returns the name of a container's program at the IOKernel. Names that are too long are cut and
/// end in a number made from the whole, so that two of them differ.
#[must_use]
pub fn name(namespace: &str, pod: &str, container: &str) -> String {
    let whole = format!("{namespace}/{pod}/{container}");
    if whole.len() <= MAX_NAME {
        return whole;
    }
    // FNV-1a (draft-eastlake-fnv), which is the same for each version of this program.
    let hash =
        whole.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // Names of Kubernetes are ASCII. A namespace has 63 characters at most; it is cut further so
    // that a slash stays.
    let begin: String = namespace.chars().take(20).collect();
    let rest: String = format!("{pod}/{container}").chars().take(MAX_NAME - begin.len() - 10).collect();
    format!("{begin}/{rest}~{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(managed: &[u64], held: u64) -> Look {
        Look { managed: managed.to_vec(), guaranteed_outside: 0, held }
    }

    #[test]
    fn cores_guaranteed_to_programs_outside_of_pods_are_not_the_pods() {
        let program = |name: &str, class: &str, guaranteed: u64, cores: u64| json!({ "name": name, "class": class, "guaranteed": guaranteed, "counters": { "cores": cores } });
        let statistics = json!({
            "iokernel": { "managed_cores": [1, 2, 5] },
            "runtimes": [
                program("web", "latency-critical", 1, 2),
                program("shop/web-7/web", "latency-critical", 2, 0),
                program("xz", "best-effort", 0, 1),
            ],
        });
        let look = Look::of(&statistics).unwrap();
        assert_eq!(look, Look { managed: vec![1, 2, 5], guaranteed_outside: 1, held: 2 });
        assert_eq!((look.for_pods(), look.cpuset()), (2, "1,2,5".to_owned()));
        assert_eq!(Look::of(&json!({ "runtimes": [] })), None);
        let promised = Look { guaranteed_outside: 4, ..look };
        assert_eq!(promised.for_pods(), 0);
    }

    #[test]
    fn what_services_left_over_is_the_average_of_the_last_looks() {
        let mut window = Window::new(4);
        let left = |window: &mut Window, held| window.enter(&look(&[1, 2], held));
        assert_eq!(left(&mut window, 2), 0);
        assert_eq!(left(&mut window, 0), 1);
        assert_eq!([left(&mut window, 0), left(&mut window, 0)], [1, 2], "1.33, 1.5");
        // The first one is out.
        assert_eq!(left(&mut window, 0), 2);
        // Other cores are lent, as by another IOKernel.
        assert_eq!(window.enter(&look(&[1, 2, 3], 3)), 0);
        assert_eq!(left(&mut window, 1), 1);
        // More than are lent, while the IOKernel's list changes.
        assert_eq!(left(&mut window, 9), 0);
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        assert_eq!(name("shop", "web-7", "web"), "shop/web-7/web");
        let long = |container: &str| name(&"n".repeat(63), &"p".repeat(253), container);
        let (a, b) = (long("a"), long("b"));
        assert!(a.len() <= MAX_NAME && a.contains('/') && a != b, "{a} {b}");
        assert_eq!(name("n", &"p".repeat(60), "c").len(), MAX_NAME);
        assert!(name("n", &"p".repeat(61), "c").len() <= MAX_NAME);
    }
}
