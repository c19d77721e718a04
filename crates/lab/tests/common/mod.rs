//! What tests of the command share: running it.

use std::process::Command;

/// Returns the command, with these words.
pub fn lab(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-lab"));
    command.args(words);
    command
}
