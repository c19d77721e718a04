//! The last registrations that were refused.
//!
//! Owns a bounded list, so that `tailwater info NAME` can say why a program is not there. Names and
//! reasons contain what clients sent: they are cut, and without control characters. A user whose
//! clients are refused all the time pushes out his own entries first.

use std::time::Instant;

use serde_json::{Value, json};

/// Most entries.
const MOST: usize = 16;
/// Most characters of a name, and of a reason.
const NAME_CHARS: usize = 64;
const WHY_CHARS: usize = 200;

#[derive(Debug)]
struct Refused {
    name: String,
    user: u32,
    why: String,
    at: Instant,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Refused>);

impl Refusals {
    /// Notes a refusal. The last one of a name and user replaces the one before.
    pub(super) fn note(&mut self, name: &str, user: u32, why: &str, now: Instant) {
        let name = printable(name, NAME_CHARS);
        self.0.retain(|entry| entry.user != user || entry.name != name);
        if self.0.len() >= MOST {
            let of = |user| self.0.iter().filter(|entry| entry.user == user).count();
            let most = self.0.iter().map(|entry| of(entry.user)).max();
            // The oldest of those who have most.
            let leaving = self.0.iter().position(|entry| Some(of(entry.user)) == most);
            self.0.remove(leaving.unwrap_or(0));
        }
        self.0.push(Refused { name, user, why: printable(why, WHY_CHARS), at: now });
    }

    /// Returns the refusals, the last one first.
    pub(super) fn to_json(&self, now: Instant) -> Value {
        let entry = |entry: &Refused| {
            let ago = now.saturating_duration_since(entry.at).as_secs();
            json!({ "name": entry.name, "user": entry.user, "why": entry.why, "seconds_ago": ago })
        };
        self.0.iter().rev().map(entry).collect()
    }
}

fn printable(text: &str, most: usize) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(most).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_is_refused_all_the_time_pushes_out_his_own_entries_only() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note("web", 7, "the name is taken", now);
        for i in 0..100 {
            refusals.note(&format!("x{i}"), 8, "no", now);
        }
        let shown = refusals.to_json(now);
        assert_eq!(shown.as_array().unwrap().len(), MOST);
        assert_eq!((&shown[0]["name"], &shown[MOST - 1]["name"]), (&json!("x99"), &json!("web")));
        refusals.note("web", 7, "the address is taken", now);
        assert_eq!(refusals.to_json(now)[0]["why"], "the address is taken");
        assert_eq!(refusals.to_json(now).as_array().unwrap().len(), MOST);
    }

    #[test]
    fn what_clients_sent_is_cut_and_does_nothing_to_a_terminal() {
        let mut refusals = Refusals::default();
        refusals.note(&"\x1b[2J".repeat(1_000), 7, &"\n".repeat(10_000), Instant::now());
        let shown = refusals.to_json(Instant::now()).to_string();
        assert!(shown.len() < 4_000 && !shown.contains("\\u001b") && !shown.contains("\\n"), "{shown}");
    }
}
