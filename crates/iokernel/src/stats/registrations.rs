//! The last registrations.
//!
//! Owns a bounded list, so that a reader of the record of events can tell what a program did from
//! what an earlier program did at the same place. A moment is one of the clock of the record.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;

/// Most entries: more than register in the seconds that the record of a busy machine reaches back.
const MOST: usize = 32;

#[derive(Debug)]
struct Registration {
    place: RuntimeId,
    name: String,
    at: Cycles,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Registrations(VecDeque<Registration>);

impl Registrations {
    /// Notes a registration.
    pub(super) fn note(&mut self, place: RuntimeId, name: &str, at: Cycles) {
        self.0.truncate(MOST - 1);
        self.0.push_front(Registration { place, name: name.to_owned(), at });
    }

    /// Returns the registrations, the last one first.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|it| json!({ "id": it.place.0, "name": it.name, "cycles": it.at })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_registrations_are_kept_the_last_one_first() {
        let mut registrations = Registrations::default();
        for at in 0..100u32 {
            registrations.note(RuntimeId(at % 3), &format!("program {at}"), at.into());
        }
        let shown = registrations.to_json();
        assert_eq!(shown.as_array().unwrap().len(), MOST);
        assert_eq!(shown[0], json!({ "id": 0, "name": "program 99", "cycles": 99 }));
        assert_eq!(shown[MOST - 1]["cycles"], 100 - MOST);
    }
}
