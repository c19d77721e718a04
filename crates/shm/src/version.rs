//! Protocol versions: which builds understand each other.
//!
//! A version has two numbers: the major one in bits 0-15, the minor one in bits 16-31. Builds of
//! different major numbers do not understand each other. A change that raises the minor number only
//! gives a meaning to words and bits that were zero before, to values that were refused, or to
//! messages and fields that the other side is sent only if its version has them: so an IOKernel
//! serves programs of its own minor number and of all lower ones.
//!
//! From release 0.1.0 on, a release raises the minor number only, by which programs of all releases
//! before it go on. A change that cannot be made so comes with an IOKernel that serves programs of
//! both major numbers until the release after. No release before 0.1.0 exists, so there is no other
//! major number to serve yet.

use core::fmt;

/// See the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// Version of this build.
    pub const OWN: Self = Self(crate::layout::VERSION);

    /// Returns the version of these numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self(major as u32 | (minor as u32) << 16)
    }

    /// Returns the number that builds have to share.
    #[must_use]
    pub const fn major(self) -> u16 {
        self.0 as u16
    }

    /// Returns the number that an IOKernel has to have at least.
    #[must_use]
    pub const fn minor(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns whether an IOKernel of this version serves programs of version `program`.
    #[must_use]
    pub const fn serves(self, program: Self) -> bool {
        self.major() == program.major() && self.minor() >= program.minor()
    }
}

/// Writes `12`, or `12.1` if the minor number is not 0.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor() {
            0 => write!(f, "{}", self.major()),
            minor => write!(f, "{}.{minor}", self.major()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iokernel_serves_programs_of_its_major_number_that_are_not_newer() {
        let served = |iokernel: (u16, u16), program: (u16, u16)| {
            Version::new(iokernel.0, iokernel.1).serves(Version::new(program.0, program.1))
        };
        for (iokernel, program) in [((13, 0), (13, 0)), ((13, 2), (13, 0)), ((13, 2), (13, 2))] {
            assert!(served(iokernel, program), "{iokernel:?} serves {program:?}");
        }
        for (iokernel, program) in [((13, 0), (13, 1)), ((14, 0), (13, 0)), ((13, 9), (14, 0))] {
            assert!(!served(iokernel, program), "{iokernel:?} does not serve {program:?}");
        }
    }

    #[test]
    fn a_version_without_a_minor_number_is_its_major_number() {
        assert_eq!(Version::new(12, 0), Version(12));
        assert_eq!(Version(13).to_string(), "13");
        assert_eq!(Version::new(13, 2).to_string(), "13.2");
    }
}
