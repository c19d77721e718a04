//! The cores that a program requests.
//!
//! Owns [`Requests`]. They are copied from memory that programs write: any bit pattern is legal,
//! and what exceeds a program's limit is cut off, lowest priorities first.

/// Number of priority levels (Arachne section 4).
pub const PRIORITIES: u8 = 8;

/// The cores that a program requests, by priority: priority 0 is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests(pub(super) [u8; PRIORITIES as usize]);

impl Requests {
    /// Requests nothing.
    pub const NONE: Self = Self([0; PRIORITIES as usize]);

    /// Requests this many cores at each priority.
    #[must_use]
    pub const fn new(cores: [u8; PRIORITIES as usize]) -> Self {
        Self(cores)
    }

    /// Returns the requests that a word of shared memory stands for: one byte per priority,
    /// priority 0 in the lowest.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word.to_le_bytes())
    }

    /// Returns the word that requests at each priority the larger number of two words.
    #[must_use]
    pub fn larger(one: u64, other: u64) -> u64 {
        // Nearly always, and 70 instructions less.
        if other == 0 {
            return one;
        }
        let (one, other) = (one.to_le_bytes(), other.to_le_bytes());
        u64::from_le_bytes(core::array::from_fn(|priority| one[priority].max(other[priority])))
    }

    /// Returns the number of cores requested at all priorities.
    #[must_use]
    pub fn total(self) -> u16 {
        self.0.iter().copied().map(u16::from).sum()
    }

    /// Returns the requests without what exceeds `limit` in total, lowest priorities first.
    #[must_use]
    pub fn limited_to(self, limit: u16) -> Self {
        let mut left = limit;
        Self(self.0.map(|cores| {
            let kept = u16::from(cores).min(left);
            left -= kept;
            kept as u8
        }))
    }
}
