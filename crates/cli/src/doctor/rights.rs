//! Rights of the calling user at the IOKernel that runs.

use super::part::{Part, Status};
use crate::query;

/// Asks the IOKernel at `socket`.
pub fn examine(socket: &str) -> Part {
    let (status, found) = match query::rights(socket) {
        Ok(may) => (Status::Ok, format!("at {socket}: {may}")),
        Err(error) => (Status::Absent, format!("no answer about its rights: {error:#}")),
    };
    Part { name: "this user", status, found }
}
