//! The supplied [`PlacementPolicy`]s: on which of the program's cores threads of a class begin.
//!
//! Owns these, which are pure, and how the cores of the machine are learned. When a policy is asked
//! is in [`records::placing`](crate::records::placing).

use crate::blocking;
pub use crate::records::placing::{Held, PlacementPolicy};
use crate::records::placing::{Placing, set};
use std::fs;
use std::path::PathBuf;

/// Has `policy` decide on which cores threads of each class begin, in place of any policy before.
/// It has an effect while an IOKernel lends the program its cores.
///
/// # Panics
/// If there is no runtime.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::cores::{self, PerSocket};
/// use tailwater::thread::{Builder, Placement};
///
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     cores::set_placement(PerSocket::new(2));
///     let near = Builder::new().placement(Placement::Class(0)).spawn(|| 1)?;
///     let far = Builder::new().placement(Placement::Class(1)).spawn(|| 2)?;
///     assert_eq!(near.join().unwrap() + far.join().unwrap(), 3);
///     Ok(())
/// }
/// ```
pub fn set_placement(policy: impl PlacementPolicy) {
    // Files: not on a lent core.
    let cores = blocking(machine);
    set(Placing { policy: Box::new(policy), cores });
}

/// Returns the cores of the machine by number. What sysfs does not say is as on a machine of one
/// socket without hyperthreads.
fn machine() -> Vec<Held> {
    let folder = |core| PathBuf::from(format!("/sys/devices/system/cpu/cpu{core}"));
    let first_number = |core: usize, file: &str| -> Option<usize> {
        let text = fs::read_to_string(folder(core).join("topology").join(file)).ok()?;
        text.trim().split([',', '-']).next()?.parse().ok()
    };
    let held = |core| Held {
        core,
        physical: first_number(core, "thread_siblings_list").unwrap_or(core),
        socket: first_number(core, "physical_package_id").unwrap_or(0),
    };
    (0..).take_while(|&core| folder(core).is_dir()).map(held).collect()
}

/// A core for each class: the first one for class 0, the next one for class 1, and so on; from the
/// first one again where there are fewer cores than classes. [Binds](PlacementPolicy::binds): a
/// thread stays on its core, also when other cores of the program have nothing to do.
///
/// # Examples
/// ```
/// use tailwater::cores::{Held, Pinned, PlacementPolicy};
///
/// let held = [1, 2, 3].map(|core| Held { core, physical: core, socket: 0 });
/// let partitions = Pinned::new(4);
/// assert!(partitions.allows(1, &held[1], &held) && !partitions.allows(1, &held[2], &held));
/// assert!(partitions.allows(3, &held[0], &held));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pinned {
    classes: u8,
}

impl Pinned {
    /// Makes a policy for this many classes.
    #[must_use]
    pub fn new(classes: u8) -> Self {
        Self { classes }
    }
}

impl PlacementPolicy for Pinned {
    fn classes(&self) -> u8 {
        self.classes
    }

    fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool {
        held.get(usize::from(class) % held.len().max(1)) == Some(core)
    }

    fn binds(&self) -> bool {
        true
    }
}

/// A socket for each class, as [`Pinned`] has a core for each: for threads that share what is in
/// the memory and in the cache of a socket.
///
/// # Examples
/// ```
/// use tailwater::cores::{Held, PerSocket, PlacementPolicy};
///
/// let held = [0, 1, 8, 9].map(|core| Held { core, physical: core, socket: core / 8 });
/// let halves = PerSocket::new(2);
/// assert!(held.iter().all(|core| halves.allows(1, core, &held) == (core.core >= 8)));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct PerSocket {
    classes: u8,
}

impl PerSocket {
    /// Makes a policy for this many classes.
    #[must_use]
    pub fn new(classes: u8) -> Self {
        Self { classes }
    }
}

impl PlacementPolicy for PerSocket {
    fn classes(&self) -> u8 {
        self.classes
    }

    fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool {
        let mut sockets: Vec<usize> = held.iter().map(|held| held.socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        sockets.get(usize::from(class) % sockets.len().max(1)) == Some(&core.socket)
    }
}

/// Two classes: threads of class 0 are queued on one hyperthread of each physical core, the first
/// one that the program has, those of class 1 on the others; where there are no others, anywhere.
///
/// # Examples
/// ```
/// use tailwater::cores::{Held, PlacementPolicy, WholeCores};
///
/// let held = [0, 1, 4].map(|core| Held { core, physical: core % 4, socket: 0 });
/// let first: Vec<bool> = held.iter().map(|core| WholeCores.allows(0, core, &held)).collect();
/// assert_eq!(first, [true, true, false], "4 is the other hyperthread of 0");
/// assert!(WholeCores.allows(1, &held[2], &held) && !WholeCores.allows(1, &held[1], &held));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct WholeCores;

impl PlacementPolicy for WholeCores {
    fn classes(&self) -> u8 {
        2
    }

    fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool {
        let is_first = |core: &Held| {
            held.iter().find(|other| other.physical == core.physical).is_some_and(|other| other == core)
        };
        if class == 0 { is_first(core) } else { !is_first(core) || held.iter().all(is_first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_this_machine_are_known() {
        let cores = machine();
        assert!(!cores.is_empty());
        for (number, held) in cores.iter().enumerate() {
            assert_eq!(held.core, number);
            assert!(held.physical <= number, "{held:?}");
        }
    }

    #[test]
    fn each_class_has_a_core_whatever_the_program_has() {
        let all = [0, 1, 8, 9].map(|core| Held { core, physical: core % 8, socket: core / 8 });
        let policies: [&dyn PlacementPolicy; 3] = [&Pinned::new(5), &PerSocket::new(3), &WholeCores];
        for mask in 1..16 {
            let held: Vec<Held> = (0..4).filter(|n| mask & (1 << n) != 0).map(|n| all[n]).collect();
            for policy in policies {
                for class in 0..policy.classes() {
                    assert!(held.iter().any(|core| policy.allows(class, core, &held)), "{class} of {held:?}");
                }
            }
        }
    }
}
