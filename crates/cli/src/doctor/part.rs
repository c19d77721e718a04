//! One line of the doctor's.

use serde::Serialize;

/// How a part of the machine was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Missing,
    Absent,
    Caution,
}

impl Status {
    /// Returns its word in a line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Absent => "absent",
            Self::Caution => "caution",
        }
    }
}

/// One part of the machine and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What was examined.
    pub name: &'static str,
    /// How it was found.
    pub status: Status,
    /// What there is, or what is missing and what to do.
    pub found: String,
}
