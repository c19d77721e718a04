//! Where ordinary programs run that are clients of services on the same machine.
//!
//! Owns the choice, a pure function. A kthread runs ahead of all ordinary threads of a lent core
//! and polls there after its last work, so a client beside it gets little; on the IOKernel's core
//! the polling thread yields to it, and each of its frames costs it time.

/// Cores for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Neither lent nor the IOKernel's.
    Free(Vec<usize>),
    /// The IOKernel's: no other core is not lent.
    Polling(usize),
    /// All that the client may use are lent.
    Lent,
}

impl Place {
    /// Chooses among the cores that a client may use.
    pub fn new(allowed: &[usize], polling: usize, lent: &[usize]) -> Self {
        let unlent = || allowed.iter().copied().filter(|core| !lent.contains(core));
        let free: Vec<usize> = unlent().filter(|&core| core != polling).collect();
        match free.is_empty() {
            false => Self::Free(free),
            true => unlent().next().map_or(Self::Lent, Self::Polling),
        }
    }

    /// Returns the cores; none where a choice would change nothing.
    pub fn cores(&self) -> &[usize] {
        match self {
            Self::Free(cores) => cores,
            Self::Polling(core) => std::slice::from_ref(core),
            Self::Lent => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_the_lent_cores_and_that_of_the_iokernel_if_another_remains() {
        assert_eq!(Place::new(&[0, 1, 2, 3], 0, &[2, 3]), Place::Free(vec![1]));
        assert_eq!(Place::new(&[0, 1, 2], 1, &[]).cores(), [0, 2]);
        assert_eq!(Place::new(&[0, 1], 0, &[1]), Place::Polling(0));
        assert_eq!(Place::new(&[0, 1], 0, &[1]).cores(), [0]);
        assert_eq!(Place::new(&[1], 0, &[1]), Place::Lent);
        assert_eq!(Place::new(&[1], 0, &[1]).cores(), [0; 0]);
    }
}
