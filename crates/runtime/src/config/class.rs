//! The class of a runtime, by which the IOKernel treats it.

use tailwater_shm::control;

/// How the IOKernel's allocator treats a program.
///
/// # Examples
/// ```
/// let batch = tailwater::RuntimeBuilder::new().class(tailwater::ProgramClass::BestEffort);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "config-file", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum ProgramClass {
    /// May take burstable cores from best-effort programs at once.
    #[default]
    LatencyCritical,
    /// Gets the cores that are left.
    BestEffort,
}

impl From<ProgramClass> for control::ProgramClass {
    fn from(class: ProgramClass) -> Self {
        match class {
            ProgramClass::LatencyCritical => Self::LatencyCritical,
            ProgramClass::BestEffort => Self::BestEffort,
        }
    }
}
